"""Digests of the source text on which a proof depends: one per op for denotations, one for the prover.

The denotation of a rule op is the case of `rewrites/language/entries.py` that names its entry of the op table, with
that entry and those from which it is built.  For an op without an entry it is the cases of `sem.py` and
`rewrites/language/shapes.py` that define it.  All definitions that these use are included, from the same modules,
`named.py` and `superopt/ir/ops/record.py`.  Sources are cut along top-level definitions, and functions that branch on
the op (`op == "pad"`) along their branches.  Comments, docstrings and layout do not count there.  The prover is
`prove.py`, `check.py` and every module of this package that they import, except `sem.py`, and the rows of the op table
for scalar functions.  An edit therefore changes the digests of exactly the rules that use the edited code.

Cutting the sources takes 0.4 s.  `digests.json` has the digests of the sources that ship, under their `state`; once a
source is edited, digests are made anew (`python -m verifier.record.shipped` writes the file).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewrites.language import entries, named, shapes
from rewrites.language.term import PHYSICAL, REDUCERS, Rule, subterms
from superopt.ir import scalar
from superopt.ir.ops import record, table
from superopt.ir.ops.reduction import CUMULATIVE, WINDOW
from superopt.machine.shared import parse_module
from verifier.equal import sem

SHIPPED = Path(__file__).with_name("digests.json")
_PROVER = "the prover"  # among names of ops
_PACKAGE = Path(__file__).parents[1]
_LANGUAGE = ("term", "names", "kinds", "parse", "parse_terms", "direction")
_TABLES = frozenset(
    {"_MEANING", "ENTRIES", "_BY_OP", "TABLE", "SCALARS", "_ARITHMETIC", "_TRANSCENDENTAL", "_PREDICATES"}
)
"""Tables over all ops, which are not followed: else every op would depend on every other."""

_IR: dict[str, tuple[str, ...]] = {
    **{op: (name,) for op, name in PHYSICAL.items()},
    "conv": (PHYSICAL["conv"], PHYSICAL["dot"]),
    "red": tuple(f"reduce_{kind}" for kind in REDUCERS),
    "win": tuple(WINDOW),
    "cum": tuple(CUMULATIVE),
    "at": ("slice", "reshape"),
    "split": ("regroup", "reshape"),
    "merge": ("regroup", "reshape"),
    "view": ("reshape", "transpose"),
    "lay": ("transpose",),
    "fold": ("add", "max"),
    "stack": ("concatenate",),
    "diag": ("iota", "eq", "select_n"),
    "iota": ("iota",),
    "dynslice": ("dynamic_slice",),
    "dynupdate": ("dynamic_update_slice",),
    "expand": ("broadcast_in_dim",),
    "unit": ("reshape",),
}
"""Rule op -> the entries of the op table for which it stands (elementwise ops name theirs)."""
_WORD = re.compile(r"\w+")


def denotations(rule: Rule) -> dict[str, str]:
    """Op of a rule -> digest of its denotation; elementwise functions count one by one."""
    return {name: denotation(name) for name in rule.fact(_names)}


def _names(rule: Rule) -> tuple[str, ...]:
    terms = subterms((*rule.lhs, *rule.rhs, *rule.given))
    functions = {f"ew {t['f']}" for t in terms if t.op == "ew" and t["f"] not in rule.metas}
    return tuple(sorted({t.op for t in terms} | functions))


@functools.cache
def denotation(name: str) -> str:
    """Digest of the denotation of one op, `ew exp` for an elementwise function."""
    return _shipped().get(name) or _denotation(name)


def _denotation(name: str) -> str:
    op, _, function = name.partition(" ")
    texts: list[str] = []
    if function:
        texts += _entry(function)
        if function in scalar.SCALARS:
            texts += _closure(Path(scalar.__file__), _scalar_roots(function), "")
            texts.append(_scalar_row(function))
    else:
        name_of = sem._MEANING.get(op, sem._entry)  # pyright: ignore[reportPrivateUsage]
        texts += _closure(Path(sem.__file__), ["Meaning", name_of.__name__], op)
        texts += _closure(Path(shapes.__file__), ["shape"], op)
        if op in entries.ENTRIES:
            texts += _closure(Path(entries.__file__), ["entry_of", entries.ENTRIES[op].__name__], op)
        texts += _closure(Path(named.__file__), ["Env", "INTEGERS", "labels_of", "per_axis"], op)
        texts += _closure(Path(record.__file__), ["collecting"], op)
        for entry in _IR.get(op, ()):
            texts += _entry(entry)
    return _digest(texts)


@functools.cache
def prover() -> str:
    """Digest of the prover and of the reader of rule texts."""
    return _shipped().get(_PROVER) or _prover()


@functools.cache
def _shipped() -> Mapping[str, str]:
    """The digests that ship, by op; none where they are of other sources or the file is damaged."""
    try:
        known: Any = json.loads(SHIPPED.read_text(encoding="utf-8"))
        return known["digests"] if known["state"] == state() else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def write(rules: Iterable[Rule], path: Path | None = None) -> None:
    """Make the digests for these rules from the sources, and write them."""
    names = sorted({name for rule in rules for name in _names(rule)})
    made = {_PROVER: _prover(), **{name: _denotation(name) for name in names}}
    text = json.dumps({"state": state(), "digests": made}, indent=0, sort_keys=True)
    (path or SHIPPED).write_text(f"{text}\n", encoding="utf-8")


def _prover() -> str:
    paths = set[Path]()
    todo = ["verifier.rules.prove", "verifier.rules.check"]
    while todo:
        path = _PACKAGE.parent.joinpath(*todo.pop().split(".")).with_suffix(".py")
        if path not in paths and path.is_file():
            paths.add(path)
            todo += _imported(path)
    shown = {_PACKAGE / "rules" / f"{m}.py" for m in ("shrink", "snippet")}  # they only present counterexamples
    paths -= {Path(sem.__file__), *shown}
    language = Path(named.__file__).parent
    files = [*sorted(paths), *(language / f"{m}.py" for m in _LANGUAGE)]
    labels = _closure(Path(named.__file__), ["derived_labels"], "")  # no op's shape uses it
    facts = sorted((f.name, f.arity, f.predicate, f.commutative, f.partial, f.parity) for f in scalar.SCALARS.values())
    return _digest([repr(facts), *labels, *(text for x in files for text in (x.name, x.read_text(encoding="utf-8")))])


def _imported(path: Path) -> Iterator[str]:
    """Yield names that a module imports from this package: modules, and names in them that may be modules."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == _PACKAGE.name:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@functools.cache
def sources() -> tuple[Path, ...]:
    """All files from which digests are made: those of the verifier, of `rewrites` and of `superopt.ir`."""
    folders = (_PACKAGE, Path(named.__file__).parents[1], Path(table.__file__).parents[1])
    return tuple(sorted(path for folder in folders for path in folder.rglob("*.py")))


@functools.cache
def state() -> str:
    """Digest of the files on which proofs depend, byte by byte: cheap, and changed by any edit."""
    hasher = hashlib.sha256()
    for path in sources():
        hasher.update(f"{path.name} {path.stat().st_size} ".encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()[:16]


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


# ---- entries of the op table


def _entry(op: str) -> list[str]:
    entry = table.TABLE.get(op)
    if entry is None:
        return []
    out = [op, ",".join(a.name for a in entry.attrs)]
    for function in (entry.type, entry.at):
        if function is not None:
            out += _closure(Path(function.__code__.co_filename), [function.__qualname__.partition(".")[0]], op)
    shared = Path(record.__file__)
    words = set(_WORD.findall("\n".join(out)))
    return out + _closure(shared, [name for name in _definitions(shared) if name in words], op)


def _scalar_roots(function: str) -> list[str]:
    made = scalar.SCALARS[function].numpy
    name = getattr(made, "__qualname__", "").partition(".")[0]
    return ["apply", *([name] if getattr(made, "__module__", "") == scalar.__name__ else [])]


def _scalar_row(function: str) -> str:
    """The row of one function in the table of scalar functions, as source text."""
    for node in ast.walk(_parsed(Path(scalar.__file__))):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == function:
                    return ast.unparse(value)
    return ""


# ---- slices of modules


@functools.cache
def _parsed(file: Path) -> ast.Module:
    """The syntax tree of a module without docstrings; it has no comments."""
    tree = parse_module(file.read_text(encoding="utf-8"))
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.FunctionDef | ast.ClassDef) and part.body:
            first = part.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                part.body = part.body[1:] or [ast.Pass()]
    return tree


@functools.cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Name -> the top-level statement that defines it (imports are outside of the module's own text)."""
    out: dict[str, ast.stmt] = {}
    for node in _parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    out[target.id] = node
    return out


def _closure(file: Path, roots: Sequence[str], op: str) -> list[str]:
    """Texts of some definitions of a module and of all definitions that they use there, cut to one op."""
    known = _definitions(file)
    todo, seen, out = list(roots), set[str](), list[str]()
    while todo:
        name = todo.pop(0)
        if name in seen or name in _TABLES or name not in known:
            continue
        seen.add(name)
        text, uses = _cut(file, name, op if _branches(file, name) else "")
        out.append(text)
        todo += uses
    return out


@functools.cache
def _branches(file: Path, name: str) -> bool:
    """Whether a definition branches on ops."""
    tests = [node.test for node in ast.walk(_definitions(file)[name]) if isinstance(node, ast.If)]
    return any(_compared(test) is not None for test in tests)


@functools.cache
def _cut(file: Path, name: str, op: str) -> tuple[str, tuple[str, ...]]:
    """The text of a definition, cut to one op if one is given, and the names that it uses."""
    node: ast.AST = _definitions(file)[name]
    if op:
        node = _Cut(op).visit(pickle.loads(pickle.dumps(node)))  # a copy, in a tenth of the time of deepcopy
    return ast.unparse(node), tuple(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


class _Cut(ast.NodeTransformer):
    """AST transformer that keeps the branches that one op takes, and drops statements after a return."""

    def __init__(self, op: str) -> None:
        self.op = op

    def visit_If(self, node: ast.If) -> Any:
        """Replace a branch on the op by the statements that the op executes."""
        self.generic_visit(node)
        compared = _compared(node.test)
        if compared is None:
            return node
        names, positive = compared
        return (node.body if (self.op in names) == positive else node.orelse) or ast.Pass()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Drop statements that can no longer be reached."""
        self.generic_visit(node)
        for i, statement in enumerate(node.body):
            if isinstance(statement, ast.Return | ast.Raise):
                del node.body[i + 1 :]
                break
        return node


def _compared(test: ast.expr) -> tuple[list[str], bool] | None:
    """Ops in a test such as `op == "x"` or `t.op in ("x", "y")`, and whether it is positive; None for other tests."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    left, right, how = test.left, test.comparators[0], test.ops[0]
    if not (
        (isinstance(left, ast.Name) and left.id == "op") or (isinstance(left, ast.Attribute) and left.attr == "op")
    ):
        return None
    values = right.elts if isinstance(right, ast.Tuple) else [right]
    names = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
    if (
        len(names) != len(values)
        or not set(names) & _OPS
        or not isinstance(how, ast.Eq | ast.In | ast.NotEq | ast.NotIn)
    ):
        return None
    return names, isinstance(how, ast.Eq | ast.In)


_OPS = frozenset(sem._MEANING) | frozenset(entries.ENTRIES)  # pyright: ignore[reportPrivateUsage]

__all__ = ["SHIPPED", "denotation", "denotations", "prover", "sources", "state", "write"]
