"""The schedule of a region without a search: what the model takes to be the best of some tens of proposals.

The default schedule is one of them and stays unless another is predicted to be clearly faster: by how much is what the
choice brings most with on held-out families (`superopt train eval --backend native`).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

import numpy as np

from costmodel.features import stages
from superopt.errors import InputError
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.trace import apply
from superopt.schedules.features import predicted_s
from superopt.schedules.space import ScheduleSpace, Trace, space_of

PROPOSALS = 40
CLEARLY = 1.15  # times faster by prediction: what leaves the default in families that no fit has seen
_SAMPLED = 3  # of so many proposals one is drawn from the whole space, the others lie near the default


@dataclass(frozen=True, slots=True)
class ChosenSchedule:
    """A schedule chosen by the model.

    Attributes:
        trace: its steps.
        seconds, default_seconds: predicted.
        proposals: how many it was the best of.
    """

    trace: Trace
    seconds: float
    default_seconds: float
    proposals: int


_KNOWN: dict[tuple[str, int], ChosenSchedule] = {}


def best_of(program: LoopProgram, threads: int = 1, proposals: int = PROPOSALS) -> ChosenSchedule:
    """The model's best of some proposals for a program; equal programs are decided once in a process.

    Args:
        program: as it comes from a graph.
        threads: that run it.
        proposals: how many schedules are compared, the default among them.
    """
    key = (digest(program), threads)
    if key not in _KNOWN:
        space = space_of(program, threads=threads)
        _KNOWN[key] = best_among(program, proposed(space, proposals), threads)
    return _KNOWN[key]


def proposed(space: ScheduleSpace, count: int, seed: int = 0) -> list[Trace]:
    """Distinct schedules of a space, the default first."""
    rng = random.Random(seed)
    found = {json.dumps(trace): trace for trace in [space.trace(space.start)]}
    for k in range(4 * count):
        if len(found) >= count:
            break
        point = space.sample(rng) if k % _SAMPLED == 0 else space.mutate(space.start, rng, 3)
        try:
            trace = space.trace(point)
        except InputError:
            continue
        found.setdefault(json.dumps(trace), trace)
    return list(found.values())


def best_among(program: LoopProgram, traces: list[Trace], threads: int = 1) -> ChosenSchedule:
    """The first of the schedules, the default, or what is predicted to be clearly faster.

    Raises:
        InputError: the default cannot be applied.
    """
    kept, rows = [traces[0]], [stages.stage_rows(apply(program, traces[0]), threads)]
    for trace in traces[1:]:
        try:
            rows.append(stages.stage_rows(apply(program, trace), threads))
            kept.append(trace)
        except InputError:
            continue  # not legal here
    seconds = predicted_s(rows)
    best = int(np.argmin(seconds))
    best = best if seconds[0] > CLEARLY * seconds[best] else 0
    return ChosenSchedule(kept[best], float(seconds[best]), float(seconds[0]), len(kept))
