"""Integers that a module knows before it runs: sizes of its arguments, and values computed from them.

Modules of symbolic sizes compute the shapes of their tensors.  Such integers stay outside of the program, as arrays of
NumPy (`superopt.frontends.symbolic.known`); `KNOWN` has the operations on them.  An operation without an answer for all
sizes is left to the program (`InconclusiveDimensionOperation`).  Assertions of the module on its sizes
(`shape_assertion`) are recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import core
from jax.errors import InconclusiveDimensionOperation

from superopt.frontends.stablehlo.read import HloOp
from superopt.frontends.symbolic.known import (
    SizeArray,
    equal,
    holds_sizes,
    integers,
    larger,
    quotient,
    remainder,
    smaller,
)

MOST = 64
"""Most elements of an array that is taken for a shape."""


@dataclass(slots=True)
class SizeFacts:
    """Assertions of a module on its sizes.

    Attributes:
        questions: number of a value -> the comparison of sizes that it is, where it has no answer for all sizes.
        asserted: comparisons that the module asserts.
        names: sizes, and their names in the module.
        depth: number of branches and loops that the walk is in.
    """

    questions: dict[int, tuple[Any, str, Any]] = field(default_factory=dict[int, Any])
    asserted: list[tuple[Any, str, Any]] = field(default_factory=list[Any])
    names: list[tuple[Any, str]] = field(default_factory=list[Any])
    depth: int = 0

    def forget(self) -> None:
        """Clear the record for a new trace."""
        for record in (self.questions, self.asserted, self.names):
            record.clear()
        self.depth = 0


def is_known(x: Any) -> bool:
    """Whether a value is a known array of few integers."""
    return isinstance(x, np.ndarray) and x.size <= MOST and (x.dtype.kind in "iub" or isinstance(x, SizeArray))


def dtype_of(x: Any) -> str:
    """The dtype of a value in the module."""
    return str(x.of if isinstance(x, SizeArray) else x.dtype)


def evaluate(op: HloOp, xs: tuple[Any, ...], facts: SizeFacts) -> np.ndarray | None:
    """The result of an operation on known integers; None where it is left to the program."""
    facts.questions.pop(op.results[0][0] if op.results else -1, None)  # of another call of the function
    entry = KNOWN.get(op.name)
    decided = {"stablehlo.and": False, "stablehlo.or": True}.get(op.name)
    for x in xs if decided is not None else ():
        if is_known(x) and x.dtype == np.bool_ and x.size and bool((x == decided).all()):
            return x  # whatever the other is
    if entry is None or len(op.results) != 1 or not all(map(is_known, xs)):
        return None
    (number, (shape, dtype)) = op.results[0]
    if None in shape or dtype[:3] not in ("int", "uin", "boo") or math.prod(n or 0 for n in shape) > MOST:
        return None
    try:
        with np.errstate(all="ignore"):
            value = entry(op, *xs)
    except InconclusiveDimensionOperation:
        if op.name == "stablehlo.compare" and not shape:
            facts.questions[number] = _question(op, *xs)
        return None
    return integers(np.asarray(value) if isinstance(value, np.generic) else value, dtype)


def _sized(*xs: Any) -> bool:
    return any(isinstance(x, SizeArray) for x in xs)


def _plain(fn: Callable[..., Any], sized: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """An elementwise operation: the function of NumPy, and the one on symbolic sizes."""

    def run(_: HloOp, *xs: Any) -> Any:
        return (sized or fn)(*(np.asarray(x, object) for x in xs)) if _sized(*xs) else fn(*xs)

    return run


def _divide(a: Any, b: Any) -> Any:
    if not np.all(b):
        raise InconclusiveDimensionOperation("a quotient by 0")
    floor = a // b
    return floor + ((floor * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)  # towards zero


def _remainder(a: Any, b: Any) -> Any:
    return a - _divide(a, b) * b


def _sign(a: Any) -> int:
    return int(_at_least(a, 1)) - int(_at_least(-1, a))


def _at_least(a: Any, b: Any) -> bool:
    """Whether a size is at least another, whatever the values of their names."""
    if equal(core.max_dim(a, b), a):
        return True
    if equal(core.max_dim(a, b - 1), b - 1):
        return False
    raise InconclusiveDimensionOperation("an order of sizes")  # their texts would be on record as a question


def _same(a: Any, b: Any) -> bool:
    if equal(a, b):
        return True
    if isinstance(a - b, int) or not _at_least(a, b) or not _at_least(b, a):
        return False
    raise InconclusiveDimensionOperation("an equation of sizes")


_ORDER: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "EQ": (np.equal, _same, "=="), "NE": (np.not_equal, lambda a, b: not _same(a, b), "!="),
    "GE": (np.greater_equal, _at_least, ">="), "LE": (np.less_equal, lambda a, b: _at_least(b, a), "<="),
    "GT": (np.greater, lambda a, b: not _at_least(b, a), ">"), "LT": (np.less, lambda a, b: not _at_least(a, b), "<"),
}  # fmt: skip


def _compare(op: HloOp, a: Any, b: Any) -> Any:
    plain, sized, _ = _ORDER[op.attributes["comparison_direction"]]
    if not _sized(a, b):
        return plain(a, b)
    return np.asarray(np.frompyfunc(sized, 2, 1)(np.asarray(a, object), np.asarray(b, object))).astype(bool)


def _question(op: HloOp, a: Any, b: Any) -> tuple[Any, str, Any]:
    return a.item(), _ORDER[op.attributes["comparison_direction"]][2], b.item()


def _select(_: HloOp, which: Any, then: Any, orelse: Any) -> Any:
    return np.where(which, then, orelse)


def _reshape(op: HloOp, x: Any) -> Any:
    return x.reshape(op.results[0][1][0])


def _broadcast(op: HloOp, x: Any) -> Any:
    shape, dims = op.results[0][1][0], op.attributes["broadcast_dimensions"]
    wide = [1] * len(shape)
    for axis, n in zip(dims, x.shape, strict=True):
        wide[axis] = n
    return np.array(np.broadcast_to(np.asarray(x).transpose(np.argsort(dims)).reshape(wide), shape))  # pyright: ignore[reportArgumentType, reportCallIssue]


def _slice(op: HloOp, x: Any) -> Any:
    get = op.attributes
    return x[tuple(map(slice, get["start_indices"], get["limit_indices"], get["strides"]))]


def _convert(op: HloOp, x: Any) -> Any:
    dtype = op.results[0][1][1]
    if not _sized(x):
        return x.astype(dtype)
    if not holds_sizes(dtype):
        raise InconclusiveDimensionOperation("a size in a type that is none of sizes")
    return integers(np.asarray(x), dtype)


KNOWN: dict[str, Callable[..., Any]] = {
    "stablehlo.add": _plain(np.add), "stablehlo.subtract": _plain(np.subtract),
    "stablehlo.multiply": _plain(np.multiply),
    "stablehlo.negate": _plain(np.negative), "stablehlo.divide": _plain(_divide, quotient),
    "stablehlo.remainder": _plain(_remainder, remainder), "stablehlo.maximum": _plain(np.maximum, larger),
    "stablehlo.minimum": _plain(np.minimum, smaller), "stablehlo.compare": _compare, "stablehlo.select": _select,
    "stablehlo.clamp": lambda op, low, x, high: _plain(np.minimum, smaller)(
        op, _plain(np.maximum, larger)(op, x, low), high),
    "stablehlo.concatenate": lambda op, *xs: np.concatenate(xs, op.attributes["dimension"]),
    "stablehlo.reshape": _reshape, "stablehlo.broadcast_in_dim": _broadcast, "stablehlo.slice": _slice,
    "stablehlo.convert": _convert, "stablehlo.sign": _plain(np.sign, np.frompyfunc(_sign, 1, 1)),
    "stablehlo.and": _plain(np.bitwise_and), "stablehlo.or": _plain(np.bitwise_or),
    "stablehlo.xor": _plain(np.bitwise_xor), "stablehlo.not": _plain(np.invert),
}  # fmt: skip
"""Operations on known integers."""


__all__ = ["KNOWN", "SizeFacts", "dtype_of", "evaluate", "is_known"]
