"""Paired speed-ups of interleaved rounds with bootstrap intervals.

Round k gives one time for the reference and one per candidate, taken within milliseconds of each other, so slow phases
of the machine cancel in r_k = reference_k / candidate_k.  The estimate is exp(median log r_k); its interval is
the percentile bootstrap over rounds, which keeps the pairing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from superopt.machine.speedup import Speedup

RESAMPLES = 2000  # each end of the interval, 2.5 %, is then known to 0.35 %: sqrt(.025 * .975 / 2000)


def paired_ratio(reference_s: Sequence[float], candidate_s: Sequence[float], *, seed: int = 0) -> Speedup:
    """Median paired ratio with its bootstrap 95 % interval; extra rounds of the longer series are left out.

    Raises:
        ValueError: no common round, or a time that is not positive.
    """
    rounds = min(len(reference_s), len(candidate_s))
    a, b = np.asarray(reference_s[:rounds]), np.asarray(candidate_s[:rounds])
    if rounds == 0 or not ((a > 0) & (b > 0)).all():
        raise ValueError(f"{rounds} paired rounds with positive times; at least one is needed")
    logs = np.log(a / b)
    rng = np.random.default_rng(seed)
    medians = np.median(logs[rng.integers(0, rounds, (RESAMPLES, rounds))], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Speedup(float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)))
