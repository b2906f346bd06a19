"""Laws of order: the greatest value of an increasing function, and the value at the place of an extreme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax import numpy as jnp

import superopt
from tests.support.sampling import one_in, sampled
from verifier.statements.statement import make_statement, proved_alone
from verifier.verdict import PROVED, REFUTED

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...]]
softmax, logistic, logsumexp = jax.nn.softmax, jax.nn.sigmoid, jax.nn.logsumexp


def at(x: Any, place: Any) -> Any:
    return jnp.take_along_axis(x, place[:, None], 1)[:, 0]


TRUE: dict[str, Case] = {
    "max of softmax": (
        lambda x: softmax(x).max(-1), lambda x: 1 / jnp.exp(x - x.max(-1, keepdims=True)).sum(-1), ("m n+1",)
    ),
    "its logarithm": (lambda x: jnp.log(softmax(x).max()), lambda x: jax.nn.log_softmax(x).max(), ("n+1",)),
    "max of exp": (lambda x: jnp.exp(x).max(), lambda x: jnp.exp(x.max()), ("n",)),
    "min of tanh": (lambda x: jnp.tanh(x).min(), lambda x: jnp.tanh(x.min()), ("n+1",)),
    "a negative factor": (lambda x: (-3 * logistic(x)).max(), lambda x: -3 * logistic(x.min()), ("n+1",)),
    "of two": (
        lambda x, y: jnp.maximum(jnp.exp(x), jnp.exp(y)), lambda x, y: jnp.exp(jnp.maximum(x, y)), ("n", "n")
    ),
    "over a sum of exponentials": (
        lambda x, s: (x / jnp.exp(s).sum()).max(), lambda x, s: x.max() / jnp.exp(s).sum(), ("n+1", "m+1")
    ),
    "by a temperature": (
        lambda x: softmax(x / 3).max(), lambda x: 1 / jnp.exp((x - x.max()) / 3).sum(), ("n+1",)
    ),
    "a constant factor": (lambda x: (x / -3).max(), lambda x: x.min() / -3, ("n+1",)),
    "softmax by logsumexp": (lambda x: softmax(x), lambda x: jnp.exp(x - logsumexp(x, -1, keepdims=True)), ("m n+1",)),
    "of log softmax": (lambda x: jnp.exp(jax.nn.log_softmax(x)), lambda x: softmax(x), ("n",)),
    "confidence by logsumexp": (
        lambda x: softmax(x).max(-1), lambda x: jnp.exp(x.max(-1) - logsumexp(x, -1)), ("m n+1",)
    ),
    "twice a logarithm": (lambda x: jnp.exp(x).sum() ** 2, lambda x: jnp.exp(2 * logsumexp(x)), ("n+1",)),
    "of a number": (lambda x: jnp.maximum(x, 1), lambda x: jnp.where(x > 1, x, 1), ("n",)),
    "at argmax": (lambda x: x[jnp.argmax(x)], lambda x: x.max(), ("n+1",)),
    "at argmin": (lambda x: x[jnp.argmin(x)], lambda x: x.min(), ("n",)),
    "at argmax of the negated": (lambda x: x[jnp.argmax(-x)], lambda x: x.min(), ("n+1",)),
    "of integers": (lambda i: i[jnp.argmin(i)], lambda i: i.min(), ("int32[n+1]",)),
    "of rows": (lambda x: at(x, jnp.argmax(x, 1)), lambda x: x.max(1), ("m n+1",)),
    "of columns": (lambda x: at(x.T, jnp.argmax(x, 0)), lambda x: x.max(0), ("n+1 m",)),
    "as an index": (
        lambda x, i: jnp.take(x, i[jnp.argmax(i)], mode="clip"), lambda x, i: jnp.take(x, i.max(), mode="clip"),
        ("m+1", "int32[n+1]"),
    ),
    "both places in one sum": (
        lambda x: x[jnp.argmax(x)] - x[jnp.argmin(x)], lambda x: x.max() - x.min(), ("n+1",)
    ),
}  # fmt: skip
FALSE: dict[str, Case] = {
    "a decreasing function": (lambda x: jnp.exp(-x).max(), lambda x: jnp.exp(-x.max()), ("n+1",)),
    "a negative factor": (lambda x: (-jnp.exp(x)).max(), lambda x: -jnp.exp(x.max()), ("n+1",)),
    "of two factors": (
        lambda x: jnp.maximum(2 * jnp.exp(x), jnp.exp(x + 1)), lambda x: 2 * jnp.exp(x), ("n",)
    ),
    "an even function": (lambda x: jnp.cosh(x).max(), lambda x: jnp.cosh(x.max()), ("n+1",)),
    "of two functions": (
        lambda x, y: jnp.maximum(jnp.tanh(x), jnp.exp(y)), lambda x, y: jnp.tanh(jnp.maximum(x, y)), ("n", "n")
    ),
    "of nothing": (
        lambda x, b: jnp.exp(x).max(initial=-jnp.inf, where=b),
        lambda x, b: jnp.exp(x.max(initial=-jnp.inf, where=b)), ("n", "bool[n]"),
    ),
    "a sum that may be negative": (lambda x, s: (x / s.sum()).max(), lambda x, s: x.max() / s.sum(), ("n+1", "m+1")),
    "a sum of exponentials of nothing": (
        lambda x, s: (x * jnp.exp(s).sum()).max(initial=-jnp.inf),
        lambda x, s: x.max(initial=-jnp.inf) * jnp.exp(s).sum(), ("n", "m"),
    ),
    "a constant factor": (lambda x: (x / -3).max(), lambda x: x.max() / -3, ("n+1",)),
    "a logarithm without a value": (lambda x: x.sum(), lambda x: jnp.exp(jnp.log(x.sum())), ("n+1",)),
    "half a logarithm": (lambda x: jnp.exp(x).sum(), lambda x: jnp.exp(logsumexp(x) / 2), ("n+1",)),
    "the other extreme": (lambda x: x[jnp.argmin(x)], lambda x: x.max(), ("n+1",)),
    "an extreme as a place": (lambda i: jnp.take(i, i.max(), mode="clip"), lambda i: i.max(), ("int32[n+1]",)),
    "extremes as indices": (
        lambda x, i: jnp.take(x, i.min(), mode="clip"), lambda x, i: jnp.take(x, i.max(), mode="clip"),
        ("m+1", "int32[n+1]"),
    ),
    "another tensor": (lambda x, y: y[jnp.argmax(x)], lambda x, y: y.max(), ("n+1", "n+1")),
    "other rows": (lambda x: at(x, jnp.argmax(x[::-1], 1)), lambda x: x.max(1), ("m n+1",)),
    "another row": (lambda x: x[0][jnp.argmax(x[1])], lambda x: x[0].max(), ("2 n+1",)),
    "of magnitudes": (lambda x: x[jnp.argmax(jnp.abs(x))], lambda x: jnp.abs(x).max(), ("n+1",)),
    "the transposed": (lambda x: x.T[jnp.argmax(x[0]), 0], lambda x: x.T[0].max(), ("n+1 n+1",)),
    "of a part": (lambda x: x[1:][jnp.argmax(x[:-1])], lambda x: x[1:].max(), ("n+2",)),
    "the last of equal ones": (
        lambda x: x.shape[0] - 1 - jnp.argmax(x[::-1]), lambda x: jnp.argmax(x), ("n+1",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE)
def test_extremes_are_proved_equal(name: str) -> None:
    left, right, specs = TRUE[name]
    assert proved_alone(make_statement(name, left, right, specs, {})).proved


@pytest.mark.parametrize("name", sampled(TRUE, one_in(5)))
def test_extremes_that_are_equal(name: str) -> None:
    found = superopt.verify(*TRUE[name][:2], *TRUE[name][2])
    assert found.status == PROVED, str(found)


@pytest.mark.parametrize("name", FALSE)
def test_extremes_are_not_proved_equal(name: str) -> None:
    left, right, specs = FALSE[name]
    assert not proved_alone(make_statement(name, left, right, specs, {})).proved


@pytest.mark.parametrize("name", sampled(FALSE, one_in(3)))
def test_extremes_that_differ(name: str) -> None:
    left, right, specs = FALSE[name]
    assert superopt.verify(left, right, *specs).status == REFUTED


def test_the_place_of_an_extreme_holds_it_in_every_bit() -> None:
    left, right, specs = TRUE["at argmax"]
    found = superopt.verify(left, right, *specs)
    assert found.domain is not None
    assert found.domain.exactness == "exact"
