"""Calibration: time the micro-suite on this machine, fit the roofline to it, keep the coefficients.

    python -m superopt.lab.training.calibrate --budget 90s --out costmodel/weights/roofline.json

Kernels are timed in a worker process with all the cores that the caller may use, as programs will run.  Passes over
the suite repeat while the budget lasts, and each label is the minimum over passes: other load on the machine only
ever adds time.  The card records the machine, versions, date, the error of the fit, and its error on tasks that were
held out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from costmodel.labels.microsuite import MicroCase, shuffled, suite
from costmodel.model import analytical, weights_file
from costmodel.model.analytical import Coefficients
from costmodel.model.catalogue import tabulate
from superopt.lab.training.metrics import quality
from superopt.machine import facts as machine
from superopt.machine.budget import parse_budget
from superopt.measure import KernelTiming, time_kernels
from superopt.store import Store
from superopt.workshop.job import Failure
from superopt.workshop.process import ProcessLimits, Worker

FOLDS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """A fit, its card (plain data), and every time that it rests on: case name -> seconds, one per pass."""

    coefficients: Coefficients
    card: dict[str, Any]
    labels: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


def calibrate(
    budget_s: float = 90.0,
    *,
    cases: Sequence[MicroCase] | None = None,
    limits: ProcessLimits | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Time the micro-suite and fit the roofline to it.

    Raises:
        RuntimeError: fewer than half of the kernels could be timed.
    """
    cases = shuffled(list(cases) if cases is not None else suite())
    labels: dict[int, list[float]] = {}
    failures: dict[int, Failure] = {}
    start = time.monotonic()
    passes = 0
    with Worker(limits or ProcessLimits(silence_s=60.0), inline=True) as worker:
        while passes == 0 or time.monotonic() - start < 0.95 * budget_s:
            left_s = budget_s - (time.monotonic() - start)
            timings = time_kernels([c.graph for c in cases], budget_s=max(left_s, 1.0), worker=worker)
            for i, timing in enumerate(timings):
                if isinstance(timing, KernelTiming):
                    labels.setdefault(i, []).append(timing.seconds)
                elif timing.cause != "timeout":
                    failures[i] = timing
            passes += 1
            progress(f"pass {passes}: {len(labels)} of {len(cases)} kernels after {time.monotonic() - start:.0f} s")
    if len(labels) < len(cases) / 2:
        raise RuntimeError(f"only {len(labels)} of {len(cases)} kernels could be timed in {budget_s:g} s")
    timed = sorted(labels)
    measured_s = np.array([min(labels[i]) for i in timed])
    calibration = fit_cases([cases[i] for i in timed], measured_s)
    repeated = [abs(a[0] - a[1]) / min(a[:2]) for a in labels.values() if len(a) > 1]
    calibration.card.update(
        machine=machine.as_dict(), versions=machine.versions(), date=time.strftime("%Y-%m-%d"),
        budget_s=budget_s, passes=passes, failed={cases[i].name: f.cause for i, f in failures.items()},
        noise_floor=round(float(np.median(repeated)), 4) if repeated else None,
    )  # fmt: skip
    return replace(calibration, labels={cases[i].name: labels[i] for i in timed})


def fit_cases(cases: Sequence[MicroCase], measured_s: np.ndarray) -> Calibration:
    """Fit the roofline to timed cases; the card holds its quality, in the fit and on held-out tasks, by kind."""
    table = tabulate([c.graph for c in cases])
    weights = analytical.long_ones(measured_s)
    coefficients = analytical.fit(table, measured_s, weights)
    tasks = [c.task for c in cases]
    held_out = np.zeros(len(cases))
    fold_of = {task: i % FOLDS for i, task in enumerate(sorted(set(tasks), key=_scrambled))}
    folds = np.array([fold_of[task] for task in tasks])
    for fold in range(FOLDS):
        inside = np.flatnonzero(folds != fold)
        fitted = analytical.fit(analytical.take(table, inside), measured_s[inside], weights[inside], steps=1500)
        held_out[folds == fold] = analytical.seconds(table, fitted)[folds == fold]
    card: dict[str, Any] = {
        "kernels": len(cases),
        "fit": quality(analytical.seconds(table, coefficients), measured_s, tasks).as_dict(),
        "held_out": quality(held_out, measured_s, tasks).as_dict(),
        "held_out_by_kind": {},
    }
    for kind in sorted({c.kind for c in cases}):
        at = [i for i, c in enumerate(cases) if c.kind == kind]
        card["held_out_by_kind"][kind] = quality(held_out[at], measured_s[at], [tasks[i] for i in at]).as_dict()
    return Calibration(coefficients, card)


def keep(store: Store, calibration: Calibration) -> None:
    """Put a calibration of this machine into the store, where `costmodel.model.load` finds it."""
    store.put("calibration", machine.environment_key(), weights_file.encode(calibration.coefficients, calibration.card))


def _scrambled(task: str) -> str:
    return "".join(reversed(task))


@click.command()
@click.option("--budget", default="90s", help="Time for measuring, like 90s or 5min.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the coefficients to this file.")
@click.option("--labels", type=click.Path(path_type=Path), help="Write every measured time to this file.")
@click.option("--store/--no-store", "into_store", default=False, help="Keep them in the store for this machine.")
def main(budget: str, out: Path | None, labels: Path | None, into_store: bool) -> None:
    """Calibrate the cost model on this machine."""
    calibration = calibrate(parse_budget(budget).seconds or 90.0, progress=click.echo)
    for name in ("fit", "held_out"):
        click.echo(f"{name}: {calibration.card[name]}")
    for kind, figures in calibration.card["held_out_by_kind"].items():
        click.echo(f"  {kind:10s} {figures}")
    if out is not None:
        weights_file.write(out, calibration.coefficients, calibration.card)
    if labels is not None:
        labels.write_text(json.dumps(calibration.labels, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if into_store:
        with Store() as store:
            keep(store, calibration)


if __name__ == "__main__":
    main()
