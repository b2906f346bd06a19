"""The ONNX definition of a node: attribute values and defaults, legal calls, function bodies.

Many operators are defined by a body of simpler ones, some of them by a body that depends on the types at the call;
both come from the schemas of the `onnx` package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper

from superopt.errors import InputError
from superopt.frontends.onnx.data import DataFolder, Within, sparse_array, tensor_array
from superopt.frontends.onnx.read import label


def attribute(attr: AttributeProto, folder: DataFolder | None, within: Within | None = None) -> Any:
    """Python value of an attribute (tensors as arrays, graphs as messages)."""
    kind = attr.type
    if kind == AttributeProto.TENSOR:
        return tensor_array(attr.t, folder, f"attribute {attr.name!r}", within)
    if kind == AttributeProto.SPARSE_TENSOR:
        return sparse_array(attr.sparse_tensor, folder, f"attribute {attr.name!r}")
    value = helper.get_attribute_value(attr)
    if kind == AttributeProto.STRING:
        return value.decode("utf-8", "replace")
    if kind == AttributeProto.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if kind in (AttributeProto.FLOATS, AttributeProto.INTS) else value


_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


@functools.lru_cache(maxsize=4096)
def schema_of(name: str, opset: int, domain: str) -> Any:
    """The ONNX definition of an op at an opset, or None."""
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


@functools.lru_cache(maxsize=4096)
def defaults(name: str, opset: int, domain: str) -> tuple[tuple[str, Any], ...]:
    """Attributes with their defaults, where an op has any."""
    schema = schema_of(name, opset, domain)
    values: list[tuple[str, Any]] = []
    for key, attr in schema.attributes.items():
        if attr.default_value.type != AttributeProto.UNDEFINED and attr.default_value.name:
            values.append((key, attribute(attr.default_value, None)))
    return tuple(values)


def check_call(node: onnx.NodeProto, schema: Any, values: Sequence[Any]) -> None:
    """Refuse a node whose inputs or attributes are not in its definition.

    Raises:
        InputError: there are too few or many inputs, or an unknown, missing or wrong attribute.
    """
    if not schema.min_input <= len(node.input) <= schema.max_input:
        raise InputError(
            f"{label(node)} has {len(node.input)} inputs; {schema.min_input} to {schema.max_input} are allowed"
        )
    for i, value in enumerate(values):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        if isinstance(value, list) and not any(kind.startswith(("seq(", "optional(")) for kind in formal.types):
            raise InputError(f"{label(node)} does not accept a sequence as {formal.name!r}")
        if value is None and formal.option != _OPTIONAL and not node.op_type.startswith("Optional"):
            raise InputError(f"{label(node)} lacks its input {formal.name!r}")
    given = {a.name for a in node.attribute}
    for name in given:
        if name not in schema.attributes:
            # opsets before 7 and exporters leave these behind; they carry no meaning
            if name in ("consumed_inputs", "doc_string"):
                continue
            raise InputError(f"{label(node)} has no attribute {name!r} in opset {schema.since_version}")
        kind = next(a.type for a in node.attribute if a.name == name)
        if int(kind) != int(schema.attributes[name].type.value):
            raise InputError(f"{label(node)}: attribute {name!r} is of the wrong kind")
    for name, formal in schema.attributes.items():
        if formal.required and name not in given:
            raise InputError(f"{label(node)} lacks the attribute {name!r}")
    check_ranges(node)


# integers that definitions call sizes, counts and steps without saying that the type of the attribute allows others
_POSITIVE = frozenset({
    "strides", "dilations", "kernel_shape", "group", "offset_group", "blocksize", "num_groups", "num_outputs", "size",
    "num_heads", "q_num_heads", "kv_num_heads", "hidden_size", "output_height", "output_width", "num_scan_inputs", "p",
})  # fmt: skip
_NOT_NEGATIVE = frozenset({"output_padding", "output_shape", "block_size", "batch_dims", "sampling_ratio"})
_NOT_NEGATIVE_PADS = frozenset({
    "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv", "MaxPool", "AveragePool", "LpPool",
    "MaxUnpool", "Col2Im",
})  # fmt: skip
MAX_EXTENT = 2**31 - 1  # largest number of positions of an axis


def check_ranges(node: onnx.NodeProto) -> None:
    """Refuse sizes, counts and steps that no operator can have.

    Raises:
        InputError: an attribute is out of its range.
    """
    for attr in node.attribute:
        if attr.type not in (AttributeProto.INT, AttributeProto.INTS):
            continue
        values = [attr.i] if attr.type == AttributeProto.INT else list(attr.ints)
        pads = attr.name == "pads" and node.op_type in _NOT_NEGATIVE_PADS
        if attr.name in _POSITIVE:
            low = 1
        elif attr.name in _NOT_NEGATIVE or pads:
            low = 0
        else:
            continue
        if any(not low <= v <= MAX_EXTENT for v in values):
            raise InputError(
                f"{label(node)}: {attr.name} is {values if attr.type == AttributeProto.INTS else attr.i}",
                hint=f"the definition takes {low} to {MAX_EXTENT}",
            )


def check_trips(node: onnx.NodeProto, count: int, outside: int, most: int) -> None:
    """Refuse a loop that no condition ends before more steps than a user would wait for.

    Args:
        node: the loop.
        count: its steps.
        outside: steps of the loops around it, multiplied.
        most: largest number of steps that is accepted.

    Raises:
        InputError: there are more.
    """
    body = next((a.g for a in node.attribute if a.name == "body"), onnx.GraphProto())
    ends = (len(node.input) > 1 and bool(node.input[1])) or not _goes_on(body)
    if not ends and count * outside > most:
        raise InputError(
            f"a loop of {count} steps{f' inside of {outside}' if outside > 1 else ''}",
            hint=f"at most {most} are accepted where no condition ends it",
        )


def _goes_on(body: onnx.GraphProto) -> bool:
    """Whether the condition that a body returns is the one that it received, or a constant."""
    ends = body.output[0].name if body.output else ""
    if len(body.input) > 1 and ends == body.input[1].name:
        return True
    if any(t.name == ends for t in body.initializer):
        return True
    maker = next((n for n in body.node if ends in n.output), None)
    while maker is not None and maker.op_type in ("Identity", "Cast") and maker.input:
        ends = maker.input[0]
        if len(body.input) > 1 and ends == body.input[1].name:
            return True
        maker = next((n for n in body.node if ends in n.output), None)
    return maker is not None and maker.op_type == "Constant"


def function_body(node: onnx.NodeProto, schema: Any, opset: int, values: Sequence[Any]) -> onnx.FunctionProto | None:
    """The body that defines an op for operands of these types, or None."""
    if schema.has_function:
        version = _version(schema.function_opset_versions, opset)
        raw = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = _version(schema.context_dependent_function_opset_versions, opset)
        types = [_type_proto(v).SerializeToString() for v in values]
        raw = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    else:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(raw) if isinstance(raw, bytes) else body.CopyFrom(raw)
    if not body.opset_import:
        body.opset_import.append(helper.make_operatorsetid("", version))
    return body


def _version(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_proto(value: Any) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type_proto(value[0]) if value else onnx.TypeProto())
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)


def substitute(node: onnx.NodeProto, actual: Mapping[str, AttributeProto]) -> onnx.NodeProto:
    """The node with references to the function's attributes replaced by their values."""
    if not any(a.ref_attr_name or a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        return node
    new = onnx.NodeProto()
    new.CopyFrom(node)
    del new.attribute[:]
    for attr in node.attribute:
        if attr.ref_attr_name:
            if attr.ref_attr_name in actual:
                new.attribute.add().CopyFrom(actual[attr.ref_attr_name])
                new.attribute[-1].name = attr.name
        else:
            copy = new.attribute.add()
            copy.CopyFrom(attr)
            for graph in (copy.g, *copy.graphs) if copy.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) else ():
                nodes = [substitute(n, actual) for n in graph.node]
                del graph.node[:]
                graph.node.extend(nodes)
    return new
