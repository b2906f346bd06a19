"""Loop programs run the slow way: loop by loop in the order in which they stand, one element at a time.

Unlike `superopt.kernels.loops.evaluate` this follows the placement of stages, and a read outside of a buffer, of an
element that nothing has written, or of a local buffer after its iteration, is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from superopt.ir.fold import fold
from superopt.ir.index import Guard, Size, Symbol, substitute
from superopt.ir.interp import Numbers
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.scalar import numpy_dtype
from superopt.kernels.loops.evaluate import FOLD
from superopt.kernels.loops.stage import LoopProgram, Stage


class BadAccess(Exception):
    """A read or write that a kernel may not do."""


class _Points(Numbers):
    """Scalars one at a time; a reduction goes step by step."""

    def op(self, fn: str, dtype: str, *args: Any) -> Any:
        depth, self.depth = self.depth, 0
        try:
            return super().op(fn, dtype, *args)
        finally:
            self.depth = depth

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Any], dtype: str) -> Any:
        wide = numpy_dtype(accumulator(dtype), self.wide).type
        total = wide(identity(monoid, dtype))
        for point in itertools.product(*[range(int(n)) for n in extents]):  # pyright: ignore[reportArgumentType]
            total = FOLD[monoid](total, wide(body(*point)))
        return numpy_dtype(dtype, self.wide).type(total)


class _Memory:
    """The elements of a buffer, and which of them are written."""

    def __init__(self, name: str, shape: Sequence[int], kind: Any) -> None:
        self.name = name
        self.data = np.zeros(tuple(shape), kind)
        self.written = np.zeros(tuple(shape), bool)

    def check(self, index: tuple[int, ...], what: str) -> None:
        if not all(0 <= i < n for i, n in zip(index, self.data.shape, strict=True)):
            raise BadAccess(f"{what} of {self.name}{list(index)}, which has shape {self.data.shape}")

    def read(self, index: tuple[int, ...]) -> Any:
        self.check(index, "read")
        if not self.written[index]:
            raise BadAccess(f"read of {self.name}{list(index)}, which is not written")
        return self.data[index]


def execute(program: LoopProgram, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values of the outputs, in float64.

    Raises:
        BadAccess: a read or write outside of a buffer, a read of what is not written, or an output left unwritten.
    """
    memory: dict[str, _Memory] = {}
    for b in program.buffers:
        memory[b.name] = _Memory(b.name, b.shape, numpy_dtype(b.dtype, True))
        if b.scope in ("input", "frozen"):
            memory[b.name].data[...] = arrays[b.name]
            memory[b.name].written[...] = True
    with np.errstate(all="ignore"):
        for stage in program.phases():
            _run(program, stage, memory, {}, 0)
    outputs = [b.name for b in program.buffers if b.scope == "output"]
    for name in outputs:
        if not memory[name].written.all():
            raise BadAccess(f"{name} is not written everywhere")
    return {name: memory[name].data for name in outputs}


def _run(program: LoopProgram, stage: Stage, memory: dict[str, _Memory], env: dict[Symbol, Size], done: int) -> None:
    """The stage from its axis number `done` on, with the values of the axes around it."""
    if done == 0 or (stage.at is not None and done == stage.at[1]):
        memory[stage.buffer].written[...] = stage.combine is not None
        if stage.combine is not None:
            memory[stage.buffer].data[...] = identity(stage.combine, program.buffer(stage.buffer).dtype)
    for inner in program.placed(stage.buffer):
        if inner.at is not None and inner.at[1] == done:
            _run(program, inner, memory, env, done)
    if done < len(stage.axes):
        for value in range(stage.axes[done].extent):
            _run(program, stage, memory, env | {stage.axes[done].symbol: value}, done + 1)
        for inner in program.placed(stage.buffer):
            if inner.at is not None and inner.at[1] == done + 1:
                memory[inner.buffer].written[...] = False
        return
    guard = stage.guard
    algebra = _Points(wide=True)

    def read(name: str, index: tuple[Any, ...]) -> Any:
        return memory[name].read(tuple(int(i) for i in index))

    def at(x: Size) -> int:
        found = substitute(x, env)
        assert isinstance(found, int), f"an index that is read: {found}"
        return found

    if guard is False or (isinstance(guard, Guard) and not all(at(p) >= 0 for p in guard.ordered)):
        return
    value = fold(stage.value, algebra, read, env)
    index = tuple(at(x) for x in stage.index)
    target = memory[stage.buffer]
    target.check(index, "write")
    target.data[index] = value if stage.combine is None else FOLD[stage.combine](target.data[index], value)
    target.written[index] = True
