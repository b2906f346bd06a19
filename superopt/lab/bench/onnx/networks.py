"""Small networks as exporters write them: shapes computed by nodes, norms and functions in pieces, batch norm apart.

The effect of other optimisers on a model depends on these idioms rather than on its size.  So each network has few
layers of few channels, with random weights, and is named for the family that it is a piece of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
DimShape = tuple[int | str, ...]


class NetworkBuilder:
    """Nodes and stored tensors of one model.

    Args:
        seed: seed of the weights.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: dict[str, np.ndarray] = {}
        self.inputs: dict[str, tuple[DimShape, int]] = {}

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node and return the name of its result."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def several(self, results: int, op: str, *inputs: str, **attributes: Any) -> list[str]:
        """Append a node of several results and return their names."""
        made = [f"t{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(op, list(inputs), made, **attributes))
        return made

    def input(self, name: str, *shape: int | str, integers: bool = False) -> str:
        """An argument of the model."""
        self.inputs[name] = shape, TensorProto.INT64 if integers else TensorProto.FLOAT
        return name

    def keep(self, name: str, array: Any) -> str:
        """Store a tensor under a name of the caller's."""
        self.stored[name] = np.asarray(array, getattr(array, "dtype", np.float32))
        return name

    def number(self, value: float) -> str:
        """A stored scalar."""
        return self.keep(f"c{len(self.stored)}", np.asarray(value, np.float32))

    def integers(self, *values: int) -> str:
        """A stored vector of integers, such as a shape or axes."""
        return self.keep(f"i{len(self.stored)}", np.asarray(values, np.int64))

    def index(self, value: int) -> str:
        """A stored integer without axes."""
        return self.keep(f"i{len(self.stored)}", np.asarray(value, np.int64))

    def normal(self, name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Random values; the name is for the reader."""
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A stored tensor of random values whose products keep their scale."""
        fan = math.prod(shape[1:] if len(shape) > 2 else shape[:1])
        return self.keep(f"w{len(self.stored)}", self.normal("w", *shape, scale=scale or fan**-0.5))

    def positive(self, *shape: int) -> str:
        """A stored tensor of values around one."""
        return self.keep(f"w{len(self.stored)}", self.rng.uniform(0.6, 1.4, shape).astype(np.float32))

    def model(self, outputs: Sequence[str] | str, inputs: dict[str, DimShape] | None = None) -> onnx.ModelProto:
        """The model of all nodes.

        Raises:
            ValidationError: the model is invalid, or the types of its results cannot be inferred.
        """
        for name, shape in (inputs or {}).items():
            self.input(name, *shape)
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        made = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info(k, kind, shape) for k, (shape, kind) in self.inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
            [numpy_helper.from_array(v, k) for k, v in self.stored.items()],
        )  # fmt: skip
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    # ---- idioms of exporters

    def size(self, x: str, axis: int) -> str:
        """The size of an axis as a vector of one element, computed by nodes."""
        return self("Unsqueeze", self("Gather", self("Shape", x), self.index(axis), axis=0), self.integers(0))

    def view(self, x: str, of: str, *sizes: int) -> str:
        """`x.view(b, ...)` with the batch read from the shape of a tensor."""
        return self("Reshape", x, self("Concat", self.size(of, 0), *(self.integers(k) for k in sizes), axis=0))

    def conv(self, x: str, to: int, of: int, k: int = 3, bias: bool = False, dims: int = 2, **options: Any) -> str:
        """A convolution that keeps the sizes unless strided."""
        groups = options.get("group", 1)
        d = options.get("dilations", [1])[0]
        options = {"pads": [d * (k // 2)] * (2 * dims), "kernel_shape": [k] * dims, **options}
        parts = [self.weight(to, of // groups, *[k] * dims), *([self.shift(to)] if bias else [])]
        return self("Conv", x, *parts, **options)

    def shift(self, n: int) -> str:
        """A stored bias."""
        return self.weight(n, scale=0.3)

    def batch_norm(self, x: str, n: int) -> str:
        """Batch norm as a node of its own."""
        parts = self.positive(n), self.shift(n), self.shift(n), self.positive(n)
        return self("BatchNormalization", x, *parts, epsilon=1e-5)

    def conv_norm(self, x: str, to: int, of: int, k: int = 3, act: str = "Relu", **options: Any) -> str:
        """A convolution, batch norm and an activation."""
        x = self.batch_norm(self.conv(x, to, of, k, **options), to)
        if act in ("Silu", "Relu6"):
            return self.silu(x) if act == "Silu" else self.relu6(x)
        return self(act, x) if act else x

    def relu6(self, x: str) -> str:
        """Clipped at six by stored bounds."""
        return self("Clip", x, self.number(0.0), self.number(6.0))

    def silu(self, x: str) -> str:
        """x times its sigmoid."""
        return self("Mul", x, self("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """gelu with the error function, in pieces."""
        y = self("Add", self("Erf", self("Div", x, self.number(math.sqrt(2)))), self.number(1.0))
        return self("Mul", self("Mul", x, y), self.number(0.5))

    def tanh_gelu(self, x: str) -> str:
        """gelu with the hyperbolic tangent, in pieces."""
        inner = self("Add", x, self("Mul", self("Pow", x, self.number(3.0)), self.number(0.044715)))
        y = self("Add", self("Tanh", self("Mul", inner, self.number(math.sqrt(2 / math.pi)))), self.number(1.0))
        return self("Mul", self("Mul", x, self.number(0.5)), y)

    def layer_norm(self, x: str, n: int, eps: float = 1e-5) -> str:
        """Layer norm over the last axis, in pieces."""
        centred = self("Sub", x, self("ReduceMean", x, axes=[-1]))
        variance = self("ReduceMean", self("Pow", centred, self.number(2.0)), axes=[-1])
        x = self("Div", centred, self("Sqrt", self("Add", variance, self.number(eps))))
        return self("Add", self("Mul", x, self.positive(n)), self.shift(n))

    def rms_norm(self, x: str, n: int, eps: float = 1e-5) -> str:
        """Root-mean-square norm (without a mean), in pieces."""
        variance = self("ReduceMean", self("Pow", x, self.number(2.0)), axes=[-1])
        root = self("Div", self.number(1.0), self("Sqrt", self("Add", variance, self.number(eps))))
        return self("Mul", self.positive(n), self("Mul", x, root))

    def dense(self, x: str, of: int, to: int, bias: bool = True) -> str:
        """A product with a stored matrix and a bias, as exporters write them for more than two axes."""
        y = self("MatMul", x, self.weight(of, to))
        return self("Add", self.shift(to), y) if bias else y

    def linear(self, x: str, of: int, to: int) -> str:
        """A `Gemm` with the matrix transposed, as exporters write them for two axes."""
        return self("Gemm", x, self.weight(to, of, scale=of**-0.5), self.shift(to), alpha=1.0, beta=1.0, transB=1)

    def heads(self, x: str, of: str, heads: int, size: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
        """Split into heads."""
        return self("Transpose", self.view(x, of, -1, heads, size), perm=list(order))

    def attention(self, x: str, y: str, d: int, heads: int, mask: str = "", causal: int = 0, bias: str = "") -> str:
        """Attention of one sequence over another, in pieces."""
        size = d // heads
        q = self.heads(self.dense(x, d, d), x, heads, size)
        k = self.heads(self.dense(y, d, d), y, heads, size, (0, 2, 3, 1))
        v = self.heads(self.dense(y, d, d), y, heads, size)
        scores = self("Div", self("MatMul", q, k), self.number(math.sqrt(size)))
        if mask or bias:
            scores = self("Add", scores, mask or bias)
        if causal:
            kept = self.keep(f"m{len(self.stored)}", np.tril(np.ones((1, 1, causal, causal), bool)))
            scores = self("Where", kept, scores, self.number(-1e4))
        out = self("MatMul", self("Softmax", scores, axis=-1), v)
        out = self.view(self("Transpose", out, perm=[0, 2, 1, 3]), x, -1, d)
        return self.dense(out, d, d)


# ---- convolutions


def _resnet(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2])
    y = b.conv_norm(b.conv_norm(x, 8, 8), 8, 8, act="")
    x = b("Relu", b("Add", y, x))
    y = b.conv_norm(b.conv_norm(x, 16, 8, strides=[2, 2]), 16, 16, act="")
    x = b("Relu", b("Add", y, b.conv_norm(x, 16, 8, 1, act="", strides=[2, 2])))
    return b.linear(b("Flatten", b("GlobalAveragePool", x)), 16, 10)


def _bottleneck(b: NetworkBuilder) -> str:
    x = b(
        "MaxPool", b.conv_norm(b.input("x", 2, 3, 16, 16), 8, 3, 5), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    )
    y = b.conv_norm(b.conv_norm(b.conv_norm(x, 4, 8, 1), 4, 4), 16, 4, 1, act="")
    x = b("Relu", b("Add", y, b.conv_norm(x, 16, 8, 1, act="")))
    x = b("ReduceMean", x, axes=[2, 3], keepdims=0)
    return b("Softmax", b.linear(x, 16, 5), axis=1)


def _mobilenet2(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, act="Relu6", strides=[2, 2])
    y = b.conv_norm(b.conv_norm(x, 24, 8, 1, act="Relu6"), 24, 24, act="Relu6", group=24)
    x = b("Add", x, b.conv_norm(y, 8, 24, 1, act=""))
    x = b("GlobalAveragePool", b.conv_norm(x, 16, 8, 1, act="Relu6"))
    return b.linear(b.view(x, x, -1), 16, 6)


def _squeeze(b: NetworkBuilder, x: str, n: int, act: str) -> str:
    y = b("Relu", b.conv(b("GlobalAveragePool", x), n // 4, n, 1, bias=True))
    y = b.conv(y, n, n // 4, 1, bias=True)
    return b("Mul", x, b("HardSigmoid", y, alpha=1 / 6, beta=0.5) if act == "hard" else b("Sigmoid", y))


def _mobilenet3(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, act="HardSwish", strides=[2, 2])
    y = b.conv_norm(b.conv_norm(x, 16, 8, 1, act="HardSwish"), 16, 16, 5, act="HardSwish", group=16)
    x = b("Add", b.conv_norm(_squeeze(b, y, 16, "hard"), 8, 16, 1, act=""), x)
    y = b("Div", b("Mul", x, b("Clip", b("Add", x, b.number(3.0)), b.number(0.0), b.number(6.0))), b.number(6.0))
    return b.linear(b("Flatten", b("GlobalAveragePool", y), axis=1), 8, 6)


def _efficientnet(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, act="Silu", strides=[2, 2])
    y = b.conv_norm(b.conv_norm(x, 16, 8, 1, act="Silu"), 16, 16, act="Silu", group=16)
    x = b("Add", b.conv_norm(_squeeze(b, y, 16, "soft"), 8, 16, 1, act=""), x)
    x = b("Dropout", b("Flatten", b("GlobalAveragePool", x)))
    return b.linear(x, 8, 6)


def _convnext(b: NetworkBuilder) -> str:
    x = b.conv(b.input("x", 1, 3, 16, 16), 8, 3, 4, bias=True, strides=[4, 4], pads=[0] * 4)
    y = b("Transpose", b.conv(x, 8, 8, 7, bias=True, group=8), perm=[0, 2, 3, 1])
    y = b.dense(b.gelu(b.dense(b.layer_norm(y, 8), 8, 32)), 32, 8)
    x = b("Add", x, b("Transpose", b("Mul", y, b.positive(8)), perm=[0, 3, 1, 2]))
    x = b("Flatten", b("GlobalAveragePool", x))
    return b.linear(b.layer_norm(x, 8), 8, 6)


def _unet(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3)
    y = b.conv_norm(b("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 16, 8)
    y = b("ConvTranspose", y, b.weight(16, 8, 2, 2), b.shift(8), kernel_shape=[2, 2], strides=[2, 2])
    y = b.conv_norm(b("Concat", y, x, axis=1), 8, 16)
    return b("Sigmoid", b.conv(y, 2, 8, 1, bias=True))


def _fpn(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2])
    y = b.conv_norm(x, 8, 8, strides=[2, 2])
    scales = b.keep("scales", np.asarray([1, 1, 2, 2], np.float32))
    mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    up = b("Resize", b.conv(y, 8, 8, 1, bias=True), "", scales, **mode)
    return b.conv(b("Add", up, b.conv(x, 8, 8, 1, bias=True)), 4, 8, bias=True)


def _densenet(b: NetworkBuilder) -> str:
    x = b.conv(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2])
    for i in range(2):
        n = 8 + 4 * i
        y = b.conv_norm(b("Relu", b.batch_norm(x, n)), 8, n, 1)
        x = b("Concat", x, b.conv(y, 4, 8), axis=1)
    x = b.conv(b("Relu", b.batch_norm(x, 16)), 8, 16, 1)
    x = b("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return b.linear(b("Flatten", b("GlobalAveragePool", b("Relu", b.batch_norm(x, 8)))), 8, 6)


def _shufflenet(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 8, 8, 8), 8, 8, 1, group=2)
    shape = b.integers(1, 2, 4, 8, 8), b.integers(1, 8, 8, 8)
    x = b("Reshape", b("Transpose", b("Reshape", x, shape[0]), perm=[0, 2, 1, 3, 4]), shape[1])
    left, right = b.several(2, "Split", x, axis=1)
    right = b.conv_norm(b.conv_norm(right, 4, 4, act="", group=4), 4, 4, 1)
    x = b("Concat", left, right, axis=1)
    return b.linear(b("ReduceMean", x, axes=[2, 3], keepdims=0), 8, 6)


def _inception(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2])
    pooled = b("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    parts = [b.conv_norm(x, 4, 8, 1), b.conv_norm(b.conv_norm(x, 4, 8, 1), 6, 4), b.conv_norm(pooled, 4, 8, 1)]
    x = b("Concat", *parts, axis=1)
    return b("Softmax", b.linear(b("Flatten", b("GlobalAveragePool", x)), 14, 6), axis=-1)


def _yolo(b: NetworkBuilder) -> str:
    x = b("LeakyRelu", b.batch_norm(b.conv(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2]), 8), alpha=0.1)
    y = b.conv(x, 12, 8, 1, bias=True)
    y = b("Transpose", b("Reshape", y, b.integers(1, 2, 6, 8, 8)), perm=[0, 1, 3, 4, 2])
    y = b("Sigmoid", y)
    xy, wh, rest = b.several(3, "Split", y, b.integers(2, 2, 2), axis=-1)
    grid = b.keep("grid", np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).astype(np.float32)[None, None])
    xy = b("Mul", b("Add", b("Sub", b("Mul", xy, b.number(2.0)), b.number(0.5)), grid), b.number(8.0))
    wh = b("Mul", b("Pow", b("Mul", wh, b.number(2.0)), b.number(2.0)), b.positive(1, 2, 1, 1, 2))
    return b("Reshape", b("Concat", xy, wh, rest, axis=-1), b.integers(1, -1, 6))


def _diffusion(b: NetworkBuilder) -> str:
    x, t = b.input("x", 1, 8, 8, 8), b.input("t", 1, 16)

    def norm(y: str) -> str:
        y = b("InstanceNormalization", b("Reshape", y, b.integers(0, 4, -1)), b.keep("one", np.ones(4, np.float32)),
              b.keep("nil", np.zeros(4, np.float32)), epsilon=1e-5)  # fmt: skip
        y = b("Reshape", y, b.integers(1, 8, 8, 8))
        return b("Add", b("Mul", y, b.positive(8, 1, 1)), b.weight(8, 1, 1, scale=0.3))

    y = b.conv(b.silu(norm(x)), 8, 8, bias=True)
    shift = b("Unsqueeze", b("Unsqueeze", b.linear(b.silu(t), 16, 8), b.integers(2)), b.integers(3))
    y = b.conv(b.silu(norm(b("Add", y, shift))), 8, 8, bias=True)
    return b("Add", b.conv(x, 8, 8, 1, bias=True), y)


def _generator(b: NetworkBuilder) -> str:
    x = b("Reshape", b.input("x", 1, 12), b.integers(-1, 12, 1, 1))
    x = b("ConvTranspose", x, b.weight(12, 8, 4, 4), kernel_shape=[4, 4])
    x = b("Relu", b.batch_norm(x, 8))
    x = b("ConvTranspose", x, b.weight(8, 3, 4, 4), kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    return b("Tanh", x)


def _super_resolution(b: NetworkBuilder) -> str:
    x = b("Relu", b.conv(b.input("x", 1, 1, 8, 8), 8, 1, 5, bias=True))
    x = b.conv(b("Relu", b.conv(x, 8, 8, bias=True)), 4, 8, bias=True)
    x = b("Transpose", b("Reshape", x, b.integers(-1, 1, 2, 2, 8, 8)), perm=[0, 1, 4, 2, 5, 3])
    return b("Reshape", x, b.integers(-1, 1, 16, 16))


def _segmenter(b: NetworkBuilder) -> str:
    x = b.conv_norm(b.input("x", 1, 3, 16, 16), 8, 3, strides=[2, 2])
    far = b.conv_norm(x, 8, 8, dilations=[2, 2])
    scene = b.conv_norm(b("GlobalAveragePool", x), 8, 8, 1)
    shape = b("Concat", b.integers(1, 8), b("Slice", b("Shape", far), b.integers(2), b.integers(4)), axis=0)
    scene = b("Expand", scene, shape)
    x = b.conv_norm(b("Concat", far, scene, axis=1), 8, 16, 1)
    size = b("Concat", b.integers(1, 4), b.integers(16, 16), axis=0)
    mode = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return b("Resize", b.conv(x, 4, 8, 1, bias=True), "", "", size, **mode)


# ---- sequences


def _bert(b: NetworkBuilder) -> str:
    ids, mask = b.input("ids", 1, 6, integers=True), b.input("mask", 1, 6)
    x = b("Gather", b.weight(11, 8, scale=1.0), ids)
    x = b("Add", x, b("Gather", b.weight(6, 8, scale=1.0), b.keep("places", np.arange(6)[None])))
    x = b.layer_norm(x, 8)
    y = b("Unsqueeze", b("Unsqueeze", mask, b.integers(1)), b.integers(2))
    y = b("Mul", b("Sub", b.number(1.0), y), b.number(-1e4))
    x = b.layer_norm(b("Add", b.attention(x, x, 8, 2, mask=y), x), 8)
    return b.layer_norm(b("Add", b.dense(b.gelu(b.dense(x, 8, 16)), 16, 8), x), 8)


def _pooler(b: NetworkBuilder) -> list[str]:
    x = b.input("x", 2, 6, 8)
    x = b.layer_norm(b("Add", b.attention(x, x, 8, 2), x), 8)
    first = b("Gather", x, b.index(0), axis=1)
    return [x, b("Tanh", b.linear(first, 8, 8))]


def _gpt(b: NetworkBuilder) -> str:
    x, n, d, heads = b.input("x", 1, 6, 8), 6, 8, 2
    flat = b("Reshape", b.layer_norm(x, d), b.integers(-1, d))
    y = b("Gemm", flat, b.weight(d, 3 * d), b.shift(3 * d))
    q, k, v = b.several(3, "Split", b.view(y, x, n, 3 * d), axis=2)
    q, v = (b.heads(t, x, heads, d // heads) for t in (q, v))
    k = b.heads(k, x, heads, d // heads, (0, 2, 3, 1))
    scores = b("Div", b("MatMul", q, k), b.number(math.sqrt(d // heads)))
    kept = b.keep("kept", np.tril(np.ones((1, 1, 8, 8), bool)))
    kept = b("Slice", kept, b.integers(0, 0), b.integers(n, n), b.integers(2, 3))
    y = b("MatMul", b("Softmax", b("Where", kept, scores, b.number(-1e4)), axis=3), v)
    y = b("Reshape", b.view(b("Transpose", y, perm=[0, 2, 1, 3]), x, -1, d), b.integers(-1, d))
    x = b("Add", x, b("Reshape", b("Gemm", y, b.weight(d, d), b.shift(d)), b.integers(1, n, d)))
    return b("Add", x, b.dense(b.tanh_gelu(b.dense(b.layer_norm(x, d), d, 16)), 16, d))


def _llama(b: NetworkBuilder) -> str:
    n, d, heads = 6, 16, 4
    x = b.input("x", 1, n, d)
    y, size = b.rms_norm(x, d), d // heads
    angles = np.outer(np.arange(n), 1.0 / 100 ** (np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], -1).astype(np.float32)
    cos, sin = b.keep("cos", np.cos(angles)), b.keep("sin", np.sin(angles))

    def turned(t: str) -> str:
        low = b("Slice", t, b.integers(0), b.integers(size // 2), b.integers(3))
        high = b("Slice", t, b.integers(size // 2), b.integers(2**31), b.integers(3))
        return b("Add", b("Mul", t, cos), b("Mul", b("Concat", b("Neg", high), low, axis=-1), sin))

    q = turned(b.heads(b.dense(y, d, d, False), x, heads, size))
    k, v = (b.heads(b.dense(y, d, d // 2, False), x, heads // 2, size) for _ in range(2))
    k = turned(k)

    def repeated(t: str) -> str:
        t = b("Expand", b("Unsqueeze", t, b.integers(2)), b.integers(1, heads // 2, 2, n, size))
        return b("Reshape", t, b.integers(1, heads, n, size))

    scores = b("MatMul", q, b("Transpose", repeated(k), perm=[0, 1, 3, 2]))
    mask = b.keep("mask", np.triu(np.full((n, n), -1e4, np.float32), 1)[None, None])
    scores = b("Add", b("Mul", scores, b.number(size**-0.5)), mask)
    y = b("MatMul", b("Softmax", scores, axis=-1), repeated(v))
    x = b("Add", x, b.dense(b.view(b("Transpose", y, perm=[0, 2, 1, 3]), x, n, d), d, d, False))
    y = b.rms_norm(x, d)
    y = b("Mul", b.silu(b.dense(y, d, 24, False)), b.dense(y, d, 24, False))
    return b("Add", x, b.dense(y, 24, d, False))


def _vit(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 3, 8, 8)
    y = b.conv(x, 8, 3, 4, bias=True, strides=[4, 4], pads=[0] * 4)
    y = b("Transpose", b.view(y, x, 8, -1), perm=[0, 2, 1])
    shape = b("Concat", b.size(x, 0), b.integers(-1), b.integers(-1), axis=0)
    ones = b("ConstantOfShape", b("Shape", shape), value=numpy_helper.from_array(np.asarray([1], np.int64)))
    shape = b("Where", b("Equal", shape, b("Mul", ones, b.index(-1))), ones, shape)
    y = b("Add", b("Concat", b("Expand", b.weight(1, 1, 8, scale=1.0), shape), y, axis=1), b.weight(1, 5, 8, scale=1.0))
    z = b.layer_norm(y, 8)
    y = b("Add", y, b.attention(z, z, 8, 2))
    y = b("Add", y, b.dense(b.gelu(b.dense(b.layer_norm(y, 8), 8, 16)), 16, 8))
    return b.linear(b("Gather", b.layer_norm(y, 8), b.index(0), axis=1), 8, 5)


def _t5(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 6, 8)
    buckets = b.keep("buckets", np.abs(np.arange(6)[:, None] - np.arange(6)[None]))
    bias = b("Transpose", b("Gather", b.weight(6, 2, scale=1.0), buckets), perm=[2, 0, 1])
    bias = b("Unsqueeze", bias, b.integers(0))
    z = b.rms_norm(x, 8)
    x = b("Add", x, b.attention(z, z, 8, 2, bias=bias))
    y = b.rms_norm(x, 8)
    y = b("Mul", b.tanh_gelu(b.dense(y, 8, 16, False)), b.dense(y, 8, 16, False))
    return b("Add", x, b.dense(y, 16, 8, False))


def _decoder(b: NetworkBuilder) -> str:
    x, memory = b.input("x", 1, 5, 8), b.input("memory", 1, 7, 8)
    x = b.layer_norm(b("Add", x, b.attention(x, x, 8, 2, causal=5)), 8)
    x = b.layer_norm(b("Add", x, b.attention(x, memory, 8, 2)), 8)
    return b.layer_norm(b("Add", x, b.dense(b("Relu", b.dense(x, 8, 16)), 16, 8)), 8)


def _speech(b: NetworkBuilder) -> str:
    x = b.gelu(b.conv(b.input("x", 1, 4, 12), 8, 4, bias=True, dims=1))
    x = b.gelu(b.conv(x, 8, 8, bias=True, dims=1, strides=[2]))
    x = b("Add", b("Transpose", x, perm=[0, 2, 1]), b.weight(6, 8, scale=1.0))
    z = b.layer_norm(x, 8)
    return b.layer_norm(b("Add", x, b.attention(z, z, 8, 2)), 8)


def _swin(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 4, 4, 8)
    y = b.layer_norm(x, 8)
    for axis in (1, 2):
        y = b("Concat", b("Slice", y, b.integers(1), b.integers(2**31), b.integers(axis)),
              b("Slice", y, b.integers(0), b.integers(1), b.integers(axis)), axis=axis)  # fmt: skip
    y = b("Transpose", b.view(y, x, 2, 2, 2, 2, 8), perm=[0, 1, 3, 2, 4, 5])
    y = b("Reshape", y, b.integers(-1, 4, 8))
    y = b.attention(y, y, 8, 2)
    y = b("Transpose", b("Reshape", y, b.integers(1, 2, 2, 2, 2, 8)), perm=[0, 1, 3, 2, 4, 5])
    return b("Add", x, b("Reshape", y, b.integers(1, 4, 4, 8)))


def _linear_attention(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 6, 8)
    q, k = (b("Add", b("Elu", b.dense(x, 8, 8)), b.number(1.0)) for _ in range(2))
    y = b("MatMul", b("Transpose", k, perm=[0, 2, 1]), b.dense(x, 8, 8))
    z = b("MatMul", q, b("Transpose", b("ReduceSum", k, b.integers(1)), perm=[0, 2, 1]))
    return b("Div", b("MatMul", q, y), z)


def _mixer(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 6, 8)
    y = b("Transpose", b.layer_norm(x, 8), perm=[0, 2, 1])
    x = b("Add", x, b("Transpose", b.dense(b.gelu(b.dense(y, 6, 12)), 12, 6), perm=[0, 2, 1]))
    x = b("Add", x, b.dense(b.gelu(b.dense(b.layer_norm(x, 8), 8, 16)), 16, 8))
    return b.linear(b("ReduceMean", b.layer_norm(x, 8), axes=[1], keepdims=0), 8, 5)


def _lstm(b: NetworkBuilder) -> list[str]:
    x = b("Transpose", b.input("x", 1, 4, 5), perm=[1, 0, 2])
    shape = b("Concat", b.integers(1), b.size(x, 1), b.integers(6), axis=0)
    state = b("Expand", b.keep("nil", np.zeros((1, 1, 1), np.float32)), shape)
    weights = b.weight(1, 24, 5), b.weight(1, 24, 6), b.weight(1, 48, scale=0.1)
    y, h, _ = b.several(3, "LSTM", x, *weights, "", state, state, hidden_size=6)
    y = b("Transpose", b("Squeeze", y, b.integers(1)), perm=[1, 0, 2])
    return [b.dense(y, 6, 3), h]


def _gru(b: NetworkBuilder) -> str:
    ids = b.input("ids", 5, 1, integers=True)
    x = b("Gather", b.weight(9, 4, scale=1.0), ids)
    weights = b.weight(1, 18, 4), b.weight(1, 18, 6), b.weight(1, 36, scale=0.1)
    _, h = b.several(2, "GRU", x, *weights, hidden_size=6, linear_before_reset=1)
    return b.linear(b("Squeeze", h, b.integers(0)), 6, 4)


def _temporal(b: NetworkBuilder) -> str:
    x = b.input("x", 1, 4, 12)
    y = x
    for d in (1, 2):
        y = b("Pad", y, b.integers(0, 0, 2 * d, 0, 0, 0), b.number(0.0), mode="constant")
        y = b("Relu", b.conv(y, 4, 4, bias=True, dims=1, dilations=[d], pads=[0, 0]))
    return b("Relu", b("Add", x, y))


def _wavenet(b: NetworkBuilder) -> str:
    x = b.conv(b.input("x", 1, 2, 12), 8, 2, 1, bias=True, dims=1)
    left, right = b.several(2, "Split", b.conv(x, 16, 8, bias=True, dims=1, dilations=[2]), axis=1)
    y = b("Mul", b("Tanh", left), b("Sigmoid", right))
    x = b("Mul", b("Add", x, b.conv(y, 8, 8, 1, bias=True, dims=1)), b.number(math.sqrt(0.5)))
    return b.conv(b("Relu", x), 3, 8, 1, bias=True, dims=1)


# ---- others


def _tabular(b: NetworkBuilder) -> str:
    x = b.input("x", 4, 10)
    x = b("Relu", b.batch_norm(b.linear(b.batch_norm(x, 10), 10, 8), 8))
    x = b("Identity", b("Dropout", x))
    return b("Sigmoid", b("Squeeze", b.linear(x, 8, 1), b.integers(1)))


def _recommender(b: NetworkBuilder) -> str:
    dense, ids = b.input("dense", 2, 6), b.input("ids", 2, 2, integers=True)
    x = b("Relu", b.linear(dense, 6, 4))
    rows = [b("Gather", b.weight(7, 4, scale=1.0), b("Gather", ids, b.index(i), axis=1)) for i in range(2)]
    z = b("Concat", *(b("Unsqueeze", y, b.integers(1)) for y in (x, *rows)), axis=1)
    z = b("MatMul", z, b("Transpose", z, perm=[0, 2, 1]))
    z = b("Gather", b("Reshape", z, b.integers(2, 9)), b.keep("lower", np.asarray([3, 6, 7])), axis=1)
    return b("Sigmoid", b.linear(b("Relu", b.linear(b("Concat", x, z, axis=1), 7, 8)), 8, 1))


def _text(b: NetworkBuilder) -> str:
    ids = b.input("ids", 2, 9, integers=True)
    x = b("Transpose", b("Gather", b.weight(11, 6, scale=1.0), ids), perm=[0, 2, 1])
    rows = [b("ReduceMax", b("Relu", b.conv(x, 4, 6, n, bias=True, dims=1)), axes=[2], keepdims=0) for n in (1, 3)]
    return b("Softmax", b.linear(b("Dropout", b("Concat", *rows, axis=1)), 8, 3), axis=1)


def _graph_net(b: NetworkBuilder) -> str:
    x, a = b.input("x", 6, 4), b.input("a", 6, 6)
    degree = b("ReduceSum", a, b.integers(1))
    a = b("Div", a, b("Add", b("Abs", degree), b.number(1.0)))
    x = b("Relu", b("MatMul", a, b("MatMul", x, b.weight(4, 8))))
    return b("LogSoftmax", b("Add", b("MatMul", a, b("MatMul", x, b.weight(8, 3))), b.shift(3)), axis=1)


def _autoencoder(b: NetworkBuilder) -> list[str]:
    x, noise = b.input("x", 2, 10), b.input("noise", 2, 3)
    h = b("Relu", b.linear(x, 10, 8))
    mean, log = b.linear(h, 8, 3), b.linear(h, 8, 3)
    z = b("Add", mean, b("Mul", noise, b("Exp", b("Mul", log, b.number(0.5)))))
    return [b("Sigmoid", b.linear(b("Relu", b.linear(z, 3, 8)), 8, 10)), mean, log]


def _points(b: NetworkBuilder) -> str:
    x = b("Transpose", b.input("x", 1, 12, 3), perm=[0, 2, 1])
    x = b("Relu", b.batch_norm(b.conv(x, 8, 3, 1, bias=True, dims=1), 8))
    x = b("Relu", b.batch_norm(b.conv(x, 16, 8, 1, bias=True, dims=1), 16))
    x = b("Reshape", b("ReduceMax", x, axes=[2], keepdims=1), b.integers(-1, 16))
    return b("LogSoftmax", b.linear(b("Relu", b.batch_norm(b.linear(x, 16, 8), 8)), 8, 4), axis=-1)


def _quantised(b: NetworkBuilder) -> str:
    scale, zero = b.number(0.02), b.keep("zero", np.asarray(3, np.uint8))
    x = b("DequantizeLinear", b("QuantizeLinear", b.input("x", 2, 8), scale, zero), scale, zero)
    w = b.keep("wq", b.rng.integers(-127, 128, (8, 4)).astype(np.int8))
    w = b("DequantizeLinear", w, b.number(0.01), b.keep("wz", np.asarray(0, np.int8)))
    return b("Relu", b("Add", b("MatMul", x, w), b.shift(4)))


def _shapes(b: NetworkBuilder) -> str:
    x = b.input("x", 2, 3, 4)
    y = b("Squeeze", b("Unsqueeze", b("Flatten", x, axis=2), b.integers(0)), b.integers(0))
    y = b("Reshape", b("Reshape", y, b.integers(4, 6)), b("Shape", x))
    y = b("Transpose", b("Transpose", y, perm=[2, 0, 1]), perm=[1, 2, 0])
    y = b("Cast", b("Cast", b("Identity", y), to=TensorProto.FLOAT), to=TensorProto.FLOAT)
    y = b("Mul", b("Add", y, b.number(0.0)), b.keep("ones", np.ones((3, 1), np.float32)))
    return b("Concat", b("Slice", y, b.integers(0), b.integers(2), b.integers(1)),
             b("Slice", y, b.integers(2), b.integers(3), b.integers(1)), axis=1)  # fmt: skip


_BUILD: dict[str, Callable[[NetworkBuilder], str | list[str]]] = {
    "resnet": _resnet, "bottleneck": _bottleneck, "mobilenet2": _mobilenet2, "mobilenet3": _mobilenet3,
    "efficientnet": _efficientnet, "convnext": _convnext, "unet": _unet, "fpn": _fpn, "densenet": _densenet,
    "shufflenet": _shufflenet, "inception": _inception, "yolo": _yolo, "diffusion": _diffusion,
    "generator": _generator, "super-resolution": _super_resolution, "segmenter": _segmenter,
    "bert": _bert, "pooler": _pooler, "gpt": _gpt, "llama": _llama, "vit": _vit, "t5": _t5, "decoder": _decoder,
    "speech": _speech, "swin": _swin, "linear-attention": _linear_attention, "mixer": _mixer, "lstm": _lstm,
    "gru": _gru, "temporal": _temporal, "wavenet": _wavenet, "tabular": _tabular, "recommender": _recommender,
    "graph-net": _graph_net, "autoencoder": _autoencoder, "points": _points, "quantised": _quantised,
    "shapes": _shapes, "text": _text,
}  # fmt: skip
NETWORKS = tuple(_BUILD)


def network(name: str, seed: int) -> onnx.ModelProto:
    """A network with random weights."""
    b = NetworkBuilder(seed)
    return onnx.shape_inference.infer_shapes(b.model(_BUILD[name](b)))


__all__ = ["NETWORKS", "OPSET", "NetworkBuilder", "network"]
