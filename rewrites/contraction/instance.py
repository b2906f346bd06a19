"""Rules for regions: the region as it stands equals its cheapest contraction.

The rule is a text like those of the library: general in sizes and ranks, proved before it is used, and guarded by the
costs of both sides.  Its name is a digest of the text, so regions of one form share one rule and one proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from rewrites.contraction.order import ContractionStep, RoleSet, best_order, frozen_leaves, paid, program_cost
from rewrites.contraction.region import KINDS, IndexForm, RegionPart, read
from rewrites.egraph.graph import EGraph
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.space import EGraphSpace
from superopt.errors import RuleError

_GAIN = 1.1  # a smaller gain of estimated work is none
_OPERANDS = "ABCDEFGHIJ"
_ROOTS = frozenset(KINDS) - {"broadcast_in_dim", "div", "select_n"}


def contraction_rules(eg: EGraph) -> list[Rule]:
    """Rules, not yet proved, for the regions of an e-graph whose order can be improved; each text once."""
    space = EGraphSpace(eg)
    inside: set[int] = set()
    found: dict[str, Rule] = {}
    for cls in _from_above(eg):
        if cls in inside:
            continue
        form = read(space, cls)
        if form is None:
            continue
        inside |= {part.cls for part in form.root.walk() if part.kind not in ("leaf", "view", "copy")}
        rule = rule_of(form)
        if rule is not None:
            found.setdefault(rule.name, rule)
    return list(found.values())


def _from_above(eg: EGraph) -> list[int]:
    """Live classes that hold an op of regions, roots before their operands as far as there is an order."""
    by_op = sites.by_operator(eg, sites.live_classes(eg))
    live = {cls for op in _ROOTS for cls in by_op.get(op, ())}
    order: dict[int, None] = {}
    stack = [(eg.find_class(root), False) for root in eg.roots]
    seen: set[int] = set()
    while stack:
        cls, done = stack.pop()
        if done:
            order[cls] = None
        elif cls not in seen:
            seen.add(cls)
            stack.append((cls, True))
            stack += [(eg.find_class(child), False) for node in eg.enodes(cls) for child in node[1:]]
    return [cls for cls in reversed(order) if cls in live]


def rule_of(form: IndexForm) -> Rule | None:
    """The rule of a region; None where its order cannot be improved, or no rule text speaks of it."""
    before, best = program_cost(form), best_order(form)
    if paid(best.cost, form.sizes) * _GAIN >= paid(before, form.sizes):
        return None
    text = _text(form, before, best)
    name = f"contraction-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return parse(f"{name}{text}", "<contraction>")
    except RuleError:
        return None


def _text(form: IndexForm, before: Mapping[RoleSet, int], best: ContractionStep) -> str:
    """Declarations, both sides and the guard."""
    names = dict(zip(form.tensors, _OPERANDS, strict=False))
    declared = [f"{name}[{_declared(form, form.roles[leaf])}]" for leaf, name in names.items()]
    there = RoleSet().union(*[form.roles[leaf] for leaf in names])
    if extras := form.sizes.keys() - there:
        declared.append(f"extra {_declared(form, extras)}")
    right = _right(best, form, [_operand(leaf, form, names) for leaf in form.operands])
    held = RoleSet().union(*[form.roles[leaf] for leaf in form.operands])
    for role in sorted(form.one_point(RoleSet(form.sizes)) - form.one_point(held) - form.out):
        right = f"({right} * count({role}))"
    if added := form.out - best.roles:
        right = f"bcast({right}, {', '.join(sorted(added))})"
    bound = dict(pair for leaf in form.twin for pair in _renamed(leaf, form).items() if pair[1] not in there)
    size_of = {new: old for old, new in bound.items()}
    guard = [f"{_cost(best.cost, size_of)} < {_cost(before, size_of)}"]
    known = [form.operands[number] for number in sorted(frozen_leaves(best))]
    guard += [f"frozen({names[leaf]})" for leaf in known if leaf in names]
    equal = [f"\n  if {', '.join(f'{a} == {b}' for a, b in sorted(form.taken.items()))}"] if form.taken else []
    sides = f"{_left(form.root, form, names)}  ==  {right}"
    return f": {'  '.join(declared)}\n  {sides}{''.join(equal)}\n  prefer {' and '.join(guard)}"


def _declared(form: IndexForm, roles: Iterable[str]) -> str:
    """Size tokens of roles; those of masks are single axes."""
    single = {*form.taken, *form.taken.values()}
    return " ".join(role if role in single else f"*{role}" for role in sorted(roles))


def _cost(terms: Mapping[RoleSet, int], size_of: Mapping[str, str]) -> str:
    """A cost as text; roles that the left side does not bind are as long as those in whose place they stand."""
    parts = [
        "*".join([*([str(n)] if n > 1 else []), *(f"prod({size_of.get(r, r)})" for r in sorted(roles))])
        for roles, n in terms.items()
    ]
    return " + ".join(sorted(part or "1" for part in parts)) or "0"


def _left(part: RegionPart, form: IndexForm, names: Mapping[RegionPart, str]) -> str:
    if part.kind == "leaf":
        return names[part]
    args = part.args
    if part.kind == "square":
        return f"square({_left(args[0], form, names)})"
    if part.kind in ("mul", "div"):
        a, b = (_bare(arg, form, _held(other, form)) for arg, other in (args, args[::-1]))
        return f"({_left(a, form, names)} {'*' if part.kind == 'mul' else '/'} {_left(b, form, names)})"
    marks = sorted(form.marks[part])
    if part.kind == "mask":
        inner = _left(_bare(args[0], form, form.marks[part]), form, names)
        return f"where(eq({', '.join(f'iota({role})' for role in marks)}), {inner}, 0)"
    inside = [_left(arg, form, names) for arg in args]
    if part.kind == "view" or (part.kind in ("copy", "sum") and not marks):
        return inside[0]
    name = {"copy": "bcast"}.get(part.kind, part.kind)
    return f"{name}({', '.join([*inside, *marks])})"


def _bare(part: RegionPart, form: IndexForm, implied: RoleSet) -> RegionPart:
    """The operand of a broadcast that its neighbours imply, else the part itself."""
    inner = part
    while inner.kind == "view" and inner.args[0].kind in ("view", "copy"):
        inner = inner.args[0]
    if inner.kind == "copy" and form.marks[inner] <= implied:
        return inner.args[0]
    return part


def _held(part: RegionPart, form: IndexForm) -> RoleSet:
    """Roles that a part has without the broadcasts at its top."""
    while part.kind in ("view", "copy"):
        part = part.args[0]
    return form.roles[part]


def _operand(leaf: RegionPart, form: IndexForm, names: Mapping[RegionPart, str]) -> str:
    """An operand of the right side: its tensor, with roles renamed that a mask or a square puts in place of others."""
    name = names[form.twin.get(leaf, leaf)]
    for old, new in sorted(_renamed(leaf, form).items()):
        name = f"ren({name}, {old}, {new})"
    return f"(1 / {name})" if leaf in form.inverse else name


def _renamed(leaf: RegionPart, form: IndexForm) -> dict[str, str]:
    """Roles of an operand's tensor, and the roles that stand in their places."""
    first = form.twin.get(leaf, leaf)
    have, wanted = form.roles[first], form.roles[leaf]
    masked = {gone: stays for gone, stays in form.taken.items() if gone in have}
    return masked | dict(zip(sorted(have - wanted), sorted(wanted - have), strict=True))


def _right(step: ContractionStep, form: IndexForm, names: list[str]) -> str:
    first, *rest = step.args
    if isinstance(first, int):
        return names[first]
    if not rest:
        return f"sum({_right(first, form, names)}, {', '.join(sorted(step.over))})"
    (second,) = rest
    assert isinstance(second, ContractionStep)
    if step.over:
        return f"dot({_right(first, form, names)}, {_right(second, form, names)}, {', '.join(sorted(step.over))})"
    return f"({_right(first, form, names)} * {_right(second, form, names)})"
