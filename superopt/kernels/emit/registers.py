"""Values in registers: their representation there and in memory, arithmetic on them, and moves between lanes.

16-bit floats are float32 in registers and 16 bits in memory; bool is `i1` in registers and a byte in memory.  A value
is uniform (one scalar for all lanes) until something needs it in every lane.  Scalar functions are those of
`superopt.kernels.math`, under a licence, rounded to the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from superopt.errors import UnsupportedKernel
from superopt.ir.expr import Expr
from superopt.ir.index import Symbol
from superopt.ir.scalar import DTYPE, HALVES, SCALARS
from superopt.ir.types import FLOATS, ITEMSIZE_BYTES, UNSIGNED
from superopt.kernels.emit.options import Licence
from superopt.kernels.llvm.cpu import Cpu
from superopt.kernels.llvm.module import Function
from superopt.kernels.llvm.types import TYPES, literal, vector
from superopt.kernels.loops.stage import extent
from superopt.kernels.math import ops as vecmath_ops
from superopt.kernels.math import table as vecmath


class HeldValue(NamedTuple):
    """A value in a register: its text, whether it has lanes, and the loop level at which it is computed."""

    text: str
    wide: bool
    level: int


def register(dtype: str, lanes: int = 0) -> str:
    """Return the LLVM type of a value of this dtype in registers."""
    return vector(TYPES[held_as(dtype)], lanes)


def held_as(dtype: str) -> str:
    """Return the dtype in which values of this dtype are computed."""
    return "float32" if dtype in HALVES else dtype


def stored(dtype: str, lanes: int = 0) -> str:
    """Return the LLVM type of a value of this dtype in memory."""
    if dtype == "bool":
        return vector("i8", lanes)
    return vector("i16" if dtype == "bfloat16" else TYPES[dtype], lanes)


def size_of(dtype: str) -> int:
    """Return the bytes of one value in memory."""
    return ITEMSIZE_BYTES[dtype]


def width_of(dtype: str) -> int:
    """Return the bytes of one value in registers."""
    return ITEMSIZE_BYTES[held_as(dtype)]


def lanes_along(parts: Iterable[Expr], it: Symbol, cpu: Cpu) -> int:
    """Return the lanes of a vector along an iterator: a register of the widest dtype, fewer for a short iterator."""
    size = max([width_of(e.dtype) for e in parts if e.dtype != "bool"], default=4)
    lanes = max(2, cpu.vector_bits // (8 * size))
    while lanes > 2 and lanes // 2 >= extent(it):
        lanes //= 2
    return lanes


def is_float(dtype: str) -> bool:
    """Whether the dtype is floating point."""
    return dtype in FLOATS


def is_signed(dtype: str) -> bool:
    """Whether comparisons of this dtype are signed."""
    return dtype not in UNSIGNED and dtype != "bool"


def constant(value: bool | int | float, dtype: str) -> str:
    """Return the text of a scalar constant in its register type."""
    if dtype in HALVES:
        return literal(float(np.asarray(value, DTYPE[dtype]).astype(np.float32)), "float32")
    return literal(value, dtype)


def splatted(value: bool | int | float, dtype: str, lanes: int) -> str:
    """Return a constant in its register type, in all lanes (0: a scalar)."""
    text = constant(value, dtype)
    return f"splat ({register(dtype)} {text})" if lanes else text


def loaded(f: Function, raw: str, dtype: str, lanes: int) -> str:
    """Convert a value just read from memory to its register type."""
    if dtype == "bfloat16":
        raw = f.value(f"bitcast {stored(dtype, lanes)} {raw} to {vector('bfloat', lanes)}")
    return vecmath_ops.from_memory(f, raw, dtype, lanes)


def storable(f: Function, held: str, dtype: str, lanes: int) -> str:
    """Convert a value in a register to the type written to memory."""
    made = vecmath_ops.to_memory(f, held, dtype, lanes)
    if dtype == "bfloat16":
        made = f.value(f"bitcast {vector('bfloat', lanes)} {made} to {stored(dtype, lanes)}")
    return made


# ---- functions and monoids

_EXACT = ("sqrt", "rsqrt")  # transcendental in the table, instructions here


def apply(
    f: Function, fn: str, dtype: str, args: Sequence[str], lanes: int, licence: Licence, which: str = "bool"
) -> str:
    """Apply a scalar function to values in registers.

    Args:
        f: the function written into.
        fn: name in the table of scalar functions.
        dtype: dtype of the operands.
        args: operands, all scalars or all with lanes.
        lanes: number of lanes; 0 for scalars.
        licence: which inexact steps may be taken.
        which: dtype of the selector of `select_n`.

    Raises:
        UnsupportedKernel: the licence excludes the function.
    """
    polynomial = SCALARS[fn].transcendental and fn not in _EXACT
    if polynomial and not licence.polynomial:
        raise UnsupportedKernel(f"{fn} is a polynomial, which the licence excludes")

    def code() -> str:
        return vecmath.apply(f, fn, dtype, tuple(args), lanes, which)

    made = vecmath_ops.marked(f, fn, args, code) if polynomial else code()
    if dtype in HALVES and not SCALARS[fn].predicate and not licence.excess and not SCALARS[fn].closed:
        return vecmath_ops.rounded(f, made, dtype, lanes)
    return made


def combine(f: Function, monoid: str, dtype: str, a: str, b: str, lanes: int) -> str:
    """Combine two values of a monoid; 16-bit floats are not rounded."""
    type_ = register(dtype, lanes)
    float_ = is_float(dtype)
    if monoid in ("sum", "prod"):
        if dtype == "bool":
            return f.value(f"{'or' if monoid == 'sum' else 'and'} {type_} {a}, {b}")
        return f.value(f"{'f' if float_ else ''}{'add' if monoid == 'sum' else 'mul'} {type_} {a}, {b}")
    if monoid in ("and", "or", "xor"):
        return f.value(f"{monoid} {type_} {a}, {b}")
    if float_:
        return f.fmaximum(a, b, type_) if monoid == "max" else f.fminimum(a, b, type_)
    if dtype == "bool":
        return f.value(f"{'or' if monoid == 'max' else 'and'} {type_} {a}, {b}")
    return f.intrinsic(f"{'s' if is_signed(dtype) else 'u'}{monoid}", type_, (type_, a), (type_, b))


def across(f: Function, monoid: str, dtype: str, x: str, lanes: int) -> str:
    """Combine all lanes into a scalar."""
    if dtype == "bool" and monoid not in ("and", "or", "xor"):
        monoid = "or" if monoid in ("sum", "max") else "and"
    if is_float(dtype) and monoid in ("max", "min"):
        return _extreme(f, monoid, dtype, x, lanes)
    name = "product" if monoid == "prod" else monoid
    return f.reduce(name, register(dtype, lanes), x, is_signed(dtype))


def _extreme(f: Function, monoid: str, dtype: str, x: str, lanes: int) -> str:
    """Return the extreme lane: by halves, with a separate test for NaN.

    LLVM's own form orders zeros, at several times the cost.  Lanes of a constant are alike: LLVM aborts where it makes
    a vector of the choice between that constant and NaN.
    """
    alike = f"splat ({register(dtype)} "
    if x.startswith(alike):
        return x.removeprefix(alike).removesuffix(")")
    type_, flags = register(dtype, lanes), vector("i1", lanes)
    nan = f.reduce("or", flags, f.value(f"fcmp uno {type_} {x}, {x}"))
    order, width, left = "ogt" if monoid == "max" else "olt", lanes, x
    while width > 1:
        width //= 2
        whole, half = register(dtype, 2 * width), register(dtype, width)
        a, b = [
            f.value(f"shufflevector {whole} {left}, {whole} poison, <{width} x i32> {indices}")
            for indices in (_span(0, width), _span(width, 2 * width))
        ]
        better = f.value(f"fcmp {order} {half} {a}, {b}")
        left = f.value(f"select {vector('i1', width)} {better}, {half} {a}, {half} {b}")
    element = register(dtype)
    extreme = f.extract(register(dtype, 1), left, 0)
    return f.value(f"select i1 {nan}, {element} {constant(math.nan, dtype)}, {element} {extreme}")


def _span(first: int, end: int) -> str:
    return "<" + ", ".join(f"i32 {j}" for j in range(first, end)) + ">"


# ---- moves between lanes


def shuffle(f: Function, a: str, b: str | None, lanes: Sequence[int], element: str, n: int) -> str:
    """Return lanes of a (0..n-1) and b (n..2n-1), in this order."""
    type_ = vector(element, n)
    order = "<" + ", ".join(f"i32 {j}" for j in lanes) + ">"
    return f.value(f"shufflevector {type_} {a}, {type_} {b or 'poison'}, <{len(lanes)} x i32> {order}")


def reverse(f: Function, x: str, element: str, n: int) -> str:
    """Return the lanes from last to first."""
    return shuffle(f, x, None, list(range(n - 1, -1, -1)), element, n)


def square(f: Function, rows: Sequence[str], element: str, n: int) -> list[str]:
    """Return the columns of n rows of n lanes, n a power of 2: log2(n) rounds of n shuffles of two registers."""
    assert len(rows) == n
    assert n & (n - 1) == 0
    current = list(rows)
    width = n // 2
    while width:
        following = list(current)
        low = [k if not k & width else n + k - width for k in range(n)]
        high = [k + width if not k & width else n + k for k in range(n)]
        for j in range(n):
            if not j & width:
                a, b = current[j], current[j + width]
                following[j] = shuffle(f, a, b, low, element, n)
                following[j + width] = shuffle(f, a, b, high, element, n)
        current = following
        width //= 2
    return current


def pick(f: Function, chunks: Sequence[str], picks: Sequence[int], element: str, n: int) -> str:
    """Return the vector whose lane j is element `picks[j]` of the chunks laid end to end."""
    made, known = chunks[0], [p if p < n else -1 for p in picks]
    for c in range(1, len(chunks)):
        order: list[int] = []
        for j, p in enumerate(picks):
            here = c * n <= p < (c + 1) * n
            order.append(n + p - c * n if here else (j if c > 1 else known[j] if known[j] >= 0 else 0))
        made = shuffle(f, made, chunks[c], order, element, n)
    return made
