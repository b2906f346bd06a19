"""Integers that are known while a program is traced, symbolic sizes among them.

Imported programs compute shapes by operations on integers.  At concrete sizes these are NumPy arrays; at symbolic ones
they are arrays of Python integers and dimensions of `jax.export`.  NumPy's functions work on both, so that the
arithmetic of shapes is written once.  A dimension is an integer without bounds: results assume that no computation
of a size overflows its type (`NO_OVERFLOW`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jax.errors import InconclusiveDimensionOperation
from jax.export import is_symbolic_dim

NO_OVERFLOW = "sizes that a program computes are in the range of their integers"


class SizeArray(np.ndarray):
    """Integers of which some are symbolic sizes, as objects; `of` is their dtype in the program."""

    of: np.dtype[Any] = np.dtype(np.int64)

    def __array_finalize__(self, obj: Any) -> None:
        self.of = getattr(obj, "of", SizeArray.of)


def integers(values: Any, of: Any = np.int64) -> np.ndarray:
    """An array of a size or of several; a `SizeArray` where one of them is symbolic."""
    if isinstance(values, np.ndarray):
        array = values
    else:
        flat = list(values) if isinstance(values, list | tuple) else [values]
        array = np.empty(len(flat), object)
        array[:] = flat
        array = array if isinstance(values, list | tuple) else array.reshape(())
    if array.dtype != object:
        return array
    if not any(map(is_symbolic_dim, array.flat)):
        return np.asarray(array).astype(of)
    sized = np.asarray(array).view(SizeArray)
    sized.of = np.dtype(of)
    return sized


def live(x: np.ndarray) -> jax.Array:
    """The values as an array of the program."""
    if not isinstance(x, SizeArray):
        return jnp.asarray(x)
    flat = [value_of(n, x.of) for n in x.flat]
    return jnp.stack(flat).reshape(x.shape) if x.ndim else jnp.asarray(flat[0])


def value_of(n: Any, dtype: Any) -> Any:
    """A size as a number of the program."""
    return lax.convert_element_type(jnp.asarray(n), dtype) if is_symbolic_dim(n) else np.asarray(n, dtype)


def holds_sizes(dtype: Any) -> bool:
    """Whether sizes in a type are assumed to be in its range (`NO_OVERFLOW`); a narrower one may wrap."""
    kind = np.dtype(dtype)
    return kind.kind in "iu" and kind.itemsize >= np.dtype(np.int32).itemsize


def number(n: Any) -> Any:
    """A Python integer, or a symbolic size."""
    return n if is_symbolic_dim(n) else int(n)


def has_symbolic(shape: Iterable[Any]) -> bool:
    """Whether a size of a shape is symbolic."""
    return any(map(is_symbolic_dim, shape))


def equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for all values of their names; unlike JAX's `==`, the comparison is not recorded."""
    gap = a - b
    return not is_symbolic_dim(gap) and gap == 0


def equal_shapes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal for all values of their names."""
    return len(a) == len(b) and all(map(equal, a, b))


def broadcast_sizes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape to which shapes broadcast."""
    broadcast: Any = lax.broadcast_shapes if any(map(has_symbolic, shapes)) else np.broadcast_shapes
    return tuple(broadcast(*map(tuple, shapes)))


def _quotient(a: Any, b: Any) -> Any:
    if is_symbolic_dim(core.max_dim(a, 0) - a) or is_symbolic_dim(core.max_dim(b, 1) - b):
        raise InconclusiveDimensionOperation("a quotient of sizes that may be negative, or by one that may be 0")
    return a // b


def _remainder(a: Any, b: Any) -> Any:
    _quotient(a, b)
    return a % b


def _elementwise(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], np.ndarray]:
    made = np.frompyfunc(fn, 2, 1)
    return lambda a, b: np.asarray(made(np.asarray(a, object), np.asarray(b, object)), object)


quotient, remainder = _elementwise(_quotient), _elementwise(_remainder)
"""Elementwise, for sizes that are not negative by sizes that are at least 1, where all ways of rounding agree."""
larger, smaller = _elementwise(core.max_dim), _elementwise(core.min_dim)
"""Elementwise maximum and minimum."""


__all__ = [
    "NO_OVERFLOW",
    "SizeArray",
    "broadcast_sizes",
    "equal",
    "equal_shapes",
    "has_symbolic",
    "holds_sizes",
    "integers",
    "larger",
    "live",
    "number",
    "quotient",
    "remainder",
    "smaller",
    "value_of",
]
