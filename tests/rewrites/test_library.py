"""The library on small programs: each family fires where it should, and every e-node keeps the value of its class."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rewrites.grow.growth import grow, is_law
from rewrites.library import load
from superopt.ir.graph import Node, literal, mk
from superopt.machine.deadline import Deadline
from tests.rewrites.test_contraction import diagonal
from tests.rewrites.test_library_forms import conv, pool
from tests.rewrites.test_linear_rules import FORMS
from tests.rewrites.test_rules_graphs import check_all_enodes
from tests.support.rules_numeric import arrays_of, dot, egraph, spread, var


def frozen(name: str, *shape: int) -> Node:
    return var(name, *shape, frozen=True)


def fill(value: float, *shape: int) -> Node:
    return spread(literal(value, "float64"), shape)


def ew(op: str, *xs: Node) -> Node:
    return mk(op, *xs)


def total(x: Node, *axes: int) -> Node:
    return mk("reduce_sum", x, axes=axes)


def rows(table: Node, indices: Node) -> Node:
    """Rows of a table by int32 indices, as `take` imports them."""
    d = table.shape[1]
    return mk(
        "gather", table, mk("reshape", indices, new_sizes=(*indices.shape, 1)), offset_dims=(len(indices.shape),),
        collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, d), mode="clip",
    )  # fmt: skip


def on_diagonal(x: Node) -> Node:
    """The diagonal of a square tensor, as `jnp.diagonal` imports it."""
    n = x.shape[0]
    return mk(
        "gather", x, mk("reshape", mk("iota", dtype="int32", shape=(n,), dimension=0), new_sizes=(n, 1)),
        offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,), operand_batching_dims=(0,),
        start_indices_batching_dims=(0,), slice_sizes=(1, 1), mode="clip",
    )  # fmt: skip


def two_tables() -> Node:
    """Rows of a table, each times a matrix of its kind, as `einsum("ed,edf->ef", t[i], w[j])` imports."""
    kinds = mk(
        "gather", var("w", 2, 3, 4), mk("reshape", var("j", 20, dtype="int32"), new_sizes=(20, 1)), offset_dims=(1, 2),
        collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 3, 4), mode="clip",
    )  # fmt: skip
    own = rows(var("t", 5, 3), var("i", 20, dtype="int32"))
    return mk("dot_general", own, kinds, dimension_numbers=(((1,), (1,)), ((0,), (0,))))


def windows(x: Node, count: int, size: int) -> Node:
    """All windows of the rows of an array, as `x[:, i + j]` with two iotas is imported."""
    shape = (count, size, 1)
    down, right = (mk("iota", dtype="int32", shape=shape, dimension=d) for d in (0, 1))
    return mk(
        "gather", x, mk("add", down, right), offset_dims=(0,), collapsed_slice_dims=(1,), start_index_map=(1,),
        slice_sizes=(x.shape[0], 1), mode="clip",
    )  # fmt: skip


def signal(size: int, taps: int, *, channels: int = 1) -> Node:
    """A signal, or several, each through one filter."""
    return mk(
        "conv_general_dilated", var("x", 2, channels, size), var("w", channels, 1, taps), window_strides=(1,),
        padding=((taps - 1, taps - 1),), lhs_dilation=(1,), rhs_dilation=(1,), feature_group_count=channels,
        dimension_numbers=((0, 1, 2), (0, 1, 2), (0, 1, 2)),
    )  # fmt: skip


def running(kind: str, size: int, width: int) -> Node:
    """Sums or maxima of all windows of a row."""
    return mk(
        f"reduce_window_{kind}", var("x", 2, size), window_dimensions=(1, width), window_strides=(1, 1),
        padding=((0, 0), (0, 0)),
    )  # fmt: skip


def outer(op: str) -> Node:
    """A sum or a difference of the elements of two vectors, all pairs."""
    return mk(op, spread(var("a", 4), (4, 5), 0), spread(var("b", 5), (4, 5), 1))


def weighted(op: str) -> Node:
    """Differences of the rows of two tables, weighted and added up for each row of the second."""
    near, far = spread(var("a", 5, 3), (4, 5, 3), 1, 2), spread(var("b", 4, 3), (4, 5, 3), 0, 2)
    difference = mk("sub", near, far) if op == "to" else mk("sub", far, near)
    return mk("dot_general", var("w", 4, 5), difference, dimension_numbers=(((1,), (1,)), ((0,), (0,))))


def segments(rows: Node, count: int) -> Node:
    return mk("segment_sum", rows, var("i", rows.shape[0], dtype="int32"), segments=count)


def triangle(order: str, n: int) -> Node:
    """Ones where the row's position has this order to the column's, as `jnp.tril` traces."""
    down, right = (mk("iota", dtype="int32", shape=(n, n), dimension=d) for d in (0, 1))
    return mk("select_n", mk(order, down, right), fill(0.0, n, n), fill(1.0, n, n))


def one_hot(count: int, classes: int) -> Node:
    """One-hot rows as `jax.nn.one_hot` traces."""
    places = mk("reshape", mk("iota", dtype="int32", shape=(1, classes), dimension=1), new_sizes=(classes,))
    shape = (count, classes)
    equal = mk("eq", spread(var("i", count, dtype="int32"), shape, 0), spread(places, shape, 1))
    return mk("convert_element_type", equal, new_dtype="float64")


def one_hot_rows() -> Node:
    """A table read by one-hot rows."""
    return dot(one_hot(7, 5), var("t", 5, 3))


def mapped(x: Node, w: Node) -> Node:
    """The last axis of a tensor of rank 3 through a matrix."""
    return mk("dot_general", x, w, dimension_numbers=(((2,), (0,)), ((), ())))


def pairs(op: str) -> Node:
    """All pairs of rows of two tensors, joined by an op."""
    return ew(op, spread(var("a", 5, 4), (5, 3, 4), 0, 2), spread(var("b", 3, 4), (5, 3, 4), 1, 2))


def batch_norm(y: Node) -> Node:
    def channel(name: str) -> Node:
        return spread(frozen(name, y.shape[1]), y.shape, 1)

    return ew("add", ew("mul", ew("sub", y, channel("mean")), channel("scale")), channel("bias"))


def layer_norm() -> Node:
    x = var("x", 3, 32)
    centred = ew("sub", x, spread(ew("div", total(x, 1), fill(32.0, 3)), x.shape, 0))
    spreading = ew("add", ew("div", total(ew("mul", centred, centred), 1), fill(32.0, 3)), fill(1e-5, 3))
    return ew("div", centred, spread(ew("sqrt", spreading), x.shape, 0))


def rms_norm() -> Node:
    x = var("x", 3, 32)
    return ew("mul", x, spread(ew("rsqrt", total(ew("square", x), 1)), x.shape, 0))


def attention() -> Node:
    e = ew("exp", var("x", 4, 20))
    return dot(ew("div", e, spread(total(e, 1), e.shape, 0)), var("v", 20, 3))


def merged() -> Node:
    x = var("x", 4, 6)
    return mk(
        "concatenate", dot(x, frozen("q", 6, 3)), dot(x, frozen("k", 6, 3)), dot(x, frozen("v", 6, 2)), dimension=1
    )


def branches() -> Node:
    x = var("x", 1, 4, 5, 5)
    a, b = (conv_of(x, frozen(name, 3, 4, 3, 3)) for name in "ab")
    return mk("concatenate", ew("abs", a), ew("exp", b), dimension=1)


def conv_of(x: Node, w: Node) -> Node:
    return mk("conv_general_dilated", x, w, window_strides=(1, 1), padding=((1, 1),) * 2,
              dimension_numbers=((0, 1, 2, 3),) * 3)  # fmt: skip


def embedding() -> Node:
    words = rows(frozen("words", 9, 6), var("ids", 4, dtype="int32"))
    return dot(ew("exp", ew("mul", words, spread(frozen("gain", 6), words.shape, 1))), frozen("w", 6, 5))


def pooled() -> Node:
    scaled = ew("mul", var("x", 1, 4, 6, 6), spread(frozen("s", 4), (1, 4, 6, 6), 1))
    return mk(
        "reduce_window_sum", scaled, window_dimensions=(1, 1, 6, 6), window_strides=(1,) * 4, padding=((0, 0),) * 4
    )


def strided() -> Node:
    y = conv("NCHW", size=9)
    return mk("slice", y, start_indices=(0, 0, 1, 0), limit_indices=(1, 5, 9, 9), strides=(1, 1, 2, 2))


def low_rank() -> Node:
    return dot(dot(frozen("u", 12, 3), frozen("v", 3, 12)), var("x", 12, 1))


def adapted(bias: bool) -> Node:
    """A layer with an adapter of low rank beside its weights."""
    x = var("x", 5, 6)
    layer = dot(x, frozen("w", 6, 7))
    if bias:
        layer = ew("add", layer, spread(frozen("c", 7), (5, 7), 1))
    return ew("add", layer, dot(dot(x, frozen("a", 6, 2)), frozen("b", 2, 7)))


def log_softmax() -> Node:
    exponentials = ew("exp", var("x", 5, 4))
    return ew("log", ew("div", exponentials, spread(total(exponentials, 1), (5, 4), 0)))


def blocks() -> Node:
    """Two blocks along a diagonal."""
    zero = literal(0.0, "float64")
    above = mk("pad", var("a", 2, 3), zero, padding_config=((0, 0, 0), (0, 2, 0)))
    return mk("concatenate", above, mk("pad", var("b", 4, 2), zero, padding_config=((0, 0, 0), (3, 0, 0))), dimension=0)


def plain_conv(x: Node, w: Node) -> Node:
    order = (0, 1, 2, 3)
    return mk(
        "conv_general_dilated", x, w, window_strides=(1, 1), padding=((1, 1), (1, 1)), lhs_dilation=(1, 1),
        rhs_dilation=(1, 1), dimension_numbers=(order, order, order), feature_group_count=1, batch_group_count=1,
    )  # fmt: skip


def blurring() -> Node:
    """A kernel that is the outer product of one along each axis."""
    down, right = spread(var("u", 3), (3, 3), 0), spread(var("v", 3), (3, 3), 1)
    return mk("reshape", ew("mul", down, right), new_sizes=(1, 1, 3, 3))


def two_kernels(joined: str) -> Node:
    x = var("x", 1, 3, 5, 5)
    return ew(joined, plain_conv(x, var("w", 4, 3, 3, 3)), plain_conv(x, var("v", 4, 3, 3, 3)))


def two_images() -> Node:
    w = frozen("w", 4, 3, 3, 3)
    return ew("add", plain_conv(var("x", 1, 3, 5, 5), w), plain_conv(var("y", 1, 3, 5, 5), w))


def bottleneck() -> Node:
    """A convolution, and the features of its result mixed."""
    return dot(mk("reshape", plain_conv(var("x", 1, 3, 5, 5), frozen("w", 6, 3, 3, 3)), new_sizes=(6, 5, 5)),
               frozen("a", 6, 2), lc=0)  # fmt: skip


def transition() -> Node:
    """The features of an image mixed, then sums over windows."""
    mixed = dot(frozen("a", 4, 6), var("x", 6, 8, 8))
    return mk(
        "reduce_window_sum", mixed, window_dimensions=(1, 2, 2), window_strides=(1, 2, 2), padding=((0, 0),) * 3
    )  # fmt: skip


def greatest() -> Node:
    x = var("x", 5, 6, 7)
    return mk("reduce_max", ew("max", ew("add", x, spread(frozen("c", 7), x.shape, 2)), fill(0.0, 5, 6, 7)), axes=(1,))


def powers() -> Node:
    """The tensor to every constant that a rule of powers is about, of positive values."""
    x = ew("max", var("x", 3, 4), fill(0.5, 3, 4))
    total = x
    for c in (0.75, 0.25, 1.5, -0.25, -0.5, -0.75, -1.5, -2.0, *range(2, 9)):
        total = ew("max", total, ew("pow", x, fill(float(c), 3, 4)))
    return total


def bilinear() -> Node:
    numbers = (((2,), (2,)), ((0,), (0,)))
    x = dot(var("x", 2, 9, 4), frozen("w", 4, 5), lc=2)
    return mk("dot_general", x, var("y", 2, 3, 5), dimension_numbers=numbers)


def last(x: Node) -> Node:
    """The last entry along the last axis."""
    *rest, n = x.shape
    return mk("slice", x, start_indices=(*[0] * len(rest), n - 1), limit_indices=x.shape)


def entries_of_runs() -> Node:
    x = var("x", 3, 300)
    a, b, c, d = [mk(op, x, axis=1, reverse=False) for op in ("cumsum", "cumprod", "cummax", "cummin")]
    return ew("add", ew("add", last(a), last(b)), last(ew("exp", ew("sub", c, d))))


def chosen() -> Node:
    """A choice between two tables, for each row of flags and each column of the tables."""
    flags = ew("gt", var("x", 5, 4), fill(2.5, 5, 4))
    tables = [spread(var(name, 3, 4), (5, 3, 4), 1, 2) for name in ("no", "yes")]
    return ew("select_n", spread(flags, (5, 3, 4), 0, 2), *tables)


def centred() -> Node:
    y = dot(var("x", 6, 4), var("w", 4, 3))
    return ew("sub", y, spread(ew("div", total(y, 0), fill(6.0, 3)), (6, 3), 1))


PROGRAMS: dict[str, tuple[Callable[[], Node], tuple[str, ...]]] = {
    "3x3": (
        lambda: batch_norm(conv("NCHW")),
        ("conv-im2col", "conv-shifted-dots", "conv-winograd", "conv-winograd-square", "conv-winograd-four",
         "batchnorm-fold", "affine-collapse", "conv-scale"),
    ),
    "5x5": (lambda: conv("NCHW", size=6, k=5, pad=2), ("conv-apart-4-5", "conv-im2col")),
    "1x1": (lambda: batch_norm(conv("NCHW", k=1, pad=0)), ("conv-pointwise", "dot-scale-in", "batchnorm-fold")),
    "stem": (lambda: conv("NHWC", size=10, c=3, k=7, stride=2, pad=3), ("conv-space-to-depth", "conv-im2col")),
    "grouped": (lambda: conv("NHWC", c=32, o=16, groups=8), ("grouped-blocks", "grouped-dense", "grouped-apart")),
    "grouped 1x1": (
        lambda: conv("NCHW", c=8, o=12, k=1, groups=4, pad=0),
        ("grouped-pointwise-apart", "conv-pointwise", "dot-apart"),
    ),
    "depthwise": (
        lambda: batch_norm(conv("NCHW", c=8, o=8, groups=8)),
        ("depthwise-shifts", "conv-scale", "batchnorm-fold"),
    ),
    "dilated": (lambda: conv("NCHW", dilation=2, pad=2), ("conv-undilate", "conv-im2col", "conv-shifted-dots")),
    "strided": (strided, ("slice-of-conv",)),
    "max pool": (lambda: pool("NCHW", "max"), ("wmax-shifts", "wmax-separable")),
    "global pool": (pooled, ("wsum-all", "wsum-of-scale", "wsum-shifts", "wsum-separable", "sum-as-dot")),
    "two convolutions of one input": (branches, ("conv-merge",)),
    "three products of one input": (merged, ("dot-merge",)),
    "low rank": (low_rank, ("dot-assoc",)),
    "product with a matrix of blocks": (
        lambda: dot(blocks(), var("x", 5, 3)), ("product-with-padded-rows", "product-with-padding")
    ),
    "logarithm of a softmax": (log_softmax, ("log-of-quotient", "log-of-product")),
    "logarithm of an exponential": (lambda: ew("log", ew("exp", var("x", 5, 4))), ("log-after-exp",)),
    "picked entries of logarithms of softmaxes": (
        lambda: total(ew("mul", one_hot(5, 4), log_softmax()), 1),
        ("entry-by-one-hot", "rows-before-function-of-each"),
    ),
    "picked entries of sums": (
        lambda: total(ew("mul", one_hot(5, 4), ew("add", var("x", 5, 4), var("y", 5, 4))), 1),
        ("rows-before-functions",),
    ),
    "sums of the rows of classes": (
        lambda: dot(one_hot(5, 4), var("x", 5, 3), 0, 0), ("product-with-one-hot-columns",)
    ),
    "sizes of classes": (lambda: total(one_hot(5, 4), 0), ("sizes-of-segments",)),
    "product with an identity": (lambda: dot(triangle("eq", 5), var("t", 5, 3)), ("product-with-identity",)),
    "products of rows": (
        lambda: mk("dot_general", var("a", 5, 4), var("b", 5, 4), dimension_numbers=(((1,), (1,)), ((0,), (0,)))),
        ("sum-in-place-of-dot",),
    ),
    "adapter": (lambda: adapted(False), ("adapter-merge",)),
    "adapter beside a bias": (lambda: adapted(True), ("adapter-merge-biased",)),
    "small products": (
        lambda: mk("dot_general", var("a", 5, 3, 4), var("b", 5, 4, 4), dimension_numbers=(((2,), (1,)), ((0,), (0,)))),
        ("dot-unrolled", "dot-apart"),
    ),
    "prefix sums": (lambda: mk("cumsum", var("x", 2, 256), axis=1, reverse=False), ("cumsum-blocked", "cumsum-as-dot")),
    "embedding": (embedding, ("take-ew", "take-ew-row", "dot-take")),
    "layer norm": (layer_norm, ("div-by-sqrt", "sum-of-mul", "sum-as-dot", "scaled-sum-as-dot")),
    "rms norm": (rms_norm, ("rsqrt-by-sqrt", "square-sum-to-dot")),
    "softmax": (attention, ("dot-divide-out", "div-by-part", "sum-as-dot")),
    "AC + BC": (lambda: ew("add", dot(var("a", 3, 4), var("c", 4, 5)), dot(var("b", 3, 4), var("c", 4, 5))),
                ("dot-factor",)),
    "AC - bC": (
        lambda: ew("sub", dot(var("a", 5, 4), var("c", 4, 3)),
                   spread(dot(var("b", 4), var("c", 4, 3), lc=0), (5, 3), 1)),
        ("dot-factor-sub",),
    ),
    "product less its mean": (centred, ("mean-of-product",)),
    "last of running reductions": (
        entries_of_runs,
        ("entry-of-sums", "entry-of-products", "entry-of-maxima", "entry-of-minima", "entry-of-function",
         "entry-of-functions"),
    ),
    "diagonal of a function": (
        lambda: on_diagonal(ew("exp", ew("sub", var("a", 5, 5), var("b", 5, 5)))),
        ("rows-before-function", "rows-before-functions", "diagonal-as-sum"),
    ),
    "sums over diagonals": (
        lambda: ew(
            "mul", total(diagonal(var("a", 5, 5), 5), 1), spread(total(diagonal(var("b", 4, 4), 4), 0, 1), (5,))
        ),
        ("sum-as-diagonal", "trace-as-diagonal"),
    ),
    "products of rows of two tables": (two_tables, ("rows-of-two-tables",)),
    "sums by few segments": (
        lambda: segments(
            ew("mul", ew("add", dot(var("x", 20, 4), var("w", 4, 3)), spread(frozen("b", 3), (20, 3), 1)),
               spread(var("s", 3), (20, 3), 1)), 5,
        ),
        ("segments-of-scale", "segments-of-bias", "segments-of-product"),
    ),
    "sums by many segments": (
        lambda: ew("add", dot(segments(var("x", 4, 3), 9), var("w", 3, 5)),
                   spread(total(segments(var("y", 4, 6), 9), 1), (9, 5), 0)),
        ("product-of-segments", "sum-of-segments"),
    ),
    "product of exponentials": (
        lambda: mk("reduce_prod", ew("exp", var("x", 3, 4)), axes=(1,)), ("product-of-exponentials",),
    ),
    "function of a choice": (lambda: ew("exp", chosen()), ("function-of-outer-selection",)),
    "sum of choices": (
        lambda: total(chosen(), 2), ("sum-of-outer-selection", "sum-of-selected-difference"),
    ),
    "sum of convolutions of one input": (lambda: two_kernels("add"), ("conv-add-kernels",)),
    "difference of convolutions of one input": (lambda: two_kernels("sub"), ("conv-subtract-kernels",)),
    "sum of convolutions by one kernel": (two_images, ("conv-add-images",)),
    "features mixed after a convolution": (bottleneck, ("conv-then-pointwise",)),
    "features mixed before a pool": (transition, ("pool-before-product",)),
    "maximum of a rectified sum": (greatest, ("max-before-add", "max-before-relu")),
    "powers": (
        powers,
        ("power-3-4", "power-1-4", "power-3-2", "power-less-1-4", "power-less-1-2", "power-less-3-4", "power-less-3-2",
         "power-less-2", *[f"power-{n}" for n in range(2, 9)]),
    ),
    "blur by an outer product": (lambda: plain_conv(var("x", 1, 1, 7, 7), blurring()), ("conv-separable",)),
    "bilinear form": (bilinear, ("product-order",)),
    "total of a product": (lambda: total(dot(var("a", 5, 4), var("b", 4, 3)), 0, 1), ("sum-of-product",)),
    "total of a sum": (lambda: total(ew("add", var("a", 5, 4), spread(var("b", 4), (5, 4), 1)), 0), ("sum-of-bias",)),
    "product with repeated rows": (
        lambda: mk(
            "dot_general", var("a", 5, 4, 3), spread(var("b", 4), (4, 3), 0),
            dimension_numbers=(((1, 2), (0, 1)), ((), ())),
        ),
        ("product-with-broadcast",),
    ),
    "rows by a product with one-hot rows": (one_hot_rows, ("product-with-one-hot",)),
    "product of repeated rows": (
        lambda: mapped(spread(var("a", 5, 4), (3, 5, 4), 1, 2), var("b", 4, 2)), ("product-of-broadcast",),
    ),
    "product of sums of pairs": (lambda: mapped(pairs("add"), var("w", 4, 2)), ("product-of-outer-sum",)),
    "product of differences of pairs": (lambda: mapped(pairs("sub"), var("w", 4, 2)), ("product-of-outer-difference",)),
    "squared distances of pairs": (
        lambda: total(ew("square", pairs("sub")), 2), ("square-of-outer-difference",),
    ),
    "scaled squared distances of pairs": (
        lambda: total(ew("div", ew("square", pairs("sub")), spread(var("v", 3, 4), (5, 3, 4), 1, 2)), 2),
        ("quotient-of-outer-difference",),
    ),
    "product with a triangle of ones": (
        lambda: dot(triangle("ge", 260), var("x", 260, 2)), ("product-with-triangle",),
    ),
    "product with an upper triangle of ones": (
        lambda: dot(triangle("le", 260), var("x", 260, 2)), ("product-with-upper-triangle",),
    ),
    "many rows of a small table": (
        lambda: ew("exp", dot(rows(var("t", 3, 4), var("i", 7, dtype="int32")), var("w", 4, 4))),
        ("rows-after-product", "rows-after-function"),
    ),
    "few rows of a large table": (
        lambda: rows(dot(ew("exp", var("t", 9, 4)), var("w", 4, 4)), var("i", 2, dtype="int32")),
        ("rows-before-product", "rows-before-function"),
    ),
    "sums of windows": (lambda: total(windows(var("x", 2, 9), 6, 4), 2), ("sliding-sum",)),
    "maxima of windows": (
        lambda: mk("reduce_max", windows(var("x", 2, 9), 6, 4), axes=(2,)), ("sliding-maximum",),
    ),
    "weighted windows": (lambda: dot(windows(var("x", 2, 9), 6, 4), var("w", 4, 3), 2), ("windows-times-weights",)),
    "reversed before a product": (
        lambda: dot(mk("rev", var("x", 5, 4), dimensions=(1,)), var("w", 4, 2)), ("product-of-reversed",),
    ),
    "long windows": (lambda: running("sum", 40, 18), ("wsum-of-halves",)),
    "long windows of odd length": (lambda: running("sum", 40, 19), ("wsum-of-odd-length", "wsum-of-halves")),
    "maxima of long windows": (lambda: running("max", 40, 19), ("wmax-of-halves",)),
    "a long filter": (lambda: signal(70, 64), ("long-convolution",)),
    "long filters of channels": (lambda: signal(70, 64, channels=2), ("long-convolution-by-channel",)),
    "cosines of differences": (
        lambda: ew("add", total(ew("cos", outer("sub")), 0, 1), total(ew("sin", outer("sub")), 0, 1)),
        ("sum-of-cosines-of-differences", "sum-of-sines-of-differences"),
    ),
    "cosines of sums": (
        lambda: ew("add", total(ew("cos", outer("add")), 0, 1), total(ew("sin", outer("add")), 0, 1)),
        ("sum-of-cosines-of-sums", "sum-of-sines-of-sums"),
    ),
    "weighted cosines": (
        lambda: ew("add", dot(ew("cos", outer("sub")), var("w", 5, 3)), dot(ew("sin", outer("sub")), var("w", 5, 3))),
        ("product-with-cosines-of-differences", "product-with-sines-of-differences"),
    ),
    "weighted differences": (lambda: weighted("to"), ("product-of-weighted-difference",)),
    "weighted differences, turned": (lambda: weighted("from"), ("product-of-weighted-difference-from",)),
    "total of a padded tensor": (
        lambda: total(mk("pad", var("x", 3, 4), literal(0.0, "float64"), padding_config=((0, 0, 0), (2, 1, 0))), 0, 1),
        ("sum-of-padding",),
    ),
    "negated difference": (
        lambda: ew("exp", ew("neg", ew("sub", var("x", 3, 4), var("y", 3, 4)))),
        ("neg-of-difference",),
    ),
}  # fmt: skip


def test_a_power_of_a_frozen_matrix_stays_ahead_of_the_call() -> None:
    """Its factors would be multiplied with the input one by one, in as many orders as there are sums of powers."""
    power = frozen("m", 12, 12)
    for _ in range(6):
        power = dot(power, power)
    root = dot(var("x", 2, 12), power)
    report = grow(egraph(root), load(), deadline=Deadline.within(20.0))
    assert report.stop == "saturated"
    assert not report.rules["dot-assoc"].unions
    assert not report.rules["product-order"].unions


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_family_fires_and_keeps_values(name: str) -> None:
    make, expected = PROGRAMS[name]
    root = make()
    eg = egraph(root)
    report = grow(eg, load(), deadline=Deadline.within(20.0))
    assert report.stop == "saturated"
    for rule in expected:
        assert report.rules[rule].unions, rule
    assert not {rule: counts.errors for rule, counts in report.rules.items() if counts.errors}
    check_all_enodes(eg, arrays_of(root))


def test_saturating_rules_of_the_library_are_seen_by_some_program() -> None:
    """Rules that no program above needs are named here, so that a new one gets a program."""
    seen = {rule for _, rules, *_ in (*PROGRAMS.values(), *FORMS.values()) for rule in rules}
    rest = {rule.name for rule in load() if rule.mode != "near" and not is_law(rule)} - seen
    assert rest == {
        "add-assoc-frozen", "mul-assoc-frozen", "scale-of-bias", "bias-difference", "div-frozen", "div-div", "mul-div",
        "neg-of-product", "select-same", "select-ew", "conv-pad", "conv-pointwise-compose", "conv-scale-across",
        "depthwise-then-pointwise", "dot-scale-across",
        "dot-scale-out", "dot-split-k", "ew1-concat", "ew1-view", "ew2-concat", "max-max", "pad-pad",
        "sum-bcast", "sum-divide", "sum-scale", "sum-sum", "take-concat",
    }  # fmt: skip


def test_powers_by_squares_do_not_grow() -> None:
    """Products of powers of one matrix have as many orders as there are ways to add up exponents."""
    power = var("a", 6, 6)
    for _ in range(8):
        power = dot(power, power)
    report = grow(egraph(power), [rule for rule in load() if rule.mode == "saturate"], deadline=Deadline.within(20.0))
    assert (report.stop, report.enodes[-1]) == ("saturated", report.enodes[0])
