"""Accuracy of the learned model on unseen programs and families, beside the roofline fitted alike.

Each split fits the roofline to its training labels, which is the baseline, and then the network, once per seed.
Fits run in parallel processes of one core each; results do not depend on their number.  Figures are those of
`superopt.lab.training.metrics`.  The error over all kernels is dominated by kernels of a few microseconds, hence the
second one for kernels of 20 us and more.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.model.learned import predict
from superopt.lab.training import corpus, fit, trees
from superopt.lab.training.corpus import Corpus, KernelLabel, Split
from superopt.lab.training.metrics import quality
from superopt.lab.training.settings import FitSettings
from superopt.machine import facts as machine
from superopt.machine.rates import NOMINAL
from superopt.measure.kernels import XLA

LONG_S = 2e-5
RANDOM_SPLITS = 2


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Figures of one split: the roofline, the network per seed, and trees on the same numbers if there are any.

    Attributes:
        outside: share of the kernels outside the training domain.
        fit_seconds: processor time of the fits.
    """

    name: str
    train: int
    test: int
    shared: int
    prior: dict[str, float]
    learned: tuple[dict[str, float], ...]
    outside: float
    fit_seconds: float
    trees: dict[str, float] = field(default_factory=dict[str, float])
    predicted: dict[str, list[float]] = field(default_factory=dict[str, list[float]], compare=False)

    def ratio(self) -> float:
        """The network's error over the roofline's, mean over seeds."""
        return float(np.mean([f["mape"] for f in self.learned])) / max(self.prior["mape"], 1e-9)


def figures(predicted_s: np.ndarray, labels: Sequence[KernelLabel | _ProgramFacts]) -> dict[str, float]:
    """Figures of predictions; tasks of equal name in different families are different."""
    seconds = np.array([x.seconds for x in labels])
    tasks = [f"{x.family} {x.task}" for x in labels]
    scores = quality(predicted_s, seconds, tasks, np.array([x.noise for x in labels])).as_dict()
    long = seconds >= LONG_S
    error = np.abs(predicted_s - seconds) / seconds
    scores["mape_long"] = round(float(error[long].mean()), 4) if long.any() else 0.0
    scores["log_error"] = round(float(np.abs(np.log(predicted_s / seconds)).mean()), 4)
    return scores


def evaluate(
    found: Corpus,
    *,
    seeds: int = 5,
    backend: str = XLA,
    families: Sequence[str] | None = None,
    settings: FitSettings | None = None,
    budget_s: float = math.inf,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The evaluation as plain data: summary figures, one entry per split, the labels' facts.

    Features are those of the machine on which the labels were measured, wherever this runs.

    Args:
        found: the labels.
        seeds: fits per split.
        backend: backend of the labels; those of our kernels are regions, none of which has several forms.
        families: families to hold out; all by default.
        settings: settings of the fits.
        budget_s: no further seed begins unless it would end within this time; the first always runs.
        workers: processes; the usable cores by default.
        progress: called with one line per split.
    """
    with machine.taken(machine.from_dict(found.header.get("machine"))):
        return _evaluate(found, seeds, backend, families, settings or FitSettings(), budget_s, workers, progress)


def _evaluate(
    found: Corpus,
    seeds: int,
    backend: str,
    families: Sequence[str] | None,
    settings: FitSettings,
    budget_s: float,
    workers: int | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    begin = time.monotonic()
    splits = splits_of(found.labels, families)
    results = run_splits(found.labels, splits, seeds, settings, budget_s, workers, progress)
    return {**told(found, splits, results, backend), "seconds": round(time.monotonic() - begin, 1)}


def splits_of(labels: Sequence[KernelLabel], families: Sequence[str] | None = None) -> list[Split]:
    """Each family held out (of these, or of all), then random shares of the programs."""
    chosen = [f for f in sorted({x.family for x in labels}) if families is None or f in families]
    held = [corpus.by_family(labels, f) for f in chosen]
    return held + [corpus.by_program(labels, k) for k in range(RANDOM_SPLITS)]


def told(found: Corpus, splits: Sequence[Split], results: Sequence[SplitResult], backend: str) -> dict[str, Any]:
    """Results of `splits_of` as plain data: summary figures, one entry per split, the labels' facts."""
    labels = found.labels
    held, programs = results[:-RANDOM_SPLITS], results[-RANDOM_SPLITS:]
    return {
        "summary": {
            **summary_of(held, programs, backend),
            **({} if backend == XLA else rewritten(labels, splits[-RANDOM_SPLITS:], programs)),
            **ceiling(labels),
            **corpus.noise_floors(labels),
            "fit_seconds": round(float(np.mean([r.fit_seconds for r in results])), 2),
        },
        "families": [_row(r) for r in held],
        "programs": [_row(r) for r in programs],
        "labels": {
            "labels": len(labels), "kernels": len({x.key for x in labels}),
            "tasks": len({(x.family, x.task) for x in labels}), "programs": len({x.program for x in labels}),
            "families": len({x.family for x in labels}), "digest": found.digest,
        },
        "seeds": len(results[0].learned),
        "machine": machine.as_dict(),
    }  # fmt: skip


def run_splits(
    labels: Sequence[KernelLabel],
    splits: Sequence[Split],
    seeds: int,
    settings: FitSettings,
    budget_s: float = math.inf,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[SplitResult]:
    """Fit and score every split, one seed after the other."""
    data = fit.prepare(labels)
    count = min(workers or machine.usable_cores(), len(splits))
    begin = time.monotonic()
    results: list[SplitResult] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        max(count, 1),
        mp_context=context,
        initializer=_start,
        initargs=(data, tuple(labels_facts(labels)), machine.describe()),
    ) as pool:
        for seed in range(seeds):
            jobs = {pool.submit(_score, split, seed, settings): k for k, split in enumerate(splits)}
            scored: dict[int, SplitResult] = {}
            for done in as_completed(jobs):
                result = scored[jobs[done]] = done.result()
                figure = result.learned[0]
                progress(
                    f"seed {seed}, {result.name}: {result.test} kernels, error {figure['mape']:.3f}, roofline "
                    f"{result.prior['mape']:.3f}, tau {figure['tau']:.3f} ({result.prior['tau']:.3f}), outside "
                    f"{result.outside:.2f}, {result.fit_seconds:.0f} s"
                )
            results = [_joined(results[k], scored[k]) if results else scored[k] for k in range(len(splits))]
            spent = time.monotonic() - begin
            if spent * (seed + 2) / (seed + 1) > budget_s:
                break
    return results


def _joined(one: SplitResult, more: SplitResult) -> SplitResult:
    """Results of one split under several seeds."""
    seconds = (one.fit_seconds * len(one.learned) + more.fit_seconds) / (len(one.learned) + 1)
    return replace(
        one, learned=(*one.learned, *more.learned), fit_seconds=seconds, predicted=one.predicted | more.predicted
    )


@dataclass(frozen=True, slots=True)
class _ProgramFacts:
    """The data of a label that figures need; graphs stay in the parent."""

    family: str
    task: str
    seconds: float
    noise: float


def labels_facts(labels: Sequence[KernelLabel]) -> list[_ProgramFacts]:
    """Labels without their graphs."""
    return [_ProgramFacts(x.family, x.task, x.seconds, x.noise) for x in labels]


def backend_choice(
    own: Corpus, xla: Corpus, families: Sequence[str] | None, progress: Callable[[str], None]
) -> dict[str, float]:
    """Quality of choosing backends by the models for regions of unseen families: least time over that of the choice.

    Args:
        own, xla: the same regions, in the same order, timed on either backend.
        families: families to hold out; all by default.
    """
    with machine.taken(machine.from_dict(own.header.get("machine"))):
        names = sorted({x.family for x in own.labels})
        splits = [corpus.by_family(own.labels, f) for f in names if families is None or f in families]
        sides = [run_splits(x.labels, splits, 1, FitSettings(), progress=progress) for x in (own, xla)]
    times = np.array([[x.seconds for x in measured.labels] for measured in (own, xla)])
    chosen = least = ours = 0.0
    for split, *results in zip(splits, *sides, strict=True):
        predicted = [np.array(r.predicted["seed 0"]) for r in results]
        own_s, xla_s = times[:, split.test]
        chosen += float(np.where(predicted[0] <= predicted[1] + NOMINAL.handover_s, own_s, xla_s).sum())
        least += float(np.minimum(own_s, xla_s).sum())
        ours += float(own_s.sum())
    return {"own_or_xla_right": round(least / chosen, 4), "always_ours_right": round(least / ours, 4)}


_STATE: dict[str, Any] = {}


def _start(data: Any, facts: Sequence[_ProgramFacts], described: machine.Machine) -> None:
    _STATE["machine"] = machine.taken(described)  # as the parent sees it: features depend on the number of cores
    _STATE["machine"].__enter__()
    if hasattr(os, "sched_setaffinity"):
        identity = multiprocessing.current_process()._identity  # pyright: ignore[reportAttributeAccessIssue]
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[(identity[0] - 1) % len(cores)]})
    _STATE["data"], _STATE["facts"] = data, facts


def _score(split: Split, seed: int, settings: FitSettings) -> SplitResult:
    data, facts = _STATE["data"], _STATE["facts"]
    train, test = data.part(split.train), data.part(split.test)
    wanted = [facts[i] for i in split.test]
    begin = time.process_time()
    model = fit.fit(train, settings, seed)
    seconds = time.process_time() - begin
    prices = predict(model, test.table, test.structures, test.rows)
    boosted = (
        {} if seed or not trees.installed() else figures(trees.kernel_seconds(train, test, model.prior, 0), wanted)
    )
    return SplitResult(
        split.name, len(split.train), len(split.test), split.shared, prior=figures(prices.prior_s, wanted),
        learned=(figures(prices.seconds, wanted),), outside=float((prices.gate < 1.0).mean()), fit_seconds=seconds,
        trees=boosted, predicted={"prior": prices.prior_s.tolist(), f"seed {seed}": prices.seconds.tolist()},
    )  # fmt: skip


def summary_of(held: Sequence[SplitResult], programs: Sequence[SplitResult], backend: str = XLA) -> dict[str, float]:
    """Figures of all families held out and of all random splits, means over splits and seeds."""

    def learned(results: Sequence[SplitResult], name: str) -> float:
        return _mean([float(np.mean([f[name] for f in r.learned])) for r in results])

    return {
        **_by_bars(held, programs, backend),
        "mape_random": learned(programs, "mape"),
        "prior_mape_random": _mean([r.prior["mape"] for r in programs]),
        "mape_lofo": learned(held, "mape"),
        "prior_mape_lofo": _mean([r.prior["mape"] for r in held]),
        "worst_ratio": round(max((r.ratio() for r in held), default=0.0), 3),
        "tau_plain": learned(programs, "tau_b"),
        "tau_plain_lofo": learned(held, "tau_b"),
        "regret_lofo": learned(held, "regret"),
        "prior_regret_lofo": _mean([r.prior["regret"] for r in held]),
    }


def rewritten(
    labels: Sequence[KernelLabel], splits: Sequence[Split], results: Sequence[SplitResult]
) -> dict[str, float]:
    """The error from `LONG_S` on, over regions that rules made of programs held out; empty where there are none."""
    errors: dict[str, list[float]] = {"mape_rewritten": [], "prior_mape_rewritten": []}
    for split, result in zip(splits, results, strict=True):
        some = [labels[i] for i in split.test]
        chosen = np.array([x.form != corpus.OWN_FORM and x.seconds >= LONG_S for x in some])
        seconds = np.array([x.seconds for x in some])
        for name, predicted_s in result.predicted.items():
            error = np.abs(np.array(predicted_s) / seconds - 1.0)[chosen]
            errors["prior_mape_rewritten" if name == "prior" else "mape_rewritten"] += error.tolist()
    return {name: _mean(values) for name, values in errors.items() if values}


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4) if values else 0.0


def _by_bars(held: Sequence[SplitResult], programs: Sequence[SplitResult], backend: str) -> dict[str, float]:
    """The error from `LONG_S` on and the order of forms, under the names of the acceptance bars.

    Each is a mean over splits and seeds, with its worst seed, and stands beside the roofline's and that of the trees;
    `vs_trees` is the network's order over that of the trees.
    """
    by_bar: dict[str, float] = {}
    for results, suffix, split in ((programs, "", "random"), (held, "_lofo", "lofo")):
        error = f"mape_{'xla' if backend == XLA else 'regions'}_{split}", "mape_long", max
        bars = [error, (f"tau_fusion{suffix}", "tau", min)] if backend == XLA else [error]
        for bar, name, worst in bars:
            if not results:
                continue
            seeds = [_mean([r.learned[k][name] for r in results]) for k in range(len(results[0].learned))]
            by_bar |= {
                bar: _mean(seeds),
                f"{bar}_worst": worst(seeds),
                f"prior_{bar}": _mean([r.prior[name] for r in results]),
            }
            if all(r.trees for r in results):
                by_bar[f"trees_{bar}"] = _mean([r.trees[name] for r in results])
        order, other = (by_bar.get(f"{whose}tau_fusion{suffix}") for whose in ("", "trees_"))
        if order is not None and other:
            by_bar[f"vs_trees{suffix}"] = round(order / other, 3)
    return by_bar


def ceiling(labels: Sequence[KernelLabel]) -> dict[str, float]:
    """Order of the second visit against that of the first, by the same definitions; empty without second visits."""
    again = [x for x in labels if x.again_s is not None]
    if not again:
        return {}
    scores = figures(np.array([x.again_s for x in again]), again)
    return {"tau_ceiling": scores["tau"], "tau_plain_ceiling": scores["tau_b"]}


def _row(result: SplitResult) -> dict[str, Any]:
    row = asdict(result)
    del row["predicted"]
    row["ratio"] = round(result.ratio(), 3)
    row["worst_mape"] = max(f["mape"] for f in result.learned)
    row["mean"] = {
        name: round(float(np.mean([f[name] for f in result.learned])), 4) for name in result.learned[0]
    }  # fmt: skip
    return row
