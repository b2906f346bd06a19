"""Bundles pass arrays between processes: one flat file beside a JSON manifest, mapped and not copied by the reader.

Arrays that every request needs again, the weights of a program, are placed (`superopt.arrays.placing`).  There is no
pickle, and no `.npy`, whose header cannot name bfloat16.  This module also makes the random values that kernels are
tried on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays.folders import folder_at, folder_in
from superopt.arrays.placing import SHARED, made_folder, mapped, write_aligned

ON_DISK_BYTES = 64 << 20  # weights; fewer are no burden, and written to memory in less than 0.1 s


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays as `path` (raw bytes) and `path.json` (where each one lies)."""
    manifest: list[tuple[str, str, tuple[int, ...], int]] = []
    with open(path, "wb") as out:
        for name, value in arrays.items():
            array = np.asarray(value)
            manifest.append((name, str(array.dtype), array.shape, write_aligned(out, array)))
    Path(f"{path}.json").write_text(json.dumps(manifest), encoding="utf-8")


def load(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that `save` wrote, as read-only views of the mapped file."""
    manifest = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
    raw = mapped(path)
    arrays: dict[str, np.ndarray] = {}
    for name, dtype_name, shape, offset in manifest:
        kind = dtype(dtype_name)
        arrays[name] = raw[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
    return arrays


def dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a name, bfloat16 and other narrow types included."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # late: registers narrow types, seldom needed

        return np.dtype(getattr(ml_dtypes, name))


def random_values(
    types: Mapping[str, tuple[Sequence[Any], str]],
    seed: int,
    *,
    signed: tuple[int, int] = (0, 8),
    unsigned: tuple[int, int] = (0, 8),
) -> dict[str, np.ndarray]:
    """Return random arrays by name: normal floats of both signs, fair booleans, uniform integers.

    Args:
        types: shape and dtype of each.
        seed: seed of all of them, in the order given.
        signed, unsigned: lowest integer and the one after the highest; by default so small that they may be indices.
    """
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    for name, (shape, dtype_name) in types.items():
        kind, sizes = dtype(dtype_name), tuple(map(int, shape))
        if kind.kind == "b":
            values[name] = rng.random(sizes) < 0.5
        elif kind.kind in "iu":
            values[name] = rng.integers(*(unsigned if kind.kind == "u" else signed), sizes).astype(kind)
        else:
            values[name] = rng.standard_normal(sizes).astype(kind)
    return values


def scratch_folder(nbytes: int) -> contextlib.AbstractContextManager[str]:
    """Open a temporary folder for about `nbytes`: in shared memory when there is ample room, else on disk.

    Folders that killed processes left behind are removed first: in shared memory they would hold it until a reboot.
    """
    return folder_in(SHARED if _is_roomy(SHARED, 4 * nbytes) else Path(tempfile.gettempdir()))


@contextlib.contextmanager
def weights_folder(nbytes: int) -> Iterator[Path]:
    """Open a temporary folder for so many bytes of weights, and one of its name in shared memory if there is room.

    Shared memory must have ample room.  Many weights are on disk where that has room, since memory of files there is
    free for others between their uses.
    """
    on_disk = nbytes >= ON_DISK_BYTES and _is_roomy(Path(tempfile.gettempdir()), 2 * nbytes)
    with folder_in(Path(tempfile.gettempdir())) if on_disk else scratch_folder(nbytes) as name, ExitStack() as stack:
        folder, beside = Path(name), made_folder(Path(name))
        if beside != folder and _is_roomy(SHARED, 4 * nbytes):
            stack.enter_context(folder_at(beside))
        yield folder


def _is_roomy(place: Path, nbytes: int) -> bool:
    return place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > nbytes + (64 << 20)
