"""The command `superopt build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from superopt.commands.console import JSON, OK, check_folder, emit
from superopt.commands.optimize import searched, with_search
from superopt.native.package.link import compiler, library_name


@click.command()
@click.argument("target")
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False), help="Folder to write; made where there is none."
)
@click.option("--name", default="", help="Name of the library and of its functions; default: that of the folder.")
@with_search
@JSON
def build(target: str, out: str, name: str, as_json: bool, **options: Any) -> int:
    """Optimise TARGET, as `superopt optimize` does, and write it as a C library that needs neither Python nor XLA.

    OUT gets libNAME.so, its header, the weights, which processes share, a loader for NumPy, and a C program that
    calls it with a CMake file. All of the program must be kernels of our own: any op that is left to XLA is refused.
    Where XLA's program is the fastest, the program without a search is packaged in its place.
    """
    check_folder(out)
    name = library_name(name, Path(out))
    compiler()
    result = searched(target, as_json, **options)
    if result.report.original_returned and options["search"]:
        click.echo(
            "  XLA's program was not slower; a package holds kernels of our own, those without a search", err=True
        )
        result = searched(target, as_json, **{**options, "search": False})
    folder = result.build(out, name)
    sizes = {file: (folder / file).stat().st_size for file in (f"lib{name}.so", f"{name}.weights")}
    if as_json:
        emit({"folder": str(folder), "bytes": sizes, "report": result.report.to_json()})
    else:
        click.echo(f"{result.report.program}: {result.report.verdict}, {result.speedup} over {result.report.baseline}")
        click.echo(f"  package {folder}: {', '.join([f'{file} {size:,} bytes' for file, size in sizes.items()])}")
    return OK
