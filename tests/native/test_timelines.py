"""Timelines of native programs: every step that runs, loops with what is in them, traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.errors import ArgumentError, InputError
from superopt.kernels.llvm.cpu import supported
from superopt.native.plan import AnyStep, PlanLoop, PlanView
from superopt.native.running import NativeProgram
from superopt.native.timeline import Timeline, timeline
from tests.support.native_programs import CASES, case

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")


def timed(name: str, predicted_us: dict[str, float] | None = None) -> Timeline:
    _, program, arrays = case(name)
    return timeline(program, arrays, {}, predicted_us or {}, calls=5)


def shape_of(steps: Sequence[AnyStep], depth: int = 0) -> list[tuple[int, bool]]:
    """Depth of each step of a plan without choices, and whether it is a loop."""
    rows: list[tuple[int, bool]] = []
    for step in steps:
        if isinstance(step, PlanView):
            continue
        rows.append((depth, isinstance(step, PlanLoop)))
        if isinstance(step, PlanLoop):
            rows += shape_of((*step.condition, *step.steps), depth + 1)
    return rows


@pytest.mark.parametrize("name", ["mlp", "passed on", "recurrent", "nested"])
def test_every_step_has_its_time(name: str) -> None:
    plan = case(name)[1].lowered.plan
    found = timed(name)
    assert [(step.depth, step.name.startswith("loop")) for step in found.steps] == shape_of(plan.steps)
    assert all(step.us >= 0 for step in found.steps)
    assert 0 < sum(step.us for step in found.steps if not step.depth) <= found.call_us
    assert len(str(found).splitlines()) == len(found.steps) + 2
    assert json.loads(json.dumps(found.to_json()))["call_us"] == found.call_us


def test_steps_of_loops_are_counted_by_their_trips() -> None:
    outer, inner, *rest = timed("nested").steps
    assert (outer.name, outer.runs, inner.name, inner.runs) == ("loop of 6 trips", 1, "loop of 5 trips", 6)
    assert [step.runs for step in rest if step.depth == 2] == [30] * 3
    assert outer.us >= inner.us >= sum(step.us for step in rest if step.depth == 2)


@pytest.mark.parametrize("name", CASES)
def test_a_timed_program_has_the_results_of_the_program(name: str) -> None:
    _, program, arrays = case(name)
    prepared = program.weights[: len(program.weights) - len(program.lowered.literals)]
    other = NativeProgram(program.lowered, prepared, program.hosted, timed=True)
    assert [x.tobytes() for x in other(*arrays)] == [x.tobytes() for x in program(*arrays)]


def test_a_trace_has_a_track_of_measured_and_one_of_predicted_times(tmp_path: Path) -> None:
    _, program, _ = case("recurrent")
    found = timed("recurrent", dict.fromkeys(program.lowered.kernels, 2.0))
    events: list[dict[str, Any]] = json.loads(found.save(tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["measured", "predicted"]
    measured, predicted = [[x for x in events if x["ph"] == "X" and x["tid"] == track] for track in (1, 2)]
    assert [event["dur"] for event in measured] == [step.us for step in found.steps]
    loop, *inside = measured[[step.name for step in found.steps].index("loop of 11 trips") :]
    inside = inside[: sum(step.depth for step in found.steps)]
    ends = [event["ts"] + event["dur"] for event in inside]
    assert [event["ts"] for event in inside] == pytest.approx([loop["ts"], *ends[:-1]])
    assert ends[-1] <= loop["ts"] + loop["dur"]
    assert all(event["dur"] == 2.0 * event["args"]["runs"] for event in predicted)
    assert 22.0 in [event["dur"] for event in predicted], "11 trips"


def test_the_profile_of_an_optimised_function() -> None:
    def net(w: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    w, x = np.eye(16, dtype=np.float32), np.ones((3, 16), np.float32)
    fast = superopt.optimize(net, w, x, frozen=0, search=False, store=False, deterministic=True)
    found = fast.profile(w, x)
    assert [step.name.split(":")[0] for step in found.steps] == ["dot_general, tanh"] * 2
    assert all(step.predicted_us for step in found.steps)
    with pytest.raises(ArgumentError, match="x"):
        fast.profile(w, x[:2])


def test_without_a_native_program_there_is_no_profile() -> None:
    fast = superopt.optimize(lambda x: jnp.sort(jnp.tanh(x)), np.ones(9, np.float32), search=False, store=False)
    with pytest.raises(InputError, match="has no steps to time"):
        fast.profile(np.ones(9, np.float32))
