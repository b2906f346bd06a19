"""Fitting: the roofline to the training labels first, then the network to the residuals of the roofline.

The loss of a member has two parts.  One is the Huber error of log time weighted by the noise of each label, part of the
weight under a bootstrap mask over tasks.  The other is a logistic loss on the order of every pair of forms of one task
whose times differ by more than their noise.  Batches keep the forms of a task together; parts of rows, of kernel
features and of the trunk are dropped (Srivastava et al., 2014).  All of it is deterministic in (labels, settings,
seed).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from costmodel.model import analytical, network
from costmodel.model.analytical import Coefficients, FeatureTable
from costmodel.model.encode import (
    EDGES,
    NODES,
    KernelEncoder,
    KernelStructure,
    NodeRows,
    join,
    kernel_features,
    pack,
    pooled_features,
    prior_seconds,
)
from costmodel.model.model import Model, Params
from costmodel.model.training_domain import training_domain_of
from superopt.lab.training.corpus import KernelLabel
from superopt.lab.training.settings import FitSettings

SOFT_S = 5e-7  # added to times before logarithms are compared, so that errors within dispatch do not count
_CHUNK = 24  # steps per compiled call
_FORMS = 12  # forms of one task in one batch at most
_NOWHERE = 2**30
_ROOM = 8192
_LEAST_STD = np.float32(0.02)


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """Labels as arrays, one entry per label."""

    structures: list[KernelStructure]
    rows: NodeRows
    table: FeatureTable
    seconds: np.ndarray
    noise: np.ndarray
    tasks: np.ndarray
    families: np.ndarray

    def part(self, at: np.ndarray) -> Data:
        """Some labels, in ascending order."""
        return Data(
            [self.structures[i] for i in at], self.rows, analytical.take(self.table, at), self.seconds[at],
            self.noise[at], self.tasks[at], self.families[at],
        )  # fmt: skip


def prepare(labels: Sequence[KernelLabel]) -> Data:
    """Convert labels to arrays."""
    encoder = KernelEncoder()
    table, structures = encoder.encode([x.graph for x in labels])
    tasks = {name: i for i, name in enumerate(sorted({(x.family, x.task) for x in labels}))}
    families = {name: i for i, name in enumerate(sorted({x.family for x in labels}))}
    return Data(
        structures,
        encoder.rows,
        table,
        np.array([x.seconds for x in labels]),
        np.array([x.noise for x in labels]),
        np.array([tasks[x.family, x.task] for x in labels]),
        np.array([families[x.family] for x in labels]),
    )


def weights(data: Data) -> np.ndarray:
    """Weights of labels in the loss: noisy ones and those of large families count less."""
    counts = np.bincount(data.families)[data.families]
    weight = 1.0 / (1.0 + (data.noise / 0.1) ** 2) / np.sqrt(counts)
    return weight / weight.mean()


def fit_prior(data: Data, steps: int) -> Coefficients:
    """Fit the roofline to these labels."""
    short = analytical.long_ones(data.seconds)
    return analytical.fit(data.table, data.seconds, short * weights(data), steps=steps)


def fit(
    data: Data,
    settings: FitSettings,
    seed: int,
    *,
    prior: Coefficients | None = None,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Fit a model to these labels."""
    prior = prior or fit_prior(data, settings.prior_steps)
    kernel = kernel_features(data.table, prior, data.structures)
    inputs = np.hstack([kernel, pooled_features(join(data.structures, data.rows), data.rows)])
    mean, std = inputs.mean(0), np.maximum(inputs.std(0), _LEAST_STD)
    shape = settings.shape
    key = jax.random.key(seed)
    params = network.initial(shape, key)
    model = Model(prior, params, shape, mean, std, training_domain_of(kernel))
    rng = np.random.default_rng(seed)
    masks = rng.poisson(1.0, (int(data.tasks.max()) + 1, shape.members)).astype(np.float32)[data.tasks]
    masks = settings.bootstrap * masks + (1.0 - settings.bootstrap)
    prior_us = prior_seconds(data.table, prior) * 1e6
    stream = _Stream(data, settings, rng)
    steps = max(1, settings.epochs * stream.per_epoch // _CHUNK) * _CHUNK
    rates = _rates(settings.rate, steps)
    labels = {
        "kernel": model.standard(inputs), "log_prior": np.log(prior_us),
        "target": np.log((data.seconds + SOFT_S) * 1e6),
        "noise": data.noise, "weight": weights(data)[:, None] * masks, "task": data.tasks.astype(np.int32),
    }  # fmt: skip
    labels = {k: _padded(v if v.dtype == np.int32 else v.astype(np.float32)) for k, v in labels.items()}
    run, start = _runner(settings)
    noise = jax.random.key(seed, impl="rbg")  # several times faster than the default on a processor
    rows = jnp.asarray(data.rows.values)
    state = start(params)
    batches = stream.forever()
    for step in range(0, steps, _CHUNK):
        chunk = [next(batches) for _ in range(_CHUNK)]
        stacked = {name: jnp.asarray(np.stack([b[name] for b in chunk])) for name in chunk[0]}
        keys = jax.random.split(jax.random.fold_in(noise, step), _CHUNK)
        params, state, loss = run(params, state, rows, labels, stacked, (rates[step : step + _CHUNK], keys))
        if progress is not None and (step // _CHUNK) % 20 == 0:
            progress(f"step {step} of {steps}: loss {float(loss):.4f}")
    return Model(prior, jax.tree.map(np.asarray, params), shape, mean, std, model.domain)


def _rates(peak: float, steps: int) -> np.ndarray:
    """Learning rates: a short rise, then half a cosine."""
    at = np.arange(1, steps + 1)
    rise = max(1, steps // 20)
    fall = 0.5 * (1.0 + np.cos(np.pi * np.clip((at - rise) / max(1, steps - rise), 0.0, 1.0)))
    return (peak * np.minimum(at / rise, 1.0) * fall).astype(np.float32)


def _padded(values: np.ndarray) -> jax.Array:
    """Values of labels padded at the end, so that fits to similar corpora share compiled code."""
    more = -len(values) % _ROOM
    return jnp.asarray(np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)]))


def _dropped(values: jax.Array, share: float, key: jax.Array) -> jax.Array:
    """Values with a random share set to zero, and the rest enlarged in compensation (dropout)."""
    return values * jax.random.bernoulli(key, 1.0 - share, values.shape) / (1.0 - share)


@functools.cache
def _runner(settings: FitSettings) -> tuple[Callable[..., Any], Callable[..., Any]]:
    bound = settings.shape.bound
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(settings.decay)
    )

    def loss(
        params: Params, rows: jax.Array, labels: dict[str, jax.Array], batch: dict[str, jax.Array], key: jax.Array
    ) -> jax.Array:
        at = batch["label"]  # empty places are past the end
        picked = {k: v.at[at].get(mode="fill", fill_value=0) for k, v in labels.items()}
        used = (at < _NOWHERE).astype(jnp.float32)
        keys = jax.random.split(key, 4)
        seen = rows.at[batch["rows"]].get(mode="fill", fill_value=0.0)
        nodes = {**batch, "rows": _dropped(seen, settings.row_drop, keys[0])}
        hidden = network.embed(params, nodes, _dropped(picked["kernel"], settings.kernel_drop, keys[1]))
        kept = (_dropped(x, settings.trunk_drop, key) for x, key in zip(hidden, keys[2:], strict=True))
        raw = network.heads(params, *kept)
        log = picked["log_prior"][:, None] + bound * jnp.tanh(raw / bound)
        log = jnp.log(jnp.exp(log) + SOFT_S * 1e6)
        gap = log - picked["target"][:, None]
        count = jnp.maximum(used.sum(), 1.0)
        time = (picked["weight"] * used[:, None] * optax.losses.huber_loss(gap, delta=settings.delta)).sum() / count
        apart = picked["target"][:, None] - picked["target"][None, :]
        noise = jnp.hypot(picked["noise"][:, None], picked["noise"][None, :])
        same = (picked["task"][:, None] == picked["task"][None, :]) * used[:, None] * used[None, :]
        clear = same * (apart > 2.0 * noise + 0.02)
        behind = (log[None, :] - log[:, None]) / settings.rank_scale
        order = jax.nn.softplus(behind).mean(2) * settings.rank_scale
        pairs = (clear * order).sum() / jnp.maximum(same.sum(), 1.0)
        calm = ((raw**2).mean(1) * used).sum() / count
        return time / settings.delta + settings.rank * pairs + settings.quiet * calm

    @jax.jit
    def run(
        params: Params, state: Any, rows: jax.Array, labels: Any, stacked: Any, steps: tuple[jax.Array, jax.Array]
    ) -> tuple[Params, Any, jax.Array]:
        def step(carry: tuple[Params, Any], given: Any) -> tuple[tuple[Params, Any], jax.Array]:
            params, state = carry
            batch, (rate, key) = given
            value, slope = jax.value_and_grad(loss)(params, rows, labels, batch, key)
            updates, state = optimiser.update(slope, state, params)
            return (jax.tree.map(lambda p, u: p - rate * u, params, updates), state), value

        (params, state), values = jax.lax.scan(step, (params, state), (stacked, steps))
        return params, state, values.mean()

    return run, optimiser.init


class _Stream:
    """Endless batches of whole tasks, in a new order each epoch."""

    def __init__(self, data: Data, settings: FitSettings, rng: np.random.Generator) -> None:
        self.size, self.rng = settings.batch, rng
        self.data = data
        self.counts = np.array([len(s.rows) for s in data.structures])
        self.links = np.array([s.links for s in data.structures])
        fits = (self.counts <= self.size * NODES // 2) & (self.links <= self.size * EDGES // 2)
        members: dict[int, list[int]] = {}
        for i in np.flatnonzero(fits):
            members.setdefault(int(data.tasks[i]), []).append(int(i))
        self.members = [members[t] for t in sorted(members)]
        need = max(fits.sum() / self.size, self.counts[fits].sum() / (self.size * NODES))
        self.per_epoch = max(1, round(1.1 * need))

    def forever(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield batches without end."""
        while True:
            groups: list[list[int]] = []
            for members in self.members:
                order = self.rng.permutation(members).tolist()
                groups += [order[k : k + _FORMS] for k in range(0, len(order), _FORMS)]
            batch: list[int] = []
            nodes = edges = 0
            for g in self.rng.permutation(len(groups)):
                for i in groups[g]:
                    full = len(batch) == self.size or nodes + self.counts[i] > self.size * NODES
                    if full or edges + self.links[i] > self.size * EDGES:
                        yield self._arrays(np.array(batch))
                        batch, nodes, edges = [], 0, 0
                    batch.append(i)
                    nodes, edges = nodes + self.counts[i], edges + self.links[i]
            yield self._arrays(np.array(batch))

    def _arrays(self, at: np.ndarray) -> dict[str, np.ndarray]:
        packed = pack([self.data.structures[i] for i in at], self.data.rows, self.size)
        label = np.full(self.size, _NOWHERE, np.int32)
        label[: len(at)] = at
        return network.as_arrays(packed) | {"label": label, "rows": packed.rows}
