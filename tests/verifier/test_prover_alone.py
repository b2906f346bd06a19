"""The prover with nothing beside it that evaluates: claims whose truth an oracle in NumPy knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import superopt
from rewrites.language.parse import parse
from superopt.equivalence.functions import compare_functions
from superopt.errors import InputError, RuleError
from superopt.frontends.symbolic.specs import read_specs
from superopt.lab.corpora.statements import alone
from verifier.equal.equality import BY_ROUNDING
from verifier.equal.poly import quoted, readable, unquoted
from verifier.rules.process import shared
from verifier.statements.precision import CPU
from verifier.statements.statement import make_statement, proved_alone
from verifier.verdict import PROVED, UNKNOWN, UNSUPPORTED, Verdict

Function = Callable[..., Any]
EACH = 10


def asked(left: Function, right: Function, *specs: Any, **named: Any) -> Verdict:
    with jax.enable_x64(True):
        return proved_alone(make_statement("alone", left, right, specs, named))


@pytest.mark.parametrize("each", [EACH, pytest.param(None, marks=pytest.mark.slow)], ids=["sample", "whole"])
def test_no_false_claim_is_proved_and_most_true_ones_are(each: int | None) -> None:
    rows = [alone.judged(claim, proved_alone) for claim in alone.claims(7, each)]
    assert [row for row in rows if row["false_proof"]] == []
    assert {row["family"] for row in rows} == {"monoids", "conversions", "names"}
    true = [row for row in rows if row["true"] and row["status"] != UNSUPPORTED]
    assert sum(row["status"] == PROVED for row in true) >= 0.7 * len(true)


@pytest.mark.parametrize(("source", "through"), [("int64", "float64"), ("uint64", "float64"), ("int32", "float32")])
def test_integers_through_floats_that_lack_them_are_others(source: str, through: str) -> None:
    found = asked(lambda x: x.astype(through).astype(source), lambda x: x, f"{source}[n]")
    assert found.status == UNKNOWN


@pytest.mark.parametrize(("source", "through"), [("int32", "float64"), ("uint8", "float16"), ("int8", "bfloat16")])
def test_integers_through_floats_that_have_them_are_the_same(source: str, through: str) -> None:
    found = asked(lambda x: x.astype(through).astype(source), lambda x: x, f"{source}[n]")
    assert found.proved
    assert found.domain is not None
    assert found.domain.exactness == "exact"


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_reductions_by_bits_are_no_maxima(dtype: str) -> None:
    assert not asked(lambda x: lax.reduce_or(x, (0,)), lambda x: lax.reduce_max(x, (0,)), f"{dtype}[m n]").proved
    assert not asked(lambda x: lax.reduce_and(x, (0,)), lambda x: lax.reduce_min(x, (0,)), f"{dtype}[m n]").proved


@pytest.mark.parametrize("bits", [lax.reduce_or, lax.reduce_and])
def test_reductions_by_bits_are_of_sets(bits: Function) -> None:
    assert asked(lambda x: bits(x, (0, 1)), lambda x: bits(bits(x, (1,)), (0,)), "uint8[m n]").proved
    assert asked(lambda x: bits(x, (0,)), lambda x: bits(jnp.concatenate([x, x]), (0,)), "int32[m]").proved
    assert not asked(lambda x: bits(x, (0,)), lambda x: bits(x[1:], (0,)), "int32[m+1]").proved
    repeated = asked(
        lambda x, y: bits(jnp.broadcast_to(x, (y.shape[0], *x.shape)), (0,)), lambda x, y: x, "uint8[m]", "uint8[k+1]"
    )
    assert repeated.proved
    assert not asked(lambda x: bits(x, (0,)), lambda x: x[0], "uint8[m+1]").proved


def test_a_reduction_by_xor_counts_how_often() -> None:
    def xor(x: Any) -> Any:
        return lax.reduce_xor(x, (0,))

    assert asked(xor, lambda x: xor(x[:2]) ^ xor(x[2:]), "int32[m+2]").proved
    assert not asked(xor, lambda x: xor(jnp.concatenate([x, x])), "int32[m]").proved


def test_names_of_arguments_are_no_atoms() -> None:
    for word in ("inf", "size", "0", "min", "max", "value()", "exp(1*x^1)", 'y"*"x', "k!1", "_0"):

        def plain(body: Function, word: str = word) -> Function:
            return lambda **given: body(given[word], given["x"])

        shifted = asked(plain(lambda a, x: jnp.exp(-a) * x), plain(lambda a, x: x * 0), **{word: "", "x": "n"})
        assert shifted.status == UNKNOWN
        index = asked(
            plain(lambda a, x: jnp.take(x, a, mode="clip")), plain(lambda a, x: jnp.take(x, a + 1, mode="clip")),
            **{word: "int32[m]", "x": "n"},
        )  # fmt: skip
        assert index.status == UNKNOWN
        assert "failed" not in index.cause
        assert asked(plain(lambda a, x: a * x), plain(lambda a, x: x * a), **{word: "n", "x": "n"}).proved


@pytest.mark.parametrize("size", ["_0", "_1", "k", "size", "inf"])
def test_names_of_sizes_are_no_indices(size: str) -> None:
    def trace(x: Any) -> Any:
        place = jnp.arange(x.shape[0])
        return jnp.where(place[:, None] == place[None], x, 0).sum()

    assert asked(trace, lambda x: trace(x.T), f"{size}+1 {size}+1").proved
    assert asked(trace, lambda x: x[:, -1].sum(), f"{size}+1 {size}+1").status == UNKNOWN
    assert asked(lambda x: x[:, -1].sum(), lambda x: x[0].sum(), f"{size}+1 {size}+1").status == UNKNOWN


@pytest.mark.parametrize("name", ["size", "INF", "value", "rmax"])
def test_names_of_tensors_in_rules_are_no_atoms(name: str) -> None:
    false = f"r: {name}[*n] X[*n]\n  exp(-{name}) * X == 0 * X"
    true = f"r: {name}[*n] X[*n]\n  {name} * X + X == ({name} + 1) * X"
    assert shared().prove(parse(false, "<test>")).status == UNKNOWN
    assert shared().prove(parse(true, "<test>")).status == PROVED


def test_names_that_mean_something_else_are_refused() -> None:
    with pytest.raises(RuleError, match="inf is a number"):
        parse("r: inf[*n] X[*n]\n  exp(-inf) * X == 0 * X", "<test>")
    for size in ("_", "mod", "max", "floordiv"):
        with pytest.raises(InputError, match="a word of JAX's own"):
            superopt.verify(lambda x: x, lambda x: x, size)


def test_two_arguments_never_have_one_name() -> None:
    specs = read_specs(("a_1_2", "a", "a_1"), ("n", {"1": "n"}, "n"), {}, ())
    assert len(set(specs.names)) == 3
    found = asked(lambda a_1_2, a, a_1: a_1_2 - a_1, lambda a_1_2, a, a_1: a["1"] * 0, "n", {"1": "n"}, "n")
    assert found.status == UNKNOWN


@pytest.mark.parametrize("name", ["x", "", '"', "\\", '\\"', 'a"b', "é\n", "exp(1)"])
def test_names_in_quotes_are_read_again(name: str) -> None:
    assert unquoted(quoted(name)) == name
    assert readable(f"sqrt(1*{quoted(name)}^1) and {quoted('y')}") == f"sqrt(1*{name}^1) and y"


HIGHEST = lax.Precision.HIGHEST


def test_products_of_other_precisions_are_equal_on_a_cpu_alone() -> None:
    def dot(a: Any, b: Any, precision: Any = None) -> Any:
        return jnp.dot(a, b, precision=precision)

    def assumed(left: Function, right: Function, *specs: str) -> bool:
        found = asked(left, right, *specs)
        assert found.domain is not None, found
        return CPU in found.domain.assumptions

    square = ("n n", "n n")
    assert assumed(lambda a, b: dot(a, b, HIGHEST), dot, *square)
    assert assumed(lambda a, b: dot(a, b, HIGHEST) + dot(b, a), lambda a, b: dot(b, a, HIGHEST) + dot(a, b), *square)
    assert not assumed(
        lambda a, b: dot(a, b, HIGHEST) + dot(b, a), lambda a, b: dot(b, a) + dot(a, b, HIGHEST), *square
    )
    assert not assumed(lambda a, b: dot(a, b, HIGHEST).T, lambda a, b: dot(b.T, a.T, HIGHEST), *square)
    assert not assumed(lambda a, b: dot(a, b, lax.Precision.DEFAULT), dot, *square)
    assert not assumed(lambda a, b: dot(a, b, HIGHEST), dot, "int32[n n]", "int32[n n]")

    def conv(x: Any, w: Any, precision: Any = None) -> Any:
        return lax.conv_general_dilated(x, w, (1,), "VALID", precision=precision)

    assert assumed(lambda x, w: conv(x, w, HIGHEST), conv, "b c n+2", "d c 3")


ROUNDED: dict[str, tuple[Function, Function, tuple[str, ...]]] = {
    "absorbed": (lambda x, y: jnp.where(x + y == x, 1, 2), lambda x, y: jnp.where(y == 0, 1, 2), ("n", "n")),
    "there and back": (lambda x: (x * 10 / 10 >= x).astype("int32"), lambda x: jnp.ones_like(x, "int32"), ("n",)),
    "a sign": (lambda x: jnp.sign(x + 1 - 1), lambda x: jnp.sign(x), ("n",)),
    "shifted": (lambda x, y, z: x + z < y + z, lambda x, y, z: x < y, ("n", "n", "n")),
    "a place": (lambda x, c: jnp.argmax(x + c), lambda x, c: jnp.argmax(x), ("n+1", "")),
    "a truth value": (lambda x: (x + 1 - 1).astype(bool), lambda x: x.astype(bool), ("n",)),
    "a step": (lambda x, y: jnp.floor(x + y - y), lambda x, y: jnp.floor(x), ("n", "n")),
    "an integer": (lambda x, y: (x + y - y).astype("int32"), lambda x, y: x.astype("int32"), ("n", "n")),
    "a sum": (
        lambda x, y: jnp.where((x + y).sum() > 0, x, y), lambda x, y: jnp.where(x.sum() + y.sum() > 0, x, y),
        ("n", "n"),
    ),
    "a maximum of sums": (
        lambda x, y, z: jnp.maximum(x + y, z) == z, lambda x, y, z: jnp.maximum(x, z - y) == z - y, ("n", "n", "n"),
    ),
}  # fmt: skip
ALIKE: dict[str, tuple[Function, Function, tuple[str, ...]]] = {
    "negated": (lambda x, y: ~(x < y), lambda x, y: x >= y, ("n", "n")),
    "a maximum": (lambda x, y: jnp.maximum(x, y), lambda x, y: jnp.where(x > y, x, y), ("n", "n")),
    "of a product": (
        lambda x, y, z: jnp.maximum(x * y, z), lambda x, y, z: jnp.where(y * x > z, x * y, z), ("n", "n", "n"),
    ),
    "signs changed": (lambda x, y: -x < -y, lambda x, y: y < x, ("n", "n")),
    "behind a law": (
        lambda x, y: jnp.where(x * y > 1, x + y - y, y), lambda x, y: jnp.where(~(y * x <= 1), x, y), ("n", "n"),
    ),
    "of a matrix product": (
        lambda x, w: jnp.where(x @ w > 0, x @ w, 0).T, lambda x, w: jnp.where(w.T @ x.T > 0, w.T @ x.T, 0),
        ("m k", "k n"),
    ),
    "constants": (lambda x: jnp.where(jnp.float32(0.25) < 0.5, x + 1, x), lambda x: x + 1, ("n",)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounding_decides_is_unknown_with_that_cause(name: str) -> None:
    left, right, specs = ROUNDED[name]
    found = asked(left, right, *specs)
    assert (found.status, found.cause) == (UNKNOWN, BY_ROUNDING)


@pytest.mark.parametrize("name", ALIKE)
def test_comparisons_of_what_is_computed_alike_are_proved(name: str) -> None:
    left, right, specs = ALIKE[name]
    assert asked(left, right, *specs).proved


@pytest.mark.parametrize("name", ["absorbed", "there and back", "a sign", "a truth value", "a place", "shifted"])
def test_pairs_of_programs_compare_rounded_values_too(name: str) -> None:
    left, right, specs = ROUNDED[name]
    x = np.linspace(-2, 2, 6, dtype=np.float32)
    found = compare_functions(left, right, *[x if spec else x[0] for spec in specs])
    assert found.status != PROVED


def test_the_verdict_says_that_rounding_decides() -> None:
    left, right, specs = ROUNDED["absorbed"]
    found = superopt.verify(left, right, *specs)
    assert found.status == UNKNOWN
    assert found.cause.startswith(BY_ROUNDING)


def assumptions_of(verdict: Verdict) -> tuple[str, ...]:
    assert verdict.domain is not None, verdict
    return verdict.domain.assumptions


def test_a_nan_of_the_program_is_no_number() -> None:
    """0 times it is not 0, and a difference of it and itself neither; sizes at which it is met are named."""
    found = asked(lambda x: jnp.var(x, ddof=1) * 0, lambda x: jnp.float32(0), "float32[n]")
    assert any("n - 2 >= 0" in a for a in assumptions_of(found))
    assert not asked(lambda x: x, lambda x: x + 0 * jnp.var(x, ddof=1), "float32[n]").proved
    assert not asked(lambda x: x + jnp.nan - jnp.nan, lambda x: x, "float32[n]").proved
    assert not asked(lambda p, x: x, lambda p, x: x + 0 * jnp.where(p, x, jnp.nan), "bool[n]", "float32[n]").proved
    first = asked(lambda x: x + 0 * jnp.where(jnp.arange(x.shape[0]) == 0, jnp.nan, 1.0), lambda x: x, "float32[n]")
    assert not first.proved


def test_divisors_have_any_name() -> None:
    found = asked(
        lambda **g: g["nan()"] * g["x"] / g["nan()"], lambda **g: g["x"], **{"nan()": "float32[n]", "x": "float32[n]"}
    )
    assert any("nan() is not zero" in a for a in assumptions_of(found))


@pytest.mark.parametrize("divisor", [lambda x: x[::-1], lambda x: jnp.ones_like(x) * (x.shape[0] - 1)])
def test_a_remainder_is_by_what_is_not_zero(divisor: Function) -> None:
    assert not asked(lambda x: x, lambda x: x + 0 * lax.rem(x, divisor(x)), "float32[n]").proved
    found = asked(lambda x: x + 0 * lax.rem(x, divisor(x)), lambda x: x, "float32[n]")
    assert any("arguments of rem" in a for a in assumptions_of(found))
    three = asked(lambda x: x, lambda x: x + 0 * lax.rem(x, jnp.full_like(x, 3)), "float32[n]")
    assert three.proved
    assert not any("rem" in a for a in assumptions_of(three))


def test_comparisons_see_that_sizes_were_rounded() -> None:
    """Above 2^24 a float32 lacks sizes: there neighbours are equal."""

    def size(x: Any, more: int = 0) -> Any:
        return jnp.asarray(x.shape[0] + more).astype("float32")

    for constraint, proved in (("n >= 1", False), ("n <= 1000", True)):
        made = make_statement(
            "sizes", lambda x: jnp.where(size(x, 1) - size(x) == 1, x, 0), lambda x: x, ("n",), {}, (constraint,)
        )
        assert proved_alone(made).proved == proved
    assert not asked(lambda i: i * (size(i, 1) - size(i)).astype("int32"), lambda i: i, "int32[n]").proved
    assert asked(lambda x: x * (size(x, 1) - size(x)), lambda x: x, "float32[n]").proved


def test_float64_tells_a_constant_from_its_fraction() -> None:
    table = np.array([0.1, 0.7], np.float32)
    found = asked(
        lambda x: jnp.where(jnp.asarray(table).astype("float64")[0] < 0.1, x, 2 * x), lambda x: x, "float64[n]"
    )
    assert not found.proved
