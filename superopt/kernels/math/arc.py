"""Hyperbolic functions, their inverses, and the inverses of the circular ones, on vectors of float32 and float64.

Each is one odd polynomial on a short interval (our own Chebyshev fits) or a formula in `exp` and `log1p` that keeps the
last places where terms would cancel.  Constants are sums of two floats, so that pi/2 - x costs one rounding.
"""

from __future__ import annotations

import math

from superopt.kernels.math.exp import LN2, exp_half, log1p
from superopt.kernels.math.lanes import Lanes

# (f(x) - x) / x**3 in x**2
_SINH = {  # on [0, 1]
    "float32": (0.1666666716337204, 0.008333339355885983, 0.00019838102161884308, 2.806280235745362e-06),
    "float64": (
        0.16666666666666666, 0.00833333333333329, 0.00019841269841335078, 2.755731918685128e-06,
        2.5052118546804924e-08, 1.6057605840240948e-10, 7.748583520848586e-13,
    ),
}  # fmt: skip
_ATAN = {  # on [0, tan(pi/8)]
    "float32": (
        -0.3333333134651184, 0.19999538362026215, -0.14263896644115448, 0.10743099451065063, -0.06449835002422333,
    ),
    "float64": (
        -0.3333333333333333, 0.19999999999995477, -0.14285714284657847, 0.11111111014567586, -0.09090904550335598,
        0.07692182547963067, -0.06664502420671792, 0.058580707141414626, -0.05085041563252257, 0.03921989403282776,
        -0.01916251103116856,
    ),
}  # fmt: skip
_ASIN = {  # on [0, 1/2]
    "float32": (
        0.1666666567325592, 0.07500094920396805, 0.044599320739507675, 0.031101727858185768, 0.017143717035651207,
        0.03370072692632675,
    ),
    "float64": (
        0.16666666666666669, 0.07499999999998448, 0.04464285714633579, 0.030381944139605127, 0.02237217291144451,
        0.017352393223875898, 0.013971208168894744, 0.011479201876489903, 0.01032278460470961, 0.005457133914424141,
        0.017403133822547052, -0.014857185125757033, 0.028762588874686842,
    ),
}  # fmt: skip
_HALF_PI = {
    "float32": (1.5707963705062866, -4.371139000186241e-08),
    "float64": (1.5707963267948966, 6.123233995736766e-17),
}


def _odd(m: Lanes, x: str, z: str, table: dict[str, tuple[float, ...]]) -> str:
    """Return the polynomial correction x * z * P(z) that an odd function adds to x; z is x**2."""
    return m.mul(m.mul(x, z), m.polynomial(z, table[m.dtype]))


def _from_pi(m: Lanes, halves: float, x: str) -> str:
    """halves * pi/2 - x."""
    high, low = _HALF_PI[m.dtype]
    return m.sub(m.const(halves * high), m.sub(x, m.const(halves * low)))


def sinh(m: Lanes, x: str) -> str:
    """Hyperbolic sine."""
    a = m.absolute(x)
    e = exp_half(m, a)
    near = m.add(a, _odd(m, a, m.mul(a, a), _SINH))
    far = m.sub(e, m.quotient(m.const(0.25), e))
    return m.with_sign(m.select(m.compare("olt", a, m.const(1.0)), near, far), x)


def cosh(m: Lanes, x: str) -> str:
    """Hyperbolic cosine."""
    e = exp_half(m, m.absolute(x))
    return m.add(e, m.quotient(m.const(0.25), e))


def asinh(m: Lanes, x: str) -> str:
    """Inverse of sinh."""
    a = m.absolute(x)
    square = m.mul(a, a)
    root = m.call("sqrt", m.add(square, m.const(1.0)))
    near = m.add(a, m.quotient(square, m.add(root, m.const(1.0))))
    return m.with_sign(_log_or_double(m, a, near), x)


def acosh(m: Lanes, x: str) -> str:
    """Inverse of cosh; NaN below 1."""
    t = m.sub(x, m.const(1.0))
    near = m.add(t, m.call("sqrt", m.fma(t, t, m.add(t, t))))
    y = _log_or_double(m, x, near)
    return m.select(m.compare("olt", x, m.const(1.0)), m.const(math.nan), y)


def _log_or_double(m: Lanes, a: str, near: str) -> str:
    """Return log1p(near), where the square of a may be formed; else log(2 a)."""
    big = m.compare("ogt", a, m.const(2.0**26 if m.dtype == "float32" else 2.0**55))
    y = log1p(m, m.select(big, a, near))
    return m.add(y, m.select(big, m.const(LN2), m.const(0.0)))


def atanh(m: Lanes, x: str) -> str:
    """Inverse of tanh; NaN beyond 1."""
    a = m.absolute(x)
    ratio = m.quotient(m.add(a, a), m.sub(m.const(1.0), a))
    return m.with_sign(m.mul(log1p(m, ratio), m.const(0.5)), x)


def atan(m: Lanes, x: str) -> str:
    """Inverse of tan, in [-pi/2, pi/2]."""
    return m.with_sign(_angle(m, m.absolute(x)), x)


def _angle(m: Lanes, a: str) -> str:
    """atan of a >= 0, by the nearest of 0, pi/4 and pi/2."""
    one, (high, low) = m.const(1.0), _HALF_PI[m.dtype]
    middle = m.compare("ogt", a, m.const(math.sqrt(2.0) - 1.0))
    big = m.compare("ogt", a, m.const(math.sqrt(2.0) + 1.0))
    over = m.select(big, m.const(-1.0), m.select(middle, m.sub(a, one), a))
    under = m.select(big, a, m.select(middle, m.add(a, one), one))
    r = m.quotient(over, under)
    more = _odd(m, r, m.mul(r, r), _ATAN)
    first = m.select(big, m.const(high), m.select(middle, m.const(high / 2), m.const(0.0)))
    rest = m.select(big, m.const(low), m.select(middle, m.const(low / 2), m.const(0.0)))
    return m.add(first, m.add(r, m.add(more, rest)))


def atan2(m: Lanes, y: str, x: str) -> str:
    """Angle of the point (x, y), in [-pi, pi], with the cases of IEEE 754's atan2."""
    across, up = m.absolute(x), m.absolute(y)
    steep = m.compare("ogt", up, across)
    low, high = m.select(steep, across, up), m.select(steep, up, across)
    t = m.quotient(low, high)
    t = m.select(m.compare("oeq", high, m.const(0.0)), m.const(0.0), t)
    t = m.select(m.compare("oeq", low, m.const(math.inf)), m.const(1.0), t)
    angle = _angle(m, t)
    angle = m.select(steep, _from_pi(m, 1.0, angle), angle)
    left = m.ints.compare("slt", m.as_ints(x), m.ints.const(0))
    angle = m.with_sign(m.select(left, _from_pi(m, 2.0, angle), angle), y)
    return m.select(m.compare("uno", x, y), m.const(math.nan), angle)


def _arc(m: Lanes, a: str) -> tuple[str, str]:
    """Return whether a is below 1/2, and asin(a) if it is, else half of acos(a)."""
    small = m.compare("olt", a, m.const(0.5))
    z = m.select(small, m.mul(a, a), m.mul(m.sub(m.const(1.0), a), m.const(0.5)))
    s = m.select(small, a, m.call("sqrt", z))
    return small, m.add(s, _odd(m, s, z, _ASIN))


def asin(m: Lanes, x: str) -> str:
    """Inverse of sin, in [-pi/2, pi/2]; NaN beyond 1."""
    small, w = _arc(m, m.absolute(x))
    return m.with_sign(m.select(small, w, _from_pi(m, 1.0, m.add(w, w))), x)


def acos(m: Lanes, x: str) -> str:
    """Inverse of cos, in [0, pi]; NaN beyond 1."""
    small, w = _arc(m, m.absolute(x))
    twice = m.add(w, w)
    far = m.select(m.compare("olt", x, m.const(0.0)), _from_pi(m, 2.0, twice), twice)
    return m.select(small, _from_pi(m, 1.0, m.with_sign(w, x)), far)
