"""Drawings of what is computed of frozen values alone, where such a value equals one of its own operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.report.data import DrawnNode

RNG = np.random.default_rng(0)
W, X = RNG.standard_normal((64, 64)).astype(np.float32), RNG.standard_normal((8, 64)).astype(np.float32)

NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "times one": lambda w: jnp.exp(w) * 1.0,
    "plus zero": lambda w: jnp.exp(w) + 0.0,
    "over one": lambda w: jnp.tanh(w) / 1.0,
    "softmax times one": lambda w: jax.nn.softmax(w) * 1.0,
    "twice": lambda w: jnp.sin((jnp.exp(w) * 1.0) / 1.0) + 0.0,
    "least with itself": lambda w: jnp.minimum(jnp.exp(w), jnp.exp(w)),
    "there and back": lambda w: jnp.exp(w).T.T.reshape(8, 512).reshape(64, 64) * 1.0,
    "used twice": lambda w: (jnp.exp(w) * 1.0) @ jnp.exp(w) + jnp.exp(w) * 1.0,
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_frozen_value_that_equals_its_operand_is_drawn_once(name: str) -> None:
    result = superopt.optimize(
        lambda w, x: x @ NEUTRAL[name](w), W, X, frozen=0, budget="50steps", deterministic=True, store=False, rules=[]
    )
    drawing = result.report.drawing
    assert drawing is not None
    for side in (drawing.before, drawing.after):
        check_drawn(side)
    assert any(node.change == "ahead" for node in drawing.before)


def check_drawn(side: tuple[DrawnNode, ...]) -> None:
    """Every value once, operands before readers, kernels among the values."""
    done: set[int] = set()
    kernels = {node.id for node in side}
    for node in side:
        assert node.id not in done
        assert set(node.reads) <= done
        assert node.kernel in kernels
        done.add(node.id)
