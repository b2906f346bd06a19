"""Axes of a stage in their order, and blocks of them that are written together.

Rows with phases go several at a time, since short phases are mostly latency; positions whose windows overlap go several
at a time, since they share loads; a lone axis is split so that its outer part can be tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import (
    Guard,
    Poly,
    Size,
    Symbol,
    Truth,
    all_of,
    coefficient,
    nonnegative,
    substitute,
    substitute_guard,
)
from superopt.kernels.emit.knobs import Knobs
from superopt.kernels.emit.running import is_running
from superopt.kernels.loops import simplify
from superopt.kernels.loops.simplify import index_of

# so many rows at a time of at most so many vectors, a third of the first-level cache in all, where there are that many
ROWS = ((4, 48, 16), (2, 85, 8))  # rows: phases of one row are mostly latency, which those of others hide
NEIGHBOURS = 4


@dataclass(slots=True)
class Arrangement:
    """Axes in their order, and what stands over them."""

    axes: list[Symbol]
    at: Size
    value: Expr
    guard: Truth

    def indices(self) -> list[Size]:
        """Every index over the axes."""
        sides = list(self.guard.ordered) if isinstance(self.guard, Guard) else []
        return [self.at, *sides, *simplify.indices_in([self.value])]

    def replaced(self, it: Symbol, by: Sequence[Symbol], value: Size) -> None:
        """Put iterators in the place of one whose value they give."""
        mapping = {it: value}
        self.value, self.at = self.value.substitute(mapping), substitute(self.at, mapping)
        self.guard = substitute_guard(self.guard, mapping)
        j = self.axes.index(it)
        self.axes[j : j + 1] = [s for s in by if s.high != 0]


def extent(s: Symbol) -> int:
    assert isinstance(s.high, int)
    return s.high + 1


def heads(value: Expr) -> list[Expr]:
    """Reductions over the axes that are not inside others."""
    found: list[Expr] = []
    stack, seen = [value], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.kind == "reduce":
            found.append(e)
        else:
            stack += e.operands
    return [r for r in found if r.symbols]


def rows_together(a: Arrangement, lane: Symbol, lanes: int, knobs: Knobs) -> Symbol | None:
    """Rows with phases are written several at a time: the axis before the lane, split."""
    phases = [r for r in heads(a.value) if lane not in r.symbols]
    j = a.axes.index(lane) - 1
    if j < 0 or lane != a.axes[-1] or not phases or any(a.axes[j] not in r.symbols for r in phases):
        return None
    row = a.axes[j]
    fitting = (n for n, most, least in ROWS if extent(lane) <= most * lanes and extent(row) >= least)
    rows = knobs.rows or next(fitting, 1)
    if rows < 2 or extent(row) < 4 * rows or is_running(a.value, row):
        return None
    block(a, row, rows, extent(row), j)
    return a.axes[j + 1]


def neighbours(a: Arrangement, lane: Symbol, knobs: Knobs) -> Symbol | None:
    """Positions whose windows overlap are written several at a time, and share loads: the axis before the lane."""
    j = a.axes.index(lane) - 1
    if j < 0 or lane != a.axes[-1]:
        return None
    if not _shifted(a.value, a.axes[j]) and not any(_overlaps(r, a.axes[j], knobs) for r in heads(a.value)):
        return None
    s, count = a.axes[j], knobs.rows or NEIGHBOURS
    if count < 2 or extent(s) < 2 * count or is_running(a.value, s):
        return None
    block(a, s, count, extent(s), j)
    return a.axes[j + 1]


def _shifted(value: Expr, s: Symbol) -> bool:
    """Are there loads that differ by a few steps of an axis?"""
    places: dict[tuple[str, Size], set[int]] = {}
    for e in subexpressions(value):
        at = e.args[1][0] if e.kind == "load" else 0
        step = coefficient(at, s)
        if isinstance(at, Poly) and step:
            found = places.setdefault((e.args[0], at - at.constant), set())
            apart = [abs(c - at.constant) for c in found]
            if any(d and d % step == 0 and d < NEIGHBOURS * abs(step) for d in apart):
                return True
            found.add(at.constant)
    return False


def _overlaps(r: Expr, s: Symbol, knobs: Knobs) -> bool:
    """Does a window that is written out read the same elements for neighbouring values of an axis?"""
    if prod(extent(it) for it in r.args[1]) > knobs.window:
        return False
    for e in subexpressions(r.args[2]):
        step = coefficient(e.args[1][0], s) if e.kind == "load" else None
        for it in r.args[1] if step else ():
            tap = coefficient(e.args[1][0], it)
            if step and tap and step % tap == 0 and abs(tap) * (extent(it) - 1) >= abs(step):
                return True
    return False


def block(a: Arrangement, s: Symbol, least: int, pieces: int, position: int = 0) -> None:
    """Split an axis; its outer part goes to a position, where it can be tasks.  The last block may be shorter."""
    n = extent(s)
    size = -(-max(least, -(-n // max(pieces, 1))) // least) * least
    if size >= n or is_running(a.value, s):
        return
    high, low = Symbol(f"{s.name}h", 0, -(-n // size) - 1), Symbol(f"{s.name}l", 0, size - 1)
    value = index_of(high) * size + index_of(low)
    a.replaced(s, (high, low), value)
    if n % size:
        a.guard = all_of(a.guard, nonnegative(n - 1 - value))
    a.axes.remove(high)
    a.axes.insert(position, high)
