"""Axes that reshapes make of a few parts, indices that are chosen, exponents that are sums of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import superopt
from tests.support.sampling import one_in, sampled
from verifier.statements.statement import make_statement, proved_alone

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], tuple[str, ...]]


def normed(y: Any) -> Any:
    centred = y - y.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def groups(x: Any, count: int = 2) -> Any:
    return normed(x.reshape(x.shape[0], count, x.shape[1] // count)).reshape(x.shape)


def halves(x: Any, turned: bool = False) -> Any:
    half = x.shape[1] // 2
    parts = [normed(x[:, :half]), normed(x[:, half:])]
    return jnp.concatenate(parts[::-1] if turned else parts, 1)


def inside(i: Any, n: Any) -> Any:
    return jnp.where(i < 0, i + n, i)


def part(x: Any, i: Any, n: int) -> Any:
    return lax.dynamic_slice(x, (i,), (n,))


def parts(x: Any, i: Any, j: Any) -> Any:
    return part(part(x, i, 5), j, 2)


def joined(x: Any, i: Any, j: Any, most: int = 3) -> Any:
    first = jnp.clip(inside(i, x.shape[0]), 0, x.shape[0] - 5)
    return part(x, first + jnp.clip(inside(j, 5), 0, most), 2)


def alibi(q: Any, k: Any, s: Any, causal: bool = False) -> Any:
    i = jnp.arange(q.shape[0])
    scores = q @ k.T - s * (i[:, None] - i[None, :])
    return jax.nn.softmax(jnp.where(i[None] <= i[:, None], scores, -jnp.inf) if causal else scores, -1)


def shifted(q: Any, k: Any, s: Any, causal: bool = False, times: int = 1) -> Any:
    i = jnp.arange(q.shape[0])
    scores = q @ k.T + times * s * i[None, :]
    return jax.nn.softmax(jnp.where(i[None] <= i[:, None], scores, -jnp.inf) if causal else scores, -1)


TRUE: dict[str, Case] = {
    "groups by halves": (groups, halves, ("b 2*k",), ("k >= 1",)),
    "groups by halves of a number": (groups, halves, ("b 8",), ()),
    "two dynamic slices": (parts, joined, ("n", "int32[]", "int32[]"), ("n >= 5",)),
    "positional bias": (alibi, shifted, ("t d", "t d", ""), ("t >= 1",)),
    "causal positional bias": (
        lambda q, k, s: alibi(q, k, s, True), lambda q, k, s: shifted(q, k, s, True), ("t d", "t d", ""), ("t >= 1",)
    ),
}  # fmt: skip
FALSE: dict[str, Case] = {
    "halves changed over": (groups, lambda x: halves(x, True), ("b 2*k",), ("k >= 1",)),
    "quarters by halves": (lambda x: groups(x, 4), halves, ("b 4*k",), ("k >= 2",)),
    "one part of four": (
        lambda x: x.reshape(4, -1).sum(1), lambda x: x.reshape(4, -1).sum(1) + jnp.array([0, 0, 0, 1e-6]) * x[0],
        ("4*k",), ("k >= 1",)
    ),
    "one element of halves": (
        lambda x: x.reshape(2, -1).reshape(-1), lambda x: x.reshape(2, -1).at[1].get().repeat(2), ("2*k",), ("k >= 1",)
    ),
    "two dynamic slices one further": (
        parts, lambda x, i, j: joined(x, i, j, 4), ("n", "int32[]", "int32[]"), ("n >= 6",)
    ),
    "two dynamic slices without an end": (
        parts, lambda x, i, j: part(x, inside(i, x.shape[0]) + inside(j, 5), 2), ("n", "int32[]", "int32[]"),
        ("n >= 5",)
    ),
    "positional bias twice": (alibi, lambda q, k, s: shifted(q, k, s, times=2), ("t d", "t d", ""), ("t >= 1",)),
    "positional bias of the other sign": (
        alibi, lambda q, k, s: shifted(q, k, s, times=-1), ("t d", "t d", ""), ("t >= 1",)
    ),
    "an index that wraps": (
        lambda x, i: part(x, i + jnp.int8(1), 2), lambda x, i: part(x, jnp.maximum(i + jnp.int8(1), 0), 2),
        ("n", "int8[]"), ("n >= 300",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_true_ones_are_proved_by_the_prover_alone(name: str) -> None:
    left, right, specs, constraints = TRUE[name]
    assert proved_alone(make_statement(name, left, right, specs, {}, constraints)).status == "PROVED"


@pytest.mark.parametrize("name", sampled(TRUE, one_in(5)))
def test_true_ones_are_proved(name: str) -> None:
    left, right, specs, constraints = TRUE[name]
    assert superopt.verify(left, right, *specs, constraints=constraints).status == "PROVED"


@pytest.mark.parametrize("name", FALSE)
def test_false_ones_are_not_proved_by_the_prover_alone(name: str) -> None:
    left, right, specs, constraints = FALSE[name]
    assert proved_alone(make_statement(name, left, right, specs, {}, constraints)).status != "PROVED"
