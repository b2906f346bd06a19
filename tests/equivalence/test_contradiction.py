"""Values that refute a proof are a defect of the prover: sought at the ends of types, reported by every caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.equivalence import symbolic, verdict
from superopt.equivalence.functions import compare_functions
from superopt.equivalence.refute import Evaluation, contradiction
from superopt.equivalence.sharing import share
from superopt.equivalence.steps import PairProof
from superopt.equivalence.symbolic import SizedArguments, compare_symbolic
from superopt.errors import InputError, ProverDefectError, UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from verifier.verdict import PROVED

Function = Callable[[Any], Any]
FLOATS, INTEGERS = np.ones(16, np.float32), np.arange(16, dtype=np.int32)


def told(first: Function, second: Function, x: np.ndarray, exactness: str = "exact") -> str:
    both = share(*(import_function(fn, (x,), {}).graph for fn in (first, second)))
    return contradiction(Evaluation(both), [0], exactness, 0)


@pytest.mark.parametrize(
    ("first", "second", "x", "where"),
    [
        (lambda x: x + 1 > x, lambda x: x == x, INTEGERS, "at the ends of their types"),
        (lambda x: jnp.abs(x) >= 0, lambda x: x == x, INTEGERS, "at the ends of their types"),
        (lambda x: x * 0, lambda x: x - x + 0 * jnp.ones_like(x), FLOATS, ""),
        (lambda x: x + 1, lambda x: x + 2, FLOATS, "where inputs are ordinary"),
        (lambda x: jnp.where(x == x, x, 0.0), lambda x: x + 0, FLOATS, "where inputs are nan"),
        (lambda x: x + 0, lambda x: jnp.where(x == x, x, 0.0), FLOATS, "where inputs are nan"),
        (lambda x: x + 0, lambda x: jnp.minimum(x, 3e38), FLOATS, "where inputs are inf"),
        (lambda x: jnp.minimum(x, 3e38), lambda x: x + 0, FLOATS, "where inputs are inf"),
        (lambda x: jnp.maximum(x, -3e38), lambda x: x + 0, FLOATS, "where inputs are -inf"),
        (lambda x: jnp.abs(x), lambda x: jnp.maximum(x, -x), INTEGERS, ""),
    ],
)
def test_programs_that_are_unlike_at_special_values(
    first: Function, second: Function, x: np.ndarray, where: str
) -> None:
    found = told(first, second, x)
    assert where in found
    assert bool(where) == bool(found)


def test_rounding_contradicts_no_proof_over_the_reals() -> None:
    assert told(lambda x: x + 1, lambda x: x + 2, FLOATS, "real") == ""


def test_proofs_of_fixed_sizes_are_held_against_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def lying(first: Graph, *_: Any) -> PairProof:
        return PairProof(outputs=first.outputs, image={}, exactness="exact")

    monkeypatch.setattr(verdict, "prove_by_steps", lying)
    monkeypatch.setattr(verdict, "contradiction", lambda *_: "here")
    with pytest.raises(ProverDefectError, match="what was proved differs: here"):
        compare_functions(lambda x: x + x, lambda x: 2 * x, FLOATS)


SIZED = SizedArguments(("float32[n]",))


def test_proofs_of_all_sizes_are_held_against_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "MOST", 0)  # node by node
    assert compare_symbolic(lambda x: x + x, lambda x: 2 * x, SIZED).status == PROVED
    monkeypatch.setattr(symbolic, "contradiction", lambda *_: "here")
    with pytest.raises(ProverDefectError, match=r"what was proved differs at n.*: here"):
        compare_symbolic(lambda x: x + x, lambda x: 2 * x, SIZED)


def test_sizes_of_other_names_are_refused() -> None:
    with pytest.raises(UsageError, match="sizes are given for m, the names are n"):
        compare_symbolic(jnp.tanh, jnp.tanh, SIZED, {"m": 3})


def test_results_of_two_structures_are_refused() -> None:
    with pytest.raises(InputError, match="the results have two structures"):
        compare_symbolic(lambda x: (x, x), lambda x: [x, x], SIZED)
