"""Ranges of integer values, and which integer sums cannot leave their type.

The range of a value follows from those of the dtypes that it reads: `int32(u8) * int32(s8)` is in -255*128 .. 255*127,
a sum of k of them in k times that.  An operation whose exact range fits its dtype does not wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.scalar import DTYPE
from superopt.ir.types import SIGNED, UNSIGNED
from verifier.schedules.intervals import Interval, box_of, interval

INTEGERS = frozenset((*SIGNED, *UNSIGNED))


def range_of_dtype(dtype: str) -> Interval:
    """Least and greatest value of an integer dtype."""
    info = np.iinfo(DTYPE[dtype])
    return int(info.min), int(info.max)


def terms(e: Expr) -> int:
    """Iterations of a reduction."""
    found = 1
    for it in e.args[1]:
        low, high = box_of(it)
        found *= high - low + 1
    return found


@dataclass
class Ranges:
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
                self.exact[e] = found = self._of(e)
                inside = all(self.whole.get(x, True) for x in e.operands if e.kind != "convert" or x.dtype in INTEGERS)
                self.whole[e] = inside and _within(found, e.dtype)
        return self._held(root)

    def _held(self, e: Expr) -> Interval:
        """The range of what the dtype holds."""
        if e.dtype == "bool":
            return 0, 1
        found = self.exact.get(e)
        return found if found is not None and _within(found, e.dtype) else range_of_dtype(e.dtype)

    def _of(self, e: Expr) -> Interval:
        whole = range_of_dtype(e.dtype)
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
    low, high = range_of_dtype(dtype)
    return low <= found[0] and found[1] <= high


def _add(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _neg(a: Interval) -> Interval:
    return -a[1], -a[0]


def _sub(a: Interval, b: Interval) -> Interval:
    return _add(a, _neg(b))


def _mul(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _max(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), max(a[1], b[1])


def _min(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), min(a[1], b[1])


_OPS: dict[str, Callable[..., Interval]] = {
    "add": _add, "sub": _sub, "neg": _neg, "mul": _mul, "max": _max, "min": _min,
}  # fmt: skip


def sums(root: Expr) -> list[Expr]:
    """The sums over integers in an expression."""
    return [e for e in subexpressions(root) if e.kind == "reduce" and e.args[0] == "sum" and e.dtype in INTEGERS]
