"""The model that guides a search of schedules: an ensemble of small networks, fitted while the search runs.

    f_k(x) = W3 tanh(W2 tanh(W1 x)),   log2 time of a candidate relative to the mean of its operator

x are the standardised `features` of a candidate.  Each member sees a bootstrap of the measurements; the loss is the
squared error plus a pairwise logistic loss on the order within an operator, as ranking is what a search needs
(Chen et al., Learning to Optimize Tensor Programs, 2018).  Measurements of earlier operators are kept in the store and
take part with their own means, which is the transfer between operators: a new search starts with an order that is
better than chance.  Fitted with JAX; predictions with NumPy, because they are asked for hundreds of points at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.schedules.features import NAMES

MEMBERS, WIDTH, STEPS, RATE = 4, 32, 300, 0.01
_SIZES = (64, 256, 1024, 4096)  # rows are padded to one of these: few shapes are compiled
_ORDER = 0.5  # weight of the loss on order


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements.

    Attributes:
        x: features [n, len(NAMES)].
        y: log2 of seconds [n].
        group: number of the operator [n].
    """

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    @staticmethod
    def empty() -> Rows:
        """No measurements."""
        return Rows(np.zeros((0, len(NAMES)), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))

    def join(self, other: Rows) -> Rows:
        """Both, with groups kept apart."""
        shift = int(self.group.max(initial=-1)) + 1
        return Rows(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.y, other.y]),
            np.concatenate([self.group, other.group + shift]),
        )


@dataclass(frozen=True, slots=True)
class ScheduleModel:
    """A fitted ensemble: `predict` gives mean and spread of the members."""

    centre: np.ndarray
    scale: np.ndarray
    weights: tuple[tuple[np.ndarray, np.ndarray], ...]

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over members of the relative log2 time, for features [n, len(NAMES)]."""
        h = np.broadcast_to((x - self.centre) / self.scale, (MEMBERS, *x.shape))
        for k, (w, b) in enumerate(self.weights):
            h = h @ w + b[:, None, :]
            if k < len(self.weights) - 1:
                h = np.tanh(h)
        values = h[..., 0]
        return values.mean(0), values.std(0)


def fit(rows: Rows, seed: int = 0) -> ScheduleModel:
    """Fit to measurements (at least one)."""
    newest = max(_SIZES)
    x, group = rows.x[-newest:].astype(np.float32), rows.group[-newest:]
    means = {int(g): float(rows.y[-newest:][group == g].mean()) for g in np.unique(group)}
    y = (rows.y[-newest:] - np.asarray([means[int(g)] for g in group])).astype(np.float32)
    centre, scale = x.mean(0), np.maximum(x.std(0), 1e-3)
    n = next(size for size in _SIZES if size >= len(y))
    rng = np.random.default_rng(seed)
    padded = np.zeros((n, x.shape[1]), np.float32)
    padded[: len(y)] = (x - centre) / scale
    target, groups = np.zeros(n, np.float32), np.full(n, -1, np.int32)
    target[: len(y)], groups[: len(y)] = y, group
    counts = np.zeros((MEMBERS, n), np.float32)
    for k in range(MEMBERS):
        chosen, times = np.unique(rng.integers(0, len(y), len(y)), return_counts=True)
        counts[k, chosen] = times
    start = [
        (rng.standard_normal((MEMBERS, a, b)).astype(np.float32) / np.sqrt(a), np.zeros((MEMBERS, b), np.float32))
        for a, b in ((x.shape[1], WIDTH), (WIDTH, WIDTH), (WIDTH, 1))
    ]
    partner = rng.permutation(np.arange(n)[: len(y)])
    pairs = np.arange(n)
    pairs[: len(y)] = partner
    fitted = _fitter()(start, padded, target, groups, counts, pairs)
    return ScheduleModel(centre, scale, tuple((np.asarray(w), np.asarray(b)) for w, b in fitted))


@functools.cache
def _fitter() -> Callable[..., Any]:
    import jax  # late: the import takes a second
    import optax
    from jax import numpy as jnp

    optimiser = optax.adam(RATE)

    def values(weights: Any, x: Any) -> Any:
        h = jnp.broadcast_to(x, (MEMBERS, *x.shape))
        for k, (w, b) in enumerate(weights):
            h = h @ w + b[:, None, :]
            h = jnp.tanh(h) if k < len(weights) - 1 else h
        return h[..., 0]

    def loss(weights: Any, x: Any, y: Any, group: Any, counts: Any, shift: Any) -> Any:
        f = values(weights, x)
        error = jnp.sum(counts * (f - y) ** 2) / jnp.sum(counts)
        other = jnp.roll(jnp.arange(len(y)), shift)
        same = (group == group[other]) & (group >= 0)
        gap = y - y[other]
        order = jnp.where(same, jnp.abs(gap) * jnp.logaddexp(0.0, -jnp.sign(gap) * (f - f[:, other]) * 4), 0.0)
        weight = jnp.sum(jnp.where(same, jnp.abs(gap), 0.0)) + 1e-6
        decay = sum(jnp.sum(w * w) for w, _ in weights)
        return MEMBERS * error + _ORDER * jnp.sum(order) / weight + 1e-3 * decay

    def fit_all(weights: Any, x: Any, y: Any, group: Any, counts: Any, pairs: Any) -> Any:
        x, y, group, counts = x[pairs], y[pairs], group[pairs], counts[:, pairs]

        def step(state: Any, k: Any) -> tuple[Any, None]:
            weights, moments = state
            gradient = jax.grad(loss)(weights, x, y, group, counts, k + 1)
            updates, moments = optimiser.update(gradient, moments)
            return (optax.apply_updates(weights, updates), moments), None

        (weights, _), _ = jax.lax.scan(step, (weights, optimiser.init(weights)), jnp.arange(STEPS))
        return weights

    return jax.jit(fit_all)
