"""Boxes of iterators under guards, and what holds on them: intervals, then sums of guards, then enumeration.

A domain is a range for each iterator and polynomials that are >= 0.  `holds(p)` says that p >= 0 everywhere on it:

    intervals   propagate every guard c*x + rest >= 0 into the range of x, then bound p term by term
    linear      p = q + k*g for a guard g and k > 0, and q is bounded already (at most two guards are taken)
    enumeration every point of a small domain is tried

Each is sound by itself (docs/trust.md); none decides that something does not hold.  `violation(p)` looks for a point
with p < 0, which is checked in exact integers before it is believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.ir.index import Atom, Form, Guard, Poly, Size, Symbol, Truth, evaluate, of_atom
from superopt.ir.scalar import DTYPE

Interval = tuple[float, float]
Point = Mapping[Atom, int]
INF = math.inf
_ROUNDS = 6
_DEPTH = 2
_SMALL = 1 << 12  # points of a domain that is enumerated for a question inside another
_SAMPLES = 1024
_WIDE = 1 << 40  # entries of integer inputs are tried up to this size


@dataclass(slots=True)
class Budget:
    """Questions that are left."""

    steps: int

    def spend(self) -> None:
        """Take one step.

        Raises:
            ExhaustedError: none is left.
        """
        self.steps -= 1
        if self.steps < 0:
            raise ExhaustedError("the budget of steps is spent")


class ExhaustedError(Exception):
    """A check takes more steps than its limit."""


class Domain:
    """Iterators with inclusive ranges, under guards.

    Attributes:
        ranges: iterator -> least and greatest value.
        facts: polynomials that are >= 0.
        box: ranges after propagation; None when no point is left.
    """

    __slots__ = ("_known", "box", "budget", "facts", "ranges")

    def __init__(
        self, ranges: Mapping[Symbol, tuple[int, int]], facts: Iterable[Poly] = (), budget: Budget | None = None
    ) -> None:
        self.ranges = dict(ranges)
        self.facts = tuple(dict.fromkeys(facts))
        self.budget = budget if budget is not None else Budget(1 << 30)
        self.box = _propagated(self.ranges, self.facts)
        self._known: dict[Size, str] = {}

    @property
    def empty(self) -> bool:
        """Is it known that there is no point?"""
        return self.box is None

    def under(self, *guards: Truth) -> Domain:
        """The part where some guards hold too."""
        added: list[Poly] = []
        for g in guards:
            if isinstance(g, Guard):
                added += [p for p in g.ordered if p not in self.facts]
            elif not g:
                return _nowhere(self)
        return Domain(self.ranges, (*self.facts, *added), self.budget) if added else self

    def below(self, p: Size) -> Domain:
        """The part where p < 0."""
        negated = -1 - p
        if isinstance(negated, int):
            return self if negated >= 0 else _nowhere(self)
        return Domain(self.ranges, (*self.facts, negated), self.budget)

    def over(self, symbols: Iterable[Symbol]) -> Domain:
        """The product with more iterators of constant range."""
        added = {s: box_of(s) for s in symbols if s not in self.ranges}
        return Domain({**self.ranges, **added}, self.facts, self.budget) if added else self

    def bounds(self, x: Size) -> Interval:
        """An interval that holds all values of x; (0, -1) on an empty domain."""
        return (0, -1) if self.box is None else interval(x, self.box)

    # ---- what holds
    def holds(self, p: Size) -> bool:
        """Is p >= 0 at every point?  False says nothing."""
        return bool(self.proof(p))

    def proof(self, p: Size) -> str:
        """The tier that shows p >= 0, or nothing."""
        if isinstance(p, int) and p >= 0:
            return "intervals"
        if p in self._known:
            return self._known[p]
        self.budget.spend()
        if self.box is None or interval(p, self.box)[0] >= 0:
            tier = "intervals"
        elif isinstance(p, Poly) and self._linear(p, _DEPTH):
            tier = "linear"
        elif isinstance(p, Poly) and self.size <= _SMALL and self._enumerated(p) is True:
            tier = "enumeration"
        else:
            tier = ""
        self._known[p] = tier
        return tier

    def zero(self, p: Size) -> bool:
        """Is p = 0 at every point?"""
        return p == 0 or (self.holds(p) and self.holds(-p))

    def never(self, guard: Truth) -> bool:
        """Does a guard hold nowhere?"""
        return not guard if not isinstance(guard, Guard) else any(self.holds(-1 - p) for p in guard.terms)

    def always(self, guard: Truth) -> bool:
        """Does a guard hold everywhere?"""
        return guard if not isinstance(guard, Guard) else all(self.holds(p) for p in guard.terms)

    def _linear(self, p: Poly, depth: int) -> bool:
        """p >= 0 as k*p = q + c*g with a guard g, c > 0 and q > -k."""
        assert self.box is not None
        facts = (*self.facts, *_definitions(p), *(d for g in self.facts for d in _definitions(g)))
        coefficients = dict(p.terms)
        seen: set[Size] = set()
        for g in facts:
            for mono, cg in g.terms:
                cp = coefficients.get(mono, 0) if mono else 0
                if cp * cg <= 0:
                    continue
                q = p * abs(cg) - g * abs(cp) + (abs(cg) - 1)
                if q in seen:
                    continue
                seen.add(q)
                if interval(q, self.box)[0] >= 0:
                    return True
                if depth > 1 and isinstance(q, Poly) and self._linear(q, depth - 1):
                    return True
        return False

    # ---- points
    @property
    def size(self) -> float:
        """Number of points of the box."""
        if self.box is None:
            return 0
        return math.prod(h - l + 1 for l, h in (self.box[s] for s in self.ranges))

    def _enumerated(self, p: Poly) -> bool | None:
        """Does p >= 0 hold at every point, by trying them?  None where it cannot be tried."""
        atoms = _variables((p, *self.facts), self.ranges)
        if atoms is None or any(not isinstance(a, Symbol) for a in atoms):
            return None
        bad = self._bad(self._grid(atoms), p)
        return bad is None

    def violation(self, p: Size, points: int) -> tuple[Point | None, bool]:
        """A point with p < 0, and whether its absence is proved.

        Args:
            p: what should be >= 0.
            points: a domain of at most so many points is enumerated.
        """
        if self.box is None:
            return None, True
        atoms = _variables((p, *self.facts), self.ranges)
        if atoms is None:
            return None, False
        whole = self.size <= points and all(isinstance(a, Symbol) for a in atoms)
        found = self._bad(self._grid(atoms) if whole else self._samples(p, atoms), p)
        if found is not None:
            exact = {a: int(v) for a, v in found.items()}
            assert value_at(p, exact) < 0
            assert all(value_at(f, exact) >= 0 for f in self.facts)
            return exact, False
        return None, whole

    def points(self, count: int) -> list[Point]:
        """Some points of the domain."""
        atoms = _variables(self.facts, self.ranges)
        if self.box is None or atoms is None or any(not isinstance(a, Symbol) for a in atoms):
            return []
        columns = self._grid(atoms) if self.size <= _SMALL else self._samples(0, atoms)
        good = np.ones(next(iter(columns.values())).shape if columns else (1,), bool)
        for f in self.facts:
            good &= values(f, columns) >= 0
        rows = np.flatnonzero(good)
        chosen: list[int] = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)].tolist()
        return [{a: int(x[k]) for a, x in columns.items()} for k in chosen]

    def _grid(self, atoms: Sequence[Atom]) -> dict[Atom, Any]:
        assert self.box is not None
        axes = [np.arange(int(l), int(h) + 1) for l, h in (interval_of(a, self.box) for a in atoms)]
        return dict(zip(atoms, (m.ravel() for m in np.meshgrid(*axes, indexing="ij")), strict=True))

    def _samples(self, p: Size, atoms: Sequence[Atom]) -> dict[Atom, Any]:
        """Corners of the box above all, the corner where p is least among them."""
        assert self.box is not None
        rng = np.random.default_rng(0)
        columns: dict[Atom, Any] = {}
        signs = {mono[0]: c for mono, c in p.terms if len(mono) == 1} if isinstance(p, Poly) else {}
        for a in atoms:
            low, high = (int(max(min(x, _WIDE), -_WIDE)) for x in interval_of(a, self.box))
            column = rng.integers(low, high + 1, _SAMPLES)
            kind = rng.integers(0, 8, _SAMPLES)
            for k, end in enumerate((low, high, low, high, min(low + 1, high), max(high - 1, low))):
                column[kind == k] = end
            column[0] = high if signs.get(a, 1) < 0 else low
            columns[a] = column
        return columns

    def _bad(self, columns: dict[Atom, Any], p: Size) -> dict[Atom, int] | None:
        """The first point of some where all guards hold and p < 0."""
        wrong = values(p, columns) < 0
        for f in self.facts:
            wrong = wrong & (values(f, columns) >= 0)
        if not columns:
            return {} if bool(wrong) else None
        where = np.flatnonzero(np.broadcast_to(wrong, next(iter(columns.values())).shape))
        return {a: int(x[where[0]]) for a, x in columns.items()} if where.size else None


def _nowhere(d: Domain) -> Domain:
    none = Domain(d.ranges, d.facts, d.budget)
    none.box = None
    return none


def box_of(s: Symbol) -> tuple[int, int]:
    """The range of an iterator of constant extent."""
    assert isinstance(s.low, int)
    assert isinstance(s.high, int)
    return s.low, s.high


# ---- intervals


def interval(x: Size, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of x when atoms are in the box."""
    if isinstance(x, int):
        return x, x
    low: float = 0
    high: float = 0
    for mono, c in x.terms:
        a: float = 1
        b: float = 1
        for atom in mono:
            l, h = interval_of(atom, box)
            ends = (_times(a, l), _times(a, h), _times(b, l), _times(b, h))
            a, b = min(ends), max(ends)
        low += c * a if c > 0 else c * b
        high += c * b if c > 0 else c * a
    return low, high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def interval_of(atom: Atom, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of an atom."""
    known = box.get(atom)
    if known is not None:
        return known
    if isinstance(atom, Symbol):
        low = -INF if atom.low is None else interval(atom.low, box)[0]
        return low, INF if atom.high is None else interval(atom.high, box)[1]
    if atom.op == "value":
        info = np.iinfo(DTYPE[atom.args[0].dtype])
        return int(info.min), int(info.max)
    l, h = interval(atom.args[0], box)
    l2, h2 = interval(atom.args[1], box)
    match atom.op:
        case "//":
            ends = [_floor(p, q) for p in (l, h) for q in (max(l2, 1), h2)]
            return min(ends), max(ends)
        case "%":
            return 0, min(h2 - 1, h) if l >= 0 else h2 - 1
        case "min":
            return min(l, l2), min(h, h2)
        case "max":
            return max(l, l2), max(h, h2)
        case _:  # clip: high wins where low > high
            l3, h3 = interval(atom.args[2], box)
            return min(max(l, l2), l3), min(max(h, h2), h3)


def _floor(p: float, q: float) -> float:
    if q == INF:
        return 0 if p >= 0 else -1
    return p if abs(p) == INF else p // q


def _propagated(ranges: Mapping[Symbol, tuple[int, int]], facts: tuple[Poly, ...]) -> dict[Atom, Interval] | None:
    """Ranges narrowed by guards; None when a guard cannot hold."""
    box: dict[Atom, Interval] = {s: r for s, r in ranges.items()}  # noqa: C416 (a wider type)
    if any(l > h for l, h in ranges.values()):
        return None
    known = list(facts)
    for _ in range(_ROUNDS):
        changed = False
        for f in known:
            low, high = interval(f, box)
            if high < 0:
                return None
            if low >= 0:
                continue
            for mono, c in f.terms:
                if len(mono) != 1:
                    continue
                atom = mono[0]
                l, h = interval_of(atom, box)
                rest = high - (c * h if c > 0 else c * l)
                if abs(rest) == INF or math.isnan(rest):
                    continue
                new = (max(l, -(int(rest) // c)), h) if c > 0 else (l, min(h, int(rest) // -c))
                if new[0] > new[1]:
                    return None
                if new != (l, h):
                    box[atom] = new
                    changed = True
                    known += [d for d in _inverted(atom, new) if d not in known]
        if not changed:
            break
    return box


def _inverted(atom: Atom, within: Interval) -> Iterator[Poly]:
    """What the range of a quotient says about the dividend."""
    if isinstance(atom, Form) and atom.op == "//" and isinstance(d := atom.args[1], int):
        x = atom.args[0]
        ends = (x - d * int(within[0]), d * int(within[1]) + (d - 1) - x) if abs(within[0]) < INF > within[1] else ()
        yield from (e for e in ends if isinstance(e, Poly))


def _definitions(p: Poly) -> Iterator[Poly]:
    """Inequalities that define the forms of a polynomial."""
    for atom in p.atoms:
        if not isinstance(atom, Form) or atom.op == "value":
            continue
        x, y = atom.args[0], atom.args[1]
        own = of_atom(atom)
        found: tuple[Size, ...] = ()
        if atom.op == "//" and isinstance(y, int):
            found = (x - own * y, own * y + (y - 1) - x)
        elif atom.op == "%" and isinstance(y, int):
            quotient = of_atom(Form("//", (x, y)))
            found = (x - quotient * y - own, own + quotient * y - x)
        elif atom.op == "min":
            found = (x - own, y - own)
        elif atom.op == "max":
            found = (own - x, own - y)
        yield from (f for f in found if isinstance(f, Poly))


# ---- points


def _variables(polys: Iterable[Size], ranges: Mapping[Symbol, Any]) -> list[Atom] | None:
    """Iterators, and entries of integer inputs, that a point gives values to; None where something else is read."""
    atoms: dict[Atom, None] = dict.fromkeys(ranges)
    todo = [a for p in polys if isinstance(p, Poly) for a in p.atoms]
    while todo:
        a = todo.pop()
        if isinstance(a, Symbol):
            atoms[a] = None
        elif a.op == "value":
            if a.args[0].kind != "load":
                return None
            atoms[a] = None
        else:
            todo += [b for x in a.args if isinstance(x, Poly) for b in x.atoms]
    return list(atoms)


def values(x: Size, columns: Mapping[Atom, Any]) -> Any:
    """A polynomial at many points."""

    def atom(a: Atom) -> Any:
        if a in columns:
            return columns[a]
        assert isinstance(a, Form)
        args = [values(y, columns) for y in a.args]
        match a.op:
            case "//":
                return np.floor_divide(args[0], args[1])
            case "%":
                return np.mod(args[0], args[1])
            case "min":
                return np.minimum(*args)
            case "max":
                return np.maximum(*args)
            case _:
                return np.minimum(np.maximum(args[0], args[1]), args[2])

    return np.asarray(evaluate(x, atom))


def value_at(x: Size, at: Point) -> int:
    """A polynomial at one point, in exact integers."""

    def atom(a: Atom) -> int:
        if a in at:
            return int(at[a])
        assert isinstance(a, Form)
        args = [value_at(y, at) for y in a.args]
        match a.op:
            case "//":
                return args[0] // args[1]
            case "%":
                return args[0] % args[1]
            case "min":
                return min(args)
            case "max":
                return max(args)
            case _:
                return min(max(args[0], args[1]), args[2])

    return int(evaluate(x, atom))
