"""Typed instructions on values of one dtype and one number of lanes, in which vector functions are written.

`Lanes(f, "float32", 16)` writes into the function `f`; `lanes` 0 is a scalar.  The same text of a function serves both
widths, both float dtypes and scalars, so that the vector body and the scalar tail of a loop agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir.types import FLOATS, ITEMSIZE_BYTES, UNSIGNED
from superopt.kernels.llvm.module import Function, Value
from superopt.kernels.llvm.types import mangled, splat, type_of, vector

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Lanes:
    """Emits typed instructions on values of one dtype and number of lanes."""

    f: Function
    dtype: str
    lanes: int = 0

    def of(self, dtype: str) -> Lanes:
        """Return an emitter for the same lanes of another dtype."""
        return Lanes(self.f, dtype, self.lanes)

    @property
    def type(self) -> str:
        """LLVM's type."""
        return type_of(self.dtype, self.lanes)

    @property
    def flags(self) -> str:
        """LLVM's type of a condition on each lane."""
        return vector("i1", self.lanes)

    @property
    def bits(self) -> int:
        """Width of an element."""
        return 8 * ITEMSIZE_BYTES[self.dtype]

    @property
    def ints(self) -> Lanes:
        """Signed integers of the same width."""
        return self.of(f"int{self.bits}")

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a float."""
        return self.dtype in FLOATS

    @property
    def signed(self) -> bool:
        """Whether the dtype has a sign."""
        return self.dtype not in UNSIGNED and self.dtype != "bool"

    def const(self, value: Number) -> str:
        """The constant in all lanes."""
        return splat(value, self.dtype, self.lanes)

    def op(self, name: str, a: str, b: str) -> str:
        """An LLVM instruction of two operands."""
        return self.f.value(f"{name} {self.type} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """a + b; integers wrap."""
        return self.op("fadd" if self.is_float else "add", a, b)

    def sub(self, a: str, b: str) -> str:
        """a - b; integers wrap."""
        return self.op("fsub" if self.is_float else "sub", a, b)

    def mul(self, a: str, b: str) -> str:
        """a * b; integers wrap."""
        return self.op("fmul" if self.is_float else "mul", a, b)

    def quotient(self, a: str, b: str) -> str:
        """a / b of floats."""
        return self.op("fdiv", a, b)

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c of floats, rounded once."""
        return self.f.fma(a, b, c, self.type)

    def neg(self, a: str) -> str:
        """-a."""
        return self.f.value(f"fneg {self.type} {a}") if self.is_float else self.sub(self.const(0), a)

    def call(self, intrinsic: str, *args: str) -> str:
        """An LLVM intrinsic of operands and result of this type."""
        return self.f.intrinsic(intrinsic, self.type, *[(self.type, x) for x in args])

    def compare(self, predicate: str, a: str, b: str) -> str:
        """A condition: `olt`, `uno` ... of floats, `slt`, `ult`, `eq` ... of integers."""
        return self.f.value(f"{'fcmp' if self.is_float else 'icmp'} {predicate} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """a where the condition holds, else b."""
        return self.f.value(f"select {self.flags} {condition}, {self.type} {a}, {self.type} {b}")

    def both(self, a: str, b: str) -> str:
        """Conjunction of conditions."""
        return self.f.value(f"and {self.flags} {a}, {b}")

    def either(self, a: str, b: str) -> str:
        """Disjunction of conditions."""
        return self.f.value(f"or {self.flags} {a}, {b}")

    def at_least(self, x: str, low: float) -> str:
        """x, or low where x is below it; NaN stays."""
        return self.select(self.compare("ogt", self.const(low), x), self.const(low), x)

    def at_most(self, x: str, high: float) -> str:
        """x, or high where x is above it; NaN stays."""
        return self.select(self.compare("olt", self.const(high), x), self.const(high), x)

    def cast(self, instruction: str, x: str, target: str) -> str:
        """An LLVM conversion (`bitcast`, `fptosi`, `fpext` ...) to another dtype."""
        return self.f.value(f"{instruction} {self.type} {x} to {self.of(target).type}")

    def as_ints(self, x: str) -> str:
        """The bits of floats."""
        return self.cast("bitcast", x, self.ints.dtype)

    def from_ints(self, x: str) -> str:
        """The floats of these bits."""
        return self.ints.cast("bitcast", x, self.dtype)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Evaluate a polynomial by Horner's rule, the constant term first."""
        value = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.const(c))
        return value

    def with_sign(self, magnitude: str, sign: str) -> str:
        """The magnitude with the sign of the other operand."""
        return self.call("copysign", magnitude, sign)

    def absolute(self, x: str) -> str:
        """|x| of floats."""
        return self.call("fabs", x)

    def any(self, condition: str) -> str:
        """Return whether the condition holds in some lane, as i1."""
        if not self.lanes:
            return condition
        return self.f.intrinsic("vector.reduce.or", "i1", (self.flags, condition), suffix=mangled(self.flags))


def per_lane(m: Lanes, name: str, *args: str) -> str:
    """Call the C library's function on each lane (its float32 version for float32), so that generation is total.

    One internal function per module, name and width loops over the lanes.
    """
    scalar = type_of(m.dtype)
    symbol = name + ("f" if m.dtype == "float32" else "")
    module, taken = m.f.module, [scalar] * len(args)
    if name == "lgamma":  # the plain one writes the sign to a variable of the process
        symbol, taken = f"{symbol}_r", [scalar, "ptr"]
    module.declare(f"declare {scalar} @{symbol}({', '.join(taken)}) nounwind")
    inner_name = f"lanes.{name}.{mangled(m.type)}"
    if inner_name not in module.functions:
        names = [f"x{j}" for j in range(len(args))]
        inner = module.function(
            inner_name, [(m.type, n) for n in names], returns=m.type, attributes="nounwind noinline"
        )
        room = [("ptr", inner.alloca(1, 8, "i32"))] if name == "lgamma" else []

        def one(lane: Value, done: list[Value]) -> list[Value]:
            xs = [inner.extract(m.type, f"%{n}", lane) if m.lanes else f"%{n}" for n in names]
            y = inner.call(scalar, symbol, *[(scalar, x) for x in xs], *room)
            return [inner.value(f"insertelement {m.type} {done[0]}, {scalar} {y}, i64 {lane}") if m.lanes else y]

        start = "poison" if m.lanes else m.const(0.0)
        inner.ret(m.type, str(inner.for_(0, max(m.lanes, 1), 1, one, [(m.type, start)])[0]))
    return m.f.call(m.type, inner_name, *[(m.type, x) for x in args])
