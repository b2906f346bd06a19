"""Lowering of each op of the table to `jax.lax`: op name -> function(node, *operands).

Ops and their attributes are named after `lax` functions and their parameters, so an op without an entry here calls the
function of its name.  Where the public function does more than the primitive (`dynamic_slice` wraps negative starts,
`reduce_window` takes an init value) the entry asks for the primitive's meaning.  Control flow and macros need the whole
lowering and live in `superopt.backends.xla`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.ir import opaque
from superopt.ir.graph import Node
from superopt.ir.ops.reduction import ARG, WINDOW
from superopt.ir.ops.table import CONTRACTIONS, CONVOLUTIONS, TABLE

LoweringRule = Callable[..., Any]

_RENAMED = {"not": lax.bitwise_not, "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
_PRECISION = {
    None: None,
    "default": lax.Precision.DEFAULT,
    "high": lax.Precision.HIGH,
    "highest": lax.Precision.HIGHEST,
}
_MODE = {
    "clip": lax.GatherScatterMode.CLIP,
    "fill": lax.GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": lax.GatherScatterMode.PROMISE_IN_BOUNDS,
}


def dtype_of(name: str) -> np.dtype:
    """Return the NumPy dtype of that name, `bfloat16` included."""
    return jnp.dtype(name)


def _literal(node: Node) -> Any:
    return np.asarray(node["value"], dtype_of(node["dtype"]))


def _by_name(fn: Callable[..., Any], node: Node, *xs: Any) -> Any:
    return fn(*xs, **dict(node.attrs))


def _arg(fn: Callable[..., Any], node: Node, x: Any) -> Any:
    (axis,) = node["axes"]
    return fn(x, axis, dtype_of(node["index_dtype"]))


def _round(node: Node, x: Any) -> Any:
    return lax.round(x, lax.RoundingMethod(int(node["rounding_method"])))


def _convert_element_type(node: Node, x: Any) -> Any:
    return lax.convert_element_type(x, dtype_of(node["new_dtype"]))


def _regroup(node: Node, x: Any) -> Any:
    order = tuple(axis for axes, _ in node["groups"] for axis in axes)
    sizes = tuple(size for _, outs in node["groups"] for size in outs)
    if order != tuple(range(len(order))):
        x = lax.transpose(x, order)
    return lax.reshape(x, sizes)


def _barrier(node: Node, x: Any) -> Any:
    return lax.optimization_barrier(x)


def _concatenate(node: Node, *xs: Any) -> Any:
    return lax.concatenate(xs, node["dimension"])


def _dynamic_slice(node: Node, x: Any, *starts: Any) -> Any:
    return lax.dynamic_slice(x, starts, node["slice_sizes"], allow_negative_indices=False)


def _dynamic_update_slice(node: Node, x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


def _gather(node: Node, x: Any, indices: Any) -> Any:
    dims = lax.GatherDimensionNumbers(
        offset_dims=node["offset_dims"],
        collapsed_slice_dims=node["collapsed_slice_dims"],
        start_index_map=node["start_index_map"],
        operand_batching_dims=node["operand_batching_dims"],
        start_indices_batching_dims=node["start_indices_batching_dims"],
    )
    return lax.gather(x, indices, dims, node["slice_sizes"], mode=_MODE[node["mode"]])


def _segment_sum(node: Node, rows: Any, segments: Any) -> Any:
    lead = segments.ndim
    empty = lax.full((node["segments"], *rows.shape[lead:]), 0, rows.dtype)
    dims = lax.ScatterDimensionNumbers(tuple(range(lead, rows.ndim)), (0,), (0,))
    return lax.scatter_add(empty, lax.expand_dims(segments, (lead,)), rows, dims, mode="drop")


def _iota(node: Node) -> Any:
    return lax.broadcasted_iota(dtype_of(node["dtype"]), node["shape"], node["dimension"])


def _contraction(fn: Callable[..., Any], node: Node, lhs: Any, rhs: Any) -> Any:
    attrs, wanted = dict(node.attrs), node["preferred_element_type"]
    attrs |= {"precision": _PRECISION[node["precision"]], "preferred_element_type": wanted and dtype_of(wanted)}
    if node.op in CONVOLUTIONS:
        attrs["dimension_numbers"] = lax.ConvDimensionNumbers(*node["dimension_numbers"])
    return fn(lhs, rhs, **attrs)


def _opaque(node: Node, *xs: Any) -> Any:
    results = tuple(opaque.resolve(node["params_key"]).call(*xs))
    return results[0] if len(node.types) == 1 else results


def _result(node: Node, results: tuple[Any, ...]) -> Any:
    return results[node["index"]]


def _table() -> dict[str, LoweringRule]:
    table: dict[str, LoweringRule] = {
        "literal": _literal, "round": _round, "convert_element_type": _convert_element_type, "regroup": _regroup,
        "barrier": _barrier, "concatenate": _concatenate, "dynamic_slice": _dynamic_slice,
        "dynamic_update_slice": _dynamic_update_slice, "gather": _gather, "iota": _iota, "opaque": _opaque,
        "segment_sum": _segment_sum, "result": _result, "inverse": functools.partial(_by_name, jnp.linalg.inv),
        "solve": functools.partial(_by_name, jnp.linalg.solve),
    }  # fmt: skip
    for names, lowering in ((ARG, _arg), (CONTRACTIONS, _contraction)):
        table |= {name: functools.partial(lowering, getattr(lax, name)) for name in names}
    table |= {name: functools.partial(_by_name, getattr(lax, f"{name}_p").bind) for name in WINDOW}
    for name, entry in TABLE.items():
        if name not in table and entry.family not in ("leaf", "control", "macro"):
            table[name] = functools.partial(_by_name, _RENAMED.get(name) or getattr(lax, name))
    return table


LOWER: dict[str, LoweringRule] = _table()


def array_bytes(x: Any) -> int:
    """Return the bytes of an array's elements."""
    return math.prod(x.shape) * x.dtype.itemsize
