"""Gathers at positions that are known at import: slices, and diagonals as gathers of one element from each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.interp import evaluate

A, B = (5, 7), (2, 4, 4)


def places(n: int, first: int = 0) -> jax.Array:
    return jnp.arange(n) + first


KNOWN: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], int]] = {
    "diagonal": (jnp.diagonal, A, 1),
    "diagonal of more rows than columns": (lambda x: jnp.diagonal(x.T), A, 1),
    "diagonal above": (lambda x: jnp.diagonal(x, 2), A, 1),
    "diagonal below": (lambda x: jnp.diagonal(x, -3), A, 1),
    "matrix of a diagonal": (lambda x: jnp.diag(x, k=1), A, 1),
    "diagonals of a batch": (lambda x: jnp.diagonal(x, axis1=1, axis2=2), B, 1),
    "diagonals of outer axes": (lambda x: jnp.diagonal(x, 1, axis1=0, axis2=2), B, 1),
    "diagonal of a square": (jnp.diagonal, B[1:], 1),
    "diagonals under vmap": (jax.vmap(jnp.diag), B, 1),
    "one iota twice": (lambda x: x[places(5), places(5)], A, 1),
    "two counts": (lambda x: x[places(4, 1), places(4, 3)], A, 1),
    "counts from the end": (lambda x: x[places(3, -3), places(3)], A, 1),
    "one iota three times": (lambda x: x[places(2), places(2), places(2)], B, 2),
    "one iota around all": (lambda x: x[places(2), :, places(2)], B, 1),
    "block of counts": (lambda x: x[places(3)[:, None], places(4, 1)], A, 0),
    "block of counts, turned": (lambda x: x[places(3), places(4, 1)[:, None]], A, 0),
    "count beside one position": (lambda x: x[places(5), 3], A, 0),
}
"""Function, shape of its argument, and the number of gathers that are left."""

OTHERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "counts down": (lambda x: x[places(5)[::-1], places(5)], A),
    "steps": (lambda x: x[places(3), 2 * places(3)], A),
    "entries several times": (lambda x: x[jnp.zeros((3, 5), int) + places(5), places(5)], A),
    "out of bounds": (lambda x: x.at[places(9), places(9)].get(mode="fill"), A),
    "clipped": (lambda x: x.at[places(9), places(9)].get(mode="clip"), A),
    "blocks": (lambda x: jax.lax.gather(
        x, places(4)[:, None], jax.lax.GatherDimensionNumbers((1,), (), (1,), (0,), (0,)), (1, 3), mode="clip"
    ), (4, 6)),
}  # fmt: skip
"""Gathers that stay as they are."""


def gathers(imported: Imported) -> list[Any]:
    return [node for node in imported.graph.nodes() if node.op == "gather"]


def imported_with_value(fn: Callable[[Any], Any], shape: tuple[int, ...]) -> Imported:
    """The import of a function, which computes what the function does."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    imported = import_function(fn, (x,))
    (value,) = evaluate(imported.graph, {imported.names[0]: x})
    np.testing.assert_array_equal(value, fn(jnp.asarray(x)))
    return imported


@pytest.mark.parametrize("name", KNOWN)
def test_counted_positions_are_slices_and_diagonals(name: str) -> None:
    fn, shape, count = KNOWN[name]
    left = gathers(imported_with_value(fn, shape))
    assert len(left) == count
    assert all(len(node["start_index_map"]) == len(node["operand_batching_dims"]) == 1 for node in left)
    assert all(node.inputs[1].op == "reshape" and node.inputs[1].inputs[0].op == "iota" for node in left)


@pytest.mark.parametrize("name", OTHERS)
def test_other_positions_stay(name: str) -> None:
    (node,) = gathers(imported_with_value(*OTHERS[name]))
    assert node.inputs[1].op != "reshape" or node.inputs[1].inputs[0].op != "iota" or node["slice_sizes"] == (1, 3)


def test_positions_from_inputs_are_not_known() -> None:
    i = np.arange(4, dtype=np.int32)
    imported = import_function(lambda x, i: x[i, i], (np.ones(A, np.float32), i))
    (node,) = gathers(imported)
    assert len(node["start_index_map"]) == 2


WINDOWS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "windows": (lambda x: x[places(5)[:, None] + places(3)], (7,)),
    "windows, turned": (lambda x: x[places(5) + places(3)[:, None]], (7,)),
    "windows of rows": (lambda x: x[places(5)[:, None] + places(3)], (7, 4)),
    "windows of columns": (lambda x: x[:, places(5)[:, None] + places(3)], (4, 7)),
    "windows from another begin": (lambda x: x[places(5, 2)[:, None] + places(3)], (9,)),
    "Toeplitz matrix": (lambda x: x[places(5)[:, None] - places(5) + 4], (9,)),
    "Toeplitz matrix, turned": (lambda x: x[places(5) - places(5)[:, None] + 4], (9,)),
    "windows backwards": (lambda x: x[:, 8 - places(5)[:, None] - places(3)], (4, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_positions_of_windows_are_a_sum_of_counts(name: str) -> None:
    (node,) = gathers(imported_with_value(*WINDOWS[name]))
    where = node.inputs[1]
    assert where.op == "add"
    assert [x.op for x in where.inputs] == ["iota", "iota"]


@pytest.mark.parametrize(("step", "first", "size"), [(2, 0, 12), (1, -1, 9), (1, 0, 6)])
def test_other_windows_stay(step: int, first: int, size: int) -> None:
    """Steps between windows, and windows that leave the array."""
    (node,) = gathers(imported_with_value(lambda x: x[first + step * places(5)[:, None] + places(3)], (size,)))
    assert node.inputs[1].op != "add" or node.inputs[1].inputs[0].op != "iota"
