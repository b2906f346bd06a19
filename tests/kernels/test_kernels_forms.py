"""Other forms of a convolution as kernels: their transforms are one region each, right and proved."""

from __future__ import annotations

import numpy as np
import pytest

from rewrites.build.terms import expand_macro
from rewrites.library import by_name
from superopt.choose.plain import in_regions, own_form
from superopt.ir.expr import block, subexpressions
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.regions import Region
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.runtime.kernel import build
from tests.support.rules_numeric import NHWC
from verifier.schedules import check_schedule

needs_kernels = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def winograd(size: int, pad: int = 1, weights: tuple[str, ...] = ("w",)) -> tuple[Region, ...]:
    """The regions of convolutions of 3 x 3, one after the other, in the form of Winograd."""
    node: Node = make_input("x", (1, size, size, 16))
    for name in weights:
        w = make_input(name, (3, 3, 16, 16), frozen=True)
        node = mk(
            "conv_general_dilated", node, w, window_strides=(1, 1), padding=((pad, pad),) * 2, dimension_numbers=NHWC,
        )  # fmt: skip
        node = expand_macro(by_name("conv-winograd-square"), node)
    inputs = tuple(n for n in topological((node,)) if n.op == "input")
    return in_regions("winograd", own_form(Graph(inputs, (node,)))).regions


SIZES = {"even": (6, 1), "odd": (7, 1), "unpadded": (8, 0)}


@needs_kernels
@pytest.mark.parametrize("name", SIZES)
def test_winograd_is_a_product_between_two_transforms(name: str) -> None:
    """Parts of a concatenation were read through quotients of two axes, and chosen at every element."""
    regions = winograd(*SIZES[name])
    assert [region.kind for region in regions] == ["map", "contraction", "map"]
    for region in regions:
        program = from_graph(region.graph.outputs)
        scheduled = default(program)
        rng = np.random.default_rng(0)
        arrays = {
            b.name: rng.standard_normal(b.shape, np.float32) for b in program.buffers if b.scope in ("input", "frozen")
        }
        got = build(generate(scheduled), pipeline="none").run(arrays, guard=True)["out0"]
        np.testing.assert_allclose(got, evaluate(program, arrays, wide=True)["out0"], rtol=1e-5, atol=1e-4)
        assert check_schedule(program, scheduled).proved


def test_two_transforms_are_two_kernels() -> None:
    """As one each element of the second would compute the first four times, in 400 values: seconds to compile."""
    regions = winograd(8, weights=("w", "v"))
    assert [region.kind for region in regions] == ["map", "contraction", "map", "map", "contraction", "map"]


def test_axes_of_one_element_are_read_at_0() -> None:
    """What a part of a concatenation reads does not depend on where in it the part stands."""
    x = make_input("x", (4, 5))
    parts = [mk("reshape", mk(fn, x), new_sizes=(1, 4, 5)) for fn in ("exp", "tanh", "sin")]
    _, value = block(mk("concatenate", *parts, dimension=0))
    assert {str(e) for e in subexpressions(value) if e.kind == "load"} == {"x[o1,o2]"}
