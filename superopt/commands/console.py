"""Helpers that all commands share: options, one-line errors and warnings, files to write, exit codes.

Exit codes: 0 ok, 1 usage, or a program that cannot be run as it is, 2 input rejected, 3 verification failed,
4 regression, 5 nothing found within the budget under `--strict`, 6 internal.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from superopt.errors import SuperoptError, UsageError
from superopt.machine.background import end_with
from superopt.machine.extras import CORE, EXTRA_OF, missing
from superopt.machine.interrupts import heard

OK, USAGE, REJECTED, UNVERIFIED, REGRESSION, NOTHING_FOUND, INTERNAL = range(7)

EXISTING = click.Path(exists=True, dir_okay=False)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
RAY = click.option("--ray", "address", metavar="ADDRESS", help="Ray cluster whose hosts do the jobs: HOST:6379, auto.")


def parse_dims(pairs: tuple[str, ...]) -> dict[str, int]:
    """`name=size` options as a mapping.

    Raises:
        UsageError: a pair has another form, or two are about one name.
    """
    dims: dict[str, int] = {}
    for pair in pairs:
        name, _, size = pair.partition("=")
        if not name or not re.fullmatch(r"[0-9]{1,18}", size) or int(size) < 1:
            raise UsageError(f"--dims {pair!r} is not name=size with a size from 1 on", hint="write --dims batch=8")
        if name in dims:
            raise UsageError(f"--dims gives {name} twice: {dims[name]} and {int(size)}", hint="give each name once")
        dims[name] = int(size)
    return dims


def command_text(without: Collection[str] = ()) -> str:
    """The command that is running as a user would write it, without these options."""
    context = click.get_current_context()
    words = ["superopt", context.info_name or ""]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in without or context.get_parameter_source(option.name or "") != ParameterSource.COMMANDLINE:
            continue
        if isinstance(option, click.Argument):
            words += [str(value)]
        elif isinstance(value, bool):
            words += [max(option.opts if value else option.secondary_opts or option.opts, key=len)]
        else:
            for one in value if isinstance(value, tuple) else (value,):
                words += [max(option.opts, key=len), str(one)]
    return shlex.join(words)


def emit(data: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    from superopt.report import json_text  # late: a message without data does not need it

    click.echo(json_text(data))


def check_folder(path: str | None) -> None:
    """Refuse a path that cannot be written to before the work that the file is about.

    Raises:
        UsageError: the folder does not exist, or is read-only.
    """
    if path is not None:
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"there is no folder {Path(path).parent}", hint="create it first")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"the folder {folder} cannot be written to", hint="give another one")


def write(path: str, save: Callable[[str], object]) -> None:
    """Write a file.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        save(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", hint="give another place") from error


def write_text(path: str, text: str) -> None:
    """Write a text; see `write`."""
    write(path, lambda path: Path(path).write_text(text, encoding="utf-8"))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line; the line of code that issued it is of no use here."""
    click.echo(f"superopt: warning: {message}", err=True)


def guarded(command: Callable[[], int | None], *, as_json: bool = False) -> NoReturn:
    """Run a command and end the process with its status; errors become one line and a hint on stderr.

    Args:
        command: the work; it returns an exit status, or None for success.
        as_json: whether an error is printed as a JSON object, too.
    """
    _heed_interruptions()
    try:
        with heard(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = _naming_extras(command)
    except (click.ClickException, click.exceptions.Exit, click.Abort):  # of the parser, which words them itself
        raise
    except SuperoptError as error:
        if as_json:
            emit({"error": {"code": error.code, "message": str(error.args[0]), "hint": error.hint}})
        click.echo(f"superopt: {error}", err=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        click.echo("superopt: interrupted", err=True)
        end_with(130)
    except Exception:  # a fault of ours: the traceback is what a report of it needs
        traceback.print_exc()
        click.echo("superopt: internal error, see above", err=True)
        sys.exit(INTERNAL)
    end_with(status or OK)


def _naming_extras(command: Callable[[], int | None]) -> int | None:
    """Run the command; a missing package becomes an error that names the extra to install."""
    try:
        return command()
    except ModuleNotFoundError as error:
        if error.name not in (*EXTRA_OF, *CORE):
            raise
        raise missing(error.name, "this command") from error


def _heed_interruptions() -> None:
    """Make Ctrl-C, or `kill -INT`, end the command also where its parent process ignores that signal.

    Shells start background commands of a script with the signal ignored, and children inherit that.  An interruption is
    the way to make a search return its best result so far.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def progress(quiet: bool) -> Callable[[str], None]:
    """A function that prints a line of progress, or nothing if `quiet`."""

    def say(line: str) -> None:
        if not quiet:
            click.echo(f"  {line}", err=True)

    return say
