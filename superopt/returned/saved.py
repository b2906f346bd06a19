"""The file of a saved program: `Optimized.save` writes it, `load` and validation read it.

A `.superopt` file is a zip archive of these members, with a digest of each bound to its name
(`superopt.files.reading`):

    meta.json            Format, names, frozen arguments, digests of constants, report.
    trees.json           Structures of arguments and results.
    hot.txt              The returned program; its inputs are the live arguments, then the prepared tensors.
    prepared/0 ...       The bytes of these tensors, not packed.
    constants/0 ...      Constants of the original that are no prepared tensors, where there are frozen arguments.
    modules.json         The modules of opaque operations of these programs (`superopt.foreign.modules`).
    kernels.json         The regions that are our kernels, with their schedules.
    original.txt         The original program; with prepare.txt and plan.json the input of validation.
    native/ ...          The native program, where this store made and validated one (`superopt.backends.stored`).

The file may come from anyone.  It is read within limits, every part is checked against the others, and no operation of
it acts outside of its operands.  Compiler options that are not on this project's own list are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from superopt.arrays.bundles import dtype
from superopt.arrays.placing import Later, aligned, bytes_view, release
from superopt.backends import stored
from superopt.certify.plan import Plan, read_plan
from superopt.errors import InputError
from superopt.files.reading import LIMITS, Allowance, Archive, ArchiveWriter, shown, typed
from superopt.foreign.modules import carried, require_modules, restore
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program, type_bytes
from superopt.ir.text import FEW, parse_graph, print_graph
from superopt.ir.types import STORED_BYTES
from superopt.kernels.choose.specs import KernelSpec, read_spec, regions_of
from superopt.native.running import NativeProgram
from superopt.returned.facts import FORMAT, HINT, FileFacts, opened

_APART = "constants/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(FileFacts):
    """The contents of a file that calls need.

    Attributes:
        hot: the returned program over the live arguments and the prepared tensors.
        prepared: these tensors; where a file is read for calls, each may be one that is read `Later`.
        kernels: regions that are our kernels.
        original: reads the original program, with its constants; for calls with traced frozen arguments.
    """

    hot: Graph
    prepared: tuple[Any, ...]
    kernels: tuple[KernelSpec, ...]
    original: Callable[[], Graph] | None = None


@dataclass(frozen=True, slots=True)
class ValidationSource:
    """The contents of a file for validation alone: original, returned program with prepare part, plan."""

    original: Graph
    program: Program
    plan: Plan


def write(
    path: str | Path,
    saved: Saved,
    source: ValidationSource | None,
    original: Graph,
    native: tuple[NativeProgram, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a file, which appears under its name once it is complete.

    Args:
        path: the file.
        saved: the contents that calls need.
        source: the contents that validation needs; None where there is no plan.
        original: the original program.
        native: the validated native program with the verdicts on its code, where there is one.

    Raises:
        InputError: a structure of arguments or results has no plain form, or an operation no module.
    """
    graphs = (original, *((saved.hot,) if source is None else source.program.graphs))
    modules = carried(graphs)
    if modules is None:
        raise InputError("the program holds operations that exist only in this process")
    trees = {"arguments": saved.in_tree.data, "results": saved.out_tree.data}
    places = _places(saved, source, original)
    meta = {
        "format": FORMAT,
        "names": list(saved.names),
        "parameters": list(saved.parameters),
        "live": list(saved.live),
        "widened": sorted(saved.widened),
        "weak": [[sorted(arguments), sorted(results)] for arguments, results in saved.weak],
        "frozen": [list(row) for row in saved.frozen],
        "constants": dict(saved.constants),
        "own_derivatives": list(saved.own_derivatives),
        "places": places,
        "report": dict(saved.report),
    }
    with ArchiveWriter(path) as out:
        out.json("meta.json", meta)
        out.json("trees.json", trees)
        out.text("hot.txt", print_graph(saved.hot))
        out.text("original.txt", print_graph(original))
        if modules:
            out.json("modules.json", modules)
        for member, part in (("head.json", saved.head), ("tail.json", saved.tail)):
            if part is not None:
                out.json(member, part.to_json())
        if saved.kernels:
            out.json("kernels.json", [c.to_json() for c in saved.kernels])
        if source is not None and source.program.prepare is not None:
            out.text("prepare.txt", print_graph(source.program.prepare))
        if source is not None:
            out.json("plan.json", source.plan.to_json())
        for number, array in enumerate(saved.prepared):
            out.aligned(f"prepared/{number}", bytes_view(array))
            release(array)
        for name, member in places.items():
            if member.startswith(_APART):
                out.aligned(member, bytes_view(original.constants[name]))
                release(original.constants[name])
        if native is not None:
            held = {f"prepared/{number}": array for number, array in enumerate(saved.prepared)}
            stored.write(out, native[0], held, native[1])
    return Path(path)


def _places(saved: Saved, source: ValidationSource | None, original: Graph) -> dict[str, str]:
    """Map each array that the original closes over, and that a call may need, to its member of the archive.

    Arrays of few elements are in the program's text instead."""
    if not saved.frozen:
        return {}
    prepare = None if source is None else source.program.prepare
    passed = () if prepare is None else prepare.outputs
    places = {node["name"]: f"prepared/{i}" for i, node in enumerate(passed) if node.op == "input"}
    large = [name for name, value in original.constants.items() if value.size > FEW]
    apart = [name for name in large if name not in places]
    places |= {name: f"{_APART}{i}" for i, name in enumerate(apart)}
    return {name: places[name] for name in large}


def read_whole(path: str | Path) -> tuple[Saved, ValidationSource]:
    """Read the contents for calls and for validation.

    Raises:
        InputError: the file is not a saved program, has another format, or has no plan.
        FileLimitError: the file exceeds a limit.
    """
    with ExitStack() as files:
        archive, facts = opened(path, files)
        with typed(f"{shown(path, 200)} is not a saved program", HINT):
            allowance = Allowance(shown(path, 200), archive.size_bytes)
            saved = _saved(archive, facts, allowance, "")
            return saved, _source(archive, saved, allowance)


def read(path: str | Path, archive: Archive, facts: FileFacts) -> Saved:
    """Read the contents for calls; prepared tensors are read when needed, while the file is open.

    Args:
        path: the file.
        archive: the same, opened.
        facts: its facts.

    Raises:
        InputError: the file is not a saved program.
        FileLimitError: the file exceeds a limit.
    """
    name = shown(path, 200)
    with typed(f"{name} is not a saved program", HINT):
        return _saved(archive, facts, Allowance(name, archive.size_bytes), name)


def _saved(archive: Archive, facts: FileFacts, allowance: Allowance, later: str) -> Saved:
    """Return a saved program from its archive; refuse one whose parts contradict each other."""
    if "modules.json" in archive:
        _modules(archive)
    hot, live = _graph(archive, "hot.txt", allowance), len(facts.live)
    if facts.out_tree.num_leaves != len(hot.outputs):
        raise InputError(
            f"its program has {len(hot.outputs)} results, its structure of results {facts.out_tree.num_leaves}"
        )
    if len(hot.inputs) < live or hot.constants:
        raise InputError("its program takes other inputs than the file has")
    kernels, lock = _kernels(archive, hot), Lock()
    prepared = _prepared(archive, hot.inputs[live:], later, lock)
    apart = {name for name in archive.names if name.startswith(_APART)}
    if apart - set(facts.places.values()) or not all(member in archive for member in facts.places.values()):
        raise InputError("its constants are other ones than it names")
    read_original = functools.partial(_original, archive, facts, hot, later, lock) if later and facts.frozen else None
    said = {part.name: getattr(facts, part.name) for part in fields(facts)}
    return Saved(**said, hot=hot, prepared=prepared, kernels=kernels, original=read_original)


def _original(archive: Archive, facts: FileFacts, hot: Graph, later: str, lock: Lock) -> Graph:
    """The program that was optimised, over all arguments, with the values of its constants."""
    names, places = facts.names, facts.places
    with typed(f"{later} is not a saved program", HINT):
        with lock:
            graph = _graph(archive, "original.txt", Allowance(later, archive.size_bytes))
        if tuple(node["name"] for node in graph.inputs[: len(names)]) != names:
            raise InputError("its original takes other arguments")
        if [node.type for node in graph.outputs] != [node.type for node in hot.outputs]:
            raise InputError("its original has other results")
        constants = dict(graph.constants)
        for node in graph.inputs[len(names) :]:
            name = node["name"]
            if name not in constants:
                if name not in places:
                    raise InputError("it lacks arrays that its original closes over", hint="save the program again")
                _fits(archive, places[name], node)
                constants[name] = _tensor(archive, places[name], node, lock)
        return Graph(graph.inputs, graph.outputs, constants)


def _source(archive: Archive, saved: Saved, allowance: Allowance) -> ValidationSource:
    if "plan.json" not in archive or "original.txt" not in archive:
        raise InputError("it holds no plan", hint="save the program again with this version")
    prepare = _graph(archive, "prepare.txt", allowance) if "prepare.txt" in archive else None
    plan = read_plan(archive.json("plan.json"), allowance)
    return ValidationSource(_graph(archive, "original.txt", allowance), Program(prepare, saved.hot), plan)


def _graph(archive: Archive, member: str, allowance: Allowance) -> Graph:
    """Read a program whose operations compute from their operands and do nothing else."""
    with typed(f"in {member}"):
        graph = parse_graph(archive.text(member), allowance=allowance)
        names = [node["name"] for node in graph.inputs]
        if len(set(names)) != len(names):
            raise InputError("two inputs have one name")
        require_modules(graph)
        return graph


def _modules(archive: Archive) -> None:
    rows = archive.json("modules.json")
    if not isinstance(rows, dict) or len(rows) > LIMITS.members:  # pyright: ignore[reportUnknownArgumentType]
        raise InputError("its modules are no table")
    restore(rows)  # pyright: ignore[reportUnknownArgumentType]


def _kernels(archive: Archive, hot: Graph) -> tuple[KernelSpec, ...]:
    if "kernels.json" not in archive:
        return ()
    rows = archive.json("kernels.json")
    if not isinstance(rows, list) or len(rows) > LIMITS.nodes:  # pyright: ignore[reportUnknownArgumentType]
        raise InputError("its kernels are no list")
    kernels = tuple(map(read_spec, rows))  # pyright: ignore[reportUnknownArgumentType]
    regions_of(hot, kernels)
    return kernels


def _prepared(archive: Archive, nodes: Sequence[Node], later: str, lock: Lock) -> tuple[Any, ...]:
    """The prepared tensors, each read into the memory where it stays (JAX uses it without a copy).

    They are read when needed if `later` names the file, which is then kept open.
    """
    members = {name for name in archive.names if name.startswith("prepared/")}
    if members != {f"prepared/{i}" for i in range(len(nodes))}:
        raise InputError(f"it holds {len(members)} prepared tensors for {len(nodes)} inputs")

    def postponed(member: str, node: Node) -> np.ndarray:
        with typed(f"{later} is not a saved program", HINT):
            return _tensor(archive, member, node, lock)

    arrays: list[Any] = []
    for number, node in enumerate(nodes):
        member = f"prepared/{number}"
        _fits(archive, member, node)
        if later:
            read_it = functools.partial(postponed, member, node)
            arrays.append(Later(read_it, node.shape, dtype(node.dtype)))  # pyright: ignore[reportArgumentType] -- sizes in a text are numbers
        else:
            arrays.append(_tensor(archive, member, node, lock))
    return tuple(arrays)


def _fits(archive: Archive, member: str, node: Node) -> None:
    if node.dtype not in STORED_BYTES:
        raise InputError(f"its program takes a prepared tensor of dtype {shown(node.dtype)}")
    size = type_bytes(node.type)
    if archive.size_of(member) != size:
        raise InputError(f"its {member!r} has {archive.size_of(member)} bytes, {node.type} has {size}")


def _tensor(archive: Archive, member: str, node: Node, lock: Lock) -> np.ndarray:
    array = aligned(node.shape, dtype(node.dtype))  # pyright: ignore[reportArgumentType] -- sizes in a text are numbers
    with lock:  # one place in the file at a time
        archive.read_into(member, bytes_view(array))
    return array


__all__ = ["Saved", "ValidationSource", "read", "read_whole", "write"]
