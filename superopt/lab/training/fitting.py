"""`superopt train fit` and `superopt train eval`: weights with their card, and the table of held-out accuracy."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.model import learned_file
from costmodel.model import staged as staged_file
from costmodel.model.learned import predict
from superopt.errors import InputError
from superopt.kernels.choose.specs import NATIVE
from superopt.lab.training import (
    corpus,
    evaluate,
    fit,
    publish,
    schedule_eval,
    schedule_prior,
    schedules,
    speed,
    staged,
    whole,
)
from superopt.lab.training.collect import LabelFile
from superopt.lab.training.regions import SHIPPED, cold_costs, corpus_of
from superopt.lab.training.settings import FitSettings
from superopt.lab.training.staged import ScheduleLabels, StagedSettings
from superopt.machine import facts as machine
from superopt.measure.kernels import XLA
from superopt.schedules.model import PRIOR

_BEGIN, _END = "<!-- evaluation begin -->", "<!-- evaluation end -->"


def read_corpus(path: str | Path | None, backend: str = XLA) -> corpus.Corpus:
    """The labels of a file, or those that ship: kernels as XLA compiles them, or regions as our kernels.

    Raises:
        InputError: the file is not usable.
    """
    load, shipped, command = (
        (corpus.load, corpus.SHIPPED, "collect") if backend == XLA else (corpus_of, SHIPPED, "regions")
    )
    try:
        return load(_path(path, shipped))
    except corpus.CorpusError as error:
        raise InputError(str(error), hint=f"collect labels with `superopt train {command}`") from error


def _path(given: str | Path | None, shipped: Path) -> Path:
    return Path(given) if given else shipped


def fit_weights(
    data: str | Path | None,
    out: str | Path | None,
    evaluation: str | Path | None,
    seed: int,
    say: Callable[[str], None],
    backend: str = XLA,
) -> dict[str, Any]:
    """Fit to all labels of a backend and write the weights and their card; returns the card."""
    labelled = read_corpus(data, backend)
    labels = labelled.labels
    settings = FitSettings()
    begin = time.monotonic()
    say(f"{len(labels)} labels of {len({x.family for x in labels})} families")
    with machine.taken(machine.from_dict(labelled.header.get("machine"))):
        prepared = fit.prepare(labels)
    model = fit.fit(prepared, settings, seed, progress=say)
    seconds = time.monotonic() - begin
    result = predict(model, prepared.table, prepared.structures, prepared.rows)
    header = labelled.header
    card = {
        "machine": header.get("machine") or machine.as_dict(),
        "versions": machine.versions(),
        "date": time.strftime("%Y-%m-%d"),
        "labels": {
            "digest": labelled.digest,
            "count": len(labels),
            "kernels": len({x.key for x in labels}),
            "families": sorted({x.family for x in labels}),
        },
        "settings": asdict(settings),
        "seed": seed,
        "fit_seconds": round(seconds, 1),
        "fit": evaluate.figures(result.seconds, labels),
        "fit_prior": evaluate.figures(result.prior_s, labels),
    }
    if backend == NATIVE and whole.SHIPPED.exists():
        boundary, card["programs"] = whole.fit(LabelFile.read(whole.SHIPPED))
        costs, card["cold"] = cold_costs(_path(data, SHIPPED))
        card["boundary"] = asdict(replace(boundary, **costs))
    if evaluation is not None:
        card["held_out"] = json.loads(Path(evaluation).read_text(encoding="utf-8"))["summary"]
    shipped = learned_file.SHIPPED if backend == XLA else learned_file.NATIVE
    path = Path(out) / shipped.name if out else shipped
    return {**learned_file.write(path, model, card), "path": str(path)}


def fit_schedules(
    data: str | Path | None,
    out: str | Path | None,
    evaluation: str | Path | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Fit the model of scheduled kernels and the prior of their search to all labels, write both; return the card."""
    begin = time.monotonic()
    parts = _schedule_labels(data)
    labels = _joined(parts, staged.defaults())
    say(f"{len(labels.rows)} labels of {len(np.unique(labels.region))} regions")
    settings = StagedSettings()
    model = staged.fit(labels, settings, seed)
    known = schedule_prior.fitted(schedule_prior.points(labels, replace(settings, members=1), seed))
    card = {
        "machine": labels.header.get("machine"), "vector_bits": [p.vector_bits for p in parts],
        "versions": machine.versions(), "date": time.strftime("%Y-%m-%d"),
        "labels": {"count": len(labels.rows), "regions": len(np.unique(labels.region)),
                   "families": sorted(set(labels.families.tolist()))},
        "settings": asdict(settings), "seed": seed, "fit_seconds": round(time.monotonic() - begin, 1),
        "fit": schedule_eval.figures(model.seconds(labels.rows), labels),
    }  # fmt: skip
    if evaluation is not None:
        card["held_out"] = json.loads(Path(evaluation).read_text(encoding="utf-8"))["summary"]
    path, prior = staged_file.SHIPPED, PRIOR
    if out is not None:
        path, prior = Path(out) / path.name, Path(out) / prior.name
    prior.write_text(json.dumps(known.to_json()) + "\n", encoding="utf-8")
    return {**staged_file.write(path, model, card), "path": str(path)}


def _schedule_labels(data: str | Path | None) -> list[ScheduleLabels]:
    """The labels of a file, or of each file that ships."""
    return [staged.load(path) for path in ([Path(data)] if data else schedules.shipped())]


def _joined(parts: Sequence[ScheduleLabels], default: ScheduleLabels) -> ScheduleLabels:
    """All labels converted to the machine of the first file, which is that of the default schedules."""
    return functools.reduce(ScheduleLabels.join, [parts[0], *[p.at_rate_of(parts[0]) for p in parts[1:]], default])


def schedules_evaluation(
    data: str | Path | None, seeds: int, families: Sequence[str] | None, budget_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Held-out accuracy of the model of scheduled kernels, and of the schedules that it chooses."""
    parts, default = _schedule_labels(data), staged.defaults()
    labels = _joined(parts, default)
    result = schedule_eval.evaluate(labels, StagedSettings(), seeds, families, budget_s, say)
    if len(parts) > 1:
        model = schedule_eval.network(replace(StagedSettings(), members=1))
        result["machines"] = schedule_eval.between_machines(parts, model, say)
    result["regions"] = schedule_eval.regions_figures(default, StagedSettings(), families, say)
    result["labels"] = {
        "labels": len(labels.rows), "regions": len(np.unique(labels.region)),
        "families": len(set(labels.families.tolist())), "machine": labels.header.get("machine"),
    }  # fmt: skip
    result["text"] = schedule_eval.table(result)
    return result


def evaluation(
    data: str | Path | None,
    seeds: int,
    families: Sequence[str] | None,
    budget_s: float,
    say: Callable[[str], None],
    backend: str = XLA,
    model: Callable[[], publish.GivenModel] | None = None,
) -> dict[str, Any]:
    """Held-out accuracy and scoring speed: `summary`, `families`, `programs`, `labels`, `text`.

    A given model is judged in place of superopt's own, without its speed.
    """
    labels = read_corpus(data, backend)
    if model is not None:
        result = publish.judge(labels, model, backend, families, say)
        return {**result, "text": table(result)}
    result = evaluate.evaluate(labels, seeds=seeds, backend=backend, families=families, budget_s=budget_s, progress=say)
    if backend == NATIVE:
        result["summary"] |= evaluate.backend_choice(labels, corpus_of(_path(data, SHIPPED), "xla"), families, say)
        if whole.SHIPPED.exists():
            result["summary"] |= whole.fit(LabelFile.read(whole.SHIPPED))[1]
        result["summary"] |= cold_costs(_path(data, SHIPPED))[1]
        result["schedules"] = schedules_evaluation(None, seeds, families, budget_s, say)
        result["summary"] |= result["schedules"]["summary"]
    some = labels.labels[:: max(1, len(labels.labels) // speed.MOST)]
    fitted = fit.fit(fit.prepare(some), FitSettings(epochs=1, prior_steps=100), 0)
    rates = speed.scoring_speed(fitted, list({x.key: x.graph for x in some}.values()))
    result["summary"] |= {"kernels_per_s": rates["whole"], "network_kernels_per_s": rates["network"]}
    result["text"] = table(result) + (f"\n\n{result['schedules']['text']}" if "schedules" in result else "")
    return result


def table(result: Mapping[str, Any]) -> str:
    """The evaluation as Markdown."""
    facts, summary = result["labels"], result["summary"]
    lines = [
        f"{facts['labels']} labels, {facts['kernels']} kernels, {facts['tasks']} tasks, {facts['programs']} programs, "
        f"{facts['families']} families; {result['seeds']} seeds; {result['machine']['cpu']}, "
        f"{result['machine']['cores']} cores.",
        "",
        "| held out | kernels | MAPE roofline | MAPE learned (worst seed) | ratio | ≥ 20 us | τ roofline | τ learned "
        "| regret roofline | regret learned | outside domain | shared, removed |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in (*result["families"], *result["programs"]):
        mean, prior = row["mean"], row["prior"]
        lines.append(
            f"| {row['name'].removeprefix('without ')} | {row['test']} | {_percent(prior['mape'])} "
            f"| {_percent(mean['mape'])} ({_percent(row['worst_mape'])}) | {row['ratio']:.2f} "
            f"| {_percent(prior['mape_long'])} → {_percent(mean['mape_long'])} | {prior['tau']:.3f} "
            f"| {mean['tau']:.3f} | {_percent(prior['regret'])} | {_percent(mean['regret'])} "
            f"| {_percent(row['outside'])} | {row['shared']} |"
        )
    lines += ["", "| summary | |", "|---|--:|"]
    lines += [f"| `{name}` | {value} |" for name, value in summary.items()]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def update_document(path: Path, text: str) -> None:
    """Replace the text between the markers of a document.

    Raises:
        InputError: the document has no markers.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise InputError(f"{path} has no place for the table", hint=f"put {_BEGIN} and {_END} where it belongs")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
