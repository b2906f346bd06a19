"""Functions that rewritten kernels call: arithmetic of the field on vectors of 64-bit words, and watched memory.

A value of the field is held below 2^32, not always below P.  An array is described by six words: bytes, address of its
elements (a word each), code of an element (`CODES`; 0: not known yet), stamps of who wrote and who read each element
(32 bits each, or no stamps), and whether it may be written or holds pointers.  A pointer from elsewhere is to
`@nobody`, who has no bytes.  An access outside of its array, at a place that is not an element or as one of another
type, of an element that another task of the phase wrote, or a write of what another task read, is reported in `@fault`,
and goes to memory of nobody.  What nobody wrote is a negative word; that it is read is reported in `@unwritten`.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from verifier.kernels.field import MIX, Field, P

BOUNDS, RACE, FUEL = 1, 2, 3  # what `@fault` says in its lowest bits
WRITABLE, POINTERS = 1, 2  # the sixth word of an array; pointers are never written
CODES = {"i8": 1, "i16": 2, "half": 258, "float": 4, "double": 8, "ptr": 8}  # of types in memory; bytes modulo 256
GLOBALS = {"fault": ctypes.c_int64, "unwritten": ctypes.c_int64, "fuel": ctypes.c_int64,
           "mine": ctypes.c_int32, "base": ctypes.c_int32}  # fmt: skip
_MOST_LANES = 64

_MEMORY = f"""
%array = type {{ i64, ptr, i64, ptr, ptr, i64 }}
@fault = global i64 0  ; those of `GLOBALS`
@unwritten = global i64 0
@mine = global i32 0
@base = global i32 0
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
  %mine = load i32, ptr @mine
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
  %sized = insertvalue %array {{ i64 0, ptr null, i64 0, ptr null, ptr null, i64 {WRITABLE} }}, i64 %size, 0
  %coded = insertvalue %array %sized, i64 %code, 2
  %array = insertvalue %array %coded, ptr %data, 1
  store %array %array, ptr %d
  %bytes = mul i64 %words, 8
  call void @llvm.memset.p0.i64(ptr %data, i8 128, i64 %bytes, i1 false)
  ret void
}}
"""

_LANES = """
define internal <$N x i64> @$NAME.$N(ptr %d, <$N x i64> %at, <$N x i64> %mask, <$N x i64> %first, i64 %code,
                                     i64 %line) noinline {
  br label %head
head:
  %j = phi i64 [ 0, %0 ], [ %next, %tail ]
  %v = phi <$N x i64> [ %first, %0 ], [ %w, %tail ]
  %more = icmp slt i64 %j, $N
  br i1 %more, label %look, label %done
look:
  %flag = extractelement <$N x i64> %mask, i64 %j
  %on = icmp ne i64 %flag, 0
  br i1 %on, label %touch, label %tail
touch:
  %o = extractelement <$N x i64> %at, i64 %j
  %p = call ptr @place(ptr %d, i64 %o, i64 1, i64 %code, i1 $WRITES, i64 %line)
  $TOUCH
  %touched = insertelement <$N x i64> %v, i64 %x, i64 %j
  br label %tail
tail:
  %w = phi <$N x i64> [ %v, %look ], [ %touched, %touch ]
  %next = add i64 %j, 1
  br label %head
done:
  ret <$N x i64> %v
}
"""
_TOUCH = {
    "gather": ("false", "%x = load i64, ptr %p"),
    "scatter": ("true", "%x = extractelement <$N x i64> %v, i64 %j\n  store i64 %x, ptr %p"),
}


class Words:
    """Straight-line code on words, or on vectors of so many; names of values and Python integers are operands."""

    def __init__(self, lanes: int, field: Field, into: tuple[list[str], Iterator[int]] | None = None) -> None:
        self.lanes, self.field = lanes, field
        self.lines, self.numbers = into or ([], itertools.count())
        self.type, self.flags = [f"<{lanes} x {x}>" if lanes else x for x in ("i64", "i1")]

    def text(self, x: str | int) -> str:
        """An operand."""
        x = 0 if self.field.marks and not isinstance(x, str) else x
        return x if isinstance(x, str) else f"splat (i64 {x})" if self.lanes else str(x)

    def value(self, text: str) -> str:
        """An instruction, and the name of its result."""
        name = f"%field-{next(self.numbers)}"  # the reader reads no such name
        self.lines.append(f"  {name} = {text}")
        return name

    def __call__(self, op: str, a: str | int, b: str | int) -> str:
        return self.value(f"{'or' if self.field.marks else op} {self.type} {self.text(a)}, {self.text(b)}")

    def call(self, name: str, *args: str | int) -> str:
        """One of the functions of these lanes."""
        passed = ", ".join([f"{self.type} {self.text(x)}" for x in args])
        return self.value(f"call {self.type} @{name}.{self.lanes}({passed})")

    def fold(self, x: str) -> str:
        """The same modulo P: of less than 2^64 less than 2^34, of less than 2^34 less than 2^31 + 8."""
        return self("add", self("and", x, P), self("lshr", x, 31))

    def least(self, x: str) -> str:
        """Below P, of less than 2^32."""
        y = self.fold(x)
        below = self("sub", y, P)
        small = self.value(f"icmp ult {self.type} {y}, {self.text(P)}")
        return self.select(small, y, below)

    def select(self, flag: str, a: str, b: str) -> str:
        """a where the flag is set."""
        return self.value(f"select {self.flags} {flag}, {self.type} {a}, {self.type} {b}")

    def same(self, a: str, b: str) -> str:
        """Are two values below P equal?"""
        return self.value(f"icmp eq {self.type} {a}, {b}")

    def no(self, c: str) -> str:
        """1 - c, below P, of c below P."""
        return self.least(self("sub", P + 1, c))

    def mixed(self, z: str) -> str:
        """Scrambled 64 bits."""
        z = self("add", z, MIX[0])
        z = self("mul", self("xor", z, self("lshr", z, 30)), MIX[1])
        z = self("mul", self("xor", z, self("lshr", z, 27)), MIX[2])
        return self("xor", z, self("lshr", z, 31))

    def scrambled(self, x: str, factors: Iterable[int]) -> str:
        """Two rounds of multiplication, each after the upper half is added to the lower."""
        for factor in factors:
            x = self("and", self("mul", self("xor", x, self("lshr", x, 16)), factor), P)
        return self("xor", x, self("lshr", x, 16))


def library(text: str, field: Field) -> str:
    """The functions that a text calls, and those that they call."""
    made: dict[tuple[str, str], str] = {}
    left = set(_CALL.findall(text))
    while left:
        name, lanes = call = left.pop()
        made[call] = _function(name, int(lanes), field)
        left |= {*_CALL.findall(made[call])} - made.keys()
    return "\n".join([_MEMORY, *made.values()])


def _function(name: str, lanes: int, field: Field) -> str:
    if name in _TOUCH:
        writes, touch = _TOUCH[name]
        text = _LANES.replace("$NAME", name).replace("$WRITES", writes).replace("$TOUCH", touch)
        return text.replace("$N", str(lanes))
    w = Words(lanes, field)
    parameters, body = _BODIES[name]
    result = body(w)
    typed = ", ".join([f"{w.type} %{x}" for x in parameters])
    lines = "\n".join([*w.lines, f"  ret {w.type} {result}"])
    return f"define internal {w.type} @{name}.{lanes}({typed}) noinline {{\n{lines}\n}}\n"


def _inverse(w: Words) -> str:
    power = "%a"  # to the power of 2^31 - 3, the bits of which are 1 but for the second
    for bit in range(29, -1, -1):
        power = w.call("mul", power, power)
        if bit != 1:
            power = w.call("mul", power, "%a")
    return power


def _pair(w: Words) -> str:
    first = w.mixed(w("add", w.least("%a"), "%k"))
    return w("lshr", w.mixed(w("add", first, w.least("%b"))), 33)


def _equal(w: Words) -> str:
    a, b = w.least("%a"), w.least("%b")
    below = w.value(f"icmp ult {w.type} {a}, {b}")
    low, high = w.select(below, a, b), w.select(below, b, a)
    return w.call("pair", w.field.key("equal"), low, high)


def _maximum(w: Words) -> str:
    f = w.field
    sides = [w.scrambled(w("and", w("add", w.least(x), f.shift), P), f.factors[:2]) for x in ("%a", "%b")]
    total = w.scrambled(w("and", w("add", *sides), P), f.factors[:1:-1])
    return w("and", w("add", total, P + 1 - f.shift), P)


def _choose(w: Words) -> str:
    key = w.field.key("less")
    c, x, y = [w.least(f"%{name}") for name in "cxy"]
    less, more = [w.least(w.call("pair", key, a, b)) for a, b in ((x, y), (y, x))]
    plain = w.call("fma", c, w.least(w("sub", w("add", x, P), y)), y)
    low, high = [w.value(f"or {w.flags} {w.same(c, a)}, {w.same(c, w.no(b))}") for a, b in ((less, more), (more, less))]
    least = w.call("maximum", w("sub", P, x), w("sub", P, y))
    least = w("sub", 2 * P, least)
    return w.select(high, w.call("maximum", x, y), w.select(low, least, plain))


_BODIES: dict[str, tuple[str, Callable[[Words], str]]] = {
    "add": ("ab", lambda w: w.fold(w("add", "%a", "%b"))),
    "sub": ("ab", lambda w: w.fold(w("add", "%a", w("sub", 4 * P, "%b")))),
    "mul": ("ab", lambda w: w.fold(w.fold(w("mul", "%a", "%b")))),
    "fma": ("abc", lambda w: w.fold(w.fold(w("add", w("mul", "%a", "%b"), "%c")))),
    "inverse": ("a", _inverse),
    "hash": ("ka", lambda w: w("lshr", w.mixed(w("add", w.least("%a"), "%k")), 33)),
    "pair": ("kab", _pair),
    "equal": ("ab", _equal),
    "maximum": ("ab", _maximum),
    "choose": ("cxy", _choose),
}
"""Parameters and code of the functions on words, whatever the number of lanes."""
_CALL = re.compile(rf"@({'|'.join([*_BODIES, *_TOUCH])})\.(\d+)\(")
