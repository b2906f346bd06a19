"""Native programs: a checked plan as code that walks its steps, called from NumPy or as one call inside XLA.

The program is a kernel of one task, whose pointers are its weights, its arguments and its outputs.  The task takes an
arena, runs the steps one after the other with the threads of the team, and gives the arena back.  Arenas are kept from
call to call, `KEPT` at most, so that calls of several threads do not wait for each other.  Where memory is short a call
waits for an arena of another.

All steps are data of the module: for each the description of its kernel (null for a copy), where its places begin,
their number, and the bytes of a copy.  A place is the number of a pointer, or the complement of an offset in the arena.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from superopt.errors import ArgumentError, UnsupportedKernel, VerificationError
from superopt.ir.scalar import DTYPE
from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Phase, build
from superopt.kernels.runtime.pages import PAGE
from superopt.kernels.runtime.team import relaxed, swapped, until
from superopt.machine.facts import usable_cores
from superopt.machine.jitting import enabled_x64
from superopt.machine.shared import Unique
from superopt.native.lowering import Lowered, buffers_of
from superopt.native.plan import ARENA, ARGUMENT, COPY, OUTPUT, WEIGHT, NativePlan, PlanSlot
from superopt.native.planner import ALIGNED_BYTES
from verifier.memory.check import faults

KEPT = 8  # arenas kept for further calls
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_ROW = "{ ptr, i64, i64, i64 }"
_ROW_BYTES = 32
_WIDE = ("float64", "int64", "uint64")


class NativeProgram(Unique):
    """A program that runs without XLA.

    Calls from several threads are safe.  Results are those of the program inside XLA in every bit.

    Attributes:
        lowered: the plan, checked against the buffers of its kernels.
        kernel: the program as one kernel, whose operands are the weights, then the arguments.
        weights: values of the weights, kept as long as the program.
        hosted: the same as `inside` with XLA between the kernels; it computes batches of `vmap`.

    Args:
        lowered: the plan.
        prepared: the prepared tensors.
        hosted: see above.
        threads: most threads of a call; 0: as many as there are processors.

    Raises:
        VerificationError: the plan has a fault.
        UnsupportedKernel: there is no memory for the arena.
    """

    def __init__(
        self, lowered: Lowered, prepared: Sequence[Any], hosted: Callable[..., tuple[Any, ...]], threads: int = 0
    ) -> None:
        self.lowered, plan = lowered, lowered.plan
        wrong = faults(plan.to_json(), buffers_of(lowered.kernels))
        if wrong:
            raise VerificationError(f"the plan of a native program: {wrong[0]}")
        self.weights = (*prepared, *lowered.literals)
        self.hosted, self._wide = hosted, any(slot.type.dtype in _WIDE for slot in plan.slots)
        self.kernel = build(_code(lowered, threads or usable_cores()), pipeline="lite")
        self._put_by()
        weakref.finalize(self, ctypes.CFUNCTYPE(None)(self.kernel.address("native.drain"))).atexit = False
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64)(self.kernel.address("native.run"))
        self._arguments = [_array_type(slot) for slot in plan.of_kind(ARGUMENT)]
        self._outputs = [_array_type(slot) for slot in plan.of_kind(OUTPUT)]
        self._held = [np.asarray(x) for x in self.weights]
        self._head = struct.pack(f"{len(self._held)}Q", *[x.ctypes.data for x in self._held])
        self._rest = struct.Struct(f"{len(self._arguments) + len(self._outputs)}Q")

    def _put_by(self) -> None:
        """Allocate the first arena."""
        arena = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.kernel.address("native.allocate"))()
        if not arena:
            raise UnsupportedKernel(f"no memory for an arena of {self.lowered.plan.arena_bytes} bytes")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.kernel.address("native.give"))(arena)

    def __call__(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the results for these arguments.

        Raises:
            ArgumentError: their number, a shape or a dtype is not that of the program.
        """
        given, outputs = self._placed(arrays)
        self._run(self._pointers(given, outputs), 0)
        return outputs

    def bind(self, *arrays: np.ndarray) -> tuple[Callable[[], None], tuple[np.ndarray, ...]]:
        """Return a call without arguments that reads these arrays as they are then, and the results that it fills.

        Raises:
            ArgumentError: as for a call, or an argument cannot be read where it lies.
        """
        given, outputs = self._placed(arrays)
        if any(x is not y for x, y in zip(arrays, given, strict=True)):
            raise ArgumentError("an argument has another dtype, or its elements do not lie one after the other")
        run, pointers = self._run, self._pointers(given, outputs)

        def go(keep: object = (self, given, outputs)) -> None:
            run(pointers, 0)

        return go, outputs

    def _placed(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[np.ndarray, ...]]:
        """Return the arguments as the kernels read them, and new results."""
        if len(arrays) != len(self._arguments):
            raise ArgumentError(f"the program has {len(self._arguments)} arguments, got {len(arrays)}")
        given = [x if _fits(x, *kind) else _taken(x, *kind) for x, kind in zip(arrays, self._arguments, strict=True)]
        return given, tuple([np.empty(shape, dtype) for shape, dtype in self._outputs])

    def _pointers(self, given: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> bytes:
        """Return the addresses of weights, arguments and results one after the other."""
        return self._head + self._rest.pack(*map(_address, given), *map(_address, outputs))

    def inside(self, *arrays: Any) -> tuple[Any, ...]:
        """Return the results as one call inside XLA, for the live inputs followed by the prepared tensors."""

        @jax.custom_batching.custom_vmap
        def call(*arrays: Any) -> tuple[Any, ...]:
            live, prepared = arrays[: len(self._arguments)], arrays[len(self._arguments) :]
            with enabled_x64(self._wide):
                return self.kernel.call(*prepared, *self.weights[len(prepared) :], *live)

        @call.def_vmap
        def _(size: int, batched: Sequence[bool], *arrays: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
            axes = [0 if moving else None for moving in batched]
            return jax.vmap(self.hosted, axes, axis_size=size)(*arrays), tuple(True for _ in self._outputs)

        return call(*arrays)


def _array_type(slot: PlanSlot) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(map(int, slot.type.shape)), DTYPE[slot.type.dtype]  # pyright: ignore[reportArgumentType] (concrete)


def _fits(x: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return type(x) is np.ndarray and x.dtype == dtype and x.shape == shape and x.flags.c_contiguous


def _taken(x: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an argument of another kind as a NumPy array whose elements lie one after the other."""
    array = np.ascontiguousarray(x)
    if array.dtype != dtype or np.shape(x) != shape:
        raise ArgumentError(f"an argument is {array.dtype.name}{list(np.shape(x))}, not {dtype.name}{list(shape)}")
    return array.reshape(shape)


def _address(x: np.ndarray) -> int:
    """Return where the elements of an array begin."""
    if x.flags.writeable and x.size:
        memory: Any = x  # a buffer for readers of types from Python 3.12 on
        try:
            return ctypes.addressof(ctypes.c_char.from_buffer(memory))  # a third of the time of the other way
        except ValueError:  # buffers have no bfloat16
            return x.ctypes.data
    return x.ctypes.data


# ---- code


def _code(lowered: Lowered, threads: int) -> Code:
    """Return the code of a program: its steps as data, and the function that walks them."""
    plan, module = lowered.plan, Module()
    pointers = [
        Buffer(f"{kind}{slot.at}", tuple(map(int, slot.type.shape)), slot.type.dtype, scope)  # pyright: ignore[reportArgumentType] (concrete)
        for kind, scope in ((WEIGHT, "frozen"), (ARGUMENT, "input"), (OUTPUT, "output"))
        for slot in plan.of_kind(kind)
    ]
    _emit_table(module, plan, [b.name for b in pointers])
    _emit_arenas(module, plan.arena_bytes)
    _emit_walk(module, plan, threads)
    f = module.function("native.run", [("ptr", "bufs"), ("i64", "task")], internal=False)
    arena = f.call("ptr", "native.take")
    f.effect(f"call void @native.walk(ptr %bufs, ptr {arena})")
    f.effect(f"call void @native.give(ptr {arena})")
    f.ret()
    imports = {kernel_symbol(digest): kernel.address("kernel") for digest, kernel in lowered.kernels.items()}
    return Code(module, (Phase("native.run", 1),), tuple(pointers), "native program", imports)


def kernel_symbol(digest: str) -> str:
    """Return the name under which a program calls the kernel of this digest."""
    return f"native.kernel.{digest}"


def _emit_table(module: Module, plan: NativePlan, pointers: Sequence[str]) -> None:
    """Write the rows of the steps, and the places of all of them one after the other."""
    number = {name: i for i, name in enumerate(pointers)}
    places: list[int] = []
    rows: list[str] = []
    for step in plan.steps:
        kernel = "null" if step.kernel == COPY else f"@{kernel_symbol(step.kernel)}"
        if step.kernel != COPY:
            module.declare(f"{kernel} = external global i8")
        size = plan.slots[step.reads[0]].size_bytes if step.kernel == COPY else 0
        rows.append(f"{_ROW} {{ ptr {kernel}, i64 {len(places)}, i64 {len(step.slots)}, i64 {size} }}")
        slots = [plan.slots[i] for i in step.slots]
        places += [~slot.at if slot.kind == ARENA else number[f"{slot.kind}{slot.at}"] for slot in slots]
    module.constant("native.table", f"[{len(rows)} x {_ROW}]", f"[{', '.join(rows)}]")
    module.constant("native.places", f"[{len(places)} x i64]", f"[{', '.join([f'i64 {x}' for x in places])}]")


def _emit_walk(module: Module, plan: NativePlan, threads: int) -> None:
    """Write `void native.walk(ptr bufs, ptr arena)`: all steps, one after the other."""
    module.declare("declare void @runtime.region(ptr, ptr, i64)")
    module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    f = module.function("native.walk", [("ptr", "bufs"), ("ptr", "arena")])
    passed = f.alloca(max([len(step.slots) for step in plan.steps], default=1), 16, "ptr")

    def run(number: Value, _: list[Value]) -> None:
        row = f.element("@native.table", f.mul(number, _ROW_BYTES), "i8")
        kernel = f.load("ptr", row)
        first, count, size = [f.load("i64", f.element(row, offset, "i8")) for offset in (8, 16, 24)]

        def place(j: Value, _: list[Value]) -> None:
            at = f.load("i64", f.element("@native.places", f.add(first, j), "i64"))
            inside = f.less(at, 0)
            given = f.load("ptr", f.element("%bufs", f.maximum(at, 0), "ptr"))
            moved = f.element("%arena", f.value(f"xor i64 {at}, -1"), "i8")
            f.store("ptr", f.value(f"select i1 {inside}, ptr {moved}, ptr {given}"), f.element(passed, j, "ptr"))

        def copy() -> None:
            source, target = f.load("ptr", passed), f.load("ptr", f.element(passed, 1, "ptr"))
            f.effect(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

        f.for_(0, count, 1, place)
        called = f.value(f"icmp ne ptr {kernel}, null")
        f.if_(called, lambda: f.effect(f"call void @runtime.region(ptr {kernel}, ptr {passed}, i64 {threads})"), copy)

    f.for_(0, len(plan.steps), 1, run)
    f.ret()


def _emit_arenas(module: Module, arena_bytes: int) -> None:
    """Write the functions that allocate an arena, take one, give it back, and free those kept.

    `ptr native.allocate()` returns null where there is no memory; `ptr native.take()` waits for the arena of another
    call then.  `void native.give(ptr arena)`, `void native.drain()`.
    """
    module.variable("native.kept", f"[{KEPT} x i64]", "zeroinitializer")
    module.declare("declare void @free(ptr)")
    _emit_allocate(module, arena_bytes)
    f = module.function("native.take", [], returns="ptr")
    arena = f.alloca(1, 8, "i64")

    def look(j: Value, held: list[Value]) -> list[Value]:
        slot = f.element("@native.kept", j, "i64")
        empty, there = f.value(f"icmp eq i64 {held[0]}, 0"), f.value(f"icmp ne i64 {relaxed(f, slot)}, 0")
        return f.if_(f.value(f"and i1 {empty}, {there}"), lambda: [_exchanged(f, slot)], lambda: held, ["i64"])

    def taken() -> str:
        held = f.for_(0, KEPT, 1, look, [("i64", 0)])[0]
        fresh = f.if_(
            f.value(f"icmp eq i64 {held}, 0"),
            lambda: [f.value(f"ptrtoint ptr {f.call('ptr', 'native.allocate')} to i64")],
            lambda: [held],
            ["i64"],
        )[0]
        f.store("i64", fresh, arena)
        return f.value(f"icmp ne i64 {fresh}, 0")

    until(f, taken)
    f.ret("ptr", f.load("ptr", arena))
    _emit_give(module)


def _emit_allocate(module: Module, arena_bytes: int) -> None:
    """Write the function that allocates an arena, in large pages where it fills one."""
    large = arena_bytes >= PAGE and _ADVICE is not None
    align = PAGE if large else ALIGNED_BYTES
    size = max(-(-arena_bytes // align), 1) * align
    module.declare("declare i32 @posix_memalign(ptr, i64, i64)")
    module.declare("declare i32 @madvise(ptr, i64, i32)")
    f = module.function("native.allocate", [], returns="ptr", internal=False)
    room = f.alloca(1, 8, "ptr")
    f.store("ptr", "null", room)
    failed = f.call("i32", "posix_memalign", ("ptr", room), ("i64", align), ("i64", size))
    f.exit_if(f.value(f"icmp ne i32 {failed}, 0"), "ptr", lambda: "null")
    arena = f.load("ptr", room)
    if large:
        f.call("i32", "madvise", ("ptr", arena), ("i64", size), ("i32", str(_ADVICE)))
    f.ret("ptr", arena)


def _emit_give(module: Module) -> None:
    """Write the functions that keep an arena for further calls, or free it, and that free those kept."""
    f = module.function("native.give", [("ptr", "arena")], internal=False)

    def keep(j: Value, left: list[Value]) -> list[Value]:
        slot = f.element("@native.kept", j, "i64")
        holding, empty = f.value(f"icmp ne i64 {left[0]}, 0"), f.value(f"icmp eq i64 {relaxed(f, slot)}, 0")

        def kept() -> list[Value]:
            return [f.value(f"select i1 {swapped(f, slot, 0, left[0])}, i64 0, i64 {left[0]}")]

        return f.if_(f.value(f"and i1 {holding}, {empty}"), kept, lambda: left, ["i64"])

    left = f.for_(0, KEPT, 1, keep, [("i64", f.value("ptrtoint ptr %arena to i64"))])[0]
    f.effect(f"call void @free(ptr {f.value(f'inttoptr i64 {left} to ptr')})")
    f.ret()
    f = module.function("native.drain", [], internal=False)

    def drain(j: Value, _: list[Value]) -> None:
        held = _exchanged(f, f.element("@native.kept", j, "i64"))
        f.effect(f"call void @free(ptr {f.value(f'inttoptr i64 {held} to ptr')})")

    f.for_(0, KEPT, 1, drain)
    f.ret()


def _exchanged(f: Function, slot: str) -> str:
    """Take an address out of a place that other threads use, and leave 0."""
    return f.value(f"atomicrmw xchg ptr {slot}, i64 0 acq_rel")
