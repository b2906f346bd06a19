"""Table of scalar functions: the per-element functions of elementwise ops, reductions and products.

Each entry has a name (that of the `jax.lax` primitive), an arity, the dtype of its result given that of its operands,
its NumPy function, and its cost.  The NumPy functions have the meaning of the primitives.  Integers wrap.  Division
truncates and gives -1 for a divisor of 0; the remainder takes the dividend's sign.  Shifts by the width or more give 0
(or the sign), max and min propagate NaN.  16-bit floats are computed in float32 and rounded after each function.

`wide` evaluation computes every float in float64.  The Z3 meaning and laws of the functions live in `verifier/`.
"""

# NumPy functions of untyped arrays have no known types
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from superopt.ir.types import DTYPES, FLOATS

Array = Any  # an ndarray or NumPy scalar: the interpreter treats them alike
Numpy = Callable[..., Array]

HALVES = ("float16", "bfloat16")
DTYPE: dict[str, np.dtype[Any]] = {
    name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in DTYPES
}
_UNSIGNED_OF = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, slots=True)
class ScalarFn:
    """One scalar function.

    Attributes:
        name: the primitive's name.
        arity: number of operands; None for `select_n`.
        takes: kinds of dtypes of its operands: f floats, i signed and u unsigned integers, b bool.
        predicate: whether the result is bool (else of the operands' dtype).
        numpy: the function on arrays of one dtype, broadcasting.
        flops: floating-point (or integer) operations of one application; transcendental ones count apart.
        transcendental: evaluated by a polynomial or a library.
        commutative: swapping its two operands gives the same bits, except for the payload of a NaN.
        partial: undefined (NaN) at some finite operands.
        poles: infinite at some finite operands, overflow apart.
        closed: a float type that holds the operands holds the result: there is nothing to round.
        steps: discontinuous at finite operands where it has values (poles apart); so are all predicates.
        kept: XLA:CPU keeps the result where several kernels read it, and computes it again in each otherwise (as seen
            in its compiled programs).
        parity: 1 where f(-x) = f(x), -1 where f(-x) = -f(x), else 0.
        like: another function that takes as long there (`cheap`: as an addition); empty where none is known.
    """

    name: str
    arity: int | None
    takes: str
    predicate: bool
    numpy: Numpy
    flops: int
    transcendental: bool
    commutative: bool = False
    partial: bool = False
    poles: bool = False
    kept: bool = False
    closed: bool = False
    steps: bool = False
    like: str = ""
    parity: int = 0

    def dtype(self, operand: str) -> str:
        """Return the dtype of the result."""
        return "bool" if self.predicate else operand

    def accepts(self, operand: str) -> bool:
        """Whether its operands can be of this dtype."""
        return operand in DTYPE and DTYPE[operand].kind.replace("V", "f") in self.takes  # V: bfloat16


def numpy_dtype(name: str, wide: bool = False) -> np.dtype[Any]:
    """Return the NumPy dtype in which values of this dtype are held."""
    return DTYPE["float64"] if wide and name in FLOATS else DTYPE[name]


def apply(fn: str, dtype: str, args: tuple[Array, ...], wide: bool = False) -> Array:
    """Apply the scalar function to arrays of this dtype (of the cases, for `select_n`)."""
    spec = SCALARS[fn]
    if dtype in HALVES and not wide and fn not in _NATIVE:
        args = tuple([x if x.dtype == np.bool_ or fn == "select_n" else x.astype(np.float32) for x in args])
        value = spec.numpy(*args)
        return value if value.dtype == np.bool_ else value.astype(DTYPE[dtype], copy=False)
    if fn == "nextafter":  # neighbours exist in the dtype only, also when the rest is wide
        value = spec.numpy(*[x.astype(DTYPE[dtype], copy=False) for x in args])
        return value.astype(numpy_dtype(dtype, wide), copy=False)
    return spec.numpy(*args)


def convert(x: Array, source: str, target: str, wide: bool = False) -> Array:
    """Convert to another dtype: from floats to integers towards zero and saturating, between integers wrapping."""
    if target == "bool":
        return np.not_equal(x, np.zeros((), x.dtype))
    kind = numpy_dtype(target, wide)
    if source in FLOATS and target not in FLOATS:
        info = np.iinfo(kind)
        number = np.trunc(np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70)))
        inside = np.clip(number, float(info.min), float(info.max))
        whole = np.where(number >= float(info.max), 0, inside).astype(kind)
        return np.where(number >= float(info.max), kind.type(info.max), whole)
    if target in HALVES and not wide and source not in FLOATS:
        return x.astype(np.float32).astype(kind)
    return x.astype(kind, copy=False)


# ---- functions that NumPy does not have in this meaning


def _bits(x: Array) -> int:
    return x.dtype.itemsize * 8


def _unsigned(x: Array) -> Array:
    return np.asarray(x).view(_UNSIGNED_OF[_bits(x)])


def _div(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = np.floor_divide(a, safe)
    up = (quotient * safe != a) & ((a < 0) != (b < 0))
    return np.where(b == 0, ~np.zeros_like(quotient), quotient + up.astype(a.dtype))


def _rem(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, np.ones_like(b), b)))


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(np.ones_like(x), x), np.zeros_like(x))


def _rsqrt(x: Array) -> Array:
    return np.ones_like(x) / np.sqrt(x)


def _shifted(by: Array, width: int) -> tuple[Array, Array]:
    """Return whether each shift is within the width, and a shift that is."""
    inside = (by >= 0) & (by < width)
    return inside, np.where(inside, by, np.zeros_like(by))


def _shift_left(a: Array, b: Array) -> Array:
    inside, by = _shifted(b, _bits(a))
    return np.where(inside, np.left_shift(a, by), np.zeros_like(a))


def _shift_right_logical(a: Array, b: Array) -> Array:
    inside, by = _shifted(b, _bits(a))
    moved = np.right_shift(_unsigned(a), _unsigned(by))
    return np.where(inside, np.asarray(moved).view(a.dtype), np.zeros_like(a))


def _shift_right_arithmetic(a: Array, b: Array) -> Array:
    if a.dtype.kind == "u":  # the sign bit is the highest bit
        signed = np.asarray(a).view(f"i{a.dtype.itemsize}")
        return np.asarray(_shift_right_arithmetic(signed, np.asarray(b).view(signed.dtype))).view(a.dtype)
    inside, by = _shifted(b, _bits(a))
    return np.right_shift(a, np.where(inside, by, np.full_like(by, _bits(a) - 1)))


def _population_count(x: Array) -> Array:
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def _clz(x: Array) -> Array:
    bits, smeared, step = _bits(x), _unsigned(x), 1
    while step < bits:
        smeared = smeared | np.right_shift(smeared, smeared.dtype.type(step))
        step *= 2
    return (bits - np.bitwise_count(smeared)).astype(x.dtype)


def _select_n(which: Array, *cases: Array) -> Array:
    if which.dtype == np.bool_:
        return np.where(which, cases[1], cases[0])
    value = cases[0]
    for j, case in enumerate(cases[1:], 1):
        value = np.where(which >= j, case, value)
    return value


def _logistic(x: Array) -> Array:
    return np.ones_like(x) / (np.ones_like(x) + np.exp(-x))


def _special(name: str) -> Numpy:
    def call(*xs: Array) -> Array:
        # late: takes longer to load than all of superopt.ir, and few programs need it
        try:
            from scipy import special  # pyright: ignore[reportMissingTypeStubs]
        except ImportError:
            if not hasattr(math, name):
                raise
            one = np.frompyfunc(getattr(math, name), len(xs), 1)
            return np.asarray(one(*xs)).astype(xs[0].dtype)  # the same, element by element
        return getattr(special, name)(*xs)

    return call


def _digamma(x: Array) -> Array:
    value = _special("digamma")(x)
    return np.where((x <= 0) & (np.floor(x) == x), np.full_like(value, np.nan), value)


def _lgamma(x: Array) -> Array:
    return np.where(np.isinf(x), np.full_like(x, np.inf), _special("gammaln")(x))


_NATIVE = ("nextafter",)
_NUMBER, _ANY = "fiu", "fiub"
_TRANSCENDENTAL: dict[str, tuple[int, Numpy]] = {
    "exp": (1, np.exp), "exp2": (1, np.exp2), "log": (1, np.log), "expm1": (1, np.expm1), "log1p": (1, np.log1p),
    "sin": (1, np.sin), "cos": (1, np.cos), "tan": (1, np.tan),
    "asin": (1, np.arcsin), "acos": (1, np.arccos), "atan": (1, np.arctan),
    "sinh": (1, np.sinh), "cosh": (1, np.cosh), "tanh": (1, np.tanh),
    "asinh": (1, np.arcsinh), "acosh": (1, np.arccosh), "atanh": (1, np.arctanh),
    "logistic": (1, _logistic), "erf": (1, _special("erf")), "erfc": (1, _special("erfc")),
    "erf_inv": (1, _special("erfinv")), "lgamma": (1, _lgamma), "digamma": (1, _digamma),
    "bessel_i0e": (1, _special("i0e")), "bessel_i1e": (1, _special("i1e")),
    "sqrt": (1, np.sqrt), "rsqrt": (1, _rsqrt), "cbrt": (1, np.cbrt), "pow": (2, np.power), "atan2": (2, np.arctan2),
}  # fmt: skip
_ARITHMETIC: dict[str, tuple[int | None, str, Numpy]] = {
    "neg": (1, _NUMBER, np.negative), "sign": (1, _NUMBER, np.sign), "abs": (1, "fi", np.abs),
    "floor": (1, "f", np.floor), "ceil": (1, "f", np.ceil),
    "round_away": (1, "f", _round_away), "round_even": (1, "f", np.rint),
    "not": (1, "iub", np.invert), "population_count": (1, "iu", _population_count), "clz": (1, "iu", _clz),
    "add": (2, _NUMBER, np.add), "sub": (2, _NUMBER, np.subtract), "mul": (2, _NUMBER, np.multiply),
    "div": (2, _NUMBER, _div), "rem": (2, _NUMBER, _rem),
    "max": (2, _ANY, np.maximum), "min": (2, _ANY, np.minimum), "nextafter": (2, "f", np.nextafter),
    "and": (2, "iub", np.bitwise_and), "or": (2, "iub", np.bitwise_or), "xor": (2, "iub", np.bitwise_xor),
    "shift_left": (2, "iu", _shift_left), "shift_right_logical": (2, "iu", _shift_right_logical),
    "shift_right_arithmetic": (2, "iu", _shift_right_arithmetic), "select_n": (None, _ANY, _select_n),
}  # fmt: skip
_PREDICATES: dict[str, tuple[int | None, str, Numpy]] = {
    "is_finite": (1, "f", np.isfinite), "eq": (2, _ANY, np.equal), "ne": (2, _ANY, np.not_equal),
    "lt": (2, _ANY, np.less), "le": (2, _ANY, np.less_equal), "gt": (2, _ANY, np.greater),
    "ge": (2, _ANY, np.greater_equal),
}  # fmt: skip

_COMMUTE = frozenset(["add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"])
_POLES = frozenset(["div", "log", "log1p", "rsqrt", "pow", "tan", "atanh", "erf_inv", "lgamma", "digamma"])
_PARTIAL = _POLES | frozenset(["rem", "sqrt", "asin", "acos", "acosh"])
_CLOSED = frozenset(
    ["neg", "sign", "abs", "floor", "ceil", "round_away", "round_even", "max", "min", "rem", "select_n", "nextafter"]
)
_STEPS = frozenset(["sign", "floor", "ceil", "round_away", "round_even", "rem", "atan2"])
_LIKE = {
    "acos": "asin", "cosh": "sinh", "asinh": "acosh", "atanh": "acosh", "digamma": "lgamma", "nextafter": "rem",
    "erf_inv": "acosh", "population_count": "cheap", "clz": "cheap",
}  # fmt: skip
_ODD = frozenset(["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "erf_inv", "sign", "cbrt"])
_EVEN = frozenset(["abs", "cos", "cosh"])
_KEPT = _TRANSCENDENTAL.keys() - {"sin", "cos", "tan"} | {"rem", "nextafter"}


def _scalar_fn(name: str, arity: int | None, takes: str, numpy: Numpy) -> ScalarFn:
    transcendental = name in _TRANSCENDENTAL
    return ScalarFn(
        name, arity, takes, name in _PREDICATES, numpy,
        flops=int(not transcendental), transcendental=transcendental,
        commutative=name in _COMMUTE, partial=name in _PARTIAL, poles=name in _POLES, kept=name in _KEPT,
        closed=name in _CLOSED, steps=name in _STEPS, like=_LIKE.get(name, ""), parity=(name in _EVEN) - (name in _ODD),
    )  # fmt: skip


SCALARS: dict[str, ScalarFn] = {
    **{name: _scalar_fn(name, arity, "f", numpy) for name, (arity, numpy) in _TRANSCENDENTAL.items()},
    **{name: _scalar_fn(name, *entry) for name, entry in (_ARITHMETIC | _PREDICATES).items()},
}
ANGLES = ("sin", "cos")
"""Functions of an angle: the sine, then the cosine."""
COMMUTATIVE = frozenset(name for name, f in SCALARS.items() if f.commutative)
PREDICATES = frozenset(name for name, f in SCALARS.items() if f.predicate)
COMPARISONS = frozenset(name for name in PREDICATES if SCALARS[name].arity == 2)
LOGICAL = frozenset({"and", "or", "xor", "not"})
UNROUNDED = PREDICATES | {name for name, f in SCALARS.items() if f.closed and name != "nextafter"}
"""Functions that round the same in a wider type."""
