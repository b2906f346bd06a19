"""Folders of processes: those that nobody holds are removed, whatever they are called and whoever looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from superopt.arrays import bundles, folders
from superopt.arrays.folders import folder_at, folder_in

HOLDER = """
import sys, pathlib
from superopt.arrays.folders import folder_in
with folder_in(pathlib.Path(sys.argv[1])) as made:
    print(made, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder of its own in this place."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_folder_is_removed_when_its_process_is_dead_and_not_before(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], Path]
) -> None:
    process, theirs = holder
    with folder_in(tmp_path) as mine:
        assert theirs.is_dir()
        process.kill()
        process.wait()
        with folder_in(tmp_path):
            assert not theirs.exists()
            assert Path(mine).is_dir()
    assert not Path(mine).exists()


def test_the_number_of_a_process_says_nothing(
    tmp_path: Path, holder: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that shares the place sees no process of the others."""

    def gone(pid: int, sign: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    with folder_in(tmp_path):
        assert holder[1].is_dir()


@pytest.mark.parametrize(
    "name",
    ["superopt-99999999999999999999-x", "superopt-\u00b2-x", "superopt-\u0661-x", "superopt--1-x", "superopt-0-x"],
)
@pytest.mark.parametrize("kind", ["folder", "file", "link", "pipe"])
def test_what_others_leave_is_no_obstacle(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "kept").mkdir()
    for left in (tmp_path / name, tmp_path / name.replace("superopt-", "superopt-held-")):
        {
            "folder": lambda left=left: left.mkdir(),
            "file": lambda left=left: left.touch(),
            "link": lambda left=left: left.symlink_to(tmp_path / "kept"),
            "pipe": lambda left=left: os.mkfifo(left),
        }[kind]()
    with folder_in(tmp_path) as mine:
        assert Path(mine).is_dir()
    assert (tmp_path / "kept").is_dir()
    assert os.path.lexists(tmp_path / name)


def test_a_folder_that_vanishes_before_it_is_held_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    seen: list[str] = []

    def late(path: Path, flags: int) -> int:
        seen.append(str(path))
        number = opened(path, flags)
        if len(seen) == 1:
            os.rmdir(path)
        return number

    monkeypatch.setattr(folders.os, "open", late)
    with folder_in(tmp_path) as mine:
        assert Path(mine).is_dir()
        assert mine == seen[1] != seen[0]


def test_a_folder_beside_another_is_held_too(tmp_path: Path) -> None:
    beside = tmp_path / "superopt-held-beside"
    with folder_at(beside), folder_in(tmp_path):
        assert beside.is_dir()
    assert not beside.exists()


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "superopt-held-left"
    left.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(folders.os, "geteuid", lambda: -1)
        with folder_in(tmp_path):
            assert left.is_dir()
    with folder_in(tmp_path):
        assert not left.exists()


def test_scratch_folders_are_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundles, "SHARED", tmp_path)
    with bundles.scratch_folder(1) as mine, bundles.scratch_folder(1):
        assert Path(mine).is_dir()
