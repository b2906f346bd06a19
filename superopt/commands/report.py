"""The command `superopt report`."""

from __future__ import annotations

from pathlib import Path

import click

from superopt.commands.console import EXISTING, JSON, OK, check_folder, emit, write
from superopt.files.reading import typed
from superopt.report import check_report_path, to_summary, to_text
from superopt.report.data import read_report
from superopt.returned.facts import read_report_data


@click.command()
@click.argument("file", type=EXISTING)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Write .html, .json or .txt; default: FILE.html beside it."
)
@click.option("-v", "--verbose", is_flag=True, help="Print all details of the report in place of its summary.")
@JSON
def report(file: str, out: str | None, verbose: bool, as_json: bool) -> int:
    """Make the report of a saved program again: the page beside FILE, and the summary."""
    path = str(check_report_path(Path(file).with_suffix(".html") if out is None else out))
    check_folder(path)
    with typed(f"the report in {file} cannot be read", "save the program again with this version"):
        read = read_report(read_report_data(file))
        text = to_text(read) if verbose else to_summary(read)
        write(path, read.save)
    if as_json:
        emit(read.to_json())
    else:
        click.echo(text)
        click.echo(f"  report  {path}")
    return OK
