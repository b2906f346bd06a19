"""Operators of the domain `com.microsoft`: those that ONNX Runtime's quantiser and its fusions of transformers write.

The `onnx` package does not define them; attributes and their defaults stand here, and an attribute that is not named
refuses the node.  Quantised operators compute on the real numbers that their integers stand for and round once.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import TABLE, Call, UnsupportedOpError, is_half, op
from superopt.frontends.onnx.ops.activations import CURVES, gelu, like, softmax
from superopt.frontends.onnx.ops.conv import add_bias, convolve
from superopt.frontends.onnx.ops.linalg import matmul
from superopt.frontends.onnx.ops.movement import axis_of
from superopt.frontends.onnx.ops.norm import promoted, standardised
from superopt.frontends.onnx.ops.quant import Grid, Quantized, dynamic_range, sums
from superopt.frontends.onnx.ops.rnn import LstmProducts, lstm

MS = "com.microsoft"
ms = functools.partial(op, domain=MS)


def qlinear(
    *names: str, plain: int = 0, tensors: int = 1, attributes: Mapping[str, Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function of real numbers under operators of quantised ones.

    Operands are `plain` ones, then tensors with scale and zero point each, then scale and zero point of the result.
    """
    end = plain + 3 * tensors
    parts = [*range(plain), *[(Quantized, i, i + 1, i + 2) for i in range(plain, end, 3)], (Grid, end, end + 1)]

    def enter(compute: Callable[..., Any]) -> Callable[..., Any]:
        @ms(*names, attributes=attributes, operands=parts)
        def run(call: Call, *given: Any) -> Any:
            *operands, grid = given
            value = compute(call, *operands[:plain], *[x.real() for x in operands[plain:]])
            return grid.rounded(value, operands[plain].value)

        return run

    return enter


# ---- quantised elementwise


@qlinear("QLinearAdd", "QLinearMul", tensors=2, attributes={})
def _qlinear_binary(call: Call, x: Any, y: Any) -> Any:
    return x + y if call.node.op_type == "QLinearAdd" else x * y


@qlinear("QLinearSigmoid", attributes={})
def _qlinear_sigmoid(call: Call, x: Any) -> Any:
    return lax.logistic(x)


@qlinear("QLinearLeakyRelu", attributes={"alpha": 0.01})
def _qlinear_leaky_relu(call: Call, x: Any) -> Any:
    return jnp.where(x >= 0, x, x * like(x, call.attrs["alpha"]))


@qlinear("QLinearSoftmax", attributes={"axis": -1, "opset": 13})
def _qlinear_softmax(call: Call, x: Any) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    return softmax(x, (axis,) if call.attrs["opset"] >= 13 else tuple(range(axis, x.ndim)))


@qlinear("QLinearWhere", plain=1, tensors=2, attributes={})
def _qlinear_where(call: Call, chosen: Any, x: Any, y: Any) -> Any:
    return jnp.where(chosen, x, y)


@ms("QLinearConcat", attributes={"axis": 0})
def _qlinear_concat(call: Call, scale: Any, zero: Any, *operands: Any) -> Any:
    if len(operands) % 3:
        raise InputError("each tensor needs its scale and zero point")
    parts = [Quantized(*operands[i : i + 3]).real() for i in range(0, len(operands), 3)]
    joined = jnp.concatenate(parts, axis_of(call.attrs["axis"], parts[0].ndim))
    return Grid(scale, zero).rounded(joined, operands[0])


# ---- quantised reductions


@qlinear("QLinearReduceMean", attributes={"axes": None, "keepdims": 1})
def _qlinear_mean(call: Call, x: Any) -> Any:
    axes = call.attrs["axes"]
    chosen = tuple(range(x.ndim)) if axes is None else tuple(axis_of(a, x.ndim) for a in axes)
    return jnp.mean(x, chosen, keepdims=bool(call.attrs["keepdims"]))


@qlinear("QLinearGlobalAveragePool", attributes={"channels_last": 0})
def _qlinear_global_pool(call: Call, x: Any) -> Any:
    axes = tuple(range(1, x.ndim - 1)) if call.attrs["channels_last"] else tuple(range(2, x.ndim))
    return jnp.mean(x, axes, keepdims=True)


@qlinear(
    "QLinearAveragePool",
    attributes={
        "auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0, "kernel_shape": None,
        "pads": None, "strides": None, "dilations": None,
    },
)  # fmt: skip
def _qlinear_pool(call: Call, x: Any) -> Any:
    last = bool(call.attrs["channels_last"])
    pooled = TABLE["", "AveragePool"].run(call, jnp.moveaxis(x, -1, 1) if last else x)
    return jnp.moveaxis(pooled, 1, -1) if last else pooled


# ---- products


@ms(
    "QGemm",
    attributes={"alpha": 1.0, "transA": 0, "transB": 0},
    operands=((Quantized, 0, 1, 2), (Quantized, 3, 4, 5), 6, (Grid, 7, 8)),
)
def _qgemm(call: Call, a: Quantized, b: Quantized, c: Any = None, y: Grid | None = None) -> Any:
    contract = ((0 if call.attrs["transA"] else 1,), (1 if call.attrs["transB"] else 0,))
    columns = 0 if call.attrs["transB"] else 1

    def product(left: Any, right: Any, kind: Any) -> Any:
        return lax.dot_general(left, right, (contract, ((), ())), preferred_element_type=kind)

    total = sums(a, b, product, None, columns)
    total = total if c is None else total + c.astype(np.float32)
    factor = a.scale.reshape(()) * like(a.scale, call.attrs["alpha"])
    value = total * (factor * b.factor())
    return value if y is None or y.scale is None else y.rounded(value, a.value)


@ms("MatMulIntegerToFloat", attributes={}, operands=((Quantized, 0, 2, 4), (Quantized, 1, 3, 5), 6))
def _matmul_to_float(call: Call, a: Quantized, b: Quantized, bias: Any = None) -> Any:
    return _real_product(a, b, bias)


def _real_product(a: Quantized, b: Quantized, bias: Any) -> Any:
    total = sums(a, b, matmul, None, -1).astype(a.scale.dtype)
    value = total * (a.scale.reshape(()) * b.factor())
    return value if bias is None else value + bias


@ms("DynamicQuantizeMatMul", attributes={}, operands=(0, (Quantized, 1, 2, 3), 4))
def _dynamic_matmul(call: Call, a: Any, b: Quantized, bias: Any = None) -> Any:
    return _real_product(Quantized(*dynamic_range(a)), b, bias)


@ms(
    "DynamicQuantizeLSTM",
    attributes={
        "activation_alpha": None, "activation_beta": None, "activations": None, "clip": None, "direction": "forward",
        "hidden_size": None, "input_forget": 0,
    },
    operands=(0, (Quantized, 1, 8, 9), (Quantized, 2, 10, 11), 3, 4, 5, 6, 7),
)  # fmt: skip
def _dynamic_lstm(call: Call, x: Any, w: Quantized, r: Quantized, bias: Any = None, *rest: Any) -> Any:
    """An LSTM whose inputs and whose state at each step are bytes over their own range; weights `[inputs, gates]`.

    The range of a state is that of the whole batch, as in ONNX Runtime on one thread; on more it has one for each part.
    """

    def product(d: int, data: Any, weights: Quantized) -> Any:
        own = Quantized(*[None if part is None else part[d] for part in (weights.value, weights.scale, weights.zero)])
        return _real_product(Quantized(*dynamic_range(data)), own, None)

    def of_inputs(d: int, data: Any) -> Any:
        total = product(d, data, w)
        return total if bias is None else total + jnp.sum(bias[d].reshape(2, -1), 0)

    return lstm(call, x, LstmProducts(r.value.shape[1], of_inputs, lambda d, h: product(d, h, r)), *rest)


def _swapped(x: Any, matrix: int, batch: int) -> Any:
    if batch:
        x = jnp.moveaxis(x, 0, -2)
    return jnp.swapaxes(x, -1, -2) if matrix and x.ndim > 1 else x


@ms(
    "FusedMatMul",
    "TransposeMatMul",
    attributes={"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
    wide=True,
)
def _fused_matmul(call: Call, a: Any, b: Any) -> Any:
    attrs = call.attrs
    total = matmul(
        _swapped(a, attrs["transA"], attrs["transBatchA"]), _swapped(b, attrs["transB"], attrs["transBatchB"])
    )
    return total if attrs["alpha"] == 1.0 else total * like(total, attrs["alpha"])


def _activated(call: Call, x: Any, name: str, values: Sequence[float]) -> Any:
    if name in ("", "Identity"):
        return x
    if name == "Clip" and len(values) >= 2:
        return jnp.clip(x, *[like(x, v) for v in values[:2]])
    if name not in CURVES:
        raise UnsupportedOpError(f"{call.node.op_type} with the activation {name!r} is not supported")
    compute, defaults = CURVES[name]
    return compute(x, *[*values, *defaults[len(values) :]][: len(defaults)])


@ms(
    "FusedGemm",
    attributes={
        "alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, "activation": "", "activation_alpha": None,
        "activation_beta": None, "activation_gamma": None,
    },
    wide=True,
)  # fmt: skip
def _fused_gemm(call: Call, *operands: Any) -> Any:
    attrs, total = call.attrs, TABLE["", "Gemm"].run(call, *operands)
    given = itertools.takewhile(lambda v: v is not None, (attrs["activation_alpha"], attrs["activation_beta"]))
    return _activated(call, total, attrs["activation"], list(given))


@ms(
    "FusedConv",
    attributes={
        "auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None,
        "activation": "", "activation_params": (),
    },
    wide=True,
)  # fmt: skip
def _fused_conv(call: Call, x: Any, w: Any, bias: Any = None, added: Any = None) -> Any:
    total = add_bias(convolve(call, x, w), bias)
    total = total if added is None else total + added
    return _activated(call, total, call.attrs["activation"], call.attrs["activation_params"])


@ms(
    "MatMulNBits",
    attributes={"K": 0, "N": 0, "bits": 4, "block_size": 32, "accuracy_level": 0, "weight_prepacked": 0},
    wide=True,
)
def _matmul_n_bits(
    call: Call, a: Any, b: Any, scales: Any, zeros: Any = None, group: Any = None, bias: Any = None
) -> Any:
    k, n, bits, block = (call.attrs[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8) or group is not None or call.attrs["weight_prepacked"]:
        raise UnsupportedOpError(f"MatMulNBits of {bits} bits, with groups or packed ahead, is not supported")
    blocks = -(-k // block)
    whole = _unpacked(b.reshape(n, blocks, -1), bits)[..., :block].astype(np.float32)
    if zeros is None:
        middle: Any = np.float32(2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        middle = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks, None].astype(np.float32)
    else:
        middle = zeros.reshape(n, blocks, 1).astype(np.float32)
    w = ((whole - middle) * scales.reshape(n, blocks, 1).astype(np.float32)).reshape(n, -1)[:, :k].astype(a.dtype)
    total = lax.dot_general(a, w, (((a.ndim - 1,), (1,)), ((), ())))
    return total if bias is None else total + bias


def _unpacked(x: Any, bits: int) -> Any:
    """The fields of bytes, the lowest bits first."""
    fields = [(x >> np.uint8(shift)) & np.uint8(2**bits - 1) for shift in range(0, 8, bits)]
    return jnp.stack(fields, -1).reshape(*x.shape[:-1], -1)


# ---- activations and normalisations


@ms("Gelu", wide=True, attributes={})
def _ms_gelu(call: Call, x: Any) -> Any:
    return gelu(x)


@ms("BiasGelu", wide=True, attributes={})
def _bias_gelu(call: Call, x: Any, bias: Any) -> Any:
    return gelu(x + bias)


@ms("FastGelu", wide=True, attributes={})
def _fast_gelu(call: Call, x: Any, bias: Any = None) -> Any:
    return gelu(x if bias is None else x + bias, by_tanh=True)


@ms("QuickGelu", wide=True, attributes={"alpha": 1.702})
def _quick_gelu(call: Call, x: Any) -> Any:
    return x * lax.logistic(x * like(x, call.attrs["alpha"]))


def _layer_norm(total: Any, kind: Any, scale: Any, shift: Any, eps: float, *, centre: bool) -> tuple[Any, ...]:
    """Sums of this type, normalised over the last axis and rounded to it; their mean, what scales them, and they."""
    wide, scale = promoted(total, scale)
    normal, mean, inverse = standardised(wide, (-1,), eps, centre=centre)
    result = normal * scale
    result = result if shift is None else result + shift.astype(result.dtype)
    return result.astype(kind), mean, inverse, total.astype(kind)


def _total(*parts: Any) -> Any:
    """The sum of what is there; halves are summed in single precision."""
    there = [x.astype(np.float32) if is_half(x) else x for x in parts if x is not None]
    return functools.reduce(operator.add, there)


@op("SimplifiedLayerNormalization", attributes={"axis": -1, "epsilon": 1e-5, "stash_type": 1})
def _simplified_norm(call: Call, x: Any, scale: Any) -> Any:
    if axis_of(call.attrs["axis"], x.ndim) != x.ndim - 1:
        raise UnsupportedOpError("SimplifiedLayerNormalization over several axes is not supported")
    result, _, inverse, _ = _layer_norm(_total(x), x.dtype, scale, None, call.attrs["epsilon"], centre=False)
    return (result, inverse) if call.n_outputs > 1 else result


@ms("SkipLayerNormalization", attributes={"epsilon": 1e-12})
def _skip_norm(call: Call, x: Any, skip: Any, scale: Any, shift: Any = None, bias: Any = None) -> Any:
    normed = _layer_norm(_total(x, skip, bias), x.dtype, scale, shift, call.attrs["epsilon"], centre=True)
    return normed[: max(call.n_outputs, 1)]


@ms("SkipSimplifiedLayerNormalization", attributes={"epsilon": 1e-12})
def _skip_simplified_norm(call: Call, x: Any, skip: Any, scale: Any, bias: Any = None) -> Any:
    normed = _layer_norm(_total(x, skip, bias), x.dtype, scale, None, call.attrs["epsilon"], centre=False)
    return normed[: max(call.n_outputs, 1)]


class Embeddings(NamedTuple):
    """Rows by word, by position, and by kind of segment (or None)."""

    words: Any
    places: Any
    kinds: Any


@ms(
    "EmbedLayerNormalization",
    attributes={"epsilon": 1e-12, "mask_index_type": 0},
    operands=(0, 1, (Embeddings, 2, 3, 4), 5, 6, 7, 8),
)
def _embed_norm(
    call: Call, ids: Any, segments: Any, rows: Embeddings, scale: Any, shift: Any, mask: Any = None,
    positions: Any = None,
) -> Any:  # fmt: skip
    where = lax.broadcasted_iota(np.int32, ids.shape, 1) if positions is None else positions
    looked_up = [(rows.words, ids), (rows.places, where)]
    if segments is not None and rows.kinds is not None:
        looked_up.append((rows.kinds, segments))
    total = _total(*(jnp.take(table, at, 0, mode="clip") for table, at in looked_up))
    kind = rows.words.dtype
    result, _, _, total = _layer_norm(total, kind, scale, shift, call.attrs["epsilon"], centre=True)
    lengths = jnp.zeros(ids.shape[0], np.int32) if mask is None else jnp.sum(mask, 1, dtype=np.int32)
    return (result, lengths, total)[: max(call.n_outputs, 1)]


# ---- attention


def _heads(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _attend(call: Call, q: Any, k: Any, v: Any, mask: Any, added: Any) -> Any:
    """Attention of `[batch, heads, positions, size]`; `mask` is true where a key is seen."""
    attrs = call.attrs
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1])
    scores = matmul(q, k.swapaxes(-1, -2)) * like(q, scale)
    scores = scores if added is None else scores + added
    hidden = like(scores, attrs["mask_filter_value"])
    if attrs["unidirectional"]:
        rows, columns = scores.shape[-2:]
        seen = lax.broadcasted_iota(np.int32, (rows, columns), 1) <= (
            lax.broadcasted_iota(np.int32, (rows, columns), 0) + np.int32(columns - rows)
        )
        least = float(np.finfo(np.float16 if scores.dtype == np.float16 else np.float32).min)
        scores = jnp.where(seen, scores, like(scores, least))
    if mask is not None:
        scores = scores + jnp.where(mask, like(scores, 0), hidden)
    context = matmul(softmax(scores, (scores.ndim - 1,)), v)
    return context.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


def _seen(mask: Any, batch: int, rows: int, columns: int) -> Any:
    """A mask in one of the forms that the definition has, for scores `[batch, heads, rows, columns]`."""
    if mask is None:
        return None
    place = lax.broadcasted_iota(np.int32, (batch, columns), 1)
    if mask.ndim == 1 and mask.shape[0] == batch:
        return (place < mask[:, None])[:, None, None, :]
    if mask.ndim == 1 and mask.shape[0] == 2 * batch:
        return ((place < mask[:batch, None]) & (place >= mask[batch:, None]))[:, None, None, :]
    if mask.ndim == 2 and mask.shape == (batch, columns):
        return (mask > 0)[:, None, None, :]
    if mask.ndim == 3 and mask.shape == (batch, rows, columns):
        return (mask > 0)[:, None]
    raise UnsupportedOpError(f"a mask of shape {list(mask.shape)} is not supported")


class Past(NamedTuple):
    """Keys and values of positions before, `[batch, heads, positions, size]` each; a pair stacked in one tensor too."""

    k: Any
    v: Any


def _present(k: Any, v: Any, past: Any) -> tuple[Any, Any]:
    if past is None or past[0] is None:
        return k, v
    return jnp.concatenate([past[0], k], 2), jnp.concatenate([past[1], v], 2)


_ATTENTION = {
    "num_heads": 1, "unidirectional": 0, "mask_filter_value": -10000.0, "scale": 0.0, "qkv_hidden_sizes": None,
    "do_rotary": 0, "past_present_share_buffer": 0, "rotary_embedding_dim": 0,
}  # fmt: skip


def _self_attention(call: Call, projected: Any, mask: Any, past: Any, added: Any) -> Any:
    attrs = call.attrs
    if attrs["do_rotary"] or attrs["past_present_share_buffer"]:
        raise UnsupportedOpError(f"{call.node.op_type} with rotation or a shared buffer is not supported")
    width = projected.shape[-1]
    sizes = attrs["qkv_hidden_sizes"] or [width // 3] * 3
    if sum(sizes) != width:
        raise InputError(f"weights for {width} columns and sizes {list(sizes)}")
    q, k, v = jnp.split(projected, np.cumsum(sizes)[:2].tolist(), axis=-1)
    q, k, v = (_heads(x, attrs["num_heads"]) for x in (q, k, v))
    k, v = _present(k, v, past)
    result = _attend(call, q, k, v, _seen(mask, q.shape[0], q.shape[2], k.shape[2]), added)
    return (result, jnp.stack([k, v])) if call.n_outputs > 1 else result


@ms("Attention", attributes=_ATTENTION, wide=True)
def _attention(
    call: Call, x: Any, w: Any, bias: Any = None, mask: Any = None, past: Any = None, added: Any = None, _: Any = None
) -> Any:
    projected = matmul(x, w) if bias is None else matmul(x, w) + bias
    return _self_attention(call, projected, mask, past, added)


@ms("QAttention", attributes=_ATTENTION, operands=((Quantized, 0, 3, 6), (Quantized, 1, 4, 7), 2, 5, 8))
def _qattention(call: Call, x: Quantized, w: Quantized, bias: Any, mask: Any = None, past: Any = None) -> Any:
    return _self_attention(call, _real_product(x, w, bias), mask, past, None)


@ms(
    "MultiHeadAttention",
    attributes={"num_heads": 1, "unidirectional": 0, "mask_filter_value": -10000.0, "scale": 0.0},
    operands=(*range(6), (Past, 6, 7)),
    wide=True,
)
def _multi_head(
    call: Call, q: Any, k: Any = None, v: Any = None, bias: Any = None, mask: Any = None, added: Any = None,
    past: Past | None = None,
) -> Any:  # fmt: skip
    heads = call.attrs["num_heads"]
    if k is None or v is None or q.ndim != 3 or k.ndim not in (3, 4):
        raise UnsupportedOpError("MultiHeadAttention with packed operands is not supported")
    shifts: list[Any] = [None] * 3
    if bias is not None:
        shifts = jnp.split(bias, [q.shape[-1], 2 * q.shape[-1]])
    given = [x if b is None or x.ndim == 4 else x + b for x, b in zip((q, k, v), shifts, strict=True)]
    q, k, v = (x if x.ndim == 4 else _heads(x, heads) for x in given)
    k, v = _present(k, v, past)
    result = _attend(call, q, k, v, _seen(mask, q.shape[0], q.shape[2], k.shape[2]), added)
    return (result, k, v) if call.n_outputs > 1 else result


@ms(
    "RotaryEmbedding",
    attributes={"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0, "is_packed_batching": 0},
    wide=True,
)
def _rotary(call: Call, x: Any, positions: Any, cos: Any, sin: Any) -> Any:
    attrs = call.attrs
    if attrs["is_packed_batching"] or attrs["scale"] != 1.0:
        raise UnsupportedOpError("RotaryEmbedding with packed batches or a scale is not supported")
    size = attrs["rotary_embedding_dim"] or 2 * cos.shape[-1]
    flat = x.ndim == 3
    heads = (attrs["num_heads"] or x.shape[-1] // size) if flat else x.shape[1]
    value = x.reshape(*x.shape[:2], heads, -1) if flat else x.swapaxes(1, 2)
    turned, rest = value[..., :size], value[..., size:]
    start = positions if positions.ndim == 2 else positions + lax.broadcasted_iota(positions.dtype, x.shape[:1], 0) * 0
    where = (
        start
        if positions.ndim == 2
        else start[:, None] + lax.broadcasted_iota(positions.dtype, (value.shape[0], value.shape[1]), 1)
    )
    c, s = (jnp.take(t, where, 0, mode="clip")[:, :, None, : size // 2] for t in (cos, sin))
    if attrs["interleaved"]:
        a, b = turned[..., 0::2], turned[..., 1::2]
        joined = jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(turned.shape)
    else:
        a, b = turned[..., : size // 2], turned[..., size // 2 :]
        joined = jnp.concatenate([a * c - b * s, b * c + a * s], -1)
    result = jnp.concatenate([joined, rest], -1)
    return result.reshape(x.shape) if flat else result.swapaxes(1, 2)


# ---- the same as standard operators of other versions


def _as_standard(name: str, attributes: Mapping[str, Any]) -> None:
    TABLE[MS, name] = replace(TABLE["", name], attributes=attributes)


_as_standard("QuantizeLinear", {"axis": 1, "block_size": 0})
_as_standard("DequantizeLinear", {"axis": 1, "block_size": 0})
_as_standard("Trilu", {"upper": 1})


@ms("ExpandDims", attributes={})
def _expand_dims(call: Call, x: Any, axis: Any) -> Any:
    return jnp.expand_dims(x, axis_of(int(call.static(axis, "axis").ravel()[0]), x.ndim + 1))


@ms("Inverse", wide=True, attributes={})
def _inverse(call: Call, x: Any) -> Any:
    return jnp.linalg.inv(x)
