"""A table objective for tests of the search: bytes, flops and a few facts about layouts, as on XLA:CPU one thread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import ELEMENTWISE, REDUCTIONS, WINDOWS
from superopt.ir.program import type_bytes

BYTES_PER_US = 9e3
FAR = {"exp": 6, "tanh": 6, "logistic": 8, "erf": 16, "rsqrt": 30, "sqrt": 10, "div": 4, "pow": 40, "log": 8}


def size(node: Node) -> int:
    """Elements of a node's result."""
    return math.prod(int(n) for n in node.shape)  # pyright: ignore[reportArgumentType]


class TableObjective:
    """Prices by a fixed table; counts what it is asked."""

    name = "table"
    version = "1"

    def __init__(self) -> None:
        self.kernels = 0
        self.calls = 0

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds per kernel."""
        self.calls += 1
        self.kernels += len(kernels)
        return np.array([1e-6 * self.microseconds(graph) for graph in kernels])

    def microseconds(self, graph: Graph) -> float:
        """One kernel: a launch, its traffic, its arithmetic."""
        total = 1.0 + sum(type_bytes(t) for out in graph.outputs for t in out.types) / BYTES_PER_US
        nodes = graph.nodes()
        readers: dict[Node, list[Node]] = {}
        for node in nodes:
            for x in node.inputs:
                readers.setdefault(x, []).append(node)
        for node in nodes:
            if node.op == "input":
                parts = [size(u) if u.op == "slice" else size(node) for u in readers.get(node, [])] or [0]
                total += 4 * max(parts) / BYTES_PER_US
            elif node.op == "transpose":
                total += 3 * type_bytes(node.type) / BYTES_PER_US
            else:
                total += self.arithmetic(node)
        return total

    def arithmetic(self, node: Node) -> float:
        """Microseconds of one op."""
        op, attrs = (node["op"], dict(node["attrs"])) if node.op == "macro" else (node.op, dict(node.attrs))
        if op in ELEMENTWISE:
            return FAR.get(op, 1) * size(node) / 4e3
        if op in REDUCTIONS:
            return size(node.inputs[0]) / 4e3
        if op in WINDOWS:
            work = size(node) * math.prod(attrs["window_dimensions"])
            return work / (4e3 if node.op == "macro" else 0.9e3)
        if op == "dot_general":
            return self.dot(node, attrs)
        if op == "conv_general_dilated":
            return self.conv(node, attrs)
        return 0.0

    def dot(self, node: Node, attrs: dict[str, Any]) -> float:
        """A product: slow when thin."""
        lhs, rhs = node.inputs
        (lc, _), (lb, _) = attrs["dimension_numbers"]
        k = math.prod(lhs.shape[i] for i in lc)  # pyright: ignore[reportArgumentType, reportCallIssue]
        batch = math.prod(lhs.shape[i] for i in lb)  # pyright: ignore[reportArgumentType, reportCallIssue]
        rows, columns = size(lhs) // max(1, k * batch), size(rhs) // max(1, k * batch)
        flops = 2.0 * batch * rows * columns * k
        if min(rows, columns) < 4:
            return 4 * (size(lhs) + size(rhs)) / 11e3
        return flops / (105e3 * min(1, min(rows, columns) / 16) * min(1, k / 32))

    def conv(self, node: Node, attrs: dict[str, Any]) -> float:
        """A convolution: better channels last, very slow by groups, a product or shifts as macros."""
        x, w = node.inputs
        _, rhs, out = attrs["dimension_numbers"]
        window = math.prod(w.shape[i] for i in rhs[2:])  # pyright: ignore[reportArgumentType, reportCallIssue]
        features = int(w.shape[rhs[1]])  # pyright: ignore[reportArgumentType]
        flops = 2.0 * size(node) * window * features
        last = out[1] == len(out) - 1
        moved = 0.0 if last else 4 * 2 * (size(x) + size(node)) / BYTES_PER_US
        if node.op == "macro" and attrs["feature_group_count"] > 1:
            return flops / (13e3 if last else 6e3)
        if attrs["feature_group_count"] > 1:
            return flops / (4e2 if features == 1 else 2.4e3) + moved
        if node.op == "macro":
            return flops / 105e3 + 4 * size(node) / w.shape[rhs[0]] * window * features / 2.4e3 + moved
        return flops / ((85e3 if window == 1 else 105e3) if last else 45e3 if window == 1 else 100e3) + moved
