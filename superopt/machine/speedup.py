"""The speed-up of one program over another, with its interval, as measured, compared and reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Speedup:
    """Ratio of paired timings, original over optimised, with a 95 % interval.

    Attributes:
        ratio: 1.0 where nothing was timed.
        low, high: the interval; NaN, which compares as neither more nor less, where nothing was timed.
        basis: `measured`, `predicted` (by the performance model, nothing timed) or `untimed`.
    """

    ratio: float
    low: float
    high: float
    basis: str = "measured"

    @property
    def is_gain(self) -> bool:
        """Whether the program was measured to be faster, over the whole interval."""
        return self.basis == "measured" and self.low > 1.0

    @property
    def noise(self) -> float:
        """The largest distance of the interval's ends from 1: the noise, where a program was timed against itself."""
        return max(self.high - 1.0, 1.0 - self.low, 0.0)

    def exceeds(self, noise: float) -> bool:
        """Whether the gain is beyond doubt: the whole interval above 1, and the ratio above 1 plus this noise."""
        return self.low > 1.0 and self.ratio > 1.0 + noise

    def to_json(self) -> dict[str, Any]:
        """Return one JSON-serialisable object; bounds that are NaN are null."""
        bounds = {name: x if math.isfinite(x) else None for name, x in (("low", self.low), ("high", self.high))}
        return {**asdict(self), **bounds}

    def __str__(self) -> str:
        if self.basis == "measured":
            return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.ratio:.2f}x predicted, not measured" if self.basis == "predicted" else "not measured"


def predicted_speedup(ratio: float) -> Speedup:
    """Return a speed-up that the performance model predicts."""
    return Speedup(ratio, math.nan, math.nan, "predicted")


UNTIMED = Speedup(1.0, math.nan, math.nan, "untimed")


def read_speedup(value: Mapping[str, Any]) -> Speedup:
    """Return the speed-up of a JSON report, where NaN is null."""
    bounds = {name: math.nan if value[name] is None else value[name] for name in ("low", "high")}
    return Speedup(**{**value, **bounds})
