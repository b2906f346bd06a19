"""Data types of loop programs: buffers, and stages that fill them.

A stage is one loop nest, `for axes where guard: buffer[index] = value`, whose value is an expression of the free
algebra (`superopt.ir.expr`): reductions stay expressions, loads name buffers.  Stages run in order, each over all of
its axes, unless one is placed inside a later one.  Buffers are row-major; a layout is an index map of the stages.

A schedule changes axes, indices, values and placement, and never the outputs, which `evaluate` defines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from superopt.errors import InputError
from superopt.ir.expr import Expr
from superopt.ir.index import Size, Symbol, Truth

BufferScope = Literal["input", "frozen", "output", "scratch", "local"]
AxisKind = Literal["serial", "parallel", "vector", "unroll"]


def extent(symbol: Symbol) -> int:
    """Number of values of an iterator with a known range from 0."""
    size = symbol.extent
    assert isinstance(size, int)
    return size


@dataclass(frozen=True, slots=True)
class Buffer:
    """A row-major array.

    Attributes:
        scope: input; frozen (an input that does not change between calls); output; scratch (between phases, on the
            heap); local (of one task, on its stack).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: BufferScope


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: an iterator from 0, and its kind (serial, parallel, vector, unroll)."""

    symbol: Symbol
    kind: AxisKind = "serial"

    @property
    def extent(self) -> int:
        """Number of iterations."""
        return extent(self.symbol)


@dataclass(frozen=True, slots=True)
class Tile:
    """A tensor intrinsic in place of the innermost loops of a contraction.

    Attributes:
        intrinsic: key in the table of intrinsics.
        rows: axes held in registers as rows of the tile, by name, with the number of rows of each.
        lanes: the axis along the vectors, by name.
        vectors: vectors of a tile along `lanes`.
        depth: reduction iterators by name, outermost first.
        unroll: unroll factor of the innermost reduction iterator.
    """

    intrinsic: str
    rows: tuple[tuple[str, int], ...]
    lanes: str
    vectors: int
    depth: tuple[str, ...]
    unroll: int = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop nest.

    A stage that is placed (`at`) inside another begins with the axes under which it stands, the same symbols and kinds
    as those of the other stage; the rest are its own loops.  Its `local` buffer holds the elements that one iteration
    of these axes needs.

    Attributes:
        buffer: the buffer written; also the name of the stage.
        axes: the loops, outermost first.
        index: the element written, over the axes.
        value: its value, over the axes.
        guard: condition under which an iteration exists.
        at: inside the stage of this name, under its first so many axes; None: a phase of its own.
        tile: the register tile, set by `tensorize`.
        knobs: decisions that concern only how the stage is written as code.
        combine: a monoid: each element is the fold of the values of all iterations that write it, from its identity
            (`decompose_reduction`); None: every iteration that writes an element writes the same value.
    """

    buffer: str
    axes: tuple[Loop, ...]
    index: tuple[Size, ...]
    value: Expr
    guard: Truth = True
    at: tuple[str, int] | None = None
    tile: Tile | None = None
    knobs: tuple[tuple[str, int | str], ...] = ()
    combine: str | None = None

    def axis(self, name: str) -> Loop:
        """Return the axis of this name.

        Raises:
            InputError: there is none.
        """
        for axis in self.axes:
            if axis.symbol.name == name:
                return axis
        raise InputError(f"stage {self.buffer} has no axis {name!r}, only {[a.symbol.name for a in self.axes]}")

    def knob(self, name: str, default: int | str) -> int | str:
        """Return the value of a knob."""
        return dict(self.knobs).get(name, default)


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """Buffers (inputs, frozen, outputs, scratch, local) and stages in the order in which they run."""

    name: str
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name.

        Raises:
            InputError: there is none.
        """
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise InputError(f"{self.name} has no buffer {name!r}, only {[b.name for b in self.buffers]}")

    def stage(self, name: str) -> Stage:
        """The stage that fills this buffer.

        Raises:
            InputError: there is none.
        """
        for stage in self.stages:
            if stage.buffer == name:
                return stage
        raise InputError(f"{self.name} has no stage {name!r}, only {[s.buffer for s in self.stages]}")

    def phases(self) -> tuple[Stage, ...]:
        """The stages that are not placed inside others, in the order in which they run."""
        return tuple([s for s in self.stages if s.at is None])

    def placed(self, name: str) -> tuple[Stage, ...]:
        """The stages placed directly inside the stage of this name, in the order in which they run."""
        return tuple([s for s in self.stages if s.at is not None and s.at[0] == name])

    @property
    def pointers(self) -> tuple[Buffer, ...]:
        """The buffers that a call passes, in the order of the array of pointers that phases take."""
        return tuple([b for b in self.buffers if b.scope != "local"])
