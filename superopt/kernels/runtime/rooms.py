"""Heap memory of tasks: from the C library, else from a reserve allocated when the kernel was loaded.

A task cannot report that memory is short, and must not write to a null pointer.  Kernels link `aligned_alloc` and
`free` to the functions here.  The reserve is as large as the largest kernel needs for one thread; its unused pages take
no memory.  One thread has it at a time and the others wait: slow, but correct.  A function frees all its rooms
together, when it returns, which makes the reserve a stack.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from superopt.errors import UnsupportedKernel
from superopt.kernels.llvm.module import Function, Module
from superopt.kernels.runtime.team import put, relaxed, swapped, until

IMPORTS = {"aligned_alloc": "runtime.room", "free": "runtime.vacate"}
"""Function of the C library that kernels call -> what they are linked to."""
_ALIGN = 64
_STATE = ("owner", "base", "end", "top", "rooms")
_HELD: list[mmap.mmap] = []  # reserves of this process: never freed, since a task may be using one


def emit_rooms(module: Module) -> None:
    """Write `ptr runtime.room(i64 align, i64 bytes)`, `void runtime.vacate(ptr)` and the setup of the reserve."""
    for name in _STATE:
        module.variable(f"runtime.reserve.{name}", "i64", "0")
    module.declare("declare ptr @aligned_alloc(i64, i64)")
    module.declare("declare void @free(ptr)")
    module.declare("declare ptr @llvm.thread.pointer.p0()")
    module.declare("declare void @llvm.trap()")
    _emit_room(module)
    _emit_vacate(module)
    f = module.function("runtime.reserve", [("i64", "base"), ("i64", "bytes")], internal=False)
    _own(f)
    for name, value in (("base", "%base"), ("end", f.add("%base", "%bytes")), ("top", "%base"), ("rooms", 0)):
        f.store("i64", value, _at(name))
    put(f, 0, _at("owner"), "release")
    f.ret()
    f = module.function("runtime.reserve.forget", [], internal=False)
    for name, value in (("top", f.load("i64", _at("base"))), ("rooms", 0), ("owner", 0)):
        f.store("i64", value, _at(name))
    f.ret()


def _emit_room(module: Module) -> None:
    f = module.function("runtime.room", [("i64", "align"), ("i64", "bytes")], returns="ptr", internal=False)
    address = f.call("ptr", "aligned_alloc", ("i64", "%align"), ("i64", "%bytes"))
    f.exit_if(f.value(f"icmp ne ptr {address}, null"), "ptr", lambda: address)
    _own(f)
    first = f.load("i64", _at("top"))
    last = f.add(first, "%bytes")
    f.if_(f.less(f.load("i64", _at("end")), last), lambda: f.effect("call void @llvm.trap()"))  # `needed` was wrong
    f.store("i64", f.value(f"and i64 {f.add(last, _ALIGN - 1)}, {-_ALIGN}"), _at("top"))
    f.store("i64", f.add(f.load("i64", _at("rooms")), 1), _at("rooms"))
    f.ret("ptr", f.value(f"inttoptr i64 {first} to ptr"))


def _emit_vacate(module: Module) -> None:
    f = module.function("runtime.vacate", [("ptr", "room")], internal=False)
    room = f.value("ptrtoint ptr %room to i64")
    mine = f.value(f"icmp eq i64 {relaxed(f, _at('owner'))}, {_thread(f)}")  # another owner may change now

    def back() -> None:
        f.store("i64", f.minimum(f.load("i64", _at("top")), room), _at("top"))
        left = f.sub(f.load("i64", _at("rooms")), 1)
        f.store("i64", left, _at("rooms"))
        f.if_(f.less(left, 1), lambda: put(f, 0, _at("owner"), "release"))

    behind = f.value(f"xor i1 {f.less(room, f.load('i64', _at('base')))}, true")
    before = f.less(room, f.load("i64", _at("end")))
    inside = f.value(f"and i1 {mine}, {f.value(f'and i1 {behind}, {before}')}")
    f.if_(inside, back, lambda: f.effect("call void @free(ptr %room)"))
    f.ret()


def _at(name: str) -> str:
    return f"@runtime.reserve.{name}"


def _thread(f: Function) -> str:
    """Return a number that no other thread of the process has."""
    return f.value(f"ptrtoint ptr {f.value('call ptr @llvm.thread.pointer.p0()')} to i64")


def _own(f: Function) -> None:
    """Wait until the reserve is this thread's; it may be already."""
    mine = _thread(f)

    def taken() -> str:
        """Write the attempt to own the rooms; return the flag that says whether this thread owns them."""
        held = f.value(f"icmp eq i64 {relaxed(f, _at('owner'))}, {mine}")
        return f.value(f"or i1 {held}, {swapped(f, _at('owner'), 0, mine)}")

    until(f, taken)


def needed(rooms: Sequence[int]) -> int:
    """Return the bytes of the reserve for a kernel whose functions, each active once, have rooms of these sizes."""
    return sum([-(-size // _ALIGN) * _ALIGN for size in rooms])


def put_by(address: int, size: int) -> None:
    """Allocate a reserve of so many bytes.

    Args:
        address: address of `runtime.reserve`.
        size: bytes that a kernel needs.

    Raises:
        UnsupportedKernel: there is no memory for it.
    """
    if size <= max([len(held) for held in _HELD], default=0):
        return
    try:
        _HELD.append(mmap.mmap(-1, size))
    except (OSError, MemoryError, OverflowError, ValueError) as error:
        raise UnsupportedKernel(f"no memory for {size} bytes of its tasks: {error}") from None
    base = ctypes.addressof(ctypes.c_char.from_buffer(_HELD[-1]))
    ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)(base, size)
