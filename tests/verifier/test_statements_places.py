"""Updates at places, places of extremes, positions in branches: true statements are proved, false ones are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.support.sampling import one_in, sampled
from verifier.statements.statement import make_statement, proved_alone

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...], tuple[str, ...]]


def causal(s: jax.Array) -> jax.Array:
    return gaps(s) <= 0


def gaps(s: jax.Array) -> jax.Array:
    at = jnp.arange(s.shape[-1])
    return at[None, :] - at[:, None]


def masked(s: jax.Array, shift: jax.Array, open_: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(open_, s + shift, -jnp.inf), -1)


def places(x: jax.Array) -> jax.Array:
    return jnp.arange(x.shape[0])


def chosen(s: jax.Array) -> jax.Array:
    return jax.nn.one_hot(jnp.argmax(s, -1), s.shape[-1])


GATE, SOME = ("t e", "t e"), ("e >= 1",)
MASKS, LONG = ("t t", ""), ("t >= 3",)
ENTRY, FIVE = ("n", ""), ("n >= 5",)
AT = ("n", "int32[]", "")
TRUE: dict[str, Case] = {
    "distances-behind-a-mask": (lambda s, a: masked(s, -a * jnp.abs(gaps(s)), causal(s)),
        lambda s, a: masked(s, a * gaps(s), causal(s)), MASKS, LONG),
    "distances-as-columns": (lambda s, a: masked(s, -a * jnp.abs(gaps(s)), causal(s)),
        lambda s, a: masked(s, a * jnp.arange(s.shape[1]), causal(s)), MASKS, LONG),
    "distances-of-floats": (lambda s, a: masked(s, -a * jnp.abs(gaps(s).astype("float32")), causal(s)),
        lambda s, a: masked(s, a * gaps(s), causal(s)), MASKS, LONG),
    "distances-before-a-large-number": (
        lambda s, a: jax.nn.softmax(jnp.where(causal(s), s - a * jnp.abs(gaps(s)), -1e9), -1),
        lambda s, a: jax.nn.softmax(jnp.where(causal(s), s + a * gaps(s), -1e9), -1), MASKS, LONG),
    "set-and-where": (lambda x, v: x.at[2].set(v), lambda x, v: jnp.where(places(x) == 2, v, x), ENTRY, FIVE),
    "set-and-concatenation": (lambda x, v: x.at[2].set(v), lambda x, v: jnp.concatenate([x[:2], v[None], x[3:]]),
        ENTRY, FIVE),
    "set-and-slice": (lambda x, v: x.at[1:4].set(v), lambda x, v: lax.dynamic_update_slice(x, v, (1,)),
        ("n", "3"), FIVE),
    "set-a-row": (lambda x, v: x.at[0].set(v), lambda x, v: jnp.concatenate([v[None], x[1:]]), ("n m", "m"), FIVE),
    "set-the-last": (lambda x, v: x.at[-1].set(v), lambda x, v: jnp.concatenate([x[:-1], v[None]]), ENTRY, FIVE),
    "set-outside": (lambda x, v: x.at[9].set(v), lambda x, v: x, ("7", ""), ()),
    "add-and-where": (lambda x, v: x.at[2].add(v), lambda x, v: jnp.where(places(x) == 2, x + v, x), ENTRY, FIVE),
    "set-twice": (lambda x, v: x.at[0].set(2 * v).at[0].set(v), lambda x, v: x.at[0].set(v), ENTRY, FIVE),
    "set-a-cache": (lambda x, i, v: x.at[i].set(v, mode="clip"),
        lambda x, i, v: lax.dynamic_update_slice(x, v[None], (i,)), AT, FIVE),
    "read-at-a-sum": (lambda x, i, j: jnp.take(x, i.astype("int32") + j.astype("int32"), mode="clip"),
        lambda x, i, j: jnp.take(x, j.astype("int32") + i.astype("int32"), mode="clip"),
        ("n", "int8[m]", "int8[m]"), ()),
    "gate-as-a-choice": (lambda x, s: (chosen(s) * x).sum(-1),
        lambda x, s: jnp.take_along_axis(x, jnp.argmax(s, -1)[:, None], 1)[:, 0], GATE, SOME),
    "gate-of-rows": (lambda x, s: jnp.einsum("te,tef->tf", chosen(s), x),
        lambda x, s: jnp.take_along_axis(x, jnp.argmax(s, -1)[:, None, None], 1)[:, 0], ("t e f", "t e"), SOME),
    "gate-of-weights": (lambda x, w, s: jnp.einsum("te,td,edf->tf", chosen(s), x, w),
        lambda x, w, s: jnp.einsum("td,tdf->tf", x, w[jnp.argmax(s, -1)]), ("t d", "e d f", "t e"), SOME),
    "gate-of-negated-scores": (lambda x, s: chosen(s) * x,
        lambda x, s: jax.nn.one_hot(jnp.argmin(-s, -1), s.shape[-1]) * x, GATE, SOME),
}  # fmt: skip
FALSE: dict[str, Case] = {
    "distances-without-a-mask": (lambda s, a: jax.nn.softmax(s - a * jnp.abs(gaps(s)), -1),
        lambda s, a: jax.nn.softmax(s + a * gaps(s), -1), MASKS, LONG),
    "distances-one-beyond-the-mask": (lambda s, a: masked(s, -a * jnp.abs(gaps(s)), gaps(s) <= 1),
        lambda s, a: masked(s, a * gaps(s), gaps(s) <= 1), MASKS, LONG),
    "distances-in-the-other-branch": (lambda s, a: jnp.where(causal(s), s, jnp.abs(gaps(s)) * a),
        lambda s, a: jnp.where(causal(s), s, -gaps(s) * a), MASKS, LONG),
    "distances-behind-a-value": (lambda s, a: jnp.where(causal(s) | (s > 0), jnp.abs(gaps(s)) * a, 0),
        lambda s, a: jnp.where(causal(s) | (s > 0), -gaps(s) * a, 0), MASKS, LONG),
    "read-below-a-bound": (lambda x: jnp.where(places(x) >= 2, x[jnp.minimum(places(x), 3)], 0),
        lambda x: jnp.where(places(x) >= 2, x, 0), ("n",), FIVE),
    "set-or-clipped": (lambda x, i, v: x.at[i].set(v), lambda x, i, v: x.at[i].set(v, mode="clip"), AT, FIVE),
    "set-without-wrapping": (lambda x, i, v: x.at[i].set(v), lambda x, i, v: jnp.where(places(x) == i, v, x), AT, FIVE),
    "set-or-slice": (lambda x, i, v: x.at[i].set(v), lambda x, i, v: lax.dynamic_update_slice(x, v[None], (i,)),
        AT, FIVE),
    "set-or-add": (lambda x, v: x.at[1].add(v), lambda x, v: x.at[1].set(v), ENTRY, FIVE),
    "set-in-another-order": (lambda x, i, v: x.at[i].set(v).at[1].set(0.0),
        lambda x, i, v: x.at[1].set(0.0).at[i].set(v), AT, FIVE),
    "gate-of-the-least": (lambda x, s: (chosen(s) * x).sum(-1),
        lambda x, s: jnp.take_along_axis(x, jnp.argmin(s, -1)[:, None], 1)[:, 0], GATE, SOME),
    "gate-of-the-last": (lambda x, s: (chosen(s) * x).sum(-1), lambda x, s: x[:, -1], GATE, SOME),
    "gate-along-the-other-axis": (lambda x, s: x[jnp.arange(x.shape[0]), jnp.argmax(s, 1)],
        lambda x, s: x[jnp.arange(x.shape[0]), jnp.argmax(s, 0)], ("n n", "n n"), ()),
    "gate-of-the-row-before": (lambda x, s: x[jnp.argmax(s[1:], 1)], lambda x, s: x[jnp.argmax(s[:-1], 1)],
        ("e", "t+1 e"), SOME),
    "gate-of-an-axis-that-has-no-number": (
        lambda x, p: x[jnp.clip(jnp.min(jnp.where(p, places(p), 2**31 - 1)), 0, x.shape[0] - 1)],
        lambda x, p: x[jnp.min(jnp.where(p, places(p), 0))], ("n", "bool[n]"), FIVE),
    "set-beyond-small-arrays": (lambda x, v: x.at[2].set(v), lambda x, v: jnp.where(places(x) == 1, v, x), ENTRY, FIVE),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_what_is_equal_at_places_is_proved(name: str) -> None:
    left, right, specs, constraints = TRUE[name]
    found = proved_alone(make_statement(name, left, right, specs, {}, constraints))
    assert found.proved, found


@pytest.mark.parametrize("name", sampled(FALSE, one_in(2, lambda name: [name.split("-")[0]])))
def test_what_differs_at_places_is_not_proved(name: str) -> None:
    left, right, specs, constraints = FALSE[name]
    assert not proved_alone(make_statement(name, left, right, specs, {}, constraints)).proved
