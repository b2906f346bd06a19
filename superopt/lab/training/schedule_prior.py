"""Fits the prior that guides a search before it has measured anything (`prior.json`) to the labels of schedules.

The mean of the process is the model of scheduled kernels.  Lengths, amplitude and noise maximise the marginal
likelihood of its residuals, summed over regions, each with a constant of its own.  The residuals are those on families
that the model was not fitted to, as its residuals on its own labels are too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from costmodel.features import stages
from superopt.lab.training import staged
from superopt.lab.training.staged import ScheduleLabels, StagedSettings
from superopt.schedules.features import NAMES
from superopt.schedules.model import Prior

STEPS, RATE, MOST = 150, 0.05, 24  # steps of the fit, their rate, and points of a region
REGIONS = 160  # size of a sample: a region costs the cube of its points in each step
FOLDS = 4  # parts into which the families are split
_FIRST_LENGTH = 4.0


def points(labels: ScheduleLabels, settings: StagedSettings, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and log2 seconds by region, with residuals from models that have not seen the family."""
    families = np.random.default_rng(seed).permutation(np.unique(labels.families))
    predicted = np.zeros(len(labels.rows))
    for fold in np.array_split(families, FOLDS):
        held = np.isin(labels.families, fold)
        model = staged.fit(labels.part(np.flatnonzero(~held)), settings, seed)
        predicted[held] = np.log2(model.seconds([labels.rows[i] for i in np.flatnonzero(held)]))
    x = np.stack([np.append(stages.summed(rows), p) for rows, p in zip(labels.rows, predicted, strict=True)])
    y = np.log2(labels.seconds)
    by_region = [np.flatnonzero(labels.region == r) for r in np.unique(labels.region)]
    return [(x[at], y[at]) for at in by_region if len(at) >= 4]


def plain(x: np.ndarray) -> Prior:
    """A prior without information but the spread of the features."""
    return Prior(x.mean(0), np.maximum(x.std(0), 0.05), np.full(x.shape[1], _FIRST_LENGTH), 0.5, 0.05, 0.3)


def fitted(regions: Sequence[tuple[np.ndarray, np.ndarray]], steps: int = STEPS) -> Prior:
    """The prior of greatest marginal likelihood for the points of some regions."""
    first = plain(np.concatenate([x for x, _ in regions]))
    rng = np.random.default_rng(0)
    some = [regions[i] for i in rng.permutation(len(regions))[:REGIONS]]
    xs, rests, there = (np.zeros((len(some), MOST, *more)) for more in ((len(NAMES),), (), ()))
    for k, (x, y) in enumerate(some):
        kept = rng.permutation(len(y))[:MOST]
        xs[k, : len(kept)] = (x[kept] - first.centre) / first.scale
        rest = y[kept] - first.mean(x[kept])
        rests[k, : len(kept)] = rest - rest.mean()
        there[k, : len(kept)] = 1

    def loss(values: Any) -> Any:
        lengths, amplitude, noise = (jnp.exp(values[name]) for name in ("lengths", "amplitude", "noise"))

        def one(x: Any, rest: Any, here: Any) -> Any:
            a = x / lengths
            squares = (a * a).sum(1)[:, None] + (a * a).sum(1)[None] - 2 * a @ a.T
            r = jnp.sqrt(5 * jnp.maximum(squares, 0) + 1e-9)
            k = amplitude**2 * (1 + r + r * r / 3) * jnp.exp(-r) + 4.0  # 4: the region's own constant
            k = k * here[:, None] * here[None] + jnp.diag(jnp.where(here > 0, noise**2, 1.0))
            factor = jnp.linalg.cholesky(k)
            left = jax.scipy.linalg.solve_triangular(factor, rest * here, lower=True)
            return 0.5 * (left * left).sum() + jnp.log(jnp.diagonal(factor)).sum()

        away = ((values["lengths"] - np.log(_FIRST_LENGTH)) ** 2).sum()
        return jax.vmap(one)(xs, rests, there).sum() + 0.5 * away

    with jax.enable_x64(True):
        optimiser = optax.adam(RATE)

        def step(state: Any, _: Any) -> tuple[Any, Any]:
            values, moments = state
            cost, gradient = jax.value_and_grad(loss)(values)
            updates, moments = optimiser.update(gradient, moments)
            return (optax.apply_updates(values, updates), moments), cost

        start = {"lengths": np.log(first.lengths), "amplitude": np.log(0.5), "noise": np.log(0.05)}
        start = jax.tree.map(jnp.asarray, start)
        run = jax.jit(lambda s: jax.lax.scan(step, (s, optimiser.init(s)), None, length=steps))
        (values, _), _ = run(start)
    values_by_name = {name: np.exp(np.asarray(value)) for name, value in values.items()}
    return replace(
        first,
        lengths=values_by_name["lengths"],
        amplitude=float(values_by_name["amplitude"]),
        noise=float(values_by_name["noise"]),
    )
