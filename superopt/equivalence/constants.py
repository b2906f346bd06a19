"""Values of constant expressions with bounds of what rounding may add to them.

Other optimisers fold constants in the dtype of the model: a kernel times a scale becomes one stored tensor, which
equals the expression only up to rounding.  `bounded` evaluates such an expression in float64.  It also bounds the error
of any evaluation in the expression's own dtype, in any order of additions (a running error analysis as in Higham,
*Accuracy and Stability of Numerical Algorithms*, chapter 3).  `same` decides whether a stored tensor lies within that
bound, and accepts only bounds that are small beside the tensor: cancellation would make a larger one meaningless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from superopt.ir.graph import Node, topological
from superopt.ir.interp import apply_op
from superopt.ir.scalar import numpy_dtype
from superopt.ir.types import FLOATS, UNIT_ROUNDOFF

Wide: TypeAlias = "npt.NDArray[np.float64]"
MOVES = frozenset(
    ("broadcast_in_dim", "transpose", "reshape", "slice", "rev", "concatenate", "pad", "regroup", "barrier", "gather")
)
_FUNCTION = 4  # units; numerical libraries are off by less for a root or its reciprocal


@dataclass(frozen=True, slots=True)
class Enclosed:
    """A value in float64, and per element a bound on the error of an evaluation in its dtype; None: exact."""

    value: npt.NDArray[Any]
    error: Wide | None

    def off(self) -> Wide | float:
        """The error bound, 0 where the value is exact."""
        return 0.0 if self.error is None else self.error


class Constants:
    """Values of terms over stored tensors; each term is evaluated once.

    Args:
        arrays: name of an input -> its values.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self._known: dict[Node, Enclosed | None] = {}

    def bounded(self, term: Node) -> Enclosed | None:
        """The value of a term; None where it reads an input without values, or uses a function without a bound."""
        for node in topological([term]):
            if node not in self._known:
                below = [self._known[x] for x in node.inputs]
                known = [x for x in below if x is not None]
                self._known[node] = self._value(node, known) if len(known) == len(below) else None
        return self._known[term]

    def forget(self) -> None:
        """Release all values."""
        self._known.clear()

    def _value(self, node: Node, xs: list[Enclosed]) -> Enclosed | None:
        if len(node.types) != 1:
            return None
        if node.op == "input":
            array = self._arrays.get(node["name"]) if node["frozen"] else None
            if array is None:
                return None
            return Enclosed(np.asarray(array, np.float64) if node.dtype in FLOATS else np.asarray(array), None)
        if node.op == "literal":
            exact = np.asarray(node["value"], numpy_dtype(node.dtype))
            return Enclosed(exact.astype(np.float64) if node.dtype in FLOATS else exact, None)
        try:
            with np.errstate(all="ignore"):
                return _moved(node, xs) if node.op in MOVES or node.dtype not in FLOATS else _computed(node, xs)
        except (TypeError, ValueError):
            return None


def _moved(node: Node, xs: list[Enclosed]) -> Enclosed | None:
    if node.dtype not in FLOATS and any(x.dtype in FLOATS for x in node.inputs):
        return None  # a comparison or a conversion to integers has no error that could be followed
    value = apply_op(node, [x.value for x in xs], True)
    if all(x.error is None for x in xs):
        return Enclosed(value, None)
    spread = [np.broadcast_to(x.off(), x.value.shape) if t.dtype in FLOATS else x.value
              for x, t in zip(xs, node.inputs, strict=True)]  # fmt: skip
    return Enclosed(value, np.asarray(apply_op(node, spread, True), np.float64))


def _computed(node: Node, xs: list[Enclosed]) -> Enclosed | None:
    """Return the value of an op on enclosed operands with a bound of its rounding; None without a bound."""
    unit = UNIT_ROUNDOFF[node.dtype]
    if not all(x.dtype in FLOATS for x in node.inputs):
        return None
    a = xs[0]
    b = xs[1] if len(xs) > 1 else a
    op = node.op
    if op == "neg":
        return Enclosed(-a.value, a.error)
    if op == "convert_element_type":
        if UNIT_ROUNDOFF[node.inputs[0].dtype] >= unit:
            return a
        return Enclosed(a.value, np.asarray(a.off() + unit * np.abs(a.value)))
    if op in ("add", "sub"):
        value = a.value + b.value if op == "add" else a.value - b.value
        error, units = a.off() + b.off(), 1
    elif op in ("mul", "square"):
        value = a.value * b.value
        error, units = np.abs(a.value) * b.off() + np.abs(b.value) * a.off() + a.off() * b.off(), 1
    elif op == "div":
        value = a.value / b.value
        error, units = (a.off() + np.abs(value) * b.off()) / (np.abs(b.value) - b.off()), 1
        if not (np.abs(b.value) > b.off()).all():
            return None
    elif op in ("sqrt", "rsqrt"):
        low = a.value - a.off()
        if not (low > 0).all():
            return None
        value = np.sqrt(a.value) if op == "sqrt" else 1.0 / np.sqrt(a.value)
        error, units = a.off() / (np.sqrt(low) if op == "sqrt" else low * np.sqrt(low)), _FUNCTION
    elif op == "reduce_sum":
        axes = tuple(node["axes"])
        value = np.sum(a.value, axis=axes)
        terms = np.sum(np.abs(a.value) + a.off(), axis=axes)
        error = np.sum(np.broadcast_to(a.off(), a.value.shape), axis=axes)
        error, units = error + a.value.size / max(1, value.size) * unit * terms, 1
    else:
        return None
    return Enclosed(np.asarray(value, np.float64), np.asarray(error + units * unit * (np.abs(value) + error)))


def same(stored: npt.NDArray[Any], dtype: str, term: Enclosed) -> float | None:
    """Distance of a stored tensor from the value of a term, relative to the largest element; None if it is too large.

    Where nothing was rounded the two must agree bit for bit.  The bound must be below the square root of the unit
    roundoff, relative to the largest element: an expression that loses more than half of its bits by cancellation
    proves nothing.
    """
    if stored.shape != term.value.shape:
        return None
    if term.error is None or dtype not in FLOATS:
        return 0.0 if _same_bits(stored, term.value, dtype) else None
    if not np.isfinite(term.error).all():
        return None
    apart = np.abs(stored.astype(np.float64) - term.value)
    size = float(np.max(np.abs(term.value), initial=0.0))
    if not (apart <= term.error).all():
        return None
    if float(np.max(term.error, initial=0.0)) > UNIT_ROUNDOFF[dtype] ** 0.5 * size:
        return None
    return float(np.max(apart, initial=0.0)) / size if size else 0.0


def _same_bits(stored: npt.NDArray[Any], value: npt.NDArray[Any], dtype: str) -> bool:
    if dtype in FLOATS:
        wide = stored.astype(np.float64)
        return bool(np.array_equal(wide, value) and np.array_equal(np.signbit(wide), np.signbit(value)))
    return bool(np.array_equal(stored, value))


__all__ = ["MOVES", "Constants", "Enclosed", "same"]
