"""Collect labels of kernels, fit and judge the learned models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from superopt.commands.console import JSON, RAY, emit, progress
from superopt.errors import UsageError
from superopt.kernels.choose.specs import NATIVE
from superopt.lab.training.collect import collect as run
from superopt.lab.training.fitting import (
    evaluation,
    fit_schedules,
    fit_weights,
    read_corpus,
    schedules_evaluation,
    update_document,
)
from superopt.lab.training.publish import export
from superopt.lab.training.regions import avx2 as restricted
from superopt.lab.training.regions import collect as time_regions
from superopt.lab.training.schedules import collect as time_schedules
from superopt.lab.training.unseen import evaluate as evaluate_unseen
from superopt.lab.training.whole import collect as time_programs
from superopt.machine.budget import parse_budget
from superopt.measure.kernels import XLA
from superopt.pipeline.target import called
from superopt.workshop.cluster import executor_at
from superopt.workshop.scheduler import Workers

SCHEDULES = "schedules"  # our own kernels under any schedule
LABELS = (XLA, NATIVE, SCHEDULES)


def _slice(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that makes labels, as many as there is time for."""
    for option in (
        JSON,
        click.option("--budget", default="3min", show_default=True, help="Time for this slice: 90s, 3min."),
        click.option(
            "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The labels (.jsonl.gz)."
        ),
    ):
        command = option(command)
    return command


def _seconds(budget: str) -> float:
    return parse_budget(budget).seconds or 180.0


_say = progress(False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def train() -> None:
    """Labels, fit and evaluation of the learned cost model."""


@train.command()
@click.option("--jobs", default=2, show_default=True, help="Processes that visit programs, on each host.")
@click.option("--visit-only", is_flag=True, help="Visit all programs, time nothing.")
@RAY
@_slice
def collect(out: Path, budget: str, jobs: int, visit_only: bool, address: str | None, as_json: bool) -> None:
    """Time kernels that the search visits on the training programs; resumes where the file ends."""
    with executor_at(address) as executor:
        workers = Workers(jobs, executor)
        _print(run(out, _seconds(budget), workers=workers, visit_only=visit_only, say=_say), as_json)


@train.command()
@click.option("--kind", default="", help="Name of a further kind of processor: the file has its labels alone.")
@click.option("--avx2", is_flag=True, help="As on this processor without AVX-512, our kernels and XLA's.")
@RAY
@_slice
def regions(out: Path, budget: str, kind: str, avx2: bool, address: str | None, as_json: bool) -> None:
    """Time regions as kernels of our own and by XLA; resumes where the file ends."""
    if avx2 and (not kind or address):
        raise UsageError("without AVX-512 this is another kind of processor", hint="name it with --kind, without --ray")
    with restricted() if avx2 else nullcontext(), executor_at(address) as executor:
        _print(time_regions(out, _seconds(budget), _say, executor, kind), as_json)


@train.command()
@click.option("--threads", default=1, show_default=True, help="That run a kernel.")
@click.option("--exhaustive", is_flag=True, help="Only regions whose least time is found by timing all schedules.")
@RAY
@_slice
def schedules(out: Path, budget: str, threads: int, exhaustive: bool, address: str | None, as_json: bool) -> None:
    """Time regions under many schedules, weights in the caches and not; resumes where the file ends."""
    with executor_at(address) as executor:
        _print(time_schedules(out, _seconds(budget), threads, _say, exhaustive, executor), as_json)


@train.command()
@RAY
@_slice
def programs(out: Path, budget: str, address: str | None, as_json: bool) -> None:
    """Time whole training programs in kernels of our own; resumes where the file ends."""
    with executor_at(address) as executor:
        _print(time_programs(out, _seconds(budget), _say, executor), as_json)


@train.command()
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), help="The corpus; the shipped one by default.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder; that of the shipped weights.")
@click.option("--evaluation", type=click.Path(exists=True, dir_okay=False), help="Output of `eval` for the card.")
@click.option("--seed", default=0, show_default=True)
@click.option("--backend", type=click.Choice(LABELS), default=XLA, show_default=True, help="Whose labels.")
@JSON
def fit(
    data: Path | None,
    out: Path | None,
    evaluation: str | None,
    seed: int,
    backend: str,
    as_json: bool,
) -> None:
    """Fit the model to all labels and write weights and card."""
    if backend == SCHEDULES:
        card = fit_schedules(data, out, evaluation, seed, _say)
    else:
        card = fit_weights(data, out, evaluation, seed, _say, backend)
    emit(card) if as_json else click.echo(f"{card['path']}: {card['fit']} in {card['fit_seconds']} s")


@train.command(name="eval")
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), help="The corpus; the shipped one by default.")
@click.option("--seeds", default=5, show_default=True, help="Fits per split.")
@click.option("--budget", default="2h", show_default=True, help="No further seed is begun that would end later.")
@click.option("--families", help="Hold out only these, separated by commas.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON object to a file.")
@click.option("--backend", type=click.Choice(LABELS), default=XLA, show_default=True, help="Whose labels.")
@click.option("--document", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Update its table.")
@click.option("--model", metavar="FILE.py:NAME", help="Judge NAME() instead: fit(train), seconds(test).")
@click.option("--unseen", is_flag=True, help="On each kind of processor, by models of the labels of all others.")
@JSON
def evaluate(
    data: Path | None,
    families: str | None,
    backend: str,
    model: str | None,
    out: Path | None,
    document: Path | None,
    as_json: bool,
    **effort: Any,
) -> None:
    """Accuracy on held-out programs and families beside the roofline fitted alike, and scoring speed."""
    seconds = parse_budget(effort["budget"]).seconds or math.inf
    chosen = None if families is None else families.split(",")
    if effort["unseen"]:
        result = evaluate_unseen(_say)
    elif model is not None:
        if backend == SCHEDULES:
            raise UsageError("schedules are for models of their own", hint=f"--backend {XLA} or {NATIVE}")
        hint = "NAME() gives an object with fit(train) and seconds(test)"
        result = evaluation(data, 1, chosen, seconds, _say, backend, lambda: called(model, hint))
    elif backend == SCHEDULES:
        result = schedules_evaluation(data, effort["seeds"], chosen, seconds, _say)
    else:
        result = evaluation(data, effort["seeds"], chosen, seconds, _say, backend)
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if document is not None:
        update_document(document, result["text"])
    emit(result) if as_json else click.echo(result["text"])


@train.command(name="export")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@JSON
def export_labels(folder: Path, as_json: bool) -> None:
    """Write the shipped labels, their splits, a card and a loader into FOLDER, for models of your own."""
    sets = {"kernels": read_corpus(None), "regions": read_corpus(None, NATIVE)}
    _print(export(folder, sets, _say), as_json)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(result)
    else:
        for name, value in result.items():
            click.echo(f"{name:22s} {value}")
