"""A random sample of functions for a reading test: `python -m superopt.lab.reading [--count N] [--seed S] [--code]`.

A reader describes each function from its place, name, signature and docstring alone, then holds the description against
the code, which `--code` prints.  The protocol and results are in `docs/decisions/23-names-are-read.md`.
"""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import click

from superopt.lab.house import modules
from superopt.machine.shared import paused_collector


@dataclass(frozen=True, slots=True)
class ReadFunction:
    """A function of the product as a reader meets it.

    Attributes:
        place: its module and the names that lead to it.
        node: its definition.
        source: the text of the module.
    """

    place: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    source: str

    @property
    def head(self) -> str:
        """Its place, arguments and result."""
        returns = f" -> {ast.unparse(self.node.returns)}" if self.node.returns else ""
        return f"{self.place}({ast.unparse(self.node.args)}){returns}"

    @property
    def code(self) -> str:
        """Its source."""
        return ast.get_source_segment(self.source, self.node) or ""


def functions(module: str, source: str) -> Iterator[ReadFunction]:
    """Yield the functions of a module, inner ones and methods too, without those that Python names (`__len__`)."""

    def walk(node: ast.AST, place: str) -> Iterator[ReadFunction]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            here = f"{place}.{child.name}" if is_function or isinstance(child, ast.ClassDef) else place
            if is_function and not child.name.startswith("__"):
                yield ReadFunction(here, child, source)
            yield from walk(child, here)

    yield from walk(ast.parse(source), module)


def drawn(count: int, seed: int) -> list[ReadFunction]:
    """Return a sample of all functions, the same for the same sources."""
    with paused_collector():  # it would look at the growing trees again and again
        every = [f for name, path in modules().items() for f in functions(name, path.read_text(encoding="utf-8"))]
    return random.Random(str(seed)).sample(every, count)


@click.command()
@click.option("--count", default=30, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--code", is_flag=True, help="Print the code as well.")
def main(count: int, seed: int, code: bool) -> None:
    """Print a random sample of functions: place, signature and docstring."""
    for number, function in enumerate(drawn(count, seed), 1):
        text = function.code if code else ast.get_docstring(function.node) or "(no docstring)"
        click.echo(f"\n{number}. {function.head}\n{textwrap.indent(text, '    ')}")


if __name__ == "__main__":
    main()
