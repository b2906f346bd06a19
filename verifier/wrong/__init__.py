"""Rewrites that people and tools believed, and that must be refuted with arrays.

Rule texts by module; the `source` of a text says who believed it.  Mistakes about the order of axes need pairs of JAX
functions: they are in `superopt.bench.wrong_functions`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from rewrites.parse import parse_many
from rewrites.term import Rule


@functools.cache
def load() -> tuple[Rule, ...]:
    """All wrong rules, in order of module and text.

    Raises:
        RuleError: a text is no well-formed rule.
    """
    rules: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        path = Path(str(module.__file__))
        lines = path.read_text(encoding="utf-8").split("\n")
        start = next(i for i, line in enumerate(lines, 1) if line.startswith("RULES = "))
        rules += parse_many(module.RULES, f"verifier/wrong/{path.name}:{start}")
    return tuple(rules)
