"""Scalar functions on vectors against the table's NumPy functions, and their stated error bounds."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.scalar import DTYPE, SCALARS, apply, convert
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import host, restricted, supported
from superopt.kernels.llvm.module import Module
from superopt.kernels.llvm.types import type_of
from superopt.kernels.math import ops as vecmath_ops
from superopt.kernels.math import table as vecmath

pytestmark = pytest.mark.skipif(not supported(), reason="no code is generated for this processor")

FLOATS = ("float32", "float64")
WIDTHS = (512, 256, 0) if host().avx512 else (256, 0)  # 0: scalar code
Wide = np.longdouble


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


def built(folder: Path, table: dict[str, tuple[str, tuple[str, ...], str]], width: int) -> jit.Library:
    """Functions `(x, y, z, n)` over arrays, by name: scalar function, dtypes of operands, dtype of the result."""
    module = Module(restricted(host(), width or 256))
    for name, (fn, operands, result) in table.items():
        lanes = module.cpu.lanes(operands[-1]) if width else 0
        f = module.function(f"k.{name}", [("ptr", "x"), ("ptr", "y"), ("ptr", "z"), ("i64", "n")], internal=False)

        def body(i, _, f=f, fn=fn, operands=operands, result=result, lanes=lanes):
            args = []
            for pointer, dtype in zip(("%x", "%y", "%y"), operands, strict=False):
                place = f.element(pointer, i, type_of(dtype, stored=True))
                x = f.load(type_of(dtype, lanes, stored=True), place)
                args.append(vecmath_ops.from_memory(f, x, dtype, lanes))
            if fn == "convert":
                value = vecmath_ops.convert(f, args[0], operands[0], result, lanes)
            else:
                value = vecmath.apply(f, fn, operands[-1], tuple(args), lanes, which=operands[0])
            value = vecmath_ops.to_memory(f, value, result, lanes)
            f.store(type_of(result, lanes, stored=True), value, f.element("%z", i, type_of(result, stored=True)))

        f.for_(0, "%n", max(lanes, 1), body)
        f.ret()
    return jit.load(jit.compile(module.text(), "none", folder))


def call(library: jit.Library, name: str, result: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    assert x.size % 64 == 0
    z, y = np.zeros(x.size, DTYPE[result]), x if y is None else y
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(library.address(f"k.{name}"))
    entry(x.ctypes.data, y.ctypes.data, z.ctypes.data, x.size)
    return z


# ---- error bounds


def erf(x: np.ndarray) -> np.ndarray:
    """In extended precision."""
    return errors(x)[0]


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf."""
    return errors(x)[1]


def errors(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """erf and its complement in extended precision: the series below 1, a continued fraction above."""
    x = x.astype(Wide)
    a = np.minimum(np.abs(x), Wide(28))
    slope = Wide(2) / np.sqrt(Wide(np.pi) + Wide(1.2246467991473532e-16))
    near, term = np.zeros_like(a), np.minimum(a, 1)
    for n in range(40):
        near, term = near + term / (2 * n + 1), -term * np.minimum(a, 1) ** 2 / (n + 1)
    below = np.zeros_like(a)
    for k in range(300, 0, -1):
        below = (Wide(k) / 2) / (np.maximum(a, 1) + below)
    far = np.exp(-a * a) * slope / 2 / (np.maximum(a, 1) + below)
    value = np.where(np.isnan(x), x, np.copysign(np.where(a < 1, near * slope, 1 - far), x))
    return value, np.where((x < 1) | np.isnan(x), 1 - value, far)


REFERENCE = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "cbrt": np.cbrt, "sqrt": np.sqrt, "erf": erf,
    "erfc": erfc,    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))),
}  # fmt: skip


@functools.cache
def samples(dtype: str) -> np.ndarray:
    """All binades, the ranges in which functions bend, neighbourhoods of their zeros, and special values."""
    random, kind = np.random.default_rng(7), np.dtype(dtype)
    word = np.uint32 if dtype == "float32" else np.uint64
    n = 8000
    bits = random.integers(0, np.iinfo(word).max, n, dtype=word, endpoint=True).view(kind)
    parts = [
        bits[np.isfinite(bits)], *[random.uniform(-r, r, n) for r in (1, 6, 30, 110, 800)],
        1 + random.normal(size=n) * 1e-4, np.arange(1, 2000) * np.pi / 2, 10.0 ** random.uniform(-40, -1, n),
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, np.finfo(kind).max, np.finfo(kind).tiny]),
        np.array([np.finfo(kind).smallest_subnormal, -np.finfo(kind).smallest_subnormal, np.finfo(kind).tiny / 8]),
    ]  # fmt: skip
    x = np.concatenate([p.astype(kind) for p in parts])
    return np.concatenate([x, np.zeros(-x.size % 64, kind)])


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the exact value; infinite where one is NaN and the other is not."""
    kind = found.dtype
    rounded = exact.astype(kind)
    unit = np.maximum(np.abs(np.spacing(rounded)).astype(Wide), Wide(np.finfo(kind).smallest_subnormal))
    largest = np.isinf(rounded) & np.isfinite(exact) & (np.abs(found) == np.finfo(kind).max)
    error = np.where(largest, 0.5, np.abs(found - exact) / unit)
    error[(rounded == found) | (np.isnan(rounded) & np.isnan(found))] = 0
    return np.where(np.isnan(error), np.inf, error)


@functools.cache
def exact(fn: str, dtype: str) -> np.ndarray:
    """The function of the samples in extended precision."""
    with np.errstate(all="ignore"):
        x = samples(dtype)
        return REFERENCE[fn](x.astype(Wide if dtype == "float64" else np.float64)).astype(Wide)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
def test_errors_are_within_the_stated_bounds(folder: Path, dtype: str, width: int) -> None:
    library = built(folder, {fn: (fn, (dtype,), dtype) for fn in REFERENCE}, width)
    x = samples(dtype)
    with np.errstate(all="ignore"):
        for fn in REFERENCE:
            error = ulps(call(library, fn, dtype, x), exact(fn, dtype))
            worst = int(np.argmax(error))
            bound = vecmath.ERROR_ULPS[fn][FLOATS.index(dtype)]
            assert error[worst] <= bound, (fn, x[worst], exact(fn, dtype)[worst], error[worst])
            assert error[worst] > 0.3 * bound - 0.2, (fn, "the bound is loose", error[worst])


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_is_within_its_bound(folder: Path, dtype: str) -> None:
    library = built(folder, {"pow": ("pow", (dtype, dtype), dtype)}, WIDTHS[0])
    random = np.random.default_rng(3)
    x = [10.0 ** random.uniform(-5, 5, 6400), random.uniform(0.9, 1.1, 6400), 1 + random.normal(size=6400) * 1e-4]
    y = [random.normal(size=6400) * scale for scale in (5, 300, 1e6)]
    x, y = np.concatenate(x).astype(dtype), np.concatenate(y).astype(dtype)
    x[::5], y[::5] = -x[::5], np.round(y[::5])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(Wide), y.astype(Wide))
        assert ulps(call(library, "pow", dtype, x, y), exact).max() <= vecmath.ERROR_ULPS["pow"][FLOATS.index(dtype)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_atan2(folder: Path, dtype: str) -> None:
    library = built(folder, {"atan2": ("atan2", (dtype, dtype), dtype)}, WIDTHS[0])
    values = np.array([0.0, -0.0, 1, -1, 1e-30, -1e-30, 3, 1e30, -1e30, np.inf, -np.inf, np.nan, 2, -2, 5, 0.5], dtype)
    y, x = [a.ravel() for a in np.meshgrid(values, values)]
    found, want = call(library, "atan2", dtype, y, x), np.arctan2(y, x)
    np.testing.assert_array_max_ulp(np.nan_to_num(found), np.nan_to_num(want), 2)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])
    random = np.random.default_rng(2)
    y, x = [(random.normal(size=12800) * 10.0 ** random.uniform(-3, 3, 12800)).astype(dtype) for _ in range(2)]
    error = ulps(call(library, "atan2", dtype, y, x), np.arctan2(y.astype(Wide), x.astype(Wide)))
    assert error.max() <= vecmath.ERROR_ULPS["atan2"][FLOATS.index(dtype)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_pow_of_special_values(folder: Path, dtype: str) -> None:
    library = built(folder, {"pow": ("pow", (dtype, dtype), dtype)}, WIDTHS[0])
    values = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, -2.5, np.inf, -np.inf, np.nan, 8], dtype)
    x, y = [a.ravel() for a in np.meshgrid(values, values)]
    with np.errstate(all="ignore"):
        want, found = np.power(x, y), call(library, "pow", dtype, x, y)
    np.testing.assert_array_max_ulp(np.nan_to_num(found), np.nan_to_num(want), 1)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


LIMITS = {
    "exp": (1, 1, np.inf, 0), "exp2": (1, 1, np.inf, 0), "expm1": (0.0, -0.0, np.inf, -1),
    "log": (-np.inf, -np.inf, np.inf, np.nan), "log1p": (0.0, -0.0, np.inf, np.nan), "tanh": (0.0, -0.0, 1, -1),
    "logistic": (0.5, 0.5, 1, 0), "erf": (0.0, -0.0, 1, -1), "sin": (0.0, -0.0, np.nan, np.nan),
    "cos": (1, 1, np.nan, np.nan), "tan": (0.0, -0.0, np.nan, np.nan), "cbrt": (0.0, -0.0, np.inf, -np.inf),
    "sqrt": (0.0, -0.0, np.inf, np.nan), "rsqrt": (np.inf, -np.inf, 0.0, np.nan),
    "sinh": (0.0, -0.0, np.inf, -np.inf), "cosh": (1, 1, np.inf, np.inf), "asinh": (0.0, -0.0, np.inf, -np.inf),
    "acosh": (np.nan, np.nan, np.inf, np.nan), "atanh": (0.0, -0.0, np.nan, np.nan),
    "atan": (0.0, -0.0, np.pi / 2, -np.pi / 2), "asin": (0.0, -0.0, np.nan, np.nan),
    "acos": (np.pi / 2, np.pi / 2, np.nan, np.nan), "lgamma": (np.inf, np.inf, np.inf, np.inf),
    "erf_inv": (0.0, -0.0, np.nan, np.nan), "erfc": (1, 1, 0.0, 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", WIDTHS)
def test_limits_are_exact(folder: Path, dtype: str, width: int) -> None:
    library = built(folder, {fn: (fn, (dtype,), dtype) for fn in LIMITS}, width)
    x = np.resize(np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype), 320)
    for fn, limits in LIMITS.items():
        found, want = call(library, fn, dtype, x)[:5], np.array([*limits, np.nan], dtype)
        np.testing.assert_array_equal(found, want, fn)
        np.testing.assert_array_equal(np.signbit(found[:4][~np.isnan(want[:4])]), np.signbit(want[~np.isnan(want)]), fn)


@pytest.mark.parametrize("dtype", FLOATS)
def test_vectors_and_scalars_agree_bit_for_bit(folder: Path, dtype: str) -> None:
    table = {fn: (fn, (dtype,), dtype) for fn in LIMITS}
    x = samples(dtype)
    widths = [built(folder, table, width) for width in WIDTHS]
    for fn in LIMITS:
        first, *others = [call(library, fn, dtype, x) for library in widths]
        for other in others:
            np.testing.assert_array_equal(other.view(f"i{x.itemsize}"), first.view(f"i{x.itemsize}"), fn)


def test_bounded_functions_stay_in_their_range(folder: Path) -> None:
    library = built(folder, {fn: (fn, ("float32",), "float32") for fn in ("tanh", "erf", "sin", "cos")}, WIDTHS[0])
    x = np.linspace(-10, 10, 64000, dtype=np.float32)
    for fn in ("tanh", "erf", "sin", "cos"):
        assert np.abs(call(library, fn, "float32", x)).max() <= 1


# ---- the whole table


def of_table(fn: str) -> list[str]:
    """Dtypes on which the table's NumPy function is defined."""
    arity = 3 if fn == "select_n" else SCALARS[fn].arity or 1
    found = []
    for dtype in DTYPE:
        if (SCALARS[fn].transcendental and dtype not in FLOATS) or (fn == "nextafter" and "float" not in dtype):
            continue
        if (dtype == "bool" and fn not in _OF_BOOL) or ("float" in dtype and fn in _OF_BITS):
            continue
        ones = tuple(np.ones(2, DTYPE[dtype]) for _ in range(arity))
        try:
            value = apply(fn, dtype, (ones[0] > 0, *ones[1:]) if fn == "select_n" else ones)
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
        if value.dtype == DTYPE[SCALARS[fn].dtype(dtype)]:
            found.append(dtype)
    return found


def values(dtype: str, rank: int) -> np.ndarray:
    """Pairs of interesting values: rank 0 varies slowly, rank 1 fast."""
    kind = DTYPE[dtype]
    if dtype == "bool":
        base = np.array([False, True])
    elif kind.kind in "iu":
        info = np.iinfo(kind)
        base = np.unique(np.array([0, 1, 2, 3, 5, 7, 8, 31, info.max, info.max - 1, info.min, info.min // 2], kind))
        base = np.concatenate([base, np.array([-1, -2, -7], kind)]) if info.min else base
    else:
        base = np.array([0.0, -0.0, 0.5, -0.5, 1, -1, 1.5, 2.5, -2.5, 7, 1e-3, 3.1, -3.1, 250, np.inf, -np.inf, np.nan])
    n = 64 * 5
    index = np.arange(n) // base.size if rank == 0 else np.arange(n)
    return base[index % base.size].astype(kind)


def same(found: np.ndarray, want: np.ndarray, name: str) -> None:
    assert found.dtype == want.dtype
    if want.dtype.itemsize == 2 and want.dtype.kind not in "iu":  # 16-bit floats: NaN is not equal there
        found, want = found.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(found, want, name)


_OF_BOOL = {"and", "or", "xor", "not", "add", "mul", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "select_n"}
_OF_BITS = {"population_count", "clz", "shift_left", "shift_right_logical", "shift_right_arithmetic"}
EXACT = [fn for fn in SCALARS if not SCALARS[fn].transcendental]


@pytest.mark.parametrize("width", WIDTHS)
def test_arithmetic_of_every_dtype_is_that_of_the_table(folder: Path, width: int) -> None:
    table = {}
    for fn in EXACT:
        for dtype in of_table(fn):
            arity = 3 if fn == "select_n" else SCALARS[fn].arity or 1
            operands = ("bool", *[dtype] * (arity - 1)) if fn == "select_n" else (dtype,) * arity
            table[f"{fn}.{dtype}"] = (fn, operands, SCALARS[fn].dtype(dtype))
    assert len(table) > 250
    library = built(folder, table, width)
    for name, (fn, operands, result) in table.items():
        x, y = values(operands[0], 0), values(operands[-1], 1)
        args = (x, y, y)[: len(operands)]
        with np.errstate(all="ignore"):
            want = apply(fn, operands[-1], args)
        found = call(library, name, result, x, y)
        if fn in ("max", "min", "sign"):  # which zero is not said
            found, want = found + found.dtype.type(0), want + want.dtype.type(0)
        same(found, want, name)


@pytest.mark.parametrize("width", WIDTHS)
def test_selection_by_integers(folder: Path, width: int) -> None:
    library = built(folder, {"f": ("select_n", ("int32", "int32", "int32"), "int32")}, width)
    which, case = np.resize(np.array([0, 1, 0, 1, 1], np.int32), 320), np.arange(320, dtype=np.int32)
    np.testing.assert_array_equal(call(library, "f", "int32", which, case), case)


@pytest.mark.parametrize("width", WIDTHS)
def test_conversions_are_those_of_the_table(folder: Path, width: int) -> None:
    table = {f"{s}.{t}": ("convert", (s,), t) for s in DTYPE for t in DTYPE}
    library = built(folder, table, width)
    for name, (_, (source,), target) in table.items():
        x = values(source, 1)
        if source in FLOATS:
            x = np.concatenate(
                [x, (np.random.default_rng(1).normal(size=640) * 10.0 ** np.arange(640).clip(0, 12)).astype(source)]
            )
        with np.errstate(all="ignore"):
            want = convert(x, source, target)
        same(call(library, name, target, x), want, name)


def test_functions_without_code_are_known() -> None:
    """What the partition leaves to XLA; a function that loses its code by accident is not among them."""
    assert {fn for fn in SCALARS if not vecmath.has_code(fn)} == {"bessel_i0e", "bessel_i1e"}


def test_functions_of_the_table_with_code(folder: Path) -> None:
    table = {}
    for fn, spec in SCALARS.items():
        if spec.transcendental and vecmath.has_code(fn):
            for dtype in FLOATS:
                table[f"{fn}.{dtype}"] = (fn, (dtype,) * (spec.arity or 1), dtype)
    library = built(folder, table, WIDTHS[0])
    x = np.resize(np.array([0.3, 0.9, 0.05, 0.61], np.float64), 64)
    for name, (fn, operands, dtype) in table.items():
        argument = (x + 1 if fn == "acosh" else x).astype(dtype)
        want = apply(fn, dtype, (argument,) * len(operands), wide=True)
        found = call(library, name, dtype, argument)
        np.testing.assert_allclose(found, want, 6e-7 if dtype == "float32" else 1e-14, err_msg=name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_composed_functions(folder: Path, dtype: str) -> None:
    library = built(folder, {fn: (fn, (dtype,), dtype) for fn in ("erf_inv", "digamma", "lgamma")}, WIDTHS[0])
    random = np.random.default_rng(5)
    x = random.uniform(-1, 1, 6400).astype(dtype)
    error = ulps(call(library, "erf_inv", dtype, x), apply("erf_inv", dtype, (x.astype(np.float64),)).astype(Wide))
    assert error.max() <= vecmath.ERROR_ULPS["erf_inv"][FLOATS.index(dtype)]
    y = np.concatenate([random.uniform(-1, 60, 6396), [1e-30, -1e-30, 1e6, 0.5]]).astype(dtype)
    want = apply("digamma", dtype, (y.astype(np.float64),))
    tolerance = 3e-7 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(call(library, "digamma", dtype, y), want, tolerance, 20 * tolerance)
    poles = np.resize(np.array([0.0, -1.0, -7.0, np.nan], dtype), 64)
    assert np.isnan(call(library, "digamma", dtype, poles)).all()


def test_what_is_not_defined_is_refused() -> None:
    f = Module().function("f", [])
    for fn, dtype in (("nothing", "float32"), ("exp", "int32"), ("not", "float32"), ("sign", "bool")):
        with pytest.raises(InputError):
            vecmath.apply(f, fn, dtype, ("%x",), 4)


def test_no_512_bit_registers_on_a_narrow_processor(folder: Path) -> None:
    module = Module(restricted(host(), 256))
    for fn in LIMITS:
        f = module.function(f"f.{fn}", [("ptr", "x")], internal=False)
        f.store("<8 x float>", vecmath.apply(f, fn, "float32", (f.load("<8 x float>", "%x"),), 8), "%x")
        f.ret()
    listing = jit.assembly(module.text())
    assert "%ymm" in listing
    assert "%zmm" not in listing
    assert "{%k" not in listing
