"""Comparison of a kernel with its loop program on floats, at several scales of its inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from superopt.ir.expr import Expr, subexpressions
from superopt.ir.fold import fold
from superopt.ir.interp import reader
from superopt.ir.scalar import DTYPE, Array
from superopt.kernels.loops.stage import LoopProgram, Stage
from verifier.floats.bounds import Bounds, parts

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
_SLACK = 2.0  # factor on bounds, which are no worst case
_AT_ONCE = 1 << 18  # points of a stage evaluated at once
_POINTS, _SAMPLE = 1 << 15, 1 << 18  # most points of a result that are compared, and most terms of their sums
_BLOCK, _OTHER = 100_003, 9_973  # periods, both prime, after which random elements repeat
_LARGE = 1 << 21  # iterations of a program above which only the first draws are used
_FIRST = 3
_ZEROS = 1 / 16  # fraction of zeros among values of all sizes
_NARROW = 8  # 16-bit floats are drawn within 2^-8 and 2^8


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution of inputs: `scale * 2^uniform(-spread, spread) * (offset + normal)`, positive only or not."""

    name: str
    scale: float = 1.0
    spread: float = 0.0
    offset: float = 0.0
    positive: bool = False


DRAWS = (
    Draw("positive", positive=True),  # sums without cancellation: shows errors relative to the result
    Draw("far from zero", offset=300.0),  # differences cancel
    Draw("of all sizes", spread=36.0),
    Draw("large", scale=1e12),
    Draw("small", scale=1e-12),
    Draw("of both signs"),
)


def farther(before: LoopProgram, run: Run, seed: int) -> str:
    """A message about results that are farther from the loop program than rounding explains; empty without any.

    Args:
        before: the loop program without a schedule, which is the specification.
        run: the kernel, from arrays of the inputs by name to buffers, the outputs among them.
        seed: seed of the draws.
    """
    work = sum([_work(stage) for stage in before.stages])
    for draw in DRAWS if work <= _LARGE else DRAWS[:_FIRST]:
        given = drawn(before, draw, seed)
        outputs = run(given)
        with np.errstate(all="ignore"):
            for name, at, near in values(before, given):
                value, bound = parts(near)
                got = np.asarray(outputs[name], np.float64).reshape(before.buffer(name).shape)[at]
                wrong = ~(np.abs(got - value) <= _SLACK * bound) & np.isfinite(value) & np.isfinite(bound)
                if not np.ndim(bound):
                    wrong &= got != value
                if wrong.any():
                    return _told(name, draw, wrong, got, value)
    return ""


def _told(name: str, draw: Draw, wrong: Array, got: Array, value: Array) -> str:
    first = tuple(np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} elements of {name} are farther from float64 than rounding explains on inputs {draw.name}: "
        f"{got[first]:.9g} in the place of {np.broadcast_to(value, wrong.shape)[first]:.9g}"
    )


def drawn(before: LoopProgram, draw: Draw, seed: int) -> dict[str, Array]:
    """Draw arrays for the inputs of a program."""
    made: dict[str, Array] = {}
    for b in before.buffers:
        if b.scope not in ("input", "frozen"):
            continue
        key = hashlib.blake2b(f"{seed} {draw.name} {b.name}".encode(), digest_size=8).digest()
        rng = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
        if b.dtype == "bool":
            made[b.name] = rng.random(b.shape) < 0.5
        elif b.dtype == "int32":
            made[b.name] = rng.integers(
                -9, max(9, *[max(x.shape, default=1) for x in before.buffers]) + 9, b.shape, np.int32
            )
        else:
            made[b.name] = _floats(rng, draw, b.shape, b.dtype)
    return made


def _floats(rng: np.random.Generator, draw: Draw, shape: tuple[int, ...], dtype: str) -> Array:
    x = np.resize(rng.standard_normal(min(prod(shape), _BLOCK), np.float32), shape)
    if draw.positive:
        np.abs(x, out=x)
        x += np.float32(0.125)
    if draw.offset:
        x += np.float32(draw.offset)
    narrow = dtype in ("float16", "bfloat16")
    if draw.spread:
        spread = min(draw.spread, _NARROW) if narrow else draw.spread
        sizes = np.exp2(rng.uniform(-spread, spread, _OTHER)) * (rng.random(_OTHER) >= _ZEROS)
        x *= np.resize(sizes.astype(np.float32), shape)
    if draw.scale != 1.0:
        x *= np.float32(np.clip(draw.scale, 2.0**-_NARROW, 2.0**_NARROW) if narrow else draw.scale)
    return x.astype(DTYPE[dtype])


def values(before: LoopProgram, given: Mapping[str, Array]) -> Iterator[tuple[str, Any, Array]]:
    """Yield the outputs of an unscheduled loop program in parts: name, index of the part, its values with bounds."""
    held = dict(given)
    reads = [{e.args[0] for e in subexpressions(stage.value) if e.kind == "load"} for stage in before.stages]
    for number, stage in enumerate(before.stages):
        output = before.buffer(stage.buffer).scope == "output"
        later = any(stage.buffer in names for names in reads[number + 1 :])
        whole = np.empty(before.buffer(stage.buffer).shape, np.complex128) if later else None
        for at, part in _filled(stage, held, sample=not later):
            if whole is not None:
                whole[at] = part
            if output:
                yield stage.buffer, at, part
        if whole is not None:
            held[stage.buffer] = whole


def _filled(stage: Stage, held: Mapping[str, Array], sample: bool) -> Iterator[tuple[Any, Array]]:
    """Yield values of a stage, in parts along its longest axis; with `sample`, at some points along every axis."""
    extents = [a.extent for a in stage.axes]
    if 0 in extents:
        return
    readers = {name: reader(array) for name, array in held.items()}
    for places in [_places(extents, _work(stage) / prod(extents))] if sample else _pieces(extents):
        at = np.ix_(*places)
        shape = [len(k) for k in places]
        algebra = Bounds(len(extents), prod(shape))

        def read(name: str, index: tuple[Any, ...]) -> Array:
            x = readers[name](*index)
            return x if x.dtype in (np.int32, np.complex128) else x.astype(np.float64)

        env = dict(zip([a.symbol for a in stage.axes], at, strict=True))
        filled = algebra.array(fold(stage.value, algebra, read, env))
        yield at, np.broadcast_to(filled.reshape(filled.shape[max(0, filled.ndim - len(extents)) :]), shape)


def _pieces(extents: Sequence[int]) -> Iterator[list[Array]]:
    """Yield all places along each axis, in parts along the longest axis."""
    longest = max(extents, default=1)
    axis, step = list(extents).index(longest) if extents else 0, max(1, _AT_ONCE * longest // prod(extents))
    for start in range(0, longest, step):
        yield [np.arange(n)[start : start + step] if d == axis else np.arange(n) for d, n in enumerate(extents)]


def _places(extents: Sequence[int], terms: float) -> list[Array]:
    """A sample of places along each axis, both ends included; `terms` per point limits their number."""
    counts = list(extents)
    while prod(counts) > min(_POINTS, _SAMPLE / terms) and max(counts, default=1) > 2:
        longest = counts.index(max(counts))
        counts[longest] = max(2, counts[longest] * 3 // 4)
    return [
        np.unique(np.linspace(0, n - 1, count).round().astype(np.int64))
        for n, count in zip(extents, counts, strict=True)
    ]


def _work(stage: Stage) -> int:
    """The greatest number of times that a subexpression of a stage is computed."""

    def times(e: Expr) -> int:
        return prod([int(str(s.extent)) for s in e.symbols])

    return max([prod([a.extent for a in stage.axes]), *map(times, subexpressions(stage.value))])
