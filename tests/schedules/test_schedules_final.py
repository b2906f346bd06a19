"""What a search returns, and how candidates are run and compared in its worker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.errors import InputError
from superopt.ir.graph import Graph, literal, mk
from superopt.ir.text import print_graph
from superopt.kernels.choose.decisions import SchedulePoint
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.runtime import kernel as runtime
from superopt.kernels.runtime.kernel import GuardError, Room
from superopt.kernels.schedule.trace import Steps
from superopt.machine import facts as machine
from superopt.machine.deadline import Deadline
from superopt.measure.exact import neighbours_of_kernel
from superopt.measure.kernels import LARGEST_FOOTPRINT
from superopt.schedules import candidates, features
from superopt.schedules import tune as search
from superopt.schedules.model import Rows, _solved
from superopt.schedules.records import MeasuredSchedule
from superopt.schedules.space import space_of
from superopt.schedules.workload import workload
from superopt.workshop.process import ProcessLimits, Worker
from tests.support.quantised import OTHERS, quantised


def _candidates(seconds: list[float]) -> list[MeasuredSchedule]:
    return [MeasuredSchedule([[str(i)]], {}, np.zeros(1), str(i), 1e-3 * s) for i, s in enumerate(seconds)]


class Timed:
    """A builder without a process: every candidate is built, and takes these samples whenever it is timed."""

    def __init__(self, fresh: dict[str, list[float]]) -> None:
        self.fresh = fresh
        self.asked: list[set[str]] = []

    def build(self, indices: Sequence[int], traces: Any, *, again: bool = False) -> dict[int, dict[str, Any]]:
        return {i: {"event": "built"} for i in indices}

    def time(self, data: dict[str, Any], traces: Any) -> list[dict[str, Any]]:
        self.asked.append(set(data["digests"]))
        return [{"digest": digest, "samples_s": self.fresh[digest]} for digest in data["digests"]]


def _final(
    measured: list[MeasuredSchedule], fresh: dict[str, list[float]], *, judged: bool = False
) -> MeasuredSchedule:
    """The winner, where the samples of all fresh rounds are these; the first candidate is the default."""
    space = space_of(from_graph(workload("softmax f32 5x33").outputs, name="kernel"), threads=1)
    builder: Any = Timed(fresh)
    state = search._Search(
        space, search.ScheduleSearch(1.0, judged=judged), random.Random(0), Rows.empty(), default=measured[0],
        measured=list(measured),
    )  # fmt: skip
    winner, seconds, default_seconds = search._final(state, builder, 1.0)
    assert all(measured[0].digest in names for names in builder.asked)
    assert winner is not None
    duels = [names for names in builder.asked if len(names) == 2]
    assert bool(duels) != judged, "a caller with rounds of its own needs none for these two"
    assert seconds == np.median(fresh[winner.digest])
    assert default_seconds == np.median(fresh["0"])
    return winner


def test_the_default_is_returned_unless_it_is_slower_beyond_noise() -> None:
    measured = _candidates([2.0, 1.0, 1.5])
    noisy = [1.0, 1.2, 0.9, 1.1, 1.05, 0.95, 1.0]
    level = {"0": noisy, "1": noisy[::-1], "2": [3.0] * 7}
    assert _final(measured, level).digest == "0"
    faster = {"0": noisy, "1": [0.7 * x for x in noisy], "2": [3.0] * 7}
    assert _final(measured, faster).digest == "1"
    third = {"0": noisy, "1": [3.0] * 7, "2": [0.7 * x for x in noisy]}
    assert _final(_candidates([2.0, 1.0, 1.2]), third).digest == "2"
    assert _final(_candidates([2.0, 1.0, 1.2]), level, judged=True).digest == "1", "the caller judges it"
    assert _final(_candidates([2.0, 1.0, 1.2]), third, judged=True).digest == "2"


def test_a_point_that_has_no_steps_is_refused_and_others_are_proposed() -> None:
    """A step that does not fit is found while the steps of a point are made, too."""
    space = space_of(from_graph(workload("softmax f32 5x33").outputs, name="kernel"), threads=2)
    (part,) = space.stages

    def steps(point: SchedulePoint) -> Steps:
        if point["vectors"] != 4:
            raise InputError("no such vectors")
        return part.steps(point)

    space = replace(space, stages=(replace(part, steps=steps),))
    state = search._Search(space, search.ScheduleSearch(1.0, strategy="random"), random.Random(0), Rows.empty())
    assert {proposal.point["out0.vectors"] for proposal in search._proposed(state, 5)} == {4}
    assert all("no such vectors" in why for why in state.refused)
    assert state.refused


def test_no_point_is_proposed_and_none_is_built_where_the_time_is_over() -> None:
    """A point of a product between transforms takes a tenth of a second: 48 of them were proposed in any case."""
    space = space_of(from_graph(workload("softmax f32 5x33").outputs, name="kernel"), threads=2)

    def begun(deadline: Deadline) -> search._Search:
        how = search.ScheduleSearch(1.0, strategy="random")
        return search._Search(space, how, random.Random(0), Rows.empty(), deadline=deadline)

    assert len(search._proposed(begun(Deadline(0.0)), 5)) == 1
    assert len(search._proposed(begun(Deadline()), 5)) == 5
    nobody = search.CandidateBuilder(Worker(), workload("softmax f32 5x33"), 2, Path())  # no process
    late = begun(Deadline(0.0))
    search._step(late, search._Pool(ThreadPoolExecutor(1), [nobody]))
    assert late.rounds == 0
    assert not late.exhausted
    assert search._done(late)


def test_candidates_share_buffers_and_overruns_are_seen() -> None:
    x = np.arange(6, dtype=np.float32)
    buffers = [Buffer("x", (6,), "float32", "input"), Buffer("y", (4,), "float32", "output")]
    room = Room()
    first, second = room.placed(buffers, {"x": x}), room.placed(buffers, {"x": x})
    assert all(a[1] is b[1] for a, b in zip(first, second, strict=True))
    assert room.placed(buffers[:1], {"x": x.copy()})[0][1] is not first[0][1]
    room.clear(buffers[1:])
    assert np.isnan(room.check(buffers[1:], {})[0]).all()
    whole, array = first[1]
    whole[array.ctypes.data - whole.ctypes.data - 1] = 0
    with pytest.raises(GuardError, match="outside of y"):
        room.check(buffers[1:], {})
    with pytest.raises(InputError, match="x is"):
        room.placed([Buffer("x", (5,), "float32", "input")], {"x": x})
    assert runtime._place(buffers[0], {"x": x}, True)[1].tolist() == x.tolist()


def test_frozen_operands_have_a_copy_for_each_turn() -> None:
    w = np.arange(6, dtype=np.float32)
    buffers = [Buffer("x", (6,), "float32", "input"), Buffer("w", (6,), "float32", "frozen")]
    room = Room()
    first, second = (room.placed(buffers, {"x": w, "w": w}, turn) for turn in (0, 1))
    assert first[0][1] is second[0][1]
    assert first[1][1] is not second[1][1]
    np.testing.assert_array_equal(second[1][1], w)


def test_candidates_go_through_copies_that_make_up_the_footprint(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = workload("dot f32 4x32x16")
    size = 4 * 32 * 16
    bound: list[int] = []
    plain = runtime.Kernel.bind

    def bind(self: Any, arrays: Any, threads: int, room: Any, turn: int) -> Any:
        bound.append(turn)
        return plain(self, arrays, threads, room, turn)

    monkeypatch.setattr(runtime.Kernel, "bind", bind)
    arrays = candidates.example_arrays(graph, 0)
    expected = candidates.reference(graph, arrays)
    for footprint, turns in ((0, 1), (3 * size, 3), (3 * size + 1, 4)):
        program = from_graph(graph.outputs, name="kernel")
        kinds, near = tuple(str(x.dtype) for x in expected), neighbours_of_kernel(graph, arrays)
        state = candidates._Session(program, arrays, expected, kinds, near, 1, {}, footprint)
        state.bounds = [candidates._bounds(x) for x in expected]
        bound.clear()
        assert candidates._candidate(state, [], False)["event"] == "built"
        assert bound == list(range(turns))


def test_candidates_are_cold_where_the_weights_of_the_program_fit_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    plain = search.CandidateBuilder.__init__

    def begin(self: Any, worker_: Any, graph: Any, threads: int, problem: Path, footprint: int = 0) -> None:
        opened.append(footprint)
        plain(self, worker_, graph, threads, problem, footprint)

    monkeypatch.setattr(search.CandidateBuilder, "__init__", begin)
    last = machine.last_cache_bytes()
    for weights, footprint in ((last, 0), (last + 1, last + 1), (100 * last, min(2 * last, LARGEST_FOOTPRINT))):
        how = search.ScheduleSearch(20.0, most=2, weights=weights)
        found = search.tune(workload("dot f32 12x48x40"), how)
        assert opened.pop() == how.footprint == footprint
        place = features.NAMES.index("weights_l3")
        assert found.candidates == 2
        assert (found.history[0].x[place] > 0) == (footprint > 0)


def test_near_values_are_told_from_others() -> None:
    expected = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    bounds = candidates._bounds(expected)
    assert candidates._near(bounds, expected, expected * np.float32(1 + 1e-6))
    one = expected.copy()
    one[17] += 1e-3
    assert not candidates._near(bounds, expected, one)
    assert not candidates._near(bounds, expected, np.where(np.arange(1000) == 3, np.float32(np.nan), expected))
    assert not candidates._near(candidates._bounds(expected[:0]), expected, expected)


def judged(graph: Graph, made: Graph, folder: Path) -> dict[str, Any]:
    """What becomes of the kernel of one graph as a candidate for another."""
    candidates.save_problem(folder / "problem", graph, 0)
    asked = {"graph": print_graph(graph), "problem": str(folder / "problem"), "threads": 1}
    assert list(candidates.open_graph(asked)) == [{"event": "opened"}]
    (session,) = candidates._STATE
    session.program = from_graph(made.outputs, name="kernel")
    trace = space_of(session.program, threads=1)
    return list(candidates.build_candidates({"indices": [0], "traces": [trace.trace(trace.start)]}))[-1]


@pytest.mark.parametrize(
    ("text", "op", "value"),
    [
        ("softmax f32 5x33", "mul", 1.001),
        ("softmax f32 5x33", "mul", 1.00003),
        ("softmax f32 5x33", "mul", np.nan),
        ("dot s8 4x32x16", "add", 1),
    ],
)
def test_candidates_with_other_values_than_xla_are_refused(text: str, op: str, value: float, tmp_path: Path) -> None:
    graph = workload(text)
    (out,) = graph.outputs
    factor = mk("broadcast_in_dim", literal(value, out.dtype), shape=out.shape, broadcast_dimensions=())
    assert judged(graph, graph, tmp_path)["event"] == "built"
    found = judged(graph, Graph(graph.inputs, (mk(op, out, factor),)), tmp_path)
    assert found["event"] == "wrong"
    assert "is not XLA's" in found["detail"]
    assert not candidates._STATE[0].calls, "it cannot be timed"


def test_near_the_middle_between_two_integers_a_candidate_may_give_either(tmp_path: Path) -> None:
    found = [judged(quantised(), quantised(off=off), tmp_path)["event"] for off in (-1e-5, 1e-5)]
    assert found == ["built", "built"]


@pytest.mark.parametrize("wrong", OTHERS)
def test_candidates_with_other_quantised_results_are_refused(wrong: Any, tmp_path: Path) -> None:
    assert "values differ" in judged(quantised(), quantised(**wrong), tmp_path)["detail"]


def test_workers_use_one_thread_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with Worker(ProcessLimits()) as process:
        process.ready()
        assert process._process is not None
        environment = Path(f"/proc/{process._process.pid}/environ").read_bytes()
    assert b"OPENBLAS_NUM_THREADS=1" in environment.split(b"\0")


def test_triangular_solution_is_that_of_the_library() -> None:
    rng = np.random.default_rng(0)
    a, columns, rest = rng.standard_normal((9, 12)), rng.standard_normal((9, 4)), rng.standard_normal(9)
    half, left = _solved(a @ a.T, columns, rest)
    lower = np.linalg.cholesky(a @ a.T)
    np.testing.assert_allclose(half, np.linalg.solve(lower, columns), rtol=1e-9)
    np.testing.assert_allclose(left, np.linalg.solve(lower, rest), rtol=1e-9)
