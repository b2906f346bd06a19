"""Placed arrays: weights that several processes share through one file that each of them maps.

The weights of a program are written to a file of this process.  From then on they are read-only views of it, and other
processes are told the place (file, offset, dtype, shape).  A place identifies the array's content: nobody writes to the
file again.  Arrays that are in a file already and are needed only briefly are read on demand (`Later`).

Mapped files are copied by reading them, because looking at a page of a file that was shortened in the meantime would
end the process.  Pages of a file that were looked at are memory of this process until they are released (`release`).
They are read from the file again when they are needed again.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from superopt.errors import InputError
from superopt.ir.scalar import numpy_dtype

if TYPE_CHECKING:
    from jaxtyping import Shaped, UInt8

ALIGN = 64  # bytes: JAX takes over arrays that begin at a multiple
SHARED = Path("/dev/shm")
_PIECE = 1 << 22  # bytes that are read at a time
Place = tuple[str, str, tuple[int, ...], int]  # file, dtype, shape, offset
_LOCK = threading.RLock()  # guards the tables below, which threads of one process share
_PLACES: dict[int, tuple[weakref.ref[np.ndarray], Place]] = {}
_OPEN: dict[str, np.ndarray] = {}  # the file of another process that is in use here, and the arrays read from it
_SEEN: dict[Place, np.ndarray] = {}
# read-only maps of files, so that released pages lose nothing -> begin in memory, file, begin in the file
_MAPS: weakref.WeakKeyDictionary[mmap.mmap, tuple[int, int, int]] = weakref.WeakKeyDictionary()


class ShortenedError(InputError):
    """A file of a user is shorter than it was when it was opened."""

    code = "SO212"
    usual_hint = "leave the files of a model as they are while it is read"


class Later:
    """An array that is read each time it is needed."""

    def __init__(self, read: Callable[[], np.ndarray], shape: Sequence[int], kind: np.dtype) -> None:
        self.read, self.shape, self.dtype = read, tuple(shape), kind


def aligned(shape: Sequence[int], kind: np.dtype) -> np.ndarray:
    """Return an uninitialized array at a multiple of 64 bytes, which `jax.device_put` takes over without a copy."""
    nbytes = math.prod(shape) * kind.itemsize
    raw = np.empty(nbytes + ALIGN, np.uint8)
    begin = -raw.ctypes.data % ALIGN
    return raw[begin : begin + nbytes].view(kind).reshape(shape)


def bytes_view(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]


def pieces(array: np.ndarray) -> Iterator[memoryview]:
    """Yield the bytes of an array, some at a time; one that is mapped is read from its file.

    Raises:
        ShortenedError: the file is shorter by now.
    """
    memory = _map_of(array) if array.flags.c_contiguous else None
    if memory is not None:
        for at in range(0, array.nbytes, _PIECE):
            piece = np.empty(min(_PIECE, array.nbytes - at), np.uint8)
            _read(memory[2], memory[3] + at, piece)
            yield piece.data
        return
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for at in range(0, raw.size, _PIECE):
        yield raw[at : at + _PIECE].data


def write_aligned(out: IO[bytes], array: np.ndarray) -> int:
    """Write the bytes of an array at the next multiple of 64; return their offset."""
    out.write(b"\0" * (-out.tell() % ALIGN))
    begin = out.tell()
    for piece in pieces(array):
        out.write(piece)
    return begin


def place(folder: Path, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Write these arrays to a file in the folder, and return read-only views of it, which `place_of` knows.

    The file may be removed while they are in use, where the operating system allows it.
    """
    places: dict[str, Place] = {}
    path = folder / f"placed{len(list(folder.iterdir()))}"
    with open(path, "wb") as out:
        for name, value in arrays.items():
            array = np.asarray(value)
            places[name] = (str(path), str(array.dtype), array.shape, write_aligned(out, array))
    raw = mapped(path)
    return {name: _view(raw, at) for name, at in places.items()}


def place_of(x: object) -> Place | None:
    """Return the place of a placed array, None for any other."""
    known = _PLACES.get(id(x))
    return known[1] if known is not None and known[0]() is x else None


def made_folder(folder: Path) -> Path:
    """Return the in-memory folder for results that several processes share, given the folder of the weights."""
    return SHARED / folder.name


def placed(at: Sequence[Any]) -> np.ndarray:
    """Return the array at a place that another process passed: the same object until another file is requested."""
    file, kind, shape, offset = at
    key: Place = (str(file), str(kind), tuple(map(int, shape)), int(offset))
    with _LOCK:
        if key[0] not in _OPEN:
            _OPEN.clear()
            _SEEN.clear()
            _OPEN[key[0]] = mapped(Path(key[0]))
        if key not in _SEEN:
            _SEEN[key] = _view(_OPEN[key[0]], key)
        return _SEEN[key]


def mapped(file: Path | int, offset: int = 0, nbytes: int | None = None) -> UInt8[np.ndarray, " bytes"]:
    """Map bytes of a file, by its path or number, read-only: read when they are looked at.

    Raises:
        OSError: it cannot be read, or mapped.
    """
    if isinstance(file, Path):
        with open(file, "rb") as handle:
            return mapped(handle.fileno(), offset, nbytes)
    if nbytes is None:
        nbytes = os.fstat(file).st_size - offset
    if not nbytes:
        return np.zeros(0, np.uint8)
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    try:
        pages = mmap.mmap(file, offset + nbytes - begin, access=mmap.ACCESS_READ, offset=begin)
    except ValueError as error:  # shorter than that by now
        raise OSError(errno.EINVAL, str(error)) from error
    raw, own = np.frombuffer(pages, np.uint8), os.dup(file)
    weakref.finalize(pages, os.close, own)
    with _LOCK:
        _MAPS[pages] = (raw.ctypes.data, own, begin)
    return raw[offset - begin :]


class FileBytes:
    """The bytes of a mapped file, read from it piece by piece: by position, or as slices.

    Every access raises `ShortenedError` where the file is shorter by now.
    """

    def __init__(self, raw: UInt8[np.ndarray, " bytes"]) -> None:
        self._raw, self._window, self._begin = raw, b"", 0

    def __len__(self) -> int:
        return self._raw.size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            begin, end, _ = at.indices(len(self))
            return owned(self._raw[begin:end]).tobytes()
        if not self._begin <= at < self._begin + len(self._window):
            self._window, self._begin = self[at : at + (1 << 12)], at
        return self._window[at - self._begin]


def release(x: Any) -> None:
    """Release the pages of a NumPy array that lies in the map of a file; any other array is left alone."""
    memory = _map_of(x)
    if memory is None or not x.flags.c_contiguous or not hasattr(memory[0], "madvise"):
        return
    pages, at, *_ = memory
    begin, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + x.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def give_back() -> None:
    """Return freed memory to the operating system: the C library keeps pieces of up to 32 MB for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def owned(x: Shaped[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
    """Return an array unchanged, or a copy of it in memory where it is mapped from a file (that may change).

    Raises:
        ShortenedError: the file is shorter by now.
    """
    memory = _map_of(x)
    if memory is None:
        return x
    copy = aligned(x.shape, x.dtype)
    if x.flags.c_contiguous:
        _read(memory[2], memory[3], copy.reshape(-1).view(np.uint8))
    else:
        copy[...] = x
        release(x)
    return copy


def _read(file: int, offset: int, into: UInt8[np.ndarray, " bytes"]) -> None:
    """Fill an array with bytes of a file."""
    view, have = memoryview(into.data), 0
    while have < into.size:
        got = os.preadv(file, [view[have:]], offset + have)
        if not got:
            raise ShortenedError("a file of weights was shortened while it was read")
        have += got


def _map_of(x: object) -> tuple[mmap.mmap, int, int, int] | None:
    """Return the map in which an array lies and its offset there, the file and the offset in that; None if unmapped.

    Arrays that came back from JAX are found too.
    """
    if not isinstance(x, np.ndarray):
        return None
    at = x.ctypes.data
    with _LOCK:
        maps = list(_MAPS.items())
    for pages, (begin, file, offset) in maps:
        if begin <= at < begin + len(pages):
            return pages, at - begin, file, offset + at - begin
    return None


def _view(raw: UInt8[np.ndarray, " bytes"], at: Place) -> np.ndarray:
    _, name, shape, offset = at
    kind = numpy_dtype(name)
    count = math.prod(shape) * kind.itemsize
    array = raw[offset : offset + count].view(kind).reshape(shape)
    with _LOCK:
        for gone in [i for i, (known, _) in _PLACES.items() if known() is None]:
            del _PLACES[gone]
        _PLACES[id(array)] = (weakref.ref(array), at)
    return array
