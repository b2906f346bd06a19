"""ONNX frontend: read a model, make it a JAX function, import that as a graph.

Both frontends share one path: an ONNX model becomes a function of `jax.numpy` and `jax.lax` calls by the op table in
`onnx_ops`, and the JAX frontend traces that function.  Initializers are frozen inputs under their own names; names of
inputs and outputs are kept.
"""

from __future__ import annotations

from superopt.frontends.onnx_eval import StaticValueError, UnsupportedOpError
from superopt.frontends.onnx_model import OnnxModel, TensorInfo, check_arguments, load_model
from superopt.frontends.onnx_weights import light_model_path, random_inputs, randomize_weights

__all__ = [
    "OnnxModel",
    "StaticValueError",
    "TensorInfo",
    "UnsupportedOpError",
    "check_arguments",
    "light_model_path",
    "load_model",
    "random_inputs",
    "randomize_weights",
]
