"""Macro rules on real ops in their physical layouts: equal values, no transposes, frozen parts ahead of time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rewrites.build.target import IRTarget
from rewrites.build.terms import build, expand_macro
from rewrites.library import by_name, load
from rewrites.match.matching import matches
from rewrites.match.space import IRSpace
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.program import frozen_cut, hot_part, split
from tests.support.rules_numeric import NCHW, NHWC, arrays_of, error, values, var

LAYOUTS = {"NCHW": NCHW, "NHWC": NHWC}
TOLERANCE = 1e-10


def conv(
    layout: str,
    size: int = 6,
    c: int = 16,
    o: int = 5,
    k: int = 3,
    *,
    groups: int = 1,
    stride: int = 1,
    pad: int = 1,
    dilation: int = 1,
) -> Node:
    """A convolution with a frozen kernel."""
    if layout == "NHWC":
        x, w = var("x", 1, size, size, c), var("w", k, k, c // groups, o, frozen=True)
    else:
        x, w = var("x", 1, c, size, size), var("w", o, c // groups, k, k, frozen=True)
    return mk(
        "conv_general_dilated", x, w, window_strides=(stride,) * 2, padding=((pad, pad),) * 2,
        rhs_dilation=(dilation,) * 2, dimension_numbers=LAYOUTS[layout], feature_group_count=groups,
    )  # fmt: skip


def pool(layout: str, kind: str, size: int = 7, k: int = 3, stride: int = 2, pad: int = 1) -> Node:
    spatial = (1, 2) if layout == "NHWC" else (2, 3)
    x = var("x", *((1, size, size, 4) if layout == "NHWC" else (1, 4, size, size)))

    def at(n: int, other: int) -> tuple[int, ...]:
        return tuple(n if i in spatial else other for i in range(4))

    padding = tuple((n, n) for n in at(pad, 0))
    return mk(
        f"reduce_window_{kind}", x, window_dimensions=at(k, 1), window_strides=at(stride, 1), padding=padding,
    )  # fmt: skip


def batched(g: int, n: int) -> Node:
    numbers = (((2,), (1,)), ((0,), (0,)))
    return mk("dot_general", var("a", g, 3, n), var("b", g, n, 4), dimension_numbers=numbers)


OPS: dict[str, Callable[[str], Node]] = {
    "3x3": lambda layout: conv(layout),
    "3x3 on an odd size": lambda layout: conv(layout, size=7),
    "3x3 unpadded": lambda layout: conv(layout, pad=0),
    "3x3 by 2": lambda layout: conv(layout, size=7, stride=2),
    "3x3 dilated": lambda layout: conv(layout, dilation=2, pad=2),
    "5x5": lambda layout: conv(layout, size=6, k=5, pad=2),
    "5x5 unpadded": lambda layout: conv(layout, size=9, k=5, pad=0),
    "5x5 by 2": lambda layout: conv(layout, size=9, k=5, stride=2, pad=2),
    "stem": lambda layout: conv(layout, size=14, c=3, k=7, stride=2, pad=3),
    "grouped": lambda layout: conv(layout, c=8, o=12, groups=4),
    "grouped 1x1": lambda layout: conv(layout, c=8, o=12, k=1, groups=4, pad=0),
    "depthwise": lambda layout: conv(layout, c=8, o=8, groups=8),
    "depthwise by 2": lambda layout: conv(layout, size=7, c=8, o=8, groups=8, stride=2),
    "max pool": lambda layout: pool(layout, "max"),
    "mean pool": lambda layout: pool(layout, "sum", stride=1),
    "mean": lambda layout: mk("reduce_sum", var("x", 1, 5, 5, 4), axes=(1, 2) if layout == "NHWC" else (2, 3)),
    "small products": lambda layout: batched(5, 4),
}
MACROS = [rule for rule in load() if rule.mode == "macro"]
FIRES = {
    "conv-im2col": {
        "3x3",
        "3x3 on an odd size",
        "3x3 unpadded",
        "3x3 by 2",
        "3x3 dilated",
        "5x5",
        "5x5 unpadded",
        "5x5 by 2",
        "stem",
    },
    "conv-shifted-dots": {"3x3", "3x3 on an odd size", "3x3 unpadded", "3x3 by 2", "3x3 dilated", "grouped"},
    "depthwise-shifts": {"depthwise", "depthwise by 2"},
    "conv-space-to-depth": {"stem"},
    "conv-undilate": {"3x3 dilated"},
    "conv-winograd": {"3x3", "3x3 on an odd size", "3x3 unpadded"},
    "conv-winograd-four": {"3x3", "3x3 on an odd size", "3x3 unpadded"},
    "conv-winograd-square": {"3x3", "3x3 on an odd size", "3x3 unpadded"},
    "conv-apart-4-5": {"5x5", "5x5 unpadded"},
    "grouped-apart": {"grouped", "grouped 1x1"},
    "grouped-pointwise-apart": {"grouped 1x1"},
    "wmax-shifts": {"max pool"},
    "wsum-shifts": {"mean pool"},
    "sum-as-dot": {"mean"},
    "dot-unrolled": {"small products"},
    "dot-apart": {"small products"},
}


def graph_of(node: Node) -> Graph:
    return Graph(tuple(n for n in topological((node,)) if n.op == "input"), (node,))


def test_the_table_names_every_macro_rule() -> None:
    assert set(FIRES) == {rule.name for rule in MACROS}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rule", MACROS, ids=lambda r: r.name)
def test_a_macro_fires_where_it_should_and_equals_its_op(rule, layout: str) -> None:
    fired: set[str] = set()
    for name, make in OPS.items():
        node = make(layout)
        arrays = arrays_of(node)
        for match in matches(rule, IRSpace((node,)), node, dtypes=("float64",)):
            fired.add(name)
            built = build(match, IRTarget())
            assert error(values((node,), arrays), values(built, arrays)) < TOLERANCE, (name, layout)
    assert fired == FIRES[rule.name]


@pytest.mark.parametrize("name", ["conv-im2col", "conv-winograd", "conv-winograd-square", "grouped-apart"])
def test_channels_last_needs_no_transpose(name: str) -> None:
    """Everything that is computed on each call works in the layout of the image."""
    node = conv("NHWC", c=8, groups=4, o=8) if name == "grouped-apart" else conv("NHWC")
    hot = hot_part(graph_of(expand_macro(by_name(name), node)))
    assert not [n for n in hot.nodes() if n.op == "transpose"]


def test_patches_are_one_product_with_one_contracted_axis() -> None:
    hot = hot_part(graph_of(expand_macro(by_name("conv-im2col"), conv("NHWC"))))
    (product,) = [n for n in hot.nodes() if n.op == "dot_general"]
    contracted, batch = product["dimension_numbers"]
    assert contracted == ((3,), (0,))
    assert batch == ((), ())
    assert product.inputs[0].shape == (1, 6, 6, 9 * 16)


def test_the_square_form_is_one_product_of_sixteen_planes() -> None:
    hot = hot_part(graph_of(expand_macro(by_name("conv-winograd-square"), conv("NHWC", size=8))))
    (product,) = [n for n in hot.nodes() if n.op == "dot_general"]
    assert np.prod(product.shape) == 16 * 4 * 4 * 5  # against 9 products at 8 x 8 positions


@pytest.mark.parametrize("name", ["conv-im2col", "conv-winograd-square", "conv-space-to-depth"])
def test_what_is_made_of_a_frozen_kernel_is_prepared(name: str) -> None:
    node = conv("NHWC", c=3, k=7, stride=2, pad=3, size=14) if name == "conv-space-to-depth" else conv("NHWC")
    graph = graph_of(expand_macro(by_name(name), node))
    program = split(graph, frozen_cut(graph))
    assert program.prepare is not None
    hot = program.hot
    assert [n for n in hot.nodes() if n.op == "input" and n["frozen"]]
    arrays = arrays_of(node)
    prepared = values(program.prepare.outputs, arrays)
    fed = dict(zip([n["name"] for n in hot.inputs if n["frozen"]], prepared, strict=True))
    assert error(values((node,), arrays), values(hot.outputs, {**arrays, **fed})) < TOLERANCE
    for n in hot.nodes():  # nothing on the way depends on frozen inputs alone
        below = [x for x in topological((n,)) if x.op == "input"]
        assert n.op in ("input", "reshape") or not below or not all(x["frozen"] for x in below)
