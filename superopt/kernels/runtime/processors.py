"""Keeps participants of a region on processors of their own, as LLVM code.

The operating system may put two threads of a region on one processor while another is idle, above all after something
else ran for a moment.  It may leave them there for tens of milliseconds.  Each then waits while the other works, and
the region runs at the speed of one thread less.

So every participant notes its processor in a set that belongs to the region.  A helper that finds its processor taken
moves, before it claims any task, to an allowed one that nobody of the region is on.  It is then free to go anywhere
again: no thread stays bound, and the caller is never moved.
"""

from __future__ import annotations

from superopt.kernels.llvm.module import Function, Module, Value

SET_BYTES = 128  # the C library's cpu_set_t: 1024 processors
_WORDS = SET_BYTES // 8


def emit_apart(module: Module) -> None:
    """Write `void runtime.apart(ptr used)`: note the processor of this thread, or go to one that is not noted yet."""
    _emit_elsewhere(module)
    f = module.function("runtime.apart", [("ptr", "used")], internal=False)
    f.if_(note(f, "%used"), lambda: f.effect("call void @runtime.elsewhere(ptr %used)"))
    f.ret()


def note(f: Function, used: str) -> str:
    """Add the processor of this thread to the set; return whether it was there already."""
    f.module.declare("declare i32 @sched_getcpu()")
    cpu = f.value(f"sext i32 {f.call('i32', 'sched_getcpu')} to i64")
    known = f.value(f"icmp ult i64 {cpu}, {8 * SET_BYTES}")  # -1 where it is unknown
    return f.value(f"trunc i64 {f.if_(known, lambda: [_add(f, used, cpu)], lambda: [0], ['i64'])[0]} to i1")


def _add(f: Function, words: str, cpu: Value) -> str:
    """Add a processor to a set that other threads change too; return 1 if it was there already."""
    bit = f.value(f"and i64 {cpu}, 63")
    flag = f.value(f"shl i64 1, {bit}")
    word = f.element(words, f.value(f"lshr i64 {cpu}, 6"), "i64")
    before = f.value(f"lshr i64 {f.value(f'atomicrmw or ptr {word}, i64 {flag} monotonic')}, {bit}")
    return f.value(f"and i64 {before}, 1")


def _emit_elsewhere(module: Module) -> None:
    """Write a move to the first allowed processor that is not in the set, if any, without staying bound to it."""
    for name in ("sched_getaffinity", "sched_setaffinity"):
        module.declare(f"declare i32 @{name}(i32, i64, ptr)")
    module.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    f = module.function("runtime.elsewhere", [("ptr", "used")], attributes="noinline cold nounwind")
    allowed, target = f.alloca(_WORDS, 8, "i64"), f.alloca(_WORDS, 8, "i64")

    def bind(cpus: str) -> None:
        f.call("i32", "sched_setaffinity", ("i32", 0), ("i64", SET_BYTES), ("ptr", cpus))

    def clear(words: str) -> None:
        f.effect(f"call void @llvm.memset.p0.i64(ptr {words}, i8 0, i64 {SET_BYTES}, i1 false)")

    def look(j: Value, gone: list[Value]) -> list[Value]:
        taken = f.value(f"load atomic i64, ptr {f.element('%used', j, 'i64')} monotonic, align 8")
        free = f.value(f"and i64 {f.load('i64', f.element(allowed, j, 'i64'))}, {f.value(f'xor i64 {taken}, -1')}")

        def go() -> list[Value]:
            bit = f.intrinsic("cttz", "i64", ("i64", free), ("i1", "true"))
            cpu = f.add(f.mul(j, 64), bit)

            def move() -> None:
                f.store("i64", f.value(f"shl i64 1, {bit}"), f.element(target, j, "i64"))
                bind(target)
                bind(allowed)

            f.if_(f.less(_add(f, "%used", cpu), 1), move)  # else another helper is just going there
            return [1]

        here = f.value(f"and i1 {f.value(f'icmp ne i64 {free}, 0')}, {f.less(gone[0], 1)}")
        return [f.if_(here, go, lambda: [gone[0]], ["i64"])[0]]

    def search() -> None:
        f.for_(0, _WORDS, 1, look, [("i64", 0)])

    clear(allowed)
    clear(target)
    known = f.call("i32", "sched_getaffinity", ("i32", 0), ("i64", SET_BYTES), ("ptr", allowed))
    f.if_(f.value(f"icmp sge i32 {known}, 0"), search)
    f.ret()
