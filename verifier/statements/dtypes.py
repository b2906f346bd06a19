"""Both sides of a proved statement in their own dtypes: the watch over what the prover takes for granted.

The reference interpreter computes as NumPy does in the types of the program: integers wrap, floats are rounded.  Where
a proof takes values that are tested for being numbers to be such, or claims bits, inputs that are none are tried, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from superopt.errors import ArgumentError
from superopt.frontends.symbolic.graphs import trace_concrete
from superopt.ir.interp import evaluate
from superopt.ir.types import FLOATS
from verifier.statements.prove import unsupported_ops
from verifier.statements.refute import ATTEMPTS, Pairing, Sizes, make_values, show_sizes

ROUNDING = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-1, "bfloat16": 1e-1}
"""What rounding in a type may make of small integers, relative to the greatest result: ten times what was seen."""


def really_differs(pair: Pairing, sizes: Sizes, exactness: str, tested: bool) -> str:
    """Where two functions that are said to be equal differ in their own dtypes, in words; empty where they do not.

    Args:
        pair: the functions.
        sizes: where to look.
        exactness: the class of the proof.
        tested: the proof takes values that are tested for being finite numbers to be such.
    """
    try:
        sides = [trace_concrete(fn, pair.specs, sizes) for fn in (pair.left, pair.right)]
    except ArgumentError:
        return ""
    if any(unsupported_ops(t.graph) for t in sides):
        return ""
    names = pair.specs.names
    for attempt in range(ATTEMPTS + 3):
        values = make_values(sides[0].graph.inputs, names, attempt)
        special = ""
        if attempt >= ATTEMPTS:
            if not tested and exactness != "exact":
                break
            special = ("NaN", "inf", "-inf")[attempt - ATTEMPTS]
            values = _strewn(values, float(special))
        results = [evaluate(t.graph, values) for t in sides]
        for a, b in zip(*map(list, results), strict=True):
            at = _real_difference(np.asarray(a), np.asarray(b), exactness, attempt, special, values)
            if at is not None:
                where = f" where an input is {special}" if special else ""
                return f"{np.asarray(a)[at]} and {np.asarray(b)[at]} at {show_sizes(sizes)}{where}"
    return ""


def _strewn(values: Mapping[str, np.ndarray], special: float) -> dict[str, np.ndarray]:
    """Every other float of the inputs replaced."""
    out: dict[str, np.ndarray] = {}
    for name, x in values.items():
        out[name] = x
        if str(x.dtype) in FLOATS:
            out[name] = np.where(np.arange(x.size).reshape(x.shape) % 2 == 0, x.dtype.type(special), x)
    return out


def _real_difference(
    a: np.ndarray, b: np.ndarray, exactness: str, attempt: int, special: str, values: Mapping[str, np.ndarray]
) -> tuple[int, ...] | None:
    if str(a.dtype) not in FLOATS:
        floats = any(str(x.dtype) in FLOATS for x in values.values())
        if floats and exactness != "exact":
            return None  # rounding may decide it
        bad = a != b
    else:
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            if exactness != "exact" and special != "NaN":
                same |= np.isnan(x) | np.isnan(y)
            if exactness != "exact":
                finite = np.abs(x[np.isfinite(x)])
                scale = 1.0 + (float(finite.max()) if finite.size else 0.0)
                numbers = np.isfinite(x) & np.isfinite(y)
                close = np.abs(x - y) <= ROUNDING[str(a.dtype)] * scale
                same |= numbers & (close if attempt <= 1 else True)  # other values than small integers may cancel
                same |= ~numbers & (not special)
        bad = ~same
    return None if not bad.any() else tuple(int(i) for i in np.argwhere(bad)[0])
