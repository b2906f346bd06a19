"""Networks of the `onnx` package with stored weights; in the package, nodes fill them in as constants.

The weights are random with the right scale, so that an optimiser folds what it would fold in a trained network.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from superopt.frontends.onnx.frontend import light_model_path, load_model, randomize_weights

LIGHT = (
    "squeezenet", "shufflenet", "inception_v1", "resnet50", "inception_v2", "densenet121", "zfnet512", "bvlc_alexnet",
)  # fmt: skip
"""All but VGG-19, whose weights take half a gigabyte."""


def light(name: str, seed: int) -> onnx.ModelProto:
    """A network that ships with the `onnx` package, with random weights stored in it."""
    path = light_model_path(name)
    weights = randomize_weights(load_model(path), seed).params
    model = onnx.load(path)
    graph = model.graph
    nodes = [n for n in graph.node if not any(o in weights for o in n.output)]
    read = {x for n in nodes for x in n.input}
    kept = [t for t in graph.initializer if t.name not in weights and t.name in read]
    kept += [numpy_helper.from_array(np.asarray(w), k) for k, w in weights.items() if k in read]
    inputs = [i for i in graph.input if i.name in read and i.name not in {t.name for t in kept}]
    for field, items in ((graph.node, nodes), (graph.initializer, kept), (graph.input, inputs)):
        del field[:]
        field.extend(items)  # pyright: ignore[reportArgumentType]
    model.ir_version = 8  # before version 4 stored tensors are inputs as well
    return model


__all__ = ["LIGHT", "light"]
