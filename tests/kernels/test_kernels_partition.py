"""Partition of graphs into kernels: what is joined, what stays apart, and that nothing is lost or computed twice."""

from __future__ import annotations

import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir import build
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.interp import evaluate
from superopt.ir.program import original_program
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.choose.partition import (
    _MOST_VALUES,
    cost_of,
    is_covered,
    partition,
    partition_program,
    partition_whole,
    work,
    worthwhile,
)
from superopt.kernels.choose.regions import Region, is_inside, region_of
from superopt.kernels.choose.relayout import channels_last
from superopt.kernels.choose.specs import KernelSpec, read_spec, regions_of, specs_of


def frozen(name: str, *shape: int) -> Node:
    return make_input(name, shape, frozen=True)


def spread(x: Node, shape: tuple[int, ...], axes: tuple[int, ...]) -> Node:
    return mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=axes)


def full(value: float, like: Node) -> Node:
    return spread(literal(value), like.shape, ())


def reduced(op: str, x: Node) -> Node:
    return mk(f"reduce_{op}", x, axes=(len(x.shape) - 1,))


def rows(r: Node, like: Node) -> Node:
    return spread(r, like.shape, tuple(range(len(r.shape))))


def dot(a: Node, b: Node) -> Node:
    return build.dot(a, b, ((len(a.shape) - 1,), (0,)))


def batched(a: Node, b: Node, ca: int, cb: int) -> Node:
    return build.dot(a, b, ((ca,), (cb,)), (0,))


def dense(x: Node, name: str, n: int) -> Node:
    w, b = frozen(f"{name}.w", x.shape[-1], n), frozen(f"{name}.b", n)
    return mk("add", dot(x, w), spread(b, (x.shape[0], n), (1,)))


def softmax(x: Node) -> Node:
    e = mk("exp", mk("sub", x, rows(reduced("max", x), x)))
    return mk("div", e, rows(reduced("sum", e), e))


def layer_norm(x: Node, name: str) -> Node:
    total = reduced("sum", x)
    share = full(1.0 / x.shape[-1], total)
    d = mk("sub", x, rows(mk("mul", total, share), x))
    scale = mk("rsqrt", mk("add", mk("mul", reduced("sum", mk("mul", d, d)), share), full(1e-5, total)))
    y = mk("mul", mk("mul", d, rows(scale, d)), spread(frozen(f"{name}.g", x.shape[-1]), x.shape, (1,)))
    return mk("add", y, spread(frozen(f"{name}.b", x.shape[-1]), x.shape, (1,)))


def gelu(x: Node) -> Node:
    inner = mk("add", full(1.0, x), mk("erf", mk("mul", x, full(0.7071, x))))
    return mk("mul", mk("mul", x, full(0.5, x)), inner)


def convolution(x: Node, w: Node, groups: int = 1) -> Node:
    return build.conv(x, w, ("NCHW", "OIHW", "NCHW"), 1, int(w.shape[2]) // 2, groups)


def relu(x: Node) -> Node:
    return mk("max", x, full(0.0, x))


def encoder(s: int = 6, d: int = 8, heads: int = 2) -> Graph:
    x = make_input("x", (s, d))

    def split(y: Node) -> Node:
        return mk("transpose", mk("reshape", y, new_sizes=(s, heads, d // heads)), permutation=(1, 0, 2))

    q, k, v = (split(dense(x, n, d)) for n in "qkv")
    scores = batched(q, k, 2, 2)
    out = batched(softmax(mk("mul", scores, full(0.125, scores))), v, 2, 1)
    merged = mk("reshape", mk("transpose", out, permutation=(1, 0, 2)), new_sizes=(s, d))
    y = layer_norm(mk("add", x, dense(merged, "o", d)), "n1")
    z = layer_norm(mk("add", y, dense(gelu(dense(y, "up", 4 * d)), "down", d)), "n2")
    return Graph(tuple(n for n in Graph((), (z,)).nodes() if n.op == "input"), (z,))


def check(graph: Graph) -> tuple[Region, ...]:
    """Regions come in an order in which they can be computed, read only what exists, and give the graph's values."""
    regions = partition(graph)
    rng = np.random.default_rng(0)
    held = {n: rng.uniform(0.5, 1.0, n.shape).astype(n.dtype) for n in graph.inputs}
    known = set(graph.inputs)
    for region in regions:
        assert region.nodes[-1] is region.root
        assert region_of(region.root, region.reads) == region
        for x in region.reads:
            if x not in known:  # something that XLA computes in between
                assert not is_inside(x) or x in graph.inputs
        alone = region.graph
        names = [n["name"] for n in alone.inputs]
        if all(x in held for x in region.reads):
            values = dict(zip(names, (held[x] for x in region.reads), strict=True))
            held[region.root] = evaluate(alone, values)[0]
        known.add(region.root)
    want = evaluate(graph, {n["name"]: held[n] for n in graph.inputs})
    for node, array in zip(graph.outputs, want, strict=True):
        if node in held:
            np.testing.assert_allclose(held[node], array, rtol=1e-5, atol=1e-5)
    return regions


def kinds(regions: tuple[Region, ...]) -> list[str]:
    return [r.kind for r in regions]


def test_encoder_is_eight_products_and_three_row_kernels() -> None:
    regions = check(encoder())
    assert kinds(regions).count("contraction") == 8
    assert kinds(regions).count("rows") == 3
    assert len(regions) == 11
    up = next(r for r in regions if any(n.op == "erf" for n in r.nodes))
    assert up.kind == "contraction"
    assert up.root.shape == (6, 32)


def test_layers_of_equal_form_are_equal_graphs() -> None:
    weights = [frozen(f"{n}.{p}", *s) for n in "ab" for p, s in (("w", (8, 8)), ("b", (8,)))]
    wide = make_input("x", (8, 8))
    first, second = check(Graph((wide, *weights), (relu(dense(relu(dense(wide, "a", 8)), "b", 8)),)))
    assert first.graph == second.graph
    assert first != second


def test_producer_is_not_computed_again_for_every_tap() -> None:
    x = make_input("x", (1, 4, 8, 8))
    w, v = frozen("w", 4, 4, 3, 3), frozen("v", 4, 4, 3, 3)
    first, second = check(Graph((x, w, v), (relu(convolution(relu(convolution(x, w)), v)),)))
    assert first.kind == second.kind == "contraction"
    assert len(first.nodes) == len(second.nodes)


def test_pool_keeps_what_it_would_compute_nine_times() -> None:
    x = make_input("x", (1, 4, 8, 8))
    pool = mk(
        "reduce_window_max", mk("exp", x), window_dimensions=(1, 1, 3, 3), window_strides=(1, 1, 1, 1),
        padding=((0, 0),) * 4, base_dilation=(1,) * 4, window_dilation=(1,) * 4,
    )  # fmt: skip
    assert kinds(check(Graph((x,), (relu(pool),)))) == ["map", "window"]
    apart = mk(
        "reduce_window_max", mk("exp", x), window_dimensions=(1, 1, 2, 2), window_strides=(1, 1, 2, 2),
        padding=((0, 0),) * 4, base_dilation=(1,) * 4, window_dilation=(1,) * 4,
    )  # fmt: skip
    assert kinds(check(Graph((x,), (apart,)))) == ["window"]


def test_reduction_of_columns_is_a_kernel_of_its_own() -> None:
    x = make_input("x", (32, 16))
    centred = mk("sub", x, spread(mk("reduce_sum", x, axes=(0,)), x.shape, (1,)))
    assert kinds(check(Graph((x,), (centred,)))) == ["rows", "map"]


def test_long_rows_are_gone_through_once() -> None:
    short, long = make_input("x", (4, 64)), make_input("x", (1, 1 << 18))
    assert len(partition(Graph((short,), (softmax(short),)))) == 1
    assert len(partition(Graph((long,), (softmax(long),)))) > 1


def test_softmax_of_scores_is_not_folded_into_the_product() -> None:
    a, b = make_input("a", (2, 8, 4)), make_input("b", (2, 8, 4))
    assert kinds(check(Graph((a, b), (softmax(batched(a, b, 2, 2)),)))) == ["contraction", "rows"]


def test_one_product_a_kernel() -> None:
    x, w, v = make_input("x", (8, 8)), frozen("w", 8, 8), frozen("v", 8, 8)
    both = check(Graph((x, w, v), (mk("add", dot(x, w), dot(x, v)),)))
    assert kinds(both) == ["contraction", "contraction"]
    assert sorted(len(r.nodes) for r in both) == [1, 2]


def test_mask_made_of_positions_is_part_of_its_readers() -> None:
    a, b = make_input("a", (8, 8)), make_input("b", (8, 8))
    row, column = (mk("iota", shape=(8, 8), dimension=d, dtype="int32") for d in (0, 1))
    mask = mk("ge", row, column)
    outputs = tuple(softmax(mk("select_n", mask, full(-1e30, x), x)) for x in (a, b))
    regions = check(Graph((a, b), outputs))
    assert [len(r.reads) for r in regions] == [1, 1]


def test_what_has_no_value_at_one_index_stays_outside() -> None:
    x = make_input("x", (8, 8))
    opaque = mk("barrier", mk("exp", x))
    regions = check(Graph((x,), (mk("mul", opaque, full(2.0, opaque)),)))
    assert [r.root.op for r in regions] == ["exp", "mul"]
    assert regions[1].reads == (opaque,)
    half = make_input("x", (8,), "float16")
    assert partition(Graph((half,), (mk("add", half, half),))) == ()
    empty = make_input("x", (0, 8))
    assert partition(Graph((empty,), (mk("exp", empty),))) == ()


def test_a_prefix_is_the_loop_of_its_region() -> None:
    """Elementwise operations around it join; a second loop, and who reads it at other indices, read it from memory."""
    x = make_input("x", (8, 12))

    def roots(y: Node) -> list[str]:
        return [r.root.op for r in check(Graph((x,), (y,)))]

    def prefix(y: Node, axis: int = 1, reverse: bool = False) -> Node:
        return mk("cumsum", y, axis=axis, reverse=reverse)

    assert roots(mk("log", prefix(mk("exp", x)))) == ["log"]
    assert roots(mk("sub", prefix(x), mk("cummax", x, axis=1, reverse=False))) == ["sub"]
    assert roots(mk("sub", prefix(x), prefix(x, reverse=True))) == ["cumsum", "sub"]
    assert roots(mk("sub", prefix(x), prefix(x, axis=0))) == ["cumsum", "sub"]
    assert roots(prefix(prefix(x, axis=0))) == ["cumsum", "cumsum"]
    assert roots(prefix(prefix(x))) == ["cumsum", "cumsum"]
    assert roots(mk("reduce_sum", prefix(x), axes=[1])) == ["cumsum", "reduce_sum"]
    assert roots(mk("neg", mk("rev", prefix(x), dimensions=[1]))) == ["cumsum", "neg"]


def test_every_output_is_in_memory() -> None:
    x = make_input("x", (8, 8))
    e = mk("exp", x)
    flat = mk("reshape", e, new_sizes=(64,))
    regions = check(Graph((x,), (e, mk("neg", e), flat)))
    assert {r.root for r in regions} == {e, mk("neg", e), flat}
    assert [r.is_free for r in regions if r.root is flat] == [True]


def test_scalars_and_updates_are_regions_where_nothing_else_is_left_to_xla() -> None:
    x, y, n = make_input("x", (8, 8)), make_input("y", (2, 8)), make_input("n", (), "int32")
    at = mk("add", n, literal(1, "int32"))
    moved = mk("dynamic_update_slice", mk("exp", x), y, at, literal(0, "int32"))
    results = (mk("neg", moved), at, spread(n, (3, 4), ()), mk("transpose", y, permutation=(1, 0)))
    whole = Graph((x, y, n), results)
    regions = partition_program(whole)
    roots = ["add", "broadcast_in_dim", "dynamic_update_slice", "exp", "neg", "transpose"]
    assert sorted(r.root.op for r in regions) == roots
    assert is_covered(whole, regions)
    assert worthwhile(whole, regions) == regions
    made = [r for r in regions if r.root.op != "exp"]
    assert not is_covered(whole, made)
    assert sorted(r.root.op for r in worthwhile(whole, made)) == ["neg", "transpose"]
    apart = Graph((x, y, n), (*results, mk("inverse", x)))
    assert partition_program(apart) == partition_whole(apart)
    assert sorted(r.root.op for r in partition_whole(apart)) == ["exp", "neg", "transpose"]


def test_an_update_of_many_bytes_is_left_to_xla_which_needs_no_copy() -> None:
    def covered(rows: int) -> bool:
        x, y, n = make_input("x", (rows, 64)), make_input("y", (1, 64)), make_input("n", (), "int32")
        graph = Graph((x, y, n), (mk("dynamic_update_slice", x, y, n, n),))
        return is_covered(graph, partition_program(graph))

    assert [covered(256), covered(257)] == [True, False]


@pytest.mark.parametrize(("dtype", "inside"), [("uint32", True), ("int64", True), ("uint64", False)])
def test_positions_beyond_those_with_a_sign_are_left_to_xla(dtype: str, inside: bool) -> None:
    x, n, rows = make_input("x", (8, 8)), make_input("n", (), dtype), make_input("rows", (3, 1), dtype)
    taken = mk(
        "gather", x, rows, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 8),
        mode="clip",
    )  # fmt: skip
    roots = (mk("dynamic_slice", x, n, n, slice_sizes=(2, 2)), mk("dynamic_update_slice", x, x, n, n), taken)
    for root in roots:
        graph = Graph((x, n, rows), (root,))
        assert is_covered(graph, partition_program(graph)) is inside


def test_a_view_that_only_xla_reads_has_a_region_in_a_plan_alone() -> None:
    x = make_input("x", (8, 8))
    graph = Graph((x,), (mk("inverse", mk("transpose", x, permutation=(1, 0))),))
    assert partition(graph) == ()
    assert [r.root.op for r in partition(graph, whole=True)] == ["transpose"]


def test_bounds_that_are_scalars_make_no_region_free() -> None:
    x, low, high = make_input("x", (8, 8)), literal(0.0, "float32"), literal(6.0, "float32")
    bit = make_input("b", (), "bool")
    for root in (mk("clamp", low, x, high), mk("select_n", bit, x, mk("neg", x))):
        assert [r.root for r in partition_whole(Graph((x, bit), (root,)))] == [root]


def test_what_follows_a_product_at_its_index_is_joined_without_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed twice; counting takes most of the time of cutting a kernel of a search."""
    x, w, b, y = make_input("x", (1, 4, 8, 8)), frozen("w", 4, 4, 3, 3), frozen("b", 4), make_input("y", (1, 4, 8, 8))
    total = mk("add", convolution(x, w), spread(b, (1, 4, 8, 8), (1,)))
    monkeypatch.setattr("superopt.kernels.choose.partition.block_cost", None)
    assert kinds(check(Graph((x, w, b, y), (relu(mk("add", total, y)),)))) == ["contraction"]


def test_work_of_a_row_kernel_counts_what_it_keeps_once() -> None:
    x = make_input("x", (4, 16))
    (region,) = partition(Graph((x,), (softmax(x),)))
    assert cost_of(region).transcendentals == 4 * 16
    assert work(cost_of(region)) == 4 * (16 * (1 + 1 + 8 + 1 + 1))


def test_region_of_refuses_what_no_kernel_computes() -> None:
    x = make_input("x", (8, 8))
    total = mk("barrier", x)
    with pytest.raises(ValueError, match="barrier"):
        region_of(mk("neg", total), [x])
    assert region_of(mk("neg", total), [total]).reads == (total,)


def test_images_are_laid_out_channels_last() -> None:
    x = make_input("x", (1, 3, 8, 8))
    w, d, b = frozen("w", 4, 3, 3, 3), frozen("d", 4, 1, 3, 3), frozen("b", 4)
    y = relu(mk("add", convolution(x, w), spread(b, (1, 4, 8, 8), (1,))))
    graph = Graph((x, w, d, b), (mk("reduce_sum", mk("add", y, convolution(y, d, groups=4)), axes=(2, 3)),))
    program = original_program(graph)
    found = channels_last(program)
    assert found is not None
    moved, kept = found
    roots = [r.root for r in partition(moved.hot, kept)]
    assert [r.shape for r in roots] == [(1, 8, 8, 4), (1, 8, 8, 4), (1, 4)]
    assert {n.shape for n in moved.prepared_inputs} == {(4, 3, 3, 3), (3, 3, 1, 4), (4,)}
    rng = np.random.default_rng(0)
    values = {n["name"]: rng.standard_normal(n.shape).astype(n.dtype) for n in graph.inputs}
    assert moved.prepare is not None
    held = zip(moved.prepared_inputs, evaluate(moved.prepare, values), strict=True)
    got = evaluate(moved.hot, {"x": values["x"], **{n["name"]: a for n, a in held}})
    np.testing.assert_array_equal(got[0], evaluate(graph, values)[0])
    assert channels_last(original_program(encoder())) is None
    again = channels_last(moved)
    assert again is not None
    assert again[0].graphs == moved.graphs
    assert again[1] == kept


def test_concatenated_images_with_a_scale_of_any_shape_are_laid_out_channels_last() -> None:
    x, w, u, v, s = make_input("x", (1, 3, 8, 8)), *(frozen(n, *shape) for n, shape in _WEIGHTS)
    a = convolution(x, w)
    joined = mk("concatenate", a, convolution(a, u), dimension=1)
    scale = spread(mk("reshape", mk("exp", s), new_sizes=(1, 8, 1, 1)), (1, 8, 8, 8), (0, 1, 2, 3))
    y = convolution(relu(mk("mul", joined, scale)), v)
    outputs = (mk("reduce_sum", y, axes=(2, 3)),)
    found = channels_last(original_program(Graph((x, w, u, v, s), outputs)))
    assert found is not None
    moved, kept = found
    roots = [r.root for r in partition(moved.hot, kept) if len(r.root.shape) == 4]
    assert [r.shape for r in roots] == [(1, 8, 8, 4), (1, 8, 8, 4), (1, 8, 8, 8), (1, 8, 8, 5)]
    assert kept.issuperset(roots)


_WEIGHTS = (("w", (4, 3, 3, 3)), ("u", (4, 4, 3, 3)), ("v", (5, 8, 1, 1)), ("s", (2, 4)))


def test_a_map_that_moves_images_to_other_indices_keeps_its_order() -> None:
    x, w = make_input("x", (1, 6, 6, 6)), frozen("w", 6, 6, 3, 3)
    a = convolution(x, w)
    turned = mk("reshape", mk("transpose", a, permutation=(0, 2, 3, 1)), new_sizes=(1, 6, 6, 6))
    results = [mk("exp", mk("add", a, n)) for n in (mk("neg", a), mk("neg", turned))]
    outputs = tuple(mk("reduce_sum", convolution(n, w), axes=(2, 3)) for n in results)
    found = channels_last(original_program(Graph((x, w), outputs)))
    assert found is not None
    assert Counter(n.inputs[0].op for n in found[1]) == {"conv_general_dilated": 3, "exp": 1}


def test_a_variance_of_a_product_is_no_chain_and_no_error() -> None:
    q, k = make_input("q", (16, 32)), make_input("k", (48, 32))
    scores = mk("dot_general", q, k, dimension_numbers=(((1,), (1,)), ((), ())))
    mean = mk("div", mk("reduce_sum", scores, axes=(1,)), spread(literal(48.0), (16,), ()))
    apart = mk("sub", scores, spread(mean, (16, 48), (0,)))
    square = mk("dot_general", apart, apart, dimension_numbers=(((1,), (1,)), ((0,), (0,))))
    regions = partition(Graph((q, k), (square,)))
    assert regions[-1].root is square


def test_choices_are_plain_data_and_give_the_regions_back() -> None:
    graph = encoder()
    regions = partition(graph)
    trace = (("split", "o0", 4), ("vectorize", "o1"))
    choices = specs_of(graph, [(r, trace if i == 0 else None) for i, r in enumerate(regions)])
    read = tuple(read_spec(json.loads(json.dumps(c.to_json()))) for c in choices)
    assert read == choices
    assert regions_of(graph, read) == regions
    again = parse_graph(print_graph(graph))
    assert regions_of(again, read) == regions
    with pytest.raises(InputError, match="values"):
        regions_of(graph, [KernelSpec(10_000, ())])
    with pytest.raises(InputError, match="does not fit"):
        regions_of(graph, [KernelSpec(choices[-1].root, ())])


def test_moves_on_top_of_each_other_are_cut_before_they_multiply() -> None:
    """A scan by halves reads every value at more and more places: as one region it would be written out for hours."""

    def recurrence(a: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, x))[1]

    rows = jnp.ones((100, 32), jnp.float32)
    regions = partition(import_function(recurrence, (rows, rows)).graph)
    assert len(regions) > 4
    for region in regions:
        block(region.graph.outputs[0], most=2 * _MOST_VALUES)  # elementwise operands of what was priced come after
