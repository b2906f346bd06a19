"""Files of which some end the process that reads them: what `superopt.lab.bench.faults.suite` makes of that."""

from __future__ import annotations

import os
import random
from pathlib import Path

from superopt.errors import InputError


def corpus(folder: Path) -> None:
    """One file."""
    (folder / "one.txt").write_text("good")


def is_fatal(rng: random.Random) -> bool:
    """Does the file of this generator end the process, after the choice of the file that it was?"""
    rng.choice(["one.txt"])
    return rng.random() < 0.3


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """A file that ends the process, or one that is refused."""
    del data, outside
    return b"fatal" if rng.random() < 0.3 else b"bad"


def read(path: Path, good: Path) -> str:
    """Read a file."""
    del good
    text = path.read_text()
    if text == "fatal":
        os.abort()
    if text == "bad":
        raise InputError("bad")
    return ""
