"""Packages of rule texts: each of their modules holds texts in `RULES` and nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import Path

from rewrites.language.parse import parse_many
from rewrites.language.term import Rule
from superopt.errors import RuleError


def modules(package: str) -> list[str]:
    """Names of the modules of a package, sorted."""
    return sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(package).__path__))


def read(package: str, name: str) -> tuple[Rule, ...]:
    """The rules of one module of a package, with the place of each.

    Raises:
        RuleError: a text is no well-formed rule, or two rules of the module share a name.
    """
    module = importlib.import_module(f"{package}.{name}")
    path = Path(str(module.__file__))
    lines = path.read_text(encoding="utf-8").split("\n")
    start = next(i for i, line in enumerate(lines, 1) if line.startswith("RULES = "))
    return parse_many(module.RULES, f"{package.replace('.', '/')}/{path.name}:{start}")


def distinct(rules: Iterable[Rule], what: str) -> None:
    """Refuse rules that share a name.

    Raises:
        RuleError: two rules share a name.
    """
    names = [rule.name for rule in rules]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise RuleError(f"{what} defined twice: {', '.join(twice)}")
