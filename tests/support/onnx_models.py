"""Small ONNX models for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = Sequence[int | str | None]


def info(name: str, shape: Shape, dtype: Any = np.float32) -> onnx.ValueInfoProto:
    """A typed input or output."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """A node; names separated by spaces, `-` for none."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, domain=attrs.pop("domain", ""), **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    stored: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 20,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of one graph."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (stored or {}).items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(f.domain, 1) for f in functions]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def mlp(batch: int | str = 2) -> onnx.ModelProto:
    """`relu(x w + b)` with stored weights."""
    rng = np.random.default_rng(0)
    stored = {"w": rng.standard_normal((4, 3), np.float32), "b": rng.standard_normal(3, np.float32)}
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "z"), node("Relu", "z", "y")]
    return model(nodes, [info("x", [batch, 4])], [info("y", [batch, 3])], stored)
