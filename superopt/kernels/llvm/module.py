"""LLVM modules and functions written as text: a thin builder that knows types, literals, loops and vectors.

A value is the name of an SSA value (`%v3`), the text of a constant, or, for `i64` only, a Python integer.  Arithmetic
on two integers is folded at once, so that address computations at fixed sizes vanish.  Types:
`superopt.kernels.llvm.types`.

`Function.lines` may hold nested lists: the holder of such a list can write into an earlier place, as long as the
inserted code has no branches.  Nothing here knows the width of a vector: it is in the types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from superopt.errors import UnsupportedKernel
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.llvm.types import BYTES, constant_mask, element_of, lanes_of, mangled, vector

MOST_VALUES = 40_000  # instructions of a function: LLVM takes a minute for as many
_MANY = 8  # fixed distances: kernels of DenseNet-121 take 3.8 s of code generation; 5.9 s with 16, 6.9 s with none
_APART = 8  # instructions for each lane of what has no instruction for all: a branch and a load or a store of its own
MOST_ON_STACK_BYTES = 256 << 10  # bytes on the stack of one array that may also lie on the heap
Value: TypeAlias = "int | str"
_ADDRESS = re.compile(r"  (%\w+)( = getelementptr \w+, ptr .*)")
Lines: TypeAlias = "list[str | Lines]"
Body: TypeAlias = "Callable[[Value, list[Value]], Sequence[Value] | None]"


class Module:
    """The text of one LLVM module for one processor."""

    def __init__(self, cpu: Cpu | None = None) -> None:
        self.cpu = cpu or host()
        self.functions: dict[str, Function] = {}
        self._declared: dict[str, None] = {}
        self._texts: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._metadata: list[str] = []

    def copy(self) -> Module:
        """Return a module with the same functions, to which others can be added."""
        made = Module(self.cpu)
        made.functions, made._declared = dict(self.functions), dict(self._declared)
        made._texts, made._constants = dict(self._texts), dict(self._constants)
        made._metadata = list(self._metadata)
        return made

    def declare(self, line: str) -> None:
        """Add a declaration, once."""
        self._declared[line] = None

    def function(
        self,
        name: str,
        args: Sequence[tuple[str, str]],
        returns: str = "void",
        internal: bool = True,
        attributes: str = "nounwind",
    ) -> Function:
        """Begin a function; `args` are (type with attributes, name), read as `%name`."""
        assert name not in self.functions, name
        made = Function(self, name, args, returns, internal, attributes)
        self.functions[name] = made
        return made

    def constant(self, name: str, type: str, value: str, exported: bool = False) -> None:
        """Add constant data, referred to as `@name`."""
        assert name not in self._constants, name
        self._constants[name] = f"@{name} = {'' if exported else 'private unnamed_addr '}constant {type} {value}"

    def variable(self, name: str, type: str, value: str, align: int = 8) -> None:
        """Add mutable data, referred to as `@name`."""
        assert name not in self._constants, name
        self._constants[name] = f"@{name} = internal global {type} {value}, align {align}"

    def text_constant(self, text: str) -> str:
        """Return the address of a zero-terminated string."""
        known = self._texts.get(text)
        if known is None:
            data = text.encode() + b"\0"
            shown = "".join([chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:02X}" for b in data])
            name = f"text{len(self._texts)}"
            self.constant(name, f"[{len(data)} x i8]", f'c"{shown}"')
            known = self._texts[text] = f"@{name}"
        return known

    def loop_hint(self, *hints: str) -> str:
        """Return metadata for the branch back of a loop, as `, !llvm.loop !3`."""
        first = len(self._metadata)
        names = [f"!{first + 1 + j}" for j in range(len(hints))]
        self._metadata.append(f"!{first} = distinct !{{{', '.join([f'!{first}', *names])}}}")
        self._metadata += [f"{name} = !{{{hint}}}" for name, hint in zip(names, hints, strict=True)]
        return f", !llvm.loop !{first}"

    def text(self) -> str:
        """Return the text of the module."""
        cpu = self.cpu
        attributes = {
            "target-cpu": cpu.name,
            "target-features": ",".join(cpu.features),
            "prefer-vector-width": str(cpu.vector_bits),
            "no-trapping-math": "true",
        }
        shown = " ".join([f'"{name}"="{value}"' for name, value in attributes.items()])
        functions = [f.text() for f in self.functions.values()]
        return "\n".join(
            [
                *self._constants.values(),
                *functions,
                *self._declared,
                f"attributes #0 = {{ {shown} }}",
                *self._metadata,
                "",
            ]
        )


class Function:
    """One function under construction: straight-line code, loops and conditionals, written in order.

    Attributes:
        lines: lines of the body.
        entry: lines of the entry block: arrays on the stack.
        heap: heap arrays that are freed before every return.
        rooms: bytes of each heap array.
        stack_bytes: bytes of the arrays allocated with `alloca`.
    """

    def __init__(
        self, module: Module, name: str, args: Sequence[tuple[str, str]], returns: str, internal: bool, attributes: str
    ) -> None:
        self.module, self.name, self.args, self.returns = module, name, tuple(args), returns
        self.internal, self.attributes = internal, attributes
        self.lines: Lines = []
        self.entry: list[str] = []
        self.heap: list[str] = []
        self.rooms: list[int] = []
        self.stack_bytes = 0
        self._count = self._apart = 0
        self._fixed = Counter[str]()  # addresses -> elements at fixed distances from them
        self._block = "entry"

    def text(self) -> str:
        """Return the text of the definition."""
        args = ", ".join([f"{type} %{name}" for type, name in self.args])
        linkage = "internal " if self.internal else ""
        frees = [f"  call void @free(ptr {x})" for x in self.heap]
        lines = [*self.entry]
        for line in _flat(self.lines):
            lines += [*frees, line] if frees and line.startswith("  ret ") else self._opaque(line)
        head = f"define {linkage}{self.returns} @{self.name}({args}) {self.attributes} #0 {{"
        return "\n".join([head, "entry:", *lines, "}"])

    def _opaque(self, line: str) -> list[str]:
        """Return the line, and hide an address that many fixed distances are added to from loop strength reduction.

        That pass weighs all ways to make these addresses from each other, which takes longer than all others.
        """
        defined = _ADDRESS.match(line)
        if not defined or self._fixed[defined[1]] < _MANY:
            return [line]
        name, how = defined.groups()
        return [f"  {name}.seen{how}", f"  {name} = freeze ptr {name}.seen"]

    # ---- control

    def for_(
        self,
        low: Value,
        high: Value,
        step: int,
        body: Body,
        carried: Sequence[tuple[str, Value]] = (),
        unroll: bool = False,
    ) -> list[Value]:
        """Write a loop from low to high (excluded) by step > 0.

        Args:
            body: writes one iteration, given the iterator and the carried values; returns their new values.
            carried: (type, initial value).
            unroll: whether LLVM may unroll it.

        Returns:
            The carried values after the loop.  A single iteration at fixed bounds is written without a loop.
        """
        values = [value for _, value in carried]
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return values
            if high - low <= step:
                return list(body(low, values) or [])
        header, inside, latch, done = [self.label(x) for x in ("head", "body", "next", "done")]
        self._count += 1
        number = self._count
        iterator, following, before = f"%i{number}", f"%n{number}", self._block
        current: list[Value] = [f"%c{number}.{j}" for j in range(len(values))]
        self.effect(f"br label %{header}")
        self.open(header)
        phis: Lines = []
        self.lines.append(phis)
        self.effect(f"br i1 {self.less(iterator, high)}, label %{inside}, label %{done}")
        self.open(inside)
        new = list(body(iterator, list(current)) or [])
        self.effect(f"br label %{latch}")
        self.open(latch)
        self.lines.append(f"  {following} = add i64 {iterator}, {step}")
        hint = "" if unroll else self.module.loop_hint('!"llvm.loop.unroll.disable"')
        self.effect(f"br label %{header}{hint}")
        phis.append(f"  {iterator} = phi i64 [ {low}, %{before} ], [ {following}, %{latch} ]")
        for name, (type, value), next_ in zip(current, carried, new, strict=True):
            phis.append(f"  {name} = phi {type} [ {value}, %{before} ], [ {next_}, %{latch} ]")
        self.open(done)
        return current

    def if_(
        self,
        condition: str,
        then: Callable[[], Sequence[Value] | None],
        orelse: Callable[[], Sequence[Value] | None] | None = None,
        types: Sequence[str] = (),
    ) -> list[Value]:
        """Write a branch; the values that both sides return (of these types) are merged."""
        if condition in ("true", "false"):
            side = then if condition == "true" else orelse
            return list((side() if side else None) or [])
        yes, no, done = [self.label(x) for x in ("then", "else", "done")]
        self.effect(f"br i1 {condition}, label %{yes}, label %{no}")
        ends: list[tuple[str, list[Value]]] = []
        for name, side in ((yes, then), (no, orelse)):
            self.open(name)
            values = list((side() if side else None) or [])
            ends.append((self._block, values))
            self.effect(f"br label %{done}")
        self.open(done)
        (left, a), (right, b) = ends
        merged = zip(types, a, b, strict=True)
        return [self.value(f"phi {t} [ {x}, %{left} ], [ {y}, %{right} ]") for t, x, y in merged]

    @contextmanager
    def writing(self, lines: Lines) -> Iterator[None]:
        """Write into an earlier place inside the context."""
        here, self.lines = self.lines, lines
        try:
            yield
        finally:
            self.lines = here

    def exit_if(self, condition: str, type: str, x: Callable[[], Value]) -> None:
        """Return x (written on that path only) if the condition holds."""
        leave, stay = self.label("leave"), self.label("stay")
        self.effect(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.open(leave)
        self.ret(type, str(x()))
        self.open(stay)

    def label(self, prefix: str) -> str:
        """Return a fresh name for a block."""
        self._count += 1
        return f"{prefix}{self._count}"

    def open(self, label: str) -> None:
        """Begin a block; the one before must have ended with a branch."""
        self.lines.append(f"{label}:")
        self._block = label

    def ret(self, type: str = "void", x: Value = "") -> None:
        """Write a return."""
        self.effect(f"ret {type} {x}".rstrip())

    # ---- instructions

    @property
    def written(self) -> int:
        """Return the number of instructions, as LLVM will have them."""
        return self._count + _APART * self._apart

    def each_apart(self, type: str) -> None:
        """Count the instructions that take lanes one by one: processors gather only 32 and 64 bits."""
        if BYTES[element_of(type)] < 4:
            self._apart += lanes_of(type)

    def _masked_apart(self, type: str, mask: str) -> None:
        """Count a masked access: without AVX-512, bytes and halves have one only under a mask that is constant."""
        if not mask.startswith("<") and not self.module.cpu.avx512:
            self.each_apart(type)

    def _unfolded(self, mask: str, lanes: int) -> str:
        """Return a mask of the same lanes that LLVM cannot compute.

        Numbers of tasks and blocks are not negative, which it is not told.
        """
        number = next((name for type, name in self.args if type == "i64"), None)
        if number is None:
            return mask
        whole = self.broadcast(self.value(f"icmp sge i64 %{number}, 0"), "i1", lanes)
        return self.value(f"and {vector('i1', lanes)} {mask}, {whole}")

    def value(self, op: str) -> str:
        """Append an instruction and name its result.

        Raises:
            UnsupportedKernel: the function has too many instructions.
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

    def comment(self, text: str) -> None:
        """Append a comment; readers of the text find the code of a scalar function between two of them."""
        self.lines.append(f"  ; {text}")

    def call(self, returns: str, name: str, *args: tuple[str, Value]) -> str:
        """Call a declared or defined function (`name` without `@`, or an SSA value) for its result."""
        callee = name if name.startswith("%") else f"@{name}"
        return self.value(f"call {returns} {callee}({', '.join([f'{t} {x}' for t, x in args])})")

    def intrinsic(self, name: str, returns: str, *args: tuple[str, Value], suffix: str | None = None) -> str:
        """Declare and call `llvm.<name>.<suffix>`; the suffix is the mangled result type unless given."""
        full = f"llvm.{name}.{mangled(returns)}" if suffix is None else f"llvm.{name}{'.' if suffix else ''}{suffix}"
        self.module.declare(f"declare {returns} @{full}({', '.join([t for t, _ in args])})")
        return self.call(returns, full, *args)

    # ---- i64 arithmetic

    def add(self, a: Value, b: Value) -> Value:
        """a + b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: Value, b: Value) -> Value:
        """a - b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.value(f"sub i64 {a}, {b}")

    def mul(self, a: Value, b: Value) -> Value:
        """a * b of i64."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for x, y in ((a, b), (b, a)):
            if x == 0 or x == 1:
                return y if x == 1 else 0
        return self.value(f"mul i64 {a}, {b}")

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
        """Return the address of element `index` of an array of this type; intermediate sums may leave the array."""
        if index == 0:
            return str(pointer)
        self._fixed[str(pointer)] += isinstance(index, int)
        return self.value(f"getelementptr {type}, ptr {pointer}, i64 {index}")

    def load(self, type: str, pointer: Value, align: int | None = None) -> str:
        """Read from memory; aligned to one element unless given otherwise."""
        return self.value(f"load {type}, ptr {pointer}, align {align or BYTES[element_of(type)]}")

    def store(self, type: str, x: Value, pointer: Value, align: int | None = None) -> None:
        """Write to memory; aligned to one element unless given otherwise."""
        self.effect(f"store {type} {x}, ptr {pointer}, align {align or BYTES[element_of(type)]}")

    def alloca(self, count: int, align: int = 64, type: str = "float") -> str:
        """Allocate `count` elements on the stack of the function."""
        self._count += 1
        name = f"%a{self._count}"
        self.stack_bytes += count * BYTES[element_of(type)] * max(lanes_of(type), 1)
        self.entry.append(f"  {name} = alloca [{count} x {type}], align {align}")
        return name

    def room(self, count: int, align: int = 64, type: str = "float") -> str:
        """Allocate `count` elements until the function returns: on the stack, or on the heap where they are many."""
        size = count * BYTES[element_of(type)] * max(lanes_of(type), 1)
        if size <= MOST_ON_STACK_BYTES:
            return self.alloca(count, align, type)
        self._count += 1
        name = f"%a{self._count}"
        self.module.declare("declare ptr @aligned_alloc(i64, i64)")
        self.module.declare("declare void @free(ptr)")
        size = -(-size // align) * align
        self.entry.append(f"  {name} = call ptr @aligned_alloc(i64 {align}, i64 {size})")
        self.heap.append(name)
        self.rooms.append(size)
        return name

    def masked_load(
        self, type: str, pointer: Value, mask: str, other: str = "zeroinitializer", align: int | None = None
    ) -> str:
        """Read the lanes of the mask; the other lanes are `other`, and their memory is not accessed."""
        align, flags = align or BYTES[element_of(type)], vector("i1", lanes_of(type))
        name = f"llvm.masked.load.{mangled(type)}.p0"
        self.module.declare(f"declare {type} @{name}(ptr, {flags}, {type})")
        self._masked_apart(type, mask)
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
        if mask.startswith("%") and self.module.cpu.avx512 and BYTES[element_of(type)] < 4:
            mask = self._unfolded(mask, lanes_of(type))  # so that it does not become one
        name = f"llvm.masked.store.{mangled(type)}.p0"
        self.module.declare(f"declare void @{name}({type}, ptr, {flags})")
        self._masked_apart(type, mask)
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
        self.module.declare(f"declare {type} @{name}({addresses}, {flags}, {type})")
        mask = mask or constant_mask(lanes, lanes)
        self.each_apart(type)
        return self.value(f"call {type} @{name}({addresses} align {align} {pointers}, {flags} {mask}, {type} {other})")

    def prefetch(self, pointer: Value, locality: int = 3, write: bool = False) -> None:
        """Prefetch a cache line; locality 3 is every level of cache, 0 none."""
        self.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.effect(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(write)}, i32 {locality}, i32 1)")

    # ---- vectors and floats

    def broadcast(self, x: Value, type: str, lanes: int) -> str:
        """Broadcast a scalar of this type to all lanes."""
        if not lanes:
            return str(x)
        if not str(x).startswith("%"):
            return f"splat ({type} {x})"
        whole = vector(type, lanes)
        first = self.value(f"insertelement {whole} poison, {type} {x}, i64 0")
        return self.value(f"shufflevector {whole} {first}, {whole} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, type: str, x: Value, lane: Value) -> str:
        """Return one lane of a vector of this type."""
        return self.value(f"extractelement {type} {x}, i64 {lane}")

    def fop(self, op: str, a: Value, b: Value, type: str) -> str:
        """Apply add, sub, mul, div or rem to floats."""
        return self.value(f"f{op} {type} {a}, {b}")

    def fma(self, a: Value, b: Value, c: Value, type: str) -> str:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", type, (type, a), (type, b), (type, c))

    def fmaximum(self, a: Value, b: Value, type: str) -> str:
        """Return the greater of two floats; NaN if either is; the sign of a zero result is unspecified."""
        return self._extremum("ogt", a, b, type)

    def fminimum(self, a: Value, b: Value, type: str) -> str:
        """Return the lesser of two floats; NaN if either is; the sign of a zero result is unspecified."""
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
        self.module.declare(f"declare {element} @{name}({element}, {type})")
        return self.value(f"call reassoc {element} @{name}({element} {neutral}, {type} {x})")


def _flat(lines: Lines) -> list[str]:
    flat: list[str] = []
    for line in lines:
        if isinstance(line, list):
            flat += _flat(line)
        else:
            flat.append(line)
    return flat
