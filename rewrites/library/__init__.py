"""The rule library: each module holds rule texts in `RULES` and nothing else."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from rewrites.parse import parse_many
from rewrites.term import Rule
from superopt.errors import RuleError


@functools.cache
def load() -> tuple[Rule, ...]:
    """All rules of the library, in order of module and text.

    Raises:
        RuleError: a text is no well-formed rule, or two rules share a name.
    """
    rules: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        path = Path(str(module.__file__))
        lines = path.read_text(encoding="utf-8").split("\n")
        start = next(i for i, line in enumerate(lines, 1) if line.startswith("RULES = "))
        rules += parse_many(module.RULES, f"rewrites/library/{path.name}:{start}")
    names = [r.name for r in rules]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise RuleError(f"rules defined twice: {', '.join(twice)}")
    return tuple(rules)


def by_name(name: str) -> Rule:
    """One rule of the library.

    Raises:
        RuleError: no rule of that name.
    """
    for rule in load():
        if rule.name == name:
            return rule
    raise RuleError(f"no rule named {name!r}", hint="`superopt verify --library` lists the rules")
