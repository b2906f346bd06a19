"""Straight-line instructions of a function under construction: i64 arithmetic, memory, vectors, floats.

`Instructions` is the part of `superopt.kernels.llvm.module.Function` that writes no branches.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from superopt.errors import UnsupportedKernel
from superopt.kernels.llvm.types import BYTES, constant_mask, element_of, lanes_of, mangled, vector

MOST_VALUES = 40_000  # instructions of a function: LLVM takes a minute for as many
_APART = 8  # instructions for each lane of what has no instruction for all: a branch and a load or a store of its own
MOST_ON_STACK_BYTES = 256 << 10  # of one array that may also lie on the heap
Value: TypeAlias = "int | str"
Lines: TypeAlias = "list[str | Lines]"


class Declarations(Protocol):
    """What instructions need of a module."""

    def declare(self, line: str) -> None:
        """Add a declaration, once."""
        ...


class Instructions:
    """Appends instructions to `lines`; arrays on the stack go to the entry block."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self.lines: Lines = []
        self.stack_bytes = 0  # of the arrays allocated with `alloca`
        self.entry: list[str] = []
        self.heap: list[str] = []  # what is freed before every return
        self._count = self._apart = 0

    @property
    def written(self) -> int:
        """Number of instructions, as LLVM will have them."""
        return self._count + _APART * self._apart

    def each_apart(self, type: str) -> None:
        """Say that addresses of a vector are taken one by one: processors gather and scatter 32 and 64 bits."""
        if BYTES[element_of(type)] < 4:
            self._apart += lanes_of(type)

    def value(self, op: str) -> str:
        """Append an instruction and name its result.

        Raises:
            UnsupportedKernel: there are too many by now.
        """
        self._count += 1
        if self.written > MOST_VALUES:
            raise UnsupportedKernel(f"more than {MOST_VALUES} instructions: something is repeated at too many points")
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {op}")
        return name

    def effect(self, op: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {op}")

    def call(self, returns: str, name: str, *args: tuple[str, Value]) -> str:
        """Call a declared or defined function (`name` without `@`, or an SSA value) for its result."""
        callee = name if name.startswith("%") else f"@{name}"
        return self.value(f"call {returns} {callee}({', '.join([f'{t} {x}' for t, x in args])})")

    def intrinsic(self, name: str, returns: str, *args: tuple[str, Value], suffix: str | None = None) -> str:
        """Declare and call `llvm.<name>.<suffix>`; the suffix is the mangled result type unless given."""
        full = f"llvm.{name}.{mangled(returns)}" if suffix is None else f"llvm.{name}{'.' if suffix else ''}{suffix}"
        self._declarations.declare(f"declare {returns} @{full}({', '.join([t for t, _ in args])})")
        return self.call(returns, full, *args)

    # ---- i64 arithmetic

    def add(self, a: Value, b: Value) -> Value:
        """a + b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.value(f"add nsw i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        """a - b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.value(f"sub nsw i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        """a * b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for x, y in ((a, b), (b, a)):
            if x == 0 or x == 1:
                return y if x == 1 else 0
        return self.value(f"mul nsw i64 {a}, {b}")

    def div(self, a: Value, b: Value) -> Value:
        """a // b of i64, both non-negative, b > 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self.value(f"udiv i64 {a}, {b}")

    def rem(self, a: Value, b: Value) -> Value:
        """a % b of i64, both non-negative, b > 0."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self.value(f"urem i64 {a}, {b}")

    def minimum(self, a: Value, b: Value) -> Value:
        """The lesser of two i64."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.value(f"select i1 {self.less(a, b)}, i64 {a}, i64 {b}")

    def maximum(self, a: Value, b: Value) -> Value:
        """The greater of two i64."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.value(f"select i1 {self.less(a, b)}, i64 {b}, i64 {a}")

    def less(self, a: Value, b: Value) -> str:
        """The condition a < b of i64, as i1."""
        if isinstance(a, int) and isinstance(b, int):
            return str(a < b).lower()
        return self.value(f"icmp slt i64 {a}, {b}")

    # ---- memory

    def element(self, pointer: Value, index: Value, type: str = "float") -> str:
        """The address of element `index` of an array of this type."""
        if index == 0:
            return str(pointer)
        return self.value(f"getelementptr inbounds {type}, ptr {pointer}, i64 {index}")

    def load(self, type: str, pointer: Value, align: int | None = None) -> str:
        """Read; aligned to one element unless said otherwise."""
        return self.value(f"load {type}, ptr {pointer}, align {align or BYTES[element_of(type)]}")

    def store(self, type: str, x: Value, pointer: Value, align: int | None = None) -> None:
        """Write; aligned to one element unless said otherwise."""
        self.effect(f"store {type} {x}, ptr {pointer}, align {align or BYTES[element_of(type)]}")

    def alloca(self, count: int, align: int = 64, type: str = "float") -> str:
        """Room for `count` elements on the stack of the function."""
        self._count += 1
        name = f"%a{self._count}"
        self.stack_bytes += count * BYTES[element_of(type)] * max(lanes_of(type), 1)
        self.entry.append(f"  {name} = alloca [{count} x {type}], align {align}")
        return name

    def room(self, count: int, align: int = 64, type: str = "float") -> str:
        """Room for `count` elements until the function returns: on the stack, or on the heap where it is much."""
        size = count * BYTES[element_of(type)] * max(lanes_of(type), 1)
        if size <= MOST_ON_STACK_BYTES:
            return self.alloca(count, align, type)
        self._count += 1
        name = f"%a{self._count}"
        self._declarations.declare("declare ptr @aligned_alloc(i64, i64)")
        self._declarations.declare("declare void @free(ptr)")
        self.entry.append(f"  {name} = call ptr @aligned_alloc(i64 {align}, i64 {-(-size // align) * align})")
        self.heap.append(name)
        return name

    def masked_load(
        self, type: str, pointer: Value, mask: str, other: str = "zeroinitializer", align: int | None = None
    ) -> str:
        """Read the lanes of the mask; the rest is `other` and not touched in memory."""
        align, flags = align or BYTES[element_of(type)], vector("i1", lanes_of(type))
        name = f"llvm.masked.load.{mangled(type)}.p0"
        self._declarations.declare(f"declare {type} @{name}(ptr, {flags}, {type})")
        return self.value(f"call {type} @{name}(ptr align {align} {pointer}, {flags} {mask}, {type} {other})")

    def masked_store(self, type: str, x: Value, pointer: Value, mask: str, align: int | None = None) -> None:
        """Write the lanes of the mask."""
        align, flags = align or BYTES[element_of(type)], vector("i1", lanes_of(type))
        held = [j for j, flag in enumerate(mask[1:-1].split(", ")) if flag == "i1 1"]
        if len(held) == 1:  # LLVM 22 writes 4 bytes for a truncated vector under such a mask
            element = element_of(type)
            one = self.extract(type, x, held[0])
            self.store(element, one, self.element(pointer, held[0], element), align)
            return
        name = f"llvm.masked.store.{mangled(type)}.p0"
        self._declarations.declare(f"declare void @{name}({type}, ptr, {flags})")
        self.effect(f"call void @{name}({type} {x}, ptr align {align} {pointer}, {flags} {mask})")

    def gather(
        self,
        type: str,
        pointers: str,
        mask: str | None = None,
        other: str = "zeroinitializer",
        align: int | None = None,
    ) -> str:
        """Read one element per lane from a vector of addresses."""
        lanes, align = lanes_of(type), align or BYTES[element_of(type)]
        flags, addresses = vector("i1", lanes), vector("ptr", lanes)
        name = f"llvm.masked.gather.{mangled(type)}.{mangled(addresses)}"
        self._declarations.declare(f"declare {type} @{name}({addresses}, {flags}, {type})")
        mask = mask or constant_mask(lanes, lanes)
        self.each_apart(type)
        return self.value(f"call {type} @{name}({addresses} align {align} {pointers}, {flags} {mask}, {type} {other})")

    def prefetch(self, pointer: Value, locality: int = 3, write: bool = False) -> None:
        """Ask for a cache line; locality 3 is every level of cache, 0 none."""
        self._declarations.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.effect(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {locality}, i32 1)")

    # ---- vectors and floats

    def broadcast(self, x: Value, type: str, lanes: int) -> str:
        """A scalar of this type in all lanes."""
        if not lanes:
            return str(x)
        if not str(x).startswith("%"):
            return f"splat ({type} {x})"
        whole = vector(type, lanes)
        first = self.value(f"insertelement {whole} poison, {type} {x}, i64 0")
        return self.value(f"shufflevector {whole} {first}, {whole} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, type: str, x: Value, lane: Value) -> str:
        """One lane of a vector of this type."""
        return self.value(f"extractelement {type} {x}, i64 {lane}")

    def fop(self, op: str, a: Value, b: Value, type: str) -> str:
        """add, sub, mul, div or rem of floats."""
        return self.value(f"f{op} {type} {a}, {b}")

    def fma(self, a: Value, b: Value, c: Value, type: str) -> str:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", type, (type, a), (type, b), (type, c))

    def fmaximum(self, a: Value, b: Value, type: str) -> str:
        """The greater of two floats; NaN if either is; which zero is not said."""
        return self._extremum("ogt", a, b, type)

    def fminimum(self, a: Value, b: Value, type: str) -> str:
        """The lesser of two floats; NaN if either is; which zero is not said."""
        return self._extremum("olt", a, b, type)

    def _extremum(self, order: str, a: Value, b: Value, type: str) -> str:
        flags = vector("i1", lanes_of(type))
        better = self.value(f"fcmp {order} {type} {a}, {b}")  # false when unordered: b
        chosen = self.value(f"select {flags} {better}, {type} {a}, {type} {b}")
        nan = self.value(f"fcmp uno {type} {a}, zeroinitializer")
        return self.value(f"select {flags} {nan}, {type} {a}, {type} {chosen}")

    def reduce(self, monoid: str, type: str, x: Value, signed: bool = True) -> str:
        """Combine the lanes of a vector: sum, product, max, min, and, or, xor; floating sums in any order."""
        element = element_of(type)
        float_ = element in ("float", "double", "half", "bfloat")
        if monoid in ("and", "or", "xor"):
            return self.intrinsic(f"vector.reduce.{monoid}", element, (type, x), suffix=mangled(type))
        if monoid in ("max", "min"):
            kind = f"f{monoid}imum" if float_ else f"{'s' if signed else 'u'}{monoid}"
            return self.intrinsic(f"vector.reduce.{kind}", element, (type, x), suffix=mangled(type))
        kind = {"sum": "add", "product": "mul"}[monoid]
        if not float_:
            return self.intrinsic(f"vector.reduce.{kind}", element, (type, x), suffix=mangled(type))
        name, neutral = f"llvm.vector.reduce.f{kind}.{mangled(type)}", "-0.0" if monoid == "sum" else "1.0"
        self._declarations.declare(f"declare {element} @{name}({element}, {type})")
        return self.value(f"call reassoc {element} @{name}({element} {neutral}, {type} {x})")
