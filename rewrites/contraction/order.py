"""The cheapest order of a contraction: a dynamic program over the subsets of its operands.

The cost of an order is a sum of products of role sizes: the multiplications of each step, and for sums the elements
that are read and written.  Elementwise steps are part of what reads them.  What is known ahead of time costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rewrites.contraction.region import IndexForm, RegionPart

_MOVED = 4  # multiplications in the time of one element from the second-level cache, as order of magnitude
RoleSet = frozenset[str]


@dataclass(frozen=True, slots=True)
class ContractionStep:
    """A step of a contraction: an operand, a sum of a step over roles, or a product of two summed over roles.

    Attributes:
        args: an operand's number, or one or two steps.
        over: roles that are summed over.
        roles: roles of the result.
        frozen: whether the result is known ahead of time.
        cost: products of role sizes with their coefficients, over all steps below.
    """

    args: tuple[int] | tuple[ContractionStep, ...]
    over: RoleSet
    roles: RoleSet
    frozen: bool
    cost: Mapping[RoleSet, int]


def paid(terms: Mapping[RoleSet, int], sizes: Mapping[str, int]) -> int:
    """The value of a cost at some sizes."""
    return sum(count * math.prod(sizes[r] for r in roles) for roles, count in terms.items())


def step_cost(work: RoleSet, moved: Iterable[RoleSet]) -> Counter[RoleSet]:
    """The cost of one step: multiplications over some roles, and tensors that are read or written."""
    terms = Counter({work: 1})
    for roles in moved:
        terms[roles] += _MOVED
    return terms


def frozen_leaves(step: ContractionStep) -> frozenset[int]:
    """Numbers of the operands on whose being known ahead of time the cost of an order rests."""
    below = [x for x in step.args if isinstance(x, ContractionStep)]
    if step.frozen and below:
        return _leaves(step)
    return frozenset[int]().union(*map(frozen_leaves, below))


def _leaves(step: ContractionStep) -> frozenset[int]:
    return frozenset[int]().union(*[_leaves(x) if isinstance(x, ContractionStep) else {x} for x in step.args])


def program_cost(form: IndexForm) -> Counter[RoleSet]:
    """The cost of the region as it stands."""
    frozen: dict[RegionPart, bool] = {}
    total: Counter[RoleSet] = Counter()

    def visit(part: RegionPart) -> None:
        args = part.args[:1] if part.kind == "square" else part.args
        for arg in args:
            visit(arg)
        frozen[part] = part in form.frozen if part.kind == "leaf" else all(frozen[arg] for arg in args)
        if frozen[part] or part.kind in ("leaf", "view", "copy"):
            return
        work = form.roles[part].union(*[form.roles[arg] for arg in part.args])
        read = [form.roles[arg] if part.kind == "dot" else _stored(form, arg) for arg in part.args]
        total.update(step_cost(work, [*read, form.roles[part]] if part.kind in ("dot", "sum") else []))

    visit(form.root)
    return total


def _stored(form: IndexForm, part: RegionPart) -> RoleSet:
    """Roles of what a sum reads: a broadcast is part of it, while a product may read it as a tensor."""
    while part.kind in ("copy", "view"):
        part = part.args[0]
    return form.roles[part]


def best_order(form: IndexForm) -> ContractionStep:
    """The cheapest order by the dynamic program."""
    roles: Sequence[RoleSet] = [form.one_point(form.roles[leaf]) for leaf in form.operands]
    count = len(roles)
    best: dict[int, ContractionStep] = {}
    value: dict[int, int] = {}  # of the cost of the best

    @functools.cache
    def elements(some: RoleSet) -> int:
        return math.prod([form.sizes[r] for r in some])

    for mask in range(1, 1 << count):
        others = [roles[i] for i in range(count) if not mask >> i & 1]
        wanted = form.out.union(*others)
        if mask & (mask - 1) == 0:
            number = mask.bit_length() - 1
            leaf = form.operands[number]
            divides = leaf in form.inverse and leaf not in form.frozen
            cost = step_cost(roles[number], []) if divides else Counter[RoleSet]()
            plain = ContractionStep((number,), RoleSet(), roles[number], leaf in form.frozen, cost)
            best[mask] = _summed(plain, roles[number] - wanted)
            value[mask] = paid(best[mask].cost, form.sizes)
            continue
        values: dict[int, int] = {}
        part = (mask - 1) & mask
        while part > mask ^ part:
            a, b = best[part], best[mask ^ part]
            own = sum(n * elements(some) for some, n in _own_cost(a, b, wanted).items())
            values[part] = value[part] + value[mask ^ part] + own
            part = (part - 1) & mask
        part = min(values, key=values.__getitem__)
        best[mask], value[mask] = _times(best[part], best[mask ^ part], wanted), values[part]
    return best[(1 << count) - 1]


def _summed(step: ContractionStep, over: RoleSet) -> ContractionStep:
    if not over:
        return step
    kept = step.roles - over
    cost = Counter(step.cost)
    if not step.frozen:
        cost.update(step_cost(step.roles, (step.roles, kept)))
    return ContractionStep((step,), over, kept, step.frozen, cost)


def _own_cost(a: ContractionStep, b: ContractionStep, wanted: RoleSet) -> Mapping[RoleSet, int]:
    """The cost of the product of two steps, without theirs."""
    if a.frozen and b.frozen:
        return {}
    work = a.roles | b.roles
    return {work: 1} if work <= wanted else step_cost(work, (a.roles, b.roles, work & wanted))


def _times(a: ContractionStep, b: ContractionStep, wanted: RoleSet) -> ContractionStep:
    work = a.roles | b.roles
    cost = Counter(a.cost)
    cost.update(b.cost)
    cost.update(_own_cost(a, b, wanted))
    return ContractionStep((a, b), work - wanted, work & wanted, a.frozen and b.frozen, cost)
