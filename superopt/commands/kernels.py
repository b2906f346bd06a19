"""The commands `superopt kernels ...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from superopt.commands.console import JSON, RAY, emit, progress
from superopt.errors import UsageError
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.show import show as loops
from superopt.kernels.schedule.trace import apply
from superopt.machine.budget import parse_budget
from superopt.schedules.tune import STRATEGIES, ScheduleSearch
from superopt.workshop.cluster import executor_at


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kernels() -> None:
    """Our own kernels: tune one operator, show what it becomes."""


@kernels.command()
@click.argument("operator")
@click.option("--budget", default="20s", show_default=True, help="Wall time of the search: 20s, 2min.")
@click.option("--threads", default=1, show_default=True, help="Threads that run the kernel.")
@click.option("--strategy", type=click.Choice(STRATEGIES), default="model", show_default=True)
@click.option("--most", type=click.IntRange(min=1), default=1_000_000, help="Stop after so many timed candidates.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    help="Processes that build candidates; 0: as many as cores, at most 4.",
)
@RAY
@click.option("--seed", default=0, show_default=True)
@click.option("--no-store", is_flag=True, help="Neither learn from earlier searches nor keep this one's timings.")
@JSON
def tune(operator: str, budget: str, address: str | None, no_store: bool, as_json: bool, **options: Any) -> None:
    """Search the schedules of OPERATOR, such as 'dot f32 128x768x3072' or 'conv f32 56x56x64 3x3x64 stride 2'."""
    from superopt.schedules.report import tune_and_compare, tuning_text  # late: jax takes a second to load

    seconds = parse_budget(budget).seconds
    if seconds is None:
        raise UsageError(
            f"a search of schedules takes a time, not {budget!r}", hint="--budget 20s; --most N candidates"
        )
    how = ScheduleSearch(seconds, **options)
    with executor_at(address) as executor:
        result = tune_and_compare(operator, how, keep=not no_store, say=progress(False), executor=executor)
    emit(result) if as_json else click.echo(tuning_text(result))


@kernels.command()
@click.argument("operator")
@click.option("--threads", default=1, show_default=True, help="Threads that run the kernel.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON; else the default's.")
@click.option("--llvm", is_flag=True, help="Print the LLVM module too.")
def show(operator: str, threads: int, trace: Path | None, llvm: bool) -> None:
    """Print OPERATOR as loops, before and after its schedule, with the trace."""
    from superopt.schedules.workload import workload  # late: jax takes a second to load

    program = from_graph(workload(operator).outputs, name="kernel")
    steps = json.loads(trace.read_text()) if trace else [list(step) for step in default_trace(program, threads=threads)]
    scheduled = apply(program, steps)
    click.echo(f"{loops(program)}\n\ntrace\n{json.dumps(steps)}\n\n{loops(scheduled)}")
    if llvm:
        click.echo("\n" + generate(hoisted(scheduled)[1]).module.text())
