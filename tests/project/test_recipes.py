"""The recipes of docs/recipes.md, made in a copy of the project: each does what it says with the files it names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sampling import sampled

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(diff|file|sh)(?: (\S+))?\n(.*?)^```", re.S | re.M)
RECIPES = {
    title: [(kind, name, body) for kind, name, body in BLOCK.findall(text)]
    for title, _, text in (
        part.partition("\n") for part in (ROOT / "docs/recipes.md").read_text().split("\n## ")[1:]
    )
}  # fmt: skip
PROGRAM = """
import numpy as np

def make():
    return (lambda w, x: x @ w), (np.ones((8, 8), "float32"), np.ones((2, 8), "float32")), (0,)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project of one's own, with its commands in front of all others."""
    for name in ("superopt", "rewrites", "verifier", "costmodel", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name)  # with what is compiled: else each copy compiles it again
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "bin").mkdir()
    for command, module in (("python", ""), ("superopt", "-m superopt.commands.main")):
        script = tmp_path / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    return tmp_path


def changed(text: str, block: str) -> str:
    """A file after a change: lines with - and without a mark go, those with + and without a mark stand there."""
    lines = [line or " " for line in block.splitlines()]
    before = "\n".join(line[1:] for line in lines if line[0] in " -")
    after = "\n".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times"
    return text.replace(before, after)


@pytest.mark.parametrize("title", RECIPES)
def test_the_files_of_a_recipe_are_there_and_take_its_changes(title: str) -> None:
    made: dict[str, str] = {}
    for kind, name, body in RECIPES[title]:
        if kind == "file":
            made[name] = body
        elif kind == "diff":
            made[name] = changed(made[name] if name in made else (ROOT / name).read_text(), body)
    assert made


@pytest.mark.parametrize("title", sampled(RECIPES, lambda n, _: n % 4 == 0))
def test_a_recipe_works_as_it_is_written(title: str, copy: Path) -> None:
    commands = 0
    for kind, name, body in RECIPES[title]:
        if kind == "sh":
            commands += 1
            environment = {
                **os.environ, "PATH": f"{copy / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(copy),
                "XDG_CACHE_HOME": str(copy / "cache"),
            }  # fmt: skip
            done = subprocess.run(
                body, shell=True, cwd=copy, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            path = copy / name
            path.write_text(body if kind == "file" else changed(path.read_text(), body))
    assert commands == 1
