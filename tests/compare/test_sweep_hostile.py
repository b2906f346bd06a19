"""Pairs over symbolic sizes that are equal only up to what a proof behind cuts would lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from superopt.compare import symbolic
from superopt.compare.functions import compare_functions
from verifier.verdict import PROVED


def swept(
    monkeypatch: pytest.MonkeyPatch, first: Callable[..., Any], second: Callable[..., Any], *specs: str, **more: Any
) -> Any:
    monkeypatch.setattr(symbolic, "MOST", 0)  # small programs are proved node by node as well
    return compare_functions(first, second, *specs, **more)


def test_an_argument_has_the_name_of_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(cut0: Any, x: Any) -> Any:
        return jnp.exp(jnp.sin(jnp.cos(x)) + 1e-9 * cut0)

    def second(cut0: Any, x: Any) -> Any:
        c = jnp.sin(jnp.cos(x))
        return jnp.exp(c + 1e-9 * c)

    assert swept(monkeypatch, first, second, "n", "n").status != PROVED


def test_a_comparison_of_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(i: Any, x: Any) -> Any:
        c = i.astype(jnp.float32) + 5  # 0 where i is -5
        return jnp.where(c / c > 0.5, 5.0, x)

    def second(i: Any, x: Any) -> Any:
        c = i.astype(jnp.float32) + 5
        return jnp.where(c * 0 + 1 > 0.5, 5.0, x)

    assert swept(monkeypatch, first, second, "int32[n]", "n").status != PROVED


def test_a_comparison_behind_a_cut_that_may_be_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(i: Any, x: Any) -> Any:
        c = 1 / (i.astype(jnp.float32) + 5)
        return jnp.where(c - c < 0.5, x, 5.0)

    def second(i: Any, x: Any) -> Any:
        c = 1 / (i.astype(jnp.float32) + 5)
        return jnp.where(c * 0 < 0.5, x, 5.0)

    assert swept(monkeypatch, first, second, "int32[n]", "n").status != PROVED


def test_rounding_to_integers_of_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    found = swept(
        monkeypatch,
        lambda x, y: (jnp.floor(jnp.exp(x) * jnp.exp(y)), jnp.exp(x) * jnp.exp(y)),
        lambda x, y: (jnp.floor(jnp.exp(x + y)), jnp.exp(x + y)),
        "n", "n", numerics="range",
    )  # fmt: skip
    assert found.outputs[0].status != PROVED


def test_what_no_step_reads_is_still_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(x: Any, y: Any) -> Any:
        return jnp.where(y > 0, jnp.exp(x) * (y + y), 0.0)

    def second(x: Any, y: Any) -> Any:
        return jnp.where(0 < y, 2 * y * jnp.exp(x), 0.0)

    assert swept(monkeypatch, first, second, "n", "n").status == PROVED
