"""Mutants of a rule: texts with one thing changed, most of them false, some of them true in another way.

A verifier with a defect sooner or later proves a false mutant, so mutants of true rules test the prover
(`verifier.rules.fuzz`).  A change concerns an operator, operand order, a sign, an axis, a role, an attribute, a
constant, a reducer, an operand or a premise, on either side.  Mutants are made on terms, printed, and parsed again;
those that do not parse are dropped.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from rewrites.language.parse import parse
from rewrites.language.show import rule_key, show
from rewrites.language.term import REDUCERS, Rule, Term, TokenExpr, roles_of, stem, subterms, term, windows
from superopt.errors import RuleError
from superopt.ir.scalar import SCALARS

_OPS = {
    "add": ("sub", "mul", "max"), "sub": ("add",), "mul": ("add", "div"), "div": ("mul",), "max": ("min", "add"),
    "min": ("max",), "exp": ("abs",), "sqrt": ("rsqrt",), "rsqrt": ("sqrt",), "square": ("abs",), "abs": ("square",),
    "and": ("or",), "or": ("and", "xor"), "lt": ("le", "gt"), "le": ("lt", "ge"), "gt": ("ge",), "ge": ("gt",),
    "eq": ("ne",), "ne": ("eq",), "rem": ("div",), "log": ("exp",),
}  # fmt: skip
_Change: TypeAlias = "tuple[int, tuple[str, str, Rule]]"
_ORDERED = frozenset(name for name, f in SCALARS.items() if f.arity == 2 and not f.commutative)
_COMPARISONS = {"<=": ("<", ">="), "<": ("<=",), ">=": (">", "<="), ">": (">=",), "==": ("<=", ">="), "!=": ("==",)}
_RANGE = {"sum": ("max", "prod"), "max": ("min", "sum"), "min": ("max",), "prod": ("sum",)}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule with one thing changed.

    Attributes:
        of: name of the rule that it was made from.
        kind: the sort of change.
        what: description of the change.
        rule: the mutant.
    """

    of: str
    kind: str
    what: str
    rule: Rule


def mutants(rule: Rule, limit: int | None = None, seed: int = 0) -> list[Mutant]:
    """Distinct mutants of a rule that parse as rules and state something else.

    At most `limit` are drawn, each sort of change about equally often; the same seed draws the same ones.
    """
    found: list[Mutant] = []
    seen = {rule_key(rule)}
    for n, (kind, what, made) in _drawn(list(enumerate(_changed(rule))), random.Random(f"{rule.name}/{seed}")):
        if limit is not None and len(found) >= limit:
            break
        try:
            text = show(made)
            mutant = parse(f"{rule.name}-mutant-{n}{text[text.index(':') :]}", rule.where)
        except (RuleError, KeyError):  # the change left a name or a role undefined
            continue
        key = rule_key(mutant)
        if key not in seen and mutant.lhs != mutant.rhs:
            seen.add(key)
            found.append(Mutant(rule.name, kind, what, mutant))
    return found


def _drawn(changes: list[_Change], rng: random.Random) -> Iterator[_Change]:
    """The changes in random order, one of each sort at a time."""
    sorts: dict[str, list[_Change]] = {}
    for change in changes:
        sorts.setdefault(change[1][0], []).append(change)
    for same in sorts.values():
        rng.shuffle(same)
    for turn in itertools.zip_longest(*sorts.values()):
        yield from (change for change in turn if change is not None)


def _changed(rule: Rule) -> Iterator[tuple[str, str, Rule]]:
    """Yield changed rules, each with the kind of its change and words for it."""
    for side in ("rhs", "lhs"):
        roots: tuple[Term, ...] = getattr(rule, side)
        for t in subterms(roots):
            for kind, what, new in _at(rule, t):
                swapped = tuple(_replaced(root, t, new) for root in roots)
                where = "right" if side == "rhs" else "left"
                yield kind, f"{what} on the {where}", with_parts(rule, **{side: swapped})
    for i, e in enumerate(rule.cond):
        rest = rule.cond[:i], rule.cond[i + 1 :]
        yield "guard dropped", f"premise {i + 1} dropped", with_parts(rule, cond=rest[0] + rest[1])
        for new in _conditions(e):
            yield "guard", f"premise {i + 1} is {new}", with_parts(rule, cond=(*rest[0], new, *rest[1]))
    for name, tokens in rule.vars.items():
        for i, token in enumerate(tokens):
            fewer = {**rule.vars, name: tokens[:i] + tokens[i + 1 :]}
            yield "role", f"{name} without {token}", with_parts(rule, vars=fewer)
            for other in sorted({x for ts in rule.vars.values() for x in ts} - set(tokens)):
                if (stem(other) in rule.many) == (stem(token) in rule.many):
                    renamed = {**rule.vars, name: (*tokens[:i], other, *tokens[i + 1 :])}
                    yield "role", f"{name} with {other} for {token}", with_parts(rule, vars=renamed)


def with_parts(rule: Rule, **parts: Any) -> Rule:
    """The rule with some of its fields replaced; meant to be printed and read again."""
    values = {name: getattr(rule, name) for name in rule.__slots__ if name != "cache"}
    return Rule(**{**values, **parts})


def _replaced(t: Term, old: Term, new: Term) -> Term:
    """The term with every occurrence of one subterm replaced by another."""
    done: dict[Term, Term] = {old: new}

    def go(x: Term) -> Term:
        if x not in done:
            at = {k: tuple(map(go, v)) if k == "like" else v for k, v in x.at}
            done[x] = term(x.op, *map(go, x.args), **at)
        return done[x]

    return go(t)


def _at(rule: Rule, t: Term) -> Iterator[tuple[str, str, Term]]:
    """Yield the changes of one term: sort, description, new term."""
    for name, change in _CHANGES.items():
        for what, new in change(rule, t):
            yield name, what, new


def _operators(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op == "ew":
        for f in _OPS.get(t["f"], ()):
            if t["f"] not in rule.metas:
                yield f"{f} for {t['f']}", _with(t, f=f)
    if t.op in ("rev", "cum", "pad", "slice", "view", "inverse") or (t.op == "ew" and len(t.args) == 1):
        yield f"{t.get('f', t.op)} left out", t.args[0]


def _orders(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    args = t.args
    ordered = t.op in ("concat", "dot", "conv", "solve") or (
        t.op == "ew" and (t["f"] in _ORDERED or t["f"] in rule.metas)
    )
    if ordered and len(args) > 1 and args[0] != args[1]:
        yield f"operands of {t.get('f', t.op)} swapped", _with(t, *args[1::-1], *args[2:])
    if t.op == "ew" and len(args) == 3 and args[1] != args[2]:
        yield f"last operands of {t['f']} swapped", _with(t, args[0], args[2], args[1])


def _signs(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op in ("var", "dot", "red", "slice", "at") and not (t.op == "var" and rule.kinds[t["name"]] != "float"):
        yield f"{t.op} negated", term("ew", t, f="neg", params=())


def _axes(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op not in ("red", "dot", "conv", "concat", "rev", "cum", "take", "inverse", "solve"):
        return
    over: tuple[str, ...] = t["over"]
    have = roles_of(rule.vars, t.args[0])
    for i, r in enumerate(over):
        if len(over) > 1:
            yield f"{t.op} not over {r}", _with(t, over=over[:i] + over[i + 1 :])
        for other in have:
            if other not in over and (other in rule.many) == (r in rule.many):
                yield f"{t.op} over {other} for {r}", _with(t, over=(*over[:i], other, *over[i + 1 :]))
    for other in have:
        if other not in over and t.op in ("red", "rev", "dot"):
            yield f"{t.op} also over {other}", _with(t, over=(*over, other))


def _attributes(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    win = windows(t)
    for i, (role, values) in enumerate(win):

        def put(new: tuple[Any, ...], i: int = i, role: str = role) -> Term:
            return _with(t, win=(*win[:i], (role, new), *win[i + 1 :]))

        for j, e in enumerate(values):
            if e is None:
                continue
            for name, new in _integers(rule, e):
                yield f"attribute {j + 1} of {t.op} {name}", put((*values[:j], new, *values[j + 1 :]))
            for m in range(j + 1, len(values)):
                if values[m] is not None and values[m] != e:
                    exchanged = (*values[:j], values[m], *values[j + 1 : m], e, *values[m + 1 :])
                    yield f"attributes {j + 1} and {m + 1} of {t.op} swapped", put(exchanged)


def _integers(rule: Rule, e: TokenExpr) -> Iterator[tuple[str, TokenExpr]]:
    yield "+ 1", ("n", e[1] + 1) if e[0] == "n" else ("+", e, ("n", 1))
    yield "- 1", ("n", e[1] - 1) if e[0] == "n" else ("-", e, ("n", 1))
    if e[0] == "v":
        for other in sorted(rule.owner):
            if other != e[1] and rule.owner[other] == rule.owner.get(e[1]) and other not in rule.indices:
                yield f"{other} for {e[1]}", ("v", other)
    if len(e) == 3:
        swap = {"+": "-", "-": "+", "*": "+", "//": "%", "%": "//", "min": "max", "max": "min"}
        if e[0] in swap:
            yield f"{swap[e[0]]} for {e[0]}", (swap[e[0]], e[1], e[2])
        for k in (1, 2):
            for name, new in _integers(rule, e[k]):
                yield name, (e[0], *(new if j == k else e[j] for j in (1, 2)))


def _constants(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op == "lit":
        kind, value = t["value"][:2]
        if kind == "n" and not isinstance(value, bool):
            for new in dict.fromkeys((value + 1, value - 1, -value)):
                if new != value and new == new:
                    yield f"{new} for {value}", term("lit", value=("n", new))
        elif kind == "n":
            yield f"{not value} for {value}", term("lit", value=("n", not value))
        elif kind == "prod":
            for other in sorted(rule.sizes - {value}):
                yield f"count({other}) for count({value})", term("lit", value=("prod", other))
    if t.op == "ew" and t["params"]:
        ((name, value),) = t["params"]
        if isinstance(value, int):
            for new in (value + 1, value - 1):
                yield f"{name}={new} for {value}", _with(t, params=((name, new),))


def _reducers(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op in ("red", "win", "cum", "fold") and t["kind"] in REDUCERS:
        kinds = {"win": ("sum", "max", "min"), "fold": ("sum", "max")}.get(t.op, REDUCERS)
        for kind in _RANGE[t["kind"]]:
            if kind in kinds:
                yield f"{kind} for {t['kind']} in {t.op}", _with(t, kind=kind)


def _operands(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    if t.op == "var":
        roles = set(roles_of(rule.vars, t))
        for other in rule.vars:
            same = set(map(stem, rule.vars[other])) == roles and rule.kinds[other] == rule.kinds[t["name"]]
            if same and other != t["name"]:
                yield f"{other} for {t['name']}", term("var", name=other)


def _domains(rule: Rule, t: Term) -> Iterator[tuple[str, Term]]:
    """Yield terms that equal a tensor only where they are defined: A * A / A, and A plus sqrt(A) - sqrt(A)."""
    if t.op == "var" and rule.kinds[t["name"]] == "float" and not rule.dtype:
        twice = term("ew", t, t, f="mul", params=())
        yield f"{t['name']} * {t['name']} / {t['name']}", term("ew", twice, t, f="div", params=())
        root = term("ew", t, f="sqrt", params=())
        yield (
            f"sqrt({t['name']}) - sqrt({t['name']}) added",
            term("ew", t, term("ew", root, root, f="sub", params=()), f="add", params=()),
        )


def _conditions(e: TokenExpr) -> Iterator[TokenExpr]:
    for op in _COMPARISONS.get(e[0], ()):
        yield (op, e[1], e[2])
    if e[2][0] == "n":
        yield (e[0], e[1], ("n", e[2][1] + 1))
        yield (e[0], e[1], ("n", e[2][1] - 1))
    elif e[2][0] == "v":
        yield (e[0], e[1], ("+", e[2], ("n", 1)))
        yield (e[0], e[1], ("-", e[2], ("n", 1)))


def _with(t: Term, *args: Term, **at: Any) -> Term:
    """The term with other operands (where given) and some attributes replaced."""
    return term(t.op, *(args or t.args), **{**dict(t.at), **at})


_CHANGES: dict[str, Callable[[Rule, Term], Iterator[tuple[str, Term]]]] = {
    "operator": _operators,
    "order": _orders,
    "sign": _signs,
    "axis": _axes,
    "attribute": _attributes,
    "constant": _constants,
    "reducer": _reducers,
    "operand": _operands,
    "domain": _domains,
}
