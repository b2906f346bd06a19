"""Runtime library of rewritten kernels: arithmetic of the field on vectors of 64-bit words, and checked memory.

A value of the field is kept below 2^32, not always below P.  The record of an array (`%array`) has its size in bytes,
the address of its elements (a word each) and the code of its element type (`CODES`; 0: not known yet).  Two tables of
stamps follow, for the tasks that wrote and read each element (32 bits each, or no stamps).  The last fields are a flag
for a writable array or one of pointers, and a key.  A pointer of unknown origin is to `@nobody`, which has no bytes.

`@fault` reports an access outside of its array, at a place that is not an element, or as another type; it goes to
`@nowhere`.  `@fault` also reports a race: an access of an element that another task of the phase wrote, or a write of
an element that another task read.  Unwritten memory is a negative word; reading it is reported in `@unwritten`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from verifier.kernels.field import FUNCTIONS, Field, FieldArithmetic

BOUNDS, RACE, FUEL = 1, 2, 3  # kinds of faults, in the lowest bits of `@fault`
DOUBT = 1 << 40  # added to the line where the fault is at an end of a range of places
WRITABLE, POINTERS = 1, 2  # the sixth word of an array; pointers are never written
# codes of types in memory; modulo 256 they are the bytes of an element
CODES = {"i8": 1, "i16": 2, "half": 258, "float": 4, "i32": 260, "double": 8, "ptr": 8}
GLOBALS = ("fault", "unwritten", "fuel", "mine", "base")
_MOST_LANES = 64

_MEMORY = f"""
%array = type {{ i64, ptr, i64, ptr, ptr, i64, i64 }}
@fault = global i64 0  ; those of `GLOBALS`
@unwritten = global i64 0
@mine = global i64 0
@base = global i64 0
@fuel = global i64 0
@nowhere = internal global [{_MOST_LANES} x i64] zeroinitializer
@nobody = internal global %array zeroinitializer
declare ptr @malloc(i64)
declare void @free(ptr)

define internal void @fail(i64 %kind, i64 %line) noinline {{
  %high = shl i64 %line, 2
  %code = or i64 %high, %kind
  store i64 %code, ptr @fault
  ret void
}}

define internal i1 @tick() noinline {{
  %left = load i64, ptr @fuel
  %less = sub i64 %left, 1
  store i64 %less, ptr @fuel
  %more = icmp sgt i64 %less, 0
  br i1 %more, label %on, label %off
off:
  call void @fail(i64 {FUEL}, i64 0)
  br label %on
on:
  ret i1 %more
}}

define internal ptr @place(ptr %d, i64 %at, i64 %count, i64 %code, i1 %writes, i64 %line) noinline {{
  %width = and i64 %code, 255
  %array = load %array, ptr %d
  %size = extractvalue %array %array, 0
  %known = extractvalue %array %array, 2
  %unknown = icmp eq i64 %known, 0
  %now = select i1 %unknown, i64 %code, i64 %known
  %kind = getelementptr %array, ptr %d, i64 0, i32 2
  store i64 %now, ptr %kind
  %bytes = mul i64 %count, %width
  %limit = sub i64 %size, %bytes
  %low = icmp sge i64 %at, 0
  %high = icmp sle i64 %at, %limit
  %rest = urem i64 %at, %width
  %whole = icmp eq i64 %rest, 0
  %same = icmp eq i64 %now, %code
  %flag = extractvalue %array %array, 5
  %may = icmp eq i64 %flag, {WRITABLE}
  %reads = xor i1 %writes, true
  %allowed = or i1 %may, %reads
  %a = and i1 %low, %high
  %b = and i1 %whole, %same
  %c = and i1 %a, %b
  %ok = and i1 %c, %allowed
  br i1 %ok, label %inside, label %outside
outside:
  call void @fail(i64 {BOUNDS}, i64 %line)
  ret ptr @nowhere
inside:
  %first = udiv i64 %at, %width
  %data = extractvalue %array %array, 1
  %owner = extractvalue %array %array, 3
  %reader = extractvalue %array %array, 4
  %private = icmp eq ptr %owner, null
  %mine = load i32, ptr @mine  ; of both the lower half
  %base = load i32, ptr @base
  br label %head
head:
  %j = phi i64 [ 0, %inside ], [ %next, %tail ]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %look, label %done
look:
  %e = add i64 %first, %j
  %held = getelementptr i64, ptr %data, i64 %e
  %word = load i64, ptr %held
  %none = icmp slt i64 %word, 0
  %empty = and i1 %none, %reads
  %to = select i1 %empty, ptr @unwritten, ptr @nowhere
  store i64 1, ptr %to
  br i1 %private, label %tail, label %stamps
stamps:
  %po = getelementptr i32, ptr %owner, i64 %e
  %o = load i32, ptr %po
  %pr = getelementptr i32, ptr %reader, i64 %e
  %r = load i32, ptr %pr
  %o.now = icmp sge i32 %o, %base
  %o.other = icmp ne i32 %o, %mine
  %o.bad = and i1 %o.now, %o.other
  %r.now = icmp sge i32 %r, %base
  %r.other = icmp ne i32 %r, %mine
  %r.bad = and i1 %r.now, %r.other
  %w.bad = and i1 %r.bad, %writes
  %bad = or i1 %o.bad, %w.bad
  br i1 %bad, label %race, label %stamp
race:
  call void @fail(i64 {RACE}, i64 %line)
  br label %stamp
stamp:
  %mark = select i1 %r.bad, i32 %base, i32 %mine
  %r.new = select i1 %writes, i32 %r, i32 %mark
  %o.new = select i1 %writes, i32 %mine, i32 %o
  store i32 %r.new, ptr %pr
  store i32 %o.new, ptr %po
  br label %tail
tail:
  %next = add i64 %j, 1
  br label %head
done:
  %element = getelementptr i64, ptr %data, i64 %first
  ret ptr %element
}}

define internal void @room(ptr %d, ptr %data, i64 %words, i64 %size, i64 %code) noinline {{
  %sized = insertvalue %array {{ i64 0, ptr null, i64 0, ptr null, ptr null, i64 {WRITABLE}, i64 0 }}, i64 %size, 0
  %coded = insertvalue %array %sized, i64 %code, 2
  %array = insertvalue %array %coded, ptr %data, 1
  store %array %array, ptr %d
  %bytes = mul i64 %words, 8
  call void @llvm.memset.p0.i64(ptr %data, i8 128, i64 %bytes, i1 false)
  ret void
}}
"""


class Words(FieldArithmetic):
    """Emitter of straight-line LLVM code on words or vectors of words; operands are value names or Python integers."""

    def __init__(self, lanes: int, field: Field, into: tuple[list[str], Iterator[int]] | None = None) -> None:
        self.lanes, self.field = lanes, field
        self.lines, self.numbers = into or ([], itertools.count())
        self.type, self.flags = [f"<{lanes} x {x}>" if lanes else x for x in ("i64", "i1")]

    def text(self, x: str | int) -> str:
        """An operand as text; a constant is 0 where the field is one of marks."""
        x = 0 if self.field.marks and not isinstance(x, str) else x
        return x if isinstance(x, str) else f"splat (i64 {x})" if self.lanes else str(x)

    def value(self, text: str) -> str:
        """Emit an instruction; return the name of its result."""
        name = f"%field-{next(self.numbers)}"  # the reader accepts no such name, so it cannot collide
        self.lines.append(f"  {name} = {text}")
        return name

    def __call__(self, op: str, a: str | int, b: str | int) -> str:
        op = "or" if self.field.marks and not op.startswith("icmp") else op
        return self.value(f"{op} {self.type} {self.text(a)}, {self.text(b)}")

    def call(self, name: str, *args: str | int) -> str:
        """Emit a call of a function in `FUNCTIONS` on these lanes."""
        passed = ", ".join([f"{self.type} {self.text(x)}" for x in args])
        return self.value(f"call {self.type} @{name}.{self.lanes}({passed})")

    def select(self, flag: str, a: str, b: str) -> str:
        """Emit a select: a where the flag is set, else b."""
        return self.value(f"select {self.flags} {flag}, {self.type} {a}, {self.type} {b}")


def library(text: str, field: Field) -> str:
    """The definitions of the functions that a text calls, and of those that they call."""
    made: dict[tuple[str, str], str] = {}
    left = set(_CALL.findall(text))
    while left:
        name, lanes = call = left.pop()
        made[call] = _function(name, int(lanes), field)
        left |= {*_CALL.findall(made[call])} - made.keys()
    return "\n".join([_MEMORY, *made.values()])


def _function(name: str, lanes: int, field: Field) -> str:
    if name in _TOUCHES:
        return _touching(name, lanes, field)
    w = Words(lanes, field)
    parameters, body = FUNCTIONS[name]
    result = body(w, [f"%{x}" for x in parameters])
    typed = ", ".join([f"{w.type} %{x}" for x in parameters])
    return _text(f"{w.type} @{name}.{lanes}({typed})", w, f"{w.type} {result}")


def _touching(name: str, lanes: int, field: Field) -> str:
    """The definition of a masked load or store, lane by lane; a lane without the mask accesses no element."""
    w, wide, held, writes = Words(0, field), f"<{lanes} x i64>", "%first", "true" if name == "scatter" else "false"
    for j in range(lanes):
        at, count, x = [w.value(f"extractelement {wide} {y}, i64 {j}") for y in ("%at", "%mask", held)]
        at, on = w.value(f"mul i64 {at}, {count}"), w.value(f"icmp ne i64 {count}, 0")
        place = w.value(f"call ptr @place(ptr %d, i64 {at}, i64 {count}, i64 %code, i1 {writes}, i64 %line)")
        place = w.value(f"select i1 {on}, ptr {place}, ptr @nowhere")
        if name == "scatter":
            w.lines.append(f"  store i64 {x}, ptr {place}")
        else:
            touched = w.value(f"select i1 {on}, i64 {w.value(f'load i64, ptr {place}')}, i64 {x}")
            held = w.value(f"insertelement {wide} {held}, i64 {touched}, i64 {j}")
    typed = f"ptr %d, {wide} %at, {wide} %mask, {wide} %first, i64 %code, i64 %line"
    return _text(f"{wide} @{name}.{lanes}({typed})", w, f"{wide} {held}")


def _text(head: str, w: Words, result: str) -> str:
    return "\n".join([f"define internal {head} noinline {{", *w.lines, f"  ret {result}", "}\n"])


_TOUCHES = ("gather", "scatter")
_CALL = re.compile(rf"@({'|'.join([*FUNCTIONS, *_TOUCHES])})\.(\d+)\(")
