"""Proofs that the kernels of a program compute what their regions say.

The loop program of a region is its denotation; its schedule is checked against that (`verifier.schedules`): layouts,
bounds, completeness, order of tasks, values.  Code generation is not part of it: kernels are compared with XLA's values
before they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superopt.backends.native import scheduled_program
from superopt.ir.graph import Graph
from superopt.kernels.choose.choice import Choice, regions_of
from superopt.kernels.loops.program import from_graph
from verifier.schedules import ScheduleVerdict
from verifier.schedules.ledger import ScheduleLedger


def prove_kernel(
    graph: Graph, trace: tuple[object, ...] | None, ledger: ScheduleLedger | None = None
) -> ScheduleVerdict:
    """The verdict on the schedule of a region as this machine builds it, on record or anew.

    Raises:
        InputError: the trace does not fit the region.
    """
    return (ledger or ScheduleLedger()).check(from_graph(graph.outputs), scheduled_program(graph, trace))


def prove_kernels(
    hot: Graph,
    choices: Sequence[Choice],
    ledger: ScheduleLedger | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int, str]:
    """How many distinct schedules of a program are proved, and why the first other one is not (empty when all are).

    Raises:
        InputError: choices that do not fit the program.
    """
    proved: dict[tuple[Graph, object], ScheduleVerdict] = {}
    for region, choice in zip(regions_of(hot, choices), choices, strict=True):
        key = (region.graph, choice.trace)
        if key in proved:
            continue
        verdict = proved[key] = prove_kernel(region.graph, choice.trace, ledger)
        say(f"{region}: {verdict.status} in {1e3 * verdict.seconds:.0f} ms")
        if not verdict.proved:
            return len(proved) - 1, f"the schedule of the kernel {region} is {verdict.status}: {verdict.cause}"
    return len(proved), ""
