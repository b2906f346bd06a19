"""Kernels that can be called: a module of phases with the layout of its buffers, built, run and called.

A phase is `void f(ptr bufs, i64 task)`; its tasks are independent, phases run in order.  `bufs[i]` is the address of
`Code.pointers[i]`: inputs, frozen, outputs, scratch.  `build` adds the entry points, compiles and maps the code.

`Kernel.run` takes and gives NumPy arrays (tests, workers, packing of frozen operands), `Kernel.bind` prepares a call
without arguments for timing, `Kernel.call` is used inside `jax.jit`: one FFI call, scratch as extra results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.ir.scalar import DTYPE
from superopt.kernels import jit
from superopt.kernels.llvm import Module
from superopt.kernels.stage import Buffer

Array = np.ndarray[Any, np.dtype[Any]]
_BAND_BYTES = 4096
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Phase:
    """A function over tasks.

    Attributes:
        symbol: name of `void f(ptr bufs, i64 task)` in the module.
        tasks: run for 0..tasks-1, in any order and at the same time.
        microseconds: estimate of the work of all tasks on one thread; phases too short to share run on one thread.
    """

    symbol: str
    tasks: int
    microseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """What a generator hands over: the module, its phases in order, and the buffers by position."""

    module: Module
    phases: tuple[Phase, ...]
    pointers: tuple[Buffer, ...]


class Kernel:
    """Mapped code with its buffers; made by `build`."""

    def __init__(self, code: Code, compiled: jit.Compiled) -> None:
        self.phases, self.pointers, self.compiled = code.phases, code.pointers, compiled
        self.operands = tuple([b for b in code.pointers if b.scope in ("input", "frozen")])
        self.outputs = tuple([b for b in code.pointers if b.scope == "output"])
        self.scratch = tuple([b for b in code.pointers if b.scope == "scratch"])
        self._library = jit.load(compiled)
        self._serial = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._library.address("serial"))

    @property
    def digest(self) -> str:
        """Identifies the code."""
        return self.compiled.digest

    def run(self, arrays: Mapping[str, Array], threads: int = 1, guard: bool = False) -> dict[str, Array]:
        """Run once on arrays by name of operand.

        Args:
            arrays: one per operand, of its shape and dtype; outputs may be given too and are then the initial values.
            threads: how many work on it.
            guard: put bands around all buffers and check that they are unchanged; reads of a band are NaN or 0x7F7F.

        Returns:
            The outputs by name.

        Raises:
            InputError: an operand is missing or does not fit.
        """
        placed = [_place(buffer, arrays, guard) for buffer in self.pointers]
        self._start(placed, threads)()
        if guard:
            for whole, array in placed:
                _check_band(whole, array)
        return {b.name: a for b, (_, a) in zip(self.pointers, placed, strict=True) if b.scope == "output"}

    def bind(self, arrays: Mapping[str, Array], threads: int = 1) -> Callable[[], None]:
        """A call without arguments on copies of the arrays, for timing."""
        return self._start([_place(buffer, arrays, False) for buffer in self.pointers], threads)

    def _start(self, placed: list[tuple[Array, Array]], threads: int) -> Callable[[], None]:
        addresses = (ctypes.c_void_p * max(len(placed), 1))(*[array.ctypes.data for _, array in placed])
        serial = self._serial

        def go() -> None:
            serial(ctypes.addressof(addresses))

        go.__dict__["keep"] = placed  # the arrays live as long as the call
        return go


def build(code: Code, threads_hint: int = 0, pipeline: jit.Pipeline = "auto") -> Kernel:
    """Compile and map.

    Args:
        code: the module is completed with entry points; it can be built once.
        threads_hint: most threads of a call inside jit; 0 means as many as XLA has.
        pipeline: see `superopt.kernels.jit`.

    Raises:
        CompileError: LLVM refuses the module.
    """
    serial = code.module.function("serial", [("ptr", "bufs")], internal=False)
    for phase in code.phases:

        def body(task: int | str, _: list[int | str], symbol: str = phase.symbol) -> None:
            serial.effect(f"call void @{symbol}(ptr %bufs, i64 {task})")

        serial.for_(0, phase.tasks, 1, body)
    serial.ret()
    return Kernel(code, jit.compile(code.module.text(), pipeline))


def _place(buffer: Buffer, arrays: Mapping[str, Array], guard: bool) -> tuple[Array, Array]:
    """The whole allocation as bytes, and the aligned array inside it."""
    dtype = DTYPE[buffer.dtype]
    size = int(np.prod(buffer.shape, dtype=np.int64)) * dtype.itemsize
    band = _BAND_BYTES if guard else 0
    whole = np.full(size + 2 * band + _ALIGN, 0xFF if guard else 0, np.uint8)
    start = band + (-(whole.ctypes.data + band)) % _ALIGN
    array = whole[start : start + size].view(dtype).reshape(buffer.shape)
    given = arrays.get(buffer.name)
    if given is None and buffer.scope in ("input", "frozen"):
        raise InputError(f"operand {buffer.name!r} is missing, got {sorted(arrays)}")
    if given is not None:
        given = np.asarray(given)
        if given.shape != buffer.shape or given.dtype != dtype:
            raise InputError(
                f"{buffer.name} is {buffer.dtype}{list(buffer.shape)}, got {given.dtype.name}{list(given.shape)}"
            )
        array[...] = given
    return whole, array


def _check_band(whole: Array, array: Array) -> None:
    start = array.ctypes.data - whole.ctypes.data
    if not (np.all(whole[:start] == 0xFF) and np.all(whole[start + array.nbytes :] == 0xFF)):
        raise AssertionError("a kernel wrote outside of its buffers")
