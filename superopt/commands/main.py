"""The command line: `superopt NAME ...`, where each command is loaded when it is called.

The commands of the product stand in a table.  Installed packages add others by entry points of the group
`superopt.commands`: those of `superopt.lab` come in that way.  `superopt --help` names them and loads none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from superopt import __version__
from superopt.commands.console import OK, USAGE, guarded
from superopt.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "superopt.commands"
"""Group of entry points: command -> the `click` command that it names."""
PRODUCT = {
    "build": "Build a C library of an optimised model, without Python or XLA.",
    "doctor": "Check this installation, part by part.",
    "kernels": "Tune one operator as our own kernel, show its loops and schedule.",
    "optimize": "Optimise a JAX function or an ONNX model.",
    "report": "Make the report of a saved program again.",
    "store": "Move results of earlier runs between machines, and keep their file small.",
    "verify": "Prove or refute rules, statements, and that two programs are equal.",
}
"""Command of the product -> a line of help; `superopt.commands.NAME` defines it."""


class Commands(click.Group):
    """Commands by name, loaded when they are called: those of the product, then those of installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*PRODUCT, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None where there is none of this name.

        Raises:
            UsageError: the package of the command is not there.
        """
        if cmd_name in PRODUCT:
            return getattr(import_module(f"superopt.commands.{cmd_name}"), cmd_name)
        point = _added().get(cmd_name)
        if point is None:
            return None
        try:
            return point.load()
        except ModuleNotFoundError as error:
            if not point.module.startswith(error.name or " "):  # the package is there, and lacks another one
                raise
            raise UsageError(f"the command {cmd_name} is not installed: there is no {error.name}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with a line of help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(PRODUCT.items()))
        added = _added()
        if added:
            with formatter.section("Commands of installed packages"):
                formatter.write_dl([(name, _line_of(point)) for name, point in added.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Load and run the command that is named, under the rules of `guarded`."""
        guarded(lambda: super(Commands, self).invoke(ctx), as_json="--json" in ctx.args)


def _line_of(point: EntryPoint) -> str:
    """Return the first line of a command's module, which is not imported for it; the module's name if it has none."""
    import ast  # late: only for help
    from importlib.util import find_spec

    try:
        spec = find_spec(point.module)
        source = None if spec is None or spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source or "")) or ""
    except (ImportError, OSError, SyntaxError, ValueError):
        text = ""
    return text.partition("\n")[0] or point.module


def _added() -> dict[str, EntryPoint]:
    """Return the commands that installed packages add, by name."""
    from importlib.metadata import entry_points  # late: `superopt --version` and the product's commands need none

    return {point.name: point for point in sorted(entry_points(group=GROUP)) if point.name not in PRODUCT}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="superopt")
def cli() -> None:
    """Optimise JAX functions and ONNX models with proved rewrites; verify rules; report speed-ups."""


def main_with(arguments: Sequence[str] | None) -> None:
    """Run the command line on these arguments (None: those of the process)."""
    try:
        cli.main(None if arguments is None else list(arguments), prog_name="superopt", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except click.Abort:
        sys.exit(130)
    sys.exit(OK)


def main() -> None:
    """Entry point of the `superopt` command."""
    main_with(None)


if __name__ == "__main__":
    main()
