"""Convolutions over N, C, spatial axes, each one `conv_general_dilated`.

A transposed convolution is the plain one over an input spread by its stride, with the kernel mirrored and its in and
out channels exchanged within each group.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, bounded, op
from superopt.frontends.onnx.ops.linalg import Shifted, centred, singles, summed_exactly, terms_exact_in_float32

Pads = list[tuple[int, int]]


def dimension_numbers(rank: int) -> lax.ConvDimensionNumbers:
    """Batch, channels, space; kernel as out, in, space."""
    order = tuple(range(rank))
    return lax.ConvDimensionNumbers(order, order, order)


def window_pads(
    auto_pad: str, pads: Sequence[int] | None, space: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> Pads:
    """Low and high padding of each spatial axis (`window`: with its dilation)."""
    k = len(space)
    if auto_pad in ("", "NOTSET"):
        given = list(pads) if pads else [0] * (2 * k)
        if len(given) != 2 * k:
            raise InputError(f"{len(given)} pads for {k} spatial axes")
        return [(given[i], given[k + i]) for i in range(k)]
    if auto_pad == "VALID":
        return [(0, 0)] * k
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise InputError(f"auto_pad {auto_pad!r} is not known")
    widths: Pads = []
    for size, extent, stride in zip(space, window, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        widths.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return widths


def convolve(call: Call, x: Any, w: Any, accumulate: Any = None) -> Any:
    """The convolution that the node's attributes describe."""
    k = x.ndim - 2
    if w.ndim != x.ndim or k < 1:
        raise InputError(f"kernel of shape {list(w.shape)} for data of shape {list(x.shape)}")
    kernel = call.attrs.get("kernel_shape") or w.shape[2:]
    if tuple(kernel) != tuple(w.shape[2:]):
        raise InputError(f"kernel_shape {list(kernel)} for a kernel of shape {list(w.shape)}")
    strides = call.attrs.get("strides") or [1] * k
    dilations = call.attrs.get("dilations") or [1] * k
    extent = [(s - 1) * d + 1 for s, d in zip(kernel, dilations, strict=True)]
    pads = window_pads(call.attrs["auto_pad"], call.attrs.get("pads"), x.shape[2:], extent, strides)
    return lax.conv_general_dilated(
        x, w, strides, pads, rhs_dilation=dilations, dimension_numbers=dimension_numbers(x.ndim),
        feature_group_count=call.attrs["group"], preferred_element_type=accumulate,
    )  # fmt: skip


def add_bias(x: Any, bias: Any) -> Any:
    """Add one value per channel."""
    return x if bias is None else x + bias.astype(x.dtype).reshape(1, -1, *([1] * (x.ndim - 2)))


@op("Conv")
def _conv(call: Call, x: Any, w: Any, bias: Any = None) -> Any:
    return add_bias(convolve(call, x, w, None if bias is None else singles(x)), bias).astype(x.dtype)


@op("ConvInteger", operands=((Shifted, 0, 2), (Shifted, 1, 3)))
def _conv_integer(call: Call, x: Shifted, w: Shifted) -> Any:
    data, kernel = centred(*x), centred(*w, 0)
    step = terms_exact_in_float32(x, w) // max(math.prod(kernel.shape[2:]), 1)  # input channels at once
    if not step or call.attrs["group"] != 1 or not kernel.shape[1]:
        return convolve(call, data, kernel, np.int32)
    return summed_exactly(functools.partial(convolve, call), data, kernel, (1, 1), step)


@op("ConvTranspose")
def _conv_transpose(call: Call, x: Any, w: Any, bias: Any = None) -> Any:
    k, group = x.ndim - 2, call.attrs["group"]
    strides = call.attrs.get("strides") or [1] * k
    dilations = call.attrs.get("dilations") or [1] * k
    extra = call.attrs.get("output_padding") or [0] * k
    extent = [(s - 1) * d + 1 for s, d in zip(w.shape[2:], dilations, strict=True)]
    pads = _transpose_pads(call, x.shape[2:], extent, strides, extra)
    c_in, c_out = w.shape[:2]
    kernel = w.reshape(group, c_in // group, c_out, *w.shape[2:]).swapaxes(1, 2)
    kernel = lax.rev(kernel.reshape(group * c_out, c_in // group, *w.shape[2:]), tuple(range(2, w.ndim)))
    padding = [(e - 1 - lo, e - 1 - hi + o) for e, (lo, hi), o in zip(extent, pads, extra, strict=True)]
    result = lax.conv_general_dilated(
        x, kernel, [1] * k, padding, lhs_dilation=strides, rhs_dilation=dilations,
        dimension_numbers=dimension_numbers(x.ndim), feature_group_count=group,
        preferred_element_type=None if bias is None else singles(x),
    )  # fmt: skip
    return add_bias(result, bias).astype(x.dtype)


def _transpose_pads(
    call: Call, space: Sequence[int], extent: Sequence[int], strides: Sequence[int], extra: Sequence[int]
) -> Pads:
    full = [s * (d - 1) + e + o for d, e, s, o in zip(space, extent, strides, extra, strict=True)]
    wanted = call.attrs.get("output_shape")
    auto_pad = call.attrs["auto_pad"]
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [d * s for d, s in zip(space, strides, strict=True)]
    if wanted is None:
        return window_pads(auto_pad, call.attrs.get("pads"), space, extent, strides)
    pads: Pads = []
    for have, want in zip(full, list(wanted)[-len(full) :], strict=True):
        total = have - want
        half = total // 2
        pads.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
    return pads


@op("Col2Im", wide=True)
def _col2im(call: Call, x: Any, image_shape: Any, block_shape: Any) -> Any:
    image, block = call.ints(image_shape, "image_shape"), call.ints(block_shape, "block_shape")
    k = len(image)
    strides = call.attrs.get("strides") or [1] * k
    dilations = call.attrs.get("dilations") or [1] * k
    extent = [(b - 1) * d + 1 for b, d in zip(block, dilations, strict=True)]
    pads = window_pads("NOTSET", call.attrs.get("pads"), image, extent, strides)
    counts = [(i + lo + hi - e) // s + 1 for i, (lo, hi), e, s in zip(image, pads, extent, strides, strict=True)]
    n, channels = x.shape[0], x.shape[1] // math.prod(block)
    columns = x.reshape(n, channels, *block, *counts)
    result = jnp.zeros((n, channels, *(i + lo + hi for i, (lo, hi) in zip(image, pads, strict=True))), x.dtype)
    bounded(math.prod(block), 4096, "a block")
    for offset in np.ndindex(*block):
        call.spend()
        starts = [o * d for o, d in zip(offset, dilations, strict=True)]
        place = tuple(slice(a, a + (c - 1) * s + 1, s) for a, c, s in zip(starts, counts, strides, strict=True))
        result = result.at[(slice(None), slice(None), *place)].add(columns[(slice(None), slice(None), *offset)])
    inner = tuple(slice(lo, lo + i) for i, (lo, _) in zip(image, pads, strict=True))
    return result[(slice(None), slice(None), *inner)]
