"""Native programs: a checked plan as code that walks its steps, called from NumPy or as one call inside XLA.

The program is a kernel of one task, whose pointers are its weights, its arguments and its outputs.  The task takes an
arena, runs the steps one after the other with the threads of the team, and gives the arena back.  Arenas are kept from
call to call, `KEPT` at most, so that calls of several threads do not wait for each other.  Where memory is short a call
waits for an arena of another.

All steps are data of the module, a row each: the kind, the description of a kernel, where its numbers begin, how many
they are, and the bytes of a copy.  The numbers of a call or a copy are its slots.  Those of a view are two slots, the
offset and the stride.  Those of a loop are the trips, the rows of its condition and its body, and which slots are set
to which before the first trip and behind each.  A call of the program keeps the address of every slot; views and loops
change those of moving ones.
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
from superopt.kernels.llvm.jit import Compiled
from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime.kernel import Code, Kernel, Phase, build
from superopt.kernels.runtime.pages import PAGE
from superopt.kernels.runtime.team import clock, relaxed, swapped, until
from superopt.machine.facts import usable_cores
from superopt.machine.jitting import enabled_x64
from superopt.machine.shared import Unique
from superopt.native.lowered import Lowered, buffers_of
from superopt.native.plan import (
    ARENA,
    ARGUMENT,
    COPY,
    OUTPUT,
    WEIGHT,
    AnyStep,
    NativePlan,
    PlanChoice,
    PlanLoop,
    PlanSlot,
    PlanStep,
    PlanView,
)
from superopt.native.planner import ALIGNED_BYTES
from verifier.memory.check import faults

KEPT = 8  # arenas kept for further calls
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_ROW = "{ ptr, i64, i64, i64, i64 }"
_ROW_BYTES = 40
_CALLS, _COPIES, _VIEWS, _LOOPS, _CHOICES = range(5)  # kinds of rows
_LOOP_FIELDS = ("trips", "goes_on", "condition", "conditions", "body", "steps", "begins", "ends")
_CHOICE_FIELDS = ("index", "index_bytes", "branches", "results")
_WIDE = ("float64", "int64", "uint64")


class NativeProgram(Unique):
    """A program that runs without XLA.

    Calls from several threads are safe.  Results are those of the program inside XLA in every bit.

    Attributes:
        lowered: the plan, checked against the buffers of its kernels.
        kernel: the program as one kernel, whose operands are the weights, then the arguments.
        weights: values of the weights, kept as long as the program.
        wide: whether it has values of 64 bits.
        hosted: the same as `inside` with XLA between the kernels; it computes batches of `vmap`.

    Args:
        lowered: the plan.
        prepared: the prepared tensors.
        hosted: see above.
        threads: most threads of a call; 0: as many as there are processors.
        timed: whether it keeps the times of its steps, of which `native.times()` returns the address.
        compiled: the object of its own code, where that was made before for this plan and as many threads.

    Raises:
        VerificationError: the plan has a fault.
        UnsupportedKernel: there is no memory for the arena.
    """

    def __init__(
        self,
        lowered: Lowered,
        prepared: Sequence[Any],
        hosted: Callable[..., tuple[Any, ...]],
        threads: int = 0,
        compiled: Compiled | None = None,
        *,
        timed: bool = False,
    ) -> None:
        self.lowered, plan = lowered, lowered.plan
        wrong = faults(plan.to_json(), buffers_of(lowered.kernels))
        if wrong:
            raise VerificationError(f"the plan of a native program: {wrong[0]}")
        self.weights = (*prepared, *lowered.literals)
        self.hosted, self.wide = hosted, any(slot.type.dtype in _WIDE for slot in plan.slots)
        if compiled is None:
            self.kernel = build(_code(lowered, threads or usable_cores(), timed), pipeline="lite")
        else:
            self.kernel = Kernel(_around(lowered, Module()), compiled)
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
            with enabled_x64(self.wide):
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


def _code(lowered: Lowered, threads: int, timed: bool) -> Code:
    """Return the code of a program: its steps as data, and the functions that walk them."""
    plan, module = lowered.plan, Module()
    code = _around(lowered, module)
    table = StepTable(plan)
    main = table.add(plan.steps)
    table.emit(module)
    _emit_arenas(module, plan.arena_bytes)
    if timed:
        _emit_times(module, len(table.rows))
    _emit_walk(module, max([len(step.slots) for step in plan.every_step()], default=1), threads, timed)
    _emit_loop(module)
    _emit_choice(module)
    number = {b.name: i for i, b in enumerate(code.pointers)}
    places = [~slot.at if slot.kind == ARENA else number.get(f"{slot.kind}{slot.at}", 0) for slot in plan.slots]
    module.constant("native.places", f"[{len(places)} x i64]", f"[{', '.join([f'i64 {x}' for x in places])}]")
    f = module.function("native.run", [("ptr", "bufs"), ("i64", "task")], internal=False)
    arena, frame = f.call("ptr", "native.take"), f.alloca(len(places) + table.hidden, 16, "ptr")

    def place(j: Value, _: list[Value]) -> None:
        at = f.load("i64", f.element("@native.places", j, "i64"))
        given = f.load("ptr", f.element("%bufs", f.maximum(at, 0), "ptr"))
        inside = f.element(arena, f.value(f"xor i64 {at}, -1"), "i8")
        f.store("ptr", f.value(f"select i1 {f.less(at, 0)}, ptr {inside}, ptr {given}"), f.element(frame, j, "ptr"))

    f.for_(0, len(places), 1, place)
    _walk(f, frame, *main, 0)
    f.effect(f"call void @native.give(ptr {arena})")
    f.ret()
    return code


def _around(lowered: Lowered, module: Module) -> Code:
    """Return a module as the code of a program, with its pointers and the kernels that it calls."""
    pointers = [
        Buffer(f"{kind}{slot.at}", tuple(map(int, slot.type.shape)), slot.type.dtype, scope)  # pyright: ignore[reportArgumentType] (concrete)
        for kind, scope in ((WEIGHT, "frozen"), (ARGUMENT, "input"), (OUTPUT, "output"))
        for slot in lowered.plan.of_kind(kind)
    ]
    imports = {kernel_symbol(digest): kernel.address("kernel") for digest, kernel in lowered.kernels.items()}
    return Code(module, (Phase("native.run", 1),), tuple(pointers), "native program", imports)


def kernel_symbol(digest: str) -> str:
    """Return the name under which a program calls the kernel of this digest."""
    return f"native.kernel.{digest}"


class StepTable:
    """Rows of steps and their numbers; rows of a body stand together, behind those of the loops in it.

    Attributes:
        steps: the step of each row.
        hidden: slots behind those of the plan: the other one of two that a carry takes by turns.
    """

    def __init__(self, plan: NativePlan) -> None:
        self.plan, self.hidden = plan, 0
        self.rows: list[str] = []
        self.steps: list[AnyStep] = []
        self.numbers: list[int] = []
        self.kernels: dict[str, None] = {}

    def add(self, steps: Sequence[AnyStep]) -> tuple[int, int]:
        """Add steps, and return the first of their rows and the number of these."""
        rows = [self._row(step) for step in steps]
        self.rows += rows
        self.steps += steps
        return len(self.rows) - len(rows), len(rows)

    def _row(self, step: AnyStep) -> str:
        match step:
            case PlanStep():
                size = self.plan.slots[step.reads[0]].size_bytes if step.kernel == COPY else 0
                if step.kernel == COPY:
                    return self._filled("null", _COPIES, step.slots, size)
                self.kernels[step.kernel] = None
                return self._filled(f"@{kernel_symbol(step.kernel)}", _CALLS, step.slots)
            case PlanView():
                return self._filled("null", _VIEWS, (step.slot, step.of, step.at, step.stride))
            case PlanLoop():
                return self._filled("null", _LOOPS, self._loop(step))
            case PlanChoice():
                return self._filled("null", _CHOICES, self._choice(step))

    def _loop(self, loop: PlanLoop) -> list[int]:
        begins: list[int] = []
        ends: list[int] = []
        for c in loop.carries:
            begins += [c.slot, c.first]
            ends += [c.slot, c.next]
            if c.turns:
                other = len(self.plan.slots) + self.hidden
                self.hidden += 1
                begins += [c.next, c.turns[0], other, c.turns[1]]
                ends += [c.next, other, other, c.slot]
        rows = (*self.add(loop.condition), *self.add(loop.steps))
        return [loop.trips, loop.goes_on, *rows, len(begins) // 2, len(ends) // 2, *begins, *ends]

    def _choice(self, choice: PlanChoice) -> list[int]:
        size = self.plan.slots[choice.index].size_bytes
        branches = [x for branch in choice.branches for x in (*self.add(branch.steps), *branch.results)]
        return [choice.index, size, len(choice.branches), len(choice.slots), *choice.slots, *branches]

    def _filled(self, kernel: str, kind: int, numbers: Sequence[int], size: int = 0) -> str:
        first = len(self.numbers)
        self.numbers += numbers
        return f"{_ROW} {{ ptr {kernel}, i64 {kind}, i64 {first}, i64 {len(numbers)}, i64 {size} }}"

    def emit(self, module: Module) -> None:
        """Write the rows and the numbers."""
        for digest in self.kernels:
            module.declare(f"@{kernel_symbol(digest)} = external global i8")
        module.constant("native.table", f"[{len(self.rows)} x {_ROW}]", f"[{', '.join(self.rows)}]")
        numbers = ", ".join([f"i64 {x}" for x in self.numbers])
        module.constant("native.numbers", f"[{len(self.numbers)} x i64]", f"[{numbers}]")


TIMES = 3
"""Numbers that a timed program keeps for each row: ticks when it first began, ticks of all its runs, their number."""


def _emit_times(module: Module, rows: int) -> None:
    """Write `ptr native.times()`, and `void native.tell(i64 row, i64 begin)` for the end of a row."""
    module.variable("native.ticks", f"[{TIMES * rows} x i64]", "zeroinitializer")
    f = module.function("native.times", [], returns="ptr", internal=False)
    f.ret("ptr", "@native.ticks")
    f = module.function("native.tell", [("i64", "row"), ("i64", "begin")])
    first, total, runs = [f.element("@native.ticks", f.add(f.mul("%row", TIMES), j), "i64") for j in range(TIMES)]
    count = f.load("i64", runs)
    begin = f.value(f"select i1 {f.less(0, count)}, i64 {f.load('i64', first)}, i64 %begin")
    f.store("i64", begin, first)
    f.store("i64", f.add(f.load("i64", total), f.value(f"sub i64 {clock(f)}, %begin")), total)
    f.store("i64", f.add(count, 1), runs)
    f.ret()


def _emit_walk(module: Module, most: int, threads: int, timed: bool) -> None:
    """Write `void native.walk(ptr frame, i64 begin, i64 count, i64 trip)`: so many steps, one after the other."""
    module.declare("declare void @runtime.region(ptr, ptr, i64)")
    module.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    f = module.function("native.walk", [("ptr", "frame"), ("i64", "begin"), ("i64", "count"), ("i64", "trip")])
    passed = f.alloca(most, 16, "ptr")

    def run(number: Value, _: list[Value]) -> None:
        row = f.element("@native.table", f.mul(f.add("%begin", number), _ROW_BYTES), "i8")
        kernel = f.load("ptr", row)
        kind, first, count, size = [f.load("i64", f.element(row, offset, "i8")) for offset in (8, 16, 24, 32)]
        numbers = f.element("@native.numbers", first, "i64")
        begin = clock(f) if timed else ""

        def call() -> None:
            f.for_(0, count, 1, lambda j, _: f.store("ptr", _slot(f, numbers, j), f.element(passed, j, "ptr")))
            f.effect(f"call void @runtime.region(ptr {kernel}, ptr {passed}, i64 {threads})")

        def copy() -> None:
            source, target = _slot(f, numbers, 0), _slot(f, numbers, 1)
            f.effect(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

        def view() -> None:
            at, stride = [f.load("i64", f.element(numbers, j, "i64")) for j in (2, 3)]
            moved = f.element(_slot(f, numbers, 1), f.add(at, f.mul(stride, "%trip")), "i8")
            f.store("ptr", moved, _held(f, numbers, 0))

        def loop() -> None:
            f.effect(f"call void @native.loop(ptr %frame, ptr {numbers})")

        def choice() -> None:
            f.effect(f"call void @native.choose(ptr %frame, ptr {numbers})")

        def around() -> None:
            _by_kind(f, kind, _LOOPS, loop, choice)

        def others() -> None:
            _by_kind(f, kind, _COPIES, copy, lambda: _by_kind(f, kind, _VIEWS, view, around))

        _by_kind(f, kind, _CALLS, call, others)
        if timed:
            f.effect(f"call void @native.tell(i64 {f.add('%begin', number)}, i64 {begin})")

    f.for_(0, "%count", 1, run)
    f.ret()


def _walk(f: Function, frame: str, begin: Value, count: Value, trip: Value) -> None:
    f.effect(f"call void @native.walk(ptr {frame}, i64 {begin}, i64 {count}, i64 {trip})")


def _by_kind(f: Function, kind: Value, wanted: int, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    f.if_(f.value(f"icmp eq i64 {kind}, {wanted}"), then, otherwise)


def _held(f: Function, numbers: Value, j: Value) -> str:
    """Return where the address of a slot is kept, which the j-th number is."""
    return f.element("%frame", f.load("i64", f.element(numbers, j, "i64")), "ptr")


def _slot(f: Function, numbers: Value, j: Value) -> str:
    """Return the address of a slot, which the j-th number is."""
    return f.load("ptr", _held(f, numbers, j))


def _emit_loop(module: Module) -> None:
    """Write `void native.loop(ptr frame, ptr numbers)`: a loop, whose trips end by their number or by a condition."""
    f = module.function("native.loop", [("ptr", "frame"), ("ptr", "numbers")])
    field = {name: f.load("i64", f.element("%numbers", j, "i64")) for j, name in enumerate(_LOOP_FIELDS)}
    begins = f.element("%numbers", len(_LOOP_FIELDS), "i64")
    ends = f.element(begins, f.mul(field["begins"], 2), "i64")
    done, check, trip, out = f.alloca(1, 8, "i64"), f.label("check"), f.label("trip"), f.label("out")
    counted = f.less(0, field["trips"])

    def become(pairs: Value, count: Value) -> None:
        def one(j: Value, _: list[Value]) -> None:
            pair = f.element(pairs, f.mul(j, 2), "i64")
            f.store("ptr", _slot(f, pair, 1), _held(f, pair, 0))

        f.for_(0, count, 1, one)

    def asked(number: Value) -> list[Value]:
        _walk(f, "%frame", field["condition"], field["conditions"], number)
        told = f.load("i8", f.load("ptr", f.element("%frame", field["goes_on"], "ptr")))
        return [f.value(f"icmp ne i8 {told}, 0")]

    become(begins, field["begins"])
    f.store("i64", 0, done)
    f.effect(f"br label %{check}")
    f.open(check)
    number = f.load("i64", done)
    more = f.if_(counted, lambda: [f.less(number, field["trips"])], lambda: asked(number), ["i1"])[0]
    f.effect(f"br i1 {more}, label %{trip}, label %{out}")
    f.open(trip)
    _walk(f, "%frame", field["body"], field["steps"], number)
    become(ends, field["ends"])
    f.store("i64", f.add(number, 1), done)
    f.effect(f"br label %{check}")
    f.open(out)
    f.ret()


def _emit_choice(module: Module) -> None:
    """Write `void native.choose(ptr frame, ptr numbers)`: the steps of one branch, whose results are then placed."""
    f = module.function("native.choose", [("ptr", "frame"), ("ptr", "numbers")])
    field = {name: f.load("i64", f.element("%numbers", j, "i64")) for j, name in enumerate(_CHOICE_FIELDS)}
    slots = f.element("%numbers", len(_CHOICE_FIELDS), "i64")
    place = f.load("ptr", f.element("%frame", field["index"], "ptr"))
    one_byte = f.value(f"icmp eq i64 {field['index_bytes']}, 1")
    told = f.if_(
        one_byte,
        lambda: [f.value(f"zext i8 {f.load('i8', place)} to i64")],
        lambda: [f.value(f"sext i32 {f.load('i32', place)} to i64")],
        ["i64"],
    )[0]
    number = f.minimum(f.maximum(told, 0), f.add(field["branches"], -1))
    branch = f.element(slots, f.add(field["results"], f.mul(number, f.add(field["results"], 2))), "i64")
    results = f.element(branch, 2, "i64")
    _walk(f, "%frame", f.load("i64", branch), f.load("i64", f.element(branch, 1, "i64")), 0)
    f.for_(0, field["results"], 1, lambda j, _: f.store("ptr", _slot(f, results, j), _held(f, slots, j)))
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
