"""The surrogate model of a schedule search: a Gaussian process over features, on top of the model of kernels.

    log2 seconds of a candidate = c + m(x) + g(x) + noise,      g ~ GP(0, a^2 matern52(|x - x'|_lengths)).

x are the standardised `features`, c is the operator's own constant (the mean of its measurements), and m the prediction
of `costmodel.model.staged`.  The lengths, one per feature, are the `Prior`.  They are fitted to the labels of schedules
by the marginal likelihood (`superopt.lab.training.schedule_prior`) and kept in `prior.json`, a few kB.

A search conditions g on its own measurements, which has a closed form and takes milliseconds.  It also conditions on
those of earlier operators in the store, whose g is correlated with this operator's by `coupling`: the transfer between
operators (Chen et al., Learning to Optimize Tensor Programs, 2018).

The matrices are small, and no product of them goes through NumPy's linear algebra library.  Its threads, once they have
worked, spin for some 50 ms on the processors on which candidates are then built and timed.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.schedules.features import NAMES

if TYPE_CHECKING:
    from jaxtyping import Float, Int

PRIOR = Path(__file__).with_name("prior.json")


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements.

    Attributes:
        x: features, in the order of `NAMES`.
        y: log2 of seconds.
        group: number of the operator.
    """

    x: Float[np.ndarray, "rows features"]
    y: Float[np.ndarray, " rows"]
    group: Int[np.ndarray, " rows"]

    def __len__(self) -> int:
        return len(self.y)

    @staticmethod
    def empty() -> Rows:
        """Return no measurements."""
        return Rows(np.zeros((0, len(NAMES)), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))

    def join(self, other: Rows) -> Rows:
        """Return both, with groups kept apart."""
        shift = int(self.group.max(initial=-1)) + 1
        return Rows(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.group, other.group + shift]),
        )


@dataclass(frozen=True, slots=True)
class Prior:
    """The prior of the Gaussian process, before anything of an operator is measured.

    Attributes:
        centre, scale: mean and scale that standardise the features.
        lengths: length scales, in standardised features.
        amplitude, noise: standard deviations of g and of a timing, in log2 of seconds.
        coupling: correlation of g between operators.
    """

    centre: Float[np.ndarray, " features"]
    scale: Float[np.ndarray, " features"]
    lengths: Float[np.ndarray, " features"]
    amplitude: float
    noise: float
    coupling: float

    def mean(self, x: Float[np.ndarray, "points features"]) -> Float[np.ndarray, " points"]:
        """Return the prediction of the model of scheduled kernels: the last of the features."""
        return x[:, -1].astype(np.float64)

    def covariance(
        self, x: Float[np.ndarray, "points features"], other: Float[np.ndarray, "rows features"]
    ) -> Float[np.ndarray, "points rows"]:
        """Return the covariance of g between two lists of feature vectors of one operator."""
        a, b = ((z - self.centre) / self.scale / self.lengths for z in (x, other))
        squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * np.einsum("ij,kj->ik", a, b)
        r = np.sqrt(5 * np.maximum(squares, 0))
        return self.amplitude**2 * (1 + r + r * r / 3) * np.exp(-r)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data, with the names of the features that it is for."""

        def short(x: Any) -> Any:
            return [short(v) for v in x] if isinstance(x, np.ndarray) else float(f"{x:.4g}")

        return {"names": list(NAMES), **{name: short(getattr(self, name)) for name in self.__slots__}}


@functools.cache
def prior(path: Path = PRIOR) -> Prior:
    """Load the prior of a file, by default the one that is shipped."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert value.pop("names") == list(NAMES), f"{path} is for other features: superopt train fit --backend schedules"
    centre, scale, lengths = (np.asarray(value[name]) for name in ("centre", "scale", "lengths"))
    return Prior(centre, scale, lengths, value["amplitude"], value["noise"], value["coupling"])


@dataclass(frozen=True, slots=True)
class Forecast:
    """Joint posterior of the relative log2 times of some points."""

    mean: Float[np.ndarray, " points"]
    covariance: Float[np.ndarray, "points points"]
    noise: float

    def batch(self, count: int, spread: float) -> list[int]:
        """Choose points to measure together, by expected time less `spread` standard deviations.

        A chosen point counts as measured for those chosen after it, so that a batch is not many copies of one point.
        """
        covariance, chosen = self.covariance.copy(), list[int]()
        for _ in range(min(count, len(self.mean))):
            score = self.mean - spread * np.sqrt(np.maximum(np.diagonal(covariance), 0))
            score[chosen] = np.inf
            i = int(np.argmin(score))
            chosen.append(i)
            column = covariance[:, i].copy()
            covariance -= np.outer(column, column) / (column[i] + self.noise**2)
        return chosen


def forecast(x: Float[np.ndarray, "points features"], own: Rows, earlier: Rows, known: Prior) -> Forecast:
    """Predict the times of points with features x, given measurements of this operator and of others."""
    rows = own.join(earlier)
    mine = np.arange(len(rows)) < len(own)
    mean, here = known.mean(x), known.covariance(x, x)
    if not len(rows):
        return Forecast(mean, here, known.noise)
    rest = rows.y - known.mean(rows.x)
    for g in np.unique(rows.group):
        rest[rows.group == g] -= rest[rows.group == g].mean()
    same = rows.group[:, None] == rows.group[None]
    between = known.covariance(rows.x, rows.x) * np.where(same, 1.0, known.coupling)
    across = known.covariance(x, rows.x) * np.where(mine, 1.0, known.coupling)
    half, left = _solved(between + known.noise**2 * np.eye(len(rows)), across.T, rest)
    return Forecast(mean + np.einsum("ji,j->i", half, left), here - np.einsum("ji,jk->ik", half, half), known.noise)


def _solved(
    matrix: Float[np.ndarray, "rows rows"], columns: Float[np.ndarray, "rows points"], rest: Float[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "rows points"], Float[np.ndarray, " rows"]]:
    """L^-1 columns and L^-1 rest, where L L^T is the matrix (symmetric, positive definite)."""
    n, m = columns.shape
    lower, solved = np.zeros((n, n)), np.concatenate([columns, rest[:, None]], 1)
    for j in range(n):
        column = matrix[j:, j] - np.einsum("ij,j->i", lower[j:, :j], lower[j, :j])
        lower[j:, j] = column / np.sqrt(column[0])
        solved[j] = (solved[j] - np.einsum("j,jk->k", lower[j, :j], solved[:j])) / lower[j, j]
    return solved[:, :m], solved[:, m]
