"""Contractions are found with their roles, and tensorized programs mean and compute what the originals do."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.graph import make_input, mk
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host, restricted, supported
from superopt.kernels.loops.contract import analyse
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import reads
from superopt.kernels.schedule.tensorizing import ContractionDecisions as D
from superopt.kernels.schedule.tensorizing import tiled
from tests.support import contraction_cases as cases
from verifier.schedules import check_schedule

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def roles(p, **options):
    found = analyse(p, p.stages[0], **options)
    if found is None:
        return None
    return tuple(" ".join(s.name for s in part) for part in (found.batch, found.rows, found.columns, found.depth))


def test_roles_follow_from_characteristic_vectors():
    x, y = make_input("x", (3, 20, 24)), make_input("y", (3, 33, 24))
    scores = cases.dot(x, y, ((2,), (2,)), ((0,), (0,)))
    assert roles(cases.program(cases.matmul(20, 30, 40))) == ("", "o0", "o1", "r0")
    assert roles(cases.program(scores)) == ("o0", "o1", "o2", "r0")
    assert roles(cases.program(cases.conv((9, 9), (8, 40)))) == ("", "o1 o2", "o3", "r0_0 r0_1 r0_2")


def test_the_operand_along_the_lane_is_the_vector_operand():
    p = cases.program(cases.conv((9, 20), (8, 40), first=True))
    assert roles(p) == ("", "o1", "o2 o3", "r0_0 r0_1 r0_2")
    assert roles(p, lane="o1")[1:3] == ("o2 o3", "o1")
    assert roles(p, merge_columns=True)[2] == "o2o3"


def test_axes_that_all_accesses_walk_as_one_are_one():
    x, w = make_input("x", (2, 5, 40)), make_input("w", (40, 30))
    assert roles(cases.program(cases.dot(x, w, ((2,), (0,))))) == ("", "o0o1", "o2", "r0")
    assert roles(cases.program(cases.conv((9, 9), (8, 40), window=1, pad=0, batch=2))) == ("", "o0o1o2", "o3", "r0")


def test_divided_axes_are_split():
    grouped = cases.program(cases.conv((9, 9), (12, 48), groups=3))
    assert roles(grouped)[0] == "o3h"
    heads = mk("transpose", make_input("x", (4, 20, 16)), permutation=(1, 0, 2))
    merged = cases.dot(mk("reshape", heads, new_sizes=(20, 64)), make_input("w", (64, 30)))
    assert roles(cases.program(merged)) == ("", "o0", "o1", "r0_0 r0_1")


@pytest.mark.parametrize(
    "node",
    [
        mk("reduce_max", make_input("x", (8, 9)), axes=(1,)),
        mk("reduce_sum", make_input("x", (8, 9)), axes=(1,)),
        mk("add", cases.matmul(8, 9, 7), cases.dot(make_input("u", (8, 5)), make_input("v", (5, 9)))),
        cases.conv((9, 9), (16, 16), groups=16),
        cases.dot(make_input("x", (9,)), make_input("w", (9,)), ((0,), (0,))),
    ],
)
def test_other_stages_are_left_alone(node):
    p = cases.program(node)
    assert analyse(p, p.stages[0]) is None
    with pytest.raises(InputError, match="no contraction"):
        tiled(p, p.stages[0].buffer, D())


PRODUCT = cases.finished(cases.matmul(29, 75, 33))
DECISIONS = {
    "plain": D(rows=(("o0", 6),), vectors=2),
    "one row, one vector": D(vectors=1, unroll=1),
    "many rows": D(rows=(("o0", 14),), vectors=2, unroll=2),
    "more rows than there are": D(rows=(("o0", 40),), vectors=1),
    "grid": D(rows=(("o0", 4),), vectors=1, tasks=(("o0", 8), ("o1", 2))),
    "rows first": D(rows=(("o0", 4),), vectors=2, tasks=(("o0", 12),), columns_first=False),
    "B in place": D(rows=(("o0", 5),), vectors=3, pack_b="none"),
    "B on coordinates": D(rows=(("o0", 5),), vectors=2, pack_b="coordinates"),
    "A copied": D(rows=(("o0", 5),), vectors=2, pack_a="phase", pad_a=16),
    "A copied by tasks": D(rows=(("o0", 5),), vectors=2, pack_a="task", tasks=(("o0", 15), ("o1", 1))),
    "A transposed": D(rows=(("o0", 5),), vectors=2, pack_a="phase", order_a=("1", "0")),
    "blocked": D(rows=(("o0", 5),), vectors=2, block=8, unroll=3),
    "split depth": D(rows=(("o0", 5),), vectors=2, depth=("r0/8", "r0%8"), unroll=8, pack_a="phase"),
    "parts": D(rows=(("o0", 5),), vectors=2, split=3),
    "prefetch": D(rows=(("o0", 5),), vectors=2, prefetch=8),
    "lane down": D(rows=(("o1", 5),), vectors=1, lane="o0"),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_change_no_result(name):
    p = cases.program(PRODUCT)
    cases.check(p, tiled(p, "out0", DECISIONS[name]), 33)


def test_a_prefetch_is_as_many_steps_ahead_as_is_said():
    p = cases.program(PRODUCT)
    near, far = (
        generate(tiled(p, "out0", D(rows=(("o0", 5),), vectors=2, prefetch=ahead)), host()).module.text()
        for ahead in (4, 8)
    )
    assert near != far


ONE_ROW = cases.finished(cases.matmul(1, 192, 33))
STREAMS = {
    "side by side": D(vectors=1, streams=4),
    "two vectors each": D(vectors=2, streams=3, unroll=2),
    "in tasks": D(vectors=1, streams=2, tasks=(("o1", 5),)),
    "prefetched": D(vectors=1, streams=4, prefetch=4),
    "in place": D(vectors=1, streams=4, pack_b="none"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_panels_side_by_side(name):
    p = cases.program(ONE_ROW)
    after = tiled(p, "out0", STREAMS[name])
    cases.check(p, after, 33, threads=2)
    assert check_schedule(p, after).status == "PROVED"


def test_panels_side_by_side_divide_the_lane():
    with pytest.raises(InputError, match="do not divide"):
        tiled(cases.program(ONE_ROW), "out0", D(vectors=4, streams=4))


@pytest.mark.parametrize("name", ["plain", "grid", "A copied by tasks", "parts"])
def test_tasks_on_threads(name):
    p = cases.program(PRODUCT)
    cases.check(p, tiled(p, "out0", DECISIONS[name]), 33, threads=3)


SPATIAL = (("o1", 2), ("o2", 3))
CONVOLUTIONS = {
    "3x3": (cases.conv((7, 9), (5, 20)), D(rows=SPATIAL, pack_a="phase", vectors=1)),
    "taps inside": (
        cases.conv((7, 9), (16, 20)),
        D(rows=SPATIAL, vectors=1, pack_a="phase", order_a=("0", "2/8", "1", "2%8"),
          depth=("r0_0/8", "r0_1", "r0_0%8", "r0_2"), tasks=(("o1", 4),)),
    ),
    "stride": (cases.conv((9, 9), (5, 20), stride=2), D(rows=SPATIAL, pack_a="phase", vectors=1)),
    "dilation": (cases.conv((9, 9), (5, 20), dilation=2, pad=2), D(rows=SPATIAL, pack_a="phase", vectors=1)),
    "7x7": (cases.conv((11, 13), (3, 20), window=7, stride=2, pad=3), D(rows=SPATIAL, pack_a="phase", unroll=3)),
    "groups": (cases.conv((6, 7), (6, 48), groups=2), D(rows=(("o2", 7),), pack_a="phase", vectors=1)),
    "no border": (cases.conv((7, 9), (5, 20), pad=0), D(rows=SPATIAL, vectors=2)),
    "by tasks": (cases.conv((7, 9), (5, 20)), D(rows=SPATIAL, pack_a="task", tasks=(("o1", 2),), vectors=1)),
    "channels first": (cases.conv((5, 20), (4, 9), first=True), D(rows=(("o1", 3),), pack_b="coordinates")),
    "merged": (cases.conv((5, 7), (4, 9), first=True), D(rows=(("o1", 3),), merge_columns=True)),
    "transposed in registers": (
        cases.conv((6, 7), (4, 20), first=True),
        D(rows=(("o2", 2), ("o3", 5)), lane="o1", pack_a="phase", vectors=1),
    ),
    "lane of channels": (
        cases.conv((5, 7), (4, 20), first=True),
        D(rows=(("o3", 3),), lane="o1", pack_a="phase", vectors=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    node, decisions = CONVOLUTIONS[name]
    first = name in ("channels first", "merged", "lane of channels", "transposed in registers")
    p = cases.program(cases.finished(node, 1 if first else 3))
    cases.check(p, tiled(p, "out0", decisions), 160)


@pytest.mark.parametrize(
    ("dtype", "wide", "decisions"),
    [
        ("float64", None, D(intrinsic="fma_f64", rows=(("o0", 5),))),
        ("bfloat16", None, D(intrinsic="fma_bf16", rows=(("o0", 5),))),
        ("bfloat16", "float32", D(intrinsic="fma_bf16", rows=(("o0", 5),), pack_b="none")),
        ("bfloat16", "float32", D(rows=(("o0", 5),), pack_a="phase")),
    ],
)
def test_dtypes(dtype, wide, decisions):
    p = cases.program(cases.matmul(13, 37, 35, dtype, wide))
    cases.check(p, tiled(p, "out0", decisions), 35)


@pytest.mark.skipif(not host().vnni, reason="no 8-bit dot products on this processor")
@pytest.mark.parametrize("depth", [36, 35])
@pytest.mark.parametrize(("a", "b"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8")])
def test_bytes_are_exact(a, b, depth):
    x, w = make_input("x", (13, depth), a), make_input("w", (depth, 37), b, frozen=True)
    wide = [mk("convert_element_type", v, new_dtype="int32") for v in (x, w)]
    p = cases.program(cases.dot(*wide))
    kind = f"dot_{a[0]}8{b[0]}8".replace("i", "s")
    cases.check(p, tiled(p, "out0", D(intrinsic=kind, rows=(("o0", 5),), pack_a="phase" if depth % 4 else "none")), 1)


@pytest.mark.skipif(not host().vnni, reason="no 8-bit dot products on this processor")
def test_padded_image_of_bytes():
    p = cases.program(cases.conv((7, 9), (6, 20), dtype="int8"))
    depth = ("r0_1", "r0_2", "r0_0/4", "r0_0%4")
    q = tiled(p, "out0", D(intrinsic="dot_s8s8", rows=(("o2", 3),), pack_a="phase", depth=depth, vectors=1))
    cases.check(p, q, 1)


@pytest.mark.parametrize("seed", range(8))
def test_random_sizes(seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(rng.integers(1, top)) for top in (40, 100, 50))
    vectors = int(rng.integers(1, 5))
    rows = int(rng.integers(1, 24 // vectors + 1))
    d = D(
        rows=(("o0", rows),) if m > 1 else (), vectors=vectors, unroll=int(rng.integers(1, 6)),
        block=int(rng.integers(0, 2)) * int(rng.integers(1, k + 1)), pack_b=("none", "panels")[int(rng.integers(2))],
        tasks=(("o1", int(rng.integers(1, 4))),), columns_first=bool(rng.integers(2)),
    )  # fmt: skip
    p = cases.program(cases.matmul(m, n + 1, k + 1))
    cases.check(p, tiled(p, "out0", d), k + 1)


def test_narrow_vectors():
    cpu = restricted(host(), 256)
    for dtype, kind in (("float32", "fma_f32"), ("float64", "fma_f64"), ("bfloat16", "fma_bf16")):
        p = cases.program(cases.matmul(13, 37, 35, dtype))
        cases.check(p, tiled(p, "out0", D(intrinsic=kind, rows=(("o0", 4),), vectors=2), cpu), 35, cpu)


def test_frozen_operands_are_packed_ahead():
    p = cases.program(PRODUCT)
    prepare, hot = hoisted(tiled(p, "out0", DECISIONS["plain"]))
    assert prepare is not None
    assert [s.buffer for s in prepare.stages] == ["out0_b"]
    assert not any("w" in reads(s) for s in hot.stages)
    given = cases.arrays(p)
    packed = evaluate(prepare, {"w": given["w"]})
    np.testing.assert_array_equal(
        evaluate(hot, {**given, **packed})["out0"], evaluate(tiled(p, "out0", DECISIONS["plain"]), given)["out0"]
    )


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        (D(intrinsic="fma_f16"), "no tensor intrinsic"),
        (D(intrinsic="fma_f64"), "not as fma_f64 does"),
        (D(rows=(("o7", 3),)), "name the axis 'o7'"),
        (D(depth=("r1",)), "not whole"),
        (D(depth=("r0/8",)), "not whole"),
        (D(depth=("r0/8", "r0%4")), "not whole"),
        (D(depth=("r0", "r0")), "not whole"),
        (D(depth=("r0/8", "r0%8")), "A must be packed"),
        (D(rows=(("o0", 5),), pack_a="phase", order_a=("1",)), "not whole"),
        (D(split=5), "do not divide"),
        (D(split=33), "do not divide"),
    ],
)
def test_decisions_that_do_not_fit(decisions, message):
    p = cases.program(PRODUCT)
    with pytest.raises(InputError, match=message):
        tiled(p, "out0", decisions)


def test_a_padded_image_must_be_copied():
    p = cases.program(cases.conv((7, 9), (5, 20)))
    with pytest.raises(InputError, match="A must be packed"):
        tiled(p, "out0", D(rows=SPATIAL))
