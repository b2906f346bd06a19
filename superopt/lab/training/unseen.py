"""Accuracy on a kind of processor that no label is from, before and after fifteen seconds of timing there.

Each kind is left out in turn.  Models are fitted to the labels of all others, converted by the rate of multiply-adds,
and to one half of the families; they predict regions of the other half on the kind that is left out.

    estimate   Cycles of the default schedule, as the generator ranks schedules by them: nothing is learned.
    trees      Boosted trees on rows of the stages, over the estimate.
    rows       A network on these rows, over the estimate; the rate of multiply-adds and sizes against the caches are
               its descriptors of the processor.
    roofline   The roofline of the search.
    graph      The network that the search uses, over the roofline, fitted alike.
    shipped    The weights that ship, which are of one kind and have seen regions of all programs there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.features import stages
from costmodel.model import learned_file
from costmodel.model.kept import TimedKernel
from costmodel.model.learned import Predicted, predict
from costmodel.model.measured import Correction, Line, deviation, fitted_line
from costmodel.model.measured import kind as kind_of
from superopt.ir.counters import boundary_bytes
from superopt.ir.text import parse_graph
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.llvm.cpu import host
from superopt.kernels.loops.program import from_graph
from superopt.kernels.schedule.trace import apply
from superopt.lab import Say
from superopt.lab.training import fit, regions, staged, trees, whole
from superopt.lab.training.corpus import OWN_FORM, KernelLabel
from superopt.lab.training.evaluate import LONG_S
from superopt.lab.training.schedule_eval import clear_tau
from superopt.lab.training.settings import FitSettings
from superopt.lab.training.staged import ScheduleLabels, StagedSettings
from superopt.lab.training.tasks import key_of, read_lines
from superopt.machine.facts import describe, from_dict, taken
from superopt.machine.rates import NOMINAL
from superopt.measure.kernels import XLA

FIRST, PROGRAMS = "Zen 4", "Zen 5"  # kinds of the files that do not name theirs
MOST = 2_400  # regions of a kind: as many as the kind of the programs has, so that none counts for more
FOLDS = 2  # halves of the families
TIMED, DRAWS = 20, 8  # regions of our own that fifteen seconds time, kernels made; and draws of them
SEARCHED = "graph"  # the model of the search
KEPT = 60  # kernels of earlier calls: one call of a minute times as many or more
HELD, NORMAL = 0.9, 1.645  # share that an interval is to hold, and its half width in standard deviations


@dataclass(frozen=True, slots=True, eq=False)
class KindOfProcessor:
    """Regions with their default schedules, timed on one kind of processor.

    Attributes:
        name: name of the kind.
        labels: times of our kernels.
        xla_s: times of the same regions by XLA; nan where there is none.
        rows: rows of the stages, and the same times.
        counts: how often its program runs each region.
        whole_s: seconds of whole programs by name; empty where none were timed.
    """

    name: str
    labels: tuple[KernelLabel, ...]
    xla_s: np.ndarray
    rows: ScheduleLabels
    counts: np.ndarray
    whole_s: Mapping[str, float]


def kinds() -> list[KindOfProcessor]:
    """The kinds of processors that labels ship of."""
    files = sorted(regions.SHIPPED.parent.glob("regions*.jsonl.gz"))
    return [*map(_of_regions, files), _of_programs(whole.SHIPPED)]


def _of_regions(path: Path) -> KindOfProcessor:
    """Regions of programs' own forms, program by program, up to `MOST`."""
    own, xla = regions.corpus_of(path), regions.corpus_of(path, "xla").labels
    pairs = [(x, y.seconds) for x, y in zip(own.labels, xla, strict=True) if x.form == OWN_FORM]
    pairs = sorted(pairs, key=lambda pair: regions.place(pair[0].program, pair[0].key))[:MOST]
    labels, xla_s = tuple(x for x, _ in pairs), np.array([s for _, s in pairs])
    name = own.header.get("kind", FIRST)
    return KindOfProcessor(name, labels, xla_s, _rows(own.header, labels), np.ones(len(labels)), {})


def _of_programs(path: Path) -> KindOfProcessor:
    """Kernels of whole programs; one that several programs have was visited as often."""
    header, *rows = read_lines(path)
    times: dict[str, list[float]] = {}
    for row in rows:
        for text, _, seconds in row["regions"]:
            times.setdefault(text, []).append(seconds)
    labels: list[KernelLabel] = []
    for row in rows:
        for text, _, seconds in row["regions"]:
            key, others = key_of(text), [s for s in times[text] if s != seconds]
            labels.append(
                KernelLabel(
                    row["family"], row["program"], key, OWN_FORM, key=key, graph=parse_graph(text), seconds=seconds,
                    stderr=0.0, again_s=others[0] if others else None,
                )
            )  # fmt: skip
    counts = np.array([count for row in rows for _, count, _ in row["regions"]], float)
    whole_s = {row["program"]: row["seconds"] for row in rows}
    made = _rows(header["header"], labels)
    return KindOfProcessor(PROGRAMS, tuple(labels), np.full(len(labels), np.nan), made, counts, whole_s)


def _rows(header: dict[str, Any], labels: Sequence[KernelLabel]) -> ScheduleLabels:
    """The labels with rows of their default schedules as this version chooses them for that processor."""
    rows: list[np.ndarray] = []
    with taken(from_dict(header.get("machine"))):
        fma_s, threads = staged.fma_s_of(header), describe().cores
        cpu = replace(host(), rates=replace(NOMINAL, fma_s=fma_s))
        for label in labels:
            program = from_graph(label.graph.outputs, name="kernel")
            rows.append(stages.stage_rows(apply(program, default_trace(program, threads=threads)), threads, cpu))
    facts = [
        (x.seconds, np.nan if x.again_s is None else x.again_s, i, x.family, x.program, False, True, False)
        for i, x in enumerate(labels)
    ]
    return staged.as_arrays(list(zip(rows, facts, strict=True)), header | {"fma_s": fma_s})


@dataclass(frozen=True, slots=True, eq=False)
class UnseenPrices:
    """Prices of a model on a kind that it has no labels of, and the spread of the logarithm over its members."""

    seconds: np.ndarray
    spread: np.ndarray


def folds_of(families: np.ndarray) -> np.ndarray:
    """The half of the families to which each label belongs."""
    names = np.random.default_rng(0).permutation(np.unique(families))
    number = {family: k % FOLDS for k, family in enumerate(names.tolist())}
    return np.array([number[family] for family in families.tolist()])


def prices(every: Sequence[KindOfProcessor], left_out: int, say: Say) -> dict[str, UnseenPrices]:
    """Prices of the regions of one kind by models of all others, each half of the families by those of the other."""
    mine, theirs = every[left_out], [kind for k, kind in enumerate(every) if k != left_out]
    joined = _joined([kind.rows.at_rate_of(mine.rows) for kind in theirs])
    labels = [
        replace(label, seconds=label.seconds * _element_s(mine) / _element_s(kind))
        for kind in theirs for label in kind.labels
    ]  # fmt: skip
    fold, other = folds_of(mine.rows.families), folds_of(joined.families)
    with taken(from_dict(mine.rows.header.get("machine"))):
        data = fit.prepare([*labels, *mine.labels])
        first = len(labels)
        shipped = predict(learned_file.read(learned_file.NATIVE)[0], data.table, data.structures, data.rows)
        by_xla = predict(learned_file.read()[0], data.table, data.structures, data.rows)
        made = {"estimate": np.log(mine.rows.estimates())[None], XLA: _logs(by_xla)[:, first:]}
        made["shipped"] = _logs(shipped)[:, first:]
        shapes = {"rows": StagedSettings().members, "roofline": 1, "graph": FitSettings().shape.members}
        shapes |= {"trees": 1} if trees.installed() else {}
        made |= {name: np.zeros((members, len(mine.labels))) for name, members in shapes.items()}
        for number in range(FOLDS):
            test = np.flatnonzero(fold == number)
            keys = {mine.labels[i].key for i in test}
            train = np.array([i for i in np.flatnonzero(other != number) if labels[i].key not in keys])
            some, wanted = joined.part(train), mine.rows.part(test)
            if "trees" in made:
                made["trees"][:, test] = np.log(staged.fit_trees(some, 0).seconds(wanted))
            made["rows"][:, test] = staged.fit(some, StagedSettings(), 0).members(wanted.rows)
            model, asked = fit.fit(data.part(train), FitSettings(), 0), data.part(first + test)
            told = predict(model, asked.table, asked.structures, asked.rows)
            made["graph"][:, test], made["roofline"][:, test] = _logs(told), np.log(told.prior_s)
            say(f"{mine.name}, half {number + 1}: {len(train)} labels of other kinds")
    return {name: UnseenPrices(np.exp(logs.mean(0)), logs.std(0)) for name, logs in made.items()}


def _element_s(kind: KindOfProcessor) -> float:
    """Seconds of a multiply-add of one element; the graph network knows of no vectors."""
    return kind.rows.header["fma_s"] / kind.rows.vector_bits


def _joined(parts: Sequence[ScheduleLabels]) -> ScheduleLabels:
    whole_ = parts[0]
    for part in parts[1:]:
        whole_ = whole_.join(part)
    return whole_


def _logs(predicted: Predicted) -> np.ndarray:
    return np.log(predicted.members_s).T


# ---- figures


def _timed(kind: KindOfProcessor, priced: UnseenPrices, at: np.ndarray) -> list[TimedKernel]:
    return [TimedKernel("", float(priced.seconds[i]), float(kind.rows.seconds[i])) for i in at]


def _as_predicted(_: Sequence[TimedKernel]) -> Line:
    return Line(0.0, 1.0)


def _scaled(timed: Sequence[TimedKernel]) -> Line:
    return Line(0.0, float(np.exp(np.median([math.log(x.seconds / x.predicted_s) for x in timed]))))


CORRECTIONS: Mapping[str, Callable[[Sequence[TimedKernel]], Line]] = {
    "none": _as_predicted, "factor": _scaled, "line": fitted_line,
}  # fmt: skip
"""Corrections by the kernels that were timed: none, one factor, or a + b times the prediction."""


def judged(kind: KindOfProcessor, priced: UnseenPrices, correction: str) -> dict[str, float]:
    """Figures of a model on a kind that it has no labels of, after so many timed regions of other families.

    Means over draws of these regions: Kendall's tau within programs, and the median error of all and from `LONG_S` on.
    Coverage is how often the time is within the interval that nine in ten of the timed regions keep.  The share of the
    error is that on a third of each program's kernels: those of the most seconds, or of the most seconds times the
    spread of the members.
    """
    correct, own = CORRECTIONS[correction], np.arange(len(kind.labels))
    fold, y, programs = folds_of(kind.rows.families), kind.rows.seconds, kind.rows.programs
    rows: list[dict[str, float]] = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        p, interval = np.full((2, len(y)), np.nan)
        for number in range(FOLDS):
            test, others = own[fold[own] == number], own[fold[own] != number]
            some = rng.choice(others, min(TIMED, len(others)), replace=False)
            timed = _timed(kind, priced, some)
            line, around = correct(timed), deviation(timed, correct)
            assert around is not None
            p[test] = line.seconds(priced.seconds[test])
            interval[test] = NORMAL * around
        error = np.abs(p[own] / y[own] - 1)
        inside = np.abs(np.log(p[own] / y[own]))
        rows.append({
            "tau": _tau(p[own], y[own], programs[own]),
            "error": float(np.median(error[y[own] >= LONG_S])), "error_all": float(np.median(error)),
            f"coverage{100 * HELD:.0f}": float((inside <= interval[own]).mean()),
            f"coverage{100 * HELD:.0f}_spread": float((inside <= NORMAL * priced.spread[own]).mean()),
            "covered_by_seconds": covered(p[own], y[own], p[own], programs[own]),
            "covered_by_spread": covered(p[own], y[own], p[own] * priced.spread[own], programs[own]),
            "covered_at_most": covered(p[own], y[own], np.abs(p[own] - y[own]), programs[own]),
        })  # fmt: skip
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


def _of_each(programs: np.ndarray) -> Iterator[np.ndarray]:
    for program in np.unique(programs):
        at = np.flatnonzero(programs == program)
        if len(at) >= 3:
            yield at


def _tau(p: np.ndarray, y: np.ndarray, programs: np.ndarray) -> float:
    """Kendall's tau within programs, over pairs that differ clearly; mean over programs."""
    each = [clear_tau(p[at], y[at]) for at in _of_each(programs)]
    return float(np.mean([tau for tau in each if tau is not None] or [0.0]))


def covered(p: np.ndarray, y: np.ndarray, score: np.ndarray, programs: np.ndarray) -> float:
    """Share of the errors of all programs that is on the third of each one's kernels with the largest scores."""
    total = picked = 0.0
    for at in _of_each(programs):
        error = np.abs(p[at] - y[at])
        picked += float(error[np.argsort(-score[at])[: math.ceil(len(at) / 3)]].sum())
        total += float(error.sum())
    return picked / total if total else 0.0


def replayed(kind: KindOfProcessor, priced: UnseenPrices) -> dict[str, float]:
    """Median error from `LONG_S` on, and tau, of the rest of each program's kernels once the longest third is timed.

    `rest` is as predicted, `rest_first` corrected by those kernels, and `rest_kept` also by `KEPT` kernels of other
    families that earlier calls timed.
    """
    fold, y, x = folds_of(kind.rows.families), kind.rows.seconds, priced.seconds
    kinds_ = [kind_of(label.graph) for label in kind.labels]
    every = [TimedKernel(name, float(p), float(s)) for name, p, s in zip(kinds_, x, y, strict=True)]
    rng = np.random.default_rng(0)
    drawn = [np.flatnonzero(fold != number) for number in range(FOLDS)]
    kept = [[every[i] for i in rng.choice(some, min(KEPT, len(some)), replace=False)] for some in drawn]
    errors, taus = dict[str, list[float]](), dict[str, list[float]]()
    for at in _of_each(kind.rows.programs):
        order = at[np.argsort(-x[at])]
        first = math.ceil(len(at) / 3)
        timed, rest = [every[i] for i in order[:first]], order[first:]
        corrections = {
            "rest": Correction((), ()), "rest_first": Correction(timed, ()),
            "rest_kept": Correction(timed, kept[fold[at[0]]]),
        }  # fmt: skip
        for name, correction in corrections.items():
            told = correction.seconds(x[rest], [kinds_[i] for i in rest])
            long = y[rest] >= LONG_S
            errors.setdefault(name, []).extend(np.abs(told / y[rest] - 1)[long].tolist())
            tau = clear_tau(told, y[rest])
            taus.setdefault(name, []).extend([] if tau is None else [tau])
    return {
        **{f"{name}_error": round(float(np.median(values or [0.0])), 4) for name, values in errors.items()},
        **{f"{name}_tau": round(float(np.mean(values or [0.0])), 4) for name, values in taus.items()},
    }


def pick_regret(kind: KindOfProcessor, own_s: np.ndarray, xla_s: np.ndarray) -> dict[str, float]:
    """Cost of own-or-XLA over the best choice, as predicted and where all is ours; empty without times of XLA."""
    at = np.flatnonzero(~np.isnan(kind.xla_s))
    if not len(at):
        return {}
    own, xla = kind.rows.seconds[at], kind.xla_s[at] + NOMINAL.handover_s
    least = float(np.minimum(own, xla).sum())
    chosen = float(np.where(own_s[at] <= xla_s[at] + NOMINAL.handover_s, own, xla).sum())
    return {"pick_regret": round(chosen / least - 1, 4), "pick_regret_ours": round(float(own.sum()) / least - 1, 4)}


def program_error(kind: KindOfProcessor, own_s: np.ndarray) -> dict[str, float]:
    """Median error of the seconds of whole programs by the prices of their kernels, and with all of them timed.

    Costs between kernels are those of programs of the other half of the families.
    """
    if not kind.whole_s:
        return {}
    names = np.array(list(kind.whole_s))
    at = [np.flatnonzero(kind.rows.programs == name) for name in names]
    seconds = np.array([kind.whole_s[name] for name in names])
    moved = np.array([sum(kind.counts[i] * sum(boundary_bytes(kind.labels[i].graph)) for i in some) for some in at])
    timed = np.array([kind.counts[some] @ kind.rows.seconds[some] for some in at])
    priced = np.array([kind.counts[some] @ own_s[some] for some in at])
    half = folds_of(kind.rows.families)[[some[0] for some in at]]
    errors = dict[str, list[float]](program_error=[], program_error_timed=[])
    for number in range(FOLDS):
        test, other = half == number, half != number
        boundary = whole.boundary_of(timed[other], moved[other], seconds[other])
        for name, sums in (("program_error", priced), ("program_error_timed", timed)):
            errors[name] += np.abs(boundary.seconds(sums[test], moved[test]) / seconds[test] - 1).tolist()
    return {name: round(float(np.median(values)), 4) for name, values in errors.items()}


def _on_line(kind: KindOfProcessor, priced: UnseenPrices, measured_s: np.ndarray) -> np.ndarray:
    """Prices on the line of timed regions of the other half of the families."""
    fold, rng, seconds = folds_of(kind.rows.families), np.random.default_rng(0), priced.seconds.copy()
    for number in range(FOLDS):
        others = np.flatnonzero((fold != number) & ~np.isnan(measured_s))
        some = rng.choice(others, min(TIMED, len(others)), replace=False)
        line = fitted_line([TimedKernel("", float(priced.seconds[i]), float(measured_s[i])) for i in some])
        seconds[fold == number] = line.seconds(seconds[fold == number])
    return seconds


def second_visits(kind: KindOfProcessor) -> dict[str, float]:
    """Figures of a first visit as a prediction of the second: bounds on error and order of any model."""
    at = np.flatnonzero(~np.isnan(kind.rows.again_s))
    p, y = kind.rows.again_s[at], kind.rows.seconds[at]
    error, long = np.abs(p / y - 1), y >= LONG_S
    return {
        "regions": len(at), "error": round(float(np.median(error[long])), 4) if long.any() else 0.0,
        "error_all": round(float(np.median(error)), 4) if len(at) else 0.0,
        "tau": round(_tau(p, y, kind.rows.programs[at]), 4),
    }  # fmt: skip


def summary(by_kind: Mapping[str, Any]) -> dict[str, float]:
    """Figures under the names of the acceptance bars: those of the search's network on the line, means over kinds."""
    means: dict[str, float] = {}
    for prefix, model in (("", SEARCHED), ("estimate_", "estimate")):
        rows = [kind["models"][model]["line"] for kind in by_kind.values()]
        for name in dict.fromkeys(name for row in rows for name in row):
            means[f"{prefix}{name}"] = round(float(np.mean([row[name] for row in rows if name in row])), 4)
    return means


_SHOWN = (
    "tau", "error", "error_all", "coverage90", "coverage90_spread", "covered_by_seconds", "covered_by_spread",
    "covered_at_most", "rest_error", "rest_first_error", "rest_kept_error", "rest_tau", "rest_kept_tau", "pick_regret",
    "pick_regret_ours", "program_error", "program_error_timed",
)  # fmt: skip


def table(result: Mapping[str, Any]) -> str:
    """The evaluation as Markdown: a row for each kind, model and correction."""
    lines = ["| unseen kind, model | correction | " + " | ".join(_SHOWN) + " |", "|---|---|" + "--:|" * len(_SHOWN)]

    def row(name: str, correction: str, scores: Mapping[str, float]) -> str:
        return (
            f"| {name} | {correction} | " + " | ".join(f"{scores[n]:.3f}" if n in scores else "" for n in _SHOWN) + " |"
        )

    for kind, facts in result["kinds"].items():
        for model, by_correction in facts["models"].items():
            lines += [row(f"{kind}, {model}", correction, scores) for correction, scores in by_correction.items()]
        lines.append(row(f"{kind}, second visits", "", facts["second_visits"]))
    lines += ["", "| summary | |", "|---|--:|"]
    return "\n".join([*lines, *(f"| `{name}` | {value} |" for name, value in result["summary"].items())])


def evaluate(say: Say, every: Sequence[KindOfProcessor] | None = None) -> dict[str, Any]:
    """Figures of each model on each kind that is left out, after each correction; their means; noise of the labels."""
    every = every or kinds()
    by_kind: dict[str, Any] = {}
    for k, kind in enumerate(every):
        priced = prices(every, k, say)
        xla = priced.pop(XLA)
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for name, one in priced.items():
            rows[name] = {correction: judged(kind, one, correction) for correction in CORRECTIONS}
            own_s, xla_s = _on_line(kind, one, kind.rows.seconds), _on_line(kind, xla, kind.xla_s)
            rows[name]["line"] |= pick_regret(kind, own_s, xla_s) | program_error(kind, own_s) | replayed(kind, one)
            say(f"{kind.name}, {name}: {rows[name]['line']}")
        facts = {"regions": len(kind.labels), "fma_s": kind.rows.header["fma_s"]}
        by_kind[kind.name] = {"models": rows, "second_visits": second_visits(kind), **facts}
    result = {"kinds": by_kind, "summary": summary(by_kind)}
    return {**result, "text": table(result)}
