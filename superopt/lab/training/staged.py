"""Fits the model of scheduled kernels, and as a baseline boosted trees on the same rows.

The loss of a label is the Huber error of its log time plus, within a region, that of the difference to the region's
mean.  So the order of schedules counts as much as the level, and a region's own luck (placement in memory) only once.
Members leave out a part of the families each; their errors there give the interval of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from costmodel.features import stages
from costmodel.model.staged import CALL_S, Staged, encode
from superopt.errors import InputError
from superopt.ir.text import parse_graph
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.lab.training import regions, schedules
from superopt.lab.training.tasks import read_lines
from superopt.lab.training.trees import boosted
from superopt.machine.facts import describe, from_dict, taken
from superopt.machine.rates import NOMINAL
from superopt.measure.rates import peak_fmas

_SECONDS = stages.NAMES.index("log_seconds")
_LEAST_STD = 0.05
_RANKS = 17
_FEW = 4  # labels from which a region has full weight


@dataclass(frozen=True, slots=True)
class StagedSettings:
    """Settings of a fit.

    Attributes:
        hidden: units of a layer.
        members: number of networks; each leaves out one of twice as many parts of the families.
        epochs, batch, rate, decay: passes, labels per step, Adam's peak rate and weight decay.
        delta: error of log time at which the Huber loss turns linear.
        order: weight of differences within regions.
        drop: share of the inputs that are dropped in a step.
        most_stages: the longest stages of a program that are fitted; others keep their estimate.
        points: number of points of a region in a pass.
    """

    hidden: int = 64
    members: int = 4
    epochs: int = 24
    batch: int = 384
    rate: float = 4e-3
    decay: float = 1e-2
    delta: float = 0.15
    order: float = 1.5
    drop: float = 0.15
    most_stages: int = 3
    points: int = 16


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleLabels:
    """Labels of schedules as arrays: one entry per schedule of a region.

    Attributes:
        rows: rows of the stages of each.
        seconds: measured times.
        again_s: times of a second visit, or nan.
        region: number of the group of an entry: region, threads and frozen operands.
        families, programs: family and program of each entry.
        exhaustive: whether the entry belongs to a set whose minimum is known, as second visits of such sets confirm.
        first: whether it is the default schedule.
        cold: whether the frozen operands come from beyond the last cache.
        header: header of the file.
    """

    rows: list[np.ndarray]
    seconds: np.ndarray
    again_s: np.ndarray
    region: np.ndarray
    families: np.ndarray
    programs: np.ndarray
    exhaustive: np.ndarray
    first: np.ndarray
    cold: np.ndarray
    header: dict[str, Any]

    def part(self, at: np.ndarray) -> ScheduleLabels:
        """Some of the labels, by number."""
        return ScheduleLabels(
            [self.rows[i] for i in at], *[getattr(self, name)[at] for name in _ARRAYS], header=self.header,
        )  # fmt: skip

    def join(self, other: ScheduleLabels) -> ScheduleLabels:
        """The labels of both; regions stay apart."""
        shift = int(self.region.max(initial=-1)) + 1
        columns = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _ARRAYS}
        columns["region"] = np.concatenate([self.region, other.region + shift])
        return ScheduleLabels([*self.rows, *other.rows], **columns, header=self.header)

    def at_rate_of(self, other: ScheduleLabels) -> ScheduleLabels:
        """The labels converted to another machine, by the ratio of the times of independent multiply-adds."""
        factor = other.header.get("fma_s", NOMINAL.fma_s) / self.header.get("fma_s", NOMINAL.fma_s)
        return replace(self, seconds=factor * self.seconds, again_s=factor * self.again_s, header=other.header)

    @property
    def vector_bits(self) -> int:
        """Vector width of the machine on which they were timed."""
        with taken(from_dict(self.header.get("machine"))):
            return host().vector_bits

    def estimates(self) -> np.ndarray:
        """Seconds by the estimates alone."""
        return np.array([stages.estimate_s(rows) for rows in self.rows])


_ARRAYS = ("seconds", "again_s", "region", "families", "programs", "exhaustive", "first", "cold")


def load(path: Path = schedules.SHIPPED) -> ScheduleLabels:
    """The labels of a file with their rows, which are those of the machine that timed them.

    Raises:
        InputError: the file has no labels, or names a region that is not on file.
    """
    records = read_lines(path)
    if len(records) < 2:
        raise InputError(f"{path} holds no labels", hint="collect labels with `superopt train schedules`")
    texts = {row["key"]: row["text"] for row in read_lines(regions.SHIPPED)[1:]}
    arrays: list[tuple[np.ndarray, tuple[Any, ...]]] = []
    with taken(from_dict(records[0]["header"].get("machine"))):
        fma_s, known = _fma_s(records), _known(records)
        cpu = _at(fma_s)
        for number, record in enumerate(records[1:]):
            if record["key"] not in texts:
                raise InputError(f"{path} names the region {record['key']}, which {regions.SHIPPED.name} does not have")
            program = from_graph(parse_graph(texts[record["key"]]).outputs, name="kernel")
            facts = record["family"], record["program"], record["exhaustive"] and known
            weights = record.get("footprint", 0)
            for k, (trace, seconds, _, *again) in enumerate(record["points"]):
                rows = stages.stage_rows(apply(program, trace), record["threads"], cpu, weights)
                arrays.append((rows, (seconds, again[0] if again else np.nan, number, *facts, k == 0, weights > 0)))
    return as_arrays(arrays, records[0]["header"] | {"fma_s": fma_s})


def _known(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether exhaustive sets of a file were visited again; else their least time may be a lucky one."""
    return any(len(point) > 3 for record in records[1:] if record.get("exhaustive") for point in record["points"])


def _fma_s(records: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of a vector multiply-add on the machine of a file of labels, from the clock recorded with each region."""
    peaks = [record["peak_s"] for record in records[1:] if record.get("peak_s")]
    return float(np.median(peaks)) / peak_fmas() if peaks else NOMINAL.fma_s


def _at(fma_s: float) -> Cpu:
    """Return the processor of the labels at this rate of multiply-adds."""
    return replace(host(), rates=replace(NOMINAL, fma_s=fma_s))


def defaults(path: Path = regions.SHIPPED) -> ScheduleLabels:
    """Regions with their default schedules on all threads, as `superopt train regions` timed them, warm and cold.

    A default schedule may have changed since: it is the one of this version for the machine of the labels.
    """
    records = read_lines(path)
    arrays: list[tuple[np.ndarray, tuple[Any, ...]]] = []
    with taken(from_dict(records[0]["header"].get("machine"))):
        threads = describe().cores
        cpu = _at(fma_s_of(records[0]["header"]))
        for number, record in enumerate(records[1:]):
            graph = parse_graph(record["text"])
            program = from_graph(graph.outputs, name="kernel")
            scheduled = apply(program, default_trace(program, threads=threads))
            for k, name in enumerate(("own_s", "own_cold_s")):
                if name in record:
                    weights = regions.rotated_bytes(graph, records[0]["header"]) if k else 0
                    facts = 2 * number + k, record["family"], record["program"], False, True, weights > 0
                    rows = stages.stage_rows(scheduled, threads, cpu, weights)
                    arrays.append((rows, (record[name], record.get(f"{name}_again", np.nan), *facts)))
    return as_arrays(arrays, records[0]["header"])


def fma_s_of(header: Mapping[str, Any]) -> float:
    """Seconds of a vector multiply-add on the machine of a file: as recorded there, or with schedules of its kind."""
    if "rates" in header:
        return float(header["rates"]["fma_s"])
    files, kind = map(read_lines, schedules.shipped()), _kind(header)
    return next((_fma_s(records) for records in files if _kind(records[0]["header"]) == kind), NOMINAL.fma_s)


def _kind(header: Mapping[str, Any]) -> tuple[Any, ...] | None:
    machine = from_dict(header.get("machine"))
    return None if machine is None else (machine.features, machine.caches_bytes)


def as_arrays(found: Sequence[tuple[np.ndarray, tuple[Any, ...]]], header: dict[str, Any]) -> ScheduleLabels:
    """Labels of rows, each with the other entries of `ScheduleLabels` in their order."""
    columns = zip(*[values for _, values in found], strict=True)
    return ScheduleLabels([r for r, _ in found], *[np.array(list(c)) for c in columns], header=header)


# ---- the network


def fit(labels: ScheduleLabels, settings: StagedSettings, seed: int, names: Sequence[int] | None = None) -> Staged:
    """Fit the model to the labels.

    Args:
        labels: labels to fit to.
        settings: settings of the fit.
        seed: seed of weights, order and members.
        names: columns of the rows that the networks see; all by default.
    """
    rng = np.random.default_rng(seed)
    x, there, base, y = _padded(labels, settings.most_stages)
    flat = x[there > 0]
    mean, std = flat.mean(0).astype(np.float32), np.maximum(flat.std(0), _LEAST_STD).astype(np.float32)
    ranks = np.quantile(flat, np.linspace(0, 1, _RANKS), axis=0).T.astype(np.float32)
    z = np.zeros((*there.shape, 2 * x.shape[-1]), np.float32)
    z[there > 0] = encode(flat, mean, std, ranks)
    kept = np.zeros(x.shape[-1], np.float32)
    kept[list(range(x.shape[-1]) if names is None else names)] = 1
    kept = np.tile(kept, 2)
    z *= kept
    families = rng.permutation(np.unique(labels.families))
    fold = {f: k % (2 * settings.members) for k, f in enumerate(families.tolist())}
    folds = np.array([fold[f] for f in labels.families])
    members: list[dict[str, np.ndarray]] = []
    errors: list[np.ndarray] = []
    for k in range(settings.members):
        alone = settings.members == 1
        train = np.flatnonzero(folds != k) if not alone else np.arange(len(folds))
        params = _fitted(z, there, base, y, labels.region, train, settings, int(rng.integers(1 << 30)))
        members.append(params)
        held = np.flatnonzero(folds == k)
        if not alone and len(held):
            some = _predict(params, z[held], there[held], base[held])
            errors.append(np.abs(np.asarray(some) - y[held]))
    interval = float(np.quantile(np.concatenate(errors), 0.9)) if errors else 1.0
    layers = {name: np.stack([p[name] for p in members]) for name in ("w1", "b1", "w2", "b2", "w3", "b3")}
    layers["w1"] *= kept[None, :, None]
    return Staged(mean, std, ranks, **layers, interval=interval)


def _padded(labels: ScheduleLabels, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows [labels, stages, names], their mask, log estimates per stage (the sum of the others last), and log times."""
    n = len(labels.rows)
    x = np.zeros((n, most, len(stages.NAMES)), np.float32)
    there, rest = np.zeros((n, most), np.float32), np.full(n, CALL_S)
    for i, rows in enumerate(labels.rows):
        kept = np.argsort(-rows[:, _SECONDS])[:most]
        x[i, : len(kept)], there[i, : len(kept)] = rows[kept], 1
        if len(rows) > most:
            rest[i] += 1e-9 * (np.exp2(rows[:, _SECONDS]).sum() - np.exp2(rows[kept, _SECONDS]).sum())
    logs = np.where(there > 0, x[:, :, _SECONDS] * np.log(2) + np.log(1e-9), -60.0)
    base = np.concatenate([logs, np.log(rest)[:, None]], 1)
    return x, there, base.astype(np.float32), np.log(labels.seconds).astype(np.float32)


def _predict(params: Any, x: Any, there: Any, base: Any) -> Any:
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    h = jax.nn.relu(h @ params["w2"] + params["b2"])
    logs = h @ params["w3"] + params["b3"]
    total = jnp.concatenate([base[..., :-1] + logs * there, base[..., -1:]], -1)
    return jax.scipy.special.logsumexp(total, axis=-1)


def _fitted(
    x: np.ndarray, there: np.ndarray, base: np.ndarray, y: np.ndarray, region: np.ndarray, train: np.ndarray,
    settings: StagedSettings, seed: int,
) -> dict[str, np.ndarray]:  # fmt: skip
    rng = np.random.default_rng(seed)
    names, hidden = x.shape[-1], settings.hidden
    params = {
        "w1": rng.standard_normal((names, hidden)) * np.sqrt(2 / names), "b1": np.zeros(hidden),
        "w2": rng.standard_normal((hidden, hidden)) * np.sqrt(2 / hidden), "b2": np.zeros(hidden),
        "w3": rng.standard_normal(hidden) * 0.01, "b3": np.zeros(()),
    }  # fmt: skip
    params = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    batches = _batches(region[train], settings, rng)
    schedule = optax.cosine_onecycle_schedule(max(len(batches), 10), settings.rate, 0.2)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=settings.decay))

    def loss(p: Any, at: Any, group: Any, key: Any) -> Any:
        here = (at >= 0).astype(jnp.float32)
        at = jnp.maximum(at, 0)
        x = data[0][at]
        seen = jax.random.bernoulli(key, 1 - settings.drop, (x.shape[0], 1, x.shape[2])) / (1 - settings.drop)
        error = _predict(p, x * seen, data[1][at], data[2][at]) - data[3][at]
        count = jnp.zeros(settings.batch).at[group].add(here)
        weight = here / jnp.maximum(count[group], _FEW)  # regions count alike, those of a few labels less
        middle = (jnp.zeros(settings.batch).at[group].add(error * here) / jnp.maximum(count, 1))[group]
        order = optax.losses.huber_loss(error - middle, delta=settings.delta)
        both = optax.losses.huber_loss(error, delta=settings.delta) + settings.order * order
        return (both * weight).sum() / weight.sum()

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        p, moments = state
        cost, gradient = jax.value_and_grad(loss)(p, *batch)
        updates, moments = optimiser.update(gradient, moments, p)
        return (optax.apply_updates(p, updates), moments), cost

    data = tuple(jnp.asarray(a) for a in (x, there, base, y))
    at = np.stack([np.where(a >= 0, train[a], -1) for a, _ in batches])
    group = np.stack([g for _, g in batches])
    keys = jax.random.split(jax.random.key(seed), len(at))
    run = jax.jit(lambda s: jax.lax.scan(step, s, (jnp.asarray(at), jnp.asarray(group), keys)))
    (params, _), _ = run((params, optimiser.init(params)))
    return {name: np.asarray(value) for name, value in params.items()}


def _batches(
    region: np.ndarray, settings: StagedSettings, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers of labels, -1 where there are no more, and of their regions within the batch.

    A region is in one batch of an epoch, with other points in every epoch.
    """
    order = np.argsort(region, kind="stable")
    _, starts, counts = np.unique(region[order], return_index=True, return_counts=True)
    batches: list[tuple[np.ndarray, np.ndarray]] = []
    for epoch in range(settings.epochs):
        at, group, used, number = np.full(settings.batch, -1), np.zeros(settings.batch, np.int64), 0, 0
        for r in rng.permutation(len(starts)):
            some = rng.permutation(counts[r])[: settings.points]
            if used + len(some) > settings.batch:
                batches.append((at, group))
                at, group, used, number = np.full(settings.batch, -1), np.zeros(settings.batch, np.int64), 0, 0
            at[used : used + len(some)] = order[starts[r] + some]
            group[used : used + len(some)] = number
            used, number = used + len(some), number + 1
        if 2 * used > settings.batch or len(batches) < epoch + 1:
            batches.append((at, group))
    return batches


# ---- trees


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Boosted trees on the rows of a program, summed up: the baseline."""

    booster: Any
    names: Sequence[int] | None

    def seconds(self, labels: ScheduleLabels) -> np.ndarray:
        """Predicted seconds of each label's program."""
        return np.exp(self.booster.predict(_summed(labels, self.names))) * labels.estimates()


def fit_trees(labels: ScheduleLabels, seed: int, names: Sequence[int] | None = None) -> Trees:
    """Trees fitted to the log of time over estimate.

    Raises:
        InputError: `lightgbm` is not installed.
    """
    counts = np.unique(labels.region, return_counts=True)
    weight = 1 / counts[1][np.searchsorted(counts[0], labels.region)]
    y = np.log(labels.seconds / labels.estimates())
    return Trees(boosted(_summed(labels, names), y, weight / weight.mean(), seed), names)


def _summed(labels: ScheduleLabels, names: Sequence[int] | None) -> np.ndarray:
    """One row per program: its longest stage, the mean of all stages weighted by estimate, and the estimate."""
    kept = list(range(len(stages.NAMES))) if names is None else list(names)
    sums = []
    for rows in labels.rows:
        share = np.exp2(rows[:, _SECONDS] - rows[:, _SECONDS].max())
        mean = (rows * (share / share.sum())[:, None]).sum(0)
        sums.append(np.concatenate([rows[int(share.argmax())][kept], mean[kept], [np.log(stages.estimate_s(rows))]]))
    return np.asarray(sums, np.float32)
