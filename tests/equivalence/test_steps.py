"""What steps read (floor, bits, integers, trips of loops) is replaced in class exact alone, by the prover by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.equivalence import cuts, verdict
from superopt.equivalence.functions import compare_functions
from verifier.verdict import PROVED

X = np.ones(5, np.float32)
STEPS: dict[str, Callable[[Any], Any]] = {
    "floor": jnp.floor,
    "round": jnp.round,
    "a remainder": lambda v: v % 3,
    "an order": jnp.argsort,
    "an integer": lambda v: v.astype("int32"),
    "bits": lambda v: lax.bitcast_convert_type(v, "int32"),
    "fewer bits of a float": lambda v: lax.reduce_precision(v, 8, 7),
    "the next number": lambda v: jnp.nextafter(v, jnp.inf),
    "a place": lambda v: jnp.take(jnp.arange(9.0), v.astype("int32"), mode="clip"),
    "trips": lambda v: lax.while_loop(lambda c: c[0] < 10, lambda c: c * 2, v),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "differences", lambda *_: {})
    monkeypatch.setattr(verdict, "contradiction", lambda *_: "")


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_what_is_near(name: str) -> None:
    step = STEPS[name]
    found = compare_functions(lambda x, y, z: step((x + y) + z), lambda x, y, z: step(x + (y + z)), X, X, X)
    assert found.status != PROVED, str(found)


def test_laws_of_real_numbers_bring_no_step_to_another() -> None:
    def one(x: Any, y: Any, z: Any, p: Any) -> Any:
        return p * jnp.floor((x + y) + z) + jnp.floor(x + (y + z))

    def two(x: Any, y: Any, z: Any, p: Any) -> Any:
        return jnp.floor((x + y) + z) + p * jnp.floor(x + (y + z))

    assert compare_functions(one, two, X, X, X, X).status != PROVED


def test_zeros_of_both_signs_have_other_bits() -> None:
    first, second = (lambda x: lax.bitcast_convert_type(x + 0, "int32"), lambda x: lax.bitcast_convert_type(x, "int32"))
    assert compare_functions(first, second, X).status != PROVED


def test_steps_of_what_is_equal_stand_in_laws_of_real_numbers() -> None:
    def one(x: Any, y: Any, z: Any) -> Any:
        return jnp.floor(jnp.maximum(x, y)) * (y + z)

    def two(x: Any, y: Any, z: Any) -> Any:
        step = jnp.floor(jnp.maximum(y, x))
        return step * z + step * y

    found = compare_functions(jax.jit(one), two, X, X, X)
    assert found.status == PROVED, str(found)


def test_cheap_windows_use_rules_alone_that_helped_before(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[tuple[bool, set[str], set[str]]] = []
    prove, grow = cuts._Island.prove, cuts.grow

    def proved(island: Any, wanted: Any, back: Any, cheap: bool) -> Any:
        windows.append((cheap, set(island.proof.rules), set()))
        return prove(island, wanted, back, cheap)

    def grown(eg: Any, rules: Any, *rest: Any) -> Any:
        windows[-1][2].update(rule.name for rule in rules)
        return grow(eg, rules, *rest)

    monkeypatch.setattr(cuts._Island, "prove", proved)
    monkeypatch.setattr(cuts, "grow", grown)
    x, w, v = (np.ones(shape, np.float32) for shape in ((5, 6), (6, 7), (6, 7)))
    assert compare_functions(lambda x, w, v: x @ w + x @ v, lambda x, w, v: x @ (w + v), x, w, v).status == PROVED
    assert any(used for cheap, _, used in windows if not cheap)
    assert all(used <= helped for cheap, helped, used in windows if cheap)
