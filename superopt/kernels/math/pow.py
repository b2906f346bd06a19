"""Powers on vectors: float32 by way of float64, float64 through a logarithm of twice its precision.

The exponential multiplies a relative error of the logarithm by up to 709, so float64 carries the logarithm as a sum of
two floats.  The quotient s = f / (2 + f), its square and the leading term of the series are kept to about 66 bits, the
rest of the series (a hundredth of the whole) to 53.
"""

from __future__ import annotations

import math

from superopt.kernels.math.exp import F64, exp, ldexp, log, mantissa_and_exponent, near_one, reduced
from superopt.kernels.math.lanes import Lanes

_THIRD = (0.6666666666666666, 3.7007434154171886e-17)  # 2/3
# (log((1 + s) / (1 - s)) - 2 s - 2/3 s**3) / s**5 in s**2, the range of s that of numbers in [sqrt(1/2), sqrt(2)]
_REST = (
    0.4, 0.2857142857142927, 0.2222222222169181, 0.1818181833017287, 0.1538459532746467, 0.13334791703592197,
    0.11706459176813631, 0.11721765258649025,
)  # fmt: skip


def power(m: Lanes, x: str, y: str) -> str:
    """x**y, with the cases of IEEE 754's pow."""
    d = m.of("float64")
    if m.dtype == "float32":
        base, exponent = m.cast("fpext", x, "float64"), m.cast("fpext", y, "float64")
        value = exp(d, d.mul(exponent, log(d, d.absolute(base))))
        return d.cast("fptrunc", _cases(d, base, exponent, value), "float32")
    return _cases(d, x, y, _positive(d, d.absolute(x), y))


def _positive(d: Lanes, x: str, y: str) -> str:
    """x**y of float64, x >= 0."""
    high, low = _log(d, x)
    regular = d.both(d.compare("ogt", x, d.const(0.0)), d.compare("olt", x, d.const(math.inf)))
    limit = d.select(d.compare("oeq", x, d.const(0.0)), d.const(-math.inf), x)
    high = d.select(regular, high, limit)
    p = d.mul(y, high)
    inside = d.both(regular, d.compare("olt", d.absolute(p), d.const(760.0)))
    rest = d.select(inside, d.fma(y, low, d.fma(y, high, d.neg(p))), d.const(0.0))
    n, r = reduced(d, d.at_most(d.at_least(p, -760.0), 720.0))
    return ldexp(d, near_one(d, d.add(r, rest)), n)


def _log(d: Lanes, x: str) -> tuple[str, str]:
    """The logarithm of finite x > 0 as a sum of two floats."""
    f, e = mantissa_and_exponent(d, x)
    u = d.add(f, d.const(2.0))
    dropped = d.sub(f, d.sub(u, d.const(2.0)))
    inverse = d.quotient(d.const(1.0), u)
    s = d.mul(f, inverse)
    s_low = d.mul(d.fma(d.neg(s), dropped, d.fma(d.neg(s), u, f)), inverse)
    z = d.mul(s, s)
    z_low = d.fma(d.add(s, s), s_low, d.fma(s, s, d.neg(z)))
    rest = d.mul(z, d.polynomial(z, _REST))
    w = d.add(rest, d.const(_THIRD[0]))
    w_low = d.add(d.sub(rest, d.sub(w, d.const(_THIRD[0]))), d.const(_THIRD[1]))
    v = d.mul(z, w)
    v_low = d.fma(z_low, w, d.fma(z, w_low, d.fma(z, w, d.neg(v))))
    p = d.mul(s, v)
    p_low = d.fma(s_low, v, d.fma(s, v_low, d.fma(s, v, d.neg(p))))
    twice = d.add(s, s)
    near = d.add(twice, p)
    near_low = d.add(d.sub(p, d.sub(near, twice)), d.add(p_low, d.add(s_low, s_low)))
    whole = d.mul(e, d.const(F64.ln2_high))  # exact
    high = d.add(whole, near)
    low = d.add(d.sub(near, d.sub(high, whole)), d.fma(e, d.const(F64.ln2_low), near_low))
    return high, low


def _cases(d: Lanes, base: str, exponent: str, value: str) -> str:
    """The power from |base|**exponent."""
    infinite = d.const(math.inf)
    whole = d.compare("oeq", d.call("trunc", exponent), exponent)
    half = d.mul(exponent, d.const(0.5))
    odd = d.both(whole, d.compare("une", d.call("floor", half), half))
    value = d.select(odd, d.with_sign(value, base), value)
    bounded = d.compare("olt", d.absolute(base), infinite)
    negative = d.both(d.compare("olt", base, d.const(0.0)), bounded)
    nowhere = d.both(negative, d.compare("une", d.call("trunc", exponent), exponent))
    value = d.select(nowhere, d.const(math.nan), value)
    unit = d.both(d.compare("oeq", d.absolute(base), d.const(1.0)), d.compare("oeq", d.absolute(exponent), infinite))
    one = d.either(d.compare("oeq", base, d.const(1.0)), d.compare("oeq", exponent, d.const(0.0)))
    return d.select(d.either(unit, one), d.const(1.0), value)
