"""Interval arithmetic: bounds of indices in a box, ranges narrowed by guards, ranges of integer values.

All bounds are exact integers, or infinite where none is known.  Products of intervals ignore that two factors may
be the same atom, and forms bound their own arguments, so every interval may be too wide and none is too narrow.

The range of a value follows from those of the dtypes that it reads: `int32(u8) * int32(s8)` is in -255*128 .. 255*127,
a sum of k of them in k times that.  An operation whose exact range fits its dtype does not wrap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Atom, Form, Mono, Poly, Size, Symbol, of_atom
from superopt.ir.intervals import INF, Interval, applied, minus, plus, polynomial, product
from superopt.ir.types import INTEGERS, range_of

_ROUNDS = 6


def box_of(s: Symbol) -> tuple[int, int]:
    """The range of an iterator of constant extent."""
    assert isinstance(s.low, int)
    assert isinstance(s.high, int)
    return s.low, s.high


def interval(x: Size, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of x when atoms are in the box."""
    if isinstance(x, int):
        return x, x
    return polynomial(x.terms, lambda atom: interval_of(atom, box))


def interval_of(atom: Atom, box: Mapping[Atom, Interval]) -> Interval:
    """An interval that holds all values of an atom."""
    known = box.get(atom)
    if known is not None:
        return known
    if isinstance(atom, Symbol):
        low = -INF if atom.low is None else interval(atom.low, box)[0]
        return low, INF if atom.high is None else interval(atom.high, box)[1]
    if atom.op == "value":
        return range_of(atom.args[0].dtype)
    return applied(atom.op, [interval(x, box) for x in atom.args])


def propagated(ranges: Mapping[Symbol, tuple[int, int]], facts: tuple[Poly, ...]) -> dict[Atom, Interval] | None:
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
        if not changed:
            break
        for atom in [a for a in box if isinstance(a, Form)]:
            known += [d for d in _inverted(atom, box[atom], box) if d not in known]
    for atom in [a for a in box if isinstance(a, Form)]:  # intersect the bounds from guards and from arguments
        low, high = box.pop(atom)
        l, h = interval_of(atom, box)
        if max(low, l) > min(high, h):
            return None
        box[atom] = max(low, l), min(high, h)
    return box


def _inverted(atom: Atom, within: Interval, box: Mapping[Atom, Interval]) -> Iterator[Poly]:
    """Bounds of a dividend from the range of its quotient, or of its remainder where the quotient is known."""
    if not isinstance(atom, Form) or not isinstance(d := atom.args[-1], int) or max(map(abs, within)) == INF:
        return
    x, low, high = atom.args[0], int(within[0]), int(within[1])
    ends: tuple[Size, ...] = ()
    if atom.op == "//":
        ends = (x - d * low, d * high + (d - 1) - x)
    elif atom.op == "%":
        l, h = interval(x, box)
        if max(abs(l), abs(h)) < INF and l // d == h // d:
            start = d * int(l // d)
            ends = (x - start - low, start + high - x)
    yield from (e for e in ends if isinstance(e, Poly))


@functools.lru_cache(maxsize=4096)
def defined(atom: Form) -> tuple[dict[Mono, int], ...]:
    """The terms of the inequalities that define a form."""
    return tuple(dict(d.terms) for d in definitions(of_atom(atom)))


def definitions(p: Poly) -> Iterator[Poly]:
    """Inequalities that define the forms of a polynomial."""
    for atom in p.atoms:
        if not isinstance(atom, Form) or atom.op == "value":
            continue
        x, y = atom.args[0], atom.args[1]
        own = of_atom(atom)
        bounds: tuple[Size, ...] = ()
        if atom.op == "//" and isinstance(y, int):
            bounds = (x - own * y, own * y + (y - 1) - x)
        elif atom.op == "%" and isinstance(y, int):
            quotient = of_atom(Form("//", (x, y)))
            bounds = (x - quotient * y - own, own + quotient * y - x)
        elif atom.op == "min":
            bounds = (x - own, y - own)
        elif atom.op == "max":
            bounds = (own - x, own - y)
        yield from (f for f in bounds if isinstance(f, Poly))


def terms(e: Expr) -> int:
    """Iterations of a reduction."""
    count = 1
    for it in e.args[1]:
        low, high = box_of(it)
        count *= high - low + 1
    return count


@dataclass
class ExprRanges:
    """Ranges of integer expressions, computed once each.

    Attributes:
        exact: expression -> range of the mathematical value, before it is reduced to the dtype.
        whole: expression -> whether nothing inside wraps, so that it has its mathematical value.
    """

    exact: dict[Expr, Interval] = field(default_factory=dict[Expr, Interval])
    whole: dict[Expr, bool] = field(default_factory=dict[Expr, bool])

    def of(self, root: Expr) -> Interval:
        """The range of the value."""
        for e in subexpressions(root):
            if e not in self.exact and e.dtype in INTEGERS:
                self.exact[e] = known = self._of(e)
                inside = all(self.whole.get(x, True) for x in e.operands if e.kind != "convert" or x.dtype in INTEGERS)
                self.whole[e] = inside and _within(known, e.dtype)
        return self._held(root)

    def _held(self, e: Expr) -> Interval:
        """The range of the value in its dtype; the whole range of the dtype where the value may wrap."""
        if e.dtype == "bool":
            return 0, 1
        known = self.exact.get(e)
        return known if known is not None and _within(known, e.dtype) else range_of(e.dtype)

    def _of(self, e: Expr) -> Interval:
        whole = range_of(e.dtype)
        match e.kind:
            case "const":
                return int(e.args[0]), int(e.args[0])
            case "index":
                return interval(e.args[0], {})
            case "convert":
                return self._held(e.args[1]) if e.args[0] in INTEGERS or e.args[0] == "bool" else whole
            case "where":
                a, b = self._held(e.args[1]), self._held(e.args[2])
                return min(a[0], b[0]), max(a[1], b[1])
            case "reduce":
                return self._fold(e, whole)
            case "op":
                known = _OPS.get(e.args[0])
                return known(*(self._held(x) for x in e.operands)) if known and e.args[1] in INTEGERS else whole
            case _:
                return whole

    def _fold(self, e: Expr, whole: Interval) -> Interval:
        low, high = self._held(e.args[2])
        if e.args[0] == "sum":
            n = terms(e)
            return min(0, n * low), max(0, n * high)
        return (low, high) if e.args[0] in ("max", "min") and terms(e) else whole


def _within(found: Interval, dtype: str) -> bool:
    low, high = range_of(dtype)
    return low <= found[0] and found[1] <= high


def _neg(a: Interval) -> Interval:
    return -a[1], -a[0]


def _max(*args: Interval) -> Interval:
    return applied("max", args)


def _min(*args: Interval) -> Interval:
    return applied("min", args)


_OPS: dict[str, Callable[..., Interval]] = {
    "add": plus, "sub": minus, "neg": _neg, "mul": product, "max": _max, "min": _min,
}  # fmt: skip


def sums(root: Expr) -> list[Expr]:
    """The sums over integers in an expression."""
    return [e for e in subexpressions(root) if e.kind == "reduce" and e.args[0] == "sum" and e.dtype in INTEGERS]
