"""Scalar functions without a vector form: the C library lane by lane, so that generation is total.

One internal function per module, name and width loops over the lanes.  `erf_inv` and `digamma`, which the C library
lacks, are composed from the functions that are there.
"""

from __future__ import annotations

import math

from superopt.kernels.llvm import Value, mangled, type_of
from superopt.kernels.vecmath_exp import erf, erfc, exp, log
from superopt.kernels.vecmath_lanes import Lanes

NAMES = {
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "lgamma": "lgamma", "pow": "pow",
}  # fmt: skip


def per_lane(m: Lanes, name: str, *args: str) -> str:
    """The C library's function on each lane; of float32 its float32 version."""
    scalar = type_of(m.dtype)
    symbol = NAMES[name] + ("f" if m.dtype == "float32" else "")
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


# M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011): single precision, in w = -log((1 - x) (1 + x))
_ERFINV_NEAR = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.000218580870, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_ERFINV_FAR = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip


def erf_inv(m: Lanes, x: str) -> str:
    """The inverse of erf: Giles' polynomials; float64 refines them by two steps of Halley on erfc of |x|."""
    w = m.neg(log(m, m.mul(m.sub(m.const(1.0), x), m.add(m.const(1.0), x))))
    near = m.polynomial(m.sub(w, m.const(2.5)), _ERFINV_NEAR)
    far = m.polynomial(m.sub(m.call("sqrt", w), m.const(3.0)), _ERFINV_FAR)
    size = m.absolute(x)
    y = m.mul(m.select(m.compare("olt", w, m.const(5.0)), near, far), size)
    if m.dtype == "float64":
        rest = m.sub(m.const(1.0), size)
        for _ in range(2):
            # erf(y) - |x|, by the complement where that is exact
            high = m.sub(rest, erfc(m, y))
            low = m.sub(erf(m, y), size)
            error = m.select(m.compare("olt", size, m.const(0.5)), low, high)
            slope = m.mul(exp(m, m.neg(m.mul(y, y))), m.const(2.0 / math.sqrt(math.pi)))
            u = m.quotient(error, slope)
            y = m.sub(y, m.quotient(u, m.fma(y, u, m.const(1.0))))
    y = m.select(m.compare("oeq", size, m.const(1.0)), m.const(math.inf), y)
    y = m.select(m.compare("ogt", size, m.const(1.0)), m.const(math.nan), y)
    return m.select(m.compare("oeq", x, m.const(0.0)), x, m.with_sign(y, x))


# B_2k / (2 k), the asymptotic series of digamma in 1 / x**2
_DIGAMMA = (
    1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0,
)  # fmt: skip


def digamma(m: Lanes, x: str) -> str:
    """The logarithmic derivative of gamma, computed in float64: reflection, recurrence to 10, asymptotic series."""
    if m.dtype == "float32":
        d = m.of("float64")
        return d.cast("fptrunc", digamma(d, m.cast("fpext", x, "float64")), "float32")
    negative = m.compare("olt", x, m.const(0.5))
    y = m.select(negative, m.sub(m.const(1.0), x), x)
    total = m.const(0.0)
    for _ in range(10):
        low = m.compare("olt", y, m.const(10.0))
        total = m.sub(total, m.select(low, m.quotient(m.const(1.0), y), m.const(0.0)))
        y = m.select(low, m.add(y, m.const(1.0)), y)
    inverse = m.quotient(m.const(1.0), m.mul(y, y))
    series = m.mul(inverse, m.polynomial(inverse, _DIGAMMA))
    value = m.add(total, m.sub(m.sub(log(m, y), m.quotient(m.const(0.5), y)), series))
    floor = m.call("floor", x)
    turn = m.mul(m.sub(x, m.call("roundeven", x)), m.const(math.pi))  # tan has period pi
    reflected = m.sub(value, m.quotient(m.const(math.pi), per_lane(m, "tan", turn)))
    value = m.select(negative, reflected, value)
    pole = m.both(m.compare("ole", x, m.const(0.0)), m.compare("oeq", floor, x))
    return m.select(pole, m.const(math.nan), value)
