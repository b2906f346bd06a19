"""False statements that look true to a prover that forgets something, and true ones that must not be lost to the gate.

Each false pair is one kind of what may be forgotten: contents of constants, roundings, branches on sizes, machine
integers, numbers that are none.  None may be PROVED, whatever the refuter finds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import superopt
from superopt.certify.rule_files import verify_files
from tests.support.sampling import sampled
from verifier.equal.algebra import ANY_ZERO, FINITE_TEST, MIXED
from verifier.statements.statement import check_statement, make_statement, proved_alone
from verifier.statements.watch import Contradiction
from verifier.verdict import PROVED, REFUTED, UNKNOWN

bf16, f16, f32, i8, i32, u8 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32, jnp.uint8
TABLE = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
OTHER = np.where(np.arange(2048) < 1024, TABLE, TABLE + 1).astype(np.float32)


def rounded(x: jax.Array, kind: Any = bf16) -> jax.Array:
    return x.astype(kind).astype(x.dtype)


def constant(value: int, kind: Any = i32) -> jax.Array:
    return lax.full((), value, kind)


def late(n: int, value: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(n) > 1000, value, 0)


def as_number(size: Any) -> int:
    try:
        return int(size)
    except Exception:
        return -1


FALSE: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
    # constants are their contents
    "tables-equal-at-first": (lambda x: x + jnp.asarray(TABLE)[: x.shape[0]],
        lambda x: x + jnp.asarray(OTHER)[: x.shape[0]], ("n",), ("n <= 2048",)),
    "tables-of-another-order": (lambda x: x + jnp.asarray(TABLE), lambda x: x + jnp.asarray(TABLE[::-1].copy()),
        ("2048",), ()),
    "two-tables-swapped": (lambda x: x * jnp.asarray(TABLE) + jnp.asarray(OTHER),
        lambda x: x * jnp.asarray(OTHER) + jnp.asarray(TABLE), ("2048",), ()),
    # integers and positions in floats
    "integer-in-bf16": (lambda x: x * constant(257).astype(bf16).astype(f32), lambda x: x * 257.0, ("n",), ()),
    "integers-in-bf16": (lambda x: x * jnp.full(x.shape, 257, i32).astype(bf16).astype(f32), lambda x: x * 257.0,
        ("n",), ()),
    "integer-in-f32": (lambda x: x + constant(16777217).astype(f32).astype(i32), lambda x: x + 16777217,
        ("int32[n]",), ()),
    "integer-in-f16": (lambda x: x * constant(2049).astype(f16).astype(f32), lambda x: x * 2049.0, ("n",), ()),
    "positions-in-bf16": (lambda x: x + jnp.arange(1000).astype(bf16).astype(i32), lambda x: x + jnp.arange(1000),
        ("int32[1000]",), ()),
    "positions-as-bf16": (lambda x: x + jnp.arange(1000, dtype=bf16).astype(i32), lambda x: x + jnp.arange(1000),
        ("int32[1000]",), ()),
    "all-positions-in-f16": (lambda x: x + jnp.arange(x.shape[0]).astype(f16).astype(i32),
        lambda x: x + jnp.arange(x.shape[0]), ("int32[n]",), ()),
    "all-positions-in-f32": (lambda x: x + jnp.arange(x.shape[0]).astype(f32).astype(i32),
        lambda x: x + jnp.arange(x.shape[0]), ("int32[n]",), ()),
    "positions-compared-in-f32": (lambda x: jnp.where(jnp.arange(x.shape[0]).astype(f32) < 16777217.0, x, 0),
        lambda x: jnp.where(jnp.arange(x.shape[0]) < 16777217, x, 0), ("n",), ()),
    "positions-in-int8": (lambda x: x + jnp.arange(x.shape[0]).astype(i8).astype(i32),
        lambda x: x + jnp.arange(x.shape[0]), ("int32[n]",), ()),
    "entries-in-f32": (lambda x: x.astype(f32).astype(i32), lambda x: x, ("int32[n]",), ()),
    "entries-in-int8": (lambda x: x.astype(i8).astype(i32), lambda x: x, ("int32[n]",), ()),
    "floats-in-integers": (lambda x: x.astype(i32).astype(f32), lambda x: x, ("n",), ()),
    "sign-of-unsigned": (lambda x: x.astype(u8).astype(i32), lambda x: x, ("int32[n]",), ()),
    # branches on sizes
    "at-one-size": (lambda x: x * 2 if x.shape[0] == 300 else x, lambda x: x, ("n",), ()),
    "at-one-size-otherwise": (lambda x: x if x.shape[0] != 300 else x * 2, lambda x: x, ("n",), ()),
    "at-multiples": (lambda x: x * 2 if x.shape[0] % 128 == 0 else x, lambda x: x, ("n",), ("n >= 1",)),
    "at-multiples-by-truth": (lambda x: x if x.shape[0] % 128 else x * 2, lambda x: x, ("n",), ("n >= 1",)),
    "at-a-difference": (lambda x: x if x.shape[0] - 300 else x * 2, lambda x: x, ("n",), ()),
    "among-few-sizes": (lambda x: x * 2 if x.shape[0] == 300 else x, lambda x: x, ("n",), ("n >= 299", "n <= 301")),
    "at-a-member": (lambda x: x * 2 if x.shape[0] in (300, 400) else x, lambda x: x, ("n",), ()),
    "at-a-key": (lambda x: x * {300: 2.0}.get(x.shape[0], 1.0), lambda x: x, ("n",), ()),
    "at-a-shape": (lambda x: x * 2 if x.shape == (300, 7) else x, lambda x: x, ("m n",), ()),
    "at-a-float": (lambda x: x * 2 if x.shape[0] == 300.0 else x, lambda x: x, ("n",), ()),
    "at-a-text": (lambda x: x * 2 if str(x.shape[0]) == "300" else x, lambda x: x, ("n",), ()),
    "at-equal-sizes": (lambda x: x * 2 if x.shape[0] == x.shape[1] + 200 else x, lambda x: x, ("m n",), ()),
    "at-a-type": (lambda x: x * 2 if jax.typeof(x) == jax.core.ShapedArray((70000,), f32) else x, lambda x: x,
        ("n",), ()),
    "at-a-described-type": (
        lambda x: x * 2 if jax.eval_shape(jnp.sin, x) == jax.ShapeDtypeStruct((70000,), f32) else x, lambda x: x,
        ("n",), ()),
    "at-two-types": (lambda x, y: x * 2 if jax.typeof(x) == jax.typeof(y[70000:]) else x, lambda x, y: x,
        ("m", "n"), ()),
    "at-equal-arrays": (lambda x: jnp.where(jnp.array_equal(x, jnp.zeros(70000)), x + 1, x), lambda x: x, ("n",), ()),
    "at-a-shape-in-numpy": (lambda x: x * 2 if np.array_equal(x.shape, (70000,)) else x, lambda x: x, ("n",), ()),
    "at-a-number-that-may-be-none": (lambda x: x * 2 if as_number(x.shape[0]) == 70000 else x, lambda x: x, ("n",), ()),
    "inside-of-a-compiled-function": (jax.jit(lambda x: x * 2 if x.shape[0] == 300 else x), lambda x: x, ("n",), ()),
    # machine integers
    "square-is-true": (lambda a: a * a >= 0, lambda a: jnp.ones(a.shape, bool), ("int32[n]",), ()),
    "late-overflow": (lambda a: late(a.shape[0], jnp.maximum(a * a * a * a, 0)),
        lambda a: late(a.shape[0], a * a * a * a), ("int32[n]",), ()),
    "late-increase": (lambda a: late(a.shape[0], jnp.where(a + 1 > a, 1, 0)), lambda a: late(a.shape[0], 1),
        ("int32[n]",), ()),
    "late-quotient": (lambda a: late(a.shape[0], (a * 2) // 2), lambda a: late(a.shape[0], a), ("int32[n]",), ()),
    "index-that-wraps": (lambda x, i: jnp.take(x, (i + i8(1)).astype(i32), mode="clip"),
        lambda x, i: jnp.take(x, i.astype(i32) + 1, mode="clip"), ("n", "int8[m]"), ()),
    "wide-index-that-wraps": (lambda x, i: jnp.take(x, i + 1 - 1, mode="clip"),
        lambda x, i: jnp.take(x, jnp.maximum(i + 1, i) - 1, mode="clip"), ("n", "int32[m]"), ()),
    "positions-that-wrap": (lambda x: jnp.where(jnp.arange(x.shape[0]) * 1000000 >= 0, x, 0), lambda x: x, ("n",), ()),
    # numbers that are none
    "not-a-number": (lambda x: jnp.where(jnp.isnan(x), 0, x), lambda x: x, ("n",), ()),
    "not-finite": (lambda x: jnp.where(jnp.isfinite(x), x, 0), lambda x: x, ("n",), ()),
    "not-infinite": (lambda x: jnp.where(jnp.isinf(x), 0, x), lambda x: x, ("n",), ()),
    "not-itself": (lambda x: jnp.where(x == x, x, 0), lambda x: x, ("n",), ()),
    "cleaned": (jnp.nan_to_num, lambda x: x, ("n",), ()),
    # a plain value of what has none
    "finite-quotient": (lambda x: jnp.isfinite(x / x), lambda x: jnp.isfinite(x**0), ("n",), ()),
    "a-quotient-is-a-number": (lambda x: x / x == x / x, lambda x: x == x, ("n",), ()),
    "a-logarithm-is-a-number": (lambda x: jnp.where(jnp.isnan(jnp.log(x)), 0, 1), lambda x: 1 + 0 * x.astype(i32),
        ("n",), ()),
    "negation-beside-a-remainder": (lambda x, y: ~(x < jnp.abs(y % y)), lambda x, y: x >= jnp.abs(y % y),
        ("n", "n"), ()),
    "either-beside-a-root": (lambda x, y: (x < lax.rsqrt(y)) | (x >= lax.rsqrt(y)), lambda x, y: jnp.abs(x) >= 0,
        ("n", "n"), ()),
    "cancelled-before-a-comparison": (lambda x, y: x * y / y > 0, lambda x, y: x > 0, ("n", "n"), ()),
    "cancelled-before-a-test": (lambda x, y: jnp.isnan(x * y / y), lambda x, y: jnp.isnan(x), ("n", "n"), ()),
    "cancelled-before-a-conversion": (lambda x, y: (x * y / y).astype(i32), lambda x, y: x.astype(i32),
        ("n", "n"), ()),
    "cancelled-before-a-truth": (lambda x, y: (x * y / y).astype(bool), lambda x, y: x.astype(bool), ("n", "n"), ()),
    "cancelled-before-the-greatest": (lambda x, y: jnp.argmax(x * y / y, 0), lambda x, y: jnp.argmax(x, 0),
        ("n", "n"), ("n >= 1",)),
    "masked-before-a-comparison": (lambda p, x, y: jnp.log(x) + jnp.where(p, 0.0, -jnp.inf) < y,
        lambda p, x, y: jnp.where(p, jnp.log(x), -jnp.inf) < y, ("bool[n]", "n", "n"), ()),
    # steps of what was rounded
    "exponents-as-integers": (lambda x, y: (jnp.exp(-y) * jnp.exp(x)).astype("uint32"),
        lambda x, y: jnp.exp(x - y).astype("uint32"), ("bfloat16[n]", "bfloat16[n]"), ()),
    "exponents-compared": (lambda x, y: jnp.exp(x) * jnp.exp(y) < 1, lambda x, y: jnp.exp(x + y) < 1, ("n", "n"), ()),
    "sign-of-exponents": (lambda x: jnp.sign(jnp.exp(x) * jnp.exp(-x) - 1), lambda x: 0 * x, ("n",), ()),
    "greatest-of-exponents": (lambda x, y: jnp.argmax(jnp.exp(x) * jnp.exp(y), 0),
        lambda x, y: jnp.argmax(jnp.exp(x + y), 0), ("n", "n"), ("n >= 1",)),
    "floor-of-a-square": (lambda x: jnp.floor(jnp.sqrt(x) ** 2), jnp.floor, ("n",), ()),
    "ceiling-of-a-quotient": (lambda x, y: jnp.ceil(x / y), lambda x, y: jnp.ceil(x * (1 / y)), ("n", "n"), ()),
    "rounded-sum": (lambda x, y: jnp.round(x + y - y), lambda x, y: jnp.round(x), ("n", "n"), ()),
    "remainder-of-a-quotient": (lambda x, y: lax.rem(x / y, x), lambda x, y: lax.rem(x * (1 / y), x), ("n", "n"), ()),
    "floor-between-bounds": (lambda x, y: jnp.maximum(jnp.floor(x + y - y), y),
        lambda x, y: jnp.maximum(y, jnp.floor(x)), ("n", "n"), ()),
    "angle-of-a-zero": (lambda x, y: jnp.arctan2(x * y + 0, -1 - y * y), lambda x, y: jnp.arctan2(x * y, -1 - y * y),
        ("n", "n"), ()),
    # explicit roundings
    "rounding-error": (lambda x: x - rounded(x), lambda x: 0 * x, ("n",), ()),
    "rounded-on-the-way": (rounded, lambda x: x, ("n",), ()),
    "rounded-comparison": (lambda a, b: a < b, lambda a, b: a.astype(bf16) < b.astype(bf16), ("n", "n"), ()),
    "rounded-product": (lambda a, b: (a.astype(bf16) @ b.astype(bf16)).astype(f32), lambda a, b: a @ b,
        ("m k", "k n"), ()),
    "three-passes": (lambda a, b: rounded(a) @ rounded(b) + rounded(a - rounded(a)) @ rounded(b)
        + rounded(a) @ rounded(b - rounded(b)), lambda a, b: rounded(a) @ rounded(b), ("m k", "k n"), ()),
    "passes-of-an-option": (
        lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32_X3, preferred_element_type=f32),
        lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32, preferred_element_type=f32),
        ("m k", "k n"), ()),
    "reduced-precision": (lambda x: lax.reduce_precision(x, 8, 7), lambda x: x, ("n",), ()),
    "rounded-by-a-narrower-type": (lambda x: x.astype(bf16).astype(f16), lambda x: x.astype(f16), ("n",), ()),
    "integer-in-a-small-float": (lambda x: x.astype(f16).astype(f32), lambda x: x.astype(f32), ("int16[n]",), ()),
    "integer-back-in-a-smaller-type": (lambda x: x.astype(f32).astype(i8), lambda x: x.astype(i8), ("uint8[n]",), ()),
    "sum-back-in-its-type": (lambda x: (x.astype(f32) + 1).astype(bf16).astype(f32), lambda x: x.astype(f32) + 1,
        ("bfloat16[n]",), ()),
    "sign-through-unsigned": (lambda x: x.astype(u8).astype(f32), lambda x: x.astype(f32), ("int8[n]",), ()),
}  # fmt: skip
NUMBERS = ("not-a-number", "not-finite", "not-itself")
"""True of finite numbers: of these it is false that they hold bit for bit, and the proof says so."""


@pytest.mark.parametrize("name", sampled(FALSE, lambda n, name: n % 3 == 0 or name in NUMBERS))
def test_nothing_false_is_proved(name: str) -> None:
    left, right, specs, constraints = FALSE[name]
    statement = make_statement(name, left, right, specs, {}, constraints)
    found = proved_alone(statement)  # what it does not prove, nobody does
    assert not found.proved or name in NUMBERS, str(found)
    if name in NUMBERS:
        assert check_statement(statement).status != PROVED
        assert found.domain.exactness == "real"
        assert FINITE_TEST in found.domain.assumptions


TRUE: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], str]] = {
    "comparison-of-what-has-a-value": (lambda x, y: ~(x < y / (1 + x * x)), lambda x, y: y / (1 + x * x) <= x,
        ("n", "n"), "real"),
    "comparison-of-a-norm": (lambda x: ~(x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) < 0),
        lambda x: x * lax.rsqrt(1e-6 + jnp.mean(x * x, -1, keepdims=True)) >= 0, ("m n",), "real"),
    "comparison-of-a-quotient": (lambda x, y: jnp.where(x / y < y, x + 0, y), lambda x, y: jnp.where(y > x / y, x, y),
        ("n", "n"), "real"),
    "quotient-that-is-a-number": (lambda x, y: jnp.where(jnp.isfinite(x / y), x + 0, 0),
        lambda x, y: jnp.where(jnp.isfinite(x / y), x, 0), ("n", "n"), "real"),
    "step-of-the-same": (lambda x, y: jnp.floor(x * y) + (x + y), lambda x, y: x + (jnp.floor(y * x) + y),
        ("n", "n"), "real"),
    "step-of-a-product": (lambda x, w: jnp.round((x @ w).T * 0.5) + 0, lambda x, w: jnp.round(w.T @ x.T * 0.5),
        ("m k", "k n"), "real"),
    "integers-of-a-product": (lambda x, w: (x @ w).astype(i32).T.astype(f32) + 0,
        lambda x, w: (w.T @ x.T).astype(i32).astype(f32), ("m k", "k n"), "real"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_what_has_a_value_is_compared_as_before(name: str) -> None:
    left, right, specs, exactness = TRUE[name]
    found = proved_alone(make_statement(name, left, right, specs, {}, ("n >= 1",)))
    assert found.proved, str(found)
    assert found.domain.exactness == exactness


# ---- what a proof of them says


def test_integers_without_bounds_prove_no_rule() -> None:
    found = superopt.verify("r: A[*a]\n  maximum(A*A*A*A, 0) == A*A*A*A\n  dtype int\n  mode proof")
    assert found.status == UNKNOWN
    assert "overflows" in found.proved_when


def test_assumptions_are_printed() -> None:
    found = superopt.verify(lambda x, y: x * y / y, lambda x, y: x, "n", "n")
    assert found.status == PROVED
    assert "\n  assuming: the left side is defined: y is not zero" in str(found)
    assert "\n  assuming: inputs and intermediate values are finite" in str(found)


def test_a_size_in_a_float_is_no_bit_for_bit_proof() -> None:
    found = superopt.verify(lambda x: x.mean(0).mean(), lambda x: x.mean(), "m n")
    assert found.status == PROVED
    assert found.domain.exactness == "real"
    assert "a size as a float is rounded as results of floats are" in found.domain.assumptions


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_wider_type_rounds_otherwise(kind: str) -> None:
    def late_results(x: jax.Array, results: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(x.shape[0]) > 70000, results, 0)

    found = superopt.verify(
        lambda x: late_results(x, (x * x).astype(f32)), lambda x: late_results(x, x.astype(f32) * x.astype(f32)),
        f"{kind}[n]",
    )  # fmt: skip
    assert found.status == PROVED
    assert found.domain.exactness == "real"
    assert MIXED in found.domain.assumptions
    larger = superopt.verify(
        lambda x, y: jnp.maximum(x, -y).astype(f32), lambda x, y: jnp.maximum(x.astype(f32), -y.astype(f32)),
        f"{kind}[n]", f"{kind}[n]",
    )  # fmt: skip
    assert larger.status == PROVED
    assert larger.domain.exactness == "exact"


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_one_function_in_two_types_of_floats_is_two(kind: str) -> None:
    def wide(x: jax.Array) -> jax.Array:
        return x.astype(f32)

    specs = (f"{kind}[n]",) * 3
    less = proved_alone(
        make_statement("s", lambda x, y, z: x + y < z, lambda x, y, z: wide(x) + wide(y) < wide(z), specs, {})
    )
    assert less.domain.exactness == "real"
    assert MIXED in less.domain.assumptions
    same = superopt.verify(
        lambda x, y, z: (x * y < z, wide(x) + wide(y)), lambda x, y, z: (y * x < z, wide(y) + wide(x)), *specs
    )
    assert same.domain.exactness == "exact"
    assert MIXED not in same.domain.assumptions


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_rounding_to_a_type_what_it_has_is_nothing(kind: str) -> None:
    for left, right, specs in (
        (lambda x: x.astype(f32).astype(kind), lambda x: x, (f"{kind}[n]",)),
        (lambda x: rounded(rounded(x, kind), kind), lambda x: rounded(x, kind), ("n",)),
        (lambda x, y: jnp.maximum(x.astype(f32), y.astype(f32)).astype(kind), jnp.maximum, (f"{kind}[n]",) * 2),
        (lambda x, y: (x + y).astype(f32).astype(kind), lambda x, y: x + y, (f"{kind}[n]",) * 2),
        (lambda x: x.astype(kind).astype(f32), lambda x: x.astype(f32), ("int8[n]",)),
        (lambda x: x.astype(kind).astype(i32), lambda x: x.astype(i32), ("uint8[n]",)),
    ):
        found = proved_alone(make_statement("s", left, right, specs, {}))
        assert found.proved, str(found)
        assert found.domain.exactness == "exact"


def test_which_zero_a_maximum_gives_is_not_said() -> None:
    found = superopt.verify(lambda x: x.max(0), lambda x: x[::-1].max(0), "7 n")
    assert found.domain.exactness == "exact"
    assert ANY_ZERO in found.domain.assumptions
    assert (
        ANY_ZERO not in superopt.verify(lambda x: x.max(0), lambda x: x[::-1].max(0), "int32[7,n]").domain.assumptions
    )
    other = superopt.verify(lambda x: 1 / x.max(0), lambda x: 1 / x[::-1].max(0), "7 n")
    assert other.domain.exactness != "exact" or ANY_ZERO in other.domain.assumptions


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x: x.max(0), lambda x: functools.reduce(jnp.maximum, list(x))),
        (lambda x: x.min(0) * 1, lambda x: -(-x).max(0)),
        (lambda x: lax.cummax(x)[-1], lambda x: x.max(0)),
        (lambda x: lax.cummin(x)[2:], lambda x: -lax.cummax(-x)[2:]),
        (
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (7, 1), (1, 1), "VALID")[0],
            lambda x: lax.reduce_window(x[::-1], -jnp.inf, lax.max, (7, 1), (1, 1), "VALID")[0],
        ),
        (lambda x: jnp.sign(x.max(0)), lambda x: jnp.sign(x[::-1].max(0))),
    ],
)
def test_a_maximum_over_an_axis_is_never_silent_of_zeros(left: Callable[..., Any], right: Callable[..., Any]) -> None:
    """XLA's maxima over axes of 7 give either zero, so the bits are claimed of all values but these."""
    found = proved_alone(make_statement("s", left, right, ("7 n",), {}, ("n >= 1",)))
    assert found.proved, str(found)
    assert found.domain.exactness == "real" or ANY_ZERO in found.domain.assumptions


def test_bounds_of_sizes_are_named_where_integers_need_them() -> None:
    def shifted(x: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(x.shape[0]) * 100 >= 0, x, 0)

    bound = "every size is at most 2^24"
    assert bound in superopt.verify(shifted, lambda x: x, "n").domain.assumptions
    small = superopt.verify(shifted, lambda x: x, "n", constraints=("n <= 1000",))
    assert small.status == PROVED
    assert bound not in small.domain.assumptions


def test_small_positions_are_exact_in_floats() -> None:
    found = superopt.verify(
        lambda x: x + jnp.arange(256).astype(bf16).astype(i32), lambda x: x + jnp.arange(256), "int32[256]"
    )
    assert found.status == PROVED


@pytest.mark.parametrize("times", [lambda i: -i, lambda i: i * -1.0])
def test_a_negated_position_has_the_sign_of_zero(times: Callable[[jax.Array], jax.Array]) -> None:
    """At position 0 it is -0, which an input of -0 keeps and +0 does not."""

    def floats(x: jax.Array) -> jax.Array:
        return x + times(jnp.arange(x.shape[0]).astype(jnp.float32))

    def integers(x: jax.Array) -> jax.Array:
        return x + (0 - jnp.arange(x.shape[0])).astype(jnp.float32)

    found = proved_alone(superopt.statement(floats, integers, "n", constraints=("n <= 8",)))
    assert found.domain is not None
    assert found.domain.exactness == "real"


def test_equal_tables_in_two_objects_are_one() -> None:
    copy = TABLE.copy()
    found = superopt.verify(lambda x: jnp.asarray(TABLE) * x, lambda x: x * jnp.asarray(copy), "2048")
    assert found.status == PROVED


def test_a_comparison_of_sizes_is_named() -> None:
    found = superopt.verify(lambda x: x * 2 if x.shape[0] == 300 else x, lambda x: x * 1, "n")
    assert found.status == REFUTED
    assert found.counterexample.choices["n"] == "300"
    shape = superopt.verify(lambda x: x * 2 if x.shape == (70000,) else x, lambda x: x, "n")
    assert shape.status == UNKNOWN
    assert "n-70000 == 0" in shape.cause
    assert Path(__file__).name in shape.cause


def test_a_comparison_that_constraints_decide_is_none() -> None:
    found = superopt.verify(lambda x: x * 2 if x.shape[0] == 300 else x, lambda x: x, "n", constraints=("n >= 301",))
    assert found.status == PROVED


def test_two_comparisons_of_one_size_are_not_hidden_by_a_cache() -> None:
    inner = jax.jit(lambda x: x * 2 if x.shape[0] == 70000 else x)
    for _ in range(2):
        assert superopt.verify(inner, lambda x: x, "n").status == UNKNOWN


# ---- crashes


def test_large_exponents_are_not_written_out() -> None:
    found = superopt.verify(lambda x: jnp.exp(x - 1e9), lambda x: jnp.exp(x) * jnp.exp(-1e9), "n")
    assert found.status == PROVED
    assert found.domain.exactness == "range"


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int8", "uint32"])
def test_false_statements_over_small_integers_are_refuted(kind: str) -> None:
    assert superopt.verify(lambda x: x // 2 + x // 2, lambda x: x, f"{kind}[n]").status == REFUTED
    assert superopt.verify(lambda x: x - 1, lambda x: x + 1, f"{kind}[n]").status == REFUTED
    assert superopt.verify(lambda x, y: x - y, lambda x, y: y - x, f"{kind}[n]", f"{kind}[n]").status == REFUTED


def test_a_widened_sum_of_a_byte_and_a_position_is_not_tabulated() -> None:
    def place(x: jax.Array) -> jax.Array:
        return jnp.arange(x.shape[0]).astype(i8)

    sides = (lambda x: (x + place(x)).astype(i32)), (lambda x: (place(x) + x).astype(i32))
    found = proved_alone(make_statement("s", *sides, ("int8[n]",), {}))
    assert found.proved, str(found)


def test_one_crash_in_a_file_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        "import superopt\n"
        'superopt.statement(lambda x: x + 0, lambda x: x, "n", name="first")\n'
        'superopt.statement(lambda x: x.T.T, lambda x: x, "m n", name="second")\n'
    )
    import verifier.statements.statement

    plain = verifier.statements.statement.check_statement

    def failing(statement: Any, **given: Any) -> Any:
        if statement.name == "first":
            raise MemoryError("of the test")
        return plain(statement, **given)

    monkeypatch.setattr(verifier.statements.statement, "check_statement", failing)
    found = verify_files([str(file)])
    data, text = found.to_json(), str(found)
    assert [row["status"] for row in data["rows"]] == [UNKNOWN, PROVED]
    assert "MemoryError: of the test" in text


def test_a_fault_of_the_prover_is_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    from verifier.rules.process import LimitExceededError, shared

    with pytest.raises(LimitExceededError, match="the prover failed"):
        shared().call("verifier.equal.poly:const")


def test_values_in_the_dtypes_overrule_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    import verifier.statements.statement

    made = make_statement("s", lambda x: x * 2, lambda x: x + x, ("n",), {})
    assert check_statement(made).status == PROVED
    told = Contradiction("0.0 and 1.0 at n = 2", defect=False)
    monkeypatch.setattr(verifier.statements.statement, "watched", lambda _, domain, __: (domain, told))
    found = check_statement(made)
    assert (found.status, "0.0 and 1.0" in found.cause) == (UNKNOWN, True)
