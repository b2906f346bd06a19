"""Whether tests notice a change of one operator: `python -m superopt.lab.mutants ROOM ... [--count N] [--guards]`.

A mutant is the product with one operator changed in one line of a room (`<` for `<=`, `not x` for `x`, `and` for
`or`), or with one guard that never holds.  The tests of the room run on a copy of the repository: those of its folder
of tests, and those that import the changed module.  A mutant that they do not notice survives: either the two programs
are equal, or a test is missing.

    --own       Run only tests of the room that import the module, which is faster.
    --guards    Change only guards: conditions behind which something is refused, returned or left out become False.
    --seed S    Select the lines, the same for the same source.
"""

from __future__ import annotations

import ast
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from superopt.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "superopt" / "lab"
INSTEAD = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in", "is": "is not",
    "is not": "is", "and": "or", "or": "and", "not": "", "+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "*",
    "True": "False", "False": "True",
}  # fmt: skip
"""Operator -> its replacement."""

NEVER = "(False)"
"""The condition that replaces a guard."""

TOO_LONG = "too long"
"""The result of tests that did not end."""

BROKEN = "the tests broke off"
"""The result of tests of which none failed: a signal ended the process, or an import failed before the first one."""


OF_SOURCES = (
    "tests/verifier/test_verifier_certificates.py::test_digests_that_ship_are_those_of_the_sources",
    "tests/verifier/test_verifier_certificates.py::test_proofs_of_the_library_ship_as_they_are_made",
)
"""Tests left out: they fail after any edit of the prover, even one that changes no proof, until proofs ship again."""


@dataclass(frozen=True, slots=True)
class OperatorMutant:
    """One operator at a place of a file, replaced by another; or a whole condition, replaced by False.

    Attributes:
        path: path of the file, from the root of the repository.
        begin, end: lines and columns; lines count from 1.
        old, new: the text there, and its replacement.
    """

    path: str
    begin: tuple[int, int]
    end: tuple[int, int]
    old: str
    new: str

    @property
    def is_guard(self) -> bool:
        """Whether it takes a guard away."""
        return self.new == NEVER

    def text(self, source: str) -> str:
        """The source with the replacement in its place."""
        lines = source.splitlines(keepends=True)
        (line, column), (last, end) = self.begin, self.end
        return "".join([*lines[: line - 1], lines[line - 1][:column], self.new, lines[last - 1][end:], *lines[last:]])

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.begin[0]}:{self.begin[1] + 1}: {' '.join(self.old.split())} -> {self.new or 'nothing'}"
        )


@dataclass(frozen=True, slots=True)
class Fate:
    """Result for a mutant: the test that noticed it, or that none did; `seconds` of the tests."""

    mutant: OperatorMutant
    noticed: str
    seconds: float


def mutants_of(path: str, source: str) -> list[OperatorMutant]:
    """All mutants of a file: of operators in statements, not in annotations, assertions or messages; and of guards.

    `strict=True` is an assertion, too: operands of equal lengths are what the caller promises.
    """
    tree = ast.parse(source)
    spans = [_span(node) for node in _left_out(tree)]
    binary = {_after(node.left) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}

    def inside(place: tuple[int, int], some: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
        return any(begin <= place < end for begin, end in some)

    mutants = [
        OperatorMutant(path, *_span(node), ast.get_source_segment(source, node) or "", NEVER) for node in _guards(tree)
    ]
    tokens = [
        t
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    ]
    compared = _compared(tree)
    for i, token in enumerate(tokens):
        word, (line, column), (_, end) = token.string, token.start, token.end
        following = tokens[i + 1] if i + 1 < len(tokens) else token
        before = tokens[i - 1] if i else token
        if (word, following.string) in (("not", "in"), ("is", "not")) and following.start[0] == line:
            word, end = f"{word} {following.string}", following.end[1]
        elif (before.string, word) in (("not", "in"), ("is", "not")):
            continue
        if word not in INSTEAD or token.type not in (tokenize.OP, tokenize.NAME) or inside((line, column), spans):
            continue
        if word in ("in", "not in") and not inside((line, column), compared):
            continue  # of a loop
        if word in ("+", "-", "*", "/", "//", "%") and not _is_binary(before, binary):
            continue
        mutants.append(OperatorMutant(path, (line, column), (line, end), word, INSTEAD[word]))
    return mutants


def _span(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _after(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _is_binary(before: tokenize.TokenInfo, binary: set[tuple[int, int]]) -> bool:
    """Whether the token before an operator ends an operand, perhaps in parentheses."""
    return before.end in binary or before.string in (")", "]")


def _compared(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Source ranges between the operands of comparisons."""
    ranges: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            left = node.left
            for right in node.comparators:
                ranges.append((_after(left), (right.lineno, right.col_offset)))
                left = right
    return ranges


def _left_out(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes in which an operator is no decision: annotations, assertions, messages, names that a module exports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            yield node
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        elif isinstance(node, ast.AnnAssign | ast.arg):
            yield from () if node.annotation is None else (node.annotation,)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.returns is not None:
                yield node.returns
            yield from (default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None)
            yield from node.decorator_list
        elif isinstance(node, ast.ClassDef):
            yield from node.decorator_list


def _guards(tree: ast.AST) -> Iterator[ast.expr]:
    """Conditions behind which something is refused, returned or left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break):
            yield node.test


def drawn(rooms: Sequence[str], count: int, seed: int, *, guards: bool = False) -> list[OperatorMutant]:
    """A random sample of `count` mutants of each room, of operators or of guards; the lab is left out unless named."""
    mutants: list[OperatorMutant] = []
    for room in rooms:
        files = sorted((ROOT / room).rglob("*.py")) if (ROOT / room).is_dir() else [ROOT / room]
        every = [
            mutant
            for path in files
            if LAB not in path.parents or LAB in (ROOT / room, *(ROOT / room).parents)
            for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
            if mutant.is_guard == guards
        ]
        mutants += random.Random(f"{seed} {room}").sample(every, min(count, len(every)))
    return mutants


def suite_of(path: str, *, own: bool = False) -> list[str]:
    """Files of tests of a module's room, those that import it first; then others that import it.

    Args:
        own: only those of the room that import it, where there are any.
    """
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    package, _, name = module.rpartition(".")

    def imports(file: Path) -> bool:
        text = file.read_text(encoding="utf-8")
        return module in text or f"from {package} import {name}" in text

    parts = [part for part in Path(path).parent.parts if part != "superopt"]
    folder = ROOT / "tests" / (parts[0] if parts else "project")
    room = sorted((file for file in every if folder in file.parents), key=lambda file: not imports(file))
    others = [file for file in every if file not in room and imports(file)]
    near = [file for file in room if imports(file)] or room or others
    return [str(file.relative_to(ROOT)) for file in (near if own else [*room, *others])]


def tried(
    mutants: Sequence[OperatorMutant], most_s: float = 600.0, say: Callable[[str], None] = print, *, own: bool = False
) -> list[Fate]:
    """Run the tests on each mutant, in a copy of the repository.

    Tests that last too long or break off notice it, too.
    """
    fates: list[Fate] = []
    with tempfile.TemporaryDirectory(prefix="superopt-mutants-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT, copy, ignore=_not_copied, dirs_exist_ok=True)  # with what is compiled
        for mutant in mutants:
            file = copy / mutant.path
            source = file.read_text(encoding="utf-8")
            file.write_text(mutant.text(source), encoding="utf-8")
            begin_s, suite = time.monotonic(), suite_of(mutant.path, own=own)
            try:
                noticed = _noticed(copy, suite, most_s)
            finally:
                file.write_text(source, encoding="utf-8")
            if noticed and noticed != TOO_LONG and _noticed(copy, suite if noticed == BROKEN else [noticed], most_s):
                raise UsageError(f"tests fail without any mutant, too: {noticed}", hint="mend it first")
            fates.append(Fate(mutant, noticed, time.monotonic() - begin_s))
            say(f"{noticed.rpartition('::')[2] or 'SURVIVED':40s} {mutant} ({fates[-1].seconds:.0f} s)")
    return fates


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """Names in a folder that are not copied: environment, history and what is built; tests read all of the rest."""
    return {name for name in names if name.startswith(".") or (name == "build" and Path(folder) == ROOT)}


def _noticed(copy: Path, tests: Sequence[str], most_s: float) -> str:
    """The first test that fails on the copy, `TOO_LONG` or `BROKEN`; empty where all tests pass."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--no-header",
        *[f"--deselect={test}" for test in OF_SOURCES],
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=most_s, check=False
        )
    except subprocess.TimeoutExpired:
        return TOO_LONG
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else BROKEN


@click.command()
@click.argument("rooms", nargs=-1, required=True)
@click.option("--count", default=5, show_default=True, type=click.IntRange(1), help="Mutants of each room.")
@click.option("--seed", default=0, show_default=True)
@click.option("--guards", is_flag=True, help="Guards that never hold, in place of operators.")
@click.option("--most", default=600.0, show_default=True, help="Seconds of the tests on one mutant.")
@click.option("--own", is_flag=True, help="Only tests of the room that import the module.")
def main(rooms: tuple[str, ...], count: int, seed: int, guards: bool, most: float, own: bool) -> None:
    """Change one operator at a time in ROOMS, run their tests, and print what survives."""
    fates = tried(drawn(rooms, count, seed, guards=guards), most, click.echo, own=own)
    survived = [fate for fate in fates if not fate.noticed]
    click.echo(f"{len(fates) - len(survived)} of {len(fates)} noticed")
    for fate in survived:
        click.echo(f"  survived: {fate.mutant}")


if __name__ == "__main__":
    main()
