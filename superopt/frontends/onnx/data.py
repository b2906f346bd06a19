"""Tensors of an ONNX file as NumPy arrays, checked before anything is allocated.

A `TensorProto` states its dims, its element type and where its bytes are: in the message, or in another file
("external data").  A hostile or damaged file may state anything.  So the dims must be non-negative, and the bytes must
be exactly as many as dims and type need.  An external file must be a plain file below the model's own folder, reached
without symbolic links and without a second hard link.  Links are followed only where the user names a root that they
may not leave (caches that keep every file under its digest have such links).  External bytes are read, or memory-mapped
where the caller copies them anyway; so are the bytes of large tensors in the model's own file while it is read
(`Within`).
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from superopt.arrays.placing import ShortenedError, mapped, owned
from superopt.errors import ExternalDataError, InputError, ModelFileError
from superopt.files.reading import LIMITS, shown
from superopt.frontends.onnx.wire import LEAST_BYTES

MAX_TENSOR_BYTES = LIMITS.value_bytes
MAX_DENSE_BYTES = 2**28  # of a sparse tensor made dense; a file of a few bytes can state any size
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
_SUB_BYTE_BITS: dict[int, int] = {
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The places where the external data of a model may lie.

    Attributes:
        path: the folder of the model, as the user named it.
        target: the folder that the model's file is really in, where its name is a link; else the same.
        root: links are followed as long as they stay below; None follows none.
        own: whether arrays need memory of their own, since the files may change.
        opened: bytes of the files that were opened, by their path.
    """

    path: Path
    target: Path
    root: Path | None = None
    own: bool = True
    opened: dict[Path, np.ndarray] = field(default_factory=dict[Path, np.ndarray])


@dataclass(frozen=True, slots=True)
class Within:
    """The bytes of a model in which `onnx_wire.lean` left large tensors.

    Attributes:
        name: the file name by which these tensors refer to `data`.
        data: all bytes of the model.
        own: whether arrays need memory of their own, since the bytes may change.
    """

    name: str
    data: np.ndarray
    own: bool = True

    def bytes_at(self, entries: Mapping[str, str]) -> np.ndarray:
        """The bytes of the tensor that these entries locate."""
        at, size = int(entries["offset"]), int(entries["length"])
        return owned(self.data[at : at + size]) if self.own else self.data[at : at + size]


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
        ModelFileError: a dim is negative, there are too many, or the tensor would pass `MAX_TENSOR_BYTES`.
    """
    if len(dims) > LIMITS.rank:
        raise ModelFileError(f"{what} has {len(dims)} dimensions; at most {LIMITS.rank} are accepted")
    if any(d < 0 for d in dims):
        raise ModelFileError(f"{what} has a negative dimension: {list(dims)}")
    # NumPy multiplies the other sizes even where one is 0
    largest = math.prod(d for d in dims if d)
    if largest * max(dtype.itemsize, 1) > MAX_TENSOR_BYTES:
        raise ModelFileError(
            f"{what} of shape {list(dims)} would need {largest * dtype.itemsize / 2**30:.3g} GiB",
            hint=f"{MAX_TENSOR_BYTES / 2**30:.3g} GiB are accepted: give smaller sizes (--dims), or check the file",
        )
    return math.prod(dims)


def tensor_array(tensor: TensorProto, folder: DataFolder | None, what: str, within: Within | None = None) -> np.ndarray:
    """The values of a tensor.

    Args:
        tensor: the message.
        folder: where external files may lie; None refuses external data.
        what: name of the tensor in errors.
        within: the bytes of the model, where large tensors were left in them.

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
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if within is not None and entries.get("location") == within.name:
            raw = within.bytes_at(entries)
            _check_raw(len(raw), n_bytes, dims, what)
        else:
            raw = _external_bytes(entries, folder, n_bytes, what)
        if bits is None and dtype.kind != "O":
            return raw.view(dtype).reshape(dims)
        inline = TensorProto(dims=dims, data_type=tensor.data_type, raw_data=owned(raw).tobytes())
        return _decode(inline, what)
    if tensor.HasField("raw_data"):
        _check_raw(len(tensor.raw_data), n_bytes, dims, what)
        if bits is None and dtype.kind != "O":
            return np.frombuffer(tensor.raw_data, dtype).reshape(dims)
        return _decode(tensor, what)
    held = sum(len(getattr(tensor, field)) for field in _TYPED_FIELDS)
    expected = _field_entries(tensor.data_type, count)
    if held != expected:
        raise ModelFileError(f"{what} of shape {list(dims)} needs {expected} stored values and has {held}")
    return _decode(tensor, what)


def _check_raw(held: int, needed: int, dims: tuple[int, ...], what: str) -> None:
    if held != needed:
        raise ModelFileError(f"{what} of shape {list(dims)} needs {needed} bytes and has {held}")


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


def sparse_array(sparse: onnx.SparseTensorProto, folder: DataFolder | None, what: str) -> np.ndarray:
    """The dense values of a sparse tensor (at most `MAX_DENSE_BYTES` of them).

    Raises:
        ModelFileError: values and indices do not agree with each other or with the dims.
    """
    values = owned(tensor_array(sparse.values, folder, what))
    indices = owned(tensor_array(sparse.indices, folder, f"indices of {what}"))
    dims = tuple(sparse.dims)
    if check_dims(dims, values.dtype, what) * values.dtype.itemsize > MAX_DENSE_BYTES:
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


def _external_bytes(entries: Mapping[str, str], folder: DataFolder | None, n_bytes: int, what: str) -> np.ndarray:
    """Return the bytes of a tensor in a file beside the model: the mapped file, or a copy where they are few."""
    location = entries.get("location", "")
    if folder is None:
        raise ExternalDataError(
            f"{what} is stored in the file {shown(location)!r}, and the model was not read from a folder"
        )
    offset, length = _offset_length(entries, n_bytes, what)
    if length != n_bytes:
        raise ExternalDataError(f"{what} needs {n_bytes} bytes and states a length of {length}")
    try:
        held = _opened(folder, location, what)
    except OSError as error:
        raise ExternalDataError(
            f"{what}: external data {shown(location)!r} cannot be read: {error.strerror}"
        ) from error
    if offset + length > held.size:
        raise ExternalDataError(
            f"{what} needs bytes {offset} to {offset + length} of {shown(location)!r}, which has {held.size}",
            hint="the data file is truncated or belongs to another model",
        )
    content = held[offset : offset + n_bytes]
    try:
        return owned(content) if folder.own or n_bytes < LEAST_BYTES else content
    except ShortenedError as error:
        raise ExternalDataError(f"{what}: external data {shown(location)!r} was shortened while it was read") from error


def _opened(folder: DataFolder, location: str, what: str) -> np.ndarray:
    """The bytes of an external file, which is opened once for all tensors in it."""
    base, parts = _contained(folder, location, what)
    path = base.joinpath(*parts)
    if path not in folder.opened:
        try:
            number = _open_below(base, parts)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
                raise
            raise ExternalDataError(
                f"{what}: external data {shown(location)!r} was exchanged while it was opened"
            ) from error
        try:
            _check_plain(os.fstat(number), f"{what}: external data {shown(location, 200)!r}")
            folder.opened[path] = mapped(number)
        finally:
            os.close(number)
    return folder.opened[path]


def _open_below(base: Path, parts: Sequence[str]) -> int:
    """The descriptor of a file below a folder: each name is looked up in the folder opened before it.

    So nobody can redirect the look-up by exchanging a folder or a file for a link in the meantime.

    Raises:
        OSError: there is no such file, or there is a link on the way.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    if os.open not in os.supports_dir_fd:
        return os.open(base.joinpath(*parts), flags | getattr(os, "O_BINARY", 0))
    at = os.open(base, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for name in parts[:-1]:
            inner = os.open(name, flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def _check_plain(status: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ExternalDataError(f"{what} is not a plain file", hint=_LINK_HINT)
    if status.st_nlink > 1:
        raise ExternalDataError(f"{what} has a second hard link", hint=_LINK_HINT)


def _offset_length(entries: Mapping[str, str], n_bytes: int, what: str) -> tuple[int, int]:
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", n_bytes))
    except ValueError as error:
        raise ExternalDataError(f"{what}: offset or length of its external data is not a number") from error
    if offset < 0:
        raise ExternalDataError(f"{what}: negative offset {offset} of its external data")
    return offset, length


_LINK_HINT = (
    "external data must be a plain file beside the model; data_root= (--data-root) names a folder inside which links "
    "are followed"
)


def _contained(folder: DataFolder, location: str, what: str) -> tuple[Path, Sequence[str]]:
    """The place of an external file: a folder, and names below it that are no links.

    Raises:
        ExternalDataError: it lies outside of the model's folder and of the user's root, or is no plain file.
    """
    name = repr(shown(location, 200))
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or location.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise ExternalDataError(
            f"{what}: external data location {name} leaves the folder of the model",
            hint="external data must be a plain file beside the model, named by a relative path without '..'",
        )
    parts = [part for part in parts if part not in ("", ".")]
    refused: ExternalDataError | None = None
    for base in dict.fromkeys((folder.path, folder.target)):
        try:
            place = _below(base, parts, folder.root, f"{what}: external data {name}")
            status = os.lstat(place[0].joinpath(*place[1]))
        except OSError as error:
            refused = refused or ExternalDataError(
                f"{what}: external data file {name} is missing ({error.strerror})",
                hint=f"it should stand in {folder.path}",
            )
            continue
        _check_plain(status, f"{what}: external data {name}")
        return place
    assert refused is not None
    raise refused


def _below(base: Path, parts: Sequence[str], root: Path | None, what: str) -> tuple[Path, Sequence[str]]:
    """A folder and names below it that lead to a file, with links followed inside the root.

    Raises:
        ExternalDataError: there is a link without a root, or one that leaves it.
        OSError: there is no such file.
    """
    path = base
    for part in parts:
        path = path / part
        if os.path.islink(path) and root is None:
            raise ExternalDataError(f"{what} goes through a symbolic link", hint=_LINK_HINT)
    if root is None:
        return base, parts
    real, top = path.resolve(strict=True), root.resolve()
    if not real.is_relative_to(top):
        raise ExternalDataError(f"{what} leads out of {root}", hint=_LINK_HINT)
    return top, real.relative_to(top).parts


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a floating-point type, the small ones included."""
    return bool(np.issubdtype(dtype, np.floating)) or dtype.name.startswith(("bfloat", "float"))


def finfo_range(dtype: np.dtype) -> tuple[float, float]:
    """Lowest and highest finite value of a float dtype."""
    info = ml_dtypes.finfo(dtype)
    return float(info.min), float(info.max)
