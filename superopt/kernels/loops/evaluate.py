"""Reference interpreter of loop programs: evaluates their stages in the NumPy algebra, each over all of its axes.

This is the oracle of every schedule primitive and of every emitted kernel.  It knows nothing of kinds of axes, knobs or
tiles.  Of placement it knows only that a local buffer is a fresh one in each iteration of the axes around it. Elements
that no stage has written are NaN (the largest integer, True).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from superopt.errors import ArgumentError, InputError
from superopt.ir import index as indices
from superopt.ir.fold import fold
from superopt.ir.index import Atom, Guard, Size, Symbol
from superopt.ir.interp import Numbers, grid, reader
from superopt.ir.ops.record import identity
from superopt.ir.scalar import Array, numpy_dtype
from superopt.ir.types import FLOATS
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage

FOLD: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def evaluate(
    program: LoopProgram,
    arrays: Mapping[str, np.ndarray],
    wide: bool = False,
    numbers: Callable[[int, int, bool], Numbers] = Numbers,
) -> dict[str, np.ndarray]:
    """Compute the outputs of a loop program.

    Args:
        program: a well-formed program.
        arrays: input and frozen buffers by name.
        wide: hold every float in float64.
        numbers: makes the algebra of a stage, of its rank, its number of points and `wide`.

    Raises:
        ArgumentError: an input has no value, or one of another shape or dtype.
        InputError: a stage writes outside its buffer.
    """
    held: dict[str, Array] = {}
    for buffer in program.buffers:
        if buffer.scope in ("input", "frozen"):
            held[buffer.name] = _argument(buffer, arrays, wide)
    with np.errstate(all="ignore"):
        for stage in program.stages:
            held[stage.buffer] = _fill(program, stage, held, wide, numbers)
    return {b.name: held[b.name] for b in program.buffers if b.scope == "output"}


def _argument(buffer: Buffer, arrays: Mapping[str, np.ndarray], wide: bool) -> Array:
    if buffer.name not in arrays:
        raise ArgumentError(f"no value for the buffer {buffer.name!r}, only for {sorted(arrays)}")
    array = np.asarray(arrays[buffer.name])
    if array.shape != buffer.shape:
        raise ArgumentError(f"the buffer {buffer.name!r} has shape {buffer.shape}, got {array.shape}")
    kind = numpy_dtype(buffer.dtype)
    if array.dtype != kind and not (wide and buffer.dtype in FLOATS and array.dtype == np.float64):
        raise ArgumentError(f"the buffer {buffer.name!r} is {buffer.dtype}, got {array.dtype}")
    return array.astype(numpy_dtype(buffer.dtype, wide), copy=False)


def _versions(program: LoopProgram, name: str) -> int:
    """Return the number of the writing stage's leading axes for whose iterations the buffer is a separate copy."""
    if program.buffer(name).scope != "local":
        return 0
    at = program.stage(name).at
    return 0 if at is None else at[1]


def _fill(
    program: LoopProgram,
    stage: Stage,
    held: Mapping[str, Array],
    wide: bool,
    numbers: Callable[[int, int, bool], Numbers],
) -> Array:
    """Return the elements that a stage computes, at all points at once."""
    buffer = program.buffer(stage.buffer)
    extents = [a.extent for a in stage.axes]
    points = grid(extents)
    env: dict[Symbol, Any] = dict(zip([a.symbol for a in stage.axes], points, strict=True))
    versions = _versions(program, stage.buffer)
    shape = (*extents[:versions], *buffer.shape)
    kind = numpy_dtype(buffer.dtype, wide)
    start = _unwritten(kind) if stage.combine is None else identity(stage.combine, buffer.dtype)
    result = np.full(shape, start, kind)
    if 0 in extents:
        return result
    algebra = numbers(len(extents), prod(extents), wide)
    readers = {name: reader(array) for name, array in held.items()}
    leading = {name: points[: _versions(program, name)] for name in held}

    def read(name: str, index: tuple[Any, ...]) -> Array:
        return readers[name](*leading[name], *index)

    def at(x: Size) -> Array:
        def atom(a: Atom) -> Any:
            if isinstance(a, Symbol):
                return env[a]
            if a.op == "value":
                return algebra.to_index(fold(a.args[0], algebra, read, env))
            return _APPLY[a.op](*[at(y) for y in a.args])

        return indices.evaluate(x, atom)

    value = _spread(np.asarray(fold(stage.value, algebra, read, env), kind), extents)
    index = [_spread(np.asarray(k), extents) for k in (*points[:versions], *map(at, stage.index))]
    if isinstance(stage.guard, Guard):
        exists = _spread(np.asarray(algebra.all(*[at(p) >= 0 for p in stage.guard.ordered])), extents)
        value, index = value[exists], [k[exists] for k in index]
    elif not stage.guard:
        return result
    place = np.zeros(value.shape, np.int64)
    for d, (k, n) in enumerate(zip(index, shape, strict=True)):
        if k.size and (k.min() < 0 or k.max() >= n):
            low, high = int(k.min()), int(k.max())
            raise InputError(f"stage {stage.buffer} writes at {low} to {high} of axis {d}, which has {n} elements")
        place = place * n + k
    if stage.combine is None:
        result.reshape(-1)[place] = value
    else:
        FOLD[stage.combine].at(result.reshape(-1), place, value)
    return result


def _spread(value: Array, extents: list[int]) -> Array:
    """Broadcast the value over the whole grid, from axes of size 1 that a reduction needed first."""
    return np.broadcast_to(value.reshape(value.shape[max(0, value.ndim - len(extents)) :]), extents)


_APPLY: dict[str, Any] = {
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "min": np.minimum, "max": np.maximum,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip


def _unwritten(kind: np.dtype[Any]) -> Any:
    if kind.kind == "b":
        return True
    return np.iinfo(kind).max if kind.kind in "iu" else np.nan
