"""Temporary folders that live as long as the process that made them, whatever ends it.

A process holds a lock (`flock`) on each of its folders, which the system releases when the process ends.  A folder that
nobody locks was left behind, and the next process that makes one beside it removes it.  A lock works across containers
that share a file system; a process number does not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # no locks there: nothing is held, and nothing removed
    fcntl = None

_PREFIX = "superopt-held-"
_TRIES = 20  # another process removes a folder between its making and its lock


@contextlib.contextmanager
def folder_in(place: Path) -> Iterator[str]:
    """Make a temporary folder in this place, after removing those that no process locks any more.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left(place)
    for _ in range(_TRIES):
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
        with made, _held(Path(made.name)) as is_there:
            if is_there:
                yield made.name
                return
    raise OSError(f"folders made in {place} are removed by others at once")


@contextlib.contextmanager
def folder_at(path: Path) -> Iterator[None]:
    """Make a folder of this name, beside one that `folder_in` made; it is removed at the end.

    Raises:
        OSError: it cannot be made.
    """
    path.mkdir(mode=0o700)
    try:
        with _held(path) as is_there:
            if not is_there:
                raise OSError(f"{path} was removed by others at once")
            yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Lock a folder; yield whether it still exists, as nobody removes a locked folder."""
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks: nobody removes anything there
                fcntl.flock(number, fcntl.LOCK_SH)
        yield _is_at(folder, number)
    finally:
        os.close(number)


def _is_at(folder: Path, number: int) -> bool:
    """Whether the open folder is the one of this path."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(number))
    except FileNotFoundError:
        return False


def _remove_left(place: Path) -> None:
    """Remove the folders of this user that nobody locks; any other thing of such a name stays."""
    if fcntl is None:
        return
    for left in place.glob(f"{_PREFIX}*"):
        try:
            number = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(number).st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # somebody holds it
            continue
        finally:
            os.close(number)
