"""Kinds of tensors: predicates and indices are found by how a rule uses them; all others share one float dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rewrites.language.term import Rule, Term, subterms
from superopt.ir.scalar import COMPARISONS, LOGICAL, PREDICATES

_PASS_ON = frozenset(
    # one name per word reads better than fifteen quoted strings
    """bcast expand view lay slice at concat rev split merge ren unit stack ew dynslice dynupdate""".split()  # noqa: SIM905
)


def kinds(names: Iterable[str], roots: tuple[Term, ...]) -> dict[str, str]:
    """`bool` (used as a predicate), `int` (used as an index) or `float` per tensor."""
    out = dict.fromkeys(names, "float")

    def demand(t: Term, kind: str) -> None:
        if t.op == "var":
            out[t["name"]] = kind
        elif t.op in _PASS_ON and t.get("f") not in PREDICATES:
            for a in t.args:
                demand(a, kind)

    for t in subterms(roots):
        if t.op == "ew" and t["f"] == "select_n":
            demand(t.args[0], "bool")
        elif t.op == "ew" and t["f"] in LOGICAL:
            demand(t, "bool")
        elif t.op in ("take", "segsum"):
            demand(t.args[1], "int")
    return out


def compares_positions(kinds: Mapping[str, str], t: Term) -> bool:
    """Whether a term compares positions or indices with each other or with numbers: integers, all of them.

    In all other places an iota and a number have the dtype of the rule.
    """
    if t.op != "ew" or t["f"] not in COMPARISONS:
        return False
    sides = [bare(a) for a in t.args]
    found = [a.op == "iota" or (a.op == "var" and kinds[a["name"]] == "int") for a in sides]
    return any(found) and all(ok or a.op == "lit" for ok, a in zip(found, sides, strict=True))


def adds_positions(t: Term) -> bool:
    """Whether a term is the sum of two positions along axes, which is an index."""
    return t.op == "ew" and t["f"] == "add" and all(bare(a).op == "iota" for a in t.args)


def chooses_by_position(rule: Rule) -> bool:
    """Whether the right side is a choice between elements by their positions: a diagonal, or a mask."""
    chosen = [t.args[0] for t in rule.rhs if t.op == "ew" and t["f"] == "select_n"]
    return any(compares_positions(rule.kinds, bare(t)) for t in chosen)


def rounds_products(rule: Rule) -> bool:
    """Whether products of numbers that the left side only adds up are elements of a tensor on the right side.

    A product of tensors of a half type adds exact products up in float32; as elements each is rounded first.
    """
    sums = [t for t in subterms(rule.rhs) if t.op in ("red", "fold") and t["kind"] == "sum"]
    rounded = any(t.args[0].op == "ew" and t.args[0]["f"] == "mul" for t in sums)
    return rounded and any(t.op in ("dot", "conv") for t in subterms(rule.lhs))


def bare(t: Term) -> Term:
    """The operand of a broadcast, or the term itself."""
    return t.args[0] if t.op == "bcast" else t


def loose_iota(rule: Rule) -> bool:
    """Whether the left side holds an iota that neither a comparison of positions nor a `take` reads as an index."""
    indices = {t.args[1] for t in subterms(rule.lhs) if t.op == "take" and adds_positions(t.args[1])}
    return any(
        bare(a).op == "iota" and not compares_positions(rule.kinds, t) and t not in indices
        for t in subterms(rule.lhs)
        if t.op != "bcast"
        for a in (t.args[:1] if t.op == "take" else t.args)
    ) or any(t.op == "iota" for t in rule.lhs)


class Disagree(Exception):
    """Operands, or the two sides of a rule, have different dtypes; the message says which."""


def agree(rule: Rule) -> None:
    """Check that operands have one dtype where they must, and that the two sides of every root do.

    Raises:
        Disagree: two dtypes differ.
    """
    known: dict[Term, str] = {}
    for left, right in zip(rule.lhs, rule.rhs, strict=True):
        _one("the two sides", [kind_of(rule.kinds, t, known) for t in (left, right)])
    for t in rule.given:
        kind_of(rule.kinds, t, known)


def kind_of(kinds: Mapping[str, str], t: Term, known: dict[Term, str]) -> str:
    """Kind of a term: `bool`, `int` (an index), `float` (the rule's dtype), or `number` (a literal, of any dtype)."""
    found = known.get(t)
    if found is None:
        found = known[t] = _infer(kinds, t, [kind_of(kinds, a, known) for a in t.args])
    return found


def _infer(kinds: Mapping[str, str], t: Term, inner: list[str]) -> str:
    if t.op == "var":
        return kinds[t["name"]]
    if t.op == "lit":
        return "bool" if isinstance(t["value"][1], bool) else "number"
    if t.op == "iota":
        return "number"
    if t.op in ("take", "segsum"):
        _one("an index", [inner[1], "int"])
        return inner[0]
    if t.op != "ew":
        return _one(t.op, inner)
    f: str = t["f"]
    if f == "select_n":
        _one("a predicate", [inner[0], "bool"])
        return _one(f, inner[1:])
    if f in LOGICAL:
        return _one(f, [*inner, "bool"])
    if f in PREDICATES:
        _one(f, inner)
        return "bool"
    return _one(f, inner)


def _one(what: str, found: list[str]) -> str:
    """The one dtype among several."""
    told = [k for k in dict.fromkeys(found) if k != "number"]
    if len(told) > 1 or (told == ["bool"] and "number" in found):
        raise Disagree(f"{what}: {' and '.join(dict.fromkeys(found))}")
    return told[0] if told else "number"
