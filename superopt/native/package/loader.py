"""Loader of the package beside this file: a library without Python in it, called with NumPy arrays.

import @name@
program = @name@.load()
results = program(x)  # a tuple of arrays
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ALIGN = 64


class PackagedProgram:
    """The program of a package; calls from several threads are safe.

    Attributes:
        facts: the contents of the package's JSON file.
        inputs, outputs: name, shape and dtype of each.

    Raises:
        RuntimeError: the library refuses the processor or the weights.
    """

    def __init__(self, facts: dict[str, Any], folder: Path) -> None:
        self.facts, name = facts, facts["name"]
        self.inputs, self.outputs = [[_array_of(x) for x in facts[side]] for side in ("inputs", "outputs")]
        library = ctypes.CDLL(str(folder / f"lib{name}.so"))
        self._error = getattr(library, f"{name}_error")
        self._error.restype = ctypes.c_char_p
        self._run, self._threads, close = [getattr(library, f"{name}_{x}") for x in ("run", "threads", "close")]
        self._context, weights = ctypes.c_void_p(), folder / f"{name}.weights"
        self._check(getattr(library, f"{name}_open")(bytes(weights), ctypes.byref(self._context)), str(weights))
        weakref.finalize(self, close, self._context).atexit = False  # another thread may be calling
        self._placed = [ctypes.c_void_p * (len(side) + 1) for side in (self.inputs, self.outputs)]

    def __call__(self, *arrays: Any, **named: Any) -> tuple[np.ndarray, ...]:
        """Return the results for these arrays, given in order or by name.

        Raises:
            TypeError: an input is missing, unknown, or has another dtype.
            ValueError: an input has another shape.
        """
        given = self._in_order(arrays, named)
        taken = [_fitting(array, *kind) for array, kind in zip(given, self.inputs, strict=True)]
        results = tuple([_empty(shape, dtype) for _, shape, dtype in self.outputs])
        passed = [make(*[x.ctypes.data for x in xs]) for make, xs in zip(self._placed, (taken, results), strict=True)]
        self._check(self._run(self._context, *passed))
        return results

    def threads(self, most: int) -> None:
        """Set the most threads of a call; 0, and the default: all processors that the process may use."""
        self._check(self._threads(self._context, most))

    def _in_order(self, arrays: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        names = [name for name, _, _ in self.inputs]
        if len(arrays) > len(names):
            raise TypeError(f"{len(arrays)} inputs are given, the program has {len(names)}: {', '.join(names)}")
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name not in names or name in given:
                raise TypeError(f"{name} is given twice" if name in given else f"there is no input {name}: {names}")
            given[name] = array
        lacking = [name for name in names if name not in given]
        if lacking:
            raise TypeError(f"these inputs are missing: {', '.join(lacking)}")
        return [given[name] for name in names]

    def _check(self, status: int, what: str = "the call") -> None:
        if status:
            raise RuntimeError(f"{what}: {self._error(status).decode()}")


def load(folder: str | Path | None = None) -> PackagedProgram:
    """Load the package in a folder; the default is that of this file.

    Raises:
        RuntimeError: see `PackagedProgram`.
        OSError: a file is missing.
    """
    place = Path(__file__).parent if folder is None else Path(folder)
    return PackagedProgram(_facts(place), place.absolute())


def check(folder: str | Path | None = None) -> None:
    """Check the files of a package against the digests in its JSON file.

    Raises:
        ValueError: one has another content.
    """
    place = Path(__file__).parent if folder is None else Path(folder)
    for name, digest in _facts(place)["files"].items():
        with open(place / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{place / name} has changed since the package was made")


def _facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / f"{Path(__file__).stem}.json").read_text(encoding="utf-8"))


def _array_of(facts: dict[str, Any]) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    return facts["name"], tuple(facts["shape"]), _dtype(facts["dtype"])


def _dtype(name: str) -> np.dtype[Any]:
    """Return a dtype; for one that NumPy does not know that of ml_dtypes, or integers of its size."""
    try:
        return np.dtype(name)
    except TypeError:
        try:
            import ml_dtypes  # optional
        except ModuleNotFoundError:
            return np.dtype(np.uint16 if name == "bfloat16" else np.uint8)
        return np.dtype(getattr(ml_dtypes, name))


def _fitting(array: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an input whose elements lie one after the other."""
    x = np.asarray(array)
    if x.dtype != dtype:
        raise TypeError(f"input {name} has the dtype {x.dtype}, not {dtype}")
    if x.shape != shape:
        raise ValueError(f"input {name} has the shape {list(x.shape)}, not {list(shape)}")
    return np.require(x, requirements=("C", "A"))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Allocate an array at a multiple of `_ALIGN` bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + _ALIGN, np.uint8)
    start = -room.ctypes.data % _ALIGN
    return room[start : start + size].view(dtype).reshape(shape)
