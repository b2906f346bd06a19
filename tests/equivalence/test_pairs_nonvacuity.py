"""Pairs proved of finite numbers are told so where they have some, and are no defects where they overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.equivalence import symbolic, verdict
from superopt.equivalence.cuts import PairProof
from superopt.equivalence.functions import compare_functions
from superopt.errors import ProverDefectError
from superopt.ir.graph import Graph
from verifier.verdict import PROVED, REFUTED, UNKNOWN

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


def slope(x: Any) -> Any:
    """1 / (1e5 x), in a way that XLA leaves alone."""
    factor = 2 + jnp.sin(x)
    return 1 / (jnp.log(jnp.exp(1e5 * x) * factor) - jnp.log(factor))


def test_overflow_is_no_defect_of_what_is_proved_of_finite_values() -> None:
    x = np.ones(16, np.float32)
    found = compare_functions(slope, lambda x: 1 / (1e5 * x), x, numerics="range")
    assert found.status == PROVED, str(found)
    root = NEVER[2]
    found = compare_functions(
        lambda x: (root[1](x), slope(x)), lambda x: (root[2](x), 1 / (1e5 * x)), x, numerics="range"
    )
    assert [o.status for o in found.outputs] == [UNKNOWN, PROVED], str(found)


def test_numbers_that_differ_behind_infinities_refute() -> None:
    found = compare_functions(lambda x: jnp.tanh(NEVER[0][1](x)), lambda x: jnp.tanh(NEVER[0][2](x)), ZEROS)
    assert found.status == REFUTED, str(found)


DEFECTS: list[tuple[str, Function, Function]] = [
    ("where logarithms are numbers", lambda x: jnp.log(x) + x, lambda x: jnp.log(x) + 2 * x),
    ("where roots are", lambda x: jnp.sqrt(x - 100), lambda x: 2 * jnp.sqrt(x - 100)),
    ("beside another result", lambda x: (jnp.log(-1 - x * x), x), lambda x: (jnp.log(-1 - x * x), 2 * x)),
    ("of all values", lambda x: jnp.tanh(NEVER[0][1](x)), lambda x: jnp.tanh(NEVER[0][2](x))),
]


@pytest.mark.parametrize(("f", "g"), [d[1:] for d in DEFECTS], ids=[d[0] for d in DEFECTS])
def test_a_difference_that_the_proof_speaks_of_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, f: Function, g: Function
) -> None:
    def lying(first: Graph, *_: Any) -> PairProof:
        return PairProof(outputs=first.outputs, image={}, exactness="real")

    monkeypatch.setattr(verdict, "prove_by_steps", lying)
    with pytest.raises(ProverDefectError):
        compare_functions(f, g, ZEROS)


@pytest.mark.parametrize("seed", [3, 7])
def test_integers_that_leave_no_numbers_are_drawn_again(seed: int) -> None:
    found = compare_functions(
        lambda x, n: ((x + 3 * x) / n, jnp.sqrt(n) * (x + 3 * x)), lambda x, n: (4 * x / n, 4 * (x * jnp.sqrt(n))),
        ZEROS, np.int32(2),
        seed=seed,
    )  # fmt: skip
    assert found.status == PROVED, str(found)


def test_every_entry_of_every_size_has_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(x: Any) -> Any:
        return jnp.tanh(x) + jnp.where(jnp.arange(x.shape[0]) == 2, jnp.log(-1 - x * x) * 0, 0.0)

    monkeypatch.setattr(symbolic, "MOST", 0)  # node by node, and values at the sizes 2 and 3
    found = compare_functions(undefined, lambda x: jnp.tanh(x) + 0 * x, "n")
    assert found.status == UNKNOWN, str(found)
    assert "at [2]" in found.outputs[0].cause


def test_a_refuted_proof_of_all_sizes_has_a_text_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "MOST", 0)
    found = compare_functions(lambda x: jnp.tanh(NEVER[0][1](x)), lambda x: jnp.tanh(NEVER[0][2](x)), "n 4")
    assert found.status == REFUTED, str(found)
    assert "inputs(" in found.code


MASK = np.array([0, 0, 1, 1], bool)


@pytest.mark.parametrize("x", ["float32[4]", np.ones(4, np.float32)], ids=["named", "given"])
def test_masks_of_infinities_have_finite_values(x: Any) -> None:
    found = compare_functions(
        lambda x: x + jnp.where(jnp.asarray(MASK), 0, -jnp.inf), lambda x: jnp.where(jnp.asarray(MASK), x, -jnp.inf), x
    )
    assert found.status == PROVED, str(found)


def test_float64_is_rounded_too() -> None:
    with jax.enable_x64(True):
        found = compare_functions(
            lambda x, y: (x + y) + 0.7, lambda x, y: x + (y + 0.7), np.ones(64), np.ones(64)
        )  # fmt: skip
    assert found.status == PROVED, str(found)
