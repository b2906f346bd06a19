"""The space of schedules of an operator, made by rules from its loop form.

A `Knob` is a decision with its options; a `Point` names one option per knob; `trace_of` makes it the trace of schedule
primitives that `superopt.kernels.schedule` replays.  There are no templates per operator: contractions have the knobs
of a register tile (rows and vectors, order and blocking of the sum, packing of each operand, size and order of tasks),
chains of two those of both tiles and of a task, every other stage those of a loop nest (order, tasks, vectors at a
time, row cache).  Options that cannot run well are left out before anything is built: tiles that need more registers
than there are, tasks far fewer than threads, blocks beyond the caches.  The default schedule is a point of the space
(`ScheduleSpace.start`): what its estimates decided beyond the options stands among them, and its steps that are no
decision of the space come before all others (`ScheduleSpace.prefix`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.errors import InputError
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import analyse
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.intrinsics import fitting
from superopt.kernels.schedule.tensorizing import decisions_of
from superopt.kernels.schedule.trace import apply
from superopt.schedules.chains import chain_space, chain_steps
from superopt.schedules.knobs import (
    Knob,
    Point,
    StageSpace,
    Trace,
    contraction_space,
    contraction_steps,
    nest_space,
    nest_steps,
)


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """All knobs of a loop program.

    Attributes:
        program: after the steps of `prefix`, else unscheduled.
        base: the default schedule.
        prefix: its steps that put a part of a stage into a stage of its own.
    """

    program: LoopProgram
    stages: tuple[StageSpace, ...]
    cpu: Cpu
    threads: int
    base: Trace
    prefix: Trace
    knobs: dict[str, Knob] = field(default_factory=dict[str, Knob])

    @property
    def start(self) -> dict[str, Any]:
        """The point of the default schedule."""
        return {f"{p.stage}.{k.name}": p.start[k.name] for p in self.stages for k in p.knobs}

    @property
    def size(self) -> int:
        """How many points the space has."""
        return math.prod(len(k.options) for k in self.knobs.values())

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """A point drawn uniformly."""
        return {name: rng.choice(knob.options) for name, knob in self.knobs.items()}

    def mutate(self, point: Point, rng: random.Random, most: int = 2) -> dict[str, Any]:
        """A point that differs in one decision or a few; sizes move to neighbouring options more often than far."""
        found = dict(point)
        movable = [name for name, knob in self.knobs.items() if len(knob.options) > 1]
        for name in rng.sample(movable, min(len(movable), rng.randint(1, most))):
            options = self.knobs[name].options
            here = options.index(found[name]) if found[name] in options else rng.randrange(len(options))
            if rng.random() < 0.5:
                there = min(max(here + rng.choice((-1, 1)), 0), len(options) - 1)
            else:
                there = rng.randrange(len(options))
            found[name] = options[there]
        return found

    def cross(self, a: Point, b: Point, rng: random.Random) -> dict[str, Any]:
        """A point with each decision from one of two."""
        return {name: rng.choice((a, b))[name] for name in self.knobs}

    def trace(self, point: Point) -> Trace:
        """The schedule primitives of a point."""
        steps: Trace = [list(step) for step in self.prefix]
        for part in self.stages:
            own = {name.partition(".")[2]: value for name, value in point.items() if name.startswith(part.stage + ".")}
            if part.chain is not None:
                steps += chain_steps(part, own)
            elif part.contraction:
                steps += contraction_steps(part, own, self.cpu)
            else:
                steps += nest_steps(self.program.stage(part.stage), own)
        return steps


def space_of(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> ScheduleSpace:
    """The space of a program as it comes from a graph.

    Where the default schedule is no point of it (chained contractions among other stages), it is the only one.
    """
    cpu = cpu or host()
    base: Trace = [_listed(step) for step in default_trace(program, cpu, threads)]
    if len(program.stages) == 1:
        part = chain_space(program, program.stages[0].buffer, cpu, threads, base)
        if part is not None:
            return ScheduleSpace(program, (part,), cpu, threads, base, [], _named([part]))
    try:
        found = _around(program, cpu, threads, base)
        if digest(apply(program, found.trace(found.start))) == digest(apply(program, base)):
            return found
    except InputError:
        pass  # its first steps need those between them
    return ScheduleSpace(program, (), cpu, threads, base, base)


def _around(program: LoopProgram, cpu: Cpu, threads: int, base: Trace) -> ScheduleSpace:
    """The space whose start is the default schedule."""
    prefix = [step for step in base if step[0] not in ("tensorize", "set_knob")]
    program = apply(program, prefix)
    tiles = {step[1]: decisions_of(step[2]) for step in base if step[0] == "tensorize"}
    names = [stage.buffer for stage in program.stages]
    after: dict[str, Trace] = {name: [] for name in names}
    for step in base:
        if step[0] == "set_knob":  # of a stage, or of one that its tile adds
            after[max([n for n in names if step[1] == n or step[1].startswith(n + "_")], key=len)].append(step)
    parts: list[StageSpace] = []
    for stage in program.stages:
        tile, own = tiles.get(stage.buffer), after[stage.buffer]
        found = analyse(program, stage, tile.merge_columns, tile.lane) if tile else analyse(program, stage)
        kinds = fitting(found.a, found.b, cpu) if found is not None else []
        if found is not None and kinds:
            kind = next((k for k in kinds if tile and k.name == tile.intrinsic), kinds[0])
            parts.append(contraction_space(program, stage, found, kind, cpu, threads, tile, own))
        else:
            chosen = {step[2]: step[3] for step in own if step[1] == stage.buffer}
            parts.append(nest_space(program, stage, threads, chosen))
    return ScheduleSpace(program, tuple(parts), cpu, threads, base, prefix, _named(parts))


def _named(parts: Sequence[StageSpace]) -> dict[str, Knob]:
    return {f"{p.stage}.{k.name}": k for p in parts for k in p.knobs}


def _listed(x: Any) -> Any:
    return [_listed(y) for y in x] if isinstance(x, list | tuple) else x
