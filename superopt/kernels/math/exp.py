"""Exponentials, logarithms and functions built from them, on vectors of float32 and float64.

Coefficients are our own fits: Chebyshev interpolants computed in extended precision; for `tanh` and `erf` of float32,
rational functions by reweighted least squares.  All functions give the limits at infinities and zeros, keep NaN, and
round into the denormals; the sign of zero is kept where the function is odd.  Errors: `superopt.kernels.math.table`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from superopt.kernels.math.lanes import Lanes

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class _Float:
    """Constants of a float dtype: of the format, of the reduction by ln 2, and coefficients."""

    mantissa: int
    bias: int
    round_magic: float  # 1.5 * 2**mantissa: adding it rounds to an integer, in the low bits
    ln2_high: float  # few bits: products with small integers are exact
    ln2_low: float
    overflow: float  # exp of more is infinite
    underflow: float  # exp of less is 0
    saturated: float  # expm1 of less is -1
    tiny: float  # smallest normal
    exp: tuple[float, ...]  # (exp(r) - 1 - r) / r**2


F32 = _Float(
    23, 127, 1.5 * 2.0**23, 0.693145751953125, ln2_low=1.4286068203094172e-06, overflow=89.0, underflow=-104.0,
    saturated=-18.0, tiny=2.0**-126,
    exp=(0.5, 0.16666577756404877, 0.041666556149721146, 0.008363173343241215, 0.0013926175888627768),
)  # fmt: skip
F64 = _Float(
    52, 1023, 1.5 * 2.0**52, 6.93147180369123816490e-01, ln2_low=1.90821492927058770002e-10, overflow=710.0,
    underflow=-746.0, saturated=-38.0, tiny=2.0**-1022,
    exp=(
        0.5, 0.1666666666666667, 0.04166666666666666, 0.008333333333325988, 0.0013888888888884704,
        0.00019841269875096708, 2.4801587329533646e-05, 2.7557255193896615e-06, 2.7557266692123177e-07,
        2.510527079238151e-08, 2.0917662657221356e-09,
    ),
)  # fmt: skip
# (log(1 + f) - f + f**2 / 2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1]
_LOG32 = (
    0.3333333134651184, -0.2499999701976776, 0.20000715553760529, -0.1666780263185501, 0.14249058067798615,
    -0.12425687164068222, 0.11685419827699661, -0.11479733884334564, 0.06971611827611923,
)  # fmt: skip
# (log((1 + s) / (1 - s)) - 2 s) / s**3 in s**2, the range of s that of f above
_LOG64 = (
    0.6666666666666666, 0.40000000000000724, 0.28571428570860236, 0.22222222383811618, 0.1818179615957164,
    0.1538622298340251, 0.13269011407597278, 0.1308566061046721,
)  # fmt: skip
_TANH32 = (
    (1.0, 0.13381028175354004, 0.003495589829981327, 2.0609046259778552e-05, 1.3354502392814993e-08),
    (1.0, 0.4671434462070465, 0.02587699331343174, 0.0003285634738858789, 7.776515644764004e-07),
)
_ERF32 = (
    (1.1283791065216064, 0.1907774657011032, 0.05278913676738739, 0.003779253689572215, 0.0002847870928235352,
     2.041844936684356e-06),
    (1.0, 0.5024048686027527, 0.11425461620092392, 0.014996733516454697, 0.0011651013046503067,
     3.8001635402906686e-05),
)  # fmt: skip
_ERF64_SLOPE = (1.1283791670955126, 1.533545961316582e-17)
# (erf(x) / x - slope) / x**2 in x**2 on [0, 1]
_ERF64 = (
    -0.37612638903183754, 0.11283791670955257, -0.02686617064515159, 0.005223977625563712, -0.0008548327024277121,
    0.00012055332708049386, -1.4925633753049006e-05, 1.6461617782977573e-06, -1.6356837791627518e-07,
    1.4703430991265995e-08, -1.1540356818310709e-09, 6.237973101027212e-11,
)  # fmt: skip
# exp(x**2) (1 - erf(x)) in (x - 2.5) / (x + 2.5) on [1, 6]
_ERFC64 = (
    0.2108063640611436, -0.37173673394897294, 0.2517131932174487, -0.12503305237891754, 0.03992253907546651,
    -0.003993701160130397, -0.0026423659518649664, 0.0008759152876736145, 0.00022837996429976183,
    -0.00012887483213308776, -3.4175728033825145e-05, 1.859675162744247e-05, 7.49977637000555e-06,
    -2.2328599717950124e-06, -1.5877058676910652e-06,
)  # fmt: skip

# exp(a**2) (1 - erf(a)) in t = (a - c) / (a + c), with c first: on [0, 10.1], exactly 1 at 0; and on [0.5, 27.5]
_ERFC32_TAIL = (3.4, (
    0.15953536331653595, -0.29606306552886963, 0.23587407171726227, -0.1599053293466568, 0.0905875638127327,
    -0.041421160101890564, 0.014206833206117153, -0.0029126154258847237, -0.00018537841970101,
    0.000320604717354551,
))  # fmt: skip
_ERFC64_TAIL = (7.6, (
    0.07360885831058697, -0.14477271577377857, 0.13767378211733644, -0.12659226398633672, 0.11253204115772629,
    -0.09668228966383864, 0.08025515906036301, -0.06433841170104529, 0.049786794017594754, -0.03716501042519892,
    0.02674296713198934, -0.01853365698901749, 0.012357843625448115, -0.007918250885273202, 0.004868561976741941,
    -0.00286761122811639, 0.0016147861296047273, -0.0008672459863539432, 0.0004428267851243088,
    -0.0002141105732817055, 9.77303305908036e-05, -4.189946416169883e-05, 1.6497147965504664e-05,
    -5.9132561045206404e-06, 2.0492619241647737e-06, -6.124753822047922e-07, 1.105409815323311e-07,
))  # fmt: skip


def facts(x: Lanes) -> _Float:
    """Return the constants of the dtype."""
    return F32 if x.dtype == "float32" else F64


def _shifted_exponent(m: Lanes, integer: str) -> str:
    """2**n, n in the low bits of the representation `integer` of n + round_magic; n within the normal exponents."""
    at, i = facts(m), m.ints
    high = i.op("shl", m.as_ints(integer), i.const(at.mantissa))
    return m.from_ints(i.add(high, i.const(at.bias << at.mantissa)))


def ldexp(m: Lanes, x: str, n: str) -> str:
    """x * 2**n with one rounding, also into the denormals and to infinity; n is an integer-valued float."""
    cpu, native = m.f.module.cpu, m.f.module.cpu.lanes(m.dtype)
    if cpu.avx512 and m.lanes == native:
        flags = f"i{native}"
        name = f"x86.avx512.mask.scalef.{'ps' if m.dtype == 'float32' else 'pd'}.512"
        args = [(m.type, x), (m.type, n), (m.type, "zeroinitializer"), (flags, "-1"), ("i32", "4")]
        return m.f.intrinsic(name, m.type, *args, suffix="")
    at = facts(m)
    half = m.fma(n, m.const(0.5), m.const(at.round_magic))
    rest = m.sub(n, m.sub(half, m.const(at.round_magic)))
    scaled = m.mul(x, _shifted_exponent(m, half))
    return m.mul(scaled, _shifted_exponent(m, m.add(rest, m.const(at.round_magic))))


def reduced(m: Lanes, x: str) -> tuple[str, str]:
    """n and r with x = n ln 2 + r, |r| at most ln 2 / 2."""
    at = facts(m)
    n = m.sub(m.fma(x, m.const(1.0 / LN2), m.const(at.round_magic)), m.const(at.round_magic))
    r = m.fma(n, m.const(-at.ln2_high), x)
    return n, m.fma(n, m.const(-at.ln2_low), r)


def exp(m: Lanes, x: str) -> str:
    """e**x."""
    at = facts(m)
    return exp_bounded(m, m.at_most(m.at_least(x, at.underflow), at.overflow))


def exp_half(m: Lanes, x: str) -> str:
    """e**x / 2 for x >= 0, without overflow before the half itself overflows."""
    return exp_bounded(m, m.at_most(x, facts(m).overflow + 1.0), halved=True)


def exp_bounded(m: Lanes, x: str, halved: bool = False) -> str:
    """Return e**x, or half of it, for |x| up to 1.2 times the underflow threshold."""
    n, r = reduced(m, x)
    n = m.sub(n, m.const(1.0)) if halved else n
    return ldexp(m, near_one(m, r), n)


def near_one(m: Lanes, r: str) -> str:
    """e**r for |r| at most ln 2 / 2."""
    return m.polynomial(r, (1.0, 1.0, *facts(m).exp))


def exp2(m: Lanes, x: str) -> str:
    """2**x."""
    at = facts(m)
    x = m.at_most(m.at_least(x, at.underflow * 1.5), at.overflow * 1.5)
    n = m.sub(m.add(x, m.const(at.round_magic)), m.const(at.round_magic))
    d = m.sub(x, n)
    r = m.mul(d, m.const(LN2))
    return ldexp(m, near_one(m, r), n)


def expm1(m: Lanes, x: str) -> str:
    """e**x - 1."""
    at = facts(m)
    bounded = m.at_most(m.at_least(x, at.saturated), at.overflow)
    n, r = reduced(m, bounded)
    q = m.fma(m.polynomial(r, at.exp), m.mul(r, r), r)
    half = _shifted_exponent(m, m.add(m.sub(n, m.const(1.0)), m.const(at.round_magic)))  # 2**n itself may overflow
    y = m.fma(half, q, m.sub(half, m.const(0.5)))
    y = m.add(y, y)
    return m.select(m.compare("oeq", x, m.const(0.0)), x, y)


def mantissa_and_exponent(m: Lanes, x: str) -> tuple[str, str]:
    """f and e with x = (1 + f) 2**e, 1 + f in [sqrt(1/2), sqrt(2)), for finite x > 0."""
    at, i = facts(m), m.ints
    small = m.compare("olt", x, m.const(at.tiny))
    shift = float(at.mantissa + 1)
    normal = m.select(small, m.mul(x, m.const(2.0**shift)), x)
    half_root = 0x3F3504F3 if m.dtype == "float32" else 0x3FE6A09E667F3BCD
    word = m.as_ints(normal)
    above = i.add(word, i.const((at.bias << at.mantissa) - half_root))
    biased = i.op("lshr", above, i.const(at.mantissa))
    mantissa = i.add(i.op("and", above, i.const((1 << at.mantissa) - 1)), i.const(half_root))
    f = m.sub(m.from_ints(mantissa), m.const(1.0))
    magic = 2.0**at.mantissa  # an integer in the mantissa of a float of this size is that integer above it
    carrier = int(at.bias + at.mantissa) << at.mantissa
    e = m.sub(m.from_ints(i.op("or", biased, i.const(carrier))), m.const(magic + at.bias))
    return f, m.sub(e, m.select(small, m.const(shift), m.const(0.0)))


def log(m: Lanes, x: str) -> str:
    """The natural logarithm."""
    at = facts(m)
    f, e = mantissa_and_exponent(m, x)
    if m.dtype == "float32":
        z = m.mul(f, f)
        y = m.mul(m.mul(z, f), m.polynomial(f, _LOG32))
        y = m.fma(e, m.const(at.ln2_low), y)
        y = m.fma(z, m.const(-0.5), y)
        y = m.fma(e, m.const(at.ln2_high), m.add(f, y))
    else:
        s = m.quotient(f, m.add(f, m.const(2.0)))
        z = m.mul(s, s)
        hfsq = m.mul(m.mul(f, f), m.const(0.5))
        r = m.mul(z, m.polynomial(z, _LOG64))
        tail = m.fma(s, m.add(hfsq, r), m.mul(e, m.const(at.ln2_low)))
        y = m.fma(e, m.const(at.ln2_high), m.sub(f, m.sub(hfsq, tail)))
    y = m.select(m.compare("olt", x, m.const(math.inf)), y, x)  # infinity and NaN
    y = m.select(m.compare("olt", x, m.const(0.0)), m.const(math.nan), y)
    return m.select(m.compare("oeq", x, m.const(0.0)), m.const(-math.inf), y)


def log1p(m: Lanes, x: str) -> str:
    """log(1 + x): of the rounded sum, corrected by what the rounding dropped."""
    u = m.add(x, m.const(1.0))
    big = m.compare("ogt", m.absolute(x), m.const(1.0))
    dropped = m.select(big, m.sub(m.const(1.0), m.sub(u, x)), m.sub(x, m.sub(u, m.const(1.0))))
    plain = log(m, u)
    y = m.add(plain, m.quotient(dropped, u))
    regular = m.both(m.compare("ogt", u, m.const(0.0)), m.compare("olt", u, m.const(math.inf)))
    y = m.select(regular, y, plain)
    return m.select(m.compare("oeq", u, m.const(1.0)), x, y)


def tanh(m: Lanes, x: str) -> str:
    """Hyperbolic tangent."""
    if m.dtype == "float32":
        return _odd_rational(m, x, 9.0, *_TANH32)
    t = expm1(m, m.mul(m.at_most(m.absolute(x), 22.0), m.const(2.0)))
    return m.with_sign(m.quotient(t, m.add(t, m.const(2.0))), x)


def _odd_rational(m: Lanes, x: str, bound: float, above: tuple[float, ...], below: tuple[float, ...]) -> str:
    """x P(x**2) / Q(x**2), which is 1 within rounding at the bound and beyond."""
    x = m.at_most(m.at_least(x, -bound), bound)
    z = m.mul(x, x)
    y = m.quotient(m.mul(x, m.polynomial(z, above)), m.polynomial(z, below))
    return m.at_most(m.at_least(y, -1.0), 1.0)


def logistic(m: Lanes, x: str) -> str:
    """1 / (1 + e**-x), without overflow and without loss for large negative x."""
    e = exp_bounded(m, m.at_least(m.neg(m.absolute(x)), facts(m).underflow))
    above = m.select(m.compare("olt", x, m.const(0.0)), e, m.const(1.0))
    return m.quotient(above, m.add(e, m.const(1.0)))


def erf(m: Lanes, x: str) -> str:
    """The error function."""
    if m.dtype == "float32":
        return _odd_rational(m, x, 4.0, *_ERF32)
    a = m.at_most(m.absolute(x), 6.0)
    z = m.mul(a, a)
    near = _erf_near(m, a, z)
    t = m.quotient(m.sub(a, m.const(2.5)), m.add(a, m.const(2.5)))
    far = m.sub(m.const(1.0), m.mul(exp_bounded(m, m.neg(z)), m.polynomial(t, _ERFC64)))
    return m.with_sign(m.select(m.compare("olt", a, m.const(1.0)), near, far), x)


def _erf_near(m: Lanes, x: str, z: str) -> str:
    """erf(x) of float64 for |x| at most 1; z is x**2."""
    slope, rest = _ERF64_SLOPE
    return m.fma(x, m.const(slope), m.mul(x, m.fma(m.polynomial(z, _ERF64), z, m.const(rest))))


def erfc(m: Lanes, x: str) -> str:
    """1 - erf(x), to the last place also where it is tiny."""
    middle, tail = _ERFC32_TAIL if m.dtype == "float32" else _ERFC64_TAIL
    a = m.at_most(m.absolute(x), 10.5 if m.dtype == "float32" else 27.5)
    square = m.mul(a, a)
    dropped = m.fma(a, a, m.neg(square))
    e = exp_bounded(m, m.neg(square))
    e = m.fma(m.neg(dropped), e, e)
    t = m.quotient(m.sub(a, m.const(middle)), m.add(a, m.const(middle)))
    y = m.mul(e, m.polynomial(t, tail))
    y = m.select(m.compare("olt", x, m.const(0.0)), m.sub(m.const(2.0), y), y)
    if m.dtype == "float32":
        return y
    near = m.sub(m.const(1.0), _erf_near(m, x, m.mul(x, x)))
    return m.select(m.compare("olt", a, m.const(0.5)), near, y)


def cbrt(m: Lanes, x: str) -> str:
    """The cube root: an estimate through the logarithm, then one step of Newton in float64."""
    if m.dtype == "float32":
        d = m.of("float64")
        a = d.absolute(m.cast("fpext", x, "float64"))
        y = exp(d, d.mul(log(d, a), d.const(1.0 / 3.0)))
        return m.with_sign(d.cast("fptrunc", y, "float32"), x)
    a = m.absolute(x)
    small = m.compare("olt", a, m.const(2.0**-900))
    a = m.select(small, m.mul(a, m.const(2.0**162)), a)
    y = exp(m, m.mul(log(m, a), m.const(1.0 / 3.0)))
    square = m.mul(y, y)
    error = m.fma(square, y, m.neg(a))
    better = m.sub(y, m.quotient(error, m.mul(square, m.const(3.0))))
    regular = m.both(m.compare("ogt", a, m.const(0.0)), m.compare("olt", a, m.const(math.inf)))
    y = m.select(regular, better, y)
    return m.with_sign(m.select(small, m.mul(y, m.const(2.0**-54)), y), x)
