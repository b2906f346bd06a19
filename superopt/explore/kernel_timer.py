"""Timing of kernels between rounds of search, to correct the objective.

Before the first round the timer measures the regions of the program's own form, whose kernels are made by then.
Between rounds it measures the kernels that finalists use, those with a noticeable share of a finalist's predicted
time, ordered by how much of that time the model may be off.  Their rivals follow (`superopt.search.finalists`), the
most promising first, until the time set aside is used up.  Those are first the rivals that would be faster if the model
erred as much as on one timed kernel in four, then as much as on any.  At the end it measures the regions in which
programs differ, all interleaved.  Weights are as cold as in the program: calls take turns with copies of them that
are together as large as all its weights.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from costmodel.model.joint import MOST, Joint, KernelJob
from superopt.ir.graph import Graph
from superopt.ir.ops.table import CONTROL
from superopt.ir.program import frozen_bytes
from superopt.machine.deadline import Deadline
from superopt.measure import KernelTiming, time_kernels
from superopt.measure.kernels import LEFT_OUT, KernelSettings
from superopt.search.finalists import rival_kernels
from superopt.search.search import SearchResult
from superopt.workshop.job import Failure, JobWorker, WorkerDiedError
from superopt.workshop.scheduler import again_where_lost

_WORTH_TIMING = 0.003  # share of a program's time: ten such kernels make a difference (`budget.WORTH`)


class KernelTimer:
    """Times the kernels that finalists use, in one worker, and corrects the objective by the measurements."""

    def __init__(self, objective: Joint, worker: JobWorker) -> None:
        self.objective = objective
        self.worker = worker

    def learn(self, result: SearchResult, deadline: Deadline) -> int:
        """Time kernels not timed yet, those that matter most first; return how many were timed."""
        graphs = {kernel.outputs[0]: kernel for finalist in result.finalists for kernel, _ in finalist.kernels}
        share, count = dict.fromkeys(graphs, 0.0), dict.fromkeys(graphs, 0.0)
        for finalist in result.finalists:
            for kernel, predicted in finalist.kernels:
                share[kernel.outputs[0]] += predicted / max(finalist.predicted_s, 1e-9)
                count[kernel.outputs[0]] += 1.0 / max(finalist.predicted_s, 1e-9)
        chosen = [node for node in graphs if share[node] > _WORTH_TIMING]
        uncertain_s = self.objective.uncertain_s([graphs[node] for node in chosen])
        doubt = {node: s * count[node] for node, s in zip(chosen, uncertain_s, strict=True)}
        chosen.sort(key=lambda node: (-doubt[node], -share[node]))
        best = result.best
        program = [kernel for kernel, _ in best.kernels]
        timed = self._time(self._jobs([graphs[n] for n in chosen]), deadline, program)
        for most in (MOST, 1.0):
            if not self.objective.count or deadline.is_over:
                break
            rivals = rival_kernels(result.problem, best, self.objective.error_of(most), deadline)
            worth = [k for k, gain in rivals if gain > _WORTH_TIMING * best.predicted_s and k.outputs[0] not in graphs]
            graphs |= {kernel.outputs[0]: kernel for kernel in worth}
            timed += self._time(self._jobs(worth), deadline.at_least(1e-3), program)
        return timed

    def distinguish(self, programs: Sequence[Sequence[Graph]], deadline: Deadline) -> int:
        """Time the regions that not all programs have, the slowest first; return how many were timed.

        Args:
            programs: for each, the regions that are our kernels.
        """
        counts = [Counter(regions) for regions in programs]
        apart = [g for g in dict.fromkeys(itertools.chain(*programs)) if len({count[g] for count in counts}) > 1]
        together = KernelSettings(chunk=max(1, len(apart)))
        return self._time(self._own(apart), deadline, max(programs, key=len, default=()), together)

    def calibrate(self, regions: Sequence[Graph], deadline: Deadline) -> int:
        """Time regions of the program's own form, whose kernels are made, the slowest first; return how many.

        Forms of the search are compared with them, and they tell how this machine differs from that of the labels.
        """
        return self._time(self._own(list(dict.fromkeys(regions))), deadline, regions)

    def _own(self, regions: Sequence[Graph]) -> list[KernelJob]:
        """Timing jobs of the regions that our backend supports, the slowest first."""
        own = self.objective.own_name
        prices = dict(zip(regions, self.objective.by_backend(regions)[own], strict=True)) if regions and own else {}
        return [KernelJob(own, g, g) for g in sorted(prices, key=lambda g: -prices[g])]

    def _time(
        self,
        jobs: Sequence[KernelJob],
        deadline: Deadline,
        program: Sequence[Graph],
        how: KernelSettings | None = None,
    ) -> int:
        """Time kernels with the weights of a program beside them in memory, and correct the objective by them."""
        left_s = deadline.left_s
        if not jobs or left_s <= 0.0:  # zero would mean no limit
            return 0
        settings = replace(how or KernelSettings(), footprint=sum(map(frozen_bytes, program)))
        runs, backends = [job.runs for job in jobs], [job.backend for job in jobs]
        try:
            timings = again_where_lost(
                lambda: time_kernels(runs, settings=settings, budget_s=left_s, worker=self.worker, backends=backends)
            )
        except WorkerDiedError:  # several workers were lost: what is not timed is predicted
            return 0
        for job, found in zip(jobs, timings, strict=True):
            if isinstance(found, Failure) and found.detail != LEFT_OUT:
                self.objective.refuse(job)
        timed = [(job, t.seconds) for job, t in zip(jobs, timings, strict=True) if isinstance(t, KernelTiming)]
        self.objective.learn([job for job, _ in timed], [s for _, s in timed])
        return len(timed)

    def _jobs(self, kernels: Sequence[Graph]) -> list[KernelJob]:
        return self.objective.untimed([kernel for kernel in kernels if not is_open(kernel)])


def is_open(kernel: Graph) -> bool:
    """Whether a kernel contains opaque operations or control flow, which cannot be timed by themselves."""
    return any(node.op in CONTROL for node in kernel.nodes())
