"""Default schedules: right for every kind of stage, worth their tasks, and replayable."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.graph import Node, make_input, mk
from superopt.kernels.choose.defaults import decide, default, default_trace, written
from superopt.kernels.llvm.cpu import Cpu, host, restricted, supported
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply
from tests.support import contraction_cases as cases
from tests.support.machines import WIDE
from verifier.schedules import check_schedule

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def tile(p: LoopProgram, threads: int = 1, cpu: Cpu | None = None):
    """The tensorized stage of the default schedule."""
    return next((s for s in default(p, cpu, threads).stages if s.tile is not None), None)


def softmax() -> Node:
    x = make_input("x", (7, 33))
    top = cases.over(mk("reduce_max", x, axes=(1,)), x, 0)
    e = mk("exp", mk("sub", x, top))
    return mk("div", e, cases.over(mk("reduce_sum", e, axes=(1,)), x, 0))


def scores() -> Node:
    q, k = make_input("q", (2, 20, 3, 8)), make_input("k", (2, 33, 3, 8))
    return mk("transpose", cases.dot(q, k, ((3,), (3,)), ((0, 2), (0, 2))), permutation=(0, 1, 2, 3))


def chained() -> Node:
    hidden = mk("tanh", cases.matmul(30, 33, 40))
    return cases.dot(hidden, make_input("u", (33, 20), frozen=True))


def two_sums() -> Node:
    return mk("add", cases.matmul(30, 33, 40), cases.dot(make_input("h", (30, 36)), make_input("u", (36, 33))))


def joined() -> Node:
    both = mk("concatenate", make_input("x", (30, 18)), make_input("y", (30, 22)), dimension=1)
    return cases.dot(both, make_input("w", (40, 33), frozen=True))


ZOO: dict[str, Node] = {
    "product": cases.finished(cases.matmul(30, 70, 40)),
    "live": cases.matmul(64, 70, 80, live=True),
    "transposed": cases.dot(make_input("x", (40, 30)), make_input("w", (70, 40)), ((0,), (1,))),
    "one row": cases.finished(cases.matmul(1, 270, 40)),
    "vector": cases.dot(make_input("x", (40,)), make_input("w", (40, 270), frozen=True), ((0,), (0,))),
    "matrix times vector": cases.dot(make_input("x", (50, 40)), make_input("w", (40,)), ((1,), (0,))),
    "few columns": cases.matmul(50, 3, 40),
    "scores": scores(),
    "float64": cases.matmul(30, 37, 40, "float64"),
    "bfloat16": cases.matmul(30, 37, 40, "bfloat16"),
    "int32": cases.matmul(30, 37, 40, "int32"),
    "bytes": cases.matmul(30, 37, 35, "int8", "int32"),
    "bytes of an image": cases.conv((7, 9), (6, 20), dtype="int8"),
    "bytes of an image, channels first": cases.conv((7, 9), (6, 20), dtype="int8", first=True),
    "convolution": cases.finished(cases.conv((9, 9), (8, 40))),
    "channels first": cases.finished(cases.conv((9, 9), (8, 40), first=True), 1),
    "one tap": cases.conv((9, 9), (8, 40), window=1, pad=0),
    "one tap, channels first": cases.conv((7, 7), (8, 40), window=1, pad=0, first=True),
    "large window": cases.conv((11, 13), (3, 20), window=7, stride=2, pad=3),
    "depthwise": cases.conv((9, 9), (16, 16), groups=16),
    "groups": cases.conv((6, 7), (6, 48), groups=2),
    "softmax": softmax(),
    "chained": chained(),
    "two sums": two_sums(),
    "joined": joined(),
    "small": cases.matmul(2, 3, 4),
}


@pytest.mark.parametrize("name", ZOO)
def test_defaults_are_right(name):
    p = cases.program(ZOO[name])
    cases.check(p, default(p, host(), 1), 80)


@pytest.mark.parametrize("name", ["product", "channels first", "bytes"])
def test_the_trace_leads_to_the_default(name):
    p = cases.program(ZOO[name])
    assert apply(p, default_trace(p, host(), 4)) == default(p, host(), 4)


def test_every_contraction_of_a_stage_is_a_tile():
    for name, tiles in (("chained", 2), ("two sums", 2), ("joined", 1), ("softmax", 0)):
        scheduled = default(cases.program(ZOO[name]), host(), 1)
        assert sum(s.tile is not None for s in scheduled.stages) == tiles


def test_tiles_of_images_cross_the_ends_of_rows_of_pixels():
    product = cases.dot(make_input("w", (200, 800), frozen=True), make_input("x", (800, 3, 40, 40)), ((1,), (0,)))
    scheduled = default(cases.program(product), host(), 2)
    assert any(s.tile is not None for s in scheduled.stages)
    written(scheduled)


def tasks(p: LoopProgram, threads: int) -> int:
    stage = tile(p, threads, WIDE)
    assert stage is not None
    return int(np.prod([a.extent for a in stage.axes if a.kind == "parallel"]))


def test_tasks_are_at_least_the_threads_where_there_is_work():
    assert tasks(cases.program(cases.matmul(128, 768, 768)), 4) >= 4
    assert tasks(cases.program(cases.matmul(1, 3072, 768)), 4) >= 4
    assert tasks(cases.program(cases.conv((28, 28), (64, 64))), 4) >= 4
    assert tasks(cases.program(cases.matmul(30, 70, 40)), 4) == 1


def test_what_is_frozen_is_packed_and_what_is_read_once_is_not():
    frozen, live = [decide(cases.program(cases.matmul(64, 64, 64, live=live)), "out0") for live in (False, True)]
    assert frozen is not None
    assert live is not None
    assert (frozen.pack_b, live.pack_b) == ("panels", "none")
    assert decide(cases.program(ZOO["depthwise"]), "out0") is None
    assert decide(cases.program(ZOO["softmax"]), "out0") is None
    assert decide(cases.program(ZOO["small"]), "out0") is None


@pytest.mark.skipif(not host().vnni, reason="no 8-bit dot products on this processor")
def test_bytes_use_dot_products():
    for name in ("bytes", "bytes of an image", "bytes of an image, channels first"):
        stage = tile(cases.program(ZOO[name]))
        assert stage is not None
        assert stage.tile is not None
        assert stage.tile.intrinsic == "dot_s8s8"


def test_tiles_fit_narrow_vectors():
    cpu = restricted(host(), 256)
    for name in ("product", "convolution", "bfloat16"):
        p = cases.program(ZOO[name])
        cases.check(p, default(p, cpu, 2), 80, cpu, threads=2)


@pytest.mark.parametrize("seed", range(16))
def test_random_convolutions(seed):
    rng = np.random.default_rng(seed)

    def pick(*of: int) -> int:
        return int(rng.choice(of))

    groups, window = pick(1, 1, 2, 3), pick(1, 2, 3, 5)
    node = cases.conv(
        (pick(6, 7, 10), pick(6, 9, 17)), (groups * pick(1, 3, 8), groups * pick(1, 5, 16, 24)), window, pick(1, 2),
        pick(0, 1, 2), pick(1, 1, 2) if window < 4 else 1, groups, bool(pick(0, 1)), batch=pick(1, 2),
    )  # fmt: skip
    p = cases.program(cases.finished(node) if 0 not in node.shape else node)
    cases.check(p, default(p, host(), pick(1, 4)), 200, threads=pick(1, 3))


def test_one_row_reads_panels_side_by_side():
    tiled = tile(cases.program(cases.matmul(1, 512, 300)))
    assert tiled is not None
    assert [n for _, n in tiled.tile.rows] == [4]


@pytest.mark.parametrize(("rows", "ahead"), [(5, False), (6, True), (8, True), (64, False)])
def test_few_rows_of_large_weights_are_prefetched(rows: int, ahead: bool):
    assert bool(tile(cases.program(cases.matmul(rows, 768, 2048)), 1, WIDE).knob("prefetch", 0)) == ahead


def test_few_outputs_of_long_sums_are_split_among_threads():
    p = cases.program(cases.matmul(4, 32, 16384))
    after = default(p, host(), 4)
    assert len(after.stages) > len(default(p, host(), 1).stages)
    cases.check(p, after, 16384, threads=4)
    assert check_schedule(p, after).status == "PROVED"


def test_long_rows_write_many_vectors_at_a_time():
    x = make_input("x", (64, 1024))
    e = mk("exp", mk("sub", x, cases.over(mk("reduce_max", x, axes=(1,)), x, 0)))
    assert default(cases.program(e), host()).stages[0].knob("vectors", 4) == 8
    assert default(cases.program(softmax()), host()).stages[0].knob("vectors", 4) == 4


def test_rows_of_a_residual_are_kept_and_long_bodies_go_vector_by_vector() -> None:
    x, y = make_input("x", (64, 768)), make_input("y", (64, 768))

    def knobs(*outputs: Node) -> dict[str, object]:
        return dict(default(from_graph(list(outputs)), threads=1).stages[-1].knobs)

    def normed(z: Node) -> Node:
        mean = mk("reduce_sum", z, axes=(1,))
        centred = mk("sub", z, mk("broadcast_in_dim", mean, shape=(64, 768), broadcast_dimensions=(0,)))
        square = mk("reduce_sum", mk("mul", centred, centred), axes=(1,))
        return mk("mul", centred, mk("broadcast_in_dim", square, shape=(64, 768), broadcast_dimensions=(0,)))

    assert knobs(normed(mk("add", x, y)))["keep"] == "all"
    assert "keep" not in knobs(normed(x))
    assert knobs(mk("exp", x))["vectors"] == 1
    assert "vectors" not in knobs(mk("add", x, y))
