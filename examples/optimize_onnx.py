"""Optimise an ONNX model and save the result, to be loaded again without ONNX.

    python examples/optimize_onnx.py [model.onnx]

Without an argument a small network is made on the spot: a convolution, a batch norm and a rectifier, twice.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import superopt


def small_network() -> onnx.ModelProto:
    """Two blocks of convolution, batch norm and rectifier on a 16x16 image."""
    rng = np.random.default_rng(0)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def stored(name: str, array: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    value = "image"
    for i, (channels, features) in enumerate(((3, 16), (16, 16))):
        kernel = stored(f"kernel{i}", rng.standard_normal((features, channels, 3, 3)) / 5)
        norm = [stored(f"{name}{i}", rng.random(features) + 0.5) for name in ("scale", "shift", "mean", "variance")]
        nodes.append(helper.make_node("Conv", [value, kernel], [f"conv{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("BatchNormalization", [f"conv{i}", *norm], [f"norm{i}"]))
        nodes.append(helper.make_node("Relu", [f"norm{i}"], [f"relu{i}"]))
        value = f"relu{i}"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 16, 16])
    result = helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 16, 16, 16])
    graph = helper.make_graph(nodes, "small", [image], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main(path: str | None = None) -> None:
    """Optimise, call, save, load."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = str(Path(folder) / "small.onnx")
            onnx.save(small_network(), path)
        # the initializers of a model are frozen: the batch norms disappear into the kernels
        fast = superopt.optimize(path, budget="500steps", deterministic=True, store=False)
        print(fast.report)
        inputs = fast.imported.live_values
        results = fast(*inputs)
        saved = fast.save(Path(folder) / "small.superopt")
        for got, want in zip(superopt.load(saved)(*inputs), results, strict=True):
            np.testing.assert_array_equal(got, want)
        print("saved, loaded and called again: equal results")


if __name__ == "__main__":
    main(*sys.argv[1:2])
