"""The programs of a search as they are made in kernels: cut where the search has cut them, nothing else done to them.

What a search priced is what is made: a value that a state materialises lies in memory, all else is part of the one
kernel that reads it, and the regions of that are those that were priced.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from costmodel.model.joint import MOST, Joint
from superopt.choose.plain import KernelProgram, cut
from superopt.explore.found import Exploration
from superopt.ir.graph import Graph
from superopt.kernels.choose.regions import is_inside
from superopt.machine.budget import WORTH
from superopt.search.search import Finalist


def forms_of(found: Exploration) -> list[KernelProgram]:
    """The distinct forms that may be the fastest, the cheapest by prediction first.

    Those are, which are predicted to take at most as much longer than the least as the models were off by, of three
    kernels out of four that were timed.  No kernel is made yet.
    """
    forms: dict[object, KernelProgram] = {}
    for finalist in found.result.finalists:
        if finalist.original and found.graph is found.imported:  # else bodies of control flow are better ones
            continue
        program, stored = found.result.lowering.lower_stored(finalist.selection, found.graph, found.expand)
        form = KernelProgram(f"{finalist.name} in kernels", program, finalist, apart_s=apart_s(found, finalist))
        form = cut(form, program, stored if found.result.problem.in_kernels else frozenset())
        forms.setdefault((frozenset(_shares(form).items()), frozenset(_apart_of(form).items())), form)
    order = priced(found.model, list(forms.values()))
    off = found.model.error_of(MOST)
    return [form for form in order if (form.predicted_s or 0.0) <= off * (order[0].predicted_s or math.inf)]


def priced(model: Joint, forms: Sequence[KernelProgram]) -> list[KernelProgram]:
    """Forms with what they would take, each region on its backend, the cheapest first."""
    found = [replace(form, predicted_s=_predicted_s(model, form)) for form in forms]
    return sorted(found, key=lambda form: form.predicted_s or 0.0)


def that_differ(model: Joint, order: Sequence[KernelProgram], made: Sequence[KernelProgram]) -> list[KernelProgram]:
    """Of forms in this order those that no round could find level with one before them, or with one that was made."""
    kept: list[KernelProgram] = []
    for form in order:
        if all(_apart(model, form, other) > (WORTH - 1.0) for other in (*made, *kept)):
            kept.append(form)
    return kept


def _apart(model: Joint, form: KernelProgram, other: KernelProgram) -> float:
    """The part of a form's time that it does not share with another; infinite where what is in no region differs."""
    here, there = _shares(form), _shares(other)
    only, every = [*(here - there).elements(), *(there - here).elements()], [*here.elements()]
    if _apart_of(form) != _apart_of(other) or (only and not every):
        return math.inf
    return float(model.region_s(only).sum()) / max(float(model.region_s(every).sum()), 1e-12) if only else 0.0


def _shares(form: KernelProgram) -> Counter[Graph]:
    """The regions of a form."""
    return Counter(region.graph for region in form.regions)


def _apart_of(form: KernelProgram) -> Counter[object]:
    """What a form computes outside of all regions: ops with what they are told, bodies of control flow included."""
    nodes = [node for node in form.program.hot.nodes() if node.op not in ("input", "literal") and not is_inside(node)]
    return Counter((node.op, node.attrs, node.types) for node in nodes)


def apart_s(found: Exploration, finalist: Finalist) -> float:
    """Seconds of what a program computes outside of all regions: control flow, opaque operations, other types."""
    return sum(seconds for kernel, seconds in finalist.kernels if not is_inside(kernel.outputs[0]))


def own_regions(model: Joint, form: KernelProgram) -> list[Graph]:
    """The regions of a form that are to be kernels of our own."""
    return [region.graph for region in form.regions if model.is_own(region.graph)]


def _predicted_s(model: Joint, form: KernelProgram) -> float | None:
    """What a form would take, each region on its backend."""
    if model.own is None:
        return None if form.finalist is None else form.finalist.predicted_s
    regions = [region.graph for region in form.regions]
    return model.program_s(regions, set(own_regions(model, form)), form.apart_s)
