"""Walking a pattern and a graph together, naming every axis.

From fresh labels on the axes of each root, `flow` carries labels down to the operands.  A variable met again must be
the same class, and its two labellings are unified.  Reshapes between pattern ops are seen through, at most two per
edge.  All alternatives of a class, both orders of commutative operands and optional broadcasts are enumerated.

A scalar under an elementwise op stands for its broadcast: a variable bound to one is *wild*, it belongs to whichever of
its roles turn out to have axes.

Each term of a left side is compiled once into a `Pattern`: which physical ops it can match, in which orders of
operands, and what its operands must look like.  `Pattern.quick` is the structure without labels: the cheap test that
rejects nearly every attempt.  Between pattern ops it sees through reshapes as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from rewrites.language.term import Rule, Term, TokenExpr, physical
from rewrites.match.flow import FlowMarks, flow
from rewrites.match.labels import Labels, Layout
from rewrites.match.space import VIEW, Alternative, Class, Perm, Space
from superopt.ir.ops import table
from superopt.ir.scalar import COMMUTATIVE
from superopt.ir.types import POSITIONS

VIEWS_PER_EDGE = 2
OPS_PER_WALK = 2_000  # tried for one rule at one class: 10 in BERT-base; in chains of products thousands, for no match
_IDENTITY = ((), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3))


class Pattern:
    """One compiled term of a left side."""

    __slots__ = (
        "arity", "attrs", "constant", "implied", "is_meta", "kids", "name", "names", "only", "op", "optional", "swaps",
        "term",
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
        self.implied = t.op == "bcast" and bool(t["like"])  # by an elementwise op, for which a scalar stands as it is
        self.optional = self.implied and rule.fact(_with_axes).isdisjoint(t["over"])  # the identity without axes
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
            if (self.optional or (self.implied and not space.rank(cls))) and inner.quick(space, cls):
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
            yield _IDENTITY[self.arity]
        if self.swaps and (self.op == "dot" or a.op in COMMUTATIVE):
            first, second = children
            if kids[0].quick(space, second[0]) and kids[1].quick(space, first[0]):
                yield (1, 0)


def _with_axes(rule: Rule) -> frozenset[str]:
    """Roles that have axes wherever the engine applies a rule, by conditions `prod(r) > 1`."""
    roles, waiting = set[str](), [*rule.prefer, *rule.cond]
    for e in waiting:  # grows while it is walked
        if e[0] == "and":
            waiting += e[1:]
        elif e[0] == ">" and e[1][0] == "prod" and e[2][0] == "n" and e[2][1] >= 1:
            roles.add(e[1][1])
    return frozenset(roles)


def _expected(t: Term) -> tuple[tuple[str, Any], ...]:
    """Attributes that an elementwise op of the pattern must have."""
    return table.canonical(t["f"], dict(t["params"]))


def same_constant(found: bool | int | float | None, wanted: Any) -> bool:
    """Whether a scalar constant is the literal of a pattern; a rule may tell zeros of both signs apart."""
    return found is not None and found == wanted and math.copysign(1.0, found) == math.copysign(1.0, wanted)


def patterns_of(rule: Rule) -> tuple[Pattern, ...]:
    """The left side, compiled on first use."""
    return rule.fact(_compile)


def _compile(rule: Rule) -> tuple[Pattern, ...]:
    return tuple(Pattern(rule, t) for t in rule.lhs)


def _watched(rule: Rule) -> frozenset[Term]:
    """Terms that occur in a `prefer single(...)`; the walk records their classes."""
    return frozenset(t for e in rule.prefer for t in _singles(e))


def _singles(e: TokenExpr) -> list[Term]:
    if e[0] == "single":
        return [e[1]]
    inner: list[TokenExpr] = [x for x in e[1:] if isinstance(x, tuple)]
    return [t for x in inner for t in _singles(x)]


Goal: TypeAlias = tuple[Pattern, Class, Layout, bool, int]
"""pattern, class, layout of the class's natural axes, whether it is a root, reshapes still allowed"""
Goals: TypeAlias = tuple[Any, ...]
"""A linked list (first, rest), or empty."""


class WalkState:
    """State of one branch of the walk: labels, bound variables and meta-variables, and the ops met so far."""

    __slots__ = ("carried", "events", "labels", "metas", "trail", "vars", "watched", "wild")

    def __init__(self) -> None:
        self.labels = Labels()
        self.vars: dict[str, tuple[Class, Layout]] = {}
        self.wild: frozenset[str] = frozenset()
        self.events: tuple[Any, ...] = ()
        """(rest, pattern term, marks), newest first."""
        self.metas: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {}
        self.carried: tuple[Any, Any, str] | None = None
        """(precision, preferred_element_type, result dtype) of the products and convolutions."""
        self.watched: dict[Term, Class] = {}
        self.trail: tuple[Any, ...] = ()
        """(rest, key of an alternative that was taken, or class that was read as a constant), newest first."""

    def copy(self) -> WalkState:
        """An independent copy."""
        new = WalkState()
        new.labels, new.vars, new.wild = self.labels.copy(), self.vars.copy(), self.wild
        new.events, new.metas, new.carried = self.events, self.metas.copy(), self.carried
        new.watched, new.trail = self.watched.copy(), self.trail
        return new

    def taken(self) -> tuple[Any, ...]:
        """Keys of the alternatives taken, and classes read as constants, oldest first."""
        out: list[Any] = []
        rest = self.trail
        while rest:
            rest, key = rest
            out.append(key)
        return tuple(out[::-1])

    def happened(self) -> list[tuple[Term, FlowMarks]]:
        """The pattern ops met, with the marks that they left on labels, oldest first."""
        out: list[tuple[Term, FlowMarks]] = []
        rest = self.events
        while rest:
            rest, t, marks = rest
            out.append((t, marks))
        return out[::-1]


def below(lay: Layout, perm: Perm) -> Layout:
    """Layout of y where `lay` is the layout of transpose(y, perm)."""
    if perm is None:
        return lay
    out: list[Any] = [()] * len(lay)
    for i, axis in enumerate(perm):
        out[axis] = lay[i]
    return tuple(out)


class Walk:
    """All walks of one rule over one space.

    A strict walk sees through reshapes and drops implied broadcasts only where no op matches directly; a loose one
    enumerates everything.  Its further matches are nearly always the same rewrites on a less tidy operand.
    """

    def __init__(self, rule: Rule, space: Space, *, strict: bool = False) -> None:
        self.rule = rule
        self.space = space
        self.strict = strict
        self.watched = rule.fact(_watched)
        self.clashes = 0
        """Branches given up because products disagree in precision or accumulation type."""
        self.steps = 0
        """Ops tried so far, at most `OPS_PER_WALK`."""

    def solve(self, goals: Goals, s: WalkState) -> Iterator[WalkState]:
        """All ways to reach the goals from a state; the state may be changed."""
        while goals:
            goal: Goal = goals[0]
            goals = goals[1]
            pattern, cls, lay, top, depth = goal
            op = pattern.op
            if op == "var":
                if not self._bind(pattern.name, cls, lay, s):
                    return
            elif op == "lit":
                if not same_constant(self.space.scalar(cls), pattern.constant):
                    return
                s.trail = (s.trail, cls)
            else:
                if self.watched and pattern.term in self.watched:
                    s.watched[pattern.term] = cls
                yield from self._op(pattern, cls, lay, top, depth, goals, s)
                return
        yield s

    def _bind(self, name: str, cls: Class, lay: Layout, s: WalkState) -> bool:
        rank = self.space.rank(cls)
        if lay and not rank:  # a scalar that stands for its broadcast
            lay = ()
            if self.rule.vars[name]:
                s.wild |= {name}
        known = s.vars.get(name)
        if known is not None:
            return known[0] == cls and s.labels.unify(known[1], lay)
        if rank and not self.rule.vars[name]:
            return False
        s.vars[name] = (cls, lay)
        return True

    def _op(
        self, pattern: Pattern, cls: Class, lay: Layout, top: bool, depth: int, goals: Goals, s: WalkState
    ) -> Iterator[WalkState]:
        space = self.space
        scalar = bool(lay) and not space.rank(cls)
        if pattern.op == "bcast":
            inner = pattern.kids[0]
            if inner.op == "lit":
                if same_constant(space.scalar(cls), inner.constant):
                    s.trail = (s.trail, cls)
                    if not pattern.implied:
                        s.events = (s.events, pattern.term, {label: n for axis in lay for label, n in axis})
                    yield from self.solve(goals, s)
                return
            if pattern.implied and scalar:
                goal = (inner, cls, lay if inner.op in ("var", "ew", "bcast") else (), False, depth)
                yield from self.solve((goal, goals), s)
                return
        if scalar and pattern.op != "ew":
            lay = ()
        alternatives = space.alternatives(cls)
        direct = False
        for alternative in pattern.alternatives(alternatives):
            for order in pattern.orders(space, alternative):
                direct = True
                yield from self._alternative(pattern, alternative, order, lay, goals, s.copy())
        if direct and self.strict:
            return
        if pattern.optional:
            inner = pattern.kids[0]
            if inner.quick(space, cls) and all(r in self.rule.many for r in pattern.term["over"]):
                branch = s.copy()
                branch.events = (branch.events, pattern.term, {})
                yield from self.solve(((inner, cls, lay, False, depth), goals), branch)
        if top or pattern.op == "view" or not depth:
            return
        for alternative in alternatives.get(VIEW, ()):
            child, perm = alternative.children[0]
            if not pattern.quick(space, child, depth=depth - 1):
                continue
            branch = s.copy()
            own = below(lay, alternative.perm)
            flowed = flow(alternative.op, alternative.site, own, branch.labels)
            if flowed is not None:
                branch.labels.note((own, *flowed[0]))
                branch.trail = (branch.trail, alternative.key)
                goal = (pattern, child, below(flowed[0][0], perm), False, depth - 1)
                yield from self.solve((goal, goals), branch)

    def _alternative(
        self, pattern: Pattern, a: Alternative, order: tuple[int, ...], lay: Layout, goals: Goals, s: WalkState
    ) -> Iterator[WalkState]:
        """Match one op; `s` belongs to this branch alone and may be changed."""
        self.steps += 1
        if self.steps > OPS_PER_WALK:
            return
        t = pattern.term
        if pattern.is_meta:
            bound = (a.op, a.attrs if pattern.op == "ew" else ())  # the axes of a reducer are no part of it
            if s.metas.setdefault(pattern.name, bound) != bound:
                return
        if pattern.op == "cum" and a.site.values["reverse"] != t["reverse"]:
            return
        if pattern.op == "iota" and a.site.values["dtype"] not in POSITIONS:
            return
        own = below(lay, a.perm)
        flowed = flow(a.op, a.site, own, s.labels)
        if flowed is None:
            return
        layouts, marks = flowed
        if pattern.op == "view":
            marks = {}
        if pattern.op in ("dot", "conv") and not self._carry(a, s):
            self.clashes += 1
            return
        s.labels.note((own, *layouts))
        s.trail = (s.trail, a.key)
        s.events = (s.events, t, marks)
        for j in reversed(range(len(order))):
            i = order[j]
            child, perm = a.children[i]
            inner = layouts[i]
            goals = ((pattern.kids[j], child, below(inner, perm) if perm else inner, False, VIEWS_PER_EDGE), goals)
        yield from self.solve(goals, s)

    def _carry(self, a: Alternative, s: WalkState) -> bool:
        """Whether a product has the precision and accumulation type of the first product of this match (recorded)."""
        values = a.site.values
        preferred = values["preferred_element_type"]
        found = (values["precision"], preferred, preferred or self.space.dtype(a.children[0][0]))
        if s.carried is None:
            s.carried = found
        return s.carried[0] == found[0] and s.carried[2] == found[2]
