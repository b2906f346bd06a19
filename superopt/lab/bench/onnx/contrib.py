"""Cases of `com.microsoft` operators for the suite `onnx-types`: one model each, with values drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

OptionalArrays = list[np.ndarray | None]
_RNG = np.random.default_rng(5)


def _f(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    return (_RNG.standard_normal(shape) * scale).astype(dtype)


def _q(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    info = np.iinfo(dtype)
    return _RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def _s(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(value, dtype)


def model_of(
    op: str, arrays: OptionalArrays, outputs: int = 1, domain: str = "com.microsoft", **attrs: Any
) -> onnx.ModelProto:
    """A model of one node whose output types are left open."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    graph = helper.make_graph([node], "case", inputs, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def contrib_cases() -> Iterator[tuple[str, str, onnx.ModelProto, dict[str, Any]]]:
    """Operator, element type, model and inputs of every case."""
    for op, arrays, options in _quantised():
        yield _case(op, arrays, options)
    for op, arrays, options in _products():
        yield _case(op, arrays, options)
    for op, arrays, options in _transformers():
        yield _case(op, arrays, options)


def _case(op: str, arrays: OptionalArrays, options: dict[str, Any]) -> tuple[str, str, onnx.ModelProto, dict[str, Any]]:
    first = next(a for a in arrays if a is not None)
    given = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    return op, first.dtype.name, model_of(op, arrays, **options), given


def _quantised() -> Iterator[tuple[str, OptionalArrays, dict[str, Any]]]:
    for dtype, zero in ((np.uint8, 120), (np.int8, -3)):
        x, y = _q(2, 3, 8, 8, dtype=dtype), _q(2, 3, 8, 8, dtype=dtype)
        of_x: OptionalArrays = [_s(0.03), _s(zero, dtype)]
        of_y: OptionalArrays = [_s(0.05), _s(zero + 2, dtype)]
        small: OptionalArrays = [_s(1 / 256), _s(np.iinfo(dtype).min, dtype)]
        yield "QLinearAdd", [x, *of_x, y, *of_y, _s(0.07), _s(zero, dtype)], {}
        yield "QLinearMul", [x, *of_x, y, *of_y, _s(0.2), _s(zero, dtype)], {}
        yield "QLinearSigmoid", [x, *of_x, *small], {}
        yield "QLinearLeakyRelu", [x, *of_x, *of_y], {"alpha": 0.1}
        yield "QLinearSoftmax", [x[0, 0], *of_x, *small], {"axis": -1, "opset": 13}
        yield "QLinearConcat", [*of_y, x, *of_x, y, *of_y], {"axis": 1}
        yield "QLinearWhere", [x > 5, x, *of_x, y, *of_y, *of_y], {}
        yield "QLinearGlobalAveragePool", [x, *of_x, *of_y], {"channels_last": 0}
        yield "QLinearAveragePool", [x, *of_x, *of_y], {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
        yield "QLinearAveragePool", [x, *of_x, *of_y], {"kernel_shape": [2, 2], "channels_last": 1}
        yield "QLinearReduceMean", [x, *of_x, *of_y], {"axes": [2, 3], "keepdims": 1}
        yield "QuantizeLinear", [_f(3, 5), _s(0.02), _s(zero, dtype)], {}
        yield "DequantizeLinear", [_q(3, 5, dtype=dtype), _s(0.02), _s(zero, dtype)], {}


def _products() -> Iterator[tuple[str, OptionalArrays, dict[str, Any]]]:
    a, b = _q(4, 6), _q(6, 5, dtype=np.int8)
    of_a: OptionalArrays = [_s(0.02), _s(117, np.uint8)]
    of_b: OptionalArrays = [_s(0.03), _s(0, np.int8)]
    columns = np.linspace(0.01, 0.05, 5, dtype=np.float32)
    yield "QGemm", [a, *of_a, b, *of_b, np.arange(5, dtype=np.int32), _s(0.1), _s(100, np.uint8)], {"alpha": 1.5}
    yield "QGemm", [a, *of_a, b.T.copy(), columns, np.zeros(5, np.int8)], {"transB": 1}
    yield "MatMulIntegerToFloat", [a, b, _s(0.02), _s(0.03), _s(117, np.uint8), _s(0, np.int8), _f(5)], {}
    yield "MatMulIntegerToFloat", [a, b, _s(0.02), columns], {}
    yield "DynamicQuantizeMatMul", [_f(4, 6), b, _s(0.03), _s(0, np.int8), _f(5)], {}
    yield "DynamicQuantizeMatMul", [_f(2, 4, 6), b, columns], {}
    yield "FusedMatMul", [_f(2, 4, 6), _f(2, 5, 6)], {"transB": 1, "alpha": 0.5}
    yield "FusedMatMul", [_f(6, 4), _f(6, 5)], {"transA": 1}
    yield "TransposeMatMul", [_f(4, 6), _f(5, 6)], {"transB": 1}
    yield "FusedGemm", [_f(4, 6), _f(6, 5), _f(5)], {"activation": "LeakyRelu", "activation_alpha": 0.2}
    yield "FusedGemm", [_f(4, 6), _f(6, 5), _f(5)], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}
    image = _f(1, 3, 8, 8)
    yield "FusedConv", [image, _f(4, 3, 3, 3), _f(4)], {"activation": "Relu", "pads": [1] * 4}
    yield "FusedConv", [image, _f(4, 3, 3, 3), _f(4), _f(1, 4, 6, 6)], {"activation": "Relu"}
    yield (
        "FusedConv",
        [image, _f(4, 3, 3, 3), _f(4)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
    )
    for scales in (np.array([0.01], np.float32), np.linspace(0.005, 0.02, 24, dtype=np.float32)[None]):
        zeros = np.full(scales.shape, 3 if scales.ndim == 1 else 0, np.int8)  # by channels they have to be 0
        lstm: OptionalArrays = [_f(5, 1, 7), _q(1, 7, 24, dtype=np.int8), _q(1, 6, 24, dtype=np.int8), _f(1, 48)]
        later: OptionalArrays = [None, _f(1, 1, 6), _f(1, 1, 6), None, scales, zeros, scales, zeros]
        yield "DynamicQuantizeLSTM", [*lstm, *later], {"hidden_size": 6, "outputs": 3}
    n_bits: dict[str, Any] = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    yield "MatMulNBits", [_f(3, 64), _q(5, 2, 16), np.abs(_f(5, 2, scale=0.1))], n_bits
    yield "MatMulNBits", [_f(3, 64), _q(5, 2, 16), np.abs(_f(5, 2, scale=0.1)), _q(5, 1)], n_bits


def _transformers() -> Iterator[tuple[str, OptionalArrays, dict[str, Any]]]:
    x, row = _f(2, 6, 8), _f(8)
    yield "Gelu", [x], {}
    yield "BiasGelu", [x, row], {}
    yield "FastGelu", [x, row], {}
    yield "QuickGelu", [x], {"alpha": 1.5}
    yield "SimplifiedLayerNormalization", [x, row], {"domain": "", "epsilon": 1e-6}
    yield "SkipLayerNormalization", [x, _f(2, 6, 8), row, _f(8), _f(8)], {"epsilon": 1e-5}
    yield "SkipSimplifiedLayerNormalization", [x, _f(2, 6, 8), row], {"epsilon": 1e-5}
    ids, kinds = _RNG.integers(0, 9, (2, 6)).astype(np.int32), _RNG.integers(0, 2, (2, 6)).astype(np.int32)
    seen = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
    tables: OptionalArrays = [_f(9, 8), _f(10, 8), _f(2, 8)]
    yield "EmbedLayerNormalization", [ids, kinds, *tables, row, _f(8), seen], {"outputs": 2}
    yield "EmbedLayerNormalization", [ids, None, *tables[:2], None, row, _f(8)], {"outputs": 2}
    w, bias = _f(8, 24, scale=0.5), _f(24)
    for mask in (None, seen, np.array([6, 4], np.int32)):
        yield "Attention", [x, w, bias, mask], {"num_heads": 2}
    yield "Attention", [x, w, bias], {"num_heads": 2, "unidirectional": 1}
    yield "Attention", [x, w, bias, None, _f(2, 2, 2, 3, 4)], {"num_heads": 2, "unidirectional": 1, "outputs": 2}
    quantised: OptionalArrays = [_q(2, 6, 8), _q(8, 24, dtype=np.int8), bias, _s(0.02), _s(0.01), seen]
    yield "QAttention", [*quantised, _s(120, np.uint8), _s(0, np.int8)], {"num_heads": 2}
    yield "MultiHeadAttention", [x, _f(2, 5, 8), _f(2, 5, 8)], {"num_heads": 2}
    keys = np.array([[1] * 5, [1, 1, 0, 0, 0]], np.int32)
    yield "MultiHeadAttention", [x, _f(2, 5, 8), _f(2, 5, 8), bias, keys], {"num_heads": 2}
    places = np.arange(6)[None].repeat(2, 0)
    angles = np.arange(10)[:, None] * np.array([1.0, 0.1])
    turns: OptionalArrays = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    for interleaved in (0, 1):
        yield "RotaryEmbedding", [x, places, *turns], {"num_heads": 2, "interleaved": interleaved}
    yield "RotaryEmbedding", [_f(2, 2, 6, 4), np.array([2]), *turns], {}
    yield "Trilu", [_f(4, 5)], {"upper": 0}
    yield "ExpandDims", [_f(4, 5), np.asarray(1, np.int32)], {}
    yield "Inverse", [_f(3, 3) + 3 * np.eye(3, dtype=np.float32)], {}
