"""Parts of a candidate: what it has and the original has not, as steps of the report's waterfall need them."""

from __future__ import annotations

from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import Made, RunLedger
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph
from superopt.report.steps import PARTS
from superopt.search.snapshot import VIEWS


def parts_by_name(ledger: RunLedger, graph: Graph, found: Exploration | None) -> dict[str, tuple[str, ...]]:
    """Return the parts of all candidates of a run by name."""
    return {event.candidate.name: parts_of(event.candidate, graph, found) for event in ledger.of(Made)}


def parts_of(candidate: Candidate, graph: Graph, found: Exploration | None) -> tuple[str, ...]:
    """Return what a candidate has and the original has not, as keys of `PARTS`.

    Args:
        graph: the original.
        found: the search that the candidate may come from.
    """
    finalist = None if found is None else found.finalist(candidate.finalist)
    has = {
        "ahead": candidate.program.computes_ahead,
        "rewrites": finalist is not None and bool(finalist.rules),
        "layouts": has_other_orders(candidate.program.hot, graph),
        "kernels": bool(candidate.kernels),
        "schedules": candidate.searched and bool(candidate.kernels),
        "options": bool(candidate.options),
    }
    return tuple(part for part in PARTS if has[part])


def has_other_orders(hot: Graph, graph: Graph) -> bool:
    """Whether an operation of a program computes a value with its axes in an order that the original has nowhere."""
    shapes = {kind.shape for node in graph.nodes() for kind in node.types}
    sizes = {tuple(sorted(map(str, shape))) for shape in shapes}
    return any(
        kind.shape not in shapes and tuple(sorted(map(str, kind.shape))) in sizes
        for node in hot.nodes()
        if node.op not in VIEWS and node.inputs
        for kind in node.types
    )
