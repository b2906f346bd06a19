"""How far rounding alone may move the results of a program on given inputs.

Where terms cancel (the sum of numbers between -3 and 3, the variance of equal ones), what is left is rounding, and a
relative difference says nothing.  There the results are compared with those, over float64, of inputs and weights whose
last bit is another: an algorithm that is as good as can be computes the exact results of inputs that are so near.

Values that are quantised on the way jump from one of 255 steps to the next.  In a deep model one such jump leads to
others, and two right programs differ by as much as each differs from the exact results.

A result that is itself quantised is compared with its exact value before it was rounded: near the middle between two
integers either of them is right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from superopt.ir.types import UNIT_ROUNDOFF
from superopt.measure.numerics import FLOAT_TOLERANCE, QUANTISED, Tolerance, bound_of, output_errors
from superopt.workshop.job import OutputError

_DRAWS = 4
_ALLOWED = 16.0  # times what one ulp in each input does: sums of 10,000 terms in another order stay below 4
_USUAL = Tolerance()
_FARTHER = 1.25  # times the farthest of the original and its draws: those of BERT-base in 8 bits differ by 1.07

Change = Callable[[np.ndarray], np.ndarray]
"""Maps an input or a weight to the value over float64 that the program is to have in its place."""
Exact = Callable[[Change], Sequence[np.ndarray] | None]
"""Results over float64 for inputs and weights that are changed, quantised ones before they are rounded; None where
there are none."""


class Neighbours:
    """Results over float64 of given inputs, and of inputs and weights that differ from them in their last bits.

    Args:
        exact: the original over float64.
        seed: of the last bits.
    """

    def __init__(self, exact: Exact, seed: int = 0) -> None:
        self._exact, self._seed = exact, seed

    @functools.cached_property
    def truth(self) -> Sequence[np.ndarray] | None:
        """Results of the inputs themselves; None where there are none."""
        return self._exact(wide)

    @functools.cached_property
    def _drawn(self) -> list[Sequence[np.ndarray]]:
        rng = np.random.default_rng(self._seed)
        drawn = [self._exact(lambda x: with_other_last_digits(x, rng)) for _ in range(_DRAWS)]
        return [results for results in drawn if results is not None]

    def apart(self, k: int, final: Change = lambda x: x) -> list[np.ndarray]:
        """Return the differences of result k of such inputs from that of the inputs themselves.

        Args:
            k: the number of the result.
            final: maps an exact result to what is compared.
        """
        assert self.truth is not None
        return [final(np.asarray(m[k], np.float64)) - final(self.truth[k]) for m in self._drawn]


def beyond_rounding(
    near: Neighbours,
    kinds: Sequence[str],
    want: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    tolerance: Tolerance = _USUAL,
) -> tuple[int, OutputError] | None:
    """Return the number and error of the first result beyond the tolerance; None where rounding explains all of them.

    The arguments are those of `differ_by_rounding`.
    """
    for k, error in enumerate(output_errors(want, got)):
        if not tolerance.accepts(error, kinds[k]):
            return None if differ_by_rounding(near, kinds, want, got, tolerance) else (k, error)
    return None


def differ_by_rounding(
    near: Neighbours,
    kinds: Sequence[str],
    want: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    tolerance: Tolerance = _USUAL,
) -> bool:
    """Whether every result is as near to the exact one as results of inputs are that differ in their last bit.

    Results of quantised values may instead be as far from the exact ones, in the norm, as those of the original or of
    such inputs.  A quantised result may differ by one from the original's, where such inputs explain it.

    Args:
        near: exact results of the original, and of inputs nearby.
        kinds: for each result, the type that it was computed in (`superopt.measure.numerics.computed_in`).
        want: results of the original.
        got: results of the program that is judged.
        tolerance: accepted errors of results that need no explanation.
    """
    if len(want) != len(got) or near.truth is None:
        return False
    for k, (kind, a, b) in enumerate(zip(kinds, want, got, strict=True)):
        (error,) = output_errors([a], [b])
        if not (tolerance.accepts(error, kind) or _is_rounding(near, k, kind, a, b, tolerance.normwise)):
            return False
    return True


def _is_rounding(near: Neighbours, k: int, kind: str, a: np.ndarray, b: np.ndarray, normwise: float) -> bool:
    """Whether result k of a program is as right as that of the original is, or as exact inputs nearby explain."""
    assert near.truth is not None
    t, whole = near.truth[k], str(a.dtype) not in FLOAT_TOLERANCE
    if a.shape != b.shape or a.dtype != b.dtype or (whole and t.dtype != np.float64):
        return False
    if kind == QUANTISED:
        final = np.rint if whole else np.asarray
        gaps = [x.astype(np.float64) - final(t) for x in (a, b)]
        if _as_near(gaps[1], gaps[:1]) or _as_near(gaps[1], near.apart(k, final)):
            return True
        if not whole:
            return False
    spread = np.max(np.abs(near.apart(k)), axis=0)
    if whole:  # within 1/2 of a value that is as near to the exact one
        unit = UNIT_ROUNDOFF.get(kind, UNIT_ROUNDOFF["float32"])
        allowed = 0.5 + np.minimum(_ALLOWED * np.maximum(spread, unit * np.abs(t)), 0.5)
    else:
        rms = np.sqrt(np.mean(np.square(spread)))
        allowed = _ALLOWED * np.maximum(spread, rms) + normwise * bound_of(kind) * np.abs(t)
    return bool(np.all(np.abs(b.astype(np.float64) - t) <= allowed))  # NaN is neither


def _as_near(gap: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Whether a difference is no larger in the norm than `_FARTHER` times the largest of others; NaN is not."""
    return bool(np.linalg.norm(gap) <= _FARTHER * max(float(np.linalg.norm(x)) for x in others))


def wide(x: np.ndarray) -> np.ndarray:
    """Return an array with its floats over float64."""
    return x.astype(np.float64) if str(x.dtype) in FLOAT_TOLERANCE else x


def with_other_last_digits(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an array over float64, its floats with another last digit."""
    kind = str(x.dtype)
    return in_last_place(wide(x), kind, rng) if kind in FLOAT_TOLERANCE else x


def in_last_place(wide: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values over float64, each by up to one unit in the last place of a type away from what it is."""
    return wide * (1.0 + 2 * UNIT_ROUNDOFF[dtype] * rng.uniform(-1.0, 1.0, wide.shape))
