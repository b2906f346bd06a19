"""Checks of a call's arguments: which leaves are tensors, whether they have values, and whether they fit."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from superopt.errors import ArgumentError
from superopt.ir.graph import Node

_WEAK_TYPES = (int, float, complex)


def as_taken(value: Any, dtype: str, widened: bool) -> Any:
    """A value converted to the dtype of an input where that is lossless; other values unchanged.

    64-bit values of NumPy keep 64 bits where JAX would use 32, and 32-bit integers are widened to those of the input.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.itemsize >= 8 and str(value.dtype) == dtype:
        with jax.enable_x64(True):
            return jax.device_put(value)
    if widened and _is_int32(value):
        with jax.enable_x64(True):
            return jax.numpy.asarray(value, dtype)
    return value


def widened_in_trace(leaves: Sequence[Any], kinds: Sequence[str], widened: Container[int]) -> list[Any]:
    """Traced arguments with 32-bit integers converted to these dtypes at the widened positions."""
    return [
        lax.convert_element_type(x, np.dtype(kind)) if i in widened and x.dtype == np.int32 else x
        for i, (x, kind) in enumerate(zip(leaves, kinds, strict=True))
    ]


def _is_int32(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return value.dtype == np.int32
    return type(value) is int and -(2**63) <= value < 2**63


def check_leaf(name: str, leaf: Any) -> None:
    """Check that a leaf is a tensor or a number.

    Raises:
        ArgumentError: it is neither.
    """
    try:
        jax.api_util.shaped_abstractify(leaf)
    except (TypeError, ValueError) as error:
        if isinstance(leaf, np.ndarray | np.generic):
            kind, hint = f"of dtype {leaf.dtype}", "dtypes are those of jax.numpy: floats, integers, bool, complex"
        else:
            kind = f"a {type(leaf).__name__}"
            hint = "arguments are pytrees of arrays and numbers; close over everything else (functools.partial)"
        raise ArgumentError(f"argument {name} is {kind}, not an array that can be optimised over", hint=hint) from error


def check_value(name: str, leaf: object) -> None:
    """Check that a leaf has a value now.

    Raises:
        ArgumentError: it is traced, or was deleted.
    """
    if isinstance(leaf, Tracer):
        raise ArgumentError(
            f"argument {name} is being traced and has no value",
            hint="optimise outside of jit, vmap and grad, and call the result inside",
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ArgumentError(f"argument {name} is an array that was deleted", hint="it was given away by donate_argnums")


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weak type of a leaf."""
    aval: Any = jax.api_util.shaped_abstractify(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def is_weak(leaf: object) -> bool:
    """Whether a leaf is weakly typed: a Python number but a bool, or an array whose dtype yields to other operands."""
    number = isinstance(leaf, _WEAK_TYPES) and not isinstance(leaf, bool | np.generic)
    return number or bool(getattr(leaf, "weak_type", False))


def as_weak(x: Any) -> Any:
    """The array, weakly typed."""
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def is_type(leaf: Any, node: Node) -> bool:
    """Whether a leaf has the shape and dtype of an input."""
    if not isinstance(leaf, jax.Array):
        try:
            leaf = jax.api_util.shaped_abstractify(leaf)
        except (TypeError, ValueError):
            return False
    return leaf.shape == node.shape and str(leaf.dtype) == node.dtype
