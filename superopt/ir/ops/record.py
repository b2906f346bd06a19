"""The form of an entry of the op table: attributes with domains, a type rule, a denotation.

An attribute's domain is a function that brings a value to its canonical, hashable form (lists and arrays become tuples,
NumPy integers become `int`) or raises `ShapeError`.

The type rule works over sizes that are `int` or symbols.  Its conditions on them go through `require`: a condition that
is false raises; one that is only known at run time (a comparison of symbols) counts as met.  Inside `collecting`,
conditions are recorded for the caller, who has to meet or to prove them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from superopt.errors import ShapeError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.index import Poly, greatest
from superopt.ir.ops.axes import AxisRule
from superopt.ir.ops.axes import Values as Values
from superopt.ir.types import FLOATS, SIGNED, UNSIGNED, Shape, Size, TensorType

Types = tuple[TensorType, ...]


class Required:
    """Marker default of an attribute without a default."""


REQUIRED: Final = Required()


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: its name, the function to its canonical form, and its default."""

    name: str
    domain: Callable[[Any], Any]
    default: Any = REQUIRED


@dataclass(frozen=True, slots=True)
class Site:
    """The context of a denotation: operand types, result type, attributes."""

    inputs: Types
    out: TensorType
    attrs: Values


Denotation = Callable[[AnyAlgebra, Index, Sequence[Reader], Site], Any]
TypeRule = Callable[[Types, Values], TensorType | Types]


@dataclass(frozen=True, slots=True)
class Op:
    """One entry of the table.

    Attributes:
        name: the `jax.lax` primitive's name.
        family: leaf, elementwise, movement, reduction, contraction, indexing, linear, control or macro.
        arity: number of operands, None when variadic.
        attrs: attributes in the order of their names.
        type: the type rule; raises `ShapeError`.
        at: value of the result at one index; None for leaves and control nodes, which have none of this form.
        axes: how axes flow through the op; None for leaves, control nodes and macros.
        complete: fills the defaults that depend on other attributes (strides of ones).
        product: sums products over pairs of axes; dimension_numbers are contracted and batch axes of both operands.
        view: only moves elements, or makes them from their positions, so every reader can recompute it.
        partial, poles, kept: those of the scalar function (`superopt.ir.scalar`) that the op computes.
    """

    name: str
    family: str
    arity: int | None
    attrs: tuple[Attr, ...]
    type: TypeRule
    at: Denotation | None
    axes: AxisRule | None = None
    complete: Callable[[dict[str, Any]], None] | None = None
    product: bool = False
    view: bool = False
    partial: bool = False
    poles: bool = False
    kept: bool = False


def define(
    table: dict[str, Op],
    name: str,
    family: str,
    arity: int | None,
    type: TypeRule,
    at: Denotation | None,
    *attrs: Attr,
    **facts: Any,
) -> None:
    """Add an entry to a family's table; `facts` are the fields of `Op` that have defaults."""
    table[name] = Op(name, family, arity, tuple(sorted(attrs, key=lambda a: a.name)), type, at, **facts)


# ---- domains of attributes


def size(value: Any) -> Size:
    """Canonical form of an integer or a symbolic size."""
    if type(value) is int or isinstance(value, Poly):
        return value
    if isinstance(value, bool | np.bool_):
        raise ShapeError(f"expected an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise ShapeError(f"expected an integer, got {value!r}") from None


def sizes(value: Any) -> tuple[Size, ...]:
    """Canonical form of a tuple of integers or symbolic sizes."""
    return tuple([size(v) for v in _items(value)])


def axes(value: Any) -> tuple[Size, ...]:
    """Canonical form of a set of axes: in increasing order."""
    got = sizes(value)
    if len(set(got)) != len(got):
        raise ShapeError(f"repeated axes: {got}")
    return tuple(sorted(got))  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType] (axes are ints)


def nested(value: Any) -> tuple[Any, ...]:
    """Canonical form of integers in tuples of any depth."""
    return tuple([nested(v) if isinstance(v, tuple | list | np.ndarray) else size(v) for v in _items(value)])


def flag(value: Any) -> bool:
    """Canonical form of a truth value."""
    return bool(value)


def text(value: Any) -> str:
    """Canonical form of a string."""
    if not isinstance(value, str):
        raise ShapeError(f"expected a string, got {value!r}")
    return value


def dtype(value: Any) -> str:
    """Canonical form of a dtype: its NumPy name."""
    return value if isinstance(value, str) else str(np.dtype(value))


def optional(domain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the domain of None and the values of a domain."""

    def check(value: Any) -> Any:
        return None if value is None else domain(value)

    return check


def one_of(*allowed: Any) -> Callable[[Any], Any]:
    """Return the domain of a few values."""

    def check(value: Any) -> Any:
        if value not in allowed:
            raise ShapeError(f"expected one of {allowed}, got {value!r}")
        return value

    return check


def _items(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ShapeError(f"expected a sequence of integers, got {value!r}")
    return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


# ---- helpers of type rules


def show(types: Iterable[TensorType]) -> str:
    """Format operand types for a message."""
    return ", ".join(map(str, types))


@dataclass(frozen=True, slots=True)
class _Collected:
    """The sink for conditions of type rules, and the function for the maximum of two sizes."""

    conditions: list[Any]
    max: Callable[[Any, Any], Any]


_COLLECTED: ContextVar[_Collected | None] = ContextVar("collected", default=None)


@contextmanager
def collecting(conditions: list[Any], max: Callable[[Any, Any], Any]) -> Generator[None]:
    """Record the conditions of type rules instead of raising, inside the context; sizes are right where they hold.

    Args:
        conditions: receives the conditions, in order, except those known to hold.
        max: the maximum of two sizes.
    """
    token = _COLLECTED.set(_Collected(conditions, max))
    try:
        yield
    finally:
        _COLLECTED.reset(token)


def require(condition: Any, message: str, types: Iterable[TensorType] = (), **attrs: Any) -> None:
    """Raise `ShapeError` when the condition is known to be false; a symbolic one counts as met."""
    if condition is True:
        return
    collected = _COLLECTED.get()
    if collected is not None:
        collected.conditions.append(condition)
    elif condition is False or condition is np.False_:
        given = ", ".join(f"{k}={v}" for k, v in attrs.items())
        got = "; ".join(x for x in (show(types), given) if x)
        raise ShapeError(f"{message}; got {got}" if got else message)


def require_shape(found: Shape, wanted: Shape, message: str, types: Iterable[TensorType]) -> None:
    """Raise unless two shapes are equal, size by size."""
    if len(found) != len(wanted):
        raise ShapeError(f"{message}; got {show(types)}")
    for n, m in zip(found, wanted, strict=True):
        if n is not m:
            require(n == m, message, types)


def require_axes(name: str, found: Iterable[Any], rank: int, types: Types) -> None:
    """Raise unless these are distinct axes of a tensor of that rank."""
    got = tuple(found)
    if len(set(got)) != len(got) or not all(isinstance(a, int) and 0 <= a < rank for a in got):
        raise ShapeError(f"{name} must be distinct axes below {rank}; got {got} for {show(types)}")


def literally(value: Size, number: int) -> bool:
    """Whether the size is this number literally (not just possibly)."""
    return isinstance(value, int) and value == number


def ceil_div(a: Size, b: Size) -> Size:
    """Return a / b rounded up, for b > 0."""
    return a if literally(b, 1) else (a + b - 1) // b


def dilated(n: Size, dilation: Size) -> Size:
    """Return the extent of an axis with `dilation - 1` holes between neighbours (0 stays 0)."""
    return n if literally(dilation, 1) else _at_least_0((n - 1) * dilation + 1)


def spread(n: Size, dilation: Size, what: str) -> Size:
    """Return the dilated extent of a window or of an axis under one; requires an element where there are holes."""
    if literally(dilation, 1) or _COLLECTED.get() is None:
        return dilated(n, dilation)
    extent = (n - 1) * dilation + 1
    require(extent >= 0, f"{what} with holes must have an element")
    return extent


def positions(extent: Size, window: Size, stride: Size) -> Size:
    """Return the number of positions of a window; 0 where it does not fit, which collected conditions exclude."""
    room = extent - window
    count = room + 1 if literally(stride, 1) else room // stride + 1
    if _COLLECTED.get() is None:
        return _at_least_0(count)
    require(room >= 0, "a window must fit")
    return count


def _at_least_0(n: Size) -> Size:
    """max(0, n)."""
    if isinstance(n, int):
        return max(0, n)
    collected = _COLLECTED.get()
    return (greatest if collected is None else collected.max)(n, 0)


def is_float(name: str) -> bool:
    """Whether the dtype is floating point."""
    return name in FLOATS


def is_integer(name: str) -> bool:
    """Whether the dtype is an integer (bool is none)."""
    return name in SIGNED or name in UNSIGNED


def identity(monoid: str, name: str) -> bool | int | float:
    """Return the neutral element of a monoid in a dtype."""
    if monoid in ("sum", "or", "xor"):
        return name != "bool" and 0 if not is_float(name) else 0.0
    if monoid == "prod":
        return True if name == "bool" else 1 if not is_float(name) else 1.0
    if monoid == "and":
        return True if name == "bool" else -1 if name in SIGNED else int(np.iinfo(name).max)
    if name == "bool":
        return monoid == "min"
    if is_float(name):
        return float("-inf") if monoid == "max" else float("inf")
    info = np.iinfo(name)
    return int(info.min if monoid == "max" else info.max)


def accumulator(name: str) -> str:
    """Return the dtype in which sums and products of this dtype are formed."""
    return "float32" if name in ("float16", "bfloat16") else name
