"""Run random programs and kernels against oracles."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from superopt.commands.console import INTERNAL, JSON, OK, RAY, emit, progress
from superopt.kernels.llvm import cpu
from superopt.lab.fuzz.corpus import corpus
from superopt.lab.fuzz.drive import Found
from superopt.lab.fuzz.drive import fuzz as fuzz_programs
from superopt.lab.fuzz.kernels import FuzzCounts
from superopt.lab.fuzz.kernels import run as run_kernels
from superopt.workshop.cluster import executor_at
from superopt.workshop.scheduler import ONE_WORKER, Workers

KERNELS_S = 0.25
"""Share of the time that random kernels get where their number is not given."""


@click.command()
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1), help="Time of the run.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Number of the first program.")
@click.option("--programs", type=click.IntRange(0), help="Whole programs at most.  [default: as many as fit]")
@click.option(
    "--kernels", type=click.IntRange(0), help="Random kernels at most; 0 for none.  [default: as many as fit]"
)
@click.option("--store", help="Keep proofs here between runs.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Worker processes on each host.")
@RAY
@JSON
def fuzz(
    seconds: float,
    seed: int,
    programs: int | None,
    kernels: int | None,
    store: str | None,
    jobs: int,
    address: str | None,
    as_json: bool,
) -> int:
    """Run random whole programs and kernels against oracles; reduce what fails to a few lines."""
    with executor_at(address) as executor:
        report = run(seconds, seed, programs, kernels, store, progress(as_json), Workers(jobs, executor))
    emit(report.summary()) if as_json else click.echo(str(report))
    return INTERNAL if report.failed else OK


def run(
    seconds: float,
    seed: int,
    programs: int | None,
    kernels: int | None,
    store: str | None,
    say: Callable[[str], None],
    workers: Workers = ONE_WORKER,
) -> Found:
    """Whole programs, then kernels.

    Args:
        seconds: time of both.
        seed: number of the first program and of the first kernel.
        programs: how many at most.
        kernels: how many at most; 0 for none.
        store: path at which proofs are kept between runs.
        say: called with a line per failure.
        workers: workers that judge both.
    """
    given = seconds if kernels == 0 else seconds * (1 - KERNELS_S)
    report = fuzz_programs(given, seed, programs, corpus=corpus(), store=store, say=say, workers=workers)
    if kernels != 0 and cpu.supported():
        begin = time.monotonic()
        _count(report, run_kernels(seconds - report.seconds, seed, kernels, workers), say)
        report.seconds += time.monotonic() - begin
    return report


def _count(found: Found, counts: FuzzCounts, say: Callable[[str], None]) -> None:
    found.kernels = {"wrong": counts.wrong, "crash": counts.crashes, "hang": counts.hangs}
    found.kernels["ok"] = counts.kernels - sum(found.kernels.values())
    for failure in counts.failures:
        status, _, cause = failure.result.partition(": ")
        found.of_kernels.append((status, cause, failure.reproducer))
        say(f"kernel {failure.seed}: {failure.result}\n    {failure.reproducer}")
