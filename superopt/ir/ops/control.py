"""Leaves, control flow, macros and opaque nodes: the entries without a value at one index of their own.

    scan    body: (consts, carry, x[t]) -> (carry, y[t]), t = 0 .. length-1 (downwards when `reverse`). Operands are
            consts, initial carries, xs; results the last carries, then the stacked ys.
    while   state = body(body consts, state) as long as cond(cond consts, state). Operands are cond consts, body consts,
            initial state.
    cond    branches[clamp(index)](operands); the first operand is the index (bool: False, True).
    opaque  an operation of another library under a key, kept verbatim; declares its result types.
    result  one result of a node that has several.
    macro   a lowering choice: value and type are those of `op{attrs}` on the same operands.

Bodies are `Graph`s in the attributes; they see nothing of the outside but their operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from superopt.errors import ShapeError
from superopt.ir.graph import Graph
from superopt.ir.ops.record import (
    Attr,
    Op,
    Types,
    Values,
    define,
    dtype,
    flag,
    is_float,
    is_integer,
    require,
    show,
    size,
    sizes,
    text,
)
from superopt.ir.types import TensorType

TABLE: dict[str, Op] = {}
_FLOATS: dict[str, Callable[[float], Any]] = {
    "float16": np.float16, "float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip


# ---- leaves


def scalar_value(value: Any, name: str) -> bool | int | float:
    """Return a Python scalar that this dtype can hold; floats are rounded to it.

    Raises:
        ShapeError: the value is not a number of that kind, or out of range.
    """
    if name == "bool":
        return bool(value)
    if is_float(name):
        with np.errstate(over="ignore"):
            return float(_FLOATS[name](float(value)))
    if is_integer(name):
        number = int(value)
        info = np.iinfo(name)
        if number != value or not info.min <= number <= info.max:
            raise ShapeError(f"{value!r} is not a value of {name} ({info.min} to {info.max})")
        return number
    raise ShapeError(f"a literal of dtype {name} is not supported")


def _literal_complete(attrs: dict[str, Any]) -> None:
    attrs["value"] = scalar_value(attrs["value"], attrs["dtype"])


def _any(value: Any) -> Any:
    return value


def _literal_rule(types: Types, attrs: Values) -> TensorType:
    return TensorType((), attrs["dtype"])


def _input_rule(types: Types, attrs: Values) -> TensorType:
    for n in attrs["shape"]:
        require(n >= 0, f"input {attrs['name']!r} has a negative size", (), shape=attrs["shape"])
    return TensorType(attrs["shape"], attrs["dtype"])


# ---- control flow


def graph(value: Any) -> Graph:
    """Canonical form of a body of control flow."""
    if not isinstance(value, Graph):
        raise ShapeError(f"expected a Graph, got {type(value).__name__}")
    return value


def graphs(value: Any) -> tuple[Graph, ...]:
    """Canonical form of several bodies."""
    return tuple([graph(v) for v in value])


def _parameters(body: Graph) -> Types:
    return tuple([n.type for n in body.inputs])


def _results(body: Graph) -> Types:
    return tuple([n.type for n in body.outputs])


def _agree(what: str, wanted: Types, got: Types) -> None:
    if wanted != got:
        raise ShapeError(f"{what}: expected ({show(wanted)}), got ({show(got)})")


def _scan_rule(types: Types, attrs: Values) -> Types:
    body, consts, carries = attrs["body"], attrs["num_consts"], attrs["num_carry"]
    if consts + carries > len(types):
        raise ShapeError(f"scan has {consts} consts and {carries} carries, but only ({show(types)})")
    length = attrs["length"]
    for t in types[consts + carries :]:
        if not t.shape or t.shape[0] != length:
            raise ShapeError(f"scan over {length} steps needs xs with that leading size; got {t}")
    rows = tuple([TensorType(t.shape[1:], t.dtype) for t in types[consts + carries :]])
    _agree("operands of the scan's body", _parameters(body), types[: consts + carries] + rows)
    results = _results(body)
    _agree("carries that the scan's body gives", types[consts : consts + carries], results[:carries])
    return results[:carries] + tuple([TensorType((length, *t.shape), t.dtype) for t in results[carries:]])


def _while_rule(types: Types, attrs: Values) -> Types:
    cond, body = attrs["cond"], attrs["body"]
    of_cond, of_body = attrs["cond_nconsts"], attrs["body_nconsts"]
    state: Types = types[of_cond + of_body :]
    _agree("operands of the while's condition", _parameters(cond), types[:of_cond] + state)
    _agree("operands of the while's body", _parameters(body), types[of_cond : of_cond + of_body] + state)
    _agree("result of the while's condition", (TensorType((), "bool"),), _results(cond))
    _agree("results of the while's body", state, _results(body))
    return state


def _cond_rule(types: Types, attrs: Values) -> Types:
    branches = attrs["branches"]
    if not branches or not types:
        raise ShapeError(f"cond needs an index and at least one branch; got {len(branches)} and ({show(types)})")
    index, operands = types[0], types[1:]
    require(index.shape == () and index.dtype in ("int32", "bool"), "cond needs a scalar int32 or bool index", types)
    for branch in branches:
        _agree("operands of a branch", _parameters(branch), operands)
        _agree("results of a branch", _results(branches[0]), _results(branch))
    return _results(branches[0])


def _result_types(value: Any) -> Types:
    return tuple([v if isinstance(v, TensorType) else TensorType(sizes(v[0]), dtype(v[1])) for v in value])


def _opaque_rule(types: Types, attrs: Values) -> Types:
    return attrs["result_types"]


def _result_rule(types: Types, attrs: Values) -> TensorType:
    """Return the types of the result; the given types are all results of the operand."""
    index: int = attrs["index"]
    result = dict(enumerate(types)).get(index)
    if result is None:
        raise ShapeError(f"result {index} of an op with {len(types)} results ({show(types)})")
    return result


_FAMILY = "control"
define(
    TABLE, "input", "leaf", 0, _input_rule, None,
    Attr("name", text), Attr("shape", sizes), Attr("dtype", dtype, "float32"), Attr("frozen", flag, False),
)  # fmt: skip
define(
    TABLE, "literal", "leaf", 0, _literal_rule, None,
    Attr("value", _any), Attr("dtype", dtype, "float32"), complete=_literal_complete,
)  # fmt: skip
define(
    TABLE, "scan", _FAMILY, None, _scan_rule, None,
    Attr("body", graph), Attr("num_consts", size, 0), Attr("num_carry", size), Attr("length", size),
    Attr("reverse", flag, False), Attr("unroll", size, 1),
)  # fmt: skip
define(
    TABLE, "while", _FAMILY, None, _while_rule, None,
    Attr("cond", graph), Attr("body", graph), Attr("cond_nconsts", size, 0), Attr("body_nconsts", size, 0),
)  # fmt: skip
define(TABLE, "cond", _FAMILY, None, _cond_rule, None, Attr("branches", graphs))
define(
    TABLE, "opaque", _FAMILY, None, _opaque_rule, None,
    Attr("primitive", text), Attr("params_key", text), Attr("result_types", _result_types),
)  # fmt: skip
define(TABLE, "result", _FAMILY, None, _result_rule, None, Attr("index", size))
