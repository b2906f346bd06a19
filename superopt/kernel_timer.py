"""Timing of the kernels that finalists use, to correct the objective between rounds of search.

Only kernels that matter are timed: those with a noticeable share of a finalist's predicted time, the largest first,
until the time set aside is used up.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.measured import Measured
from rewrites.expander import expand_graph
from superopt.budget import SearchBudget
from superopt.ir.graph import Graph, Node
from superopt.measure import KernelTiming, Worker, time_kernels
from superopt.measure.kernels import KernelSettings
from superopt.search.search import Finalist

_MEASURE_SHARE = 0.25
_WORTH_TIMING = 0.003
_SETTINGS = KernelSettings(rounds=3, sample_s=0.003, max_calls=30)


class KernelTimer:
    """Times the kernels that finalists use, in one worker, and corrects the objective by them."""

    def __init__(self, objective: Measured, limits: SearchBudget, worker: Worker) -> None:
        self.objective = objective
        self.worker = worker
        self.seconds = _MEASURE_SHARE * (limits.seconds or 60.0)

    def learn(self, finalists: Sequence[Finalist], share: float) -> int:
        """Time kernels not timed yet, those that matter most first; how many were timed."""
        weight: dict[Node, float] = {}
        graphs: dict[Node, Graph] = {}
        for finalist in finalists:
            for kernel, predicted in finalist.kernels:
                output = kernel.outputs[0]
                if kernel not in self.objective and not _has_opaque(kernel):
                    graphs[output] = kernel
                    weight[output] = weight.get(output, 0.0) + predicted / max(finalist.predicted_s, 1e-9)
        chosen = [n for n in sorted(weight, key=lambda n: -weight[n]) if weight[n] > _WORTH_TIMING]
        plain = [expand_graph(graphs[n], self.objective.expand) for n in chosen]
        timings = time_kernels(plain, settings=_SETTINGS, budget_s=share * self.seconds, worker=self.worker)
        pairs = [(graphs[n], t.seconds) for n, t in zip(chosen, timings, strict=True) if isinstance(t, KernelTiming)]
        self.objective.learn([g for g, _ in pairs], [s for _, s in pairs])
        return len(pairs)


def _has_opaque(kernel: Graph) -> bool:
    return any(node.op in ("opaque", "scan", "while", "cond") for node in kernel.nodes())
