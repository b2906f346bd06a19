"""One application of each op with attributes in which these change something, over symbolic sizes."""

from __future__ import annotations

from typing import Any

from superopt.ir.graph import Graph, Node, literal, make_input, mk, topological
from superopt.ir.index import symbol
from superopt.ir.ops.reduction import ARG, CUMULATIVE, REDUCE, WINDOW
from superopt.ir.resize import resize

OPAQUE: set[str] = set()
"""Ops that the validation of programs takes verbatim."""
WITHOUT_LOOPS = {"inverse", "solve"}
"""Ops of which no loop computes one element."""
UNWRITTEN = {"argmax", "argmin", "regroup", "barrier"}
"""Ops that no counterexample holds, because no rule does."""
COMMON_ROW = {"rev", "reshape", "regroup", "iota", "round", "convert_element_type"}
"""Ops without features of their own for the cost model."""
SIZES = ("m", "n", "k")
M, N, K = map(symbol, SIZES)


def _attrs(op: str) -> dict[str, Any]:
    if op in REDUCE:
        return {"axes": (1,)}
    if op in ARG:
        return {"axes": (1,), "index_dtype": "int32"}
    if op in CUMULATIVE:
        return {"axis": 1}
    if op in WINDOW:
        return {"window_dimensions": (1, 3), "window_strides": (1, 2), "padding": ((0, 0), (1, 2))}
    return {
        "broadcast_in_dim": {"shape": (M, N, K), "broadcast_dimensions": (0, 1)},
        "transpose": {"permutation": (1, 0)},
        "reshape": {"new_sizes": (M * N,)},
        "regroup": {"groups": (((1, 0), (M * N,)),)},
        "rev": {"dimensions": (1,)},
        "slice": {"start_indices": (0, 1), "limit_indices": (M, N), "strides": (1, 2)},
        "pad": {"padding_config": ((0, 0, 0), (1, 2, 0))},
        "concatenate": {"dimension": 1},
        "iota": {"shape": (M, N), "dimension": 1},
        "round": {"rounding_method": 1},
        "integer_pow": {"y": 3},
        "convert_element_type": {"new_dtype": "int32"},
        "dynamic_slice": {"slice_sizes": (M, 2)},
        "dynamic_update_slice": {},
        "inverse": {},
        "solve": {},
        "segment_sum": {"segments": M},
        "gather": {
            "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "slice_sizes": (1, N),
        },
        "dot_general": {"dimension_numbers": (((1,), (0,)), ((), ()))},
        "conv_general_dilated": {"window_strides": (1, 2), "padding": ((1, 1), (0, 2))},
    }[op]  # fmt: skip


def _operands(op: str) -> list[Node]:
    x = make_input("x", (M, N), "bool" if op in ("reduce_and", "reduce_or", "reduce_xor") else "float32")
    i, j = make_input("i", (), "int32"), make_input("j", (), "int32")
    return {
        "iota": [],
        "pad": [x, literal(1.5)],
        "concatenate": [x, make_input("y", (M, K))],
        "dynamic_slice": [x, i, j],
        "dynamic_update_slice": [x, make_input("y", (M, 2)), i, j],
        "gather": [x, make_input("i", (K, 1), "int32")],
        "segment_sum": [make_input("x", (K, N)), make_input("i", (K,), "int32")],
        "dot_general": [x, make_input("y", (N, K))],
        "inverse": [make_input("x", (N, N))],
        "solve": [make_input("x", (N, N)), make_input("y", (N, K))],
        "conv_general_dilated": [make_input("x", (2, M, N, N)), make_input("y", (K, M, 3, 3))],
    }.get(op, [x])


def symbolic(op: str) -> Graph:
    """The application over symbolic sizes."""
    node = mk(op, *_operands(op), **_attrs(op))
    return Graph(tuple(n for n in topological([node]) if n.op == "input"), (node,))


def concrete(op: str) -> Graph:
    """The application at small sizes."""
    return resize(symbolic(op), {s: n for size, n in ((M, 5), (N, 4), (K, 3)) for s in size.symbols})
