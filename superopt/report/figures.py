"""Formatting of figures: one format for each kind, and look-up of figures in a record by their path.

A page takes every figure from the record of the report (`Report.to_json`) by a path (`account/after/kernels_ms`).  So a
quantity has the same format on every page, and readers can find where a figure comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from superopt.machine.speedup import read_speedup

NONE = "-"


def ms(value: float | None) -> str:
    """Milliseconds in a readable unit, to three digits."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size < 5e-8:
        return "0 µs"
    if size < 0.09995:
        return f"{1e3 * value:.3g} µs"
    return f"{value:.3g} ms" if size < 99.95 else f"{value:,.0f} ms"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def change(value: float | None) -> str:
    """A relative change as a percentage with its sign."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{100 * value:+.1f} %" if abs(value) >= 0.0005 else "equal"


def seconds(value: float | None) -> str:
    """Format a number of seconds."""
    return NONE if value is None else f"{value:.1f} s"


def number(value: float | None) -> str:
    """Format a count."""
    return NONE if value is None else f"{value:,}"


def error(value: float | None) -> str:
    """Format a relative difference."""
    return NONE if value is None else f"{value:.1e}"


def ratio(value: float | None) -> str:
    """A ratio of speeds, with its unit."""
    return NONE if value is None else f"{value:.2f}x"


_KINDS = {
    "_ms": ms, "us": lambda us: ms(None if us is None else 1e-3 * us), "ms": ms, "share": percent, "floor": percent,
    "loss": change, "seconds": seconds, "error": error, "f64": error, "ratio": ratio, "gain": ratio,
}  # fmt: skip


def written(path: str, value: Any) -> str:
    """A value of the record formatted by its kind, which the last word of its path names."""
    if isinstance(value, Mapping):
        return str(read_speedup(value))
    for ending, form in _KINDS.items():
        if path.rpartition("/")[2].endswith(ending):
            return form(value)
    return number(value)


def value_at(record: Any, path: str) -> Any:
    """Return the value at a path of a record; numbers in it index lists."""
    for word in path.split("/"):
        record = record[int(word)] if isinstance(record, list | tuple) else record[word]
    return record
