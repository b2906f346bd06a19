"""The search space of an operator's schedules, made by rules from its loop form.

A `ScheduleDecision` has options and a default; a `SchedulePoint` names one option per decision.  `ScheduleSpace.trace`
turns it into the trace of primitives that `superopt.kernels.schedule` replays.  There are no templates per operator.

- Contractions have the decisions of a register tile: rows and vectors, order and blocking of the sum, packing of each
  operand, size and order of tasks.
- Chains of two contractions, and products between two transforms, have those of which the default schedule is made.
- Every other stage has those of a loop nest: order, tasks, vectors at a time, row cache.

Options that cannot run well are left out before anything is built: tiles that need more registers than there are, tasks
far fewer than threads, blocks beyond the caches.  The default schedule is a point of the space (`ScheduleSpace.start`).
Options that only its estimates chose are added, and its steps that are no decision of the space come before all others
(`ScheduleSpace.prefix`).
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from superopt.errors import InputError
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol, coefficient, row_major
from superopt.kernels.choose.chains import chain
from superopt.kernels.choose.decisions import ScheduleDecision, SchedulePoint, StageDecisions, decided
from superopt.kernels.choose.defaults import default_trace
from superopt.kernels.choose.transforms import transformed
from superopt.kernels.emit.options import Knobs
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import Contraction, analyse
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import LoopProgram, Stage, extent
from superopt.kernels.schedule.intrinsics import Intrinsic, fitting
from superopt.kernels.schedule.tensorizing import ContractionDecisions, decisions_of, pairs_of, readable
from superopt.kernels.schedule.trace import Steps as Steps
from superopt.kernels.schedule.trace import apply

_PLAIN = ContractionDecisions()
_FEW_ROWS = 16  # rows of products that read each panel once
_WRITTEN_OUT = 64  # steps of a reduction that may be written out
_LEAST_WORK = 20_000  # multiplications of a task below which splitting costs more than it brings


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """All decisions of a loop program.

    Attributes:
        unscheduled: the program that traces apply to.
        base: the default schedule.
        prefix: its steps that take stages apart.
        after: its steps behind those of all stages.
    """

    unscheduled: LoopProgram
    stages: tuple[StageDecisions, ...]
    threads: int
    base: Steps
    prefix: Steps
    after: Sequence[list[Any]] = ()

    @property
    def decisions(self) -> dict[str, ScheduleDecision]:
        """The decisions of all stages, by stage and name."""
        return {f"{part.stage}.{d.name}": d for part in self.stages for d in part.decisions}

    @property
    def start(self) -> dict[str, Any]:
        """The point of the default schedule."""
        return {name: d.default for name, d in self.decisions.items()}

    @property
    def size(self) -> int:
        """The number of points in the space."""
        return math.prod(len(d.options) for d in self.decisions.values())

    def sample(self, rng: random.Random) -> dict[str, Any]:
        """Draw a point uniformly."""
        return {name: rng.choice(d.options) for name, d in self.decisions.items()}

    def mutate(self, point: SchedulePoint, rng: random.Random, most: int = 2) -> dict[str, Any]:
        """Return a point that differs in one decision or a few; sizes mostly move to neighbouring options."""
        mutated, decisions = dict(point), self.decisions
        movable = [name for name, d in decisions.items() if len(d.options) > 1]
        for name in rng.sample(movable, min(len(movable), rng.randint(1, most))):
            options = decisions[name].options
            here = options.index(mutated[name]) if mutated[name] in options else rng.randrange(len(options))
            if rng.random() < 0.5:
                there = min(max(here + rng.choice((-1, 1)), 0), len(options) - 1)
            else:
                there = rng.randrange(len(options))
            mutated[name] = options[there]
        return mutated

    def cross(self, a: SchedulePoint, b: SchedulePoint, rng: random.Random) -> dict[str, Any]:
        """Return a point with each decision from one of two."""
        return {name: rng.choice((a, b))[name] for name in self.decisions}

    def trace(self, point: SchedulePoint) -> Steps:
        """Return the schedule primitives of a point."""
        steps: Steps = [list(step) for step in self.prefix]
        for part in self.stages:
            own = {name.partition(".")[2]: value for name, value in point.items() if name.startswith(part.stage + ".")}
            steps += part.steps(own)
        return steps + [list(step) for step in self.after]


# ---- of a program


def space_of(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> ScheduleSpace:
    """Return the search space of a program as `from_graph` returns it.

    Where the default schedule is no point of it (chained contractions among other stages), it is the only one.
    """
    cpu = cpu or host()
    base: Steps = [_listed(step) for step in default_trace(program, cpu, threads)]
    whole = transformed(program, cpu, threads)
    if whole is None and len(program.stages) == 1:
        whole = chain(program, program.stages[0].buffer, cpu, threads)
    made = None if whole is None else whole.default()
    if whole is not None and made is not None:
        steps, after = base[: len(made[1])], base[len(made[1]) :]
        if steps == [_listed(step) for step in made[1]] and all(step[0] == "set_knob" for step in after):
            return ScheduleSpace(program, (whole.decisions,), threads, base, whole.prefix, after)
    try:
        space = _around(program, cpu, threads, base)
        if digest(apply(program, space.trace(space.start))) == digest(apply(program, base)):
            return space
    except InputError:
        pass  # its first steps need those between them
    return ScheduleSpace(program, (), threads, base, base)


def _around(program: LoopProgram, cpu: Cpu, threads: int, base: Steps) -> ScheduleSpace:
    """Return the space whose start is the default schedule."""
    prefix = [step for step in base if step[0] not in ("tensorize", "set_knob")]
    unscheduled, program = program, apply(program, prefix)
    tiles = {step[1]: decisions_of(step[2]) for step in base if step[0] == "tensorize"}
    names = [stage.buffer for stage in program.stages]
    after: dict[str, Steps] = {name: [] for name in names}
    for step in base:
        if step[0] == "set_knob":  # of a stage, or of one that its tile adds
            after[max([n for n in names if step[1] == n or step[1].startswith(n + "_")], key=len)].append(step)
    parts: list[StageDecisions] = []
    for stage in program.stages:
        tile, own = tiles.get(stage.buffer), after[stage.buffer]
        contraction = analyse(program, stage, tile.merge_columns, tile.lane) if tile else analyse(program, stage)
        kinds = fitting(contraction.a, contraction.b, cpu) if contraction is not None else []
        if contraction is not None and kinds:
            kind = next((k for k in kinds if tile and k.name == tile.intrinsic), kinds[0])
            parts.append(_contraction_space(program, stage, contraction, kind, cpu, threads, tile, own))
        else:
            chosen = {step[2]: step[3] for step in own if step[1] == stage.buffer}
            parts.append(_nest_space(program, stage, threads, chosen))
    return ScheduleSpace(unscheduled, tuple(parts), threads, base, prefix)


def _listed(x: Any) -> Any:
    return [_listed(y) for y in x] if isinstance(x, list | tuple) else x


# ---- contractions


def _contraction_space(
    program: LoopProgram,
    stage: Stage,
    found: Contraction,
    kind: Intrinsic,
    cpu: Cpu,
    threads: int,
    chosen: ContractionDecisions | None,
    after: Sequence[list[Any]],
) -> StageDecisions:
    """Return the decisions of a contraction, by default `chosen`; None where it is left untiled."""
    lanes = kind.lanes(cpu)
    columns = extent(found.lane)
    tiles = tuple(_tiles(found, kind, cpu, lanes, columns))
    leaf_a, leaf_b = kind.operand(found.a, kind.a), kind.operand(found.b, kind.b)
    whole = extent(found.depth[-1]) % kind.group == 0
    plain_a = leaf_a is not None and readable(leaf_a) and found.guard_a is True and whole
    merged = chosen is not None and chosen.merge_columns
    plain_b = leaf_b is not None and found.guard_b is True and kind.group == 1 and not merged
    plain_b = plain_b and leaf_b is not None and _beside(program, leaf_b, found.lane)
    frozen = {b.name for b in program.buffers if b.scope == "frozen"}
    packed_b = leaf_b is not None and leaf_b.kind == "load" and leaf_b.args[0] in frozen
    axes = (*found.batch, *found.rows, *found.columns)
    work = math.prod(extent(s) for s in (*axes, *found.depth))
    panels = -(-columns // lanes)
    start = _start_of(found, kind, chosen, tiles, panels)
    options: dict[str, Sequence[Any]] = {
        "tile": tiles,
        "unroll": (1, 2, 4, 8),
        "depth": tuple(_orders(found, kind)),
        "block": _blocks(found, kind),
        "pack_a": ("none", "phase", "task") if plain_a else ("phase", "task"),
        "order_a": ((),),
        "pack_b": ("panels",) if packed_b or not plain_b else ("none", "panels"),
        "pad_a": (0, 16),
        "columns_first": (1, 0),
        "prefetch": (0, 4, 8, 16),
        "streams": (1, 2, 4) if math.prod(map(extent, found.rows)) <= _FEW_ROWS else (1,),
        "split": _splits(found, threads, work),
        f"task.{found.lane.name}": _powers(panels),
        **{f"task.{s.name}": _task_rows(extent(s)) for s in (*found.rows, *found.columns[:-1])},
        **{f"task.{s.name}": (1,) if threads > 1 else (1, extent(s)) for s in found.batch},
    }
    others = {*options, "intrinsic", "rows", "vectors", "tasks"}
    fixed = tuple([(name, value) for name, value in pairs_of(chosen or _PLAIN) if name not in others])
    tiling = _Tiling(stage.buffer, found, kind, cpu, fixed, tuple(after), start["split"])
    return StageDecisions(stage.buffer, decided(options, start), tiling.steps)


def _start_of(
    found: Contraction,
    kind: Intrinsic,
    chosen: ContractionDecisions | None,
    tiles: Sequence[tuple[Any, ...]],
    panels: int,
) -> dict[str, Any]:
    """Return the default schedule's options; `tile` is None where it leaves the stage untiled."""
    tile = chosen or replace(_PLAIN, vectors=tiles[0][0], rows=tiles[0][1], pack_a="phase")
    tasks = dict(tile.tasks)
    names = [s.name for s in found.depth]
    grouped = (*names[:-1], f"{names[-1]}/{kind.group}", f"{names[-1]}%{kind.group}")
    depth = tile.depth if kind.group == 1 else () if tile.depth == grouped else tile.depth
    rows = tuple(sorted(row for row in tile.rows if row[1] > 1))
    lane = found.lane.name
    return {
        "tile": (tile.vectors, rows) if chosen is not None else None,
        "unroll": tile.unroll,
        "depth": depth or (tuple(names) if kind.group == 1 else ()),
        "block": tile.block,
        "pack_a": tile.pack_a,
        "order_a": tile.order_a,
        "pack_b": tile.pack_b,
        "pad_a": tile.pad_a,
        "columns_first": int(tile.columns_first),
        "prefetch": tile.prefetch,
        "streams": tile.streams,
        "split": tile.split,
        f"task.{lane}": tasks[lane] * tile.vectors if lane in tasks else panels,
        **{f"task.{s.name}": tasks.get(s.name, extent(s)) for s in (*found.rows, *found.columns[:-1])},
        **{f"task.{s.name}": tasks.get(s.name, 1) for s in found.batch},
    }


def _beside(program: LoopProgram, leaf: Expr, lane: Symbol) -> bool:
    """Whether elements along the lane are adjacent in memory, at a position that is linear in all iterators."""
    if leaf.kind != "load":
        return False
    place = row_major(leaf.args[1], next(b.shape for b in program.buffers if b.name == leaf.args[0]))
    linear = isinstance(place, int) or all(len(m) == 1 and isinstance(m[0], Symbol) for m, _ in place.terms if m)
    return linear and coefficient(place, lane) == 1


def _tiles(found: Contraction, kind: Intrinsic, cpu: Cpu, lanes: int, columns: int) -> Iterator[tuple[Any, ...]]:
    """Yield the tiles (vectors, ((axis, rows), ...)) that fit the registers, the fullest first."""
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
    """Yield the rows of a tile over the one or two longest axes."""
    chosen = list(axes)[-2:]
    options = [range(1, min(extent(s), 28) + 1) for s in chosen]
    for sizes in itertools.product(*options):
        if math.prod(sizes) <= 28:
            yield tuple(sorted((s.name, n) for s, n in zip(chosen, sizes, strict=True) if n > 1))


def _orders(found: Contraction, kind: Intrinsic) -> Iterator[tuple[str, ...]]:
    """Yield orders of the sum: whole iterators, the longest one also in parts of 16."""
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
    """Return options for the steps of the outermost iterator per pass over the tiles."""
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


@dataclass(frozen=True, slots=True)
class _Tiling:
    """A contraction whose decisions are options of a register tile.

    Attributes:
        stage: the name of its stage.
        fixed: decisions of a tile that have no options.
        after: steps of the default schedule on stages that a tile adds, or on the stage where it is untiled.
        split: parts of the sum in the default schedule.
    """

    stage: str
    found: Contraction
    kind: Intrinsic
    cpu: Cpu
    fixed: tuple[tuple[str, Any], ...]
    after: tuple[list[Any], ...]
    split: int

    def steps(self, point: SchedulePoint) -> Steps:
        """Return the steps of a point."""
        if point["tile"] is None:
            return [step for step in self.after if step[1] == self.stage]
        contraction, kind = self.found, self.kind
        vectors, rows = point["tile"]
        batch, sizes = {s.name for s in contraction.batch}, dict(rows)
        extents = {a.symbol.name: a.extent for a in contraction.stage.axes}
        tasks: list[list[Any]] = []
        for name, value in point.items():
            axis = name.partition(".")[2]
            if axis == contraction.lane.name:
                panels = max(1, value // vectors)
                all_panels = -(-extents[axis] // kind.lanes(self.cpu))
                if value < all_panels and panels * vectors < all_panels:
                    tasks.append([axis, panels])
            elif axis in batch:
                tasks += [[axis, value]] if value > 1 else []
            elif axis:
                step = sizes.get(axis, 1)
                iterations = -(-value // step) * step
                tasks += [[axis, iterations]] if iterations < extents[axis] else []
        width = vectors * kind.lanes(self.cpu)
        streams = point["streams"]
        fit = kind.registers(math.prod(sizes.values()) * streams, vectors) <= self.cpu.registers
        fit = fit and extents[contraction.lane.name] % (width * streams) == 0
        decisions = [
            ["intrinsic", kind.name],
            ["rows", [list(r) for r in rows]],
            ["vectors", vectors],
            ["depth", list(point["depth"])],
            ["unroll", point["unroll"]],
            ["block", point["block"]],
            ["pack_a", point["pack_a"]],
            ["pack_b", point["pack_b"]],
            ["order_a", list(point["order_a"]) if point["pack_a"] != "none" else []],
            ["pad_a", point["pad_a"] if point["pack_a"] != "none" else 0],
            ["tasks", tasks],
            ["columns_first", point["columns_first"]],
            ["split", point["split"]],
            ["prefetch", point["prefetch"]],
            *([["streams", streams]] if streams > 1 and fit else []),
            *[[name, value] for name, value in self.fixed],
        ]
        copied = {"_a": point["pack_a"] == "phase", "_b": point["pack_b"] == "panels"}
        same = point["split"] == self.split  # else there are other stages
        after = [step for step in self.after if same and copied.get(step[1][-2:], True)]
        return [["tensorize", self.stage, decisions], *after]


# ---- other stages


def _nest_space(program: LoopProgram, stage: Stage, threads: int, chosen: Mapping[str, Any]) -> StageDecisions:
    """Return the decisions of a loop nest, of which the default schedule takes those in `chosen`."""
    axes = [a for a in stage.axes if a.extent > 1]
    parts = list(subexpressions(stage.value))
    inner = [e for e in parts if e.kind == "reduce"]
    short = [e for e in inner if math.prod(extent(s) for s in e.args[1]) <= _WRITTEN_OUT]
    plain = Knobs()
    start = {"order": None, **{name: getattr(plain, name) for name in Knobs.__slots__}, **chosen}
    options: dict[str, Sequence[Any]] = {
        "order": (None, *itertools.permutations(a.symbol.name for a in axes)) if len(axes) in (2, 3) else (None,),
        "tasks": (1,) if threads == 1 else (1, 2, 4, 8, 16, 32, 64),  # first, as the default schedule has it
        "vectors": (1, 2, 4, 8),
    }
    if any(_strided(program, e, axes[-1].symbol) for e in parts if axes and e.kind == "load"):
        options["transpose"] = (1, 0)
    if any(not axes or axes[-1].symbol not in e.symbols for e in inner):  # of whole rows
        options |= {"rows": (0, 1, 2, 4, 8), "cache": ("none", "scratch", "output"), "keep": ("costly", "all")}
    if len(short) < len(inner):
        options["accumulators"] = (1, 2, 4, 8)
    if short:
        options["window"] = (1, 9, 64)
    if any(e.kind == "where" for e in parts):
        options["cut"] = (1, 0)
    options |= {name: (value,) for name, value in chosen.items() if name not in options}
    return StageDecisions(stage.buffer, decided(options, start), functools.partial(_nest_steps, stage))


def _strided(program: LoopProgram, e: Expr, lane: Symbol) -> bool:
    """Whether the elements of a load along the lane are not adjacent."""
    place = row_major(e.args[1], next(b.shape for b in program.buffers if b.name == e.args[0]))
    return (coefficient(place, lane) or 0) not in (0, 1)


def _nest_steps(stage: Stage, point: SchedulePoint) -> Steps:
    """Return the steps of a point's decisions for a loop nest."""
    steps: Steps = []
    extents = {a.symbol.name: a.extent for a in stage.axes}
    if point["order"] is not None:
        single = [name for name, n in extents.items() if n == 1]
        order = [*single, *point["order"]]
        steps.append(["reorder", stage.buffer, order])
        tasks, shared = 1, list(single)
        while order[len(shared) : -1] and tasks < point["tasks"]:
            shared.append(order[len(shared)])
            tasks *= extents[shared[-1]]
        steps += [["parallel", stage.buffer, name] for name in shared]
        steps.append(["vectorize", stage.buffer, order[-1]])
    plain = Knobs()
    dead = {"order"} | ({"rows"} if point["order"] is not None else set())
    dead |= {"keep"} if point.get("cache") == "none" else set()
    return steps + [
        ["set_knob", stage.buffer, name, value]
        for name, value in point.items()
        if name not in dead and value != getattr(plain, name)
    ]
