"""The command `superopt optimize`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from superopt.commands.console import (
    JSON,
    NOTHING_FOUND,
    OK,
    check_folder,
    command_text,
    emit,
    parse_dims,
    progress,
    write,
)
from superopt.errors import UsageError
from superopt.report import check_report_path, to_summary, to_text
from superopt.report.progress import watching

_APART = ("report_path", "out", "as_json", "verbose")  # options that say where the result goes


_SEARCHED = (
    click.option("--budget", default="60s", show_default=True, help="Time for the search: 30s, 2min, or 5000steps."),
    click.option("--dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dimension of an ONNX model."),
    click.option("--seed", default=0, show_default=True, help="Seed of the search and of random inputs."),
    click.option("--deterministic", is_flag=True, help="Let the performance model alone decide; measure nothing."),
    click.option(
        "--numerics",
        type=click.Choice(["exact", "real", "range"]),
        default="real",
        show_default=True,
        help="Rules that may be used: exact keeps every bit; range may overflow where the original does not.",
    ),
    click.option(
        "--kernels/--no-kernels", default=True, show_default=True, help="Try kernels of our own beside XLA's."
    ),
    click.option(
        "--search/--no-search", default=True, help="Without: every region a kernel of our own, checked, at once."
    ),
    click.option(
        "--data-root", type=click.Path(file_okay=False), help="Follow links to a model's data inside this folder."
    ),
    click.option(
        "--ray", "workers", metavar="ADDRESS", help="Ray cluster that makes and times programs: HOST:6379, auto."
    ),
    click.option(
        "--random-weights", is_flag=True, help="Replace the model's weights by random ones of the right scale."
    ),
    click.option("--no-store", is_flag=True, help="Neither read nor write the store of earlier results."),
)


def with_search(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a search to a command."""
    for option in reversed(_SEARCHED):
        command = option(command)
    return command


def searched(target: str, as_json: bool, dims: tuple[str, ...], no_store: bool, **options: Any) -> Any:
    """Return the optimised function of a target, under the options of `with_search`.

    Raises:
        UsageError: no target is named.
    """
    if not target:
        command = click.get_current_context().info_name
        raise UsageError("no program is named", hint=f"superopt {command} MODEL.onnx or FILE.py:NAME")
    from superopt.pipeline.target import optimize_target  # late: `superopt optimize --help` needs none of it

    with watching(progress(as_json), as_json) as say:
        return optimize_target(target, dims=parse_dims(dims), store=not no_store, progress=say, **options)


@click.command()
@click.argument("target")
@with_search
@click.option("--strict", is_flag=True, help="Exit 5 when nothing was measured to be faster, or an op was opaque.")
@click.option("--report", "report_path", type=click.Path(dir_okay=False), help="Write .html, .json or .txt.")
@click.option("--out", type=click.Path(dir_okay=False), help="Save the optimised program as a .superopt file.")
@click.option("-v", "--verbose", is_flag=True, help="Print all details of the report in place of its summary.")
@JSON
def optimize(
    target: str,
    strict: bool,
    verbose: bool,
    report_path: str | None,
    out: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Optimise TARGET: an ONNX file, or FILE.py:NAME where NAME() returns (function, example arguments)."""
    if report_path:
        check_report_path(report_path)
    check_folder(report_path)
    check_folder(out)
    result = searched(target, as_json, **options)
    report = result.report = replace(result.report, command=command_text(_APART))
    with ExitStack() as files:  # a file that cannot be written loses no other one
        for path, save in ((out, result.save), (report_path, report.save)):
            if path:
                files.callback(write, path, save)
    if as_json:
        emit(report.to_json())
    else:
        click.echo(to_text(report) if verbose else to_summary(report))
        if report_path:
            click.echo(f"  report  {report_path}")
    return NOTHING_FOUND if strict and (not report.speedup.is_gain or report.opaque_ops) else OK
