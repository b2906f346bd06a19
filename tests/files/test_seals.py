"""Seals of cache files: the key is this user's own, of its full length, and at its place in the folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.files import seals
from superopt.files.seals import KEY, sealed, unsealed


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, whose key no earlier test has read."""
    seals._key.cache_clear()
    yield tmp_path
    seals._key.cache_clear()


def stored(folder: Path) -> Path:
    path = folder / "x.kernel"
    path.write_bytes(sealed(path, b"content"))
    return path


def of_another_process(path: Path) -> bytes | None:
    """The content of a file for a process that has not read the key yet."""
    seals._key.cache_clear()
    return unsealed(path)


def private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_what_was_sealed_in_this_folder_is_read(folder: Path) -> None:
    assert of_another_process(stored(folder)) == b"content"
    assert unsealed(folder / "none") is None


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_replaced(folder: Path, size: int) -> None:
    key = private(folder / KEY, bytes(size))
    assert of_another_process(stored(folder)) == b"content"
    assert len(key.read_bytes()) == 32


@pytest.mark.parametrize("exists", [True, False])
def test_a_key_behind_a_link_is_replaced_and_what_the_link_leads_to_stays(folder: Path, exists: bool) -> None:
    other = folder / "elsewhere"
    if exists:
        private(other, bytes(32))
    (folder / KEY).symlink_to(other)
    assert of_another_process(stored(folder)) == b"content"
    assert not (folder / KEY).is_symlink()
    assert other.read_bytes() == bytes(32) if exists else not other.exists()


def test_the_first_of_two_keys_stays(folder: Path) -> None:
    key = private(folder / KEY, bytes(range(32)))
    seals._make(key)
    assert key.read_bytes() == bytes(range(32))
    assert [path.name for path in folder.iterdir()] == [KEY]


def test_a_key_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = stored(folder), os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert of_another_process(path) is None


@pytest.mark.parametrize("place", ["folder", "pipe"])
def test_what_is_no_file_is_no_key(folder: Path, place: str) -> None:
    key = folder / KEY
    key.mkdir(mode=0o700) if place == "folder" else os.mkfifo(key, 0o600)
    path = stored(folder)
    assert unsealed(path) == b"content", "under a key of this process"
    assert (of_another_process(path) is None) == (place == "folder"), "a pipe is replaced by a key"


def test_where_no_key_can_be_stored_no_file_of_another_process_is_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(seals, "_make", full)
    path = stored(folder)
    assert unsealed(path) == b"content"
    assert of_another_process(path) is None
