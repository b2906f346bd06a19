"""Structure of a pattern without labels: the cheap test that rejects nearly every attempt.

Each term of a left side is compiled once into a `Pattern`: which physical ops it can match, in which orders of
operands, and what its operands must look like.  Between pattern ops the test sees through reshapes, at most two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewrites.language.term import Rule, Term, physical
from rewrites.match.space import VIEW, Alternative, Class, Space
from superopt.ir.ops import table
from superopt.ir.scalar import COMMUTATIVE

VIEWS_PER_EDGE = 2
_IDENTITY = ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3))


class Pattern:
    """One compiled term of a left side."""

    __slots__ = (
        "arity", "attrs", "constant", "is_meta", "kids", "name", "names", "only", "op", "optional", "swaps", "term",
    )  # fmt: skip

    def __init__(self, rule: Rule, t: Term) -> None:
        self.term = t
        self.op = t.op
        self.kids = tuple(Pattern(rule, a) for a in t.args)
        self.arity = len(t.args)
        self.names = physical(t, rule.metas)
        self.only = VIEW if t.op == "view" else next(iter(self.names)) if len(self.names) == 1 else None
        self.name: str = t["name"] if t.op == "var" else t.get("f", t.get("kind", ""))
        self.is_meta = self.name in rule.metas
        self.swaps = self.arity == 2 and t.op in ("dot", "ew") and t.args[0] is not t.args[1]
        # a broadcast that an elementwise op implies is the identity where its roles have no axes
        self.optional = t.op == "bcast" and bool(t["like"])
        self.constant: Any = t["value"][1] if t.op == "lit" else None
        self.attrs = _expected(t) if t.op == "ew" and not self.is_meta else None

    def quick(self, space: Space, cls: Class, *, top: bool = False, depth: int = VIEWS_PER_EDGE) -> bool:
        """Whether the structure may match a class."""
        op = self.op
        if op == "var":
            return True
        if op == "lit":
            return same_constant(space.scalar(cls), self.constant)
        if op == "bcast":
            inner = self.kids[0]
            if inner.op == "lit":
                return same_constant(space.scalar(cls), inner.constant)
            if self.optional and inner.quick(space, cls):
                return True
        alternatives = space.alternatives(cls)
        if self.only is not None:
            for alternative in alternatives.get(self.only, ()):
                if self.fits(space, alternative):
                    return True
        else:
            for alternative in self.alternatives(alternatives):
                if self.fits(space, alternative):
                    return True
        if top or not depth or op == "view" or VIEW not in alternatives:
            return False
        return any(self.quick(space, a.children[0][0], depth=depth - 1) for a in alternatives[VIEW])

    def fits(self, space: Space, a: Alternative) -> bool:
        """Whether an op may match in some order of operands."""
        children = a.children
        if len(children) != self.arity or (self.attrs is not None and a.attrs != self.attrs):
            return False
        kids = self.kids
        for kid, child in zip(kids, children, strict=True):
            if kid.op != "var" and not kid.quick(space, child[0]):
                break
        else:
            return True
        if self.swaps and (self.op == "dot" or a.op in COMMUTATIVE):
            return kids[0].quick(space, children[1][0]) and kids[1].quick(space, children[0][0])
        return False

    def alternatives(self, alternatives: Mapping[str, list[Alternative]]) -> list[Alternative]:
        """Alternatives with an op that this pattern can match."""
        if self.only is not None:
            return alternatives.get(self.only, [])
        return [a for name, found in alternatives.items() if name in self.names for a in found]

    def orders(self, space: Space, a: Alternative) -> Iterator[tuple[int, ...]]:
        """Orders of operands in which the structure may match: kid j stands for operand order[j]."""
        if len(a.children) != self.arity or (self.attrs is not None and a.attrs != self.attrs):
            return
        kids, children = self.kids, a.children
        if all(k.op == "var" or k.quick(space, c[0]) for k, c in zip(kids, children, strict=True)):
            yield _IDENTITY[self.arity - 1]
        if self.swaps and (self.op == "dot" or a.op in COMMUTATIVE):
            first, second = children
            if kids[0].quick(space, second[0]) and kids[1].quick(space, first[0]):
                yield (1, 0)


def _expected(t: Term) -> tuple[tuple[str, Any], ...]:
    """Attributes that an elementwise op of the pattern must have."""
    return table.canonical(t["f"], dict(t["params"]))


def same_constant(found: bool | int | float | None, wanted: Any) -> bool:
    """Whether a scalar constant is the literal of a pattern."""
    return found is not None and found == wanted


def patterns_of(rule: Rule) -> tuple[Pattern, ...]:
    """The compiled left side, computed on first use."""
    patterns = rule.cache.get("patterns")
    if patterns is None:
        patterns = rule.cache["patterns"] = tuple(Pattern(rule, t) for t in rule.lhs)
    return patterns
