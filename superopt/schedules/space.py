"""The space of schedules of an operator, made by rules from its loop form.

A `Knob` is a decision with its options; a `Point` names one option per knob; `trace_of` makes it the trace of schedule
primitives that `superopt.kernels.schedule` replays.  There are no templates per operator: contractions have the knobs
of a register tile (rows and vectors, order and blocking of the sum, packing of each operand, size and order of tasks),
every other stage those of a loop nest (order, tasks, vectors at a time, row cache).  Options that cannot run well are
left out before anything is built: tiles that need more registers than there are, tasks far fewer than threads, blocks
beyond the caches.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.ir.expr import subexpressions
from superopt.ir.index import Symbol
from superopt.kernels.contract import Contraction, analyse, extent
from superopt.kernels.cpu import Cpu, host
from superopt.kernels.intrinsics import Intrinsic, fitting
from superopt.kernels.stage import LoopProgram, Stage
from superopt.kernels.tensorize import readable

Point = Mapping[str, Any]
Trace = list[list[Any]]
_LEAST_WORK = 20_000  # multiplications of a task below which splitting costs more than it brings


@dataclass(frozen=True, slots=True)
class Knob:
    """A decision and its options."""

    name: str
    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class StageSpace:
    """The knobs of one stage.

    Attributes:
        stage: its name.
        contraction: the contraction in it and the intrinsic that fits, if there is one.
    """

    stage: str
    knobs: tuple[Knob, ...]
    contraction: tuple[Contraction, Intrinsic] | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """All knobs of a loop program.

    Attributes:
        program: as it comes from the graph, unscheduled.
        size: how many points there are.
    """

    program: LoopProgram
    stages: tuple[StageSpace, ...]
    cpu: Cpu
    threads: int
    knobs: dict[str, Knob] = field(default_factory=dict[str, Knob])

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
        steps: Trace = []
        for part in self.stages:
            own = {name.partition(".")[2]: value for name, value in point.items() if name.startswith(part.stage + ".")}
            steps += _contraction_steps(part, own) if part.contraction else _nest_steps(self, part, own)
        return steps


def space_of(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> Space:
    """The space of a program as it comes from a graph."""
    cpu = cpu or host()
    parts: list[StageSpace] = []
    for stage in program.stages:
        found = analyse(program, stage)
        kinds = fitting(found.a, found.b, cpu) if found is not None else []
        if found is not None and kinds:
            parts.append(_contraction_space(program, stage, found, kinds[0], cpu, threads))
        else:
            parts.append(_nest_space(program, stage, threads))
    knobs = {f"{p.stage}.{k.name}": k for p in parts for k in p.knobs}
    return Space(program, tuple(parts), cpu, threads, knobs)


# ---- contractions


def _contraction_space(
    program: LoopProgram, stage: Stage, found: Contraction, kind: Intrinsic, cpu: Cpu, threads: int
) -> StageSpace:
    lanes = kind.lanes(cpu)
    columns = extent(found.lane)
    tiles = tuple(_tiles(found, kind, cpu, lanes, columns))
    leaf_a, leaf_b = kind.operand(found.a, kind.a), kind.operand(found.b, kind.b)
    whole = extent(found.depth[-1]) % kind.group == 0
    plain_a = leaf_a is not None and readable(leaf_a) and found.guard_a is True and whole
    plain_b = leaf_b is not None and leaf_b.kind == "load" and found.guard_b is True and kind.group == 1
    frozen = {b.name for b in program.buffers if b.scope == "frozen"}
    packed_b = leaf_b is not None and leaf_b.kind == "load" and leaf_b.args[0] in frozen
    work = math.prod(extent(s) for s in (*found.batch, *found.rows, *found.columns, *found.depth))
    knobs = [
        Knob("tile", tiles),
        Knob("unroll", (1, 2, 4, 8)),
        Knob("depth", tuple(_orders(found, kind))),
        Knob("block", _blocks(found, kind)),
        Knob("pack_a", ("none", "phase", "task") if plain_a else ("phase", "task")),
        Knob("pack_b", ("panels",) if packed_b or not plain_b else ("none", "panels")),
        Knob("pad_a", (0, 16)),
        Knob("columns_first", (1, 0)),
        Knob("prefetch", (0, 4, 8, 16)),
        Knob("split", _splits(found, threads, work)),
    ]
    panels = -(-columns // lanes)
    knobs.append(Knob(f"task.{found.lane.name}", _powers(panels)))
    for s in (*found.rows, *found.columns[:-1]):
        knobs.append(Knob(f"task.{s.name}", _task_rows(extent(s))))
    for s in found.batch:
        knobs.append(Knob(f"task.{s.name}", (1,) if threads > 1 else (1, extent(s))))
    return StageSpace(stage.buffer, tuple(knobs), (found, kind))


def _tiles(found: Contraction, kind: Intrinsic, cpu: Cpu, lanes: int, columns: int) -> Iterator[tuple[Any, ...]]:
    """(vectors, ((axis, rows), ...)) that fit the registers, the fullest first."""
    registers = cpu.registers
    most = max(1, min(8, -(-columns // lanes)))
    row_axes = sorted((*found.rows, *found.columns[:-1]), key=extent)
    found_tiles: list[tuple[int, tuple[Any, ...]]] = []
    for vectors in range(1, most + 1):
        for split in _row_splits(row_axes):
            rows = math.prod(n for _, n in split)
            used = kind.registers(rows, vectors)
            if used <= registers and (rows * vectors >= registers // 4 or not row_axes or _all_rows(row_axes, split)):
                found_tiles.append((rows * vectors, (vectors, split)))
    found_tiles.sort(key=lambda t: -t[0])
    yield from dict.fromkeys(t for _, t in found_tiles)
    if not found_tiles:
        yield (1, ())


def _all_rows(axes: Sequence[Symbol], split: tuple[tuple[str, int], ...]) -> bool:
    return math.prod(map(extent, axes)) <= math.prod(n for _, n in split)


def _row_splits(axes: Sequence[Symbol]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Rows of a tile over the one or two longest axes."""
    chosen = list(axes)[-2:]
    options = [range(1, min(extent(s), 28) + 1) for s in chosen]
    for sizes in itertools.product(*options):
        if math.prod(sizes) <= 28:
            yield tuple((s.name, n) for s, n in zip(chosen, sizes, strict=True) if n > 1)


def _orders(found: Contraction, kind: Intrinsic) -> Iterator[tuple[str, ...]]:
    """Orders of the sum: whole iterators, the longest one also in parts of 16."""
    names = [s.name for s in found.depth]
    if kind.group > 1:
        yield ()
        return
    yield from itertools.permutations(names)
    longest = max(found.depth, key=extent)
    if len(names) > 1 and extent(longest) >= 32:
        rest = [n for n in names if n != longest.name]
        for inner in itertools.permutations((f"{longest.name}%16", *rest)):
            yield (f"{longest.name}/16", *inner)


def _blocks(found: Contraction, kind: Intrinsic) -> tuple[int, ...]:
    """Steps of the outermost iterator per pass over the tiles."""
    if len(found.depth) > 1:
        return (0,)
    steps = extent(next(iter(found.depth))) // kind.group
    return (0, *[n for n in (96, 128, 192, 256, 384, 512, 768, 1024) if n < steps])


def _splits(found: Contraction, threads: int, work: int) -> tuple[int, ...]:
    first = extent(next(iter(found.depth)))
    wanted = (1, 2, 4, 8, 16) if threads > 1 or math.prod(map(extent, found.rows)) <= 16 else (1,)
    return tuple(n for n in wanted if n == 1 or (first % n == 0 and first > n and work // n >= _LEAST_WORK))


def _powers(n: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*(1 << j for j in range(n.bit_length()) if 1 << j < n), n]))


def _task_rows(n: int) -> tuple[int, ...]:
    sizes = [k for k in (4, 8, 14, 16, 28, 32, 56, 64, 96, 112, 128, 192, 224, 256, 384, 448) if k < n]
    return (*sizes, n)


def _contraction_steps(part: StageSpace, point: Point) -> Trace:
    assert part.contraction is not None
    _, kind = part.contraction
    vectors, rows = point["tile"]
    tasks = [[name.partition(".")[2], value] for name, value in point.items() if name.startswith("task.")]
    lane = part.contraction[0].lane.name
    tasks = [[name, max(1, value // vectors) if name == lane else value] for name, value in tasks]
    decisions = [
        ["intrinsic", kind.name],
        ["rows", [list(r) for r in rows]],
        ["vectors", vectors],
        ["depth", list(point["depth"])],
        ["unroll", point["unroll"]],
        ["block", point["block"]],
        ["pack_a", point["pack_a"]],
        ["pack_b", point["pack_b"]],
        ["pad_a", point["pad_a"] if point["pack_a"] != "none" else 0],
        ["tasks", tasks],
        ["columns_first", point["columns_first"]],
        ["split", point["split"]],
        ["prefetch", point["prefetch"]],
    ]
    return [["tensorize", part.stage, decisions]]


# ---- other stages


def _nest_space(program: LoopProgram, stage: Stage, threads: int) -> StageSpace:
    axes = [a for a in stage.axes if a.extent > 1]
    inner = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    guarded = any(e.kind == "where" for e in subexpressions(stage.value))
    tasks = (1,) if threads == 1 else (1, 2, 4, 8, 16, 32, 64)
    knobs = [
        Knob("order", (None, *itertools.permutations(a.symbol.name for a in axes)) if len(axes) in (2, 3) else (None,)),
        Knob("vectors", (1, 2, 4, 8)),
        Knob("tasks", tasks),
        Knob("transpose", (1, 0)),
    ]
    if inner:
        knobs += [
            Knob("accumulators", (1, 2, 4, 8)),
            Knob("cache", ("none", "scratch", "output")),
            Knob("keep", ("costly", "all")),
            Knob("window", (1, 9, 64)),
        ]
    if guarded:
        knobs.append(Knob("cut", (1, 0)))
    return StageSpace(stage.buffer, tuple(knobs))


def _nest_steps(space: Space, part: StageSpace, point: Point) -> Trace:
    steps: Trace = []
    stage = space.program.stage(part.stage)
    extents = {a.symbol.name: a.extent for a in stage.axes}
    if point["order"] is not None:
        order = list(point["order"])
        steps.append(["reorder", part.stage, order])
        tasks, shared = 1, []
        while order[len(shared) : -1] and tasks < point["tasks"]:
            shared.append(order[len(shared)])
            tasks *= extents[shared[-1]]
        steps += [["parallel", part.stage, name] for name in shared]
        steps.append(["vectorize", part.stage, order[-1]])
    return steps + [["set_knob", part.stage, name, value] for name, value in point.items() if name != "order"]
