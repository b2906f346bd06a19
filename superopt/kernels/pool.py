"""Fork-join over the tasks of the phases of a kernel, on XLA's thread pool or on one of our own.

The region is LLVM code.  It schedules helpers on the pool and takes part itself: every participant claims tasks from
an atomic counter per phase and waits, before the next phase, until all claimed tasks of this one are done.  It waits
only for tasks that a running thread has claimed, never for a helper to start: there is no deadlock with a pool of one
thread, with one whose threads are all busy (nested or concurrent regions), or with one without threads (after
`os.fork`: the caller then does all the work).  The state is counted by references, since helpers may start after the
caller has returned: they find all counters exhausted, touch no buffer, and the last one frees it.  Waiting: 64 pauses,
then `sched_yield`, so that more threads than processors stay usable.

`native(threads)` is a pool with the interface of XLA's (`XLA_FFI_ThreadPool_*`), for runs outside of XLA: the same
region code serves both.
"""

from __future__ import annotations

import ctypes
import functools
import os

from superopt.kernels import jit
from superopt.kernels.entry import FIELDS, PHASE, PHASE_BYTES
from superopt.kernels.ffi_layout import Layout, layout
from superopt.kernels.llvm import Function, Module, Value

_LINE = 128  # bytes between counters: two cache lines, what hardware prefetches together
_SLOTS = 1024


def at(f: Function, pointer: str, offset: int) -> str:
    """The address so many bytes further."""
    return f.element(pointer, offset, "i8")


def emit_region(module: Module, shape: Layout) -> None:
    """Write `void runtime.region(ptr kernel, ptr api, ptr ctx, ptr bufs)`: all phases of a kernel on several threads.

    Args:
        module: of the runtime.
        shape: of the structs of the pool's interface.
    """
    _emit_work(module)
    helper = module.function("runtime.helper", [("ptr", "state")])
    helper.effect("call void @runtime.work(ptr %state, i1 false)")
    helper.ret()
    args = [("ptr", "kernel"), ("ptr", "api"), ("ptr", "ctx"), ("ptr", "bufs")]
    f = module.function("runtime.region", args, internal=False)
    allowed = f.minimum(field(f, "threads", "i64"), field(f, "tasks", "i64"))

    def several() -> None:
        helpers = f.sub(f.minimum(_pool_threads(f, shape), allowed), 1)
        f.if_(f.less(helpers, 1), lambda: _alone(f), lambda: _parallel(f, helpers, shape))

    f.if_(f.less(allowed, 2), lambda: _alone(f), several)
    f.ret()


def emit_serial(module: Module) -> None:
    """Write `void runtime.serial(ptr kernel, ptr bufs)`: all phases on the calling thread."""
    f = module.function("runtime.serial", [("ptr", "kernel"), ("ptr", "bufs")], internal=False)

    def phase(number: Value, _: list[Value]) -> None:
        function, tasks = _phase(f, "%kernel", number)
        f.for_(0, tasks, 1, lambda task, _: f.effect(f"call void {function}(ptr %bufs, i64 {task})"))

    f.for_(0, field(f, "phases", "i64"), 1, phase)
    f.ret()


def field(f: Function, name: str, type: str, kernel: str = "%kernel") -> str:
    """A field of the description of a kernel."""
    return f.load(type, at(f, kernel, FIELDS[name]))


def _phase(f: Function, kernel: str, number: Value) -> tuple[str, str]:
    """Address of the function of a phase, and its number of tasks."""
    row = f.element(field(f, "phase_table", "ptr", kernel), f.mul(number, PHASE_BYTES), "i8")
    return f.load("ptr", at(f, row, PHASE["function"])), f.load("i64", at(f, row, PHASE["tasks"]))


def _emit_work(module: Module) -> None:
    """What each participant does.  State: references, kernel, bufs, then per phase two counters: claimed, done."""
    f = module.function("runtime.work", [("ptr", "state"), ("i1", "caller")])
    kernel, bufs = f.load("ptr", at(f, "%state", 8)), f.load("ptr", at(f, "%state", 16))
    phases = field(f, "phases", "i64", kernel)
    last = f.sub(phases, 1)

    def phase(number: Value, _: list[Value]) -> None:
        function, tasks = _phase(f, kernel, number)
        counters = f.element("%state", f.mul(number, 2 * _LINE), "i8")
        claimed, done = at(f, counters, _LINE), at(f, counters, 2 * _LINE)
        claim, work, wait, pause, following = [f.label(x) for x in ("claim", "work", "wait", "pause", "phase")]
        f.effect(f"br label %{claim}")
        f.open(claim)
        task = f.value(f"atomicrmw add ptr {claimed}, i64 1 acq_rel")
        f.effect(f"br i1 {f.less(task, tasks)}, label %{work}, label %{wait}")
        f.open(work)
        f.effect(f"call void {function}(ptr {bufs}, i64 {task})")
        f.value(f"atomicrmw add ptr {done}, i64 1 acq_rel")
        f.effect(f"br label %{claim}")
        f.open(wait)
        count = f.value(f"load atomic i64, ptr {done} acquire, align 8")
        # after the last phase only the caller must know that the end is reached
        leaves = f.value(f"select i1 %caller, i1 false, i1 {f.value(f'icmp eq i64 {number}, {last}')}")
        finished = f.value(f"or i1 {leaves}, {f.value(f'icmp sge i64 {count}, {tasks}')}")
        f.effect(f"br i1 {finished}, label %{following}, label %{pause}")
        f.open(pause)
        _backoff(f)
        f.effect(f"br label %{wait}")
        f.open(following)

    f.for_(0, phases, 1, phase)
    _release(f, "%state")
    f.ret()


def _release(f: Function, state: str) -> None:
    f.module.declare("declare void @free(ptr)")
    before = f.value(f"atomicrmw sub ptr {state}, i64 1 acq_rel")
    f.if_(f.value(f"icmp eq i64 {before}, 1"), lambda: f.effect(f"call void @free(ptr {state})"))


def _backoff(f: Function) -> None:
    f.module.declare("declare void @llvm.x86.sse2.pause()")
    f.module.declare("declare i32 @sched_yield()")
    f.for_(0, 64, 1, lambda i, _: f.effect("call void @llvm.x86.sse2.pause()"))
    f.call("i32", "sched_yield")


def _call_api(f: Function, shape: Layout, name: str, args: str) -> str:
    """Call a function of the interface; its error, null if none."""
    return f.call("ptr", f.load("ptr", at(f, "%api", shape.at("Api", f"XLA_FFI_{name}"))), ("ptr", args))


def _begin(f: Function, shape: Layout, struct: str) -> str:
    """Room for the arguments of a function of the interface, with their size."""
    args = f.alloca(shape.size(struct) + 8, 8, "i8")
    f.module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f.effect(f"call void @llvm.memset.p0.i64(ptr {args}, i8 0, i64 {shape.size(struct) + 8}, i1 false)")
    f.store("i64", shape.size(struct), args)
    return args


def _drop(f: Function, shape: Layout, error: str) -> None:
    args = _begin(f, shape, "Error_Destroy_Args")
    f.store("ptr", error, at(f, args, shape.at("Error_Destroy_Args", "error")))
    destroy = f.load("ptr", at(f, "%api", shape.at("Api", "XLA_FFI_Error_Destroy")))
    f.effect(f"call void {destroy}(ptr {args})")


def _pool_threads(f: Function, shape: Layout) -> Value:
    """Threads of the pool; 1 when there is no pool."""
    args, room = _begin(f, shape, "ThreadPool_NumThreads_Args"), f.alloca(1, 8, "i64")
    f.store("i64", 1, room)
    f.store("ptr", "%ctx", at(f, args, shape.at("ThreadPool_NumThreads_Args", "ctx")))
    f.store("ptr", room, at(f, args, shape.at("ThreadPool_NumThreads_Args", "num_threads")))
    error = _call_api(f, shape, "ThreadPool_NumThreads", args)
    f.if_(f.value(f"icmp ne ptr {error}, null"), lambda: _drop(f, shape, error))
    return f.load("i64", room)


def _parallel(f: Function, helpers: Value, shape: Layout) -> None:
    size = f.mul(f.add(field(f, "phases", "i64"), 1), 2 * _LINE)
    f.module.declare("declare ptr @aligned_alloc(i64, i64)")
    state = f.call("ptr", "aligned_alloc", ("i64", _LINE), ("i64", size))
    known = f.value(f"icmp ne ptr {state}, null")
    f.if_(known, lambda: _share(f, state, size, helpers, shape), lambda: _alone(f))


def _alone(f: Function) -> None:
    f.effect("call void @runtime.serial(ptr %kernel, ptr %bufs)")


def _share(f: Function, state: str, size: Value, helpers: Value, shape: Layout) -> None:
    f.effect(f"call void @llvm.memset.p0.i64(ptr {state}, i8 0, i64 {size}, i1 false)")
    f.store("i64", f.add(helpers, 1), state)
    f.store("ptr", "%kernel", at(f, state, 8))
    f.store("ptr", "%bufs", at(f, state, 16))
    name = "ThreadPool_Schedule_Args"
    args = _begin(f, shape, name)
    for place, value in (("ctx", "%ctx"), ("task", "@runtime.helper"), ("data", state)):
        f.store("ptr", value, at(f, args, shape.at(name, place)))

    def schedule(_: Value, __: list[Value]) -> None:
        error = _call_api(f, shape, "ThreadPool_Schedule", args)

        def alone() -> None:
            _drop(f, shape, error)
            _release(f, state)

        f.if_(f.value(f"icmp ne ptr {error}, null"), alone)

    f.for_(0, helpers, 1, schedule)
    f.effect(f"call void @runtime.work(ptr {state}, i1 true)")


# ---- a pool of our own


class Pool:
    """Threads that wait for tasks; `api` and `context` are the first two arguments of a region."""

    def __init__(self, library: jit.Library, threads: int) -> None:
        shape = layout()
        self._memory = (ctypes.c_char * (_LINE * 4 + 32 * _SLOTS + _LINE))()
        self._table = (ctypes.c_uint64 * (shape.sizes["XLA_FFI_Api"] // 8 + 1))()
        self._table[0] = shape.sizes["XLA_FFI_Api"]
        for name, symbol in (("ThreadPool_Schedule", "pool.schedule"), ("ThreadPool_NumThreads", "pool.threads")):
            self._table[shape.at("Api", f"XLA_FFI_{name}") // 8] = library.address(symbol)
        base = ctypes.addressof(self._memory)
        self.context = base + -base % _LINE
        self.api = ctypes.addressof(self._table)
        start = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("pool.start"))
        start(self.context, threads)


@functools.cache
def _native(library: jit.Library, threads: int, process: int) -> Pool:
    return Pool(library, threads)


def native(library: jit.Library, threads: int) -> Pool:
    """The pool of this process with so many threads, counting the caller of a region; made anew after a fork.

    Args:
        library: the code of the runtime.
        threads: including the caller.
    """
    return _native(library, threads, os.getpid())


def emit_pool(module: Module, shape: Layout) -> None:
    """A ring of tasks with tickets, and a semaphore.  Memory: tail, head, threads, semaphore, (full, task, data)..."""
    module.declare("declare i32 @sem_init(ptr, i32, i32)")
    module.declare("declare i32 @sem_wait(ptr)")
    module.declare("declare i32 @sem_post(ptr)")
    module.declare("declare i32 @pthread_create(ptr, ptr, ptr, ptr)")
    module.declare("declare i32 @pthread_detach(i64)")

    f = module.function("pool.schedule", [("ptr", "args")], returns="ptr", internal=False)
    name = "ThreadPool_Schedule_Args"
    pool, task, data = [f.load("ptr", at(f, "%args", shape.at(name, x))) for x in ("ctx", "task", "data")]
    waiting = f.sub(f.load("i64", pool), f.load("i64", at(f, pool, _LINE)))

    def here() -> Value:  # nobody takes tasks, as after a fork: the caller does
        f.effect(f"call void {task}(ptr {data})")
        return "null"

    f.exit_if(f.value(f"icmp sgt i64 {waiting}, {_SLOTS // 2}"), "ptr", here)
    slot = _slot(f, pool, 0, "0")
    f.store("ptr", task, at(f, slot, 8))
    f.store("ptr", data, at(f, slot, 16))
    f.effect(f"store atomic i64 1, ptr {slot} release, align 8")
    f.call("i32", "sem_post", ("ptr", at(f, pool, 3 * _LINE)))
    f.ret("ptr", "null")

    f = module.function("pool.threads", [("ptr", "args")], returns="ptr", internal=False)
    name = "ThreadPool_NumThreads_Args"
    pool, out = [f.load("ptr", at(f, "%args", shape.at(name, x))) for x in ("ctx", "num_threads")]
    f.store("i64", f.load("i64", at(f, pool, 2 * _LINE)), out)
    f.ret("ptr", "null")

    f = module.function("pool.main", [("ptr", "pool")], returns="ptr")
    again = f.label("again")
    f.effect(f"br label %{again}")
    f.open(again)
    f.call("i32", "sem_wait", ("ptr", at(f, "%pool", 3 * _LINE)))  # interrupted: the slot is waited for below
    slot = _slot(f, "%pool", _LINE, "1")
    task, data = f.load("ptr", at(f, slot, 8)), f.load("ptr", at(f, slot, 16))
    f.effect(f"store atomic i64 0, ptr {slot} release, align 8")
    f.effect(f"call void {task}(ptr {data})")
    f.effect(f"br label %{again}")

    f = module.function("pool.start", [("ptr", "pool"), ("i64", "threads")], internal=False)
    f.store("i64", "%threads", at(f, "%pool", 2 * _LINE))
    f.call("i32", "sem_init", ("ptr", at(f, "%pool", 3 * _LINE)), ("i32", 0), ("i32", 0))
    handle = f.alloca(1, 8, "i64")

    def create(_: Value, __: list[Value]) -> None:
        made = f.call(
            "i32", "pthread_create", ("ptr", handle), ("ptr", "null"), ("ptr", "@pool.main"), ("ptr", "%pool")
        )
        known = f.value(f"icmp eq i32 {made}, 0")
        f.if_(known, lambda: _ignore(f.call("i32", "pthread_detach", ("i64", f.load("i64", handle)))))

    f.for_(1, "%threads", 1, create)
    f.ret()


def _ignore(_: str) -> None:
    return None


def _slot(f: Function, pool: str, counter: int, state: str) -> str:
    """Take the next ticket of a counter and wait until its slot is in this state."""
    ticket = f.value(f"atomicrmw add ptr {at(f, pool, counter)}, i64 1 acq_rel")
    index = f.value(f"and i64 {ticket}, {_SLOTS - 1}")
    slot = f.value(f"getelementptr i8, ptr {at(f, pool, 4 * _LINE)}, i64 {f.mul(index, 32)}")
    check, pause, ready = [f.label(x) for x in ("check", "full", "ready")]
    f.effect(f"br label %{check}")
    f.open(check)
    full = f.value(f"load atomic i64, ptr {slot} acquire, align 8")
    f.effect(f"br i1 {f.value(f'icmp eq i64 {full}, {state}')}, label %{ready}, label %{pause}")
    f.open(pause)
    _backoff(f)
    f.effect(f"br label %{check}")
    f.open(ready)
    return slot
