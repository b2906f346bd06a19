"""Sine, cosine and tangent on vectors of float32 and float64.

The argument is reduced by multiples of pi/2 in float64: for float32 two parts of pi/2 suffice up to 2**31, for float64
three parts up to 2**22.  Lanes beyond take the C library's value, which needs a branch, so that each function is one
internal LLVM function per module and width.
"""

from __future__ import annotations

import math

from superopt.kernels.llvm.types import mangled
from superopt.kernels.math.lanes import Lanes, per_lane

_PARTS = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)  # pi/2 as a sum of three floats
_MAGIC = 1.5 * 2.0**52
_LIMIT = {"float32": 2.0**31, "float64": 2.0**22}
_SIN = {
    "float32": (-0.1666666716337204, 0.008333331905305386, -0.00019840087043121457, 2.7249895993008977e-06),
    "float64": (
        -0.16666666666666666, 0.008333333333333349, -0.00019841269841296765, 2.7557319240714793e-06,
        -2.505211275097942e-08, 1.605945052122107e-10, -7.635422210230977e-13,
    ),
}  # fmt: skip
_COS = {
    "float32": (0.0416666679084301, -0.00138888880610466, 2.480059993104078e-05, -2.730093342506734e-07),
    "float64": (
        0.041666666666666664, -0.0013888888888888924, 2.4801587301655888e-05, -2.7557319269870637e-07,
        2.087677062921975e-09, -1.1472556715332511e-11, 4.8571067804601677e-14,
    ),
}  # fmt: skip


def sin(m: Lanes, x: str) -> str:
    """Sine."""
    return _called(m, "sin", x)


def cos(m: Lanes, x: str) -> str:
    """Cosine."""
    return _called(m, "cos", x)


def tan(m: Lanes, x: str) -> str:
    """Tangent."""
    return _called(m, "tan", x)


def _called(m: Lanes, name: str, x: str) -> str:
    symbol = f"vector.{name}.{mangled(m.type)}"
    if symbol not in m.f.module.functions:
        inner = m.f.module.function(symbol, [(m.type, "x")], returns=m.type, attributes="nounwind noinline")
        there = Lanes(inner, m.dtype, m.lanes)
        bounded = there.compare("olt", there.absolute("%x"), there.const(_LIMIT[m.dtype]))
        fast = _fast(there, name, "%x")
        whole = bounded if not m.lanes else _all(there, bounded)
        result = inner.if_(
            whole, lambda: [fast], lambda: [there.select(bounded, fast, per_lane(there, name, "%x"))], [m.type]
        )
        inner.ret(m.type, result[0])
    return m.f.call(m.type, symbol, (m.type, x))


def _all(m: Lanes, condition: str) -> str:
    return m.f.intrinsic("vector.reduce.and", "i1", (m.flags, condition), suffix=mangled(m.flags))


def _fast(m: Lanes, name: str, x: str) -> str:
    r, quadrant, i = _reduced(m, x)
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.polynomial(z, _SIN[m.dtype]), r)
    cosine = m.fma(z, m.const(-0.5), m.const(1.0))
    # the rounding error of the subtraction, with the higher terms
    dropped = m.fma(z, m.const(-0.5), m.sub(m.const(1.0), cosine))
    cosine = m.add(cosine, m.fma(m.mul(z, z), m.polynomial(z, _COS[m.dtype]), dropped))
    swap = i.compare("ne", i.op("and", quadrant, i.const(1)), i.const(0))
    if name == "tan":
        over, under = m.select(swap, cosine, sine), m.select(swap, sine, cosine)
        y = m.quotient(over, under)
        y = m.select(swap, m.neg(y), y)
        return m.select(m.compare("oeq", x, m.const(0.0)), x, y)
    value = m.select(swap, sine, cosine) if name == "cos" else m.select(swap, cosine, sine)
    turn = i.add(quadrant, i.const(1)) if name == "cos" else quadrant
    flip = i.op("shl", i.op("and", turn, i.const(2)), i.const(m.bits - 2))
    y = m.from_ints(i.op("xor", m.as_ints(value), flip))
    return m.select(m.compare("oeq", x, m.const(0.0)), x, y) if name == "sin" else y


def _reduced(m: Lanes, x: str) -> tuple[str, str, Lanes]:
    """Return the remainder of x by pi/2, in [-pi/4, pi/4], and the number of multiples as integers (low bits)."""
    d = m.of("float64")
    wide = m.cast("fpext", x, "float64") if m.dtype == "float32" else x
    shifted = d.fma(wide, d.const(2.0 / math.pi), d.const(_MAGIC))
    k = d.sub(shifted, d.const(_MAGIC))
    r = wide
    for part in _PARTS[: 2 if m.dtype == "float32" else 3]:
        r = d.fma(k, d.const(-part), r)
    count = d.as_ints(shifted)
    if m.dtype == "float64":
        return r, count, m.ints
    return d.cast("fptrunc", r, "float32"), d.ints.cast("trunc", count, "int32"), m.ints
