"""Tensor intrinsics: one step of a register tile, declared once and used by every operator that fits.

An intrinsic is a product of two stored scalars in an accumulator's dtype, over `group` steps of the sum at once.  Its
semantics is a loop nest of the free algebra (`semantics`).  Its operands are windows: `group` consecutive elements of
A, broadcast, and `lanes` times `group` consecutive elements of B.  `step` emits its code.  `registers` counts the
registers that a tile of some rows and vectors occupies.

    fma_f32, fma_f64     c[l] += a * b[l].
    fma_bf16             c[l] += float32(a) * float32(b[l])               stored as bfloat16, widened in registers.
    dot_u8s8, dot_s8u8   c[l] += sum_{g<4} int32(a[g]) * int32(b[l, g])   vpdpbusd: exact, wraps as int32 does.
    dot_s8s8             the same: a is offset by 128 and 128 * sum_k b is subtracted
    (`superopt.kernels.schedule.tensorizing`)
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.errors import InputError
from superopt.ir.expr import Expr, convert, load, op, reduce
from superopt.ir.index import Symbol, of_atom
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.llvm.module import Function
from superopt.kernels.llvm.types import type_of, vector
from superopt.kernels.loops.stage import Loop, Stage


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One step of a register tile.

    Attributes:
        name: key of the table.
        accumulator: dtype of the sum.
        a, b: dtypes of the operands as stored.
        group: steps of the sum that one instruction takes.
        offset: added to `a` (as int32) before it is stored as uint8, and compensated outside; 0: `a` is unchanged.
    """

    name: str
    accumulator: str
    a: str
    b: str
    group: int = 1
    offset: int = 0

    def available(self, cpu: Cpu) -> bool:
        """Whether the processor has the instructions."""
        return cpu.vector_bits > 0 and (self.group == 1 or cpu.vnni)

    def lanes(self, cpu: Cpu) -> int:
        """Return the elements of the result in one vector."""
        return cpu.lanes(self.accumulator)

    def registers(self, rows: int, vectors: int) -> int:
        """Return the vector registers that a tile occupies: accumulators, vectors of B, and those for A."""
        return rows * vectors + vectors + 1

    def product(self, a: Expr, b: Expr) -> Expr:
        """Return the product of two stored scalars, in the form that the sum has."""
        wide = self.accumulator
        left, right = (x if x.dtype == wide else convert(x, x.dtype, wide) for x in (a, b))
        return op("mul", wide, left, right)

    def operand(self, e: Expr, dtype: str) -> Expr | None:
        """Return the stored scalar inside a factor of the sum; None when the factor is not of that form."""
        if dtype == self.accumulator:
            return e if e.dtype == dtype else None
        return e.args[1] if e.kind == "convert" and e.args[0] == dtype and e.dtype == self.accumulator else None

    def semantics(self, lanes: int) -> Stage:
        """Return the instruction as a loop nest on buffers `a` [group], `b` [lanes, group], adding to `c` [lanes]."""
        lane, step = Symbol("l", 0, lanes - 1), Symbol("g", 0, self.group - 1)
        l, g = of_atom(lane), of_atom(step)
        body = self.product(load("a", (g,), "uint8" if self.offset else self.a), load("b", (l, g), self.b))
        total = reduce("sum", (step,), body)
        value = op("add", self.accumulator, load("c", (l,), self.accumulator), total)
        return Stage("c", (Loop(lane, "vector"),), (l,), value)

    def step(self, f: Function, total: str, a: str, b: str, lanes: int) -> str:
        """Emit the addition of the products of a broadcast A and a vector of B to the accumulator."""
        kind = type_of(self.accumulator, lanes)
        if self.group == 1:
            return f.fma(a, b, total, kind)
        bytes_ = vector("i8", lanes * self.group)
        unsigned, signed = (b, a) if self.b == "uint8" else (a, b)
        name = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
        f.module.declare(f"declare {kind} @{name}({kind}, {bytes_}, {bytes_})")
        return f.value(f"call {kind} @{name}({kind} {total}, {bytes_} {unsigned}, {bytes_} {signed})")


INTRINSICS: dict[str, Intrinsic] = {
    i.name: i
    for i in (
        Intrinsic("fma_f32", "float32", "float32", "float32"),
        Intrinsic("fma_f64", "float64", "float64", "float64"),
        Intrinsic("fma_bf16", "float32", "bfloat16", "bfloat16"),
        Intrinsic("dot_u8s8", "int32", "uint8", "int8", 4),
        Intrinsic("dot_s8u8", "int32", "int8", "uint8", 4),
        Intrinsic("dot_s8s8", "int32", "int8", "int8", 4, 128),
    )
}


def intrinsic(name: str) -> Intrinsic:
    """Return the intrinsic of this name.

    Raises:
        InputError: there is none.
    """
    if name not in INTRINSICS:
        raise InputError(f"no tensor intrinsic {name!r}, only {', '.join(INTRINSICS)}")
    return INTRINSICS[name]


def fitting(a: Expr, b: Expr, cpu: Cpu) -> list[Intrinsic]:
    """Return the intrinsics whose product the factors form, the one with the longest step first."""
    intrinsics = [
        i
        for i in INTRINSICS.values()
        if i.available(cpu) and i.operand(a, i.a) is not None and i.operand(b, i.b) is not None
    ]
    return sorted(intrinsics, key=lambda i: -i.group)
