"""Tensors of an ONNX file as NumPy arrays, checked before anything is allocated.

A `TensorProto` states its dims, its element type and where its bytes are: in the message, or in another file
("external data").  A hostile or damaged file may state anything, so the dims must be non-negative, the bytes must be
exactly as many as dims and type ask for, and an external file must be a plain file below the model's own folder
reached without symbolic links and without a second hard link.  External bytes are memory-mapped, so that the weights
of a large model are not read before they are used.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from superopt.errors import ExternalDataError, InputError, ModelFileError

MAX_TENSOR_BYTES = 2**36
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_SUB_BYTE_BITS: dict[int, int] = {
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2,
}  # fmt: skip


def numpy_dtype(elem_type: int, what: str) -> np.dtype:
    """NumPy dtype of an ONNX element type.

    Raises:
        InputError: the element type is not known.
    """
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{what}: element type {elem_type} is not known") from error


def check_dims(dims: tuple[int, ...], dtype: np.dtype, what: str) -> int:
    """Number of elements of a tensor of these dims.

    Raises:
        ModelFileError: a dim is negative, or the tensor would pass `MAX_TENSOR_BYTES`.
    """
    if any(d < 0 for d in dims):
        raise ModelFileError(f"{what} has a negative dimension: {list(dims)}")
    # NumPy multiplies the other sizes even where one is 0
    largest = math.prod(d for d in dims if d)
    if largest * max(dtype.itemsize, 1) > MAX_TENSOR_BYTES:
        raise ModelFileError(f"{what} of shape {list(dims)} would need {largest * dtype.itemsize / 2**30:.3g} GiB")
    return math.prod(dims)


def tensor_array(tensor: TensorProto, folder: Path | None, what: str) -> np.ndarray:
    """The values of a tensor.

    Args:
        tensor: the message.
        folder: where external files may stand; None refuses external data.
        what: how to name the tensor in errors.

    Raises:
        ModelFileError: dims, type and bytes do not agree.
        ExternalDataError: external bytes are missing, too short, or outside the model's folder.
    """
    dims = tuple(tensor.dims)
    dtype = numpy_dtype(tensor.data_type, what)
    count = check_dims(dims, dtype, what)
    if tensor.HasField("segment"):
        raise ModelFileError(f"{what} is stored in segments, which no ONNX version defines how to read")
    bits = _SUB_BYTE_BITS.get(tensor.data_type)
    n_bytes = (count * bits + 7) // 8 if bits else count * dtype.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _external_bytes(tensor, folder, n_bytes, what)
        if bits is None:
            return raw.view(dtype).reshape(dims)
        inline = TensorProto(dims=dims, data_type=tensor.data_type, raw_data=raw.tobytes())
        return _decode(inline, what)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != n_bytes:
            raise ModelFileError(f"{what} of shape {list(dims)} needs {n_bytes} bytes and has {len(tensor.raw_data)}")
        if bits is None and dtype.kind != "O":
            return np.frombuffer(tensor.raw_data, dtype).reshape(dims)
        return _decode(tensor, what)
    held = sum(len(getattr(tensor, field)) for field in _TYPED_FIELDS)
    expected = _field_entries(tensor.data_type, count)
    if held != expected:
        raise ModelFileError(f"{what} of shape {list(dims)} needs {expected} stored values and has {held}")
    return _decode(tensor, what)


def _field_entries(elem_type: int, count: int) -> int:
    if elem_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    bits = _SUB_BYTE_BITS.get(elem_type)
    return (count * bits + 7) // 8 if bits else count


def _decode(tensor: TensorProto, what: str) -> np.ndarray:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelFileError(f"{what} cannot be decoded: {_first_line(error)}") from error


def sparse_array(sparse: onnx.SparseTensorProto, folder: Path | None, what: str) -> np.ndarray:
    """The dense values of a sparse tensor (at most 1 GiB of them).

    Raises:
        ModelFileError: values and indices do not agree with each other or with the dims.
    """
    values = tensor_array(sparse.values, folder, what)
    indices = tensor_array(sparse.indices, folder, f"indices of {what}")
    dims = tuple(sparse.dims)
    if check_dims(dims, values.dtype, what) * values.dtype.itemsize > 2**30:
        raise ModelFileError(f"{what}: a sparse tensor of shape {list(dims)} is too large to be made dense")
    flat = indices.astype(np.int64)
    if flat.ndim == 2 and flat.shape == (values.size, len(dims)):
        inside = ((flat >= 0) & (flat < np.array(dims))).all()
        flat = np.ravel_multi_index(tuple(flat.T), dims) if inside and values.size else flat[:, :1].ravel()
    else:
        inside = flat.shape == (values.size,) and ((flat >= 0) & (flat < math.prod(dims))).all()
    if not inside:
        raise ModelFileError(f"{what}: indices of shape {list(indices.shape)} do not fit dims {list(dims)}")
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[flat] = values.ravel()
    return dense.reshape(dims)


def _external_bytes(tensor: TensorProto, folder: Path | None, n_bytes: int, what: str) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ExternalDataError(f"{what} is stored in the file {location!r}, and the model was not read from a folder")
    path = _contained(folder, location, what)
    offset, length = _offset_length(entries, n_bytes, what)
    size = path.stat().st_size
    if length != n_bytes:
        raise ExternalDataError(f"{what} needs {n_bytes} bytes and states a length of {length}")
    if offset + length > size:
        raise ExternalDataError(
            f"{what} needs bytes {offset} to {offset + length} of {location!r}, which has {size}",
            hint="the data file is truncated or belongs to another model",
        )
    if n_bytes == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, mode="r", offset=offset, shape=(n_bytes,))


def _offset_length(entries: Mapping[str, str], n_bytes: int, what: str) -> tuple[int, int]:
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", n_bytes))
    except ValueError as error:
        raise ExternalDataError(f"{what}: offset or length of its external data is not a number") from error
    if offset < 0:
        raise ExternalDataError(f"{what}: negative offset {offset} of its external data")
    return offset, length


def _contained(folder: Path, location: str, what: str) -> Path:
    """The external file, when it is a plain file strictly inside the folder."""
    refused = ExternalDataError(
        f"{what}: external data location {location!r} leaves the folder of the model",
        hint="external data must be a plain file beside the model, named by a relative path without '..'",
    )
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or location.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise refused
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ExternalDataError(
                f"{what}: external data {location!r} goes through a symbolic link", hint=refused.hint
            )
    try:
        status = os.lstat(path)
    except OSError as error:
        raise ExternalDataError(
            f"{what}: external data file {location!r} is missing", hint=f"it should stand in {folder}"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ExternalDataError(f"{what}: external data {location!r} is not a plain file", hint=refused.hint)
    if status.st_nlink > 1:
        raise ExternalDataError(f"{what}: external data {location!r} has a second hard link", hint=refused.hint)
    return path


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating-point type, the small ones included."""
    return bool(np.issubdtype(dtype, np.floating)) or dtype.name.startswith(("bfloat", "float"))


def finfo_range(dtype: np.dtype) -> tuple[float, float]:
    """Lowest and highest finite value of a float dtype."""
    info = ml_dtypes.finfo(dtype)
    return float(info.min), float(info.max)
