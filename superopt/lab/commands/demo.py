"""Optimise a few real networks and print the gains.

Two ONNX networks that ship with the onnx package (random weights of the right scale, since theirs are constants) and
two JAX programs.  Prints the summary of each report and writes a page for each; the program that gained most has the
plain name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from superopt.commands.console import JSON, OK, emit, progress
from superopt.lab.bench.programs.programs import build_case
from superopt.machine.extras import need
from superopt.pipeline.optimizer import optimize
from superopt.report import check_report_path, to_summary
from superopt.report.data import Report
from superopt.report.progress import watching

_LINES = 10  # of a summary: those of all programs fit on two screens of 24 lines
PROGRAMS = ("squeezenet", "resnet50", "transformer_block", "inverted_residual")


@click.command()
@click.option("--budget", default="30s", show_default=True, help="Search time for each program.")
@click.option("--report", "report_path", default="report.html", show_default=True, type=click.Path(dir_okay=False))
@JSON
def demo(budget: str, report_path: str, as_json: bool) -> int:
    """Optimise real networks that ship with the onnx package and two JAX programs; print what was gained."""
    summary = run_demo(budget=budget, report_path=report_path, quiet=as_json)
    if as_json:
        emit(summary)
    return OK


def run_demo(*, budget: str, report_path: str, quiet: bool) -> dict[str, Any]:
    """Optimise every program of the demo; return a summary with one row each.

    Raises:
        UsageError: no report can be written to that path.
        MissingExtraError: the onnx package is not installed.
    """
    path = check_report_path(report_path)
    need("onnx", "the demo")
    reports: dict[str, Report] = {}
    for name in PROGRAMS:
        case = build_case(name, seed=0)
        with watching(progress(quiet), quiet) as say:
            result = optimize(case.fn, case.params, *case.inputs, frozen=0, budget=budget, progress=say)
        reports[name] = replace(result.report, program=name)
        if not quiet:
            click.echo(to_summary(reports[name], _LINES))
    best = max(reports, key=lambda name: reports[name].speedup.ratio)
    for name, report in reports.items():
        report.save(str(path if name == best else path.with_name(f"{path.stem}-{name}{path.suffix}")))
    if not quiet:
        click.echo(f"\nreport of {best}: {path} (the others beside it)")
        click.echo("next: superopt optimize YOUR_MODEL.onnx --report report.html")
    return {
        "rows": [report.to_json() for report in reports.values()],
        "speedups": {name: report.speedup.ratio for name, report in reports.items()},
        "report": str(path),
    }
