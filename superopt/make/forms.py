"""Turns the programs that a search found into programs of kernels, cut exactly where the search cut them.

The kernels that are made are those that the search priced: a value that a state materialises is stored in memory, and
every other value is fused into the one kernel that reads it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from costmodel.model.joint import MOST, Joint
from superopt.candidates.candidate import Candidate
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph, Node
from superopt.kernels.choose.regions import is_inside
from superopt.machine.budget import WORTH
from superopt.make.plain import cut
from superopt.search.search import Finalist


def forms_of(found: Exploration) -> list[Candidate]:
    """The distinct forms that may be the fastest, the cheapest by prediction first.

    A form is kept unless its predicted time exceeds the least by more than the model's error.  That error is the factor
    within which the model was right for three of four kernels that were timed.  No kernel is made yet.
    """
    forms: dict[object, Candidate] = {}
    for finalist in found.result.finalists:
        if finalist.original and found.graph is found.imported:  # else bodies of control flow are better ones
            continue
        program, stored = found.result.lowering.lower_stored(finalist.selection, found.graph, found.expand)
        name, apart = f"{finalist.name} in kernels", apart_s(found, finalist)
        form = Candidate(
            name=name,
            program=program,
            finalist=finalist.name,
            loops=found.loops,
            apart_s=apart,
            predicted_s=finalist.predicted_s,
        )
        form = cut(form, program, stored if found.result.problem.in_kernels else frozenset())
        forms.setdefault((frozenset(form.runs.items()), frozenset(_apart_of(form).items())), form)
    order = priced(found.model, list(forms.values()))
    off = found.model.error_of(MOST)
    return [form for form in order if (form.predicted_s or 0.0) <= off * (order[0].predicted_s or math.inf)]


def priced(model: Joint, forms: Sequence[Candidate]) -> list[Candidate]:
    """The forms with their predicted seconds, each region on the backend chosen for it, the cheapest first."""
    with_prices = [replace(form, predicted_s=_predicted_s(model, form)) for form in forms]
    return sorted(with_prices, key=lambda form: form.predicted_s or 0.0)


def that_differ(model: Joint, order: Sequence[Candidate], made: Sequence[Candidate]) -> list[Candidate]:
    """The forms that measurement could distinguish from every earlier form and from every form already made."""
    kept: list[Candidate] = []
    for form in order:
        if all(_apart(model, form, other) > (WORTH - 1.0) for other in (*made, *kept)):
            kept.append(form)
    return kept


def _apart(model: Joint, form: Candidate, other: Candidate) -> float:
    """Seconds of a form not shared with another one; infinite where ops outside of all regions differ."""
    here, there = form.runs, other.runs
    only = (here - there) + (there - here)
    if _apart_of(form) != _apart_of(other) or (only and not here):
        return math.inf
    return _total_s(model, only) / max(_total_s(model, here), 1e-12) if only else 0.0


def _total_s(model: Joint, runs: Counter[Graph]) -> float:
    """Predicted seconds of regions that run so often."""
    return sum(n * s for n, s in zip(runs.values(), model.region_s(list(runs)).tolist(), strict=True))


def _apart_of(form: Candidate) -> Counter[object]:
    """The ops of a form outside of all regions, with attributes and types, counted; bodies of control flow included."""
    return Counter((node.op, node.attrs, node.types) for node in _outside(form.program.hot))


def _outside(graph: Graph) -> list[Node]:
    """The nodes that no kernel of ours computes."""
    return [node for node in graph.nodes() if node.op not in ("input", "literal") and not is_inside(node)]


def apart_s(found: Exploration, finalist: Finalist) -> float:
    """Predicted seconds of a program's ops outside of all regions: opaque operations, solutions, other types."""
    own = found.model.own
    return sum(
        seconds
        for kernel, seconds in finalist.kernels
        if _outside(kernel) and (own is None or own.parts(kernel) is None)
    )


def own_regions(model: Joint, form: Candidate) -> list[Graph]:
    """The regions of a form that should be our kernels."""
    return [region.graph for region in form.regions if model.is_own(region.graph)]


def _predicted_s(model: Joint, form: Candidate) -> float | None:
    """Predicted seconds of a form, each region on the backend chosen for it; None without any prediction."""
    if model.own is None:
        return form.predicted_s
    return model.program_s(form.runs, set(own_regions(model, form)), form.apart_s)
