"""Regions of a program tried as kernels of our own, one by one, in a worker process.

Each region is a program of its own: XLA's version is the reference, the kernel is the candidate, and both are checked
and timed interleaved.  A kernel that crashes, hangs or computes something else fails here, where nobody is hurt; the
process of the user only ever runs kernels that have come through.  Equal regions are tried once, those that matter most
first, as many as the time allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.ir.counters import Cost
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program, original_program
from superopt.kernels.choice import choices_of
from superopt.kernels.partition import Region, cost_of, region_of, work
from superopt.measure import Failure, Timing, Tuned, Worker, compare
from superopt.measure.arrays import dtype

WORTH = 1.03  # what a kernel must be faster by on its own
_ROUNDS, _SAMPLE_S, _TIMING_S = 9, 0.002, 0.1
_LEAST_BYTES, _LEAST_WORK = 4096, 20_000  # regions of less are left to XLA untried
_LEAST_SHARE = 0.0005  # of the estimated time of all regions
_FLOPS, _BYTES = 1.5e11, 2e10  # per second; orders regions before anything is known of them
Trace = tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a region.

    Attributes:
        name: its ops and types.
        kind: contraction, window, rows, map or movement.
        cost: of one run.
        trace: the schedule; None for the default one.
        xla_s: seconds of XLA's version of the region; None where nothing was timed.
        own_s: seconds of the kernel.
        ratio: of the two, with its interval; None where there is none.
        failure: why there is no timing, or why the kernel cannot be used.
        candidates: schedules that a search timed.
        searched: whether the schedule is one that the search found.
    """

    name: str
    kind: str
    cost: Cost
    trace: Trace = None
    xla_s: float | None = None
    own_s: float | None = None
    ratio: tuple[float, float, float] | None = None
    failure: str = ""
    candidates: int = 0
    searched: bool = False

    @property
    def gain(self) -> float:
        """XLA's time over the kernel's by the fastest samples of both; 0 for a kernel that cannot be used."""
        return 0.0 if self.xla_s is None or self.own_s is None or self.failure else self.xla_s / self.own_s

    @property
    def wins(self) -> bool:
        """Is the kernel faster than XLA on its own?"""
        return self.gain > WORTH


def worth_trying(regions: Sequence[Region]) -> list[Region]:
    """Regions that move or compute enough to be kernels, and of them those that take a noticeable share of the time."""
    large: list[Region] = []
    for region in regions:
        cost = cost_of(region)
        if not region.is_free and (
            cost.read_bytes + cost.write_bytes >= _LEAST_BYTES or work(cost) >= _LEAST_WORK
        ):  # fmt: skip
            large.append(region)
    total = sum(map(estimate, large))
    return [r for r in large if estimate(r) >= _LEAST_SHARE * total]


def estimate(region: Region) -> float:
    """Seconds by a rough roofline, to order regions."""
    cost = cost_of(region)
    return max(work(cost) / _FLOPS, (cost.read_bytes + cost.write_bytes) / _BYTES)


def try_regions(
    regions: Sequence[Region],
    worker: Worker,
    *,
    budget_s: float,
    seed: int = 0,
    traces: Mapping[Graph, Trace] | None = None,
    known: Mapping[Graph, Trial] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[Graph, Trial]:
    """Try every distinct region against XLA, those that matter most first; those beyond the budget are left out.

    Args:
        traces: schedules by region graph; the default one where there is none.
        known: trials that need not be repeated.
    """
    found = dict(known or {})
    weight: dict[Graph, float] = {}
    example: dict[Graph, Region] = {}
    for region in regions:
        weight[region.graph] = weight.get(region.graph, 0.0) + estimate(region)
        example[region.graph] = region
    start = time.monotonic()
    for graph in sorted(weight, key=lambda g: -weight[g]):
        if graph in found:
            continue
        if time.monotonic() - start > budget_s:
            break
        trial = found[graph] = try_region(example[graph], worker, seed=seed, trace=(traces or {}).get(graph))
        progress(f"{trial.name}: {trial.failure or f'{trial.gain:.2f}x'}")
    return found


def try_region(region: Region, worker: Worker, *, seed: int = 0, trace: Trace = None) -> Trial:
    """One region as a kernel, by default with the default schedule, against XLA's version of it.

    The kernel is run alone first, with bands around its buffers: what writes outside of them fails.
    """
    from superopt.backends.native import default_trace  # late: loads LLVM

    name, kind, cost = str(region), region.kind, cost_of(region)
    if trace is None:
        try:
            trace = default_trace(region.graph)
        except InputError as error:
            return Trial(name, kind, cost, failure=str(error.args[0]))
    program = original_program(region.graph)
    candidate = Tuned(program, {}, ({**kernel_of(program, region.graph, trace).to_json(), "guarded": True},))
    values = random_values(region.graph.inputs, seed)
    live = [values[n["name"]] for n in program.live_inputs]
    frozen = {n["name"]: values[n["name"]] for n in region.graph.inputs if n["frozen"]}
    result = compare(
        program, [candidate], live, frozen, rounds=_ROUNDS, min_time_s=_SAMPLE_S, seed=seed, prune=3.0,
        budget_s=_TIMING_S, min_rounds=3, worker=worker,
    )  # fmt: skip
    outcome, reference = result.candidates[0], result.reference
    if not isinstance(outcome, Timing) or not isinstance(reference, Timing):
        lost = reference if isinstance(reference, Failure) else outcome
        assert isinstance(lost, Failure)
        return Trial(name, kind, cost, trace, failure=f"{lost.cause}: {lost.detail}")
    ratio = (outcome.ratio.ratio, outcome.ratio.low, outcome.ratio.high)
    return Trial(name, kind, cost, trace, min(reference.samples_s), min(outcome.samples_s), ratio)


def kernel_of(program: Program, graph: Graph, trace: Trace) -> Any:
    """The choice that makes the whole of `original_program(graph)` one kernel, as it is within a larger program."""
    prepared = iter(program.prepared_inputs)
    reads = [next(prepared) if node["frozen"] else node for node in graph.inputs]
    region = region_of(program.hot.outputs[0], reads)
    assert region.graph == graph
    return choices_of(program.hot, [(region, trace)])[0]


def random_values(inputs: Sequence[Node], seed: int) -> dict[str, np.ndarray]:
    """Values of both signs for inputs by name; integers are small, so that they may be indices."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for node in inputs:
        shape = tuple(int(n) for n in node.shape)  # pyright: ignore[reportArgumentType] (sizes of programs are concrete)
        if node.dtype == "bool":
            found[node["name"]] = rng.random(shape) < 0.5
        elif np.issubdtype(dtype(node.dtype), np.integer):
            found[node["name"]] = rng.integers(0, 8, shape).astype(dtype(node.dtype))
        else:
            found[node["name"]] = rng.standard_normal(shape).astype(np.float32).astype(dtype(node.dtype))
    return found
