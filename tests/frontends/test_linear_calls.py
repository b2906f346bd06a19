"""Calls of `jnp.linalg.solve` and `jnp.linalg.inv` are ops; what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import Array, lax
from jax import numpy as jnp
from jax.scipy import linalg

import superopt
from superopt.backends.xla import build
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import every_node
from superopt.ir.program import original_program
from verifier.verdict import PROVED

A, Y, V = np.eye(3, dtype=np.float32) + 0.1, np.ones((3, 2), np.float32), np.arange(3, dtype=np.float32)
BATCH = np.stack([A, A + 0.2, 2 * A])
solve, inv = jnp.linalg.solve, jnp.linalg.inv


def ops(fn: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    graph = import_function(fn, args, **options).graph
    return [n.op for n in every_node([graph]) if n.op in ("solve", "inverse", "opaque")]


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "several right sides": (solve, (A, Y), ["solve"]),
    "one right side": (solve, (A, V), ["solve"]),
    "a batch": (solve, (BATCH, np.stack([Y] * 3)), ["solve"]),
    "under vmap": (jax.vmap(solve), (BATCH, np.stack([V] * 3)), ["solve"]),
    "under two vmaps": (jax.vmap(jax.vmap(solve)), (BATCH[None], np.stack([V] * 3)[None]), ["solve"]),
    "an inverse": (inv, (A,), ["inverse"]),
    "inverses of a batch": (inv, (BATCH[None],), ["inverse"]),
    "an inverse under vmap": (jax.vmap(inv), (BATCH,), ["inverse"]),
    "that of jax.scipy": (linalg.solve, (A, Y), ["solve"]),
    "within jit": (jax.jit(lambda a, y: inv(a + 1.0 * jnp.eye(3)) @ y), (A, Y), ["inverse"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_ops_with_the_values_of_the_original(name: str) -> None:
    fn, args, found = CALLS[name]
    assert ops(fn, *args) == found
    imported = import_function(fn, args)
    (got,) = build(original_program(imported.graph), {})(*args)
    np.testing.assert_array_equal(got, jax.jit(fn)(*args))


def test_other_solvers_are_kept() -> None:
    def lookalike(a: Array, y: Array) -> Array:
        @jax.jit
        def solve(a: Array, y: Array) -> Array:
            return linalg.lu_solve(linalg.lu_factor(a), y, trans=1)

        return solve(a, y)

    for fn in (lookalike, lambda a, y: linalg.solve(a, y, assume_a="pos")):
        assert "solve" not in ops(fn, A, Y)


def test_derivatives_are_kept() -> None:
    found = ops(jax.grad(lambda a, y: jnp.sum(solve(a, y) ** 2)), A, Y)
    assert "opaque" in found


def test_a_matrix_that_stays_the_same_is_factorised_once() -> None:
    """A factor is computed ahead of time, or once before a loop; as one op it would be computed each time."""
    assert "solve" not in ops(solve, A, Y, frozen=0)
    steps = ops(lambda a, y: lax.fori_loop(0, 5, lambda _, x: solve(a, x), y), A, Y)
    assert "solve" not in steps
    assert "solve" in ops(lambda a, y: lax.fori_loop(0, 5, lambda _, x: solve(a + x @ x.T, x), y), A, Y)


def test_functions_are_proved_equal_at_all_sizes() -> None:
    specs = ("n n", "n m", "m k")
    right = superopt.verify(lambda a, b, c: inv(a) @ b @ c, lambda a, b, c: solve(a, b @ c), *specs)
    assert right.status == PROVED, str(right)
    wrong = superopt.verify(lambda a, b, c: inv(a) @ b @ c, lambda a, b, c: solve(a.T, b @ c), *specs)
    assert wrong.status != PROVED
