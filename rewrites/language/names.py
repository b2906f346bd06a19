"""Names that rule texts may use, and the lax ops they stand for.

Elementwise functions carry their lax name except `maximum`, `minimum`, `invert` and `where` (as in NumPy), because
`max` and `min` are reducers in a rule.
"""

from __future__ import annotations

from superopt.ir.ops.table import ELEMENTWISE as ELEMENTWISE_OPS
from superopt.ir.ops.table import TABLE

ELEMENTWISE: dict[str, int] = {name: TABLE[name].arity or 3 for name in ELEMENTWISE_OPS}  # `select_n`: of two cases

ALIASES = {"maximum": "max", "minimum": "min", "invert": "not", "logical_and": "and", "logical_or": "or"}
"""Rule text -> lax name, where they differ."""
TEXT_NAME = {lax: text for text, lax in ALIASES.items()}
"""lax name -> rule text, where they differ."""
IN_TEXT = frozenset(ELEMENTWISE) - {*TEXT_NAME, "select_n", "convert_element_type"} | set(ALIASES)
"""Elementwise functions by the names that rule texts use (`where` apart)."""

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
WINDOW_DEFAULTS: dict[str, tuple[int | None, ...]] = {
    "slice": (0, None, 1),  # start, stop (None: the end), step
    "pad": (0, 0, 0),  # lo, hi, interior
    "win": (1, 1, 0, 0),  # size, step, lo, hi
    "conv": (1, 0, 0, 1, 1),  # step, lo, hi, base dilation, window dilation
}
REQUIRED = {"at": 1, "split": 1, "dynslice": 2, "dynupdate": 1, "expand": 1}
"""Ops whose per-axis attributes have no defaults -> how many they take."""
