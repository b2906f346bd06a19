"""Operators of the kernel benchmark: each as a JAX function, for PyTorch and as an ONNX graph.

All of them compute the same values; images are channels last for JAX, and in each peer's preferred layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One operator at one size.

    Attributes:
        name: unique.
        kind: gemm, skinny, conv, depthwise_pool, rowops, attention or int8.
        fn: JAX function of the arrays.
        shapes: shapes of the arrays, in order.
        frozen: positions of arrays that are weights.
        flops: multiplications and additions.
        torch: name of the function in `kernels_peers` that builds the PyTorch form, with its parameters.
        onnx: name and parameters of the function that builds the ONNX form.
        dtypes: dtypes of the arrays.
    """

    name: str
    kind: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    frozen: tuple[int, ...]
    flops: float
    form: tuple[Any, ...]
    dtypes: tuple[str, ...] = ()

    def arrays(self, seed: int) -> list[np.ndarray]:
        """Random arrays; weights scaled so that results are of order 1."""
        rng = np.random.default_rng(seed)
        arrays: list[np.ndarray] = []
        for i, shape in enumerate(self.shapes):
            dtype = self.dtypes[i] if self.dtypes else "float32"
            if dtype != "float32":
                low, high = (0, 256) if dtype == "uint8" else (-127, 128)
                arrays.append(rng.integers(low, high, shape).astype(dtype))
                continue
            scale = 1 / math.sqrt(math.prod(shape[:-1])) if i in self.frozen and len(shape) > 1 else 1.0
            arrays.append((scale * rng.standard_normal(shape)).astype(np.float32))
        return arrays


def product(m: int, n: int, k: int) -> OperatorCase:
    """x (m, k) times frozen w (k, n)."""
    kind = "skinny" if m <= 16 else "gemm"
    return OperatorCase(
        f"dot {m}x{n}x{k}", kind, lambda x, w: x @ w, ((m, k), (k, n)), (1,), 2.0 * m * n * k, ("product",)
    )


def int8_product(m: int, n: int, k: int) -> OperatorCase:
    """u8 (m, k) times frozen s8 (k, n), summed in s32."""

    def fn(x: Any, w: Any) -> Any:
        return lax.dot_general(x.astype(jnp.int32), w.astype(jnp.int32), (((1,), (0,)), ((), ())))

    return OperatorCase(
        f"int8 dot {m}x{n}x{k}", "int8", fn, ((m, k), (k, n)), (1,), 2.0 * m * n * k, ("int8",), ("uint8", "int8")
    )


def convolution(
    size: int, cin: int, cout: int, window: int, stride: int = 1, groups: int = 1, kind: str = "conv"
) -> OperatorCase:
    """Channels-last convolution with same padding, bias and relu."""
    pad = window // 2
    out = (size + 2 * pad - window) // stride + 1

    def fn(x: Any, w: Any, b: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip
        return jnp.maximum(y + b, 0)

    name = "depthwise" if groups > 1 else "conv"
    strided = f"/{stride}" if stride > 1 else ""
    return OperatorCase(
        f"{name} {window}x{window}{strided} {size}x{size}x{cin}->{cout}", kind, fn,
        ((1, size, size, cin), (window, window, cin // groups, cout), (cout,)), (1, 2),
        2.0 * out * out * cout * window * window * cin / groups, ("convolution", stride, pad, groups),
    )  # fmt: skip


def pooling(size: int, channels: int, window: int, stride: int, pad: int, average: bool) -> OperatorCase:
    """Channels-last pooling; the average without padding."""
    out = (size + 2 * pad - window) // stride + 1

    def fn(x: Any) -> Any:
        args = ((1, window, window, 1), (1, stride, stride, 1), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        if average:
            return lax.reduce_window(x, 0.0, lax.add, *args) / (window * window)
        return lax.reduce_window(x, -math.inf, lax.max, *args)

    return OperatorCase(
        f"{'avg' if average else 'max'}pool {window}x{window}/{stride} {size}x{size}x{channels}", "depthwise_pool",
        fn, ((1, size, size, channels),), (), float(out * out * channels * window * window),
        ("pooling", window, stride, pad, average),
    )  # fmt: skip


def softmax(rows: int, columns: int) -> OperatorCase:
    """Softmax of rows."""

    def fn(x: Any) -> Any:
        return jax.nn.softmax(x, -1)

    return OperatorCase(
        f"softmax {rows}x{columns}", "rowops", fn, ((rows, columns),), (), 5.0 * rows * columns, ("softmax",)
    )


def layer_norm(rows: int, columns: int) -> OperatorCase:
    """Residual, layer normalisation, scale and shift."""

    def fn(x: Any, y: Any, g: Any, b: Any) -> Any:
        z = x + y
        m = jnp.mean(z, -1, keepdims=True)
        v = jnp.mean((z - m) * (z - m), -1, keepdims=True)
        return (z - m) * lax.rsqrt(v + 1e-5) * g + b

    shapes = ((rows, columns), (rows, columns), (columns,), (columns,))
    return OperatorCase(
        f"layernorm {rows}x{columns}", "rowops", fn, shapes, (2, 3), 9.0 * rows * columns, ("layer_norm",)
    )


def gelu(rows: int, columns: int) -> OperatorCase:
    """Bias and gelu (erf)."""

    def fn(x: Any, b: Any) -> Any:
        return jax.nn.gelu(x + b, approximate=False)

    shapes = ((rows, columns), (columns,))
    return OperatorCase(f"gelu {rows}x{columns}", "rowops", fn, shapes, (1,), 30.0 * rows * columns, ("gelu",))


def attention(heads: int, rows: int, depth: int, causal: bool = False) -> OperatorCase:
    """Scaled product of q and k, masked or not, softmax of rows, product with v."""

    def fn(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(depth)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((rows, rows), bool)), scores, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    work = 4.0 * heads * rows * depth * ((rows + 1) / 2 if causal else rows)
    name = f"attention{' causal' if causal else ''} {heads}x{rows}x{depth}"
    return OperatorCase(name, "attention", fn, ((heads, rows, depth),) * 3, (), work, ("attention", depth, causal))


_RESNET_1X1 = ((56, 64, 256), (56, 256, 64), (28, 512, 128), (28, 128, 512), (14, 1024, 256), (14, 256, 1024),
               (7, 2048, 512), (7, 512, 2048))  # fmt: skip
_RESNET_3X3 = ((56, 64), (28, 128), (14, 256), (7, 512))
_BERT = ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (64, 2048, 2048))
_SKINNY = ((1, 768, 3072), (1, 4096, 4096), (4, 3072, 768), (8, 768, 3072), (16, 1024, 1024))

CASES: tuple[OperatorCase, ...] = (
    *(product(n, n, n) for n in (128, 256, 512, 1024)),
    *(product(*size) for size in (*_BERT, *_SKINNY)),
    *(convolution(size, c, c, 3) for size, c in _RESNET_3X3),
    *(convolution(size, a, b, 1) for size, a, b in _RESNET_1X1),
    convolution(224, 3, 64, 7, 2, kind="stem"),
    *(
        convolution(s, c, c, 3, t, c, "depthwise_pool")
        for s, c, t in ((112, 32, 1), (56, 144, 1), (28, 192, 2), (14, 576, 1))
    ),
    pooling(112, 64, 3, 2, 1, average=False),
    pooling(28, 192, 3, 1, 1, average=False),
    pooling(14, 256, 7, 7, 0, average=True),
    softmax(1536, 128),
    softmax(6144, 512),
    layer_norm(128, 768),
    layer_norm(512, 1024),
    gelu(128, 3072),
    gelu(512, 3072),
    *(attention(12, rows, 64, causal) for rows in (128, 512, 1024) for causal in (False, True)),
    *(int8_product(*size) for size in ((512, 512, 512), (128, 768, 768), (128, 3072, 768))),
)
