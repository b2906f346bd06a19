"""Callable kernels: a module of phases with the layout of its buffers, built, run and called.

A phase is `void f(ptr bufs, i64 task)`; its tasks are independent, phases run in order.  `bufs[i]` is the address of
`Code.pointers[i]`: inputs, frozen, outputs, scratch.  `build` adds a description (`entry`), compiles and maps the code.

`Kernel.run` takes and gives NumPy arrays (tests, workers, packing of frozen operands).  `Kernel.bind` prepares a call
without arguments for timing.  `Kernel.call` is used inside `jax.jit`: one FFI call, scratch as extra results.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import InputError, SuperoptError, UnsupportedKernel
from superopt.ir.scalar import DTYPE
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.module import Module
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime import ffi, pages, pool, rooms, team
from superopt.kernels.runtime.entry import describe
from superopt.kernels.runtime.ffi_layout import FfiLayout, layout
from superopt.machine.shared import once

SERIAL_BELOW_MICROSECONDS = 2.0  # asking helpers that are awake costs about 1
MOST_THREADS = 256
MOST_STACK_BYTES = 4 << 20  # half of a thread's usual stack
_SERIAL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_UNKNOWN_MICROSECONDS = 1000.0  # time of a phase without an estimate: shared until it is measured
_BAND_BYTES = 4096
_ALIGN = 64
_ROOM_BYTES = 16 << 20  # bytes that a room allocates at once


@dataclass(frozen=True, slots=True)
class Phase:
    """A function over tasks.

    Attributes:
        symbol: name of `void f(ptr bufs, i64 task)` in the module.
        tasks: number of tasks; 0..tasks-1 run in any order and at the same time.
        microseconds: estimate of the work of all tasks on one thread, until calls have measured it; kernels far too
            short to share run on one thread.
    """

    symbol: str
    tasks: int
    microseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Generated code of a kernel.

    Attributes:
        module: the functions of its phases.
        phases: the phases in order.
        pointers: the buffers by position.
        name: name in messages.
        imports: addresses of what the module refers to besides the runtime; its text identifies them.
    """

    module: Module
    phases: tuple[Phase, ...]
    pointers: tuple[Buffer, ...]
    name: str = "kernel"
    imports: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def heap_bytes(self) -> int:
        """The most bytes that a task allocates on the heap."""
        return rooms.needed([size for f in self.module.functions.values() for size in f.rooms])

    @property
    def stack_bytes(self) -> int:
        """The most bytes that a function keeps on the stack."""
        return max([f.stack_bytes for f in self.module.functions.values()], default=0)


class Kernel:
    """Mapped code with its buffers; made by `build`.

    Raises:
        UnsupportedKernel: there is not enough memory for its tasks.

    Attributes:
        phases, pointers: as in the code.
        operands: inputs and frozen buffers, in the order of the arguments of `call`.
        outputs, scratch: in the order of the results of the FFI call.
        compiled: the object file and its facts.
        heap_bytes: the most bytes that a task allocates on the heap.
    """

    def __init__(self, code: Code, compiled: jit.Compiled) -> None:
        self.name = code.name
        self.phases, self.pointers, self.compiled = code.phases, code.pointers, compiled
        self.operands = tuple([b for b in code.pointers if b.scope in ("input", "frozen")])
        self.outputs = tuple([b for b in code.pointers if b.scope == "output"])
        self.scratch = tuple([b for b in code.pointers if b.scope == "scratch"])
        shape, runtime = _shape(), _entries()
        imports = {"runtime.handle": runtime.address("runtime.handle" if shape else "runtime.serial")}
        imports |= {"runtime.region": runtime.address("runtime.region"), **code.imports}
        imports |= {name: runtime.address(own) for name, own in rooms.IMPORTS.items()}
        self._library = jit.load(compiled, imports)
        self.heap_bytes = ctypes.c_int64.from_address(self._library.address("kernel.rooms")).value
        if self.heap_bytes:
            rooms.put_by(runtime.address("runtime.reserve"), self.heap_bytes)
        self._description = self._library.address("kernel")

    @property
    def digest(self) -> str:
        """The digest of the code; part of the name under which XLA knows it."""
        return self.compiled.digest

    def address(self, symbol: str) -> int:
        """Return the address of `handler`, which XLA calls, or of the description `kernel`."""
        return self._library.address(symbol)

    def call(self, *arrays: Any, vmap_method: str = "broadcast_all") -> tuple[Any, ...]:
        """Return the outputs for jax arrays; usable inside `jax.jit` and `jax.vmap`, without derivatives of its own.

        Args:
            arrays: one per operand, in order.
            vmap_method: see `jax.ffi.ffi_call`; `broadcast_all` is one call over the batch, `sequential` a loop.

        Raises:
            InputError: the arrays do not fit the operands.
            FfiUnavailable: kernels cannot be called from XLA here.
        """
        reason = ffi.probe()
        if reason:
            raise ffi.FfiUnavailable(reason)
        import jax  # late: runs outside of XLA do without

        self._check([(tuple(np.shape(a)), jax.dtypes.result_type(a).name) for a in arrays])
        name = ffi.register(self.digest, self._library.address("handler"))
        results = [jax.ShapeDtypeStruct(b.shape, DTYPE[b.dtype]) for b in self.pointers if b not in self.operands]
        outputs = jax.ffi.ffi_call(name, results, vmap_method=vmap_method)(*arrays)
        named = dict(zip([b.name for b in self.pointers if b not in self.operands], outputs, strict=True))
        return tuple([named[b.name] for b in self.outputs])

    def run(self, arrays: Mapping[str, np.ndarray], threads: int = 1, guard: bool = False) -> dict[str, np.ndarray]:
        """Run once on arrays by name of operand.

        Args:
            arrays: one per operand, of its shape and dtype; outputs may be given too and are then the initial values.
            threads: most threads that work on it, counting the caller.
            guard: put bands of 0xFF bytes (NaN, -1) around all buffers, and check that they are unchanged.

        Returns:
            The outputs by name.

        Raises:
            InputError: an operand is missing or does not fit.
            GuardError: something was written outside of the buffers.
        """
        placed = [_place(buffer, arrays, guard) for buffer in self.pointers]
        self._start(placed, threads)()
        if guard:
            for buffer, (whole, array) in zip(self.pointers, placed, strict=True):
                _check_band(buffer, whole, array)
        return {b.name: a for b, (_, a) in zip(self.pointers, placed, strict=True) if b.scope == "output"}

    def bind(
        self, arrays: Mapping[str, np.ndarray], threads: int = 1, room: Room | None = None, turn: int = 0
    ) -> Callable[[], None]:
        """Return a call without arguments, for timing, on copies of the arrays or on a room's buffers for a turn."""
        if room is not None:
            return self._start(room.placed(self.pointers, arrays, turn), threads)
        return self._start([_place(buffer, arrays, False) for buffer in self.pointers], threads)

    def _start(self, placed: list[tuple[np.ndarray, np.ndarray]], threads: int) -> Callable[[], None]:
        addresses = (ctypes.c_void_p * max(len(placed), 1))(*[array.ctypes.data for _, array in placed])
        runtime, bufs = _entries(), ctypes.addressof(addresses)
        if threads <= 1 or not self.parallel:
            entry = _SERIAL(runtime.address("runtime.serial"))
            args = (self._description, bufs)
        else:
            entry = _REGION(runtime.address("runtime.region"))
            args = (self._description, bufs, threads)

        def go(keep: object = (addresses, placed)) -> None:
            entry(*args)

        return go

    @property
    def parallel(self) -> bool:
        """Whether phases are shared among threads; otherwise every call runs on the calling thread."""
        return shared(self.phases)

    def _check(self, given: Sequence[tuple[tuple[int, ...], str]]) -> None:
        expected = [(b.shape, b.dtype) for b in self.operands]
        if list(given) != expected:
            wanted = ", ".join([f"{b.name}: {b.dtype}{list(b.shape)}" for b in self.operands])
            got = ", ".join([f"{dtype}{list(shape)}" for shape, dtype in given])
            raise InputError(f"kernel {self.name} takes ({wanted}), got ({got})")


class GuardError(SuperoptError):
    """A kernel wrote outside of its buffers: an error of the generator."""

    code = "SO520"


class Room:
    """Buffers that kernels of one operator share, so that all candidates are timed on the same memory placement.

    An operand is copied once for each array that is given for it.  A frozen operand is copied for each turn as well:
    calls that take turns find it cold.  Results and scratch are overwritten by every run.  All buffers lie in large
    pages one after the other.  In small pages it is luck which of them fall on the same sets of a cache, and a kernel
    is up to 40 % slower in one process than in the next.
    """

    def __init__(self) -> None:
        self._free = np.zeros(0, np.uint8)
        self._known: dict[tuple[object, ...], tuple[Buffer, np.ndarray | None, np.ndarray, np.ndarray]] = {}

    def placed(
        self, buffers: Sequence[Buffer], arrays: Mapping[str, np.ndarray], turn: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return allocation and array of each buffer, with bands of 0xFF bytes around it."""
        placed: list[tuple[np.ndarray, np.ndarray]] = []
        for b in buffers:
            given = arrays.get(b.name)
            key = (b, id(given) if b.scope in ("input", "frozen") else None, turn if b.scope == "frozen" else 0)
            if key not in self._known:
                self._known[key] = (b, given, *_place(b, arrays, True, self._taken))  # a given array keeps its id
            placed.append(self._known[key][2:])
        return placed

    def _taken(self, size: int) -> np.ndarray:
        if size > len(self._free):
            self._free = pages.large_bytes(max(size, _ROOM_BYTES))
        taken, self._free = self._free[:size], self._free[size:]
        return taken

    def clear(self, buffers: Sequence[Buffer]) -> None:
        """Fill buffers of these results with 0xFF bytes, NaN among floats, so that unwritten elements are visible."""
        for _, array in self.placed(buffers, {}):
            array.reshape(-1).view(np.uint8)[:] = 0xFF

    def check(self, buffers: Sequence[Buffer], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of the buffers.

        Raises:
            GuardError: something was written outside of one.
        """
        placed = self.placed(buffers, arrays)
        for b, (whole, array) in zip(buffers, placed, strict=True):
            _check_band(b, whole, array)
        return [array for _, array in placed]


def shared(phases: Sequence[Phase]) -> bool:
    """Whether a kernel's tasks are worth sharing among threads, by its known work and number of tasks."""
    known = [p.microseconds for p in phases if p.microseconds is not None]
    worth = len(known) < len(phases) or sum(known) >= SERIAL_BELOW_MICROSECONDS
    return worth and any(p.tasks > 1 for p in phases)


def build(code: Code, threads_hint: int = 0, pipeline: jit.Pipeline = "auto", cache: Path | None = None) -> Kernel:
    """Compile and map the code of a kernel.

    Args:
        code: not changed, so that it can be built again.
        threads_hint: most threads of a call inside jit; 0 means as many as XLA has.
        pipeline: see `superopt.kernels.llvm.jit`.
        cache: folder of objects; the user's cache folder when None.

    Raises:
        CompileError: LLVM refuses the module.
        UnsupportedKernel: it keeps more on the stack than a thread may have.
    """
    if code.stack_bytes > MOST_STACK_BYTES:
        raise UnsupportedKernel(
            f"{code.name} keeps {code.stack_bytes} bytes on the stack, more than {MOST_STACK_BYTES}"
        )
    module, shape = code.module.copy(), _shape()
    phases = [(p.symbol, p.tasks) for p in code.phases]
    threads = (threads_hint or MOST_THREADS) if shared(code.phases) else 1
    known = [p.microseconds for p in code.phases]
    work = sum([_UNKNOWN_MICROSECONDS if us is None else us for us in known]) * team.TICKS_PER_MICROSECOND
    module.constant("kernel.rooms", "i64", str(code.heap_bytes), exported=True)
    describe(module, code.name, phases, code.pointers, threads, ffi.codes(shape) if shape else {}, int(work))
    return Kernel(code, jit.compile(module.text(), pipeline, cache))


def _shape() -> FfiLayout | None:
    """Return the layout of XLA's FFI structs; None where there is none: kernels then run outside of XLA only."""
    try:
        return layout()
    except ffi.FfiUnavailable:
        return None


def shared_code(shape: FfiLayout | None = None) -> jit.Compiled:
    """Return the object of the code that all kernels share; with a layout, also of the handler that XLA calls."""
    module = Module()
    pool.emit_serial(module)
    pool.emit_region(module)
    rooms.emit_rooms(module)
    if shape is not None:
        ffi.emit_handler(module, shape)
    return jit.compile(module.text(), "lite")


@once
def _entries() -> jit.Library:
    """Return the library of code that all kernels share."""
    library = jit.load(shared_code(_shape()))
    members = ctypes.CFUNCTYPE(ctypes.c_void_p)(library.address("runtime.members"))()
    os.register_at_fork(after_in_child=lambda: team.reset(members))
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(library.address("runtime.reserve.forget")))
    return library


def _place(
    buffer: Buffer, arrays: Mapping[str, np.ndarray], guard: bool, taken: Callable[[int], np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole allocation as bytes, and the aligned array inside it."""
    dtype = DTYPE[buffer.dtype]
    size = math.prod(buffer.shape) * dtype.itemsize
    band = _BAND_BYTES if guard else 0
    room = size + 2 * band + _ALIGN
    whole = np.empty(room, np.uint8) if taken is None else taken(room)
    whole[:] = 0xFF if guard else 0
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


def _check_band(buffer: Buffer, whole: np.ndarray, array: np.ndarray) -> None:
    start = array.ctypes.data - whole.ctypes.data
    if not (np.all(whole[:start] == 0xFF) and np.all(whole[start + array.nbytes :] == 0xFF)):
        raise GuardError(f"a kernel wrote outside of {buffer.name}")
