"""Inverse of erf, log-gamma and digamma on vectors, composed from the other functions.

The last two shift their argument to at least 8 and take the asymptotic series there, in float64; arguments below 1/2
are reflected.  log-gamma of float64 near its zeros at 1 and 2 needs more than that and is left to the C library.
"""

from __future__ import annotations

import math

from superopt.kernels.math.exp import erf, erfc, exp, log
from superopt.kernels.math.lanes import Lanes, per_lane
from superopt.kernels.math.trig import sin, tan

# M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011): single precision, in w = -log((1 - x) (1 + x))
_ERFINV_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.000218580870, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_ERFINV_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip
# B_2k / (2 k (2 k - 1)): log-gamma in 1 / y**2, after 1 / y
_LGAMMA = (
    1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360360.0, 1.0 / 156.0,
    -3617.0 / 122400.0,
)  # fmt: skip
# B_2k / (2 k): digamma in 1 / y**2, after 1 / y**2
_DIGAMMA = (
    1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0,
    -3617.0 / 8160.0,
)  # fmt: skip


def erf_inv(m: Lanes, x: str) -> str:
    """The inverse of erf: Giles' polynomials; float64 refines them by a step of Halley."""
    w = m.neg(log(m, m.mul(m.sub(m.const(1.0), x), m.add(m.const(1.0), x))))
    near = m.polynomial(m.sub(w, m.const(2.5)), _ERFINV_NEAR)
    far = m.polynomial(m.sub(m.call("sqrt", w), m.const(3.0)), _ERFINV_FAR)
    size = m.absolute(x)
    y = m.mul(m.select(m.compare("olt", w, m.const(5.0)), near, far), size)
    if m.dtype == "float64":
        # erf(y) - |x|, by the complement where that is exact
        high, low = m.sub(m.sub(m.const(1.0), size), erfc(m, y)), m.sub(erf(m, y), size)
        error = m.select(m.compare("olt", size, m.const(0.5)), low, high)
        slope = m.mul(exp(m, m.neg(m.mul(y, y))), m.const(2.0 / math.sqrt(math.pi)))
        u = m.quotient(error, slope)
        y = m.sub(y, m.quotient(u, m.fma(y, u, m.const(1.0))))
    y = m.select(m.compare("oeq", size, m.const(1.0)), m.const(math.inf), y)
    y = m.select(m.compare("ogt", size, m.const(1.0)), m.const(math.nan), y)
    return m.select(m.compare("oeq", x, m.const(0.0)), x, m.with_sign(y, x))


def lgamma(m: Lanes, x: str) -> str:
    """Logarithm of the absolute value of gamma."""
    if m.dtype == "float64":
        return per_lane(m, "lgamma", x)
    d = m.of("float64")
    wide = m.cast("fpext", x, "float64")
    below, y = _reflected(d, wide)
    product = d.const(1.0)
    for _ in range(8):
        low = d.compare("olt", y, d.const(8.0))
        product = d.mul(product, d.select(low, y, d.const(1.0)))
        y = d.add(y, d.select(low, d.const(1.0), d.const(0.0)))
    inverse = d.quotient(d.const(1.0), y)
    series = d.mul(inverse, d.polynomial(d.mul(inverse, inverse), _LGAMMA))
    value = d.fma(d.sub(y, d.const(0.5)), log(d, y), d.sub(d.const(0.5 * math.log(2.0 * math.pi)), y))
    value = d.sub(d.add(value, series), log(d, product))
    turn = d.mul(d.sub(wide, d.call("roundeven", wide)), d.const(math.pi))
    mirrored = d.sub(log(d, d.quotient(d.const(math.pi), d.absolute(sin(d, turn)))), value)
    result = d.cast("fptrunc", d.select(below, mirrored, value), "float32")
    return m.select(m.compare("oeq", m.absolute(x), m.const(math.inf)), m.const(math.inf), result)


def digamma(m: Lanes, x: str) -> str:
    """The logarithmic derivative of gamma."""
    if m.dtype == "float32":
        d = m.of("float64")
        return d.cast("fptrunc", digamma(d, m.cast("fpext", x, "float64")), "float32")
    below, y = _reflected(m, x)
    over, under = m.const(0.0), m.const(1.0)  # sum of 1 / y over the shifts, as one fraction
    for _ in range(8):
        low = m.compare("olt", y, m.const(8.0))
        over = m.select(low, m.fma(over, y, under), over)
        under = m.mul(under, m.select(low, y, m.const(1.0)))
        y = m.add(y, m.select(low, m.const(1.0), m.const(0.0)))
    inverse = m.quotient(m.const(1.0), y)
    square = m.mul(inverse, inverse)
    series = m.fma(square, m.polynomial(square, _DIGAMMA), m.mul(inverse, m.const(0.5)))
    value = m.sub(m.sub(log(m, y), series), m.quotient(over, under))
    turn = m.mul(m.sub(x, m.call("roundeven", x)), m.const(math.pi))  # tan has period pi
    mirrored = m.sub(value, m.quotient(m.const(math.pi), tan(m, turn)))
    pole = m.both(m.compare("ole", x, m.const(0.0)), m.compare("oeq", m.call("floor", x), x))
    return m.select(pole, m.const(math.nan), m.select(below, mirrored, value))


def _reflected(d: Lanes, x: str) -> tuple[str, str]:
    """Return whether x is below 1/2, and 1 - x if it is, else x."""
    below = d.compare("olt", x, d.const(0.5))
    return below, d.select(below, d.sub(d.const(1.0), x), x)
