"""Measure suites of benchmarks, each with its table and summary."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from superopt.commands.console import JSON, OK, check_folder, emit, progress, write_text
from superopt.lab.bench import SUITES, keeping, run_suite
from superopt.report import json_text


@click.command()
@click.option(
    "--suite",
    default="core",
    show_default=True,
    help=f"{', '.join(sorted(SUITES))}.",
)
@click.option("--verifier", "suite", flag_value="verifier", help="The same as --suite verifier.")
@click.option("--kernels", "suite", flag_value="kernels", help="The same as --suite kernels.")
@click.option("--faults", "suite", flag_value="faults", help="The same as --suite faults.")
@click.option("--count", type=click.IntRange(1), help="Files of each kind that --faults reads.  [default: 200]")
@click.option("--budget", help="Search time for each case.  [default: that of the suite; core: 60s]")
@click.option("--case", "cases", multiple=True, help="Only cases whose name contains this text.")
@click.option("--no-watch", is_flag=True, help="verifier: the prover alone; nothing is evaluated beside its proofs.")
@click.option(
    "--no-search",
    is_flag=True,
    help="core, exports, loops, native, native-program, peers, rewrites: programs as they are built at once.",
)
@click.option(
    "--models",
    type=click.Path(file_okay=False),
    help="exports, native-program, peers: a folder that tests/upstream/exports.py filled.",
)
@click.option(
    "--peer-python", type=click.Path(dir_okay=False), help="exports, peers: the Python that has the other frameworks."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the JSON object to a file.")
@click.option(
    "--keep",
    type=click.Path(dir_okay=False),
    help="Rows that take long (core, joint, native, pairs of the verifier, ...) go into this file as they come; those "
    "that it has are not measured again.",
)
@JSON
def bench(
    suite: str, out: str | None, keep: str | None, as_json: bool, no_search: bool, no_watch: bool, **options: Any
) -> int:
    """Run a benchmark suite and print its table."""
    check_folder(out)
    check_folder(keep)
    with keeping(keep) if keep else nullcontext():
        result = run_suite(suite, say=progress(as_json), search=not no_search, watch=not no_watch, **options)
    if out:
        write_text(out, json_text(result, indent=1) + "\n")
    emit(result) if as_json else click.echo(result["text"])
    return OK
