"""Runs the prepare part of a program in pieces: large weights one after the other, equal pieces once.

Results that share no computation are pieces of their own.  Pieces of large weights run one at a time, each reading its
weights when it runs, so that a program of many weights never holds all of them twice; the small ones run together.
Pieces of one form are compiled once.  A piece of the same arrays as an earlier one, in another program perhaps, is not
computed again while its results are in use.  For placed arrays (`superopt.arrays.placing`) this holds across processes,
since large results lie in a file beside these.
"""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.core import Tracer

from superopt.arrays.placing import Later, aligned, give_back, made_folder, place_of, release
from superopt.ir import opaque
from superopt.ir.graph import Graph, Node, make_input, topological
from superopt.ir.program import replace, type_bytes
from superopt.ir.scalar import numpy_dtype
from superopt.ir.text import print_graph
from superopt.ir.types import ITEMSIZE_BYTES
from superopt.kernels.runtime.pages import map_file
from superopt.machine.jitting import jax_jit

_GIVE_BACK_BYTES = 64 << 20  # bytes of pieces after which a millisecond is well spent
ALONE_BYTES = 4 << 20  # operands and results; below, a compilation of its own costs more than the memory is worth


@dataclass(frozen=True, slots=True)
class Piece:
    """Outputs that are computed together.

    Attributes:
        reads: inputs of the prepare part that it reads.
        gives: outputs of the prepare part that it computes.
        form: its graph with inputs named by position: equal for pieces of one form.
    """

    reads: tuple[Node, ...]
    gives: tuple[Node, ...]
    form: Graph


def pieces_of(outputs: Sequence[Node]) -> tuple[Piece, ...]:
    """Split the outputs of a prepare part into pieces: each large one alone, with those it shares computation with."""
    owner: dict[Node, int] = {}
    groups: dict[int, list[Node]] = {}
    for number, output in enumerate(outputs):
        groups[number] = [output]
        computed = [node for node in topological((output,)) if node.op not in ("input", "literal") and node.inputs]
        for other in {owner[node] for node in computed if node in owner}:
            groups[number] = groups.pop(other) + groups[number]
            owner.update((node, number) for node, o in owner.items() if o == other)
        owner.update(dict.fromkeys(computed, number))
    large = [tuple(g) for g in groups.values() if _bytes(g) >= ALONE_BYTES]
    small = tuple(node for g in groups.values() if _bytes(g) < ALONE_BYTES for node in g)
    return tuple(_piece(gives) for gives in (*large, small) if gives)


def _piece(gives: tuple[Node, ...]) -> Piece:
    reads = tuple(node for node in topological(gives) if node.op == "input")
    names = {node: make_input(f"p{i}", node.shape, node.dtype, frozen=True) for i, node in enumerate(reads)}
    return Piece(reads, gives, Graph(tuple(names.values()), replace(gives, names)))


def _bytes(group: Sequence[Node]) -> int:
    reads = {node for node in topological(group) if node.op == "input"}
    return sum(type_bytes(node.type) for node in (*reads, *group))


def run_pieces(
    pieces: Sequence[Piece], values: Mapping[Node, Any], to_jax: Callable[[Graph], Callable[..., Any]]
) -> dict[Node, Any]:
    """Compute all pieces for these values of the inputs (arrays, `Later` ones or traced)."""
    computed: dict[Node, Any] = {}
    freed = 0
    for piece in pieces:
        computed |= zip(piece.gives, _run(piece, [values[node] for node in piece.reads], to_jax), strict=True)
        freed += _bytes(piece.gives)
        if freed >= _GIVE_BACK_BYTES:
            give_back()
            freed = 0
    return computed


def _run(piece: Piece, sources: Sequence[Any], to_jax: Callable[[Graph], Callable[..., Any]]) -> Sequence[Any]:
    """Return the results of a piece: made before, found in shared memory, or computed now."""
    if any(isinstance(x, Tracer) for x in sources):
        return _compiled(piece.form, to_jax)(*sources)
    key = (piece.form.outputs, *map(id, sources))
    known = _MADE.get(key)
    if known is not None:
        of, made = [ref() for ref in known[0]], [ref() for ref in known[1]]
        if all(a is b for a, b in zip(of, sources, strict=True)) and all(x is not None for x in made):
            return made
    stem = _stem(piece, sources)
    results = None if stem is None else _found(stem, piece)
    if results is None:
        call = _compiled(piece.form, to_jax)
        results = jax.block_until_ready(call(*map(taken, sources)))  # the next piece is to find these sources gone
        for x in sources:
            release(x)
        if stem is not None:
            results = _given(stem, piece, results)
    if all(isinstance(x, jax.Array) or place_of(x) is not None for x in sources):  # arrays that never change
        for stale in [k for k, (_, made) in _MADE.items() if any(ref() is None for ref in made)]:
            del _MADE[stale]
        _MADE[key] = (tuple(map(weakref.ref, sources)), tuple(map(weakref.ref, results)))
    return results


_MADE: dict[Any, tuple[tuple[weakref.ref[Any], ...], tuple[weakref.ref[Any], ...]]] = {}


@functools.lru_cache(maxsize=256)
def _compiled(form: Graph, to_jax: Callable[[Graph], Callable[..., Any]]) -> Callable[..., Any]:
    return jax_jit(to_jax(form))


def _stem(piece: Piece, sources: Sequence[Any]) -> Path | None:
    """Return the path stem under which all processes of a call share a piece's results; None if they are private.

    The files are in the folder of the placed arrays that the piece reads, under a digest of these and of its code.
    """
    places = [place_of(x) for x in sources]
    known = all(node.dtype in ITEMSIZE_BYTES for node in piece.gives)
    if not known or not places or places[0] is None or None in places or _bytes(piece.gives) < ALONE_BYTES:
        return None
    folder, code = made_folder(Path(places[0][0]).parent), _code(piece.form)
    if code is None or not folder.is_dir():
        return None
    return folder / f"made-{hashlib.blake2b(f'{code} {places}'.encode(), digest_size=20).hexdigest()}"


@functools.lru_cache(maxsize=256)
def _code(form: Graph) -> str | None:
    """Return the computation of a piece as text that is the same in every process; None where there is no such text."""
    codes = [print_graph(form)]
    for node in form.nodes():
        if node.op == "opaque":
            known = opaque.resolve(node["params_key"])
            if known.primitive != "kernel":
                return None
            codes.append(f"{node['params_key']} {known.identity!r}")
    return "\n".join(codes)


def _found(stem: Path, piece: Piece) -> Sequence[Any] | None:
    """Return the results of a piece that another process computed; None where there are none."""
    pieces: list[Any] = []
    for i, node in enumerate(piece.gives):
        raw = map_file(Path(f"{stem}-{i}"))
        if raw is None or raw.size != type_bytes(node.type):
            return None
        shape: tuple[int, ...] = node.shape  # pyright: ignore[reportAssignmentType] (sizes of programs are concrete)
        pieces.append(jax.device_put(raw.view(numpy_dtype(node.dtype)).reshape(shape)))
    return pieces


def _given(stem: Path, piece: Piece, results: Sequence[Any]) -> Sequence[Any]:
    """Write results to shared files, each visible only when complete, and return them as mapped from there.

    They are returned unchanged where that fails.
    """
    try:
        for i, x in enumerate(results):
            part = Path(f"{stem}-{i}.{os.getpid()}")
            with open(part, "wb") as out:
                out.write(np.asarray(x).reshape(-1).view(np.uint8).data)
            part.replace(f"{stem}-{i}")
    except OSError:  # no room, or the call has ended
        return results
    return _found(stem, piece) or results


def taken(x: Any) -> Any:
    """Return a value as a JAX array.

    A NumPy array is copied, since its owner may change it, unless it is placed (`superopt.arrays.placing`).
    (`jnp.asarray` would do, but compiles a program for every shape, which takes seconds for a large network.)
    """
    if isinstance(x, Later):
        return jax.device_put(x.read())
    if isinstance(x, np.ndarray):
        if place_of(x) is None:
            own = aligned(x.shape, x.dtype)  # `device_put(x, may_alias=False)` takes over aligned arrays all the same
            own[...] = x
            x = own
        return jax.device_put(x)
    return jnp.asarray(x)
