"""A counterexample as a test to paste: both sides in `jax.lax`, the arrays, and the assertion that fails.

The sides are the graphs that the reference interpreter evaluated, written out with the `lax` functions that the ops are
named after.  Where the right side cannot be built, its last line is the op that refuses its operands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rewrites.build.target import IRTarget
from rewrites.build.terms import Builder
from rewrites.language.names import OPERATORS
from rewrites.language.term import Rule
from rewrites.lift.generate import Instance
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.reduction import REDUCE
from superopt.ir.ops.table import CONVOLUTIONS, ELEMENTWISE, PREFIXES, PRODUCTS, TABLE
from superopt.ir.scalar import LOGICAL

WIDTH = 88
SHOWN = 1e-5
"""Relative tolerance of the tests to paste."""
_FOLDS = {"sum": ("0.0", "lax.add"), "max": ("-jnp.inf", "lax.max"), "min": ("jnp.inf", "lax.min")}


class _Refused(Exception):
    """Raised with the op that refuses its operands."""

    def __init__(self, op: str, children: Sequence[Node], attrs: Mapping[str, Any]) -> None:
        super().__init__(op)
        self.op, self.children, self.attrs = op, tuple(children), attrs


class _Strict(IRTarget):
    """A target for IR nodes that reports the op that refuses its operands."""

    def mk(self, op: str, /, *children: Node, **attrs: Any) -> Node:
        """The node `op{attrs}(children)`.

        Raises:
            _Refused: the op refuses its operands.
        """
        try:
            return super().mk(op, *children, **attrs)
        except SuperoptError as error:
            raise _Refused(op, children, attrs) from error


def snippet(rule: Rule, made: Instance | None, values: Mapping[str, np.ndarray], root: int, cause: str) -> str:
    """The test as Python text; empty where a side holds an op without a written form."""
    if made is None:
        return ""
    names = {name: identifier(name) for name in made.inputs}
    nodes = {node: names[name] for name, node in made.inputs.items()}
    try:
        left = body(nodes, made.lhs[root])
        right = body(nodes, made.rhs[root]) if made.rhs else _failing(rule, made, root, nodes)
    except KeyError:
        return ""
    return written(rule.name, names, values, left, right, cause)


def written(
    title: str,
    names: Mapping[str, str],
    values: Mapping[str, np.ndarray],
    left: Sequence[str],
    right: Sequence[str],
    cause: str = "",
    tolerance: float = SHOWN,
    wide: bool = False,
) -> str:
    """The test from the bodies of both sides.

    Args:
        title: name of the test.
        names: input -> its name as a parameter.
        values: input -> array.
        left, right: lines of the two functions.
        cause: which side fails and why, if one does: "the right side has the shape [3], not [2]".
        tolerance: tolerance of the assertion; 0 for equality.
        wide: whether the test enables 64-bit types.
    """
    arguments = ", ".join(names.values())
    both = f"right({arguments}), left({arguments})"
    near = f"assert_allclose({both}, rtol={tolerance:g}, atol={tolerance:g})"
    arrays = [f"    {names[k]} = {_array(np.asarray(values[k]))}" for k in names]
    said = [f"    # {cause}"] if cause else []
    switch = ["", 'jax.config.update("jax_enable_x64", True)'] if wide else []
    return "\n".join(
        [
            *(["import jax"] if wide else []),
            "import jax.numpy as jnp",
            "import numpy as np",
            "from jax import lax",
            *switch,
            "",
            "",
            f"def left({arguments}):",
            *left,
            "",
            "",
            f"def right({arguments}):",
            *right,
            "",
            "",
            f"def test_{re.sub(r'[^0-9A-Za-z_]', '_', title)}():",
            *arrays,
            *said,
            f"    np.testing.{near if tolerance else f'assert_array_equal({both})'}",
            "",
        ]
    )


def identifier(name: str) -> str:
    """The name of an input as a parameter."""
    return name if name.isidentifier() and name not in ("jnp", "np", "lax", "left", "right") else f"x_{name}"


def _failing(rule: Rule, made: Instance, root: int, nodes: Mapping[Node, str]) -> list[str]:
    """The right side up to the op that refuses its operands; the whole side where only its shape is wrong."""
    builder = Builder(made.match, _Strict())
    try:
        value, _ = builder.go(rule.rhs[root], made.layouts[root], made.env)
    except _Refused as refused:
        table = dict(nodes)
        lines = _lines(table, refused.children)
        operands = [table[x] for x in refused.children]
        return [*lines, f"    return {_call(refused.op, refused.attrs, operands, refused.children)}"]
    except (SuperoptError, ZeroDivisionError, KeyError) as error:
        return [f"    raise ValueError({str(error)!r})"]
    return body(nodes, value)


def body(nodes: Mapping[Node, str], root: Node) -> list[str]:
    """A graph as the lines of a function.

    Raises:
        KeyError: an op has no written form.
    """
    table = dict(nodes)
    lines = _lines(table, (root,))
    if lines and lines[-1].startswith(f"    {table[root]} = "):
        return [*lines[:-1], f"    return {lines[-1].partition(' = ')[2]}"]
    return [*lines, f"    return {_bare(table[root])}"]


def _lines(table: dict[Node, str], roots: Sequence[Node]) -> list[str]:
    """Assignments for the nodes of several results; a short node with one reader is inlined there."""
    graph = Graph(tuple(n for n in table if n.op == "input"), tuple(roots))
    readers = Counter(x for node in graph.nodes() for x in node.inputs)
    lines: list[str] = []
    for node in graph.nodes():
        if node in table:
            continue
        text = _call(node.op, dict(node.attrs), [table[x] for x in node.inputs], node.inputs, node)
        if node.op == "literal" or (readers[node] <= 1 and len(text) <= WIDTH // 2):
            table[node] = text
            continue
        lines.append(f"    t{len(lines)} = {_bare(text)}")
        table[node] = f"t{len(lines) - 1}"
    return lines


def _bare(text: str) -> str:
    """The text without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def _array(x: np.ndarray) -> str:
    kind = "" if x.dtype.name in ("float64", "bool") else f", jnp.{x.dtype.name}"
    if x.size == 0:
        return f"jnp.zeros({x.shape}{', bool' if x.dtype.name == 'bool' else kind})"
    return f"jnp.array({x.tolist()}{kind})"


def _number(value: Any, dtype: str) -> str:
    if dtype == "bool":
        return str(bool(value))
    if dtype.startswith(("int", "uint")):
        return f"jnp.{dtype}({int(value)})"
    if value != value or value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}jnp.{'nan' if value != value else 'inf'}"
    return repr(float(value)) if value >= 0 else f"({float(value)!r})"


def _call(
    op: str, attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node], node: Node | None = None
) -> str:
    """One op as an expression."""
    if op == "literal":
        return _number(attrs["value"], attrs["dtype"])
    integer = bool(operands) and operands[0].dtype not in ("float64", "float32", "bool")
    if op in OPERATORS and not (op == "div" and integer) and not _both_literal(operands):
        return f"({xs[0]} {OPERATORS[op]} {xs[1]})"
    scalars = [f"jnp.asarray({_bare(x)})" if y.op == "literal" else x for x, y in zip(xs, operands, strict=True)]
    if op in _WRITTEN:
        return _WRITTEN[op](attrs, scalars if op != "broadcast_in_dim" else xs, operands)
    args = [_bare(x) for x in scalars]
    if op.startswith("reduce_window_"):
        start, fold = _FOLDS[op.rpartition("_")[2]]
        rest = (attrs["window_dimensions"], attrs["window_strides"], attrs["padding"])
        return f"lax.reduce_window({args[0]}, {start}, {fold}, {', '.join(map(str, rest))})"
    if op in LOGICAL:
        return f"lax.bitwise_{op}({', '.join(args)})"
    if op not in _NAMED:
        raise KeyError(op)
    told = [str(attrs[name]) for name in _NAMED[op]]
    return f"lax.{op}({', '.join([*args, *told])})"


def _both_literal(operands: Sequence[Node]) -> bool:
    return all(x.op == "literal" for x in operands)


def _broadcast(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    if operands[0].op == "literal":
        return f"jnp.full({attrs['shape']}, {_bare(xs[0])})"
    return f"lax.broadcast_in_dim({_bare(xs[0])}, {attrs['shape']}, {attrs['broadcast_dimensions']})"


def _convolution(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    parts = [_bare(xs[0]), _bare(xs[1]), str(attrs["window_strides"]), str(attrs["padding"])]
    for name in ("lhs_dilation", "rhs_dilation"):
        if any(d != 1 for d in attrs[name]):
            parts.append(f"{name}={attrs[name]}")
    parts.append(f"dimension_numbers=lax.ConvDimensionNumbers{tuple(attrs['dimension_numbers'])}")
    if attrs.get("feature_group_count", 1) != 1:
        parts.append(f"feature_group_count={attrs['feature_group_count']}")
    return f"lax.conv_general_dilated({', '.join(parts)})"


def _gather(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    names = ["offset_dims", "collapsed_slice_dims", "start_index_map"]
    names += ["operand_batching_dims", "start_indices_batching_dims"] if attrs["operand_batching_dims"] else []
    numbers = f"lax.GatherDimensionNumbers({', '.join(f'{n}={attrs[n]}' for n in names)})"
    return f'lax.gather({_bare(xs[0])}, {_bare(xs[1])}, {numbers}, {attrs["slice_sizes"]}, mode="{attrs["mode"]}")'


def _segments(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    (rows, segments), lead = map(_bare, xs), len(operands[1].shape)
    shape = (attrs["segments"], *operands[0].shape[lead:])
    numbers = f"lax.ScatterDimensionNumbers({tuple(range(lead, len(operands[0].shape)))}, (0,), (0,))"
    empty = f"jnp.zeros({shape}, {rows}.dtype)"
    return f'lax.scatter_add({empty}, {segments}[..., None], {rows}, {numbers}, mode="drop")'


def _starts(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    bare = [_bare(x) for x in xs]
    return (
        f"lax.dynamic_slice({bare[0]}, ({', '.join(bare[1:])},), {attrs['slice_sizes']}, allow_negative_indices=False)"
    )


def _update(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    bare = [_bare(x) for x in xs]
    return f"lax.dynamic_update_slice({bare[0]}, {bare[1]}, ({', '.join(bare[2:])},), allow_negative_indices=False)"


def _concatenate(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    return f"lax.concatenate([{', '.join(map(_bare, xs))}], {attrs['dimension']})"


def _iota(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    kind = "float" if attrs["dtype"] == "float64" else f"jnp.{attrs['dtype']}"
    return f"lax.broadcasted_iota({kind}, {attrs['shape']}, {attrs['dimension']})"


def _convert(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
    kind = "float" if attrs["new_dtype"] == "float64" else f"jnp.{attrs['new_dtype']}"
    return f"{xs[0]}.astype({kind})"


def _cumulative(op: str) -> Callable[..., str]:
    def written(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
        return f"lax.{op}({_bare(xs[0])}, {attrs['axis']}{', reverse=True' if attrs['reverse'] else ''})"

    return written


def _linear(op: str) -> Callable[..., str]:
    def written(attrs: Mapping[str, Any], xs: Sequence[str], operands: Sequence[Node]) -> str:
        return f"jnp.linalg.{op}({', '.join(map(_bare, xs))})"

    return written


_WRITTEN: dict[str, Callable[..., str]] = {
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    "gather": _gather,
    "segment_sum": _segments,
    "dynamic_slice": _starts,
    "dynamic_update_slice": _update,
    "concatenate": _concatenate,
    "iota": _iota,
    "inverse": _linear("inv"),
    "solve": _linear("solve"),
    "convert_element_type": _convert,
    **{op: _cumulative(op) for op in PREFIXES},
}
_NAMED: dict[str, tuple[str, ...]] = {
    **{op: () for op in ELEMENTWISE - LOGICAL if not TABLE[op].attrs},
    **dict.fromkeys(REDUCE, ("axes",)),
    "integer_pow": ("y",),
    "round": ("rounding_method",),
    **dict.fromkeys(PRODUCTS, ("dimension_numbers",)),
    "reshape": ("new_sizes",),
    "transpose": ("permutation",),
    "rev": ("dimensions",),
    "slice": ("start_indices", "limit_indices", "strides"),
    "pad": ("padding_config",),
}
"""lax functions that take operands and then attributes by position, in this order."""
