"""Convolutions written by hand in other forms, for the variants of the rewrites suite.

All functions take and return NCHW images, so that every variant of a case has the interface of its original, and pay
for the transposes that they need; kernels come prepared (`hwio`, `rows`, `winograd_kernel` ...).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def hwio(w: np.ndarray) -> np.ndarray:
    """A kernel for NHWC convolutions."""
    return np.ascontiguousarray(w.transpose(2, 3, 1, 0))


def to_nhwc(x: Array) -> Array:
    """NHWC from NCHW."""
    return x.transpose(0, 2, 3, 1)


def to_nchw(x: Array) -> Array:
    """NCHW from NHWC."""
    return x.transpose(0, 3, 1, 2)


def conv_nhwc(x: Array, w: Array, stride: int = 1, pad: int | None = None, groups: int = 1) -> Array:
    """An NHWC convolution with an HWIO kernel, half padding unless given."""
    p = (w.shape[0] - 1) // 2 if pad is None else pad
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        ((p, p), (p, p)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def patches_nhwc(x: Array, size: int, stride: int, pad: int) -> Array:
    """Shifted images of an NHWC image side by side in its channels: [b, h, w, size * size * c]."""
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    high = (padded.shape[1] - size) // stride * stride + 1
    wide = (padded.shape[2] - size) // stride * stride + 1
    shifted = [padded[:, i : i + high : stride, j : j + wide : stride, :] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, -1)


def im2col_nhwc(x: Array, w: Array, stride: int = 1) -> Array:
    """An NHWC convolution as one product of patches and an HWIO kernel."""
    size, out = w.shape[0], w.shape[-1]
    return patches_nhwc(x, size, stride, (size - 1) // 2) @ w.reshape(-1, out)


def im2col_nchw(x: Array, w: Array, stride: int = 1) -> Array:
    """An NCHW convolution as one product of a kernel [o, size * size * c] and patches."""
    size = round(float(np.sqrt(w.shape[1] // x.shape[1])))
    pad = (size - 1) // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    high = (padded.shape[2] - size) // stride * stride + 1
    wide = (padded.shape[3] - size) // stride * stride + 1
    shifted = [padded[:, :, i : i + high : stride, j : j + wide : stride] for i in range(size) for j in range(size)]
    columns = jnp.concatenate(shifted, 1)
    rows, cols = columns.shape[2:]
    return (w @ columns.reshape(columns.shape[1], -1)).reshape(1, w.shape[0], rows, cols)


def rows(w: np.ndarray) -> np.ndarray:
    """A kernel for `im2col_nchw`: [o, size * size * c]."""
    return np.ascontiguousarray(w.transpose(0, 2, 3, 1).reshape(w.shape[0], -1))


def shifted_dots_nhwc(x: Array, w: Array) -> Array:
    """An NHWC convolution of step 1 as a sum of products with shifted images."""
    size, pad = w.shape[0], (w.shape[0] - 1) // 2
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    high, wide = x.shape[1], x.shape[2]
    total = padded[:, :high, :wide, :] @ w[0, 0]
    for i in range(size):
        for j in range(size):
            if i or j:
                total = total + padded[:, i : i + high, j : j + wide, :] @ w[i, j]
    return total


def winograd_kernel(w: np.ndarray) -> np.ndarray:
    """A 3x3 kernel transformed for F(2x2, 3x3): [16, c, o]."""
    g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
    u = np.einsum("ai,bj,ocij->abco", g, g, w)
    return np.ascontiguousarray(u.reshape(16, w.shape[1], w.shape[0]))


def winograd_nhwc(x: Array, u: Array) -> Array:
    """An NHWC 3x3 convolution of step 1 by F(2x2, 3x3), one batched product of 16 planes."""
    b, h, w, c = x.shape
    high, wide = (h + 1) // 2, (w + 1) // 2
    z = jnp.pad(x, ((0, 0), (1, 2 * high + 1 - h), (1, 2 * wide + 1 - w), (0, 0)))

    def across(parts: list[Array]) -> list[Array]:
        return [parts[0] - parts[2], parts[1] + parts[2], parts[2] - parts[1], parts[1] - parts[3]]

    def cut(i: int, j: int) -> Array:
        return z[:, i : i + 2 * high - 1 : 2, j : j + 2 * wide - 1 : 2, :]

    columns = [across([cut(i, j) for i in range(4)]) for j in range(4)]
    tiles = [across([columns[j][i] for j in range(4)]) for i in range(4)]
    planes = jnp.stack([tile for row in tiles for tile in row]).reshape(16, b * high * wide, c)
    products = jnp.matmul(planes, u).reshape(4, 4, b, high, wide, -1)

    def back(p: Array) -> Array:
        return jnp.stack([p[0] + p[1] + p[2], p[1] - p[2] - p[3]])

    first = back(products)
    both = back(jnp.moveaxis(first, 1, 0))  # [column, row, b, high, wide, o]
    out = both.transpose(2, 3, 1, 4, 0, 5).reshape(b, 2 * high, 2 * wide, -1)
    return out[:, :h, :w, :]


def depthwise_shifts(x: Array, w: Array, axes: tuple[int, int] = (2, 3)) -> Array:
    """A depthwise convolution of step 1 as shifted multiply-adds; the kernel is [size, size, channel...]."""
    size, pad = w.shape[0], (w.shape[0] - 1) // 2
    widths = [(pad, pad) if axis in axes else (0, 0) for axis in range(4)]
    padded = jnp.pad(x, widths)
    total: Array | None = None
    for i in range(size):
        for j in range(size):
            start = [0, 0, 0, 0]
            start[axes[0]], start[axes[1]] = i, j
            term = lax.slice(padded, start, [a + n for a, n in zip(start, x.shape, strict=True)]) * w[i, j]
            total = term if total is None else total + term
    assert total is not None
    return total


def pointwise_nchw(x: Array, w: Array) -> Array:
    """A 1x1 convolution as a product [o, c] with [c, h * w]."""
    return (w @ x.reshape(x.shape[1], -1)).reshape(1, w.shape[0], *x.shape[2:])


def block_diagonal(w: np.ndarray, groups: int, merged: int) -> np.ndarray:
    """The kernel of a convolution of `groups` groups as one of `merged` groups, with zeros between merged ones."""
    out, c = w.shape[0], w.shape[1]
    per, together = out // groups, groups // merged
    wide = np.zeros((out, c * together, *w.shape[2:]), np.float32)
    for g in range(groups):
        place = g % together
        wide[g * per : (g + 1) * per, place * c : (place + 1) * c] = w[g * per : (g + 1) * per]
    return wide


def space_to_depth(x: Array) -> Array:
    """Blocks of 2 x 2 pixels as channels (row, column, channel) of an NCHW image."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(b, 4 * c, h // 2, w // 2)


def stem_kernel(w: np.ndarray) -> np.ndarray:
    """A 7x7 kernel of step 2 as a 4x4 kernel over `space_to_depth` of the padded image."""
    o, c = w.shape[:2]
    wide = np.pad(w, ((0, 0), (0, 0), (0, 1), (0, 1)))
    return np.ascontiguousarray(wide.reshape(o, c, 4, 2, 4, 2).transpose(0, 3, 5, 1, 2, 4).reshape(o, 4 * c, 4, 4))
