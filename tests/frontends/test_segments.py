"""Scatters that add rows to zeros are sums by segments; others stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.xla import to_jax
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)
PLACES = np.array([2, 0, 2, 9, -1, 1], np.int32)
TABLE = np.array([[0, 2], [2, 1], [1, 1], [0, 0], [2, 2], [1, 0]], np.int32)

SUMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "rows": (lambda u, i: jax.ops.segment_sum(u, i, 3), (ROWS, PLACES)),
    "numbers": (lambda u, i: jax.ops.segment_sum(u, i, 3), (ROWS[:, 0], PLACES)),
    "integers": (lambda u, i: jax.ops.segment_sum(u, i, 3), (ROWS.astype(np.int32), PLACES)),
    "places from the end": (lambda u, i: jnp.zeros((3, 4)).at[i].add(u), (ROWS, PLACES)),
    "columns": (lambda u, i: jnp.zeros((4, 3)).at[:, i].add(u), (ROWS.T, PLACES)),
    "tables of places": (lambda u, i: jnp.zeros((3, 4)).at[i].add(u), (np.ones((6, 2, 4), np.float32), TABLE)),
    "a histogram": (lambda i: jnp.zeros(3, int).at[i].add(1), (PLACES,)),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "rows added to others": (lambda u, i: jnp.ones((3, 4)).at[i].add(u), (ROWS, PLACES)),
    "greatest rows": (lambda u, i: jax.ops.segment_max(u, i, 3), (ROWS, PLACES)),
    "clipped places": (lambda u, i: jnp.zeros((3, 4)).at[i].add(u, mode="clip"), (ROWS, PLACES)),
    "two places": (lambda u, i: jnp.zeros((3, 3)).at[i[:, 0], i[:, 1]].add(u), (ROWS[:, 0], TABLE)),
    "halves": (lambda u, i: jax.ops.segment_sum(u.astype(jnp.bfloat16), i, 3), (ROWS, PLACES)),
}


@pytest.mark.parametrize("name", SUMS)
def test_rows_added_to_zeros_are_sums_by_segments(name: str) -> None:
    fn, args = SUMS[name]
    imported = import_function(fn, args)
    ops = {node.op for node in imported.graph.nodes()}
    assert "segment_sum" in ops
    assert "opaque" not in ops
    want = np.asarray(fn(*map(jnp.asarray, args)))
    (value,) = evaluate(imported.graph, dict(zip(imported.names, args, strict=True)))
    np.testing.assert_array_equal(value, want)
    (made,) = to_jax(imported.graph)(*args)
    np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("name", OTHERS)
def test_other_scatters_stay(name: str) -> None:
    assert "segment_sum" not in {node.op for node in import_function(*OTHERS[name]).graph.nodes()}
