"""The part of a saved program that every call needs: arguments, results and report; `saved` reads the programs.

A native program (`superopt.backends.stored`) needs no other part.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import field as field_of
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays.bundles import dtype
from superopt.arrays.placing import pieces
from superopt.backends import stored
from superopt.backends.options import OptionValue, own
from superopt.errors import InputError
from superopt.files.reading import LIMITS, Archive, field, plain_file, shown, typed
from superopt.files.trees import Structure, count_positions, read_tree
from superopt.foreign.onnx_calls import HostPart, read_part
from superopt.ir.types import STORED_BYTES

FORMAT = 9
OLDEST = 8  # without native programs
_MEMBERS = re.compile(
    r"meta\.json|trees\.json|hot\.txt|original\.txt|prepare\.txt|plan\.json|kernels\.json|modules\.json|(head|tail)\.json|(prepared|constants)/(0|[1-9][0-9]{0,5})|"
    + stored.MEMBERS
)
HINT = "write one with .save(path)"
_AGAIN = "save the program again, or make it: superopt optimize MODEL --out FILE.superopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """The arguments, the results and the report of a saved program.

    Attributes:
        names: names of all flat arguments.
        parameters: the name of each positional argument; empty where it has none.
        live: positions of those that are not frozen, in the order of the program's inputs.
        widened: positions of arguments of 64-bit integers for which 32-bit ones may be given.
        frozen: position, dtype and digest of every frozen argument.
        constants: name and digest of the values that came with the original.
        places: array that the original closes over -> its member of the file; files of earlier versions state none.
        report: report of the optimisation, as plain data.
        options: compiler options that are on this project's own list.
        foreign: options that are not, with the reason why they are left out.
        head: computations on the host from the arguments of a call.
        tail: computations on the host from the results.
        in_tree: structure of the arguments.
        out_tree: structure of the results.
        weak: positions of arguments that are weakly typed together, and of the results that then are.
        own_derivatives: derivatives that the function defines or stops itself, and that are not those of the program.
    """

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    live: tuple[int, ...]
    widened: frozenset[int]
    frozen: tuple[tuple[int, str, str], ...]
    constants: Mapping[str, str]
    report: Mapping[str, Any]
    options: Mapping[str, OptionValue]
    foreign: Mapping[str, str]
    in_tree: Structure
    out_tree: Structure
    head: HostPart | None = None
    tail: HostPart | None = None
    weak: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()
    own_derivatives: tuple[str, ...] = ()
    places: Mapping[str, str] = field_of(default_factory=dict[str, str])


def opened(path: str | Path, files: ExitStack) -> tuple[Archive, FileFacts]:
    """Open a saved program, which stays open as long as `files`, and read its facts.

    Raises:
        InputError: the file is not a saved program, or has another format.
        FileLimitError: the file exceeds a limit.
    """
    with ExitStack() as own, typed(f"{shown(path, 200)} is not a saved program", HINT):
        archive = Archive(own.enter_context(plain_file(path)), _is_member)
        facts = _facts(archive)
        files.push(own.pop_all())
        return archive, facts


def read_report_data(path: str | Path) -> Mapping[str, Any]:
    """Read the report of a saved program as plain data, and nothing else of the file.

    Raises:
        InputError: the file is not a saved program, or has another format.
        FileLimitError: the file exceeds a limit.
    """
    with typed(f"{shown(path, 200)} is not a saved program", HINT), plain_file(path) as handle:
        return field(_meta(Archive(handle, _is_member)), "report", dict)


def _is_member(name: str) -> bool:
    return _MEMBERS.fullmatch(name) is not None


def _meta(archive: Archive) -> Any:
    """The contents of meta.json, in the format of this version."""
    meta: Any = archive.json("meta.json")
    version = field(meta, "format", int)
    if not OLDEST <= version <= FORMAT:
        raise InputError(f"it has format {version}, this version reads {OLDEST} to {FORMAT}", hint=_AGAIN)
    return meta


def _facts(archive: Archive) -> FileFacts:
    """Return the facts of a file; refuse one whose parts contradict each other."""
    meta, trees = _meta(archive), archive.json("trees.json")
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
    report, results = field(meta, "report", dict), range(out_tree.num_leaves)
    speedup = field(report, "speedup", dict)
    field(speedup, "ratio", (int, float))
    for end in ("low", "high"):
        field(speedup, end, (int, float, type(None)))
    field({"basis": "measured", **speedup}, "basis", str)  # files of before had measured ones only
    options, foreign = own(field(report, "compiler_options", dict))
    head = _part(archive, "head.json", LIMITS.nodes)
    if head is not None and len(head.places) != len(names):
        raise InputError(f"it names {len(names)} arguments, and its head gives {len(head.places)}")
    tail = _part(archive, "tail.json", len(results) + (0 if head is None else head.takes))
    if tail is not None and not all(host or place < len(results) for host, place in tail.places):
        raise InputError("its tail names a place that is none")
    return FileFacts(
        names=names,
        parameters=parameters,
        live=live,
        widened=frozenset(_position(x, names) for x in field(meta, "widened", list)),
        frozen=frozen,
        constants={_text(k): _text(v) for k, v in field(meta, "constants", dict).items()},
        places={_text(k): _text(v) for k, v in field({"places": {}, **meta}, "places", dict).items()},
        report=report,
        options=options,
        foreign=foreign,
        in_tree=in_tree,
        out_tree=out_tree,
        head=head,
        tail=tail,
        weak=tuple(_weak(row, names, results) for row in field(meta, "weak", list)),
        own_derivatives=tuple(_text(x) for x in field(meta, "own_derivatives", list)),
    )


def _weak(row: Any, names: Sequence[str], leaves: Sequence[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of arguments that are weakly typed together, and of the results that then are."""
    match row:
        case [list(arguments), list(results)]:
            return frozenset(_position(x, names) for x in arguments), frozenset(_position(x, leaves) for x in results)
        case _:
            raise InputError("its weak types are no pairs of lists")


def _part(archive: Archive, member: str, most: int) -> HostPart | None:
    return read_part(archive.json(member), most) if member in archive else None


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
