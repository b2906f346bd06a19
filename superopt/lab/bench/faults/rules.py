"""Texts of rules with faults: each is read or refused, and nothing in it is run."""

from __future__ import annotations

import random
from pathlib import Path

from rewrites.language.show import show
from rewrites.library import load
from superopt.certify.rule_files import rules_of_files
from superopt.lab.bench.faults.texts import encoded, mutated_bytes, mutated_text

_FILES = 12


def corpus(folder: Path) -> None:
    """Write the rules of the library into a few files, and one of them into a file of Python."""
    rules = load()
    for number in range(_FILES):
        some = rules[number :: _FILES * 3]
        text = "\n\n".join(show(rule) for rule in some) + "\n"
        as_python = number % 4 == 0
        (folder / f"{number}{'.py' if as_python else '.rules'}").write_text(
            f'RULES = """\n{text}"""\n' if as_python else text, encoding="utf-8"
        )


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """A changed text."""
    if rng.random() < 0.2:
        return mutated_bytes(data, rng)
    return encoded(mutated_text(data.decode(), rng, outside))


def read(path: Path, good: Path) -> str:
    """Read and show the rules of a file; return an empty text, as no answer can differ."""
    del good
    for rule in rules_of_files([str(path)]):
        show(rule)
    return ""


__all__ = ["corpus", "mutated", "read"]
