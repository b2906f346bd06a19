"""Fork-join over the tasks of a kernel's phases, by the caller and helper threads (`superopt.kernels.runtime.team`).

The region is LLVM code.  The tasks of a phase are cut into shares, one for each participant that may come, in order.
Every participant claims tasks of its own share from an atomic counter, several at once where they are short.  It then
claims those left in the shares of others and waits, before the next phase, until all claimed tasks are done.

Neighbouring tasks read and write neighbouring memory, and a helper's share is the same in every region.  A kernel's
inputs therefore lie in the caches of the processor that wrote them, as far as both regions are cut alike.

A participant waits only for tasks that a running thread has claimed, never for a helper to start.  So nested and
concurrent regions, fewer processors than threads, and a process without helpers (after a fork) all terminate.  The
state is reference-counted, since helpers may come after the caller has returned: they find all counters exhausted,
touch no buffer, and the last one frees it.

The number of helpers depends on the work that calls of the kernel measured.  Sleeping helpers are woken where this
call, or it together with those just before it that had to do without, is worth that.  Short kernels whose calls take
longer with helpers ask for none; some calls of every thousand try both ways.  Helpers move off processors that other
threads of the region are on (`superopt.kernels.runtime.processors`).  Results depend on none of this: tasks are the
same whoever runs them.
"""

from __future__ import annotations

from superopt.kernels.llvm.module import Function, Module, Value
from superopt.kernels.runtime.entry import FIELDS, PHASE, PHASE_BYTES, WORK
from superopt.kernels.runtime.processors import SET_BYTES, emit_apart, note
from superopt.kernels.runtime.team import (
    LINE,
    LONG,
    TICKS_PER_MICROSECOND,
    at,
    clock,
    emit_team,
    head,
    put,
    relaxed,
    until,
)

GRAIN = 1 * TICKS_PER_MICROSECOND  # work for each participant
CHUNK = TICKS_PER_MICROSECOND // 2  # work of the tasks that are claimed at once, where tasks are smaller
WAKE = 40 * TICKS_PER_MICROSECOND  # work that is worth waking helpers: they come after 20 to 30
SHORT_WORK = 2 * WAKE  # below, sharing may cost as much as it saves: up to 35 us where processors are far apart
EVERY = 1024  # calls, of which the first are trials:
TRIES = 16, 4  # with helpers, who have to wake first, and without
_STATE = {"references": 0, "kernel": 8, "bufs": 16, "mode": 24, "work": 32, "shares": 40, "processors": LINE}
_COUNTERS = LINE + SET_BYTES  # offset of the first phase's counters


def emit_region(module: Module) -> None:
    """Write `void runtime.region(ptr kernel, ptr bufs, i64 threads)`: all phases of a kernel on several threads."""
    module.declare("declare void @llvm.x86.sse.stmxcsr(ptr)")
    module.declare("declare void @llvm.x86.sse.ldmxcsr(ptr)")
    module.declare("declare void @free(ptr)")
    emit_team(module)
    emit_apart(module)
    _emit_work(module)
    _emit_share(module)
    f = module.function("runtime.region", [("ptr", "kernel"), ("ptr", "bufs"), ("i64", "threads")], internal=False)
    most = f.minimum(f.minimum("%threads", field(f, "threads", "i64")), field(f, "tasks", "i64"))
    f.if_(f.less(most, 2), lambda: _alone(f), lambda: _decide(f, most))
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
    """Return a field of the description of a kernel."""
    return f.load(type, at(f, kernel, FIELDS[name]))


def _phase(f: Function, kernel: str, number: Value) -> tuple[str, str]:
    """Return the address of the function of a phase, and its number of tasks."""
    row = f.element(field(f, "phase_table", "ptr", kernel), f.mul(number, PHASE_BYTES), "i8")
    return f.load("ptr", at(f, row, PHASE["function"])), f.load("i64", at(f, row, PHASE["tasks"]))


def _alone(f: Function) -> None:
    f.effect("call void @runtime.serial(ptr %kernel, ptr %bufs)")


def _decide(f: Function, most: Value) -> None:
    """Run with as many helpers as the work is worth, and record the time it took."""
    cost, start = field(f, "work", "ptr"), clock(f)
    known, recent = relaxed(f, cost), f.less(f.sub(start, relaxed(f, head(f, "last"))), LONG)
    work = f.maximum(known, f.sub(0, known))  # negative: an estimate
    wanted = f.minimum(f.sub(most, 1), f.div(work, GRAIN))
    in_vain = _in_vain(f, cost, work)
    wanted = f.value(f"select i1 {in_vain}, i64 0, i64 {wanted}")
    debt = f.value(f"select i1 {recent}, i64 {relaxed(f, head(f, 'debt'))}, i64 0")
    wakes = f.value(f"icmp sge i64 {f.add(work, debt)}, {WAKE}")

    def alone() -> list[Value]:
        _alone(f)
        return [f.sub(clock(f), start), 0]

    def together() -> list[Value]:
        pair = f.value(
            f"call {{ i64, i64 }} @runtime.share(ptr %kernel, ptr %bufs, i64 {wanted}, i1 {wakes}, i64 {work})"
        )
        return [f.value(f"extractvalue {{ i64, i64 }} {pair}, {j}") for j in range(2)]

    measured, came = f.if_(f.less(wanted, 1), alone, together, ["i64", "i64"])
    # a first measurement replaces the estimate; then the least counts, and slowly forgets
    grown = f.add(f.add(known, f.value(f"ashr i64 {known}, 3")), 1)
    kept = f.value(f"select i1 {f.less(known, 1)}, i64 {measured}, i64 {f.minimum(grown, measured)}")
    f.if_(f.less(0, measured), lambda: put(f, kept, cost))
    end = clock(f)
    _took(f, cost, f.sub(end, start), f.less(0, came))
    without = f.value(f"and i1 {f.less(came, wanted)}, {f.value(f'xor i1 {wakes}, true')}")
    others = f.value(f"select i1 {in_vain}, i64 {debt}, i64 0")  # what they had to do without is as it was
    owed = f.value(f"select i1 {without}, i64 {f.add(debt, f.sub(end, start))}, i64 {others}")
    put(f, owed, head(f, "debt"))
    put(f, end, head(f, "last"))


def _in_vain(f: Function, cost: str, work: Value) -> str:
    """Return whether to ask no helpers: they cost more than they save, or this call is a trial without them."""
    calls = relaxed(f, at(f, cost, WORK["calls"]))
    put(f, f.add(calls, 1), at(f, cost, WORK["calls"]))
    turn = f.value(f"and i64 {calls}, {EVERY - 1}")
    alone, shared = [relaxed(f, at(f, cost, WORK[name])) for name in ("alone", "shared")]
    slower = f.value(f"and i1 {f.less(0, alone)}, {f.less(alone, shared)}")
    chosen = f.value(f"select i1 {f.less(turn, sum(TRIES))}, i1 true, i1 {slower}")
    later = f.value(f"xor i1 {f.less(turn, TRIES[0])}, true")
    short = f.value(f"and i1 {chosen}, {f.less(work, SHORT_WORK)}")
    return f.value(f"and i1 {short}, {later}")


def _took(f: Function, cost: str, cycles: Value, with_helpers: str) -> None:
    """Record the time of a call in a running mean, clipped at twice the mean to exclude outliers."""
    offset = f.value(f"select i1 {with_helpers}, i64 {WORK['shared']}, i64 {WORK['alone']}")
    mean = f.element(cost, offset, "i8")
    known = relaxed(f, mean)
    step = f.value(f"ashr i64 {f.sub(f.minimum(cycles, f.mul(known, 2)), known)}, 2")
    put(f, f.value(f"select i1 {f.less(known, 1)}, i64 {cycles}, i64 {f.add(known, step)}"), mean)


def _emit_share(module: Module) -> None:
    """Write a function that takes part with at most so many helpers.

    It returns the cycles of all tasks, 0 if unknown, and the number of helpers asked.
    """
    args = [("ptr", "kernel"), ("ptr", "bufs"), ("i64", "wanted"), ("i1", "wakes"), ("i64", "work")]
    f = module.function("runtime.share", args, returns="{ i64, i64 }")
    module.declare("declare ptr @aligned_alloc(i64, i64)")
    shares = f.add("%wanted", 1)
    size = f.add(f.mul(field(f, "phases", "i64"), _phase_bytes(f, shares)), _COUNTERS)
    state = f.call("ptr", "aligned_alloc", ("i64", LINE), ("i64", size))

    def alone() -> list[Value]:
        _alone(f)
        return [0, 0]

    def together() -> list[Value]:
        f.effect(f"call void @llvm.memset.p0.i64(ptr {state}, i8 0, i64 {size}, i1 false)")
        f.store("i64", shares, state)  # references
        f.store("i64", shares, at(f, state, _STATE["shares"]))
        f.store("ptr", "%kernel", at(f, state, _STATE["kernel"]))
        f.store("ptr", "%bufs", at(f, state, _STATE["bufs"]))
        f.store("i64", f.maximum("%work", 1), at(f, state, _STATE["work"]))
        f.effect(f"call void @llvm.x86.sse.stmxcsr(ptr {at(f, state, _STATE['mode'])})")
        note(f, at(f, state, _STATE["processors"]))
        args = (("ptr", state), ("i64", "%wanted"), ("i1", "%wakes"))
        recruited = f.call("i64", "runtime.recruit", *args)
        asked, slept = f.value(f"and i64 {recruited}, {(1 << 32) - 1}"), f.value(f"lshr i64 {recruited}, 32")
        measured = f.call("i64", "runtime.work", ("ptr", state), ("i64", 0))
        back = f.if_(
            f.less(0, slept), lambda: [f.call("i64", "runtime.retract", ("ptr", state))], lambda: [0], ["i64"]
        )[0]
        _release(f, state, f.add(f.add(f.sub("%wanted", asked), back), 1))
        return [measured, asked]

    fine = f.value(f"icmp ne ptr {state}, null")
    measured, asked = f.if_(fine, together, alone, ["i64", "i64"])
    pair = f.value(f"insertvalue {{ i64, i64 }} poison, i64 {measured}, 0")
    f.ret("{ i64, i64 }", f.value(f"insertvalue {{ i64, i64 }} {pair}, i64 {asked}, 1"))


def _phase_bytes(f: Function, shares: Value) -> Value:
    """Return the bytes of a phase's counters: tasks done, and tasks claimed of each share."""
    return f.mul(f.add(shares, 1), LINE)


def _emit_work(module: Module) -> None:
    """Write the work of each participant.

    It returns the cycles of all tasks as its own share suggests, 0 if it had no task of some phase.  The caller is
    number 0, helpers have a number each.  State: references, kernel, bufs, mode of floating point, work, shares; the
    processors that participants run on; then per phase the counters: done, and claimed of each share.
    """
    args = [("ptr", "state"), ("i64", "number")]
    f = module.function("runtime.work", args, returns="i64", internal=False)
    kernel, bufs = [f.load("ptr", at(f, "%state", _STATE[name])) for name in ("kernel", "bufs")]
    phases, caller = field(f, "phases", "i64", kernel), f.value("icmp eq i64 %number, 0")
    last, own = f.sub(phases, 1), f.alloca(1, 8, "i64")
    all_work, shares = [f.load("i64", at(f, "%state", _STATE[name])) for name in ("work", "shares")]
    bytes_each = _phase_bytes(f, shares)

    def phase(number: Value, sums: list[Value]) -> list[Value]:
        function, tasks = _phase(f, kernel, number)
        done = at(f, f.element("%state", f.mul(number, bytes_each), "i8"), _COUNTERS)
        chunk = f.maximum(f.div(f.mul(tasks, CHUNK), all_work), 1)
        start = clock(f)
        f.store("i64", 0, own)

        def bound(share: Value) -> Value:  # rounded up: the first tasks are the caller's, who is there
            return f.div(f.add(f.mul(share, tasks), f.sub(shares, 1)), shares)

        def take_tasks(turn: Value, _: list[Value]) -> None:
            """Claim and run tasks of a share until none is left: in turn 0 the own share, then those of others."""
            share = f.rem(f.add("%number", turn), shares)
            begin, end = bound(share), bound(f.add(share, 1))
            length, claimed = f.sub(end, begin), f.element(done, f.mul(f.add(share, 1), LINE), "i8")
            look, claim, work, out = [f.label(x) for x in ("look", "claim", "work", "out")]
            f.effect(f"br label %{look}")
            f.open(look)
            f.effect(f"br i1 {f.less(relaxed(f, claimed), length)}, label %{claim}, label %{out}")
            f.open(claim)
            first = f.value(f"atomicrmw add ptr {claimed}, i64 {chunk} acq_rel")
            f.effect(f"br i1 {f.less(first, length)}, label %{work}, label %{out}")
            f.open(work)
            begin = f.add(begin, first)
            end = f.minimum(f.add(begin, chunk), end)
            f.for_(begin, end, 1, lambda task, _: f.effect(f"call void {function}(ptr {bufs}, i64 {task})"))
            f.store("i64", f.add(f.load("i64", own), f.sub(end, begin)), own)
            f.effect(f"br label %{look}")
            f.open(out)

        f.for_(0, shares, 1, take_tasks)
        mine = f.load("i64", own)
        spent = f.sub(clock(f), start)

        def report() -> None:
            """Add the tasks that this participant ran to those done in the phase."""
            f.value(f"atomicrmw add ptr {done}, i64 {mine} acq_rel")

        f.if_(f.less(0, mine), report)
        # after the last phase only the caller must know that the end is reached
        waits = f.value(f"or i1 {caller}, {f.less(number, last)}")

        def finished() -> str:
            count = f.value(f"load atomic i64, ptr {done} acquire, align 8")
            return f.value(f"icmp sge i64 {count}, {tasks}")

        f.if_(waits, lambda: until(f, finished))
        known = f.value(f"select i1 {f.less(0, mine)}, i64 {sums[1]}, i64 0")
        return [f.add(sums[0], f.div(f.mul(spent, tasks), f.maximum(mine, 1))), known]

    def join() -> None:
        f.effect(f"call void @runtime.apart(ptr {at(f, '%state', _STATE['processors'])})")
        f.effect(f"call void @llvm.x86.sse.ldmxcsr(ptr {at(f, '%state', _STATE['mode'])})")

    f.if_(caller, lambda: None, join)
    total, known = f.for_(0, phases, 1, phase, [("i64", 0), ("i64", 1)])
    f.if_(caller, lambda: None, lambda: _release(f, "%state", 1))
    f.ret("i64", f.mul(total, known))


def _release(f: Function, state: str, references: Value) -> None:
    before = f.value(f"atomicrmw sub ptr {state}, i64 {references} acq_rel")
    f.if_(f.value(f"icmp eq i64 {before}, {references}"), lambda: f.effect(f"call void @free(ptr {state})"))
