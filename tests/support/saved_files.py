"""Saved programs with other members, by someone who writes their digests too."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from superopt.files.reading import DIGESTS, ArchiveWriter


def edited(saved: Path, target: Path, **changes: Callable[[bytes], bytes] | None) -> Path:
    """A saved program with members changed by functions of their bytes, or left out.

    A member is named by what stands before its first dot or slash; at least one must really change.
    """
    changed = False
    with zipfile.ZipFile(saved) as source, ArchiveWriter(target) as out:
        for name in source.namelist():
            if name == DIGESTS:
                continue
            data = source.read(name)
            edit = changes.get(name.partition(".")[0].partition("/")[0], bytes)
            new = None if edit is None else edit(data)
            changed = changed or new != data
            if new is not None and name.startswith("prepared/"):
                out.aligned(name, memoryview(new))
            elif new is not None:
                out.text(name, new)
    assert changed, "nothing was edited"
    return target


def without_native(saved: Path) -> Path:
    """A saved program without the native program that this store has signed, as another store would see it."""
    return edited(saved, saved.with_name(f"other-{saved.name}"), native=None)
