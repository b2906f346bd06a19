"""Forms that an exploration finds of small programs, told by the tensors that they never make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.certify.library import proved_library
from superopt.explore.exploration import explore
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from tests.support.search_table import TableObjective
from tests.support.stages import steps

LIBRARY = proved_library(None)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def below(end: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, end, shape).astype(np.int32)


def largest(graph: Graph) -> int:
    """Elements of the largest tensor that a program makes."""
    return max(math.prod(map(int, node.shape)) for node in graph.nodes() if node.op not in ("input", "reshape"))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], int]] = {
    "diagonal of a product": (lambda a, b: jnp.diag(a @ b), (draw(60, 8), draw(8, 60)), 60 * 8),
    "diagonal above that of a product": (
        lambda a, b: jnp.diagonal(a @ b, 2), (draw(60, 8), draw(8, 70)), 60 * 8,
    ),
    "diagonals of a batch of products": (
        lambda a, b: jnp.diagonal(a @ b, axis1=1, axis2=2), (draw(3, 60, 8), draw(3, 8, 60)), 3 * 60 * 8,
    ),
    "diagonal of a quadratic form": (lambda w, c: jnp.diag(w @ c @ w.T), (draw(60, 8), draw(8, 8)), 60 * 8),
    "one iota twice": (
        lambda a, b: (a @ b)[jnp.arange(60), jnp.arange(60)], (draw(60, 8), draw(8, 60)), 60 * 8,
    ),
    "variances of a posterior": (
        lambda k, v: jnp.diag(k - v.T @ v), (draw(60, 60), draw(8, 60)), 60 * 8,
    ),
    "diagonal of an einsum": (lambda x: jnp.einsum("bii->bi", x) + 1, (draw(5, 60, 60),), 5 * 60),
    "trace": (lambda x: jnp.trace(x), (draw(60, 60),), 60),
    "matrices by kinds": (
        lambda h, i, w, j: jnp.einsum("ed,edf->ef", h[i], w[j]),
        (draw(20, 8), below(20, 200), draw(3, 8, 8), below(3, 200)), 200 * 3 * 8,
    ),
    "readout of graphs": (
        lambda x, i, w, b: jax.ops.segment_sum(x @ w + b, i, 6),
        (draw(300, 8), below(6, 300), draw(8, 16), draw(16)), 300 * 8,
    ),
    "means of windows": (
        lambda x: jnp.mean(x[jnp.arange(200 - 31)[:, None] + jnp.arange(32)], 1), (draw(200),), 200,
    ),
    "maxima of windows of rows": (
        lambda x: jnp.max(x[:, jnp.arange(200 - 20)[:, None] + jnp.arange(21)], -1), (draw(3, 200),), 3 * 200,
    ),
    "structure factor": (
        lambda x, k: jnp.sum(jnp.cos(jnp.einsum("ijd,kd->kij", x[:, None] - x[None], k)), (1, 2)),
        (draw(60, 3), draw(8, 3)), 8 * 60,
    ),
    "solution with low rank": (
        lambda u, y: jnp.linalg.inv(10.0 * jnp.eye(60) + u @ u.T) @ y, (draw(60, 4), draw(60)), 60 * 4,
    ),
    "solution with identity and low rank": (
        lambda u, y: jnp.linalg.solve(jnp.eye(60) + u @ u.T, y), (draw(60, 4), draw(60)), 60 * 4,
    ),
    "total of differences of pairs": (
        lambda x, y: jnp.sum((x[:, None] - y) @ jnp.eye(4), (0, 1)), (draw(60, 4), draw(50, 4)), 4,
    ),
    "messages of both ends of an edge": (
        lambda x, i, j, w: jnp.concatenate([x[i], x[j]], 1) @ w,
        (draw(20, 8), below(20, 300), below(20, 300), draw(16, 4)), 300 * 4,
    ),
    "causal attention without a softmax": (
        lambda q, k, v: jnp.tril(q @ k.T) @ v, (draw(256, 4), draw(256, 4), draw(256, 4)), 256 * 64,
    ),
    "last of scaled running products": (lambda s, x: (s * jnp.cumprod(x, 1))[:, -1], (draw(1), draw(20, 60)), 20),
    "last of running maxima": (lambda x: jax.lax.cummax(x, 1)[:, -1] + 1, (draw(20, 60),), 20),
}  # fmt: skip
"""Function, arguments, and the size of the largest tensor of a good form."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_best_form_makes_no_large_tensor(name: str) -> None:
    fn, args, most = PROGRAMS[name]
    imported = import_function(fn, args)
    found = explore(imported.graph, LIBRARY.rules, steps(300, TableObjective()))
    hot = found.program(found.result.best).hot
    assert largest(hot) <= most, hot
    assert largest(imported.graph) > most
