"""Metrics of a cost model: relative error, and order among forms of one operation.

MAPE is the mean of |predicted - measured| / measured.  The order inside a task (forms that compute the same function)
is Kendall's tau over the pairs whose measured times differ by more than their noise (by a tenth where no noise is
given).  Pairs within it are ties and dropped, since a second visit would hardly order them alike; `tau_b` counts them
as well.  `pairs` is the share of distinct pairs of all tasks that the model puts in the right order.  `regret` is the
excess time of the model's pick over the best form, mean over tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

CLEAR = 0.1


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one model on one set of kernels."""

    kernels: int
    mape: float
    median_error: float
    tau: float
    tau_b: float
    pairs: float
    regret: float

    def as_dict(self) -> dict[str, float]:
        """Rounded, for cards and reports."""
        return {name: round(float(value), 4) for name, value in asdict(self).items()}


def quality(
    predicted_s: np.ndarray, measured_s: np.ndarray, tasks: Sequence[str], noise: np.ndarray | None = None
) -> Quality:
    """Figures of predictions against measurements; `noise` is the standard deviation of log time per kernel."""
    error = np.abs(predicted_s - measured_s) / measured_s
    groups: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(task, []).append(i)
    taus: list[float] = []
    tau_bs: list[float] = []
    regrets: list[float] = []
    right = distinct = 0
    for members in groups.values():
        if len(members) < 2:
            continue
        p, m = predicted_s[members], measured_s[members]
        tau_bs.append(kendall_tau(p, m))
        regrets.append(float(m[int(np.argmin(p))] / m.min() - 1.0))
        i, j = np.triu_indices(len(members), 1)
        gap = np.abs(np.log(m[i] / m[j]))
        least = np.log1p(CLEAR) if noise is None else 2.0 * np.hypot(noise[members][i], noise[members][j])
        clear = gap > least
        if not clear.any():
            continue
        agree = (np.sign(p[i] - p[j]) == np.sign(m[i] - m[j]))[clear]
        right, distinct = right + int(agree.sum()), distinct + len(agree)
        taus.append(2.0 * float(agree.mean()) - 1.0)
    return Quality(
        len(measured_s), float(error.mean()), float(np.median(error)), _mean(taus, 1.0), _mean(tau_bs, 1.0),
        right / distinct if distinct else 1.0, _mean(regrets, 0.0),
    )  # fmt: skip


def _mean(values: Sequence[float], empty: float) -> float:
    return float(np.mean(values)) if values else empty


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of two equally long series; 1 when there is nothing to order."""
    i, j = np.triu_indices(len(a), 1)
    da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
    scale = float(np.sqrt(np.count_nonzero(da) * np.count_nonzero(db)))
    return float((da * db).sum() / scale) if scale else 1.0
