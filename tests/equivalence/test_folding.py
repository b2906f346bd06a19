"""Stored tensors found to be expressions of others: turned, side by side, and close ones that are not."""

from __future__ import annotations

import numpy as np

from superopt.equivalence.constants import Constants
from superopt.equivalence.folding import Folded, fold
from superopt.ir.graph import Node, make_input, mk

RNG = np.random.default_rng(0)
ARRAYS = {k: RNG.standard_normal((4, 3)).astype(np.float32) for k in "abc"}
A, B, C = (make_input(k, (4, 3), frozen=True) for k in "abc")


def folded(array: np.ndarray, terms: list[Node], *moved: str) -> Folded | None:
    leaf = make_input("w", array.shape, frozen=True)
    places = [mk("rev", leaf, dimensions=(0,))] if moved else []
    return fold(leaf, array, terms, places, Constants({**ARRAYS, "w": array}))


def test_matrices_side_by_side_in_any_order_of_axes() -> None:
    array = np.concatenate([ARRAYS["a"], ARRAYS["b"], np.zeros((4, 2), np.float32), ARRAYS["c"]], 1)
    found = folded(array, [C, B, A])
    assert found is not None
    assert found.term.op == "concatenate"
    assert [x.op for x in found.term.inputs] == ["input", "input", "broadcast_in_dim", "input"]
    assert found.apart == 0.0
    turned = folded(np.ascontiguousarray(array.T), [A, B, C])
    assert turned is not None
    assert turned.term["dimension"] == 0
    assert folded(array + np.float32(1e-3), [A, B, C]) is None
    assert folded(np.zeros((4, 6), np.float32), [A]) is None


def test_a_tensor_turned_round() -> None:
    term = mk("mul", A, B)
    array = (ARRAYS["a"] * ARRAYS["b"])[::-1].copy()
    assert folded(array, [term]) is None
    found = folded(array, [term], "rev")
    assert found is not None
    assert found.term == mk("rev", term, dimensions=(0,))
    assert found.also[0][1] is term
