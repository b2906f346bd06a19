"""Loads that begin at one element and go on differently: forward, backward, every second, the same in all lanes."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.runtime.kernel import build

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")

VIEWS: dict[str, tuple[Callable[..., object], tuple[int, ...]]] = {
    "reflect": (lambda x: jnp.pad(x, 1, mode="reflect"), (2, 8, 16)),
    "reflect, odd": (lambda x: jnp.pad(x, 1, mode="reflect"), (2, 32, 33)),
    "symmetric": (lambda x: jnp.pad(x, 2, mode="symmetric"), (3, 17)),
    "edge": (lambda x: jnp.pad(x, 2, mode="edge"), (3, 17)),
    "wrap": (lambda x: jnp.pad(x, 3, mode="wrap"), (3, 17)),
    "palindrome": (lambda x: jnp.concatenate([x, x[:, ::-1]], 1), (5, 16)),
    "with its reverse": (lambda x: x[:, 15:] + x[:, 15::-1], (3, 31)),
    "with every second": (lambda x: x[:, :16] * x[:, ::2], (3, 32)),
    "with the first": (lambda x: x[:, :16] * x[:, :1], (3, 16)),
    "backwards by two": (lambda x: x[:, 30::-2] - x[:, :16], (3, 31)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_one_array_are_told_apart(name: str) -> None:
    """Where a lane begins at a constant, its own step must stay part of what tells two loads apart."""
    fn, shape = VIEWS[name]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (region,) = partition(import_function(fn, (x,)).graph)
    program = from_graph(region.graph.outputs)
    (given,) = [b.name for b in program.buffers if b.scope == "input"]
    for scheduled in (program, default(program)):
        got = build(generate(scheduled), pipeline="none").run({given: x}, guard=True)["out0"]
        np.testing.assert_array_equal(got, evaluate(program, {given: x})["out0"])
        np.testing.assert_array_equal(got, np.asarray(fn(x)))
