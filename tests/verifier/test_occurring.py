"""What is proved of finite numbers is said of programs that have some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from rewrites.language.parse import parse
from verifier.rules.check import check
from verifier.verdict import PROVED, REFUTED, UNKNOWN

ZEROS, NEGATIVE = np.zeros(4, np.float32), -np.zeros(4, np.float32)
Function = Callable[..., Any]
NEVER: list[tuple[str, Function, Function]] = [
    ("roots of negative numbers", lambda x: jnp.sqrt(-1 - x * x), lambda x: jnp.sqrt(-(1 + x * x))),
    ("logarithms of them", lambda x: jnp.log(-1 - x * x) * 0, lambda x: x * 0),
]


@pytest.mark.parametrize(("f", "g"), [n[1:] for n in NEVER], ids=[n[0] for n in NEVER])
@pytest.mark.parametrize("shape", ["float32[4]", "n"])
def test_of_values_that_never_occur_nothing_is_said(f: Function, g: Function, shape: str) -> None:
    found = superopt.verify(f, g, shape)
    assert found.status == UNKNOWN, str(found)
    assert "finite values" in found.cause


def test_numbers_that_differ_behind_infinities_refute() -> None:
    found = superopt.verify(
        lambda x: jnp.tanh(x + 1 / jnp.asarray(ZEROS)), lambda x: jnp.tanh(x + 1 / jnp.asarray(NEGATIVE)), "float32[4]"
    )
    assert found.status == REFUTED, str(found)


def test_an_overflow_alone_refutes_nothing_that_is_proved_of_finite_numbers() -> None:
    found = superopt.verify(lambda x: 1 / jnp.log(jnp.exp(400 * x) ** 2), lambda x: 1 / (800 * x), "float32[4]")
    assert found.status in (PROVED, UNKNOWN), str(found)


HONEST: list[tuple[str, Function, Function, tuple[str, ...]]] = [
    (
        "masks", lambda x: x + jnp.where(jnp.arange(4) > 1, 0, -jnp.inf),
        lambda x: jnp.where(jnp.arange(4) > 1, x, -jnp.inf), ("float32[4]",),
    ),
    ("large arguments", lambda x: jnp.sqrt(x - 100) ** 2, lambda x: x - 100, ("n",)),
    ("small ones", lambda x: jnp.log(1 - 5000 * x * x) * 2, lambda x: 2 * jnp.log(1 - 5000 * (x * x)), ("n",)),
    ("empty sizes", lambda x: jnp.mean(x) * 2, lambda x: jnp.mean(2 * x), ("n",)),
    ("softmax", lambda x: jax.nn.softmax(x + 1), jax.nn.softmax, ("m n",)),
]  # fmt: skip


@pytest.mark.parametrize(("f", "g", "specs"), [h[1:] for h in HONEST], ids=[h[0] for h in HONEST])
def test_some_values_suffice(f: Function, g: Function, specs: tuple[str, ...]) -> None:
    found = superopt.verify(f, g, *specs)
    assert found.status == PROVED, str(found)


@pytest.mark.parametrize(
    "text", ["sqrt(0 - 1 - A * A)  ==  sqrt(0 - (1 + A * A))", "A + log(0 - 1 - A * A) * 0  ==  A"]
)
def test_rules_whose_left_side_is_never_defined_say_nothing(text: str) -> None:
    found = check(parse(f"never: A[*a]\n  {text}"))
    assert found.status == UNKNOWN
    assert "finite values" in found.cause


def test_rules_of_large_numbers_are_proved() -> None:
    assert check(parse("large: A[*a]\n  sqrt(A - 100) * 2  ==  2 * sqrt(A - 100)")).proved
    assert check(parse("sum: A[*a]\n  log(A - 100) + log(A - 100) ==  2 * log(A - 100)")).proved
