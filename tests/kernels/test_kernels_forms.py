"""Other forms of a convolution as kernels: their transforms are one region each, right and proved."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from rewrites.build.terms import expand_macro
from rewrites.library import by_name
from superopt.backends.protocol import backend_of
from superopt.ir.expr import block, subexpressions
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.ir.index import Symbol, of_atom, substitute
from superopt.kernels.choose.defaults import traces, written
from superopt.kernels.choose.regions import Region
from superopt.kernels.choose.transforms import TransformSizes, _cycles, transformed
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.trace import apply
from superopt.make.plain import in_regions, own_form
from tests.support.machines import WIDE
from tests.support.rules_numeric import NHWC
from verifier.schedules import check_schedule
from verifier.verdict import REFUTED

needs_kernels = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def winograd(size: int, pad: int = 1, weights: tuple[str, ...] = ("w",), channels: int = 16) -> tuple[Region, ...]:
    """The regions of convolutions of 3 x 3, one after the other, in the form of Winograd."""
    node: Node = make_input("x", (1, size, size, channels))
    for name in weights:
        w = make_input(name, (3, 3, channels, channels), frozen=True)
        node = mk(
            "conv_general_dilated", node, w, window_strides=(1, 1), padding=((pad, pad),) * 2, dimension_numbers=NHWC,
        )  # fmt: skip
        node = expand_macro(by_name("conv-winograd-square"), node)
    inputs = tuple(n for n in topological((node,)) if n.op == "input")
    return in_regions("winograd", own_form(Graph(inputs, (node,)))).regions


SIZES = {"even": (6, 1), "odd": (7, 1), "unpadded": (8, 0)}


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", SIZES)
def test_winograd_is_one_kernel(name: str, threads: int) -> None:
    """A block of tiles is transformed, multiplied and written back by one task: nothing between lies in memory."""
    (region,) = winograd(*SIZES[name])
    program = from_graph(region.graph.outputs)
    assert [b.scope for b in program.buffers if b.scope != "input"].count("scratch") == 2
    first, plainer = islice(traces(program, threads=threads), 2)
    assert [s.buffer for s in apply(program, first).phases()] == ["out0"]
    assert len(apply(program, plainer).phases()) >= 3
    for steps in (first, plainer):
        right_and_proved(program, apply(program, steps))


@needs_kernels
@pytest.mark.parametrize("columns", [16, 32])
def test_tasks_of_winograd_share_channels_and_rows_of_tiles(columns: int) -> None:
    (region,) = winograd(9, channels=32)
    program = from_graph(region.graph.outputs)
    found = transformed(program, host())
    assert found is not None
    point = {"block": 1, "columns": columns, "tile": (1, 3), "unroll": 4}
    scheduled = apply(found.program, found.decisions.steps(point))
    host_stage = scheduled.stage("out0")
    assert [a.extent for a in host_stage.axes if a.kind == "parallel"] == [1, 5, *([2] if columns == 16 else [])]
    right_and_proved(program, scheduled)


def right_and_proved(program: LoopProgram, scheduled: LoopProgram) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        b.name: rng.standard_normal(b.shape, np.float32) for b in program.buffers if b.scope in ("input", "frozen")
    }
    expected = evaluate(program, arrays, wide=True)["out0"]
    hot, early = written(scheduled)
    if early is not None:
        arrays |= build(early, pipeline="none").run(arrays, guard=True)
    got = build(hot, pipeline="none").run(arrays, guard=True)["out0"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    assert check_schedule(program, scheduled).proved


@needs_kernels
def test_a_transform_of_too_few_planes_is_refuted() -> None:
    """A schedule whose input transform leaves out a plane, or whose tile sums too little, is no schedule."""
    (region,) = winograd(6)
    program = from_graph(region.graph.outputs)
    found = transformed(program, host())
    made = None if found is None else found.default()
    assert made is not None
    stages = {s.buffer: s for s in made[0].stages}
    before = stages["s0"]
    planes = [a for a in before.axes if a.kind == "unroll"]
    fewer = tuple([replace(a, symbol=Symbol(a.symbol.name, 0, 2)) if a is planes[0] else a for a in before.axes])
    renamed = {planes[0].symbol: of_atom(next(a.symbol for a in fewer if a.symbol.name == planes[0].symbol.name))}
    wrong = replace(
        before, axes=fewer, value=before.value.substitute(renamed),
        index=tuple([substitute(x, renamed) for x in before.index]),
    )  # fmt: skip
    after = replace(made[0], stages=tuple([wrong if s is before else s for s in made[0].stages]))
    assert check_schedule(program, after).status == REFUTED


@needs_kernels
def test_two_convolutions_are_two_kernels() -> None:
    """As one each element of the second would compute the first four times, in 400 values: seconds to compile."""
    assert [region.kind for region in winograd(8, weights=("w", "v"))] == ["contraction", "contraction"]


def test_axes_of_one_element_are_read_at_0() -> None:
    """What a part of a concatenation reads does not depend on where in it the part stands."""
    x = make_input("x", (4, 5))
    parts = [mk("reshape", mk(fn, x), new_sizes=(1, 4, 5)) for fn in ("exp", "tanh", "sin")]
    _, value = block(mk("concatenate", *parts, dimension=0))
    assert {str(e) for e in subexpressions(value) if e.kind == "load"} == {"x[o1,o2]"}


@needs_kernels
def test_the_code_of_winograd_is_validated() -> None:
    (region,) = winograd(8, channels=32)
    assert backend_of("native").validate(region.graph).proved


def test_rows_that_do_not_fill_a_tile_take_time_as_well() -> None:
    sizes = TransformSizes(lanes=8, item=4, rows=1, across=1, images=1, planes=16, depth=16, columns=16)
    cycles = [
        _cycles(replace(sizes, rows=rows), {"block": rows, "columns": 16, "tile": (1, 4)}, WIDE, 1)
        for rows in (1, 4, 5, 8)
    ]
    assert cycles == sorted(cycles)
    assert cycles[2] > 1.5 * cycles[1], "a second tile, of one row"


def test_weights_that_do_not_fit_beside_the_tiles_of_a_task_are_read_again() -> None:
    sizes = TransformSizes(lanes=8, item=4, rows=1, across=1, images=1, planes=16, depth=64, columns=128)
    weights, a_tile = 16 * 64 * 128 * 4, 16 * (64 + 128) * 4
    fit = (WIDE.l2 - weights) // a_tile // 4 * 4
    within, beyond = (
        _cycles(replace(sizes, rows=rows), {"block": rows, "columns": 128, "tile": (1, 4)}, WIDE, 1) / rows
        for rows in (fit, fit + 4)
    )
    assert beyond > 1.001 * within
