"""What a call brings: which leaves are tensors, whether they have values, and whether they fit the program."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from superopt.errors import ArgumentError
from superopt.ir.graph import Node

_WEAK_TYPES = (int, float, complex)


def as_taken(name: str, value: Any, dtype: str, narrowed: bool) -> Any:
    """A NumPy value as an input of this dtype takes it, where JAX would make 32 bits of 64; others as they are.

    Raises:
        ArgumentError: a value does not fit into the 32 bits of an input that stands for one of 64.
    """
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.itemsize < 8:
        return value
    if str(value.dtype) == dtype:
        with jax.enable_x64(True):
            return jax.device_put(value)
    if narrowed and value.dtype.kind == "i" and value.size:
        limits = np.iinfo(dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise ArgumentError(
                f"argument {name} has values that {dtype} cannot hold",
                hint="enable 64-bit types before optimising: jax.config.update('jax_enable_x64', True)",
            )
    return value


def check_leaf(name: str, leaf: Any) -> None:
    """Whether a leaf is a tensor or a number.

    Raises:
        ArgumentError: it is none.
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
    """Whether a leaf has a value now.

    Raises:
        ArgumentError: it is being traced, or was deleted.
    """
    if isinstance(leaf, Tracer):
        raise ArgumentError(
            f"argument {name} is being traced and has no value",
            hint="optimise outside of jit, vmap and grad, and call the result inside",
        )
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ArgumentError(f"argument {name} is an array that was deleted", hint="it was given away by donate_argnums")


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape, dtype and weakness of a leaf."""
    aval: Any = jax.api_util.shaped_abstractify(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def is_weak(leaf: object) -> bool:
    """A Python number but a bool, or what stands for one: its dtype gives way to that of what it meets."""
    number = isinstance(leaf, _WEAK_TYPES) and not isinstance(leaf, bool | np.generic)
    return number or bool(getattr(leaf, "weak_type", False))


def as_weak(x: Any) -> Any:
    """The array, weakly typed."""
    return jax.lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None)


def is_type(leaf: Any, node: Node) -> bool:
    """Has the leaf shape and dtype of an input?"""
    if not isinstance(leaf, jax.Array):
        try:
            leaf = jax.api_util.shaped_abstractify(leaf)
        except (TypeError, ValueError):
            return False
    return leaf.shape == node.shape and str(leaf.dtype) == node.dtype
