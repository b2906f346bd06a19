"""The commands `superopt store ...`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from superopt.commands.console import JSON, check_folder, emit
from superopt.errors import InputError, UsageError
from superopt.store import Store, default_path

_DAY_S = 86_400.0
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW = click.Path(dir_okay=False, path_type=Path)
STORE = click.option("--store", "place", type=NEW, help="The store, if not the one of this user.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Results of earlier runs: one file, whose rows name processor and versions in their keys.

    A file from elsewhere is believed as the store of this user is: take those of your own machines.
    """


@store.command()
@STORE
@JSON
def status(place: Path | None, as_json: bool) -> None:
    """Print path, size and rows of the store."""
    path = place or default_path()
    if not path.exists():
        raise UsageError(f"there is no store at {path}", hint="an optimisation makes one")
    with _opened(path) as opened:
        summary = opened.summary()
    summary["bytes"] = path.stat().st_size
    rows = ", ".join(f"{table} {count}" for table, count in summary["rows"].items())
    emit(summary) if as_json else click.echo(f"{path}: {summary['bytes'] / 1e6:.1f} MB\n{rows}")


@store.command()
@click.argument("out", type=NEW)
@STORE
@JSON
def export(out: Path, place: Path | None, as_json: bool) -> None:
    """Write the rows of the store to OUT, a new file."""
    _told(_merged(out, [place or default_path()]), as_json)


@store.command(name="import")
@click.argument("files", type=FILE, nargs=-1, required=True)
@STORE
@JSON
def import_(files: tuple[Path, ...], place: Path | None, as_json: bool) -> None:
    """Take the rows of FILES that the store lacks or has from earlier."""
    with _opened(place or default_path()) as target:
        _told(_taken(target, files), as_json)


@store.command()
@click.argument("out", type=NEW)
@click.argument("files", type=FILE, nargs=-1, required=True)
@JSON
def merge(out: Path, files: tuple[Path, ...], as_json: bool) -> None:
    """Write the rows of FILES to OUT, a new file; of rows with one key the latest."""
    _told(_merged(out, files), as_json)


@store.command()
@click.option("--days", default=180.0, show_default=True, type=click.FloatRange(min=0), help="Age of rows that stay.")
@STORE
@JSON
def gc(days: float, place: Path | None, as_json: bool) -> None:
    """Delete damaged rows and old ones, and give back their space."""
    with _opened(place or default_path()) as target:
        _told(target.collect(time.time() - days * _DAY_S), as_json)


def _merged(out: Path, files: tuple[Path, ...] | list[Path]) -> dict[str, int]:
    """Write the rows of files to a new one; return their number per table.

    Raises:
        UsageError: the new file exists.
    """
    check_folder(str(out))
    if out.exists():
        raise UsageError(f"{out} exists", hint="name a new file, or `superopt store import --store` into this one")
    with Store(out) as target:
        return _taken(target, files)


def _taken(target: Store, files: tuple[Path, ...] | list[Path]) -> dict[str, int]:
    total: dict[str, int] = {}
    for path in files:
        with _opened(path) as source:
            for table, count in target.take(source).items():
                total[table] = total.get(table, 0) + count
    return total


def _opened(path: Path) -> Store:
    """The store at a path.

    Raises:
        InputError: it cannot be used.
    """
    held = Store(path)
    if held.path is None:
        raise InputError(f"{path} cannot be used as a store: {'; '.join(held.notices)}")
    return held


def _told(rows: dict[str, Any], as_json: bool) -> None:
    emit({"rows": rows}) if as_json else click.echo(", ".join(f"{table} {count}" for table, count in rows.items()))
