"""Cases of the GPU benchmark: products, pointwise chains, row kernels and attention, with small sizes for checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.ir.scalar import Array

CaseShapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PallasCase:
    """One operator.

    Attributes:
        name: includes the shapes.
        kind: product, pointwise, rows or attention.
        fn: the operator in JAX.
        shapes: shapes of its arguments.
        small: odd shapes for the check against float64.
        dtype: dtype of its arguments.
        flops: operations of one run; 0 where it is bound by memory.
        precision: precision of float32 products.
        tolerance: bound on the relative difference to the reference, in norm.
        peer: name and function of the same operator in another library.
    """

    name: str
    kind: str
    fn: Callable[..., Any]
    shapes: CaseShapes
    small: CaseShapes
    dtype: str = "float32"
    flops: float = 0
    precision: str = "ieee"
    tolerance: float = 1e-5
    peer: tuple[str, Callable[..., Any]] | None = None

    def arguments(self, seed: int, small: bool = False) -> tuple[Array, ...]:
        """Fresh random arguments."""
        rng = np.random.default_rng(seed)
        kind = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        shapes = self.small if small else self.shapes
        if self.dtype == "int8":
            return tuple(rng.integers(-128, 128, s, dtype=np.int8) for s in shapes)
        return tuple(rng.standard_normal(s, dtype=np.float32).astype(kind) for s in shapes)

    @property
    def bytes_moved(self) -> int:
        """Bytes of the arguments and results, each once."""
        kinds = [jax.ShapeDtypeStruct(s, jnp.dtype(self.dtype)) for s in self.shapes]
        results = jax.tree.leaves(jax.eval_shape(self.fn, *kinds))
        return sum(prod(x.shape) * x.dtype.itemsize for x in (*kinds, *results))


# ---- operators


def _dot(x: Array, w: Array) -> Array:
    wide = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
    y = jnp.matmul(x, w, preferred_element_type=wide)
    return y if x.dtype == jnp.int8 else y.astype(x.dtype)


def _dense(x: Array, w: Array, b: Array) -> Array:
    y = jnp.matmul(x, w, preferred_element_type=jnp.float32) + b.astype(jnp.float32)
    return jax.nn.gelu(y).astype(x.dtype)


def _batched(x: Array, w: Array) -> Array:
    return jnp.einsum("bmk,bnk->bmn", x, w, preferred_element_type=jnp.float32).astype(x.dtype)


def _conv(x: Array, w: Array) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout))


def _gelu(x: Array, b: Array) -> Array:
    return jax.nn.gelu(x + b, approximate=False)


def _chain(x: Array, y: Array, s: Array) -> Array:
    return jax.nn.silu(x * s + y) * jnp.tanh(y) + x


def _transposed(x: Array) -> Array:
    return x.T * 2


def _softmax(x: Array) -> Array:
    return jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype)


def _layer_norm(x: Array, y: Array, g: Array, b: Array) -> Array:
    z = x + y
    mean = z.mean(-1, keepdims=True)
    return (z - mean) * lax.rsqrt(jnp.var(z, -1, keepdims=True) + 1e-5) * g + b


def _rms_norm(x: Array, g: Array) -> Array:
    z = x.astype(jnp.float32)
    return (z * lax.rsqrt(jnp.mean(z * z, -1, keepdims=True) + 1e-6) * g.astype(jnp.float32)).astype(x.dtype)


def _attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * np.float32(q.shape[-1] ** -0.5)
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    p = jax.nn.softmax(s, -1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v, preferred_element_type=jnp.float32).astype(q.dtype)


def _fused_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")


# ---- cases


def _product(m: int, n: int, k: int, dtype: str, precision: str = "ieee", fused: bool = False) -> PallasCase:
    bias = ((n,),) if fused else ()
    small = ((70, 50), (50, 90), *(((90,),) if fused else ()))
    label = f"{'dense+gelu' if fused else 'dot'} {dtype}{'' if dtype != 'float32' else f' {precision}'} {m}x{n}x{k}"
    tolerance = {"bfloat16": 1e-2, "int8": 0.0}.get(dtype, {"ieee": 1e-5, "tf32x3": 1e-4}.get(precision, 2e-3))
    fn = _dense if fused else _dot
    return PallasCase(
        label, "product", fn, ((m, k), (k, n), *bias), small, dtype, 2.0 * m * n * k,
        precision=precision, tolerance=tolerance,
    )  # fmt: skip


def _attend(batch: int, length: int, heads: int, width: int, causal: bool) -> PallasCase:
    shape = (batch, length, heads, width)
    flops = 4.0 * batch * heads * length * length * width * (0.5 if causal else 1)
    peer = ("cuDNN", functools.partial(_fused_attention, causal=causal))
    name = f"attention{' causal' if causal else ''} bfloat16 {batch}x{length}x{heads}x{width}"
    fn = functools.partial(_attention, causal=causal)
    return PallasCase(
        name, "attention", fn, (shape,) * 3, ((1, 150, 2, 32),) * 3, "bfloat16", flops,
        precision="ieee", tolerance=1e-2, peer=peer,
    )  # fmt: skip


def _memory(
    name: str, kind: str, fn: Callable[..., Any], shapes: CaseShapes, small: CaseShapes, dtype: str
) -> PallasCase:
    sizes = "x".join(map(str, shapes[0]))
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-5
    return PallasCase(f"{name} {dtype} {sizes}", kind, fn, shapes, small, dtype, precision="ieee", tolerance=tolerance)


def _rows(rows: int, width: int, count: int, full: int = 1) -> CaseShapes:
    """Some arrays of rows and some vectors of their width."""
    return ((rows, width),) * full + ((width,),) * (count - full)


CASES: tuple[PallasCase, ...] = (
    *(_product(n, n, n, "bfloat16") for n in (1024, 2048, 4096, 8192)),
    _product(4096, 4096, 4096, "float32", "tf32"),
    _product(2048, 2048, 2048, "float32", "ieee"),
    _product(4096, 4096, 4096, "int8"),
    _product(512, 3072, 768, "bfloat16", fused=True),
    _product(8192, 4096, 1024, "bfloat16", fused=True),
    _product(16, 4096, 4096, "bfloat16"),
    _product(1, 4096, 4096, "bfloat16"),
    PallasCase("batched dot bfloat16 64x512x512x64", "product", _batched, ((64, 512, 64),) * 2,
         ((3, 40, 30), (3, 50, 30)), "bfloat16", 2.0 * 64 * 512 * 512 * 64,
         precision="ieee", tolerance=1e-2),
    *(PallasCase(f"conv3x3+relu bfloat16 32x{s}x{s}x{c}", "product", _conv, ((32, s, s, c), (3, 3, c, c)),
           ((1, 9, 8, 20), (3, 3, 20, 24)), "bfloat16", 2.0 * 32 * s * s * c * c * 9,
           precision="ieee", tolerance=1e-2)
      for s, c in ((56, 64), (28, 128), (14, 256))),
    _memory("bias+gelu", "pointwise", _gelu, _rows(8192, 4096, 2), _rows(13, 130, 2), "float32"),
    _memory("bias+gelu", "pointwise", _gelu, _rows(8192, 4096, 2), _rows(13, 130, 2), "bfloat16"),
    _memory("chain", "pointwise", _chain, _rows(8192, 4096, 3, 2), _rows(13, 130, 3, 2), "float32"),
    _memory("transpose", "pointwise", _transposed, ((8192, 8192),), ((70, 45),), "float32"),
    _memory("softmax", "rows", _softmax, ((16384, 1024),), ((13, 100),), "float32"),
    _memory("softmax", "rows", _softmax, ((4096, 8192),), ((3, 1000),), "bfloat16"),
    _memory("softmax", "rows", _softmax, ((2048, 50257),), ((2, 9001),), "float32"),
    _memory("residual+layernorm", "rows", _layer_norm, _rows(16384, 1024, 4, 2), _rows(9, 77, 4, 2), "float32"),
    _memory("rmsnorm", "rows", _rms_norm, _rows(8192, 4096, 2), _rows(9, 128, 2), "bfloat16"),
    *(_attend(4, length, 16, 64, causal) for length in (1024, 4096) for causal in (False, True)),
    _attend(4, 4096, 16, 128, True),
)  # fmt: skip
