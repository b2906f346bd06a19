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

The file may come from anyone.  It is read within limits, every part is checked against the others, and no operation of
it acts outside of its operands.  Compiler options that are not on this project's own list are left out.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from superopt.arrays.bundles import dtype
from superopt.arrays.placing import Later, aligned, pieces, release
from superopt.backends.options import OptionValue, own
from superopt.certify.plan import Plan, read_plan
from superopt.errors import InputError
from superopt.files.reading import LIMITS, Allowance, Archive, ArchiveWriter, field, plain_file, shown, typed
from superopt.files.trees import Structure, count_positions, read_tree
from superopt.foreign.modules import carried, require_modules, restore
from superopt.foreign.onnx_calls import HostPart, read_part
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program, type_bytes
from superopt.ir.text import FEW, parse_graph, print_graph
from superopt.ir.types import STORED_BYTES
from superopt.kernels.choose.specs import KernelSpec, read_spec, regions_of

FORMAT = 8
_MEMBERS = re.compile(
    r"meta\.json|trees\.json|hot\.txt|original\.txt|prepare\.txt|plan\.json|kernels\.json|modules\.json|(head|tail)\.json|(prepared|constants)/(0|[1-9][0-9]{0,5})"
)
_HINT = "write one with .save(path)"
_APART = "constants/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The contents of a file that calls need.

    Attributes:
        hot: the returned program over the live arguments and the prepared tensors.
        prepared: these tensors; where a file is read for calls, each may be one that is read `Later`.
        names: names of all flat arguments.
        parameters: the name of each positional argument; empty where it has none.
        live: positions of those that are not frozen, in the order of the inputs of `hot`.
        widened: positions of arguments of 64-bit integers for which 32-bit ones may be given.
        frozen: position, dtype and digest of every frozen argument.
        constants: name and digest of the values that came with the original.
        report: report of the optimisation, as plain data.
        options: compiler options that are on this project's own list.
        foreign: options that are not, with the reason why they are left out.
        kernels: regions that are our kernels.
        head: computations on the host from the arguments of a call.
        tail: computations on the host from the results.
        in_tree: structure of the arguments.
        out_tree: structure of the results.
        weak: positions of arguments that are weakly typed together, and of the results that then are.
        original: reads the original program, with its constants; for calls with traced frozen arguments.
        own_derivatives: derivatives that the function defines or stops itself, and that are not those of `hot`.
    """

    hot: Graph
    prepared: tuple[Any, ...]
    names: tuple[str, ...]
    parameters: tuple[str, ...]
    live: tuple[int, ...]
    widened: frozenset[int]
    frozen: tuple[tuple[int, str, str], ...]
    constants: Mapping[str, str]
    report: Mapping[str, Any]
    options: Mapping[str, OptionValue]
    foreign: Mapping[str, str]
    kernels: tuple[KernelSpec, ...]
    in_tree: Structure
    out_tree: Structure
    head: HostPart | None = None
    tail: HostPart | None = None
    weak: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()
    original: Callable[[], Graph] | None = None
    own_derivatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidationSource:
    """The contents of a file for validation alone: original, returned program with prepare part, plan."""

    original: Graph
    program: Program
    plan: Plan


def write(path: str | Path, saved: Saved, source: ValidationSource | None, original: Graph) -> Path:
    """Write a file, which appears under its name once it is complete.

    Args:
        path: the file.
        saved: the contents that calls need.
        source: the contents that validation needs; None where there is no plan.
        original: the original program.

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


def read(path: str | Path, files: ExitStack) -> Saved:
    """Read the contents for calls; prepared tensors are read when needed, while `files` is open.

    Raises:
        InputError: the file is not a saved program, or has another format.
        FileLimitError: the file exceeds a limit.
    """
    return _read(path, files)[0]


def read_whole(path: str | Path) -> tuple[Saved, ValidationSource]:
    """Read the contents for calls and for validation.

    Raises:
        InputError: as `read`, or the file has no plan.
    """
    saved, source = _read(path, None)
    assert source is not None
    return saved, source


def read_report_data(path: str | Path) -> Mapping[str, Any]:
    """Read the report of a saved program as plain data, and nothing else of the file.

    Raises:
        InputError: the file is not a saved program, or has another format.
        FileLimitError: the file exceeds a limit.
    """
    with typed(f"{shown(path, 200)} is not a saved program", _HINT), plain_file(path) as handle:
        return field(_meta(Archive(handle, _is_member)), "report", dict)


def _is_member(name: str) -> bool:
    return _MEMBERS.fullmatch(name) is not None


def _meta(archive: Archive) -> Any:
    """The contents of meta.json, in the format of this version."""
    meta: Any = archive.json("meta.json")
    version = field(meta, "format", int)
    if version != FORMAT:
        raise InputError(f"it has format {version}, this version reads {FORMAT}", hint="save the program again")
    return meta


def _read(path: str | Path, files: ExitStack | None) -> tuple[Saved, ValidationSource | None]:
    """Read for calls where `files` is given, which keeps the file open; for validation otherwise."""
    name = shown(path, 200)
    with ExitStack() as own, typed(f"{name} is not a saved program", _HINT):
        handle = own.enter_context(plain_file(path))
        archive = Archive(handle, _is_member)
        allowance = Allowance(name, archive.size_bytes)
        meta = _meta(archive)
        if "modules.json" in archive:
            _modules(archive)
        saved = _saved(archive, meta, allowance, "" if files is None else name)
        if files is None:
            return saved, _source(archive, saved, allowance)
        files.push(own.pop_all())
        return saved, None


def _saved(archive: Archive, meta: Any, allowance: Allowance, later: str) -> Saved:
    """Return a saved program from its archive; refuse one whose parts contradict each other."""
    hot = _graph(archive, "hot.txt", allowance)
    trees: Any = archive.json("trees.json")
    in_tree, out_tree = read_tree(field(trees, "arguments", _ANY)), read_tree(field(trees, "results", _ANY))
    names, parameters = (tuple(_text(x) for x in field(meta, key, list)) for key in ("names", "parameters"))
    if len(parameters) != count_positions(in_tree.data):
        raise InputError(f"it names {len(parameters)} positional arguments, its structure has other ones")
    live = tuple(_position(x, names) for x in field(meta, "live", list))
    frozen = tuple(_frozen(row, names) for row in field(meta, "frozen", list))
    if sorted((*live, *(i for i, *_ in frozen))) != list(range(len(names))):
        raise InputError("its arguments are not each live or frozen")
    if in_tree.num_leaves != len(names):
        raise InputError(f"it names {len(names)} arguments, and its structure of arguments has {in_tree.num_leaves}")
    if out_tree.num_leaves != len(hot.outputs):
        raise InputError(f"its program has {len(hot.outputs)} results, its structure of results {out_tree.num_leaves}")
    if len(hot.inputs) < len(live) or hot.constants:
        raise InputError("its program takes other inputs than the file has")
    report = field(meta, "report", dict)
    speedup = field(report, "speedup", dict)
    field(speedup, "ratio", (int, float))
    for end in ("low", "high"):
        field(speedup, end, (int, float, type(None)))
    field({"basis": "measured", **speedup}, "basis", str)  # files of before had measured ones only
    options, foreign = own(field(report, "compiler_options", dict))
    kernels = _kernels(archive, hot)
    lock = Lock()
    prepared = _prepared(archive, hot.inputs[len(live) :], later, lock)
    places = _members_of(archive, meta)
    head = _part(archive, "head.json", LIMITS.nodes)
    if head is not None and len(head.places) != len(names):
        raise InputError(f"it names {len(names)} arguments, and its head gives {len(head.places)}")
    tail = _part(archive, "tail.json", len(hot.outputs) + (0 if head is None else head.takes))
    if tail is not None and not all(host or place < len(hot.outputs) for host, place in tail.places):
        raise InputError("its tail names a place that is none")
    return Saved(
        hot=hot,
        prepared=prepared,
        names=names,
        parameters=parameters,
        live=live,
        widened=frozenset(_position(x, names) for x in field(meta, "widened", list)),
        frozen=frozen,
        constants={_text(k): _text(v) for k, v in field(meta, "constants", dict).items()},
        report=report,
        options=options,
        foreign=foreign,
        kernels=kernels,
        in_tree=in_tree,
        out_tree=out_tree,
        head=head,
        tail=tail,
        weak=tuple(_weak(row, names, hot) for row in field(meta, "weak", list)),
        own_derivatives=tuple(_text(x) for x in field(meta, "own_derivatives", list)),
        original=functools.partial(_original, archive, names, hot, places, later, lock) if later and frozen else None,
    )


def _members_of(archive: Archive, meta: Any) -> dict[str, str]:
    """The member of each array that the original closes over; files of earlier versions state none."""
    places = {_text(k): _text(v) for k, v in field({"places": {}, **meta}, "places", dict).items()}
    apart = {name for name in archive.names if name.startswith(_APART)}
    if apart - set(places.values()) or not all(member in archive for member in places.values()):
        raise InputError("its constants are other ones than it names")
    return places


def _original(
    archive: Archive, names: Sequence[str], hot: Graph, places: Mapping[str, str], later: str, lock: Lock
) -> Graph:
    """The program that was optimised, over all arguments, with the values of its constants."""
    with typed(f"{later} is not a saved program", _HINT):
        with lock:
            graph = _graph(archive, "original.txt", Allowance(later, archive.size_bytes))
        if tuple(node["name"] for node in graph.inputs[: len(names)]) != tuple(names):
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


def _weak(row: Any, names: Sequence[str], hot: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of arguments that are weakly typed together, and of the results that then are."""
    match row:
        case [list(arguments), list(results)]:
            return frozenset(_position(x, names) for x in arguments), frozenset(
                _position(x, hot.outputs) for x in results
            )
        case _:
            raise InputError("its weak types are no pairs of lists")


def _part(archive: Archive, member: str, most: int) -> HostPart | None:
    return read_part(archive.json(member), most) if member in archive else None


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
        with typed(f"{later} is not a saved program", _HINT):
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


def bytes_view(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]


def digest_of(value: Any, kind: str | None = None) -> str:
    """Digest of an array with its type, as one of this dtype where that is given."""
    array = np.asarray(value)
    array = array if kind is None else array.astype(dtype(kind), copy=False)
    hasher = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    for piece in pieces(array):
        hasher.update(piece)
    return hasher.hexdigest()[:32]


_ANY = (str, dict, list, type(None))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{shown(value)} is not a text")
    return value


def _position(value: Any, names: Sequence[Any]) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(names):
        raise InputError(f"{shown(value)} is no position of {len(names)}")
    return value


def _frozen(row: Any, names: Sequence[str]) -> tuple[int, str, str]:
    if not isinstance(row, list) or len(row) != 3:  # pyright: ignore[reportUnknownArgumentType]
        raise InputError(f"{shown(row)} is no frozen argument")
    position, kind, digest = row  # pyright: ignore[reportUnknownVariableType]
    if kind not in STORED_BYTES:
        raise InputError(f"{shown(kind)} is no dtype of a frozen argument")
    return _position(position, names), _text(kind), _text(digest)


__all__ = ["FORMAT", "Saved", "ValidationSource", "digest_of", "read", "read_whole", "write"]
