"""Large networks: kernels are made in processes, and images lie channels last."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.backends.packing import packing_of
from superopt.backends.xla import build
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import make_input
from superopt.ir.index import Symbol, iterator, of_atom
from superopt.ir.program import original_program
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.choose.relayout import channels_last
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.jit import cache_folder
from superopt.make.trials import TrialPool
from verifier.schedules.domain import Domain
from verifier.schedules.intervals import box_of
from verifier.schedules.maps import solve


def dense(rows: int, width: int, depth: int = 32) -> Region:
    """relu(x @ w) of so many rows and columns."""
    x, w = np.zeros((rows, width), np.float32), np.zeros((width, depth), np.float32)
    (region,) = partition(import_function(lambda x, w: jnp.maximum(x @ w, 0.0), (x, w)).graph)
    return region


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
def test_kernels_are_made_in_processes() -> None:
    from superopt.backends.native import default_trace

    region = dense(24, 40)
    with TrialPool(processes=1) as pool:
        (trace, why) = pool.make_all([(region.graph, None), (region.graph, (("nonsense",),))])
    assert trace == default_trace(region.graph)
    assert isinstance(why, str)
    assert cache_folder().is_dir()


def test_one_convolution_in_another_order_does_not_keep_the_others_from_being_channels_last() -> None:
    rng = np.random.default_rng(0)
    x, w, v, u = (
        rng.standard_normal(s).astype(np.float32) for s in ((1, 3, 9, 9), (4, 3, 3, 3), (5, 4, 3, 3), (3, 3, 5, 6))
    )

    def fn(x: Any, w: Any, v: Any, u: Any) -> Any:
        for weights in (w, v):
            x = jnp.maximum(lax.conv(x, weights, (1, 1), "SAME"), 0.0)
        numbers = ("NCHW", "HWIO", "NHWC")
        return jnp.sum(lax.conv_general_dilated(x, u, (1, 1), "SAME", dimension_numbers=numbers), (1, 2))

    imported = import_function(fn, (x, w, v, u), frozen=(1, 2, 3))
    program = original_program(imported.graph)
    found = channels_last(program)
    assert found is not None
    kept = {n.shape for n in found[1]}
    assert kept == {(1, 9, 9, 4), (1, 9, 9, 5)}
    got = build(found[0], imported.frozen_values)(x)[0]
    np.testing.assert_allclose(got, fn(x, w, v, u), rtol=1e-4, atol=1e-4)


def test_vectors_that_opaque_operations_read_are_arguments_of_their_own() -> None:
    vectors = [make_input(f"v{i}", (5,), "float32", frozen=True) for i in range(8)]
    assert packing_of(vectors).alone == ()
    assert packing_of(vectors, {vectors[2], vectors[3]}).alone == (2, 3)
    assert packing_of(vectors, set(vectors[:5])).buffers == ()


def test_digits_that_a_guard_keeps_apart_are_solved() -> None:
    (group, h), (block, m), (row, r) = (iterator(name, n) for name, n in (("group", 4), ("block", 9), ("row", 4)))
    unknown = [group, block, row]
    element = of_atom(Symbol("element", None, None))
    padded = Domain({s: box_of(s) for s in unknown})
    within = padded.under(33 - 4 * m - r >= 0)  # 34 rows of a group in blocks of 4
    found = solve([34 * h + 4 * m + r], [element], unknown, within)
    assert found == {group: element // 34, block: element % 34 // 4, row: element % 34 % 4}
    assert solve([34 * h + 4 * m + r], [element], unknown, padded) == {}
    assert solve([33 * h + 4 * m + r], [element], unknown, within) == {}  # the last row of a group is one of the next
