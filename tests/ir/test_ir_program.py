"""The part of a program that runs ahead of its calls: costly values that depend on no input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate
from superopt.ir.program import frozen_cut, split


def decayed(x: jax.Array) -> jax.Array:
    lag = jnp.arange(5)[:, None] - jnp.arange(5)
    return jnp.where(lag >= 0, 0.5 ** jnp.maximum(lag, 0), 0.0) @ x


def masked(x: jax.Array) -> jax.Array:
    return jnp.tril(jnp.ones((5, 5))) @ x


def scaled(x: jax.Array) -> jax.Array:
    return x * jnp.exp(jnp.float32(2.0))


def summed(x: jax.Array) -> jax.Array:
    return x + jnp.sum(jnp.arange(6.0).reshape(2, 3), axis=0)


@pytest.mark.parametrize(("fn", "ahead"), [(decayed, [(5, 5)]), (masked, []), (scaled, []), (summed, [(3,)])])
def test_costly_constants_are_computed_ahead(fn: Callable[..., Any], ahead: list[tuple[int, ...]]) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    graph = import_function(fn, (x,)).graph
    program = split(graph, frozen_cut(graph))
    prepared = [] if program.prepare is None else evaluate(program.prepare, {})
    assert [a.shape for a in prepared] == ahead
    given = {node["name"]: a for node, a in zip(program.prepared_inputs, prepared, strict=True)}
    (name,) = (node["name"] for node in graph.inputs)
    np.testing.assert_array_equal(evaluate(program.hot, {name: x} | given)[0], evaluate(graph, {name: x})[0])
