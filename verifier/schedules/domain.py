"""Domains: boxes of iterators under guards, and proofs that polynomials are nonnegative on them.

A domain is a range for each iterator and polynomials that are >= 0.  `holds(p)` proves p >= 0 everywhere on it:

    intervals   propagate every guard c*x + rest >= 0 into the range of x, then bound p term by term.
    linear      p = q + k*g for a guard g and k > 0, and q is bounded already (at most two guards are used).
    enumeration try every point of a small domain.

Each is sound by itself (docs/trust.md); none decides that something does not hold.  `violation(p)` looks for a point
with p < 0, which is verified in exact integers.  A proof by enumeration may drop guards and admit any value of a
clipped entry: it then proves a stronger statement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np

from superopt.ir.index import APPLY, Atom, Form, Guard, Mono, Poly, Size, Symbol, Truth, evaluate, of_atom
from superopt.kernels.loops.simplify import Ranges
from superopt.machine.deadline import Deadline
from verifier.schedules.intervals import INF, Interval, box_of, defined, definitions, interval, interval_of, propagated

DomainPoint = Mapping[Atom, int]
Box = Mapping[Atom, Interval]
_SAMPLES = 1024
_WIDE = 1 << 40  # entries of integer inputs are tried up to this size
_DEPTH = 2
_TRIED = 8  # most sums with one guard to which a second guard is added
_SMALL = 1 << 12  # most points of a domain that is enumerated within another proof


@dataclass(slots=True)
class QuestionBudget:
    """Budget of a check: steps that are left, and its end."""

    steps: int
    deadline: Deadline = field(default_factory=Deadline)

    def spend(self) -> None:
        """Take one step.

        Raises:
            ExhaustedError: no step or no time is left.
        """
        self.steps -= 1
        if self.steps < 0:
            raise ExhaustedError("the budget of steps is spent")
        if not self.steps % 16 and self.deadline.is_over:
            raise ExhaustedError("the time of the check is over")


class ExhaustedError(Exception):
    """Raised when a check exceeds its limit of steps or time."""


class Domain:
    """Iterators with inclusive ranges, under guards.

    Attributes:
        ranges: iterator -> least and greatest value.
        facts: polynomials that are >= 0.
        box: ranges after propagation; None when no point is left.
    """

    __slots__ = ("_all", "_known", "_monos", "_parts", "box", "budget", "facts", "ranges")

    def __init__(
        self, ranges: Mapping[Symbol, tuple[int, int]], facts: Iterable[Poly] = (), budget: QuestionBudget | None = None
    ) -> None:
        self.ranges = dict(ranges)
        self.facts = tuple(dict.fromkeys(facts))
        self.budget = budget if budget is not None else QuestionBudget(1 << 30)
        self.box = propagated(self.ranges, self.facts)
        self._known: dict[Size, str] = {}
        self._all: list[dict[Mono, int]] | None = None
        self._monos: dict[Mono, Interval] = {}
        self._parts: dict[object, Domain] = {}

    @property
    def empty(self) -> bool:
        """Whether the domain is known to have no point; False says nothing."""
        return self.box is None

    def under(self, *guards: Truth) -> Domain:
        """The part of the domain where some further guards hold."""
        added: list[Poly] = []
        for g in guards:
            if isinstance(g, Guard):
                added += [p for p in g.ordered if p not in self.facts]
            elif not g:
                return _nowhere(self)
        return self._part(tuple(added)) if added else self

    def _part(self, facts: tuple[Poly, ...], symbols: tuple[Symbol, ...] = ()) -> Domain:
        """The part under further facts, one object per set of facts, so that its proofs are shared."""
        part = self._parts.get((facts, symbols))
        if part is None:
            ranges = {**self.ranges, **{s: box_of(s) for s in symbols}}
            part = self._parts[facts, symbols] = Domain(ranges, (*self.facts, *facts), self.budget)
        return part

    def below(self, p: Size) -> Domain:
        """The part where p < 0."""
        negated = -1 - p
        if isinstance(negated, int):
            return self if negated >= 0 else _nowhere(self)
        return self._part((negated,))

    def over(self, symbols: Iterable[Symbol]) -> Domain:
        """The product with further iterators of constant range; an iterator hides another one of the same name."""
        added = tuple(symbols)
        hidden = frozenset(added) & self.ranges.keys()
        if not hidden:
            return self._part((), added) if added else self
        kept = [f for f in self.facts if f.symbols.isdisjoint(hidden)]
        ranges = {**self.ranges, **{s: box_of(s) for s in added}}
        return _nowhere(self) if self.empty else Domain(ranges, kept, self.budget)

    def bounds(self, x: Size) -> Interval:
        """An interval that holds all values of x; (0, -1) on an empty domain."""
        return (0, -1) if self.box is None else interval(x, self.box)

    # ---- proofs
    def holds(self, p: Size) -> bool:
        """Whether p >= 0 is proved at every point; False says nothing."""
        return bool(self.proof(p))

    def proof(self, p: Size) -> str:
        """The tier that proves p >= 0, or an empty string."""
        if isinstance(p, int) and p >= 0:
            return "intervals"
        if p in self._known:
            return self._known[p]
        self.budget.spend()
        if self.box is None or interval(p, self.box)[0] >= 0:
            tier = "intervals"
        elif isinstance(p, Poly) and (p in self.facts or self._linear(dict(p.terms), _DEPTH)):
            tier = "linear"
        elif (less := self.reduced(p)) != p:
            tier = self.proof(less)
        elif everywhere(p, self.box, self.ranges, self.facts, _SMALL):
            tier = "enumeration"
        else:
            tier = ""
        self._known[p] = tier
        return tier

    def zero(self, p: Size) -> bool:
        """Whether p = 0 is proved at every point."""
        return p == 0 or (self.holds(p) and self.holds(-p))

    def never(self, guard: Truth) -> bool:
        """Whether it is proved that a guard holds at no point."""
        return not guard if not isinstance(guard, Guard) else any(self.holds(-1 - p) for p in guard.terms)

    def always(self, guard: Truth) -> bool:
        """Whether it is proved that a guard holds at every point."""
        return guard if not isinstance(guard, Guard) else all(self.holds(p) for p in guard.terms)

    def tight(self, x: Size) -> Interval:
        """An interval that holds all values of x, by the box and one guard at a time."""
        assert self.box is not None
        low, high = interval(x, self.box)
        if isinstance(x, Poly):
            terms = dict(x.terms)
            for g in self.facts:  # x - g <= x <= x + g
                low = max(low, self._least(_sum(terms, 1, g.terms, -1)))
                high = min(high, -self._least(_sum(terms, -1, g.terms, -1)))
        return low, high

    def reduced(self, p: Size) -> Size:
        """The same index, with the quotients, remainders, minima, maxima and clips that the guards decide evaluated."""
        if isinstance(p, int) or self.box is None or all(isinstance(a, Symbol) for a in p.atoms):
            return p
        return evaluate(p, self._reduced_atom)

    def _reduced_atom(self, atom: Atom) -> Size:
        if isinstance(atom, Symbol) or atom.op == "value":
            return of_atom(atom)
        args: list[Size] = [self.reduced(x) for x in atom.args]
        if atom.op in ("//", "%") and isinstance(d := args[1], int):
            low, high = self.tight(args[0])
            if abs(low) < INF > abs(high) and low // d == high // d:
                quotient = int(low // d)
                return quotient if atom.op == "//" else args[0] - d * quotient
        elif atom.op in ("min", "max"):
            low, high = self.tight(args[0] - args[1])
            if low >= 0 or high <= 0:
                return args[1] if (low >= 0) == (atom.op == "min") else args[0]
        elif atom.op == "clip" and self.tight(args[0] - args[1])[0] >= 0 and self.tight(args[2] - args[0])[0] >= 0:
            return args[0]
        return APPLY[atom.op](*args)

    def _linear(self, p: dict[Mono, int], depth: int) -> bool:
        """Whether p >= 0 follows from k*p = q + c*g with a guard g, c >= 0 and q > -k."""
        if self._all is None:
            self._all = [dict(f.terms) for f in (*self.facts, *(d for g in self.facts for d in definitions(g)))]
        tried: list[tuple[float, dict[Mono, int]]] = []
        inside = [d for mono in p for a in mono if isinstance(a, Form) for d in defined(a)]
        for g in (*self._all, *inside):
            for mono, cg in g.items():
                cp = p.get(mono, 0) if mono else 0
                if cp * cg <= 0:
                    continue
                k = gcd(cp, cg)
                scale = abs(cg) // k
                q = _sum(p, scale, g.items(), -abs(cp) // k)
                q[()] = q.get((), 0) + scale - 1
                low = self._least(q)
                if low >= 0:
                    return True
                tried.append((low / scale, q))
        if depth == 1:
            return False
        tried.sort(key=lambda pair: -pair[0])
        return any(self._linear(q, depth - 1) for _, q in tried[:_TRIED])

    def _least(self, p: dict[Mono, int]) -> float:
        """A lower bound of p on the box, term by term."""
        assert self.box is not None
        total: float = 0
        for mono, c in p.items():
            if c:
                known = self._monos.get(mono)
                if known is None:
                    known = self._monos[mono] = interval(Poly(((mono, 1),)), self.box) if mono else (1, 1)
                total += c * known[0] if c > 0 else c * known[1]
        return total

    # ---- points
    def violation(self, p: Size, most: int) -> tuple[DomainPoint | None, bool]:
        """A point with p < 0 or None, and whether its absence is proved.

        Args:
            p: the polynomial that should be >= 0.
            most: a domain of at most this many points is enumerated.
        """
        if self.box is None:
            return None, True
        if everywhere(p, self.box, self.ranges, self.facts, most):
            return None, True
        return violation(p, self.box, self.ranges, self.facts, most)

    def points(self, count: int) -> list[DomainPoint]:
        """Some points of the domain."""
        return [] if self.box is None else some(count, self.box, self.ranges, self.facts)


def _sum(a: dict[Mono, int], x: int, b: Iterable[tuple[Mono, int]], y: int) -> dict[Mono, int]:
    """a times x plus b times y."""
    scaled = {m: c * x for m, c in a.items()}
    for m, c in b:
        scaled[m] = scaled.get(m, 0) + c * y
    return scaled


def _nowhere(d: Domain) -> Domain:
    none = Domain(d.ranges, d.facts, d.budget)
    none.box = None
    return none


# ---- points: enumeration of small domains, corners and samples of others, and values there


def everywhere(p: Size, box: Box, ranges: Ranges, facts: Sequence[Poly], most: int) -> bool:
    """Whether p >= 0 at every point, by enumeration; only guards that share iterators with p are considered."""
    near, left = [p], list(facts)
    known = p.symbols if isinstance(p, Poly) else frozenset[Symbol]()
    while True:
        bound = [f for f in left if not f.symbols.isdisjoint(known)]
        if not bound:
            break
        near += bound
        left = [f for f in left if f not in bound]
        known |= frozenset[Symbol]().union(*(f.symbols for f in bound))
    atoms = variables(near, {s: r for s, r in ranges.items() if s in known}, True)
    if atoms is None or _count(atoms, box) > most:
        return False
    return _bad(_grid(atoms, box), p, [f for f in near[1:] if isinstance(f, Poly)]) is None


def violation(p: Size, box: Box, ranges: Ranges, facts: Sequence[Poly], most: int) -> tuple[DomainPoint | None, bool]:
    """A point where p < 0, or None; and whether every point was tried."""
    atoms = variables((p, *facts), ranges, False)
    if atoms is None:
        return None, False
    small = _count(atoms, box) <= most
    bad = _bad(_grid(atoms, box) if small else _samples(p, atoms, box), p, facts)
    if bad is None:
        return None, small
    right = value_at(p, bad) < 0 and all(value_at(f, bad) >= 0 for f in facts)  # without rounding or overflow
    return bad if right else None, False


def some(count: int, box: Box, ranges: Ranges, facts: Sequence[Poly]) -> list[DomainPoint]:
    """At most `count` points of a domain."""
    atoms = variables(facts, ranges, False)
    if atoms is None or any(not isinstance(a, Symbol) for a in atoms):
        return []
    columns = _grid(atoms, box) if _count(atoms, box) <= 4 * _SAMPLES else _samples(0, atoms, box)
    good = np.ones(next(iter(columns.values())).shape if columns else (1,), bool)
    for f in facts:
        good &= values(f, columns) >= 0
    rows = np.flatnonzero(good)
    chosen: list[int] = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)].tolist()
    return [{a: int(x[k]) for a, x in columns.items()} for k in chosen]


def elements(
    box: Box | None, ranges: Ranges, facts: Sequence[Poly], index: Sequence[Size], most: int
) -> list[tuple[int, ...]] | None:
    """The distinct values of an index; None where there are too many points, or an index reads a tensor."""
    if box is None:
        return []
    atoms = variables((*facts, *index), ranges, False)
    if atoms is None or any(not isinstance(a, Symbol) for a in atoms) or _count(atoms, box) > most:
        return None
    columns = _grid(atoms, box)
    shape = next(iter(columns.values())).shape if columns else (1,)
    good = np.ones(shape, bool)
    for f in facts:
        good &= values(f, columns) >= 0
    if not index:
        return [()] if good.any() else []
    rows: Any = np.unique(np.stack([np.broadcast_to(values(x, columns), shape)[good] for x in index], axis=1), axis=0)
    return [tuple(int(x) for x in row) for row in rows]


def variables(polys: Iterable[Size], ranges: Ranges, loose: bool) -> list[Atom] | None:
    """Iterators and entries of integer inputs to which a point assigns values; None where a computed value is read.

    With `loose` a clipped entry is itself a variable, which may take values that the program never gives it.
    """
    atoms: dict[Atom, None] = dict.fromkeys(ranges)
    todo = [a for p in polys if isinstance(p, Poly) for a in p.atoms]
    while todo:
        a = todo.pop()
        if isinstance(a, Symbol) or (loose and _is_clipped(a)):
            atoms[a] = None
        elif a.op == "value":
            if a.args[0].kind != "load":
                return None
            atoms[a] = None
        else:
            todo += [b for x in a.args if isinstance(x, Poly) for b in x.atoms]
    return list(atoms)


def _is_clipped(a: Form) -> bool:
    return a.op == "clip" and isinstance(a.args[1], int) and isinstance(a.args[2], int)


def _count(atoms: Sequence[Atom], box: Box) -> float:
    return math.prod(h - l + 1 for l, h in (interval_of(a, box) for a in atoms))


def _grid(atoms: Sequence[Atom], box: Box) -> dict[Atom, Any]:
    axes = [np.arange(int(l), int(h) + 1) for l, h in (interval_of(a, box) for a in atoms)]
    return dict(zip(atoms, (m.ravel() for m in np.meshgrid(*axes, indexing="ij")), strict=True))


def _samples(p: Size, atoms: Sequence[Atom], box: Box) -> dict[Atom, Any]:
    """Sampled points of the box, most of them corners, among them the corner where p is least."""
    rng = np.random.default_rng(0)
    columns: dict[Atom, Any] = {}
    signs = {mono[0]: c for mono, c in p.terms if len(mono) == 1} if isinstance(p, Poly) else {}
    for a in atoms:
        low, high = (int(max(min(x, _WIDE), -_WIDE)) for x in interval_of(a, box))
        column = rng.integers(low, high + 1, _SAMPLES)
        kind = rng.integers(0, 8, _SAMPLES)
        for k, end in enumerate((low, high, low, high, min(low + 1, high), max(high - 1, low))):
            column[kind == k] = end
        column[0] = high if signs.get(a, 1) < 0 else low
        columns[a] = column
    return columns


def _bad(columns: Mapping[Atom, Any], p: Size, facts: Sequence[Poly]) -> dict[Atom, int] | None:
    """The first of these points where all guards hold and p < 0, or None."""
    wrong = values(p, columns) < 0
    for f in facts:
        wrong = wrong & (values(f, columns) >= 0)
    if not columns:
        return {} if bool(wrong) else None
    where = np.flatnonzero(np.broadcast_to(wrong, next(iter(columns.values())).shape))
    return {a: int(x[where[0]]) for a, x in columns.items()} if where.size else None


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


def value_at(x: Size, at: DomainPoint) -> int:
    """A polynomial at one point, in exact integers."""

    def atom(a: Atom) -> int:
        if a in at:
            return int(at[a])
        assert isinstance(a, Form)
        return int(APPLY[a.op](*(value_at(y, at) for y in a.args)))  # pyright: ignore[reportArgumentType]

    return int(evaluate(x, atom))


def shown(index: Sequence[Size], at: DomainPoint) -> list[int | str]:
    """An index at a point, for messages; a component with atoms that the point lacks stays symbolic."""
    out: list[int | str] = []
    for x in index:
        free = variables((x,), {}, False)
        known = free is not None and all(a in at for a in free)
        out.append(value_at(x, at) if known else str(x))
    return out
