"""Typed PRNG keys as the numbers that they are made of.

A graph has no keys: an array of keys is its data, with further axes (`key<fry>[3]` is `u32[3,2]`).  Equations that are
kept verbatim get keys made from the data and return their data; so do the arguments and results of a program.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from superopt.frontends.jax.sizes import sizes
from superopt.ir.types import TensorType

_IMPL: dict[Any, tuple[Any, tuple[int, ...], str]] = {}


def is_key(x: object) -> bool:
    """Whether this is an array (or a type) of keys."""
    dtype = getattr(x, "dtype", None)
    return dtype is not None and not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def data_type(x: Any) -> TensorType:
    """The type of an array, or of an array type, in a graph."""
    if not is_key(x):
        return TensorType(sizes(x.shape), str(x.dtype))
    _, shape, dtype = _known(x.dtype)
    return TensorType((*sizes(x.shape), *shape), dtype)


def kind_of(x: Any) -> Any:
    """The key implementation that `with_kind` needs; None for other arrays."""
    return _known(x.dtype)[0] if is_key(x) else None


def data_of(x: Any) -> Any:
    """The data of keys; other values unchanged."""
    return jax.random.key_data(x) if is_key(x) else x


def with_kind(x: Any, kind: Any) -> Any:
    """Keys made from their data; other values unchanged."""
    return x if kind is None else jax.random.wrap_key_data(x, impl=kind)


def _known(dtype: Any) -> tuple[Any, tuple[int, ...], str]:
    """The implementation of a key dtype, and the shape and dtype of one key's data."""
    if dtype not in _IMPL:
        known: list[Any] = []

        def look(key: Any) -> Any:
            known.append(jax.random.key_impl(key))
            return jax.random.key_data(key)

        data = jax.eval_shape(look, jax.ShapeDtypeStruct((), dtype))
        _IMPL[dtype] = (known[0], tuple(data.shape), str(data.dtype))
    return _IMPL[dtype]
