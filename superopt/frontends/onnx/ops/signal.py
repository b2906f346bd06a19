"""Fourier transforms and what stands around them.

Up to `MATRIX_LIMIT` points a transform is a product with cosine and sine matrices known at conversion (real
arithmetic only, open to rewriting); beyond, an FFT.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from onnx import helper

from superopt.errors import InputError
from superopt.frontends.onnx.eval import Call, bounded, op
from superopt.frontends.onnx.ops.movement import axis_of, slice_axis

MATRIX_LIMIT = 1024


def dft(real: Any, imaginary: Any, axis: int, points: int, kept: int, inverse: bool) -> tuple[Any, Any]:
    """First `kept` of `points` coefficients along an axis, as real and imaginary part (None: zero)."""
    dtype = real.dtype
    if points > MATRIX_LIMIT:
        value = real if imaginary is None else lax.complex(real, imaginary)
        spectrum = (jnp.fft.ifft if inverse else jnp.fft.fft)(value, points, axis)
        spectrum = slice_axis(spectrum, axis, 0, kept)
        return spectrum.real.astype(dtype), spectrum.imag.astype(dtype)
    size = min(real.shape[axis], points)
    angle = 2 * np.pi * (np.outer(np.arange(size), np.arange(kept)) % points) / points
    factor = 1 / points if inverse else 1.0
    cos = (np.cos(angle) * factor).astype(dtype)
    sin = (np.sin(angle) * (factor if inverse else -factor)).astype(dtype)

    def along(x: Any, matrix: np.ndarray) -> Any:
        x = slice_axis(x, axis, 0, size)
        return jnp.moveaxis(lax.dot_general(x, matrix, (((axis,), (0,)), ((), ()))), -1, axis)

    if imaginary is None:
        return along(real, cos), along(real, sin)
    return along(real, cos) - along(imaginary, sin), along(real, sin) + along(imaginary, cos)


@op("DFT", wide=True)
def _dft(call: Call, x: Any, length: Any = None, axis: Any = None) -> Any:
    if call.since < 20:
        along = axis_of(call.attrs["axis"], x.ndim)
    else:
        along = axis_of(-2 if axis is None else int(call.static(axis, "axis").ravel()[0]), x.ndim)
    if along == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise InputError(f"a transform of shape {list(x.shape)} along axis {along}")
    inverse, onesided = bool(call.attrs["inverse"]), bool(call.attrs["onesided"])
    points = x.shape[along] if length is None else int(call.static(length, "dft_length").ravel()[0])
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    if onesided and inverse:
        points = 2 * (x.shape[along] - 1) if length is None else points
        return _inverse_real(real, imaginary, along, points)[..., None]
    kept = points // 2 + 1 if onesided else points
    return jnp.stack(dft(real, imaginary, along, points, kept, inverse), -1)


def _inverse_real(real: Any, imaginary: Any, axis: int, points: int) -> Any:
    """The real signal whose first half of coefficients is given."""
    half = min(real.shape[axis], points // 2 + 1)
    freq, time = np.arange(half), np.arange(points)
    angle = 2 * np.pi * (np.outer(freq, time) % points) / points
    twice = np.where((freq == 0) | (2 * freq == points), 1.0, 2.0)[:, None] / points

    def along(x: Any, matrix: np.ndarray) -> Any:
        x = slice_axis(x, axis, 0, half)
        return jnp.moveaxis(lax.dot_general(x, matrix.astype(x.dtype), (((axis,), (0,)), ((), ()))), -1, axis)

    result = along(real, np.cos(angle) * twice)
    return result if imaginary is None else result - along(imaginary, np.sin(angle) * twice)


@op("STFT", wide=True)
def _stft(call: Call, signal: Any, step: Any, window: Any = None, frame: Any = None) -> Any:
    hop = int(call.static(step, "frame_step").ravel()[0])
    if frame is not None:
        size = int(call.static(frame, "frame_length").ravel()[0])
    elif window is not None:
        size = window.shape[0]
    else:
        raise InputError("STFT needs a window or a frame length")
    count = (signal.shape[1] - size) // hop + 1
    if hop < 1 or count < 1:
        raise InputError(f"frames of {size} every {hop} in a signal of {signal.shape[1]}")
    bounded(count * size, 2**26, "frames")
    index = np.arange(count)[:, None] * hop + np.arange(size)
    frames = jnp.take(signal, index, 1, mode="clip")
    if window is not None:
        frames = frames * window.astype(signal.dtype)[:, None]
    kept = size // 2 + 1 if call.attrs["onesided"] else size
    imaginary = frames[..., 1] if frames.shape[-1] == 2 else None
    return jnp.stack(dft(frames[..., 0], imaginary, 2, size, kept, False), -1)


@op("MelWeightMatrix", fold=True)
def _mel_weight_matrix(call: Call, bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Any:
    n_mel, n_dft, sample = (int(call.static(v, "size").ravel()[0]) for v in (bins, length, rate))
    start, end = (float(call.static(v, "frequency").ravel()[0]) for v in (low, high))
    rows = n_dft // 2 + 1
    call.room((rows, n_mel))
    first, last = (2595 * math.log10(1 + f / 700) for f in (start, end))
    mels = first + np.arange(n_mel + 2) * ((last - first) / (n_mel + 2))
    edges = np.floor((n_dft + 1) * (700 * (10 ** (mels / 2595) - 1)) / sample).astype(np.int64)
    matrix = np.zeros((rows, n_mel))
    for i in range(n_mel):
        left, centre, right = edges[i : i + 3]
        if left == centre:
            matrix[centre, i] = 1
        else:
            rise = np.arange(left, centre + 1)
            matrix[rise, i] = (rise - left) / (centre - left)
        if right > centre:
            fall = np.arange(centre, right)
            matrix[fall, i] = (right - fall) / (right - centre)
    return matrix.astype(helper.tensor_dtype_to_np_dtype(call.attrs["output_datatype"]))
