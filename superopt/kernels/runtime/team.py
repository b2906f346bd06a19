"""A team of helper threads of this process, as LLVM code: how they are asked to join a region, and how they wait.

A helper that has nothing to do stays awake for a bounded time, yielding to any other thread, then sleeps on a semaphore
of its own.  The time is LONG, or SHORT where its last wait was longer than that.  Its slot holds its state: BUSY (it
will look into the slot before it rests), AWAKE, ASLEEP, or the address of the state of a region that it is to join.
Every step is atomic.

    helper   BUSY -> AWAKE -> ASLEEP, waits for the semaphore; a state that it finds there -> BUSY, and joins.
    caller   AWAKE | BUSY | ASLEEP -> state, posting the semaphore where the helper was ASLEEP.
    caller   state -> BUSY, at the end of its region, from helpers that have not come (left where all were awake).

Nobody waits for a helper.  Helpers are started when they are first missed, with all signals blocked.  After a fork the
child has none: `reset` makes the team empty, and without it callers do all the work, as slots never change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from superopt.kernels.llvm.module import Function, Module, Value
from superopt.machine.rates import NOMINAL

TICKS_PER_MICROSECOND = round(1e-6 * NOMINAL.ticks)  # roughly: nothing derived from it needs more
MOST_HELPERS = 63
LONG, SHORT = 100 * TICKS_PER_MICROSECOND, 5 * TICKS_PER_MICROSECOND  # how long a helper stays awake
_SIG_SETMASK = 2
_SPINS = 512  # pauses, about 10 us, between giving way: to do so is to wait for all others that spin on this processor
LINE = 128  # bytes between fields that different threads write: two cache lines, which hardware prefetches together
BUSY, AWAKE, ASLEEP = range(3)
HEAD = {"lock": 0, "helpers": 8, "last": LINE, "debt": LINE + 8}
SLOTS, SLOT_BYTES, _SEMAPHORE = 2 * LINE, 2 * LINE, LINE
TEAM_BYTES = SLOTS + MOST_HELPERS * SLOT_BYTES


def at(f: Function, pointer: str, offset: int) -> str:
    """Return the address so many bytes further."""
    return f.element(pointer, offset, "i8")


def head(f: Function, name: str) -> str:
    """Return the address of a field of the team."""
    return at(f, "@runtime.team", HEAD[name])


def relaxed(f: Function, pointer: str) -> str:
    """Load an i64 that other threads may write (relaxed order)."""
    return f.value(f"load atomic i64, ptr {pointer} monotonic, align 8")


def put(f: Function, x: Value, pointer: str, order: str = "monotonic") -> None:
    """Store an i64 that other threads may read."""
    f.effect(f"store atomic i64 {x}, ptr {pointer} {order}, align 8")


def clock(f: Function) -> str:
    """Return the time stamp counter."""
    return f.intrinsic("readcyclecounter", "i64", suffix="")


def swapped(f: Function, pointer: str, old: Value, new: Value) -> str:
    """Compare-and-swap an i64; return whether it held the old value."""
    pair = f.value(f"cmpxchg ptr {pointer}, i64 {old}, i64 {new} acq_rel monotonic")
    return f.value(f"extractvalue {{ i64, i1 }} {pair}, 1")


def until(f: Function, done: Callable[[], str]) -> None:
    """Poll a condition with pauses in between, yielding to other threads now and then."""
    check, pause, way, out = [f.label(x) for x in ("check", "pause", "way", "out")]
    f.module.declare("declare i32 @sched_yield()")
    f.module.declare("declare void @llvm.x86.sse2.pause()")
    turns = f.alloca(1, 8, "i64")
    f.store("i64", 0, turns)
    f.effect(f"br label %{check}")
    f.open(check)
    f.effect(f"br i1 {done()}, label %{out}, label %{pause}")
    f.open(pause)
    f.effect("call void @llvm.x86.sse2.pause()")
    turn = f.add(f.load("i64", turns), 1)
    f.store("i64", turn, turns)
    rest = f.value(f"and i64 {turn}, {_SPINS - 1}")
    f.effect(f"br i1 {f.value(f'icmp eq i64 {rest}, 0')}, label %{way}, label %{check}")
    f.open(way)
    f.call("i32", "sched_yield")
    f.effect(f"br label %{check}")
    f.open(out)


def emit_team(module: Module) -> None:
    """Write the team: `runtime.recruit`, `runtime.retract`, `runtime.members` (its address) and the threads' code.

    `i64 runtime.recruit(ptr state, i64 wanted, i1 wakes)` puts a state into the slots of at most so many awake helpers.
    If it may wake them, sleeping and new helpers count too.  It returns how many, plus 2^32 if any of them slept. `i64
    runtime.retract(ptr state)` takes the state back from those that have not come and returns how many.
    """
    module.variable("runtime.team", f"[{TEAM_BYTES} x i8]", "zeroinitializer", LINE)
    _emit_helper(module)
    _emit_hire(module)
    _emit_recruit(module)
    f = module.function("runtime.retract", [("ptr", "state")], returns="i64")
    word = f.value("ptrtoint ptr %state to i64")

    def back(j: Value, count: list[Value]) -> list[Value]:
        slot = _slot(f, j)
        posted = f.value(f"icmp eq i64 {relaxed(f, slot)}, {word}")
        return [f.add(count[0], _count_if(f, posted, lambda: swapped(f, slot, word, BUSY)))]

    f.ret("i64", f.for_(0, relaxed(f, head(f, "helpers")), 1, back, [("i64", 0)])[0])
    f = module.function("runtime.members", [], returns="ptr", internal=False)
    f.ret("ptr", "@runtime.team")


def _slot(f: Function, j: Value) -> str:
    return f.element(at(f, "@runtime.team", SLOTS), f.mul(j, SLOT_BYTES), "i8")


def _wide(f: Function, flag: str) -> str:
    return f.value(f"zext i1 {flag} to i64")


def _count_if(f: Function, condition: str, then: Callable[[], str]) -> Value:
    """Return 1 where both the condition and the flag computed under it hold."""
    return f.if_(condition, lambda: [_wide(f, then())], lambda: [0], ["i64"])[0]


def _ignore(_: str) -> None:
    return None


def _emit_recruit(module: Module) -> None:
    """Write the function that finds helpers for a kernel, starts missing ones and wakes sleeping ones."""
    f = module.function("runtime.recruit", [("ptr", "state"), ("i64", "wanted"), ("i1", "wakes")], returns="i64")
    module.declare("declare i32 @sem_post(ptr)")
    word = f.value("ptrtoint ptr %state to i64")
    helpers = head(f, "helpers")

    def few() -> None:
        f.effect("call void @runtime.hire(i64 %wanted)")

    missing = f.value(f"and i1 %wakes, {f.less(relaxed(f, helpers), '%wanted')}")
    f.if_(missing, few)
    count = relaxed(f, helpers)

    def awake(j: Value, found: list[Value]) -> list[Value]:
        slot = _slot(f, j)
        free = f.value(f"icmp eq i64 {relaxed(f, slot)}, {AWAKE}")
        asked = f.value(f"and i1 {free}, {f.less(found[0], '%wanted')}")
        return [f.add(found[0], _count_if(f, asked, lambda: swapped(f, slot, AWAKE, word)))]

    ready = f.for_(0, count, 1, awake, [("i64", 0)])[0]

    def sleeping(j: Value, found: list[Value]) -> list[Value]:
        slot = _slot(f, j)
        now = relaxed(f, slot)
        asleep, busy = [f.value(f"icmp eq i64 {now}, {x}") for x in (ASLEEP, BUSY)]
        comes = f.value(f"or i1 {busy}, {f.value(f'and i1 {asleep}, %wakes')}")
        asked = f.value(f"and i1 {comes}, {f.less(found[0], '%wanted')}")

        def post() -> str:
            good = swapped(f, slot, now, word)
            slept = f.value(f"and i1 {good}, {asleep}")
            f.if_(slept, lambda: _ignore(f.call("i32", "sem_post", ("ptr", at(f, slot, _SEMAPHORE)))))
            return good

        return [f.add(found[0], _count_if(f, asked, post))]

    every = f.if_(
        f.less(ready, "%wanted"), lambda: f.for_(0, count, 1, sleeping, [("i64", ready)]), lambda: [ready], ["i64"]
    )[0]
    late = _wide(f, f.less(ready, every))
    f.ret("i64", f.add(every, f.value(f"shl i64 {late}, 32")))


def _emit_helper(module: Module) -> None:
    """Write the endless loop of a helper thread, given its slot."""
    module.declare("declare i32 @sem_wait(ptr)")
    f = module.function("runtime.helper", [("ptr", "slot")], returns="ptr")
    semaphore, patience, since = at(f, "%slot", _SEMAPHORE), f.alloca(1, 8, "i64"), f.alloca(1, 8, "i64")
    f.store("i64", LONG, patience)
    first = at(f, "@runtime.team", SLOTS)
    offset = f.sub(*[f.value(f"ptrtoint ptr {x} to i64") for x in ("%slot", first)])
    number = f.add(f.div(offset, SLOT_BYTES), 1)  # 0 is the caller
    again, rest, wait, join, work = [f.label(x) for x in ("again", "rest", "wait", "join", "work")]
    f.effect(f"br label %{again}")
    f.open(again)
    f.store("i64", clock(f), since)
    f.effect(f"br i1 {swapped(f, '%slot', BUSY, AWAKE)}, label %{rest}, label %{join}")
    f.open(rest)

    def over() -> str:
        asked = f.value(f"icmp ne i64 {relaxed(f, '%slot')}, {AWAKE}")
        late = f.less(f.load("i64", patience), f.sub(clock(f), f.load("i64", since)))
        return f.value(f"or i1 {asked}, {late}")

    until(f, over)
    f.effect(f"br i1 {swapped(f, '%slot', AWAKE, ASLEEP)}, label %{wait}, label %{join}")
    f.open(wait)  # again where a signal has interrupted it
    failed = f.value(f"icmp ne i32 {f.call('i32', 'sem_wait', ('ptr', semaphore))}, 0")
    f.effect(f"br i1 {failed}, label %{wait}, label %{join}")
    f.open(join)
    word = f.value(f"atomicrmw xchg ptr %slot, i64 {BUSY} acq_rel")
    waited = f.sub(clock(f), f.load("i64", since))
    f.store("i64", f.value(f"select i1 {f.less(waited, LONG)}, i64 {LONG}, i64 {SHORT}"), patience)
    f.effect(f"br i1 {f.less(ASLEEP, word)}, label %{work}, label %{again}")
    f.open(work)
    state = f.value(f"inttoptr i64 {word} to ptr")
    f.call("i64", "runtime.work", ("ptr", state), ("i64", number))
    f.effect(f"br label %{again}")


def _emit_hire(module: Module) -> None:
    """Write a function that starts helpers until there are so many.

    One caller at a time starts them while others go on; after a failure nobody tries again.
    """
    for name, args in (("sem_init", "ptr, i32, i32"), ("pthread_create", "ptr, ptr, ptr, ptr"),
                       ("pthread_detach", "i64"), ("pthread_sigmask", "i32, ptr, ptr")):  # fmt: skip
        module.declare(f"declare i32 @{name}({args})")
    module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f = module.function("runtime.hire", [("i64", "wanted")])
    helpers, most = head(f, "helpers"), f.minimum("%wanted", MOST_HELPERS)

    def start() -> None:
        """Start threads with all signals blocked, slot by slot, until there are enough or one fails."""
        every, before, thread = f.alloca(128, 16, "i8"), f.alloca(128, 16, "i8"), f.alloca(1, 8, "i64")
        f.effect(f"call void @llvm.memset.p0.i64(ptr {every}, i8 -1, i64 128, i1 false)")
        f.call("i32", "pthread_sigmask", ("i32", _SIG_SETMASK), ("ptr", every), ("ptr", before))

        def one(j: Value, failed: list[Value]) -> list[Value]:
            slot = _slot(f, j)

            def create() -> list[Value]:
                f.call("i32", "sem_init", ("ptr", at(f, slot, _SEMAPHORE)), ("i32", 0), ("i32", 0))
                args = (("ptr", thread), ("ptr", "null"), ("ptr", "@runtime.helper"), ("ptr", slot))
                result = f.value(f"zext i32 {f.call('i32', 'pthread_create', *args)} to i64")

                def made() -> None:
                    f.call("i32", "pthread_detach", ("i64", f.load("i64", thread)))
                    put(f, f.add(j, 1), helpers, "release")

                f.if_(f.less(result, 1), made)
                return [result]

            return f.if_(f.less(failed[0], 1), create, lambda: [failed[0]], ["i64"])

        failed = f.for_(relaxed(f, helpers), most, 1, one, [("i64", 0)])[0]
        f.call("i32", "pthread_sigmask", ("i32", _SIG_SETMASK), ("ptr", before), ("ptr", "null"))
        f.if_(f.less(failed, 1), lambda: put(f, 0, head(f, "lock"), "release"))

    f.if_(swapped(f, head(f, "lock"), 0, 1), start)
    f.ret()


def reset(team: int) -> None:
    """Make the team at this address empty, in the child of a fork, where no other thread runs."""
    ctypes.memset(team, 0, TEAM_BYTES)
