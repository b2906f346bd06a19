"""Times of the steps of a native program as it runs, beside predicted ones.

The same plan is compiled once more with a look at the time stamp counter around each step, so that the program itself
stays as fast as it was.  A step has the least time of several calls.  A loop or choice has the time of all that it
runs; steps in it have the sums of their trips.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.machine.deadline import Stopwatch
from superopt.native.plan import COPY, AnyStep, PlanChoice, PlanLoop, PlanStep, PlanView
from superopt.native.running import TIMES, NativeProgram, StepTable

CALLS = 20
"""Calls in which each step is timed."""
_SHOWN = 44  # characters of a name in the table


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of a program with its time.

    Attributes:
        name: the region of its kernel, or what else it does.
        depth: loops and choices around it.
        us: microseconds of all its runs.
        runs: their number: trips of the loops around it.
        predicted_us: the same by the model of kernels; None where there is no prediction.
        writes: the slots that it writes.
    """

    name: str
    depth: int
    us: float
    runs: int
    predicted_us: float | None
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of a program in their order, and the microseconds of a call from NumPy."""

    steps: tuple[TimedStep, ...]
    call_us: float

    def __str__(self) -> str:
        outer = sum(step.us for step in self.steps if not step.depth)
        lines = [f"{'step':{_SHOWN}} {'us':>10} {'share':>6} {'predicted':>10} {'runs':>6}"]
        for step in self.steps:
            name = f"{'  ' * step.depth}{step.name}"[:_SHOWN]
            predicted = "" if step.predicted_us is None else f"{step.predicted_us:.1f}"
            lines.append(f"{name:{_SHOWN}} {step.us:10.1f} {step.us / outer:6.1%} {predicted:>10} {step.runs:6}")
        return "\n".join([*lines, f"{'steps':{_SHOWN}} {outer:10.1f} of {self.call_us:.1f} us of the call"])

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as plain data."""
        return {"call_us": self.call_us, "steps": [asdict(step) for step in self.steps]}

    def save(self, path: str | Path) -> Path:
        """Write a trace that Perfetto and Chrome read, with a track of measured and one of predicted times."""
        events = [*_track(1, "measured", self._measured()), *_track(2, "predicted", self._predicted())]
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8")
        return Path(path)

    def _measured(self) -> Iterator[tuple[TimedStep, float, float]]:
        """Yield steps with begin and duration, one after the other; those of a loop begin with it."""
        ends = [0.0]
        for step in self.steps:
            del ends[step.depth + 1 :]
            begin = ends[-1]
            yield step, begin, step.us
            ends[-1:] = [begin + step.us, begin]

    def _predicted(self) -> Iterator[tuple[TimedStep, float, float]]:
        """Yield the predicted steps, one after the other."""
        end = 0.0
        for step in self.steps:
            if step.predicted_us is not None:
                yield step, end, step.predicted_us
                end += step.predicted_us


def _track(number: int, name: str, steps: Iterator[tuple[TimedStep, float, float]]) -> Iterator[dict[str, Any]]:
    place = {"pid": 1, "tid": number}
    yield {"ph": "M", "name": "thread_name", "args": {"name": name}, **place}
    for step, begin, duration in steps:
        told = {"runs": step.runs, "writes": ", ".join(step.writes), "predicted_us": step.predicted_us}
        yield {"ph": "X", "name": step.name, "ts": begin, "dur": duration, "args": told, **place}


def timeline(
    program: NativeProgram,
    arrays: Sequence[np.ndarray],
    names: Mapping[str, str],
    predicted_us: Mapping[str, float],
    calls: int = CALLS,
) -> Timeline:
    """Return the times of the steps of a program for these arguments.

    Args:
        program: the program.
        arrays: its arguments.
        names: digest of a kernel -> its region.
        predicted_us: digest of a kernel -> predicted microseconds of a run.
        calls: number of calls, two or more.
    """
    lowered, plan = program.lowered, program.lowered.plan
    prepared = program.weights[: len(program.weights) - len(lowered.literals)]
    timed, table = NativeProgram(lowered, prepared, program.hosted, timed=True), StepTable(plan)
    main = table.add(plan.steps)
    address = ctypes.CFUNCTYPE(ctypes.c_void_p)(timed.kernel.address("native.times"))()
    ticks = np.ctypeslib.as_array((ctypes.c_int64 * (TIMES * len(table.rows))).from_address(address)).reshape(-1, TIMES)
    looks: list[tuple[float, float, np.ndarray]] = []
    watch = Stopwatch()
    for _ in range(calls):
        ticks[:] = 0
        begin_s = watch.elapsed_s
        timed(*arrays)
        looks.append((begin_s, watch.elapsed_s - begin_s, ticks.copy()))
    begins = [(begin_s, int(times[main[0], 0])) for begin_s, _, times in looks]
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(begins, 2)]
    per_us = 1e-6 * float(np.median(pairs))  # a call may be interrupted between the two clocks
    least = np.min([times for _, _, times in looks], axis=0)
    rows = {id(step): row for step, row in zip(table.steps, least, strict=True)}

    def told(steps: Sequence[AnyStep], depth: int) -> Iterator[TimedStep]:
        for step in steps:
            _, total, runs = map(int, rows[id(step)])
            if isinstance(step, PlanView) or not runs:  # a view moves no bytes
                continue
            kernel = step.kernel if isinstance(step, PlanStep) else ""
            writes = step.writes if isinstance(step, PlanStep) else ()
            each_us = predicted_us.get(kernel)
            yield TimedStep(
                name=_name(step, names),
                depth=depth,
                us=total / per_us,
                runs=runs,
                predicted_us=None if each_us is None else runs * each_us,
                writes=tuple([str(plan.slots[slot]) for slot in writes]),
            )
            yield from told(_inside(step), depth + 1)

    return Timeline(tuple(told(plan.steps, 0)), 1e6 * min([call_s for _, call_s, _ in looks]))


def _inside(step: AnyStep) -> Sequence[AnyStep]:
    """Return the steps of a loop or choice."""
    if isinstance(step, PlanLoop):
        return (*step.condition, *step.steps)
    return [inner for branch in step.branches for inner in branch.steps] if isinstance(step, PlanChoice) else ()


def _name(step: AnyStep, names: Mapping[str, str]) -> str:
    if isinstance(step, PlanStep):
        return "copy" if step.kernel == COPY else names.get(step.kernel, step.kernel[:8])
    if isinstance(step, PlanLoop):
        return f"loop of {step.trips} trips" if step.trips else "loop"
    return "choice"
