"""Rules for regions: the region as it stands equals its cheapest contraction.

The rule is a text like those of the library: general in sizes and ranks, proved before it is used, and guarded by the
costs of both sides.  Its name is a digest of the text, so regions of one form share one rule and one proof.  Where a
closed region has no better order, the open region may have one: the sum of its products in their cheapest orders.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from rewrites.build.arrange import BuildError
from rewrites.build.terms import build
from rewrites.contraction.order import ContractionStep, RoleSet, best_order, frozen_leaves, paid, program_cost
from rewrites.contraction.region import KINDS, IndexForm, RegionPart, read, read_opened
from rewrites.egraph.graph import EGraph, LimitReachedError, Origin
from rewrites.egraph.perm import PERM_BITS
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.match import sites
from rewrites.match.matching import matches
from rewrites.match.space import EGraphSpace
from superopt.errors import RuleError, ShapeError

_GAIN = 1.1  # a smaller gain of estimated work is none; of a sum, for each product, which is read and written apart
_OPERANDS = "ABCDEFGHIJ"
_SIGNS = {"mul": "*", "div": "/", "add": "+", "sub": "-"}
_ROOTS = frozenset(KINDS) - {"broadcast_in_dim", "div", "select_n", "add", "sub"}


def contraction_rules(eg: EGraph) -> list[Rule]:
    """Rules, not yet proved, for the regions of an e-graph whose order can be improved; each text once."""
    space = EGraphSpace(eg)
    inside: set[int] = set()
    found: dict[str, Rule] = {}
    for cls in _from_above(eg):
        form = None if cls in inside else read(space, cls)
        if form is not None:
            inside |= {part.cls for part in form.root.walk() if part.kind not in ("leaf", "view", "copy")}
        rule = (form and rule_of([form])) or rule_of(_opened(eg, space, cls))
        if rule is not None and rule.name not in found and not _is_there(eg, rule, cls):
            found[rule.name] = rule
    return list(found.values())


def _is_there(eg: EGraph, rule: Rule, cls: int) -> bool:
    """Whether rules of the library have made the right side of a rule at a class already; nothing is added."""
    most, eg.max_enodes = eg.max_enodes, 0
    try:
        for match in matches(rule, eg, cls << PERM_BITS):
            eg.current_origin = Origin(rule.name, 0, (cls << PERM_BITS,))
            try:
                (value,) = build(match, eg)
            except (BuildError, ShapeError, LimitReachedError):
                continue
            if eg.find_class(value) == eg.find_class(cls << PERM_BITS):
                return True
    finally:
        eg.current_origin, eg.max_enodes = None, most
    return False


def _opened(eg: EGraph, space: EGraphSpace, cls: int) -> Sequence[IndexForm]:
    """The products of an open region; none where the program computes a value within it in any case."""
    forms = read_opened(space, cls)
    if not forms:
        return forms
    inside = {part.cls for part in forms[0].root.walk() if part.kind != "leaf" and not space.frozen(part.cls)}
    parents = [node for x in inside - {cls} if isinstance(x, int) for node in eg.parents(x)]
    above = {eg.ref_of(node) >> PERM_BITS for node in parents if node not in eg.origin}
    return forms if above <= inside else ()


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


def rule_of(forms: Sequence[IndexForm]) -> Rule | None:
    """The rule of the sum of some products; None where their orders are no better, or no rule text speaks of them."""
    if not forms:
        return None
    before, best = program_cost(forms[0]), [best_order(form) for form in forms]
    after = Counter({forms[0].out: len(forms) - 1}) if len(forms) > 1 else Counter[RoleSet]()
    for order in best:
        after.update(order.cost)
    if paid(after, forms[0].sizes) * _GAIN * len(forms) >= paid(before, forms[0].sizes):
        return None
    text = _text(forms, before, best, after)
    name = f"contraction-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return parse(f"{name}{text}", "<contraction>")
    except RuleError:
        return None


def _text(
    forms: Sequence[IndexForm],
    before: Mapping[RoleSet, int],
    best: Sequence[ContractionStep],
    after: Mapping[RoleSet, int],
) -> str:
    """Declarations, both sides and the guard."""
    whole = forms[0]
    names = dict(zip(whole.tensors, _OPERANDS, strict=False))
    equal = {pair for form in forms for pair in form.taken.items()}
    single = {role for pair in equal for role in pair}
    declared = [f"{name}[{_declared(whole.roles[leaf], single)}]" for leaf, name in names.items()]
    there = RoleSet().union(*[whole.roles[leaf] for leaf in names])
    if extras := whole.sizes.keys() - there:
        declared.append(f"extra {_declared(extras, single)}")
    right, known = "", set[str]()
    for form, order in zip(forms, best, strict=True):
        sign = " - " if form.negative else " + " if right else ""
        right += sign + _product(form, order, [_operand(leaf, form, names) for leaf in form.operands])
        leaves = [form.operands[number] for number in frozen_leaves(order)]
        known |= {names[leaf] for leaf in leaves if leaf in names}
    bound = dict(pair for x in whole.twin for pair in _renamed(x, whole).items() if pair[1] not in there)
    size_of = {new: old for old, new in bound.items()}
    guard = [f"{_cost(after, size_of)} < {_cost(before, size_of)}", *[f"frozen({name})" for name in sorted(known)]]
    premises = [f"\n  if {', '.join(f'{a} == {b}' for a, b in sorted(equal))}"] if equal else []
    sides = f"{_left(whole.root, whole, names)}  ==  {right}"
    return f": {'  '.join(declared)}\n  {sides}{''.join(premises)}\n  prefer {' and '.join(guard)}"


def _product(form: IndexForm, order: ContractionStep, operands: list[str]) -> str:
    """A product in an order, times the lengths of roles that it sums over and lacks, with those of the result."""
    right = _right(order, form, operands)
    held = RoleSet().union(*[form.roles[leaf] for leaf in form.operands])
    for role in sorted(form.one_point(form.reach) - form.one_point(held) - form.out):
        right = f"({right} * count({role}))"
    if added := form.out - order.roles:
        right = f"bcast({right}, {', '.join(sorted(added))})"
    return right


def _declared(roles: Iterable[str], single: Collection[str]) -> str:
    """Size tokens of roles; some are single axes."""
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
    if part.kind in _SIGNS:
        a, b = (_bare(arg, form, _held(other, form)) for arg, other in (args, args[::-1]))
        return f"({_left(a, form, names)} {_SIGNS[part.kind]} {_left(b, form, names)})"
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
