"""Equal blocks on a diagonal are imported as one tensor under a mask; all other joined rows stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import block_diag

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.interp import evaluate

A = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
Fn = Callable[..., Any]
BLOCKS: dict[str, tuple[Fn, tuple[np.ndarray, ...]]] = {
    "blocks of a batch": (lambda a: block_diag(*a), (A,)),
    "separate blocks": (lambda a, b: block_diag(a, b, a), (A[0], A[1])),
    "some of a batch": (lambda a: block_diag(a[1], a[2]), (A,)),
    "a batch in another order": (lambda a: block_diag(a[1], a[0], a[3], a[2]), (A,)),
    "single entries": (lambda a: block_diag(*a), (A[:, :1, :1],)),
}
OTHERS: dict[str, tuple[Fn, tuple[np.ndarray, ...]]] = {
    "blocks of several sizes": (lambda a, b: block_diag(a, b), (A[0], A[1, :1])),
    "one block": (lambda a: block_diag(a), (A[0],)),
    "rows below each other": (lambda a, b: jnp.concatenate([a, b]), (A[0], A[1])),
    "other values beside": (
        lambda a, b: jnp.concatenate(
            [jnp.pad(a, ((0, 0), (0, 3)), constant_values=1), jnp.pad(b, ((0, 0), (3, 0)), constant_values=1)]
        ),
        (A[0], A[1]),
    ),
    "blocks on the other diagonal": (
        lambda a, b: jnp.concatenate([jnp.pad(a, ((0, 0), (3, 0))), jnp.pad(b, ((0, 0), (0, 3)))]), (A[0], A[1]),
    ),
}  # fmt: skip


def imported(fn: Fn, args: tuple[np.ndarray, ...]) -> Graph:
    """The graph of a function, which has the function's value."""
    made = import_function(fn, args)
    given = dict(zip((x["name"] for x in made.graph.inputs), made.live_values, strict=True))
    np.testing.assert_array_equal(evaluate(made.graph, given)[0], fn(*args))
    return made.graph


@pytest.mark.parametrize("name", BLOCKS)
def test_equal_blocks_are_a_tensor_under_a_mask(name: str) -> None:
    ops = {n.op for n in imported(*BLOCKS[name]).nodes()}
    assert "select_n" in ops
    assert "pad" not in ops


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    assert "select_n" not in {n.op for n in imported(*OTHERS[name]).nodes()}


def test_blocks_of_a_batch_are_not_joined_again() -> None:
    assert "concatenate" not in {n.op for n in imported(*BLOCKS["blocks of a batch"]).nodes()}
