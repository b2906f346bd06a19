"""Accuracy of the model of scheduled kernels on unseen programs: error, order of schedules, and the choice of one.

    random    A fifth of the programs held out, as many times as there are seeds.
    lofo      Each family held out once per seed.
    machines  Unseen programs on one machine, predicted by models fitted to labels of others.
    prior     The estimate that the model corrects, scaled by one factor.
    trees     Boosted trees on the same rows.

Schedules of a region are chosen among those that were measured, so that the cost of a choice is known.  Figures of
choices that compare with the best are of exhaustive sets.  Times that differ by less than `CLEAR` are not in order.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.features import stages
from superopt.ir.graph import Graph
from superopt.lab import Say
from superopt.lab.training import corpus, staged
from superopt.lab.training.evaluate import LONG_S, RANDOM_SPLITS
from superopt.lab.training.staged import ScheduleLabels, StagedSettings
from superopt.lab.training.trees import installed

_NO_GRAPH = Graph((), ())
CLEAR = 0.05  # relative: second visits of one schedule differ by less in nine of ten cases
NEAR = 0.01  # distance to the best at which measuring ends
CLEARLY = 1.15  # predicted factor at which one would leave the default, in families that no fit has seen
TOP = 0.02  # distance to the best within which a choice counts as right
SHARE = 0.2  # share of programs that are held out
Predict = Callable[[ScheduleLabels, int, Sequence[int] | None], Callable[[ScheduleLabels], np.ndarray]]
_LEARNING = (8, 4, 2, 1)
_CALIBRATED = 40  # regions that a machine times in half a minute


def network(settings: StagedSettings) -> Predict:
    """The network in the form of `Predict`: fitted, then predicting."""

    def fitted(
        labels: ScheduleLabels, seed: int, names: Sequence[int] | None = None
    ) -> Callable[[ScheduleLabels], np.ndarray]:
        model = staged.fit(labels, settings, seed, names)
        return lambda some: model.seconds(some.rows)

    return fitted


def trees(
    labels: ScheduleLabels, seed: int, names: Sequence[int] | None = None
) -> Callable[[ScheduleLabels], np.ndarray]:
    """Boosted trees in the form of `Predict`."""
    return staged.fit_trees(labels, seed, names).seconds


def prior(
    labels: ScheduleLabels, seed: int, names: Sequence[int] | None = None
) -> Callable[[ScheduleLabels], np.ndarray]:
    """The estimates, scaled by one factor, in the form of `Predict`."""
    scale = float(np.exp(np.median(np.log(labels.seconds / labels.estimates()))))
    return lambda some: scale * some.estimates()


def figures(predicted: np.ndarray, labels: ScheduleLabels) -> dict[str, float]:
    """Figures of predictions of unseen labels; regions with one label (default schedules) are separate."""
    seconds = labels.seconds
    counts = np.unique(labels.region, return_counts=True)
    single = counts[1][np.searchsorted(counts[0], labels.region)] == 1
    long = (seconds >= LONG_S) & ~single
    error = np.abs(predicted / seconds - 1)
    scores = {
        "mape": _mean(error[long]), "mape_default": _mean(error[long & labels.first]),
        "median_error": float(np.median(error[long])) if long.any() else 0.0,
        "mape_regions": _mean(error[(seconds >= LONG_S) & single & ~labels.cold]),
        "mape_cold": _mean(error[(seconds >= LONG_S) & labels.cold]),
        "mape_short": _mean(error[(seconds < LONG_S) & ~single]),
        "bias_short": _middle(np.log(predicted / seconds)[(seconds < LONG_S) & ~single]),
    }  # fmt: skip
    taus: list[float] = []
    gains: dict[float, list[float]] = {1.0: [], CLEARLY: []}
    sets: list[tuple[np.ndarray, np.ndarray, float]] = []
    for number in np.unique(labels.region):
        at = np.flatnonzero(labels.region == number)
        if len(at) < 3:
            continue
        p, y = predicted[at], seconds[at]
        tau = clear_tau(p, y)
        if tau is not None:
            taus.append(tau)
        default = y[labels.first[at]]
        if len(default):
            first, best = int(np.flatnonzero(labels.first[at])[0]), int(p.argmin())
            for margin, some in gains.items():
                some.append(float(y[first] / y[best if p[first] > margin * p[best] else first]))
            if labels.exhaustive[at[0]]:
                sets.append((p, y, float(default[0])))
    scores["tau"] = _mean(np.array(taus))
    for name, margin in (("best", 1.0), ("clear", CLEARLY)):
        scores[f"{name}_over_default"] = _geomean(gains[margin])
        scores[f"{name}_worse"] = _mean((np.array(gains[margin]) < 1 / (1 + TOP)).astype(float))
    return scores | choices(sets)


def clear_tau(p: np.ndarray, y: np.ndarray) -> float | None:
    """Kendall's tau over the pairs that differ clearly; None where there are none."""
    i, j = np.triu_indices(len(p), 1)
    clear = np.abs(np.log(y[i] / y[j])) > math.log1p(CLEAR)
    if not clear.any():
        return None
    return 2 * float((np.sign(p[i] - p[j]) == np.sign(y[i] - y[j]))[clear].mean()) - 1


def choices(sets: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> dict[str, float]:
    """Over exhaustive sets: the time of the choice over the best, and measurements until the best is near.

    Args:
        sets: predictions, times, and the time of the default schedule.
    """
    if not sets:
        return {}
    best = np.array([y.min() for _, y, _ in sets])
    chosen = np.array([y[p.argmin()] for p, y, _ in sets])
    top = {k: np.array([y[np.argsort(p)[:k]].min() for p, y, _ in sets]) <= (1 + TOP) * best for k in (1, 5)}
    ordered = [int(np.argmax(y[np.argsort(p)] <= (1 + NEAR) * y.min())) + 1 for p, y, _ in sets]
    by_chance = [(len(y) + 1) / (int((y <= (1 + NEAR) * y.min()).sum()) + 1) for _, y, _ in sets]
    default = np.array([d for _, _, d in sets])
    return {
        "sets": len(sets), "tile_ape": float((chosen - best).sum() / best.sum()),
        "tile_ape_mean": float((chosen / best - 1).mean()), "default_ape": float((default - best).sum() / best.sum()),
        "default_ape_mean": float((default / best - 1).mean()),
        "top1": float(top[1].mean()), "top5": float(top[5].mean()), "measurements": float(np.mean(ordered)),
        "measurements_by_chance": float(np.mean(by_chance)),
    }  # fmt: skip


def floors(labels: ScheduleLabels) -> dict[str, float]:
    """Figures of a first visit as a prediction of the second: bounds on error and order of any model."""
    at = np.flatnonzero(~np.isnan(labels.again_s))
    if not len(at):
        return {}
    some = labels.part(at)
    floor = figures(some.again_s, some)
    return {
        "floor_mape": floor["mape"], "floor_mape_regions": floor["mape_regions"], "ceiling_tau": floor["tau"],
        "second_visits": len(at),
    } | ({"floor_tile_ape": floor["tile_ape"], "floor_sets": floor["sets"]} if "tile_ape" in floor else {})  # fmt: skip


def evaluate(
    labels: ScheduleLabels,
    settings: StagedSettings,
    seeds: int,
    families: Sequence[str] | None,
    budget_s: float,
    say: Say,
) -> dict[str, Any]:
    """Figures on random and family splits with the baselines beside them, the learning curve, and an ablation.

    Args:
        labels: all of them.
        settings: settings of fits, which have one member here.
        seeds: fits per split.
        families: families to hold out; all by default.
        budget_s: no further seed, and no further part, begins after it.
        say: called with one line per part.
    """
    begin = time.monotonic()

    def left() -> bool:
        return time.monotonic() - begin < budget_s

    single = replace(settings, members=1)
    models = _models(single, say)
    result: dict[str, Any] = {"random": {}, "lofo": {}, "floors": floors(labels)}
    for name, model in models.items():
        count = 1 if name == "prior" else seeds
        splits = [by_program(labels, model, seed) for seed in range(count) if seed == 0 or left()]
        result["random"][name] = _over_seeds(splits)
        say(f"random, {name}: {_line(result['random'][name]['mean'])}")
    result["learning"] = learning(labels, models["network"], say)
    result["ablation"] = ablation(labels, models["network"], say)
    chosen = sorted(set(labels.families.tolist())) if families is None else list(families)
    for name, model in models.items():
        splits: list[dict[str, float]] = []
        for seed in range(seeds if name == "network" else 1):
            if seed and not left():
                break
            splits.append(by_family(labels, model, seed, chosen))
            say(f"family by family, {name}, seed {seed}: {_line(splits[-1])}")
        result["lofo"][name] = _over_seeds(splits)
    result["summary"] = summary(result)
    return result


def by_program(labels: ScheduleLabels, model: Predict, seed: int, share: float = 1.0) -> dict[str, float]:
    """Figures of the programs that a seed holds out, fitted to a share of the regions of the others."""
    train, test = held_out(labels, seed)
    if share < 1.0:
        kept = np.random.default_rng(seed).permutation(np.unique(labels.region[train]))
        train = train[np.isin(labels.region[train], kept[: max(1, int(share * len(kept)))])]
    some = labels.part(test)
    return figures(model(labels.part(train), seed, None)(some), some)


def held_out(labels: ScheduleLabels, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the labels to fit to and of those held out, a share of the programs."""
    programs = np.random.default_rng(seed).permutation(np.unique(labels.programs))
    test = np.isin(labels.programs, programs[: max(1, round(SHARE * len(programs)))])
    return np.flatnonzero(~test), np.flatnonzero(test)


def by_family(labels: ScheduleLabels, model: Predict, seed: int, families: Sequence[str]) -> dict[str, float]:
    """Figures where each family is predicted by a model that has not seen it.

    The interval of a family is the one that nine in ten of the labels of all other families keep within, when these are
    left out.
    """
    predicted = np.full(len(labels.rows), np.nan)
    for family in families:
        test = np.flatnonzero(labels.families == family)
        train = np.flatnonzero(labels.families != family)
        predicted[test] = model(labels.part(train), seed, None)(labels.part(test))
    at = np.flatnonzero(~np.isnan(predicted))
    some, p = labels.part(at), predicted[at]
    scores = figures(p, some)
    error = np.abs(np.log(p / some.seconds))
    inside: list[np.ndarray] = []
    for family in families:
        mine = some.families == family
        if mine.any() and not mine.all():
            inside.append(error[mine] <= np.quantile(error[~mine], 0.9))
    if inside:
        scores |= {"coverage90": float(np.concatenate(inside).mean()), "interval": float(np.quantile(error, 0.9))}
    each = [figures(p[some.families == f], some.part(np.flatnonzero(some.families == f)))["mape"] for f in families]
    return scores | {"mape_families": _mean(np.array(each)), "mape_worst_family": float(np.max(each))}


def between_machines(parts: Sequence[ScheduleLabels], model: Predict, say: Say) -> dict[str, dict[str, float]]:
    """Figures on the programs that seed 0 holds out, on each machine, for models fitted to labels of several machines.

    Models are fitted to the machine's own labels, to those of the others, and to these converted to its rate.  Further
    ones scale the last by one factor, determined from `_CALIBRATED` of the machine's regions, or add these regions to
    the labels, or use all labels.

    Args:
        parts: the labels of each machine.
        model: the model to fit.
        say: called with one line per row.
    """
    scores: dict[str, dict[str, float]] = {}
    for k, mine in enumerate(parts):
        train, test = held_out(mine, 0)
        some, unseen = mine.part(test), ~np.isin(mine.programs, mine.programs[test])
        few = mine.part(np.flatnonzero(unseen & np.isin(mine.region, np.unique(mine.region[train])[:_CALIBRATED])))
        others = [p.part(np.flatnonzero(~np.isin(p.programs, some.programs))) for i, p in enumerate(parts) if i != k]
        theirs = functools.reduce(ScheduleLabels.join, others)
        at_rate = functools.reduce(ScheduleLabels.join, [p.at_rate_of(mine) for p in others])
        alone = model(at_rate, 0, None)
        scale = float(np.exp(np.median(np.log(few.seconds / alone(few)))))
        rows = {
            "its own labels": model(mine.part(train), 0, None)(some),
            "others": model(theirs, 0, None)(some),
            "others, at its rate": alone(some),
            "others, scaled": scale * alone(some),
            "others and some": model(at_rate.join(few), 0, None)(some),
            "all": model(at_rate.join(mine.part(train)), 0, None)(some),
        }
        name = f"machine {k + 1}, {mine.vector_bits} bits"
        for what, predicted in rows.items():
            scores[f"{name}, {what}"] = figures(predicted, some)
            say(f"{name}, {what}: {_line(scores[f'{name}, {what}'])}")
    return scores


def on_regions(labels: ScheduleLabels, model: Predict, families: Sequence[str]) -> dict[str, float]:
    """Mean error of default schedules on the splits for which `evaluate.evaluate` has that of the graph network."""
    facts = [
        corpus.KernelLabel(
            family, program, str(i), "", key=str(i), graph=_NO_GRAPH, seconds=1.0, stderr=0.0, again_s=None
        )
        for i, (family, program) in enumerate(zip(labels.families, labels.programs, strict=True))
    ]
    scores: dict[str, float] = {}
    splits = {"lofo": [corpus.by_family(facts, f) for f in families],
              "random": [corpus.by_program(facts, k) for k in range(RANDOM_SPLITS)]}  # fmt: skip
    for name, some in splits.items():
        errors: list[float] = []
        for split in some:
            test = labels.part(split.test)
            errors.append(figures(model(labels.part(split.train), 0, None)(test), test)["mape_regions"])
        scores[f"mape_regions_{name}"], scores[f"mape_regions_{name}_worst"] = float(np.mean(errors)), max(errors)
    return scores


def regions_figures(
    labels: ScheduleLabels, settings: StagedSettings, families: Sequence[str] | None, say: Say
) -> dict[str, dict[str, float]]:
    """`on_regions` of the network, fitted to default schedules alone as the graph network is, and of its baselines."""
    chosen = sorted(set(labels.families.tolist())) if families is None else list(families)
    scores: dict[str, dict[str, float]] = {}
    for name, model in _models(replace(settings, members=1), say).items():
        scores[name] = on_regions(labels, model, chosen)
        say(f"default schedules, {name}: {scores[name]}")
    return scores


def _models(settings: StagedSettings, say: Say) -> dict[str, Predict]:
    """The network, the estimates, and trees where they are installed."""
    models: dict[str, Predict] = {"network": network(settings), "prior": prior}
    if installed():
        models["trees"] = trees
    else:
        say("no trees: lightgbm is not installed")
    return models


def learning(labels: ScheduleLabels, model: Predict, say: Say) -> dict[str, dict[str, float]]:
    """Figures on the programs that seed 0 holds out, by the share of the regions in the fit."""
    scores: dict[str, dict[str, float]] = {}
    train, _ = held_out(labels, 0)
    for part in _LEARNING:
        regions = len(np.unique(labels.region[train])) // part
        scores[str(regions)] = by_program(labels, model, 0, 1 / part)
        say(f"{regions} regions: {_line(scores[str(regions)])}")
    return scores


def ablation(labels: ScheduleLabels, model: Predict, say: Say) -> dict[str, dict[str, float]]:
    """Figures on the programs that seed 0 holds out, without each group of features; `none` also lacks the estimate."""
    scores: dict[str, dict[str, float]] = {}
    train, test = held_out(labels, 0)
    some = labels.part(test)
    for group, (first, last) in stages.GROUPS.items():
        gone = range(stages.NAMES.index(first), stages.NAMES.index(last) + 1)
        names = [k for k in range(len(stages.NAMES)) if k not in gone]
        scores[group] = figures(model(labels.part(train), 0, names)(some), some)
        say(f"without {group}: {_line(scores[group])}")
    return scores


def summary(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures under the names of the acceptance bars."""
    random, lofo = result["random"]["network"], result["lofo"]["network"]
    means: dict[str, float] = {}
    for name, figures_ in (("random", random), ("lofo", lofo)):
        means[f"mape_own_{name}"] = figures_["mean"]["mape"]
        means[f"mape_own_{name}_worst"] = figures_["worst"]["mape"]
    for split, figures_ in (("", random), ("_lofo", lofo)):
        mean = figures_["mean"]
        means[f"tau_schedule{split}"] = mean["tau"]
        means[f"best_over_default{split}"] = mean["best_over_default"]
        means[f"clear_over_default{split}"] = mean["clear_over_default"]
        for name in ("top1", "top5"):
            if name in mean:
                means[f"{name}{split}"] = mean[name]
        if "tile_ape" in mean:
            means[f"tile_ape{split or '_random'}"] = mean["tile_ape"]
            chance = mean["measurements"] / mean["measurements_by_chance"]
            if split:
                means["transfer"] = 1 / chance
            else:
                means["measurements_vs_random"] = chance
    if "coverage90" in lofo["mean"]:
        means["coverage90"] = lofo["mean"]["coverage90"]
    if "trees" in result["random"]:
        means["vs_trees"] = random["mean"]["tau"] / result["random"]["trees"]["mean"]["tau"]
        means["vs_trees_lofo"] = lofo["mean"]["tau"] / result["lofo"]["trees"]["mean"]["tau"]
    return {name: round(value, 4) for name, value in (means | result["floors"]).items()}


_SHOWN = (
    "mape", "mape_cold", "mape_short", "mape_regions", "mape_default", "median_error", "tau", "tile_ape",
    "tile_ape_mean", "top1", "top5", "measurements",
    "best_over_default", "best_worse", "clear_over_default", "clear_worse",
)  # fmt: skip


def table(result: Mapping[str, Any]) -> str:
    """The evaluation as Markdown."""
    facts = result["labels"]
    lines = [
        f"{facts['labels']} labels, {facts['regions']} regions, {facts['families']} families.", "",
        "| | " + " | ".join(_SHOWN) + " |", "|---|" + "--:|" * len(_SHOWN),
    ]  # fmt: skip
    for split in ("random", "lofo"):
        for name, scores in result[split].items():
            cells = [f"{scores['mean'].get(n, math.nan):.3f} ({scores['worst'].get(n, math.nan):.3f})" for n in _SHOWN]
            lines.append(f"| {split}, {name}, {scores['seeds']['count']} seeds | " + " | ".join(cells) + " |")
    shown = {"learning": "{} regions", "ablation": "without {}", "machines": "{}"}
    for part, form in shown.items():
        for name, scores in result.get(part, {}).items():
            what = form.format(name)
            lines.append(f"| {what} | " + " | ".join(f"{scores.get(n, math.nan):.3f}" for n in _SHOWN) + " |")
    if result.get("regions"):
        columns = list(result["regions"]["network"])
        lines += ["", "| default schedules | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
        for name, scores in result["regions"].items():
            lines.append(f"| {name} | " + " | ".join(f"{scores[c]:.3f}" for c in columns) + " |")
    lines += ["", "| summary | |", "|---|--:|"]
    lines += [f"| `{name}` | {value} |" for name, value in result["summary"].items()]
    return "\n".join(lines)


def _over_seeds(found: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and worst over seeds; worst is the largest of errors and counts, the least of the others."""
    names = found[0].keys()
    least = ("tau", "top1", "top5", "best_over_default", "clear_over_default", "coverage90")
    return {
        "mean": {n: round(float(np.mean([f[n] for f in found])), 4) for n in names},
        "worst": {n: round((min if n in least else max)(f[n] for f in found), 4) for n in names},
        "seeds": {"count": len(found)},
    }  # fmt: skip


def _line(found: Mapping[str, float]) -> str:
    shown = ("mape", "mape_default", "tau", "tile_ape", "top1", "top5", "best_over_default", "coverage90")
    return ", ".join(f"{name} {found[name]:.3f}" for name in shown if name in found)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _middle(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _geomean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else 1.0
