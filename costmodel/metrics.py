"""How good a cost model is: relative error, and order among forms of one operation.

MAPE is the mean of |predicted - measured| / measured.  The order inside a task (forms that compute the same function)
is Kendall's tau-b; `pairs` is the share of pairs, differing by more than a tenth when measured, that the model puts
in the right order; `regret` is what the model's pick costs over the best form, mean over tasks.
"""

from __future__ import annotations

import itertools
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
    pairs: float
    regret: float

    def as_dict(self) -> dict[str, float]:
        """Rounded, for cards and reports."""
        return {name: round(float(value), 4) for name, value in asdict(self).items()}


def quality(predicted_s: np.ndarray, measured_s: np.ndarray, tasks: Sequence[str]) -> Quality:
    """Figures of predictions against measurements."""
    error = np.abs(predicted_s - measured_s) / measured_s
    groups: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(task, []).append(i)
    taus: list[float] = []
    regrets: list[float] = []
    right = clear = 0
    for members in groups.values():
        if len(members) < 2:
            continue
        p, m = predicted_s[members], measured_s[members]
        taus.append(kendall_tau(p, m))
        regrets.append(float(m[int(np.argmin(p))] / m.min() - 1.0))
        for i, j in itertools.combinations(range(len(members)), 2):
            if abs(m[i] - m[j]) > CLEAR * min(m[i], m[j]):
                clear += 1
                right += (p[i] < p[j]) == (m[i] < m[j])
    return Quality(
        len(measured_s), float(error.mean()), float(np.median(error)), float(np.mean(taus)) if taus else 1.0,
        right / clear if clear else 1.0, float(np.mean(regrets)) if regrets else 0.0,
    )  # fmt: skip


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of two equally long series; 1 when there is nothing to order."""
    i, j = np.triu_indices(len(a), 1)
    da, db = np.sign(a[i] - a[j]), np.sign(b[i] - b[j])
    scale = float(np.sqrt(np.count_nonzero(da) * np.count_nonzero(db)))
    return float((da * db).sum() / scale) if scale else 1.0
