"""`superopt train fit` and `superopt train eval`: weights with their card, and the table of held-out accuracy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodel.model import learned_file, predict
from superopt.errors import InputError
from superopt.lab.training import corpus, evaluate, fit, speed
from superopt.lab.training.settings import FitSettings
from superopt.machine import facts as machine

_BEGIN, _END = "<!-- evaluation begin -->", "<!-- evaluation end -->"


def read_corpus(path: str | Path | None) -> corpus.Corpus:
    """The labels of a file, or those that ship.

    Raises:
        InputError: the file is not usable.
    """
    try:
        return corpus.load(Path(path) if path else corpus.SHIPPED)
    except corpus.CorpusError as error:
        raise InputError(str(error), hint="collect labels with `superopt train collect`") from error


def fit_weights(
    data: str | Path | None,
    out: str | Path | None,
    evaluation: str | Path | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Fit to all labels and write the weights and their card; returns the card."""
    found = read_corpus(data)
    labels = found.labels
    settings = FitSettings()
    begin = time.monotonic()
    say(f"{len(labels)} labels of {len({x.family for x in labels})} families")
    with machine.taken(machine.from_dict(found.header.get("machine"))):
        prepared = fit.prepare(labels)
    model = fit.fit(prepared, settings, seed, progress=say)
    seconds = time.monotonic() - begin
    result = predict.predict(model, prepared.table, prepared.structures, prepared.rows)
    header = found.header
    card = {
        "machine": header.get("machine") or machine.as_dict(),
        "versions": machine.versions(),
        "date": time.strftime("%Y-%m-%d"),
        "labels": {
            "digest": found.digest,
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
    if evaluation is not None:
        card["held_out"] = json.loads(Path(evaluation).read_text(encoding="utf-8"))["summary"]
    path = Path(out) / learned_file.SHIPPED.name if out else learned_file.SHIPPED
    return {**learned_file.write(path, model, card), "path": str(path)}


def evaluation(
    data: str | Path | None,
    seeds: int,
    families: Sequence[str] | None,
    budget_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Held-out accuracy and scoring speed: `summary`, `families`, `programs`, `labels`, `text`."""
    found = read_corpus(data)
    result = evaluate.evaluate(found, seeds=seeds, families=families, budget_s=budget_s, progress=say)
    some = found.labels[:: max(1, len(found.labels) // speed.MOST)]
    model = fit.fit(fit.prepare(some), FitSettings(epochs=1, prior_steps=100), 0)
    rates = speed.scoring_speed(model, list({x.key: x.graph for x in some}.values()))
    result["summary"] |= {"kernels_per_s": rates["whole"], "network_kernels_per_s": rates["network"]}
    result["text"] = table(result)
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
        "| regret roofline | regret learned | outside hull | shared, removed |",
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
    """Replace what stands between the markers of a document.

    Raises:
        InputError: the document has no markers.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise InputError(f"{path} has no place for the table", hint=f"put {_BEGIN} and {_END} where it belongs")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
