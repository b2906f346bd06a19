"""Figures of the code, which may only go down, and the layers of its rooms: `python -m superopt.lab.house [--write]`.

A room is a folder of modules.  `LAYERS` states which rooms may import which: a room imports those below it.
`--write` writes them into `pyproject.toml`, where `lint-imports` reads them, and into `docs/architecture.md`, and draws
the picture of the architecture (`superopt.lab.picture`).

    loose            Modules directly under `superopt`.
    largest_room     Modules in the fullest folder.
    repeated         Names of classes and aliases, private ones too, that are defined in more than one module.
    late             Imports of our own modules inside functions.
    file_circles     Circles of modules that import each other when they are loaded.
    type_circles     The same with imports for types alone.
    room_circles     Circles of rooms, whatever the import.
    literal_dot      Modules that name "dot_general".
    op_lists         Modules that list 25 or more names of scalar functions.
    long_signatures  Functions of more than eight parameters.
    long_calls       Classes called with more than eight positional arguments.
    constants        Tuned numbers of the rooms that decide (`TUNED`).
    unexplained      Those of them without a reason: a comment on their line, or a docstring behind it.
    unnamed          Functions with a local called `found`, which says nothing of what it holds.
    clocks           Reads of clocks outside of `superopt.machine`, `superopt.measure`, `superopt.workshop` and the lab.
    lines, core      Lines of all packages, and of those without `superopt.lab`: information, without a limit.
    below            Trusted lines of code below the schedule of a validated kernel (docs/trust.md 6c): those of
                     `verifier.kernels` without comments, docstrings and imports.

A limit is at most that of the last decision record that states it (`recorded`): who raises one writes down why.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

import networkx as nx

from superopt.ir.scalar import SCALARS
from superopt.lab.picture import svg
from superopt.machine.shared import paused_collector

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("superopt", "rewrites", "verifier", "costmodel")
LAYERS: tuple[tuple[str, ...], ...] = (
    ("superopt.lab",),
    ("superopt.commands",),
    ("superopt.pipeline",),
    ("superopt.make", "superopt.equivalence", "superopt.explain", "superopt.returned"),
    ("superopt.contest", "superopt.schedules"),
    ("superopt.explore", "superopt.report"),
    ("superopt.certify", "superopt.search"),
    ("superopt.backends",),
    ("superopt.native",),
    ("costmodel", "verifier"),
    ("superopt.measure",),
    ("superopt.candidates", "superopt.workshop"),
    ("rewrites", "superopt.frontends", "superopt.kernels", "superopt.store"),
    ("superopt.arrays", "superopt.foreign"),
    ("superopt.ir",),
    ("superopt.files",),
    ("superopt.machine",),
    ("superopt.errors",),
)
TUNED = (
    "superopt.pipeline",
    "superopt.contest",
    "superopt.make",
    "superopt.equivalence",
    "superopt.explore",
    "superopt.returned",
    "superopt.schedules",
    "superopt.certify",
    "superopt.search",
    "superopt.backends",
    "superopt.measure",
    "superopt.kernels.choose",
    "superopt.machine.budget",
    "superopt.machine.deadline",
    "costmodel",
)
"""Rooms whose numbers decide which programs are made, priced, timed, accepted and returned."""

TIMED = ("superopt.machine", "superopt.measure", "superopt.workshop", "superopt.lab")
"""Rooms that read clocks: all others ask a `Deadline` or a `Stopwatch` (`superopt.machine.deadline`)."""

UNTUNED = {
    "ORIGINAL": "the number of an entry",
    "LIMIT_FLOPS": "of the float64 yardstick, which decides nothing",
    "LIMIT_PREFIX_STEPS": "of the same",
    "LIMIT_LOOP_STEPS": "of the same",
    "_LONGEST": "characters of a message",
    "_DRAWS": "as many as kinds of special numbers",
    "LEAST_BYTES": "of weights in a file",
    "_SMALL_BYTES": "a page",
    "_MOST_LEFT": "entries of a table",
    "_MOST_TOLD": "types of arguments in a line",
    "SILENT_MS": "of a call, until a line is told",
    "SHORT_NODES": "says where the original is called, not what is returned",
    "SHORT_WORK": "the same",
    "LIMIT_WINDOW": "the same",
    "AFTER_S": "of a second after Ctrl-C",
    "_WAIT_S": "for a process, which goes on",
    "FORMAT": "version of a format",
    "OLDEST": "the same",
    "VERSION": "the same",
    "FEATURES_VERSION": "the same",
    "ENCODING_VERSION": "the same",
    "SEED": "of random numbers",
    "REFERENCE": "the number of a program",
    "AGAIN": "the same",
    "RULE": "a bit of an override",
    "FORCE": "the same",
    "FORBID": "the same",
    "_SEVERAL": "in place of a kernel's number",
    "_NOT_IN_USE": "the same",
    "_COMMON": "first column of a group of features",
    "_DOT": "the same",
    "_CONV": "the same",
    "_WINDOW": "the same",
    "_REDUCE": "the same",
    "_MOVE": "the same",
    "WIDTH": "columns of features",
    "_DESCRIPTORS": "open files of a process",
    "_TAIL_BYTES": "of a message",
}
"""Constants of these rooms that select neither programs nor times, with their meaning."""

LIMITS = {
    "loose": 3,
    "largest_room": 25,
    "repeated": 2,
    "late": 27,
    "file_circles": 0,
    "type_circles": 3,
    "room_circles": 0,
    "literal_dot": 3,
    "op_lists": 4,
    "long_signatures": 1,
    "long_calls": 0,
    "constants": 260,
    "unexplained": 0,
    "unnamed": 87,
    "clocks": 0,
    "below": 1_500,
}
"""Upper limits of the figures: lowered with every change that lowers them.  `INFORMATION` has no limits."""

_ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \|", re.MULTILINE)

INFORMATION = {"lines", "core"}

_CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}
_EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_BEGIN, _END = "layers: begin", "layers: end"


def modules(root: Path = ROOT) -> dict[str, Path]:
    """All modules of the packages by name."""
    files = (path for top in TOPS for path in sorted((root / top).rglob("*.py")))
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


def figures(root: Path = ROOT) -> dict[str, int]:
    """The figures of the code under a folder."""
    with paused_collector():  # it would look at the growing trees again and again
        return _figures(modules(root))


def _figures(files: Mapping[str, Path]) -> dict[str, int]:
    trees = {name: _tree(path) for name, path in files.items()}
    rooms = {name: name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in files.items()}
    loaded, typed, of_rooms = nx.DiGraph(), nx.DiGraph(), nx.DiGraph()
    late = 0
    for name, tree in trees.items():
        for other, is_late, is_type in _imports(tree, files):
            if other != name and not is_late:
                typed.add_edge(name, other)
            if is_type:
                continue
            late += is_late
            if other != name and not is_late:
                loaded.add_edge(name, other)
            one, two = rooms[name], rooms[other]
            if one != two and not one.startswith(f"{two}.") and not two.startswith(f"{one}."):
                of_rooms.add_edge(one, two)
    types = Counter(name for tree in trees.values() for name in _named_types(tree))
    nodes = {name: list(ast.walk(tree)) for name, tree in trees.items()}
    functions = {name: [x for x in some if isinstance(x, ast.FunctionDef)] for name, some in nodes.items()}
    unnamed = [name for name, some in nodes.items() if any(_is_target(x) and x.id == "found" for x in some)]
    words = {name: set(_strings(some)) for name, some in nodes.items()}
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in files.items()}
    return {
        "loose": sum(room == "superopt" for room in rooms.values()),
        "largest_room": max(Counter(rooms.values()).values()),
        "repeated": sum(count > 1 for count in types.values()),
        "late": late,
        "file_circles": _circles(loaded),
        "type_circles": _circles(typed),
        "room_circles": _circles(of_rooms),
        "literal_dot": sum("dot_general" in strings for name, strings in words.items() if name != "superopt.lab.house"),
        "op_lists": sum(len(strings & SCALARS.keys()) >= 25 for strings in words.values()),
        "long_signatures": sum(_parameters(f) > 8 for some in functions.values() for f in some),
        "long_calls": sum(len(call.args) > 8 for some in nodes.values() for call in _constructions(some)),
        "constants": sum(len(tuned(path)) for name, path in files.items() if name.startswith(TUNED)),
        "unexplained": sum(len(unexplained(path)) for name, path in files.items() if name.startswith(TUNED)),
        "unnamed": sum(_binds(f, "found") for name in unnamed for f in functions[name]),
        "clocks": sum(_clocks(some) for name, some in nodes.items() if not name.startswith(TIMED)),
        "lines": sum(lines.values()),
        "core": sum(count for name, count in lines.items() if not name.startswith("superopt.lab")),
        "below": sum(code_lines(path) for name, path in files.items() if name.startswith("verifier.kernels.")),
    }


def code_lines(path: Path) -> int:
    """Lines of a module that are neither comments, docstrings, imports nor empty."""
    text = path.read_text(encoding="utf-8")
    left: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr | ast.Import | ast.ImportFrom):
            continue
        if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
            left |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    held = [range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in _EMPTY and t.string]
    return len({n for lines in held for n in lines} - left)


def recorded(root: Path = ROOT) -> dict[str, int]:
    """The limit of each figure in the last decision record that states one."""
    records = sorted((root / "docs" / "decisions").glob("[0-9]*.md"))
    rows = (row for path in records for row in _ROW.findall(path.read_text(encoding="utf-8")))
    return {name: int(most.replace(",", "")) for name, most in rows}


def tuned(path: Path) -> list[str]:
    """The tuned numbers of a module: names in capitals bound to numbers, once for each number."""
    return [name for statement in _tree(path).body for name in _tuned(statement)]


def unexplained(path: Path) -> list[str]:
    """The tuned numbers of a module that have neither a comment on their line nor a docstring behind it."""
    lines = path.read_text(encoding="utf-8").split("\n")
    body = _tree(path).body
    return [
        name
        for statement, following in zip(body, [*body[1:], None], strict=True)
        if not any("#" in line for line in lines[statement.lineno - 1 : statement.end_lineno])
        and not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
        for name in _tuned(statement)
    ]


def contract() -> str:
    """The layers as `lint-imports` reads them."""
    return "\n".join(["layers = [", *(f'    "{" | ".join(layer)}",' for layer in LAYERS), "]"])


def page() -> str:
    """The layers with the content of each room, as its docstring states it."""
    rows = [f"| {'<br>'.join(f'`{r}`' for r in layer)} | {'<br>'.join(_idea(r) for r in layer)} |" for layer in LAYERS]
    return "\n".join(["| rooms | idea |", "| --- | --- |", *rows])


def written(root: Path = ROOT) -> dict[Path, str]:
    """The files that contain the layers or the picture, with their intended text."""
    parts = {root / "pyproject.toml": contract(), root / "docs" / "architecture.md": page()}
    layers = {path: _between(path.read_text(encoding="utf-8"), text) for path, text in parts.items()}
    return {**layers, root / "docs" / "architecture.svg": svg(_idea)}


def _between(text: str, part: str) -> str:
    lines = text.split("\n")
    begin, end = (next(i for i, line in enumerate(lines) if mark in line) for mark in (_BEGIN, _END))
    return "\n".join([*lines[: begin + 1], part, *lines[end:]])


def _idea(room: str) -> str:
    text = import_module(room).__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def _imports(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[tuple[str, bool, bool]]:
    """Our modules that one imports, whether inside a function, and whether for types alone."""

    def walk(node: ast.AST, late: bool, types: bool) -> Iterator[tuple[str, bool, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            inner = types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
            if isinstance(child, ast.Import):
                yield from ((name.name, late, types) for name in child.names if name.name in known)
            elif isinstance(child, ast.ImportFrom) and child.module:
                for name in child.names:
                    full = f"{child.module}.{name.name}"
                    imported = full if full in known else child.module
                    if imported in known:
                        yield imported, late, types
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, late or function, inner)

    yield from walk(tree, False, False)


def _circles(graph: nx.DiGraph) -> int:
    return sum(len(part) > 1 for part in nx.strongly_connected_components(graph))


def _named_types(tree: ast.Module) -> set[str]:
    """Names of classes, and of values that are spelled like classes: aliases of types."""
    names = {x.name for x in tree.body if isinstance(x, ast.ClassDef)}
    aliases = {name for x in tree.body for name in _bound(x)}
    return names | {name for name in aliases if name.lstrip("_")[:1].isupper() and not name.isupper()}


def _bound(statement: ast.stmt) -> list[str]:
    """The names that an assignment binds."""
    return [] if _value(statement) is None else [x.id for x in ast.walk(statement) if _is_target(x)]


def _value(statement: ast.stmt) -> ast.expr | None:
    return statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def _is_target(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a function has a local of this name, those of inner functions not counted."""
    inner = (x for x in ast.iter_child_nodes(node) if not isinstance(x, ast.FunctionDef | ast.AsyncFunctionDef))
    return any((_is_target(x) and x.id == name) or _binds(x, name) for x in inner)


def _parameters(function: ast.FunctionDef) -> int:
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)


def _constructions(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Calls of names that are spelled like classes."""
    calls = (x for x in nodes if isinstance(x, ast.Call))
    return (x for x in calls if isinstance(x.func, ast.Name) and x.func.id.lstrip("_")[:1].isupper())


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _tuned(statement: ast.stmt) -> list[str]:
    """The names in capitals that a statement binds to numbers, once for each number."""
    value = _value(statement)
    parts = [] if value is None else list(ast.walk(value))
    numbers = [x for x in parts if isinstance(x, ast.Constant)]
    if not numbers or any(type(x.value) not in (int, float) for x in numbers):
        return []  # made of words, or of nothing
    if any(isinstance(x, ast.Name | ast.Call) for x in parts):
        return []  # made of other names
    return [name for name in _bound(statement) if name.isupper() and name not in UNTUNED]


def _clocks(nodes: Sequence[ast.AST]) -> int:
    """Number of reads of clocks; a date is none."""
    attributes = (x for x in nodes if isinstance(x, ast.Attribute))
    names = [x.attr for x in attributes if isinstance(x.value, ast.Name) and x.value.id == "time"]
    names += [a.name for x in nodes if isinstance(x, ast.ImportFrom) and x.module == "time" for a in x.names]
    return sum(name.removesuffix("_ns") in _CLOCKS for name in names)


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    return (x.value for x in nodes if isinstance(x, ast.Constant) and isinstance(x.value, str))


def main() -> int:
    """Print the figures; return 1 where one is above its limit, a limit above its record, or a file is stale."""
    stale = [path for path, text in written().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if "--write" in sys.argv:
        for path, text in written().items():
            path.write_text(text, encoding="utf-8")
        stale = []
    counted, allowed = figures(), recorded()
    over = {name: (counted[name], most) for name, most in LIMITS.items() if counted[name] > most}
    raised = {name: (most, allowed.get(name)) for name, most in LIMITS.items() if most > allowed.get(name, -1)}
    print(json.dumps({"house": counted, "over": over, "raised": raised, "stale": [str(path) for path in stale]}))
    return 1 if over or raised or stale else 0


if __name__ == "__main__":
    sys.exit(main())
