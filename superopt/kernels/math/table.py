"""Code on vectors for the scalar functions of `superopt.ir.scalar`: one entry point, `apply`, total over the table.

Transcendental functions of float32 and float64 are polynomials on vectors (`exp`, `pow`, `arc`, `trig`, `gamma`).
float64's `lgamma`, and circular functions of huge arguments, go to the C library lane by lane (`lanes.per_lane`).
Arithmetic, predicates and integers are in `ops`.  16-bit floats are float32 in registers; `ops.convert` rounds them.

`ERROR_ULPS` bounds the error of each function, in units of the last place of the exact result.  The bounds are measured
against extended precision over all binades, with a margin, and the tests repeat the measurement.
`verifier.kernels.scalars` checks every float32: `erf` errs by 5.9 units there, `erfc` and `tanh` by 5.7, where samples
had shown less than 5.

XLA sets the processor's mode to flush denormals to zero, for its own code and for kernels called from it alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from superopt.errors import InputError, UnsupportedKernel
from superopt.ir.scalar import HALVES, SCALARS
from superopt.kernels.llvm.module import Function, Module
from superopt.kernels.math import arc as vecmath_arc
from superopt.kernels.math import exp as vecmath_exp
from superopt.kernels.math import gamma as vecmath_gamma
from superopt.kernels.math import ops as vecmath_ops
from superopt.kernels.math import pow as vecmath_pow
from superopt.kernels.math import trig as vecmath_trig
from superopt.kernels.math.lanes import Lanes

_VECTOR: dict[str, Callable[[Lanes, str], str]] = {
    "exp": vecmath_exp.exp, "exp2": vecmath_exp.exp2, "expm1": vecmath_exp.expm1, "log": vecmath_exp.log,
    "log1p": vecmath_exp.log1p, "tanh": vecmath_exp.tanh, "logistic": vecmath_exp.logistic, "erf": vecmath_exp.erf,
    "erfc": vecmath_exp.erfc, "cbrt": vecmath_exp.cbrt, "sin": vecmath_trig.sin, "cos": vecmath_trig.cos,
    "tan": vecmath_trig.tan, "sinh": vecmath_arc.sinh, "cosh": vecmath_arc.cosh, "asinh": vecmath_arc.asinh,
    "acosh": vecmath_arc.acosh, "atanh": vecmath_arc.atanh, "atan": vecmath_arc.atan, "asin": vecmath_arc.asin,
    "acos": vecmath_arc.acos, "erf_inv": vecmath_gamma.erf_inv, "lgamma": vecmath_gamma.lgamma,
    "digamma": vecmath_gamma.digamma,
}  # fmt: skip

# (float32, float64)
ERROR_ULPS: dict[str, tuple[float, float]] = {
    "exp": (1.2, 1.2), "exp2": (1.2, 1.2), "expm1": (2.0, 2.0), "log": (1.0, 1.0), "log1p": (2.0, 2.0),
    "tanh": (6.0, 3.0), "logistic": (2.5, 2.7), "erf": (6.0, 1.6), "sin": (1.6, 1.6), "cos": (1.6, 1.6),
    "tan": (3.2, 3.2), "cbrt": (0.6, 1.0), "pow": (0.6, 1.2), "sqrt": (0.5, 0.5), "rsqrt": (1.5, 1.5),
    "erf_inv": (4.5, 5.0), "erfc": (6.0, 7.0),
    "sinh": (3.0, 3.0), "cosh": (2.5, 2.5), "asinh": (4.0, 4.0), "acosh": (4.0, 4.0), "atanh": (4.0, 4.0),
    "atan": (3.0, 3.0), "asin": (3.0, 3.0), "acos": (3.0, 3.0), "atan2": (3.5, 3.5),
}  # fmt: skip


def apply(f: Function, fn: str, dtype: str, args: tuple[str, ...], lanes: int, which: str = "bool") -> str:
    """Write a scalar function of the table on values of so many lanes (0: scalars).

    Args:
        f: the function written into.
        fn: name in `SCALARS`.
        dtype: dtype of the operands (of the cases, for `select_n`); bool operands and results are `i1`.
        args: values; 16-bit floats as float32.
        lanes: lanes of all values.
        which: dtype of the first operand of `select_n`.

    Raises:
        InputError: there is no such function of this dtype.
        UnsupportedKernel: there is no code for it.
    """
    if fn not in SCALARS:
        raise InputError(f"no scalar function {fn!r}")
    m = Lanes(f, "float32" if dtype in HALVES else dtype, lanes)
    if not SCALARS[fn].transcendental:
        stored = dtype if dtype in HALVES else ""
        return vecmath_ops.arithmetic(m, fn, args, which, stored)
    if m.dtype not in ("float32", "float64"):
        raise InputError(f"{fn} of {dtype} is not defined")
    if fn in _VECTOR:
        return _VECTOR[fn](m, args[0])
    if fn == "sqrt":
        return m.call("sqrt", args[0])
    if fn == "rsqrt":
        return m.quotient(m.const(1.0), m.call("sqrt", args[0]))
    if fn == "atan2":
        return vecmath_arc.atan2(m, *args)
    if fn == "pow":
        return vecmath_pow.power(m, *args)
    raise UnsupportedKernel(f"no code for {fn}")


@functools.cache
def has_code(fn: str) -> bool:
    """Whether a kernel can compute this function of the table."""
    spec = SCALARS[fn]
    kind = "float32" if spec.accepts("float32") else "int32"
    try:
        apply(Module().function("probe", []), fn, kind, ("%x",) * (spec.arity or 3), 0)
    except InputError:
        return False
    return True
