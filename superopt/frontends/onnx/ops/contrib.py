"""Operators of the domain `com.microsoft`: those that ONNX Runtime's quantiser and its fusions of transformers write.

The `onnx` package does not define them; attributes and their defaults stand here, and an attribute that is not named
refuses the node.  Quantised operators compute on the real numbers that their integers stand for and round once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import TABLE, Call, UnsupportedOpError, op
from superopt.frontends.onnx.ops.activations import like, softmax
from superopt.frontends.onnx.ops.conv import add_bias, convolve
from superopt.frontends.onnx.ops.linalg import centred, matmul, scaled_sum
from superopt.frontends.onnx.ops.movement import axis_of
from superopt.frontends.onnx.ops.norm import promoted
from superopt.frontends.onnx.ops.quant import dynamic_range, quantise

MS = "com.microsoft"
ms = functools.partial(op, domain=MS)


def real(x: Any, scale: Any, zero: Any, axis: int | None = None) -> Any:
    """The numbers that quantised values stand for; one scale, or one for each place along an axis."""
    if scale.size > 1 and axis is not None:
        scale = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
    elif scale.size == 1:
        scale = scale.reshape(())
    return centred(x, zero, axis).astype(scale.dtype) * scale


def rounded(x: Any, scale: Any, zero: Any, like_type: Any) -> Any:
    """Real numbers as quantised ones of the type of the zero point, or of another tensor where there is none."""
    dtype = np.dtype(like_type.dtype if zero is None else zero.dtype)
    return quantise(x, scale.reshape(()), None if zero is None else zero.reshape(()), dtype, True)


# ---- quantised elementwise


@ms("QLinearAdd", "QLinearMul", attributes={})
def _qlinear_binary(
    call: Call, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any, zero: Any = None
) -> Any:
    x, y = real(a, a_scale, a_zero), real(b, b_scale, b_zero)
    return rounded(x + y if call.node.op_type == "QLinearAdd" else x * y, scale, zero, a)


@ms("QLinearSigmoid", attributes={})
def _qlinear_sigmoid(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    return rounded(lax.logistic(real(x, x_scale, x_zero)), scale, zero, x)


@ms("QLinearLeakyRelu", attributes={"alpha": 0.01})
def _qlinear_leaky_relu(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    value = real(x, x_scale, x_zero)
    return rounded(jnp.where(value >= 0, value, value * like(value, call.attrs["alpha"])), scale, zero, x)


@ms("QLinearSoftmax", attributes={"axis": -1, "opset": 13})
def _qlinear_softmax(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    axis = axis_of(call.attrs["axis"], x.ndim)
    axes = (axis,) if call.attrs["opset"] >= 13 else tuple(range(axis, x.ndim))
    return rounded(softmax(real(x, x_scale, x_zero), axes), scale, zero, x)


@ms("QLinearWhere", attributes={})
def _qlinear_where(
    call: Call, chosen: Any, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, scale: Any,
    zero: Any = None,
) -> Any:  # fmt: skip
    return rounded(jnp.where(chosen, real(x, x_scale, x_zero), real(y, y_scale, y_zero)), scale, zero, x)


@ms("QLinearConcat", attributes={"axis": 0})
def _qlinear_concat(call: Call, scale: Any, zero: Any, *operands: Any) -> Any:
    if len(operands) % 3:
        raise InputError("each tensor needs its scale and zero point")
    parts = [real(*operands[i : i + 3]) for i in range(0, len(operands), 3)]
    return rounded(jnp.concatenate(parts, axis_of(call.attrs["axis"], parts[0].ndim)), scale, zero, operands[0])


# ---- quantised reductions


@ms("QLinearReduceMean", attributes={"axes": None, "keepdims": 1})
def _qlinear_mean(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    axes = call.attrs["axes"]
    chosen = tuple(range(x.ndim)) if axes is None else tuple(axis_of(a, x.ndim) for a in axes)
    return rounded(jnp.mean(real(x, x_scale, x_zero), chosen, keepdims=bool(call.attrs["keepdims"])), scale, zero, x)


@ms("QLinearGlobalAveragePool", attributes={"channels_last": 0})
def _qlinear_global_pool(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    axes = tuple(range(1, x.ndim - 1)) if call.attrs["channels_last"] else tuple(range(2, x.ndim))
    return rounded(jnp.mean(real(x, x_scale, x_zero), axes, keepdims=True), scale, zero, x)


@ms(
    "QLinearAveragePool",
    attributes={
        "auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0, "kernel_shape": None,
        "pads": None, "strides": None, "dilations": None,
    },
)  # fmt: skip
def _qlinear_pool(call: Call, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None) -> Any:
    value = real(x, x_scale, x_zero)
    last = bool(call.attrs["channels_last"])
    value = jnp.moveaxis(value, -1, 1) if last else value
    pooled = TABLE["", "AveragePool"].run(call, value)
    return rounded(jnp.moveaxis(pooled, 1, -1) if last else pooled, scale, zero, x)


# ---- products


@ms("QGemm", attributes={"alpha": 1.0, "transA": 0, "transB": 0})
def _qgemm(
    call: Call, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, c: Any = None, scale: Any = None,
    zero: Any = None,
) -> Any:  # fmt: skip
    contract = ((0 if call.attrs["transA"] else 1,), (1 if call.attrs["transB"] else 0,))
    columns = 0 if call.attrs["transB"] else 1
    total = lax.dot_general(
        centred(a, a_zero), centred(b, b_zero, columns), (contract, ((), ())), preferred_element_type=np.int32
    )
    total = total if c is None else total + c
    factor = a_scale.reshape(()) * like(a_scale, call.attrs["alpha"])
    value = total.astype(np.float32) * (factor * (b_scale.reshape(()) if b_scale.size == 1 else b_scale))
    return value if scale is None else rounded(value, scale, zero, a)


@ms("MatMulIntegerToFloat", attributes={})
def _matmul_to_float(
    call: Call, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None, b_zero: Any = None, bias: Any = None
) -> Any:
    return _real_product(a, b, a_scale, b_scale, a_zero, b_zero, bias)


def _real_product(a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any, bias: Any) -> Any:
    total = matmul(centred(a, a_zero), centred(b, b_zero, -1), np.int32).astype(a_scale.dtype)
    value = total * (a_scale.reshape(()) * (b_scale.reshape(()) if b_scale.size == 1 else b_scale))
    return value if bias is None else value + bias


@ms("DynamicQuantizeMatMul", attributes={})
def _dynamic_matmul(call: Call, a: Any, b: Any, b_scale: Any, b_zero: Any = None, bias: Any = None) -> Any:
    whole, a_scale, a_zero = dynamic_range(a)
    return _real_product(whole, b, a_scale, b_scale, a_zero, b_zero, bias)


def _swapped(x: Any, matrix: int, batch: int) -> Any:
    if batch:
        x = jnp.moveaxis(x, 0, -2)
    return jnp.swapaxes(x, -1, -2) if matrix and x.ndim > 1 else x


@ms(
    "FusedMatMul",
    "TransposeMatMul",
    attributes={"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
)
def _fused_matmul(call: Call, a: Any, b: Any) -> Any:
    attrs = call.attrs
    total = matmul(
        _swapped(a, attrs["transA"], attrs["transBatchA"]), _swapped(b, attrs["transB"], attrs["transBatchB"])
    )
    return total if attrs["alpha"] == 1.0 else total * like(total, attrs["alpha"])


def _activated(call: Call, x: Any, name: str, values: list[float]) -> Any:
    first, second = [*values, None, None][:2]
    if name in ("", "Identity"):
        return x
    if name == "Relu":
        return jnp.maximum(x, like(x, 0))
    if name == "Tanh":
        return lax.tanh(x)
    if name == "Sigmoid":
        return lax.logistic(x)
    if name == "LeakyRelu":
        return jnp.where(x >= 0, x, x * like(x, 0.01 if first is None else first))
    if name == "Clip" and first is not None and second is not None:
        return jnp.clip(x, like(x, first), like(x, second))
    if name == "HardSigmoid":
        line = x * like(x, 0.2 if first is None else first) + like(x, 0.5 if second is None else second)
        return jnp.clip(line, like(x, 0), like(x, 1))
    raise UnsupportedOpError(f"{call.node.op_type} with the activation {name!r} is not supported")


@ms(
    "FusedGemm",
    attributes={
        "alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, "activation": "", "activation_alpha": 0.0,
        "activation_beta": 0.0, "activation_gamma": 0.0,
    },
)  # fmt: skip
def _fused_gemm(call: Call, a: Any, b: Any, c: Any = None) -> Any:
    attrs = call.attrs
    contract = ((0 if attrs["transA"] else 1,), (1 if attrs["transB"] else 0,))
    total = scaled_sum(lax.dot_general(a, b, (contract, ((), ()))), attrs["alpha"], c, attrs["beta"])
    return _activated(call, total, attrs["activation"], [attrs["activation_alpha"], attrs["activation_beta"]])


@ms(
    "FusedConv",
    attributes={
        "auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None,
        "activation": "", "activation_params": (),
    },
)  # fmt: skip
def _fused_conv(call: Call, x: Any, w: Any, bias: Any = None, added: Any = None) -> Any:
    total = add_bias(convolve(call, x, w), bias)
    total = total if added is None else total + added
    return _activated(call, total, call.attrs["activation"], list(call.attrs["activation_params"]))


@ms(
    "MatMulNBits",
    attributes={"K": 0, "N": 0, "bits": 4, "block_size": 32, "accuracy_level": 0, "weight_prepacked": 0},
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


def _gelu(x: Any) -> Any:
    return like(x, 0.5) * x * (like(x, 1) + lax.erf(x * like(x, math.sqrt(0.5))))


@ms("Gelu", attributes={})
def _ms_gelu(call: Call, x: Any) -> Any:
    return _gelu(x)


@ms("BiasGelu", attributes={})
def _bias_gelu(call: Call, x: Any, bias: Any) -> Any:
    return _gelu(x + bias)


@ms("FastGelu", attributes={})
def _fast_gelu(call: Call, x: Any, bias: Any = None) -> Any:
    x = x if bias is None else x + bias
    inner = like(x, math.sqrt(2 / math.pi)) * (x + like(x, 0.044715) * lax.integer_pow(x, 3))
    return like(x, 0.5) * x * (like(x, 1) + lax.tanh(inner))


@ms("QuickGelu", attributes={"alpha": 1.702})
def _quick_gelu(call: Call, x: Any) -> Any:
    return x * lax.logistic(x * like(x, call.attrs["alpha"]))


def _layer_norm(x: Any, scale: Any, bias: Any, eps: float, centre: bool) -> tuple[Any, Any, Any]:
    kind = x.dtype
    wide, scale = promoted(x.astype(np.float32) if kind.itemsize < 4 else x, scale)
    mean = jnp.mean(wide, -1, keepdims=True) if centre else jnp.zeros((), wide.dtype)
    moved = wide - mean if centre else wide
    inverse = lax.rsqrt(jnp.mean(jnp.square(moved), -1, keepdims=True) + like(wide, eps))
    result = moved * inverse * scale
    return (result if bias is None else result + bias.astype(result.dtype)).astype(kind), mean, inverse


@op("SimplifiedLayerNormalization", attributes={"axis": -1, "epsilon": 1e-5, "stash_type": 1})
def _simplified_norm(call: Call, x: Any, scale: Any) -> Any:
    if axis_of(call.attrs["axis"], x.ndim) != x.ndim - 1:
        raise UnsupportedOpError("SimplifiedLayerNormalization over several axes is not supported")
    result, _, inverse = _layer_norm(x, scale, None, call.attrs["epsilon"], False)
    return (result, inverse) if call.n_outputs > 1 else result


@ms("SkipLayerNormalization", attributes={"epsilon": 1e-12})
def _skip_norm(call: Call, x: Any, skip: Any, scale: Any, shift: Any = None, bias: Any = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    result, mean, inverse = _layer_norm(total, scale, shift, call.attrs["epsilon"], True)
    return (result, mean, inverse, total)[: max(call.n_outputs, 1)]


@ms("SkipSimplifiedLayerNormalization", attributes={"epsilon": 1e-12})
def _skip_simplified_norm(call: Call, x: Any, skip: Any, scale: Any, bias: Any = None) -> Any:
    total = x + skip if bias is None else x + skip + bias
    result, mean, inverse = _layer_norm(total, scale, None, call.attrs["epsilon"], False)
    return (result, mean, inverse, total)[: max(call.n_outputs, 1)]


@ms("EmbedLayerNormalization", attributes={"epsilon": 1e-12, "mask_index_type": 0})
def _embed_norm(
    call: Call, ids: Any, segments: Any, words: Any, places: Any, kinds: Any, scale: Any, shift: Any, mask: Any = None,
    positions: Any = None,
) -> Any:  # fmt: skip
    where = lax.broadcasted_iota(np.int32, ids.shape, 1) if positions is None else positions
    total = jnp.take(words, ids, 0, mode="clip") + jnp.take(places, where, 0, mode="clip")
    if segments is not None and kinds is not None:
        total = total + jnp.take(kinds, segments, 0, mode="clip")
    result, _, _ = _layer_norm(total, scale, shift, call.attrs["epsilon"], True)
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


def _present(call: Call, k: Any, v: Any, past: Any) -> tuple[Any, Any]:
    if past is None:
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
    k, v = _present(call, k, v, past)
    result = _attend(call, q, k, v, _seen(mask, q.shape[0], q.shape[2], k.shape[2]), added)
    return (result, jnp.stack([k, v])) if call.n_outputs > 1 else result


@ms("Attention", attributes=_ATTENTION)
def _attention(
    call: Call, x: Any, w: Any, bias: Any = None, mask: Any = None, past: Any = None, added: Any = None, _: Any = None
) -> Any:
    projected = matmul(x, w) if bias is None else matmul(x, w) + bias
    return _self_attention(call, projected, mask, past, added)


@ms("QAttention", attributes=_ATTENTION)
def _qattention(
    call: Call, x: Any, w: Any, bias: Any, x_scale: Any, w_scale: Any, mask: Any = None, x_zero: Any = None,
    w_zero: Any = None, past: Any = None,
) -> Any:  # fmt: skip
    return _self_attention(call, _real_product(x, w, x_scale, w_scale, x_zero, w_zero, bias), mask, past, None)


@ms("MultiHeadAttention", attributes={"num_heads": 1, "unidirectional": 0, "mask_filter_value": -10000.0, "scale": 0.0})
def _multi_head(
    call: Call, q: Any, k: Any = None, v: Any = None, bias: Any = None, mask: Any = None, added: Any = None,
    past_k: Any = None, past_v: Any = None,
) -> Any:  # fmt: skip
    heads = call.attrs["num_heads"]
    if k is None or v is None or q.ndim != 3 or k.ndim not in (3, 4):
        raise UnsupportedOpError("MultiHeadAttention with packed operands is not supported")
    shifts: list[Any] = [None] * 3
    if bias is not None:
        shifts = jnp.split(bias, [q.shape[-1], 2 * q.shape[-1]])
    given = [x if b is None or x.ndim == 4 else x + b for x, b in zip((q, k, v), shifts, strict=True)]
    q, k, v = (x if x.ndim == 4 else _heads(x, heads) for x in given)
    k, v = _present(call, k, v, None if past_k is None else (past_k, past_v))
    result = _attend(call, q, k, v, _seen(mask, q.shape[0], q.shape[2], k.shape[2]), added)
    return (result, k, v) if call.n_outputs > 1 else result


@ms(
    "RotaryEmbedding",
    attributes={"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "scale": 1.0, "is_packed_batching": 0},
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


@ms("QuantizeLinear", attributes={"axis": 1, "block_size": 0})
def _ms_quantize(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    return TABLE["", "QuantizeLinear"].run(call, x, scale, zero)


@ms("DequantizeLinear", attributes={"axis": 1, "block_size": 0})
def _ms_dequantize(call: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    return TABLE["", "DequantizeLinear"].run(call, x, scale, zero)


@ms("Trilu", attributes={"upper": 1})
def _ms_trilu(call: Call, x: Any, k: Any = None) -> Any:
    return TABLE["", "Trilu"].run(call, x, k)


@ms("ExpandDims", attributes={})
def _expand_dims(call: Call, x: Any, axis: Any) -> Any:
    return jnp.expand_dims(x, axis_of(int(call.static(axis, "axis").ravel()[0]), x.ndim + 1))


@ms("Inverse", attributes={})
def _inverse(call: Call, x: Any) -> Any:
    return jnp.linalg.inv(x)
