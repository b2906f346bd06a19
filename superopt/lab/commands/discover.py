"""Find rules by machine, and prove them."""

from __future__ import annotations

from typing import Any

import click

from superopt.commands.console import EXISTING, JSON, OK, RAY, check_folder, emit, progress, write_text
from superopt.lab.bench import price
from superopt.lab.discovery.command import run
from superopt.lab.discovery.from_pairs import run_pairs
from superopt.workshop.cluster import executor_at
from superopt.workshop.scheduler import Workers


@click.command()
@click.option("--ops", help="Ops to combine; `bilinear`: fewer products; `powers`: by roots.  [default: those of TASO]")
@click.option("--size", default=3, show_default=True, type=click.IntRange(1, 4), help="Most ops on a side.")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="Worker processes on each host.")
@click.option("--budget", default="600s", show_default=True, help="Time; a later run of the same goes on from there.")
@click.option("--bare", is_flag=True, help="Do not use the rule library: find everything again.")
@click.option("--coverage", is_flag=True, help="Also count the substitutions of TASO's generator that are implied.")
@click.option("--folder", type=click.Path(file_okay=False), help="Where runs are kept.  [default: the user's cache]")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the rules found to this file.")
@click.option("--from", "pairs", metavar="FILE.py:NAME", help="Rules from pairs: as written, and as wanted.")
@click.option("--price", "priced", multiple=True, type=EXISTING, help="Price the rules of a file on the suites.")
@click.option("--case", "cases", multiple=True, help="Only programs whose name contains this text.")
@click.option("--measure", is_flag=True, help="Also time what is priced as cheaper.")
@RAY
@JSON
def discover(
    jobs: int,
    address: str | None,
    bare: bool,
    out: str | None,
    pairs: str | None,
    priced: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Enumerate equal terms over some ops, prove them as rules, and print those that the library does not imply."""
    cases, measure = options.pop("cases"), options.pop("measure")
    check_folder(out)
    say = progress(as_json)
    with executor_at(address) as executor:
        workers = Workers(jobs, executor)
        if priced:
            rows, figures, text = price.run(priced, cases=cases, measure=measure, say=say, workers=workers)
            emit({"rows": rows, "summary": figures}) if as_json else click.echo(text)
            return OK
        if pairs is not None:
            summary, text = run_pairs(
                pairs, not bare, lambda program, rules: price.price(program, rules, price.STEPS, 0)[0], say
            )
        else:
            summary, text = run(workers=workers, library=not bare, say=say, **options)
    if out:
        write_text(out, "\n\n".join(summary["texts"]) + "\n")
    emit(summary) if as_json else click.echo(text)
    return OK
