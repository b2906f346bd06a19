"""Pairs proved of finite numbers are told so where they have some, and are no defects where they overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.compare.functions import compare_functions
from verifier.verdict import PROVED, UNKNOWN

ZEROS, NEGATIVE = np.zeros(4, np.float32), -np.zeros(4, np.float32)
FIRST, NEGATED = np.array([0, 1, 1, 1], np.float32), np.array([-0.0, 1, 1, 1], np.float32)
Function = Callable[..., Any]
NEVER: list[tuple[str, Function, Function]] = [
    ("infinities of two signs", lambda x: x + 1 / jnp.asarray(ZEROS), lambda x: x + 1 / jnp.asarray(NEGATIVE)),
    ("in one entry", lambda x: x + 1 / jnp.asarray(FIRST), lambda x: x + 1 / jnp.asarray(NEGATED)),
    ("roots of negative numbers", lambda x: jnp.sqrt(-1 - x * x), lambda x: jnp.sqrt(-(1 + x * x))),
]


@pytest.mark.parametrize(("f", "g"), [n[1:] for n in NEVER], ids=[n[0] for n in NEVER])
@pytest.mark.parametrize("x", ["float32[4]", np.ones(4, np.float32)], ids=["named", "given"])
def test_of_values_that_never_occur_nothing_is_said(f: Function, g: Function, x: Any) -> None:
    found = compare_functions(lambda x: {"a": f(x), "b": x * 2 + 1}, lambda x: {"a": g(x), "b": 1 + 2 * x}, x)
    assert [o.status for o in found.outputs] == [UNKNOWN, PROVED], str(found)


def test_the_reason_is_said() -> None:
    found = compare_functions(*NEVER[0][1:], "float32[4]")
    assert "finite values" in found.outputs[0].cause
    assert "at [0]" in compare_functions(*NEVER[1][1:], "float32[4]").outputs[0].cause


def test_what_is_proved_of_all_values_needs_no_finite_ones() -> None:
    wrong = np.full(4, -1.0, np.float32)
    found = compare_functions(
        lambda x: ((x + 1) + jnp.log(jnp.asarray(wrong)), jnp.exp(x) * jnp.exp(-x) * x),
        lambda x: (jnp.log(jnp.asarray(wrong)) + (1 + x), x),
        np.ones(4, np.float32), numerics="range",
    )  # fmt: skip
    assert found.status == PROVED, str(found)
    assert found.exactness != "exact"


def test_overflow_is_no_defect_of_what_is_proved_of_finite_values() -> None:
    def slope(x: Any) -> Any:
        return 1 / jnp.log(jnp.exp(400 * x) ** 2)

    found = compare_functions(slope, lambda x: 1 / (800 * x), np.ones(64, np.float32), numerics="range")
    assert found.status == PROVED, str(found)


MASK = np.array([0, 0, 1, 1], bool)


@pytest.mark.parametrize("x", ["float32[4]", np.ones(4, np.float32)], ids=["named", "given"])
def test_masks_of_infinities_have_finite_values(x: Any) -> None:
    found = compare_functions(
        lambda x: x + jnp.where(jnp.asarray(MASK), 0, -jnp.inf), lambda x: jnp.where(jnp.asarray(MASK), x, -jnp.inf), x
    )
    assert found.status == PROVED, str(found)
