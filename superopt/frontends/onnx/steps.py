"""Values of a graph whose last digit decides: those that a rounding, a comparison or a place reads.

A quotient may be off in its last digit (XLA multiplies by the reciprocal of a divisor that is broadcast), and nobody
notices unless a step follows it: `Floor(49 / 49)` is then 0.  A value decides where nodes lead from it to a step which
give the same in ONNX Runtime to the last digit: elementwise arithmetic and whatever only moves values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx

from superopt.frontends.onnx.read import free_names, subgraphs

Functions = Mapping[tuple[str, str, str], onnx.FunctionProto]

STEPS = frozenset({
    "Round", "Floor", "Ceil", "Sign", "QuantizeLinear", "DynamicQuantizeLinear", "Mod", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "ArgMax", "ArgMin", "TopK", "Hardmax", "Unique", "BitCast",
})  # fmt: skip
"""Operators whose results jump."""

_KEEPS = frozenset({
    "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Min", "Max", "Sum", "Mean", "Clip", "Relu",
    "LeakyRelu", "PRelu", "ThresholdedRelu", "Where", "Identity", "Dropout", "Reshape", "Transpose", "Squeeze",
    "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "Gather", "GatherND", "GatherElements", "ScatterND",
    "ScatterElements", "Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "MaxPool",
    "GlobalMaxPool", "ReduceMax", "ReduceMin", "SequenceConstruct", "SequenceInsert", "SequenceAt",
    "ConcatFromSequence", "SplitToSequence",
})  # fmt: skip
"""Operators that give the same everywhere where they are given the same."""

_CASTS = ("Cast", "CastLike")
_FLOATS = frozenset({
    onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16,
})  # fmt: skip


def deciding(nodes: Sequence[onnx.NodeProto], wanted: Collection[str], functions: Functions) -> frozenset[str]:
    """Names of the values whose last digit decides.

    Args:
        nodes: of a graph or the body of a function, each behind those that it reads.
        wanted: those of its results that decide outside of it.
        functions: of the model.
    """
    needed = set(wanted)
    for node in reversed(nodes):
        needed |= _read(node, needed, functions)
    return frozenset(needed)


def _read(node: onnx.NodeProto, found: Collection[str], functions: Functions) -> set[str]:
    """Those operands of a node that decide."""
    bodies = subgraphs(node)
    if bodies:
        inner = [
            deciding(body.node, [o.name for o in body.output], functions) & free_names(body) for body in bodies
        ]  # what a step of a loop gives, the next may decide by
        return {*node.input, *(name for names in inner for name in names)}
    function = functions.get((node.domain, node.op_type, node.overload))
    if function is not None:
        inner = deciding(function.node, inside(function.output, node.output, found), functions)
        return {given for formal, given in zip(function.input, node.input, strict=False) if formal in inner}
    kind = node.op_type
    steps = kind in STEPS or (kind in _CASTS and not any(a.name == "to" and a.i in _FLOATS for a in node.attribute))
    keeps = (kind in _KEEPS or kind in _CASTS) and any(name in found for name in node.output)
    return set(node.input) if steps or keeps else set()


def inside(formals: Sequence[str], names: Sequence[str], found: Collection[str]) -> list[str]:
    """Results of a function that are outside of it among what is found there."""
    return [formal for formal, name in zip(formals, names, strict=False) if name in found]
