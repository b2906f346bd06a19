"""How much faster one program is than another: what measuring yields, the judge compares and a report states."""

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
        low, high: the interval; NaN, which is neither more nor less than anything, where nothing was timed.
        basis: `measured`, `predicted` (the performance model's word: nothing was timed) or `untimed`.
    """

    ratio: float
    low: float
    high: float
    basis: str = "measured"

    @property
    def is_gain(self) -> bool:
        """Was the program measured to be faster, all of the interval?"""
        return self.basis == "measured" and self.low > 1.0

    @property
    def noise(self) -> float:
        """How far the farthest end of the interval is from level: the noise, where a program was timed with itself."""
        return max(self.high - 1.0, 1.0 - self.low, 0.0)

    def exceeds(self, noise: float) -> bool:
        """Is it a gain beyond doubt: all of the interval, and the ratio beyond this noise?"""
        return self.low > 1.0 and self.ratio > 1.0 + noise

    def to_json(self) -> dict[str, Any]:
        """One JSON-serialisable object: bounds that are none are null."""
        bounds = {name: x if math.isfinite(x) else None for name, x in (("low", self.low), ("high", self.high))}
        return {**asdict(self), **bounds}

    def __str__(self) -> str:
        if self.basis == "measured":
            return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.ratio:.2f}x predicted, not measured" if self.basis == "predicted" else "not measured"


def predicted_speedup(ratio: float) -> Speedup:
    """What the performance model promises."""
    return Speedup(ratio, math.nan, math.nan, "predicted")


UNTIMED = Speedup(1.0, math.nan, math.nan, "untimed")


def read_speedup(value: Mapping[str, Any]) -> Speedup:
    """The speed-up that a report in JSON has, where NaN is null."""
    bounds = {name: math.nan if value[name] is None else value[name] for name in ("low", "high")}
    return Speedup(**{**value, **bounds})
