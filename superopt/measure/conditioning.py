"""How far rounding alone may move the results of a program on given inputs.

Where terms cancel (the sum of numbers between -3 and 3, the variance of equal ones), what is left is rounding, and a
relative difference says nothing.  There the results are compared with those, over float64, of inputs whose last bit is
another: an algorithm that is as good as can be computes the exact results of inputs that are so near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.ir.types import UNIT_ROUNDOFF
from superopt.measure.numerics import FLOAT_TOLERANCE, Tolerance, output_errors

_DRAWS = 4
_ALLOWED = 16.0  # times what one ulp in each input does: sums of 10,000 terms in another order stay below 4

Exact = Callable[[Sequence[Any]], Sequence[np.ndarray] | None]
"""Results over float64 of inputs in float64; None where there are none."""


def differ_by_rounding(
    exact: Exact, inputs: Sequence[Any], want: Sequence[np.ndarray], got: Sequence[np.ndarray], seed: int = 0
) -> bool:
    """Whether every result is as near to the exact one as results of inputs are that differ in their last bit.

    Args:
        exact: the original over float64.
        inputs: of both programs.
        want: results of the original.
        got: results of the program that is judged.
        seed: of the last bits.
    """
    truth = exact([_wide(x) for x in inputs])
    if truth is None or len(want) != len(got):
        return False
    rng = np.random.default_rng(seed)
    moved = [exact([_moved(x, rng) for x in inputs]) for _ in range(_DRAWS)]
    for k, (a, b, t) in enumerate(zip(want, got, truth, strict=True)):
        kind = str(a.dtype)
        (error,) = output_errors([a], [b])
        if Tolerance().accepts(error, kind):
            continue
        if kind not in FLOAT_TOLERANCE or a.shape != b.shape or a.dtype != b.dtype:
            return False
        others = [np.asarray(m[k], np.float64) for m in moved if m is not None]
        spread = np.max([np.abs(m - t) for m in others], axis=0)
        gap = np.abs(b.astype(np.float64) - np.asarray(t, np.float64))
        rms = np.sqrt(np.mean(np.square(spread)))
        if not np.all(gap <= _ALLOWED * np.maximum(spread, rms) + FLOAT_TOLERANCE[kind] * np.abs(t)):  # NaN is neither
            return False
    return True


def _wide(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(np.float64) if str(array.dtype) in FLOAT_TOLERANCE else array


def _moved(x: Any, rng: np.random.Generator) -> np.ndarray:
    """An input over float64, its floats with another last digit."""
    kind = str(np.asarray(x).dtype)
    return in_last_place(_wide(x), kind, rng) if kind in FLOAT_TOLERANCE else _wide(x)


def in_last_place(wide: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values over float64, each by up to one unit in the last place of a type away from what it is."""
    return wide * (1.0 + 2 * UNIT_ROUNDOFF[dtype] * rng.uniform(-1.0, 1.0, wide.shape))
