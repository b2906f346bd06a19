"""The tier of bits: integers of a machine as bit-vectors, each at its own width, decided by Z3.

Functions are named with the type of their operands (`add[int8]`, `lt[uint32]`, `convert[int8,int32]`), as `Terms` with
`typed` makes them.  Their semantics is that of `superopt.ir.scalar`.  Arithmetic wraps.  Division rounds towards zero
and gives -1 for the divisor 0, for which the remainder is the dividend.  Shifts by the width or more give 0 or copies
of the sign; a negative shift counts as unsigned, so it is one of these.  Conversions keep the lowest bits.

Entries of inputs are uninterpreted functions of their index.  Sizes and positions are integers that their type holds
(`verifier.equal.ranges`); they are converted to bit-vectors where they are operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from superopt.ir.scalar import COMPARISONS
from superopt.ir.types import INTEGERS, ITEMSIZE_BYTES, SIGNED
from verifier.equal.conditions import Cond
from verifier.equal.pointwise import NO_COMPARISON, Truths
from verifier.equal.solver import NO, CannotLower, Context, z3
from verifier.equal.terms import Apply, Const, Integer, Read, ScalarTerm, Where


def equal_bits(
    ctx: Context, left: ScalarTerm, right: ScalarTerm, dtype: str, kinds: Mapping[str, str], facts: tuple[Cond, ...]
) -> bool:
    """Whether two terms of a dtype are proved to have the same bits for all inputs.

    Args:
        ctx: premises about sizes.
        left, right: typed terms.
        dtype: dtype of both, an integer type or bool.
        kinds: dtypes of the inputs.
        facts: conditions on the index.

    Raises:
        CannotLower: a term is outside this tier.
    """
    lower = _Lowering(ctx, kinds)
    sides = [lower.truth(t) if dtype == "bool" else lower.number(t, dtype) for t in (left, right)]
    return ctx.differ(sides[0] != sides[1], facts) == NO


def width_of(dtype: str) -> int:
    """Width of an integer type in bits."""
    return 8 * ITEMSIZE_BYTES[dtype]


@dataclass
class _Lowering(Truths):
    """Lowering of typed terms to bit-vectors of the solver."""

    kinds: Mapping[str, str]

    def comparison(self, t: Apply) -> Any:
        """A comparison of two integers of one type."""
        name, dtype = _typed(t.fn)
        if name not in COMPARISONS or dtype not in INTEGERS:
            raise CannotLower(NO_COMPARISON)
        a, b = (self.number(x, dtype) for x in t.args)
        return compared(name, a, b, signed=dtype in SIGNED)

    def number(self, t: ScalarTerm, dtype: str) -> Any:
        """A term of an integer type as a bit-vector."""
        width = width_of(dtype)
        if isinstance(t, Const):
            if t.value.denominator != 1:
                raise CannotLower(f"{t.value} is no integer")
            return self._value(int(t.value), width)
        if isinstance(t, Integer):
            return z3.Int2BV(self.ctx.poly(t.value), width)
        if isinstance(t, Where):
            return z3.If(self.ctx.cond(t.guard), self.number(t.then, dtype), self.number(t.orelse, dtype))
        if isinstance(t, Read):
            if t.boolean or self.kinds.get(t.name) != dtype:
                raise CannotLower(f"{t.name} is not of {dtype}")
            return self.read(t, z3.BitVecSort(width, self.ctx.sort("int").ctx))
        if not isinstance(t, Apply):
            raise CannotLower(type(t).__name__.lower())
        if t.fn == "select_n":
            which, false, true = t.args
            return z3.If(self.truth(which), self.number(true, dtype), self.number(false, dtype))
        name, kind = _typed(t.fn)
        if name == "convert":
            source, _, target = kind.partition(",")
            if source not in INTEGERS or target != dtype:
                raise CannotLower(f"{t.fn} in {dtype}")
            return _converted(self.number(t.args[0], source), source in SIGNED, width_of(source), width)
        if name not in FUNCTIONS or kind != dtype:
            raise CannotLower(f"{t.fn} in {dtype}")
        return value_of(name, *[self.number(x, dtype) for x in t.args], signed=dtype in SIGNED)

    def _value(self, value: int, width: int) -> Any:
        return z3.BitVecVal(value, width, self.ctx.sort("int").ctx)


def _typed(fn: str) -> tuple[str, str]:
    """Split a function into its name and its type."""
    name, _, kind = fn.partition("[")
    return name, kind.removesuffix("]")


def _converted(x: Any, signed: bool, before: int, after: int) -> Any:
    if after <= before:
        return z3.Extract(after - 1, 0, x)
    return z3.SignExt(after - before, x) if signed else z3.ZeroExt(after - before, x)


def _number(like: Any, value: int) -> Any:
    return z3.BitVecVal(value, like.size(), like.ctx)


def _less(a: Any, b: Any, signed: bool) -> Any:
    return a < b if signed else z3.ULT(a, b)


def _div(a: Any, b: Any, *, signed: bool) -> Any:
    return z3.If(b == _number(b, 0), _number(a, -1), a / b if signed else z3.UDiv(a, b))


def _rem(a: Any, b: Any, *, signed: bool) -> Any:
    return z3.If(b == _number(b, 0), a, z3.SRem(a, b) if signed else z3.URem(a, b))


def _abs(a: Any, *, signed: bool) -> Any:
    return z3.If(a < _number(a, 0), -a, a) if signed else a


def _sign(a: Any, *, signed: bool) -> Any:
    zero = _number(a, 0)
    positive = z3.If(a == zero, zero, _number(a, 1))
    return z3.If(a < zero, _number(a, -1), positive) if signed else positive


def _population_count(a: Any) -> Any:
    width = a.size()
    bits = [z3.ZeroExt(width - 1, z3.Extract(i, i, a)) if width > 1 else a for i in range(width)]
    total = bits[0]
    for bit in bits[1:]:
        total = total + bit
    return total


def _clz(a: Any) -> Any:
    count = _number(a, a.size())
    for i in range(a.size()):  # the highest set bit decides, so it is tested last
        count = z3.If(z3.Extract(i, i, a) == z3.BitVecVal(1, 1, a.ctx), _number(a, a.size() - 1 - i), count)
    return count


def _greatest(a: Any, b: Any, *, signed: bool) -> Any:
    return z3.If(_less(a, b, signed), b, a)


def _least(a: Any, b: Any, *, signed: bool) -> Any:
    return z3.If(_less(b, a, signed), b, a)


def _and(a: Any, b: Any) -> Any:
    return a & b


def _or(a: Any, b: Any) -> Any:
    return a | b


def _xor(a: Any, b: Any) -> Any:
    return a ^ b


def _shift_left(a: Any, b: Any) -> Any:
    return a << b


def _shift_right_arithmetic(a: Any, b: Any) -> Any:
    return a >> b


def _shift_right_logical(a: Any, b: Any) -> Any:
    return z3.LShR(a, b)


_WRAPPING: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "and": _and,
    "or": _or, "xor": _xor, "not": operator.invert, "shift_left": _shift_left,
    "shift_right_arithmetic": _shift_right_arithmetic, "shift_right_logical": _shift_right_logical,
    "population_count": _population_count, "clz": _clz,
}  # fmt: skip
"""Functions that do not depend on the sign of the type."""
_SIGNED: dict[str, Callable[..., Any]] = {
    "div": _div, "rem": _rem, "abs": _abs, "sign": _sign, "max": _greatest, "min": _least,
}  # fmt: skip
FUNCTIONS = frozenset({*_WRAPPING, *_SIGNED})
"""All functions that this tier interprets, apart from comparisons, choices and conversions."""


def value_of(name: str, *args: Any, signed: bool) -> Any:
    """A function of bit-vectors of one width."""
    return _SIGNED[name](*args, signed=signed) if name in _SIGNED else _WRAPPING[name](*args)


def compared(name: str, a: Any, b: Any, *, signed: bool) -> Any:
    """A comparison of bit-vectors of one width; the solver's operators are those of signed ones."""
    if signed or name in ("eq", "ne"):
        return getattr(operator, name)(a, b)
    return getattr(z3, f"U{name.upper()}")(a, b)
