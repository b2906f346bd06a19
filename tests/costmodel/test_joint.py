"""The objective over two backends: kernels as their regions, timed on either, and what lies between kernels."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import costmodel.model.joint
from costmodel.model import learned_file
from costmodel.model.boundary import NOTHING, Boundary
from costmodel.model.joint import Joint, KernelJob, NativeModel
from costmodel.model.load import load_native
from rewrites import library
from rewrites.build.expander import library_expander
from superopt.ir.counters import boundary_bytes
from superopt.ir.graph import Graph, Node, make_input, mk, topological
from superopt.kernels.choose.partition import partition_whole
from superopt.kernels.choose.specs import NATIVE
from superopt.machine.rates import NOMINAL
from superopt.measure.kernels import XLA

SHIPPED = learned_file.NATIVE
EXPAND = library_expander(library.load())


class Counting:
    """Every operation of these names costs so many seconds, every other one costs 1."""

    name, version = "counting", "1"

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        ops = [[n.op for n in k.nodes() if n.op not in ("input", "literal")] for k in kernels]
        return np.array([sum(self.seconds.get(op, 1.0) for op in row) for row in ops], dtype=np.float64)


class Own:
    """A backend that runs whatever is a region."""

    name, version = NATIVE, "1"

    def __init__(self, model: Counting, boundary: Boundary) -> None:
        self.price, self.boundary = model.price, boundary

    def can_run(self, region: Graph) -> bool:
        return all(node.op != "barrier" for node in region.nodes())


def kernel(output: Node) -> Graph:
    return Graph(tuple(n for n in topological((output,)) if n.op == "input"), (output,))


def dense(rows: int = 24) -> Node:
    x, w = make_input("x0", (rows, 32)), make_input("x1", (32, 40), frozen=True)
    return mk("tanh", mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ()))))


def joint(xla: Counting, own: Counting | None = None, weights: int = 0, **boundary: float) -> Joint:
    between = Boundary(**{"dispatch_s": 0.0, "company": 1.0, "byte_s": 0.0, **boundary})
    return Joint(xla, EXPAND, None if own is None else Own(own, between), weights)


def test_a_kernel_is_ours_unless_it_was_timed_to_be_faster_by_xla() -> None:
    graphs = [kernel(dense()), kernel(mk("exp", make_input("x0", (64,))))]
    model = joint(Counting(dot_general=2.0, tanh=2.0, exp=0.5), Counting(dot_general=1.5))
    np.testing.assert_allclose(model.by_backend(graphs)[XLA], [4.0, 0.5])
    np.testing.assert_allclose(model.by_backend(graphs)[NATIVE], [2.5, 1.0])
    np.testing.assert_allclose(model.price(graphs), [2.5, 1.0])
    assert (model.is_own(graphs[0]), model.is_own(graphs[1])) == (True, True), "predictions do not decide it"
    model.learn([KernelJob(b, graphs[1], graphs[1]) for b in (XLA, NATIVE)], [0.5, 1.0])
    assert (model.is_own(graphs[0]), model.is_own(graphs[1])) == (True, False)
    np.testing.assert_allclose(model.price(graphs)[1], 0.5 + NOMINAL.handover_s)
    model.learn([KernelJob(NATIVE, graphs[1], graphs[1])], [3.0])
    assert model.by_backend(graphs)[NATIVE][1] == 3.0
    assert model.by_backend(graphs, timed=False)[NATIVE][1] == 1.0, "what was predicted stays what it was"
    alone = joint(Counting())
    assert alone.by_backend(graphs).keys() == {XLA}
    assert not alone.is_own(graphs[0])


def test_a_region_of_ours_is_as_uncertain_as_our_model_of_it() -> None:
    graph = kernel(dense())
    model = joint(Counting(dot_general=2.0, tanh=2.0), Counting(dot_general=1.5))
    np.testing.assert_allclose(model.uncertain_s([graph]), 2.5 * model.xla.uncertainty([graph]))
    np.testing.assert_allclose(joint(Counting()).uncertain_s([graph]), 2.0)


def test_weights_that_no_cache_holds_are_brought_from_memory() -> None:
    graph = kernel(dense())
    between = {"cold_s": 1e-3, "cold_xla_s": 2e-3}
    warm, cold = (joint(Counting(), Counting(), weights, **between) for weights in (0, 1 << 40))
    brought = 32 * 40 * 4
    assert warm.price([graph])[0] == 2.0
    assert cold.price([graph])[0] == pytest.approx(2.0 + 1e-3 * brought)
    assert cold.by_backend([graph])[XLA][0] == pytest.approx(2.0 + 2e-3 * brought)
    cold.learn([KernelJob(NATIVE, graph, graph)], [2.0 + 1e-3 * brought])
    assert cold.errors() == pytest.approx([1.0]), "a timing of cold weights is what was predicted"


def test_a_region_is_asked_for_once_between_timings() -> None:
    """Kernels of a search share most of their regions."""
    asked: list[Graph] = []

    class Asked(Counting):
        def price(self, kernels: Sequence[Graph]) -> np.ndarray:
            asked.extend(kernels)
            return super().price(kernels)

    graph = kernel(dense())
    model = joint(Counting(), Asked())
    assert [model.price([graph])[0] for _ in range(2)] == [2.0, 2.0]
    assert len(asked) == 1
    model.learn([KernelJob(NATIVE, graph, graph)], [3.0])
    assert model.price([graph])[0] == 3.0
    count = len(asked)
    model.refuse(KernelJob(NATIVE, kernel(mk("exp", make_input("x0", (64,)))), graph))
    assert model.price([graph])[0] == 3.0
    assert len(asked) > count, "what is refused may change what others cost"


def test_what_no_kernel_of_ours_computes_costs_what_xla_takes() -> None:
    ordered = kernel(mk("neg", mk("barrier", make_input("x", (64,)))))
    model = joint(Counting(), Counting(neg=9.0))
    assert model.by_backend([ordered])[NATIVE][0] == np.inf
    assert model.price([ordered])[0] == 2.0
    assert [job.backend for job in model.untimed([ordered])] == [XLA]


def test_a_kernel_of_the_search_is_priced_by_the_regions_that_it_is_cut_into() -> None:
    y = dense()
    again = mk("dot_general", y, make_input("v", (40, 8)), dimension_numbers=(((1,), (0,)), ((), ())))
    model = joint(Counting(dot_general=100.0), Counting(dot_general=3.0))
    assert model.own is not None
    regions = model.own.parts(kernel(again))
    assert regions is not None
    assert len(regions) == 2
    assert model.price([kernel(again)])[0] == pytest.approx(7.0)


def test_a_kernel_is_cut_once_though_nothing_else_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cuts = joint(Counting(), Counting()), []

    def cut(graph: Graph) -> Any:
        cuts.append(graph.outputs[0].op)
        return partition_whole(graph)

    monkeypatch.setattr(costmodel.model.joint, "partition_whole", cut)
    for _ in range(2):  # each round of a search makes its kernels anew
        model.price([kernel(dense())])
        gc.collect()
    assert cuts == ["tanh"]


def test_ways_to_compute_an_operation_are_what_they_expand_to() -> None:
    x, w = make_input("x", (1, 16, 12, 12)), make_input("w", (16, 1, 3, 3))
    layout = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    conv = mk(
        "conv_general_dilated", x, w, dimension_numbers=layout, feature_group_count=16,
        padding=((1, 1), (1, 1)), window_strides=(1, 1),
    )  # fmt: skip
    way = kernel(mk("macro", *conv.inputs, rule="depthwise-shifts", op=conv.op, attrs=conv.attrs))
    model = joint(Counting(), Counting(conv_general_dilated=1000.0))
    assert model.price([kernel(conv)])[0] == 1000.0
    assert 10.0 < model.price([way])[0] < 1000.0


def test_regions_are_timed_in_our_kernels_and_by_xla_where_that_may_be_faster() -> None:
    close, far = kernel(dense()), kernel(mk("exp", make_input("x0", (64,))))
    model = joint(Counting(exp=1.0, tanh=0.5), Counting(exp=0.9))
    jobs = model.untimed([close, far])
    assert [(job.backend, job.runs.outputs[0].op) for job in jobs] == [(XLA, "tanh"), (NATIVE, "tanh"), (NATIVE, "exp")]
    assert close not in model
    model.learn(jobs, [5.0, 4.0, 1.0])
    assert model.timed(close) == [XLA, NATIVE]
    assert model.price([close])[0] == 4.0
    assert model.count == 3
    assert any(name.startswith(NATIVE) for name in model.factors())
    assert len(model.errors()) == 3


def test_a_kernel_that_could_not_be_made_is_not_asked_for_again() -> None:
    graph = kernel(dense())
    model = joint(Counting(dot_general=5.0), Counting())
    (job,) = [job for job in model.untimed([graph]) if job.backend == NATIVE]
    model.refuse(job)
    assert model.price([graph])[0] == 6.0 + NOMINAL.handover_s
    assert not model.is_own(graph)
    assert all(job.backend == XLA for job in model.untimed([graph]))
    assert model.timed(graph) == []
    assert graph not in model
    model.refuse(KernelJob(XLA, graph, graph))
    assert model.by_backend([graph])[XLA][0] == 6.0


def test_a_kernel_that_was_timed_stays_timed_where_a_later_timing_fails() -> None:
    graph = kernel(dense())
    model = joint(Counting(), Counting())
    job = KernelJob(NATIVE, graph, graph)
    model.learn([job], [3.0])
    model.refuse(job)
    assert model.price([graph])[0] == 3.0


def test_a_kernel_that_moves_nothing_costs_nothing() -> None:
    graph = kernel(mk("reshape", make_input("x", (4, 6)), new_sizes=(24,)))
    assert joint(Counting(reshape=5.0), Counting(reshape=5.0)).price([graph])[0] == 0.0


def test_between_kernels_lie_a_call_and_what_they_move() -> None:
    graph = kernel(dense())
    moved = sum(boundary_bytes(graph))
    model = joint(Counting(), Counting(), dispatch_s=0.5, company=2.0, byte_s=0.25)
    assert model.program_s({graph: 2}, {graph}, 1.0) == pytest.approx(0.5 + 2.0 * 2 * 2.0 + 0.5 * moved + 1.0)
    assert model.price([graph])[0] == pytest.approx(2.0 * 2.0 + 0.25 * moved)
    slow = joint(Counting(), Counting(tanh=9.0))
    assert (slow.program_s({graph: 1}, {graph}), slow.program_s({graph: 1}, ())) == (10.0, 2.0 + NOMINAL.handover_s)
    assert joint(Counting()).program_s({graph: 1}, (), 1.0) == 3.0


def test_what_streams_weights_was_timed_as_it_is_among_others() -> None:
    """Timed with cold weights and multiplied with what company costs, they were counted twice."""
    weights, values = kernel(dense(rows=2)), kernel(dense(rows=64))
    model = joint(Counting(), Counting(), company=1.5)
    model.learn([KernelJob(NATIVE, g, g) for g in (weights, values)], [3.0, 3.0])
    assert [model.program_s({g: 1}, {g}) for g in (weights, values)] == [3.0, 4.5]
    model.learn([KernelJob(XLA, weights, weights)], [3.0])
    assert model.by_backend([weights])[XLA][0] == 3.0


def test_the_shipped_model_of_our_kernels_prices_regions() -> None:
    known = load_native()
    assert known is not None
    (seconds,) = known.regions.price([kernel(dense(512))])
    assert 1e-6 < seconds < 1e-2
    assert known.boundary.byte_s > 0.0
    assert known.version != NativeModel(known.regions).version


def test_unusable_weights_of_our_kernels_leave_the_search_to_xla(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = json.loads(learned_file.NATIVE.with_suffix(".json").read_text())
    place = tmp_path / "native.safetensors"
    monkeypatch.setattr(learned_file, "NATIVE", place)
    assert load_native() is None
    shutil.copy(SHIPPED, place)
    place.with_suffix(".json").write_text(json.dumps({**card, "boundary": {"byte_s": -1.0}}))
    damaged = load_native()
    assert damaged is not None
    assert damaged.boundary == NOTHING
    place.write_bytes(place.read_bytes()[:-100])
    assert load_native() is None


def test_a_loop_is_priced_as_the_regions_of_its_body_times_its_trips() -> None:
    x, w = make_input("x0", (24, 24)), make_input("x1", (24, 24))
    body = Graph((w, x), (mk("tanh", mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))),))
    loop = mk("scan", w, x, body=body, num_consts=1, num_carry=1, length=7, reverse=False, unroll=1)
    model = joint(Counting(scan=100.0), Counting(dot_general=3.0))
    assert model.price([kernel(loop)])[0] == pytest.approx(7 * (3.0 + 1.0))
    assert {job.kernel.outputs[0].op for job in model.untimed([kernel(loop)])} == {"tanh"}
    assert joint(Counting(scan=100.0)).price([kernel(loop)])[0] == pytest.approx(100.0)
