"""Builders of nodes in the normal form that the rest of the project expects of an importer.

The IR has no implicit broadcasting, and rules match keepdims patterns only when unit axes are reshapes.  So a
`broadcast_in_dim` that only adds axes of size 1 becomes a reshape (of a literal it stays a broadcast), and one that
stretches an axis of size 1 drops that axis first.  Steps that change nothing are not nodes at all.  These are choices
of form, each an identity by the op's definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from superopt.frontends.jax.sizes import is_zero, sizes
from superopt.ir.graph import Node, literal, mk
from superopt.ir.types import Size


def scalar(value: bool | int | float | complex | np.generic, dtype: str) -> Node:
    """A rank-0 constant of this dtype; the value is first rounded to it."""
    if dtype == "bool":
        return literal(bool(value), dtype)
    if "int" in dtype:
        return literal(int(value), dtype)  # pyright: ignore[reportArgumentType] (foreign dtypes never get here)
    return literal(float(value), dtype)  # pyright: ignore[reportArgumentType]


def full(shape: Sequence[Size], value: bool | int | float | np.generic, dtype: str) -> Node:
    """A tensor with one value everywhere."""
    return broadcast(scalar(value, dtype), tuple(shape), ())


def reshape(x: Node, new: Sequence[Size]) -> Node:
    """`x` with other sizes; successive reshapes become one, and none remains when nothing changes."""
    new = sizes(new)
    while x.op == "reshape" and x.shape != new:
        (x,) = x.inputs
    if x.shape == new:
        return x
    if x.op == "broadcast_in_dim" and x.inputs[0].shape == ():
        (x,) = x.inputs
    if x.op == "literal" or (x.shape == () and prod(new) != 1):
        return broadcast(x, new, ())
    return mk("reshape", x, new_sizes=new)


def broadcast(x: Node, shape: Sequence[Size], dims: Sequence[Any]) -> Node:
    """`x` with its axis i placed at axis `dims[i]` of `shape` (size 1 stretched), in normal form."""
    shape, dims = sizes(shape), tuple(int(d) for d in dims)
    if x.op != "literal" and prod(shape) == prod(x.shape) and all(x.shape[i] == shape[d] for i, d in enumerate(dims)):
        return reshape(x, shape)
    kept = [i for i, d in enumerate(dims) if x.shape[i] == shape[d]]
    if len(kept) != len(dims):
        x, dims = reshape(x, [x.shape[i] for i in kept]), tuple(dims[i] for i in kept)
    if x.op == "broadcast_in_dim" and x.inputs[0].shape == ():
        x, dims = x.inputs[0], ()
    return x if x.shape == shape else mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=dims)


def stretch(x: Node, shape: Sequence[Size]) -> Node:
    """`x` at `shape` by the rule of elementwise lax primitives: a scalar everywhere, or size-1 axes repeated."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    return broadcast(x, shape, () if not x.shape else range(len(shape) - len(x.shape), len(shape)))


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """`x` with its axes permuted; `x` itself for the identity."""
    permutation = tuple(int(p) for p in permutation)
    return x if permutation == tuple(range(len(permutation))) else mk("transpose", x, permutation=permutation)


def convert(x: Node, dtype: str) -> Node:
    """`x` in another dtype; `x` itself when it has it; literals are converted where that is exact."""
    if x.dtype == dtype:
        return x
    if x.op == "literal" and _fits(x["value"], dtype):
        return scalar(x["value"], dtype)
    if x.op == "broadcast_in_dim" and x.inputs[0].op == "literal" and _fits(x.inputs[0]["value"], dtype):
        return broadcast(scalar(x.inputs[0]["value"], dtype), x.shape, ())  # pyright: ignore[reportArgumentType]
    return mk("convert_element_type", x, new_dtype=dtype)


def window(x: Node, start: Sequence[Size], limit: Sequence[Size], strides: Sequence[Size] | None = None) -> Node:
    """A strided slice; `x` itself when the slice takes everything."""
    start, limit = sizes(start), sizes(limit)
    steps = sizes(strides) if strides is not None else (1,) * len(start)
    if limit == x.shape and all(map(is_zero, start)) and all(s == 1 for s in steps):
        return x
    return mk("slice", x, start_indices=start, limit_indices=limit, strides=steps)


def concatenate(xs: Sequence[Node], dimension: int) -> Node:
    """The operands side by side along an axis."""
    return xs[0] if len(xs) == 1 else mk("concatenate", *xs, dimension=dimension)


def _fits(value: bool | int | float, dtype: str) -> bool:
    """Whether the conversion of this literal is exact, so that it can be done at import."""
    if dtype == "bool":
        return value in (0, 1)
    if dtype in ("float32", "float64") and abs(value) <= 2**24:
        return isinstance(value, bool | int) or dtype == "float64" or float(np.float32(value)) == value
    if dtype in ("float16", "bfloat16"):
        return float(value).is_integer() and abs(value) <= 2**8
    return isinstance(value, bool | int) and abs(value) < 2**7 and (value >= 0 or dtype[0] != "u")
