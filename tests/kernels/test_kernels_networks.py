"""Large networks: few regions of a kind are tried, kernels before the judgement where builds are slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.backends.packing import packing_of
from superopt.backends.xla import build
from superopt.choose.likeness import in_order, kind_of
from superopt.choose.trials import Trial, TrialPool, estimate, make_likely, report_rows, with_likely
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input
from superopt.ir.index import Symbol, iterator, of_atom
from superopt.ir.program import original_program
from superopt.kernels.choose.partition import cost_of, partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.choose.relayout import channels_last
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.jit import cache_folder
from superopt.machine.budget import SearchBudget
from verifier.schedules.domain import Domain
from verifier.schedules.intervals import box_of
from verifier.schedules.maps import solve


def dense(rows: int, width: int, depth: int = 32) -> Region:
    """relu(x @ w) of so many rows and columns."""
    x, w = np.zeros((rows, width), np.float32), np.zeros((width, depth), np.float32)
    (region,) = partition(import_function(lambda x, w: jnp.maximum(x @ w, 0.0), (x, w)).graph)
    return region


def timed(region: Region, xla_s: float, own_s: float, failure: str = "") -> Trial:
    return Trial(str(region), region.kind, cost_of(region), (), xla_s, own_s, failure=failure)


def test_regions_that_differ_in_sizes_are_of_one_kind() -> None:
    assert kind_of(dense(20, 30).graph) == kind_of(dense(40, 90).graph)
    assert kind_of(dense(20, 30).graph) != kind_of(dense(4, 30).graph)  # small sizes count
    x = make_input("x", (20, 30), "float32")
    assert kind_of(Graph((x,), (x,))) != kind_of(dense(20, 30).graph)


def test_of_every_kind_the_largest_and_the_smallest_are_tried_first() -> None:
    many, other = [dense(20, 10 * k) for k in range(1, 8)], dense(4, 40)
    weight = {r.graph: estimate(r) for r in (*many, other)}
    order = in_order(weight)
    assert [g for g in order if g != other.graph][:2] == [many[-1].graph, many[0].graph]
    assert order.index(other.graph) < len(many) - 1  # before those of which two are known
    assert set(order) == set(weight)
    most = in_order(weight, (), 0.2)  # of every kind one, and others only while they say a fifth of all
    assert {kind_of(g) for g in most} == {kind_of(g) for g in weight}
    assert len(most) < len(order)
    rest = in_order(weight, {many[-1].graph, other.graph})
    assert set(rest) == {r.graph for r in many[:-1]}


def test_what_was_not_tried_takes_what_the_nearest_of_its_kind_says() -> None:
    small, middle, large, other = dense(20, 16), dense(20, 600), dense(20, 800), dense(4, 40)
    tried = {small.graph: timed(small, 1e-6, 2e-6), large.graph: timed(large, 8e-4, 2e-4)}
    found = with_likely([small, middle, large, other], tried)
    assert other.graph not in found  # nothing is known of its kind
    assert found[middle.graph].likely
    assert found[middle.graph].gain == pytest.approx(4.0)
    assert found[middle.graph].xla_s == pytest.approx(8e-4 * estimate(middle) / estimate(large))
    assert {g: found[g] for g in tried} == tried
    again = with_likely([dense(20, 500)], found)  # what was taken over is not taken over again
    assert again == found
    failed = with_likely([large, middle], {large.graph: timed(large, 8e-4, 2e-4, "it crashed")})
    assert (failed[middle.graph].gain, failed[middle.graph].failure) == (0.0, "it crashed")
    (row,) = [r for r in report_rows([middle], [middle.graph], found) if r.used]
    assert "not tried alone" in row.schedule


class Pool(TrialPool):
    """Kernels are made, all but one."""

    def __init__(self, lost: Graph) -> None:
        super().__init__(processes=1)
        self.lost, self.asked = lost, list[Graph]()

    def make_all(self, jobs: Sequence[tuple[Region, Any]]) -> list[Any]:
        self.asked += [region.graph for region, _ in jobs]
        return ["it crashed" if region.graph == self.lost else ("made",) for region, _ in jobs]


def test_kernels_that_were_not_tried_are_made_where_they_promise_enough() -> None:
    first, fine, lost, slow = dense(20, 800), dense(20, 600), dense(20, 700), dense(4, 40)
    tried = {first.graph: timed(first, 8e-4, 2e-4)}
    found = with_likely([first, fine, lost], tried) | {slow.graph: Trial("slow", "map", cost_of(slow), likely=True)}
    with Pool(lost.graph) as pool:
        made = make_likely([first, fine, lost, slow], found, pool, 0.5, budget_s=60.0)
    assert set(pool.asked) == {fine.graph, lost.graph}
    assert made[fine.graph].trace == ("made",)
    assert (made[lost.graph].failure, made[lost.graph].gain) == ("it crashed", 0.0)
    assert made[first.graph] == tried[first.graph]


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
def test_kernels_are_made_in_processes() -> None:
    from superopt.backends.native import default_trace

    region = dense(24, 40)
    with TrialPool(processes=1) as pool:
        (trace, why) = pool.make_all([(region, None), (region, (("nonsense",),))])
    assert trace == default_trace(region.graph)
    assert isinstance(why, str)
    assert cache_folder().is_dir()


def test_regions_are_not_tried_one_by_one_where_a_build_takes_a_share_of_the_budget() -> None:
    budget = SearchBudget(30.0, None, kernels=True)
    assert budget.hurries(3.0)
    assert not budget.hurries(0.3)
    assert not SearchBudget(30.0, None).hurries(3.0)
    assert not SearchBudget(None, 500, kernels=True).hurries(3.0)


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
