"""Points of a domain: enumeration of small ones, corners and samples of others, and values there.

A proof by enumeration may forget guards and take any value of a clipped entry for possible: it then proves more than
was asked.  A violation is a point of the whole domain, checked in exact integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.ir.index import Atom, Form, Poly, Size, Symbol, evaluate
from verifier.schedules.intervals import Interval, interval_of

Point = Mapping[Atom, int]
Box = Mapping[Atom, Interval]
Ranges = Mapping[Symbol, tuple[int, int]]
_SAMPLES = 1024
_WIDE = 1 << 40  # entries of integer inputs are tried up to this size


def everywhere(p: Size, box: Box, ranges: Ranges, facts: Sequence[Poly], most: int) -> bool:
    """Does p >= 0 hold at every point, by trying them?  Only guards that share iterators with p are looked at."""
    near, left = [p], list(facts)
    known = p.symbols if isinstance(p, Poly) else frozenset[Symbol]()
    while True:
        found = [f for f in left if not f.symbols.isdisjoint(known)]
        if not found:
            break
        near += found
        left = [f for f in left if f not in found]
        known |= frozenset[Symbol]().union(*(f.symbols for f in found))
    atoms = variables(near, {s: r for s, r in ranges.items() if s in known}, True)
    if atoms is None or _count(atoms, box) > most:
        return False
    return _bad(_grid(atoms, box), p, [f for f in near[1:] if isinstance(f, Poly)]) is None


def violation(p: Size, box: Box, ranges: Ranges, facts: Sequence[Poly], most: int) -> tuple[Point | None, bool]:
    """A point where p < 0, or None; and whether every point was tried."""
    atoms = variables((p, *facts), ranges, False)
    if atoms is None:
        return None, False
    small = _count(atoms, box) <= most
    found = _bad(_grid(atoms, box) if small else _samples(p, atoms, box), p, facts)
    if found is None:
        return None, small
    right = value_at(p, found) < 0 and all(value_at(f, found) >= 0 for f in facts)  # without rounding or overflow
    return found if right else None, False


def some(count: int, box: Box, ranges: Ranges, facts: Sequence[Poly]) -> list[Point]:
    """At most so many points."""
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
    """The different values of an index; None where there are too many points, or something is read."""
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
    """Iterators and entries of integer inputs that a point gives values to; None where something else is read.

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
    """Corners of the box above all, the corner where p is least among them."""
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
    """The first point of some where all guards hold and p < 0."""
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


def shown(index: Sequence[Size], at: Point) -> list[int | str]:
    """An index at a point, for people; what the point says nothing of stays as it is."""
    out: list[int | str] = []
    for x in index:
        free = variables((x,), {}, False)
        known = free is not None and all(a in at for a in free)
        out.append(value_at(x, at) if known else str(x))
    return out
