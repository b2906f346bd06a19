"""What is proved of finite numbers is said of programs that have some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
import verifier.rules.refute as rules_refute
from rewrites.language.parse import parse
from verifier.rules.check import check
from verifier.rules.nonvacuity import Observations
from verifier.rules.refute import extremes, samples
from verifier.statements.nonvacuity import never
from verifier.statements.statement import make_statement, traced_pair
from verifier.verdict import PROVED, REFUTED, UNKNOWN

ZEROS, NEGATIVE = np.zeros(4, np.float32), -np.zeros(4, np.float32)
Function = Callable[..., Any]
NEVER: list[tuple[str, Function, Function]] = [
    ("roots of negative numbers", lambda x: jnp.sqrt(-1 - x * x), lambda x: jnp.sqrt(-(1 + x * x))),
    ("logarithms of them", lambda x: jnp.log(-1 - x * x) * 0, lambda x: x * 0),
]


@pytest.mark.parametrize(("f", "g"), [n[1:] for n in NEVER], ids=[n[0] for n in NEVER])
@pytest.mark.parametrize("shape", ["float32[4]", "float16[4]", "n"])
def test_of_values_that_never_occur_nothing_is_said(f: Function, g: Function, shape: str) -> None:
    found = superopt.verify(f, g, shape)
    assert found.status == UNKNOWN, str(found)
    assert "finite values" in found.cause


def test_every_entry_is_looked_at_where_sizes_have_it() -> None:
    def f(x: Any) -> Any:
        return x + jnp.where(jnp.arange(x.shape[0]) == 3, jnp.log(-1 - x * x) * 0, 0.0)

    found = superopt.verify(f, lambda x: x, "n")
    assert found.status == UNKNOWN, str(found)
    assert "at [3]" in found.cause


def test_an_entry_has_to_be_alike_on_some_input() -> None:
    seen, none = Observations(range(2)), np.array([np.nan, 1.0])
    assert seen.unlike(0)
    seen.see({0: none, 1: none}, {0: none, 1: np.array([np.inf, 1.0])})
    assert [seen.unlike(0), seen.unlike(1)] == [False, True]
    seen.see({1: np.zeros(2)}, {1: np.zeros(2)})
    assert not seen.unlike(1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_inputs_of_large_magnitudes_are_numbers(dtype: str) -> None:
    given = np.array([-2.0, 1.0], jnp.dtype(dtype))
    drawn = [x["x"].astype(np.float64) for x in samples({"x": given})]
    assert all(np.isfinite(x).all() for x in drawn)
    assert max(x.max() for x in drawn) >= min(1e6, extremes(dtype)[0])


def test_numbers_that_differ_behind_infinities_refute() -> None:
    found = superopt.verify(
        lambda x: jnp.tanh(x + 1 / jnp.asarray(ZEROS)), lambda x: jnp.tanh(x + 1 / jnp.asarray(NEGATIVE)), "float32[4]"
    )
    assert found.status == REFUTED, str(found)


def slope(x: Any) -> Any:
    return 1 / jnp.log(jnp.exp(4000 * (x - jnp.rint(x))) ** 2)  # which overflows beside integers


def plain(x: Any) -> Any:
    return 1 / (8000 * (x - jnp.rint(x)))


def test_an_overflow_alone_refutes_nothing_that_is_proved_of_finite_numbers() -> None:
    found = superopt.verify(slope, plain, "float32[4]")
    assert found.status == PROVED, str(found)


def test_an_overflow_of_one_result_says_nothing_of_others() -> None:
    def pole(x: Any) -> Any:
        return x + jnp.log(jnp.asarray(ZEROS))

    found = superopt.verify(lambda x: (pole(x), slope(x)), lambda x: (pole(x), plain(x)), "float32[4]")
    assert found.status == PROVED, str(found)
    found = superopt.verify(lambda x: (NEVER[0][1](x), slope(x)), lambda x: (NEVER[0][2](x), plain(x)), "n")
    assert found.status == UNKNOWN, str(found)


HONEST: list[tuple[str, Function, Function, tuple[str, ...]]] = [
    (
        "masks", lambda x: x + jnp.where(jnp.arange(4) > 1, 0, -jnp.inf),
        lambda x: jnp.where(jnp.arange(4) > 1, x, -jnp.inf), ("float32[4]",),
    ),
    ("large arguments", lambda x: jnp.sqrt(x - 100) ** 2, lambda x: x - 100, ("n",)),
    ("small ones", lambda x: jnp.log(1 - 5000 * x * x) * 2, lambda x: 2 * jnp.log(1 - 5000 * (x * x)), ("n",)),
    ("empty sizes", lambda x: jnp.mean(x) * 2, lambda x: jnp.mean(2 * x), ("n",)),
    ("one of a size", lambda x: jnp.var(x, ddof=1) * 2, lambda x: 2 * jnp.var(x, ddof=1), ("n",)),
    ("softmax", lambda x: jax.nn.softmax(x + 1), jax.nn.softmax, ("m n",)),
    (
        "one graph", lambda x: (jnp.sum(x * 2), jnp.full(4, -jnp.inf)),
        lambda x: (2 * jnp.sum(x), jnp.full(4, -jnp.inf)), ("n",),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("f", "g", "specs"), [h[1:] for h in HONEST], ids=[h[0] for h in HONEST])
def test_some_values_suffice(f: Function, g: Function, specs: tuple[str, ...]) -> None:
    found = superopt.verify(f, g, *specs)
    assert found.status == PROVED, str(found)


def test_results_are_one_graph_where_their_arrays_are_equal() -> None:
    def missing(one: float, two: float) -> dict[int, str]:
        a, b = (np.full(4, value, np.float32) for value in (one, two))
        made = make_statement(
            "s", lambda x: x + jnp.log(jnp.asarray(a)), lambda x: x + jnp.log(jnp.asarray(b)), ("float32[4]",), {}
        )
        return never(traced_pair(made)[0], [{}], False)

    assert not missing(-1.0, -1.0)
    assert "finite values" in missing(-1.0, -2.0)[0]


RULES = [
    "A[*a]\n  sqrt(0 - 1 - A * A)  ==  sqrt(0 - (1 + A * A))",
    "A[*a]\n  A + log(0 - 1 - A * A) * 0  ==  A",
    "A[n]  B[n2]\n  concat(A, log(0 - 1 - B * B) * 0, n)  ==  concat(A, B * 0, n)",
]


@pytest.mark.parametrize("text", RULES)
def test_rules_whose_left_side_is_never_defined_say_nothing(text: str) -> None:
    found = check(parse(f"never: {text}"))
    assert found.status == UNKNOWN, str(found)
    assert "finite values" in found.cause


def test_rules_of_which_nothing_is_evaluated_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = parse("sum: A[*a]  B[*a]  C[*a]\n  A * B + A * C  ==  A * (B + C)")
    assert check(rule).proved
    monkeypatch.setattr(rules_refute, "LARGE", -1)
    found = check(rule)
    assert found.status == UNKNOWN, str(found)
    assert "finite values" in found.cause


def test_rules_of_large_numbers_are_proved() -> None:
    assert check(parse("large: A[*a]\n  sqrt(A - 100) * 2  ==  2 * sqrt(A - 100)")).proved
    assert check(parse("sum: A[*a]\n  log(A - 100) + log(A - 100) ==  2 * log(A - 100)")).proved


def test_a_sum_over_nothing_is_a_number_in_rules_that_have_no_other_entries() -> None:
    nothing = parse("r: A[*m z]  B[z *n]\n  dot(A, B, z)  ==  bcast(0, m, n)\n  if z == 0")
    assert check(nothing).status == PROVED
    never = parse("r: A[*m]  B[*m z]\n  sqrt(-1 - A * A) + sum(B, z)  ==  sqrt(-(1 + A * A)) + sum(B, z)")
    assert check(never).status == UNKNOWN
