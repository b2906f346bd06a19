"""Placed arrays: what several processes read, once, in a file that each of them maps.

The weights of a program are written to a file of this process, and are from then on read-only views of it, whose place
other processes are told.  A place stands for what the array holds: nobody writes to the file again.  What is in a file
already and needed for a moment only is read then (`Later`).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from superopt.ir.scalar import numpy_dtype

ALIGN = 64  # bytes: JAX takes over what begins at a multiple
SHARED = Path("/dev/shm")
Place = tuple[str, str, tuple[int, ...], int]  # file, dtype, shape, offset
_PLACES: dict[int, tuple[weakref.ref[np.ndarray], Place]] = {}
_OPEN: dict[str, np.ndarray] = {}  # the file of another process that is in use here, and what was read of it
_SEEN: dict[Place, np.ndarray] = {}


class Later:
    """An array that is read when it is needed, as often as it is needed."""

    def __init__(self, read: Callable[[], np.ndarray], shape: Sequence[int], kind: np.dtype) -> None:
        self.read, self.shape, self.dtype = read, tuple(shape), kind


def aligned(shape: Sequence[int], kind: np.dtype) -> np.ndarray:
    """An array without values that begins at a multiple of 64 bytes: `jax.device_put` takes it over without a copy."""
    nbytes = math.prod(shape) * kind.itemsize
    raw = np.empty(nbytes + ALIGN, np.uint8)
    begin = -raw.ctypes.data % ALIGN
    return raw[begin : begin + nbytes].view(kind).reshape(shape)


def write_aligned(out: IO[bytes], array: np.ndarray) -> int:
    """Write the bytes of an array at the next multiple of 64; where they begin."""
    out.write(b"\0" * (-out.tell() % ALIGN))
    begin = out.tell()
    out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return begin


def place(folder: Path, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """These arrays as read-only views of a file in the folder, which `place_of` knows.

    The file may be removed while they are in use, where files can.
    """
    places: dict[str, Place] = {}
    path = folder / f"placed{len(list(folder.iterdir()))}"
    with open(path, "wb") as out:
        for name, value in arrays.items():
            array = np.asarray(value)
            places[name] = (str(path), str(array.dtype), array.shape, write_aligned(out, array))
    raw = mapped(path)
    return {name: _view(raw, at) for name, at in places.items()}


def place_of(x: Any) -> Place | None:
    """Where a placed array lies, None for any other."""
    known = _PLACES.get(id(x))
    return known[1] if known is not None and known[0]() is x else None


def in_memory(at: Place) -> bool:
    """Whether a place is in shared memory, not on a disk."""
    return at[0].startswith(f"{SHARED}/")


def placed(at: Sequence[Any]) -> np.ndarray:
    """The array at a place that another process told: the same one each time, until another file is asked for."""
    file, kind, shape, offset = at
    key: Place = (str(file), str(kind), tuple(map(int, shape)), int(offset))
    if key[0] not in _OPEN:
        _OPEN.clear()
        _SEEN.clear()
        _OPEN[key[0]] = mapped(Path(key[0]))
    if key not in _SEEN:
        _SEEN[key] = _view(_OPEN[key[0]], key)
    return _SEEN[key]


def mapped(path: Path) -> np.ndarray:
    """The bytes of a file, read-only, read when they are looked at."""
    return np.memmap(path, dtype=np.uint8, mode="r") if os.path.getsize(path) else np.zeros(0, np.uint8)


def _view(raw: np.ndarray, at: Place) -> np.ndarray:
    _, name, shape, offset = at
    kind = numpy_dtype(name)
    count = math.prod(shape) * kind.itemsize
    array = np.asarray(raw)[offset : offset + count].view(kind).reshape(shape)
    for gone in [i for i, (known, _) in _PLACES.items() if known() is None]:
        del _PLACES[gone]
    _PLACES[id(array)] = (weakref.ref(array), at)
    return array
