"""Small programs of given sizes that no rule relates: proved as statements, and their false twins are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.equivalence import verdict
from superopt.equivalence.functions import compare_functions
from verifier.verdict import PROVED

F = jax.ShapeDtypeStruct((5, 6), "float32")
CACHE, NEW, AT = (jax.ShapeDtypeStruct(*x) for x in (((6, 3), "float32"), ((2, 3), "float32"), ((), "int32")))
WIDE, DEEP, ZERO, ZEROS = (jax.ShapeDtypeStruct(shape, "int8") for shape in ((3, 5), (5, 4), (), (4,)))


def _angles(x: Any) -> tuple[Any, Any]:
    t, d = x.shape
    angles = jnp.arange(t)[:, None] * (10000.0 ** (-jnp.arange(0, d, 2) / d))[None]
    return jnp.cos(angles), jnp.sin(angles)


def _rotated(x: Any) -> Any:
    """Positions as rotations of halves (GPT-NeoX)."""
    half = x.shape[1] // 2
    c, s = (jnp.concatenate([a, a], -1) for a in _angles(x))
    return x * c + jnp.concatenate([-x[:, half:], x[:, :half]], -1) * s


def _rotated_apart(x: Any, sign: int = 1) -> Any:
    (a, b), (c, s) = jnp.split(x, 2, -1), _angles(x)
    return jnp.concatenate([a * c - sign * b * s, b * c + a * s], -1)


def _rotated_pairs(x: Any) -> Any:
    """Positions as rotations of neighbours (GPT-J)."""
    (c, s), pairs = _angles(x), x.reshape(x.shape[0], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


def _read(cache: Any, new: Any, at: Any, ahead: int = 0) -> Any:
    written = lax.dynamic_update_slice(cache, new, (at, 0))
    return lax.dynamic_slice(written, (at + ahead if ahead else at, 0), new.shape)


def _quantised(x: Any, w: Any, p: Any, q: Any) -> Any:
    return (x.astype("int32") - p.astype("int32")) @ (w.astype("int32") - q.astype("int32"))


def _expanded(x: Any, w: Any, p: Any, q: Any, terms: int = 5) -> Any:
    x, w, p, q = (a.astype("int32") for a in (x, w, p, q))
    return x @ w - p * w.sum(0) - x.sum(1, keepdims=True) * q + terms * p * q


def _narrow(x: Any, w: Any, p: Any, q: Any) -> Any:
    return (x - p).astype("int32") @ (w.astype("int32") - q.astype("int32"))


TRUE: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
    (_rotated, _rotated_apart, (F,)),
    (_read, lambda cache, new, at: new, (CACHE, NEW, AT)),
    (_quantised, _expanded, (WIDE, DEEP, ZERO, ZEROS)),
]
FALSE: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
    (_rotated, lambda x: _rotated_apart(x, -1), (F,)),
    (_rotated, _rotated_pairs, (F,)),
    (_read, lambda cache, new, at: _read(cache, new, at, 1), (CACHE, NEW, AT)),
    (_read, lambda cache, new, at: cache[:2], (CACHE, NEW, AT)),
    (_quantised, lambda *given: _expanded(*given, terms=4), (WIDE, DEEP, ZERO, ZEROS)),
    (_quantised, _narrow, (WIDE, DEEP, ZERO, ZEROS)),
]


@pytest.mark.parametrize(("first", "second", "types"), TRUE)
def test_programs_that_no_rule_relates(first: Any, second: Any, types: tuple[Any, ...]) -> None:
    found = compare_functions(first, second, *types)
    assert found.status == PROVED, str(found)


@pytest.mark.parametrize(("first", "second", "types"), FALSE)
def test_their_false_twins_are_not_proved(
    first: Any, second: Any, types: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "differences", lambda *_: {})  # the prover alone
    monkeypatch.setattr(verdict, "contradiction", lambda *_: "")
    assert compare_functions(first, second, *types).status != PROVED


def test_a_class_that_is_too_wide_does_not_count() -> None:
    x = np.ones((2, 3), np.float32)
    same, other = (lambda x: (x + x) * x, lambda x: x * x + jnp.flip(jnp.flip(x * x)))
    assert compare_functions(same, other, x, numerics="exact").status != PROVED


def test_a_result_that_is_an_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "differences", lambda *_: {})
    found = compare_functions(lambda x: jnp.sort(x), lambda x: x, np.arange(3, dtype=np.float32))
    assert "unexplained: the result itself" in str(found)
