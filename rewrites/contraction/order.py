"""The cheapest order of a contraction: a dynamic program over the subsets of its operands.

The cost of an order is a sum of products of role sizes: the multiplications of each step, and for sums the elements
that are read and written.  Elementwise steps are part of what reads them.  What is known ahead of time costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """The cheapest order by the dynamic program.

    The factors of a square may share steps, of which the program knows nothing: each factor pays half for steps of its
    own, or the whole, and the better of both orders counts.
    """
    orders = [_ordered(form, shared) for shared in ((False, True) if form.twin else (False,))]
    first_role = _first_roles(form)
    counted = [replace(order, cost=_counted_once(order, form, first_role)) for order in orders]
    return min(counted, key=lambda order: paid(order.cost, form.sizes))


def _first_roles(form: IndexForm) -> dict[str, str]:
    """For each role of the second factor of a square, the one that has its place in the first."""
    pairs = [(form.roles[first], form.roles[second]) for second, first in form.twin.items()]
    return {new: old for a, b in pairs for old, new in zip(sorted(a - b), sorted(b - a), strict=True)}


def _counted_once(order: ContractionStep, form: IndexForm, first_role: Mapping[str, str]) -> Counter[RoleSet]:
    """The cost of an order in which steps that compute the same value are one."""
    total, met = Counter[RoleSet](), set[Hashable]()

    def place(roles: RoleSet) -> RoleSet:
        return frozenset(first_role.get(role, role) for role in roles)

    def visit(step: ContractionStep) -> Hashable:
        first, *_ = step.args
        if isinstance(first, int):
            leaf = form.operands[first]
            name: Hashable = form.twin.get(leaf, leaf)
            below: list[ContractionStep] = []
        else:
            below = [arg for arg in step.args if isinstance(arg, ContractionStep)]
            name = (frozenset(Counter(map(visit, below)).items()), place(step.over), place(step.roles))
        if name not in met:
            met.add(name)
            total.update(step.cost)
            for arg in below:
                total.subtract(arg.cost)
        return name

    visit(order)
    return +total


def _ordered(form: IndexForm, shared: bool) -> ContractionStep:
    """The order of least cost, where steps within one factor of a square may cost half."""
    roles: Sequence[RoleSet] = [form.one_point(form.roles[leaf]) for leaf in form.operands]
    count = len(roles)
    firsts = set(form.twin.values())
    first, second = (sum([1 << n for n, x in enumerate(form.operands) if x in some]) for some in (firsts, form.twin))
    best: dict[int, ContractionStep] = {}
    value: dict[int, int] = {}  # twice the cost of the best

    @functools.cache
    def elements(some: RoleSet) -> int:
        return math.prod([form.sizes[r] for r in some])

    for mask in range(1, 1 << count):
        others = [roles[i] for i in range(count) if not mask >> i & 1]
        wanted = form.out.union(*others)
        times = 1 if shared and not (mask & ~first and mask & ~second) else 2
        if mask & (mask - 1) == 0:
            number = mask.bit_length() - 1
            leaf = form.operands[number]
            divides = leaf in form.inverse and leaf not in form.frozen
            cost = step_cost(roles[number], []) if divides else Counter[RoleSet]()
            plain = ContractionStep((number,), RoleSet(), roles[number], leaf in form.frozen, cost)
            best[mask] = _summed(plain, roles[number] - wanted)
            value[mask] = times * paid(best[mask].cost, form.sizes)
            continue
        values: dict[int, int] = {}
        part = (mask - 1) & mask
        while part > mask ^ part:
            a, b = best[part], best[mask ^ part]
            own = times * sum(n * elements(some) for some, n in _own_cost(a, b, wanted).items())
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
