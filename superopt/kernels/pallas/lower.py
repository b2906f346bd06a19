"""Lowers loop programs to JAX callables made of Pallas kernels.

A phase is a kernel.  The parallel axes of its stage are the grid, the last one fastest.  Serial axes are a loop inside
a program of the grid.  Vector and unrolled axes are the dimensions of its block, the last one innermost.  Neighbouring
phases over one grid that do not read each other are one kernel with several outputs, which share common values.

    split out0 o0 [128]; split out0 o1 [64]; reorder; parallel o0_0, o1_0; unroll o0_1; vectorize o1_1
        a grid of (M/128 * N/64) programs, each with a block of 128 x 64.

Placement (`compute_at`) is dissolved: values local to a task are computed in registers where they are read.  A stage
that accumulates (`decompose_reduction`) does so in registers, over serial axes step by step and over a block at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from superopt.errors import InputError, UnsupportedKernel
from superopt.ir.index import Poly, Symbol
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.pallas import contraction, scalars
from superopt.kernels.pallas.chunks import loop
from superopt.kernels.pallas.evaluate import Decisions, Evaluator
from superopt.kernels.pallas.frame import Block, BlockRank, Frame, PallasPlace, both, extent, spread, whole
from superopt.kernels.schedule.compose import inline

KNOBS = tuple(f.name for f in fields(Decisions))


@dataclass(frozen=True, slots=True)
class PallasPhase:
    """Stages that run as one kernel."""

    stages: tuple[Stage, ...]

    @property
    def lead(self) -> Stage:
        """The stage whose axes span the block: the first of those with the most axes."""
        return max(self.stages, key=lambda s: len(s.axes))


def lower(program: LoopProgram, interpret: bool | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return a JAX function from the input and frozen buffers of a program, in order, to its outputs.

    Args:
        program: a scheduled program; the knobs of its stages named in `Decisions` are taken from there.
        interpret: evaluate kernels with XLA instead of compiling them by Triton; None: where there is no GPU.

    Raises:
        UnsupportedKernel: a stage has no GPU code, and why.
    """
    program = _dissolved(program)
    emulated = jax.default_backend() != "gpu" if interpret is None else interpret
    sources = [b.name for b in program.buffers if b.scope in ("input", "frozen")]
    results = [b.name for b in program.buffers if b.scope == "output"]
    buffers = {b.name: b for b in program.buffers}
    for b in program.buffers:
        scalars.held(b.dtype)
        if prod(b.shape) >= 2**31:
            raise UnsupportedKernel(f"{b.name} has {prod(b.shape)} elements; offsets have 32 bits")
    kernels = [_kernel(program, phase, emulated) for phase in phases(program)]

    def call(*arrays: Any) -> tuple[Any, ...]:
        known = {name: jnp.asarray(x) for name, x in zip(sources, arrays, strict=True)}
        for name in sources:
            if known[name].shape != buffers[name].shape or known[name].dtype != jnp.dtype(buffers[name].dtype):
                got = f"{known[name].dtype}{list(known[name].shape)}"
                raise InputError(f"{name} is {buffers[name].dtype}{list(buffers[name].shape)}, got {got}")
        for names, written, kernel in kernels:
            known |= zip(written, kernel(*[known[name] for name in names]), strict=True)
        return tuple([known[name] for name in results])

    return call


def _dissolved(program: LoopProgram) -> LoopProgram:
    """Return the program with local buffers inlined."""
    for stage in reversed(program.stages):
        if program.buffer(stage.buffer).scope == "local":
            try:
                program = inline(program, stage.buffer)
            except InputError as reason:
                raise UnsupportedKernel(f"{stage.buffer} cannot be computed where it is read: {reason}") from reason
    return program


def phases(program: LoopProgram) -> list[PallasPhase]:
    """Group the stages into kernels, in order."""
    listed: list[PallasPhase] = []
    for stage in program.stages:
        if listed and _joins(listed[-1], stage):
            listed[-1] = PallasPhase((*listed[-1].stages, stage))
        else:
            listed.append(PallasPhase((stage,)))
    return listed


def _joins(phase: PallasPhase, stage: Stage) -> bool:
    if reads(stage) & {s.buffer for s in phase.stages} or {s.knobs for s in phase.stages} != {stage.knobs}:
        return False
    if any(s.combine is not None for s in (*phase.stages, stage)):
        return False
    axes = [set(s.axes) for s in (*phase.stages, stage)]
    grids = {tuple(a for a in s.axes if a.kind == "parallel") for s in (*phase.stages, stage)}
    serial = any(a.kind == "serial" for s in axes for a in s)
    return len(grids) == 1 and () not in grids and not serial and all(max(axes, key=len) >= a for a in axes)


def decisions(stage: Stage) -> Decisions:
    """Read the evaluation parameters of a stage from its knobs.

    Raises:
        InputError: a value is not of the knob's type.
    """
    defaults = Decisions()
    chosen: dict[str, Any] = {}
    for name, value in stage.knobs:
        if name in KNOBS:
            wanted = type(getattr(defaults, name))
            if isinstance(value, str) != (wanted is str):
                raise InputError(f"the knob {name} of {stage.buffer} is {value!r}, not a {wanted.__name__}")
            chosen[name] = wanted(value)
    return Decisions(**chosen)


PallasKernel = tuple[tuple[str, ...], tuple[str, ...], Callable[..., Sequence[Any]]]


def _kernel(program: LoopProgram, phase: PallasPhase, emulated: bool) -> PallasKernel:
    """Return the buffers that a phase reads, those it writes, and the function between them."""
    lead = phase.lead
    for stage in phase.stages:
        apart = [a.symbol.name for a in _folded(stage) if a.kind == "parallel"]
        if apart:
            raise UnsupportedKernel(f"programs of the grid would add to one element of {stage.buffer}: {apart}")
    names = tuple(sorted(set[str]().union(*map(reads, phase.stages))))
    written = tuple(s.buffer for s in phase.stages)
    buffers = {name: program.buffer(name) for name in (*names, *written)}
    shapes = [jax.ShapeDtypeStruct(buffers[n].shape, jnp.dtype(buffers[n].dtype)) for n in written]
    if any(0 in s.shape for s in shapes):
        return names, written, lambda *_: [jnp.zeros(s.shape, s.dtype) for s in shapes]
    chosen = decisions(lead)
    if emulated:
        chosen = Decisions(**{n: getattr(chosen, n) for n in KNOBS if n != "precision"})
    outer = [a.symbol for a in lead.axes if a.kind == "parallel"]

    def run(*refs: Any) -> None:
        evaluator = Evaluator(dict(zip((*names, *written), refs, strict=True)), buffers, chosen)
        frame = _frame(phase, outer)
        serial = [a.symbol for a in lead.axes if a.kind == "serial" and a not in _folded(lead)]
        if not serial:
            for stage in phase.stages:
                _store(evaluator, frame, stage, emulated)
            return
        evaluator.hoist(frame, lead.value, frozenset(serial))

        def body(j: Block, carry: Any) -> Any:
            _store(evaluator, frame.inside(_counted(j, serial)), lead, emulated)
            return carry

        loop(prod(map(extent, serial)), body, None)

    run.__name__ = "".join(c if c.isalnum() else "_" for c in f"{program.name}_{lead.buffer}")
    call = pl.pallas_call(
        run,
        grid=(prod(map(extent, outer)),),
        out_shape=[jax.ShapeDtypeStruct((prod(s.shape),), s.dtype) for s in shapes],
        compiler_params=plt.CompilerParams(num_warps=chosen.warps, num_stages=chosen.stages),
        interpret=emulated,
    )

    def function(*arrays: Any) -> list[Any]:
        results = call(*[x.reshape(-1) for x in arrays])
        return [x.reshape(s.shape) for x, s in zip(results, shapes, strict=True)]

    return names, written, function


def _frame(phase: PallasPhase, outer: Sequence[Symbol]) -> Frame:
    """Return the iterators of a program of the grid."""
    lead = phase.lead
    across = [a.symbol for a in lead.axes if a.kind in ("vector", "unroll")]
    others = [a.symbol for a in lead.axes if a.kind in ("parallel", "serial")]
    least: dict[Symbol, int] = {}
    for stage in phase.stages:
        for symbol, size in contraction.least(stage.value, across, others).items():
            least[symbol] = max(size, least.get(symbol, 1))
    places = _counted(pl.program_id(0), outer) if outer else {}
    for dim, symbol in enumerate(reversed(across)):
        places[symbol] = spread(symbol, dim, least.get(symbol, 1))
    return Frame(BlockRank(len(across)), places)


def _counted(j: Block, symbols: Sequence[Symbol]) -> dict[Symbol, PallasPlace]:
    """Return the values of iterators from a counter of all of them, the last one fastest."""
    places: dict[Symbol, PallasPlace] = {}
    for at, symbol in reversed(list(enumerate(symbols))):
        n = extent(symbol)
        value = j if at == 0 else j % n if isinstance(j, int) else lax.rem(j, np.int32(n))
        j = j // n if isinstance(j, int) else lax.div(j, np.int32(n))
        places[symbol] = PallasPlace(value, 0, n - 1)
    return places


def _folded(stage: Stage) -> list[Loop]:
    """Return the axes over which a stage accumulates."""
    if stage.combine is None:
        return []
    written = frozenset[Symbol]().union(*(x.symbols for x in stage.index if isinstance(x, Poly)))
    return [a for a in stage.axes if a.symbol not in written]


def _store(evaluator: Evaluator, frame: Frame, stage: Stage, emulated: bool) -> None:
    """Write the block of a stage."""
    buffer: Buffer = evaluator.buffers[stage.buffer]
    ref = evaluator.refs[stage.buffer]
    axes = [a.symbol for a in stage.axes if a not in _folded(stage)]
    shape = frame.shape(frozenset(axes))
    value = evaluator.value(frame, stage.value) if stage.combine is None else _accumulated(evaluator, frame, stage)
    value = whole(jnp.asarray(value), shape).astype(ref.dtype)
    offset, inside = evaluator.offset(frame, buffer.shape, stage.index)
    exists = _exists(evaluator, frame, stage) if stage.combine is None else None
    mask = both(inside, exists, *[frame.places[s].valid for s in axes])
    offset = whole(offset, shape)
    if mask is not None:
        mask = whole(jnp.asarray(mask), shape)
        if emulated:  # interpretation writes old values where the mask is false: let it write them nowhere
            offset = jnp.where(mask, offset, np.int32(prod(buffer.shape)))
    plt.store(ref.at[offset], value, mask=mask)


def _exists(evaluator: Evaluator, frame: Frame, stage: Stage) -> Block | None:
    return frame.condition(stage.guard, lambda e: evaluator.value(frame, e))


def _accumulated(evaluator: Evaluator, frame: Frame, stage: Stage) -> Block:
    """Fold a stage's values over the axes over which it accumulates."""
    monoid, dtype = stage.combine, stage.value.dtype
    assert monoid is not None
    over = _folded(stage)
    serial = [a.symbol for a in over if a.kind == "serial"]
    across = [frame.places[a.symbol] for a in over if a.kind != "serial"]
    if across and not scalars.across(monoid, dtype):
        raise UnsupportedKernel(f"{stage.buffer}: no GPU code for {monoid} of {dtype} across a block")
    shape = frame.shape(frozenset(a.symbol for a in stage.axes if a.kind != "serial"))
    neutral = scalars.neutral(monoid, dtype)

    def part(j: Block, total: Block) -> Block:
        inner = frame.inside(_counted(j, serial))
        value = whole(jnp.asarray(evaluator.value(inner, stage.value)), shape)
        exists = both(_exists(evaluator, inner, stage), *[p.valid for p in across])
        if exists is not None:
            value = jnp.where(exists, value, neutral)
        return scalars.combine(monoid, total, value)

    evaluator.hoist(frame, stage.value, frozenset(serial))
    total = loop(prod(map(extent, serial)), part, jnp.full(shape, neutral))
    for place in sorted(across, key=lambda p: -(p.dim or 0)):
        assert place.dim is not None
        total = scalars.reduce_axis(monoid, total, total.ndim - 1 - place.dim)
    return total
