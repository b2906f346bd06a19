"""Good schedules without search, for every stage of a loop program.

A contraction gets the register tile, lane, packing and task grid whose estimated cycles are least.  Every other stage
is left to the generator, which arranges it by its accesses, as one task where the work is not worth a fork.

A window reads each element several times.  Its elements along the lane may be apart in memory: channels-first images
written channels last, depthwise convolutions.  Every such read would be a gather, or a transpose in registers of as
many rows as there are lanes, whereas a copy transposes each element once.

Prefixes along few long rows are too few tasks for the threads of a call.  They are cut into blocks, which cost a second
pass over the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from superopt.errors import InputError, UnsupportedKernel
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.index import Symbol, coefficient, row_major
from superopt.ir.prefix import direction
from superopt.ir.scalar import SCALARS
from superopt.kernels.choose.chains import chain
from superopt.kernels.choose.cycles import is_short
from superopt.kernels.choose.default_tiles import decide
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.choose.transforms import transformed
from superopt.kernels.emit.generate import cycles, generate
from superopt.kernels.llvm.cpu import Cpu, host
from superopt.kernels.loops.contract import outermost
from superopt.kernels.loops.stage import LoopProgram, Stage, extent
from superopt.kernels.runtime.kernel import MOST_STACK_BYTES, Code
from superopt.kernels.schedule import set_knob
from superopt.kernels.schedule.edit import reductions
from superopt.kernels.schedule.tensorizing import ContractionDecisions, pairs_of, tiled
from superopt.kernels.schedule.trace import Steps, Trace, apply, attempt, trace

_LONG = 49  # vectors of a row from which its last phase takes ...
_WIDE = 8  # ... so many at a time
_AGAIN = 4  # reads of an element from which a copy of it pays
_LEAST = 1 << 14  # elements of all rows of a prefix from which two passes pay
_BLOCK = 1 << 12  # elements of a block, where that is enough for all threads ...
_TASKS = 4  # ... that get so many blocks each otherwise
_MOST_APART = 16  # reductions of a stage for which a stage of their own is tried: each goes through the whole value


def default(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> LoopProgram:
    """Schedule every stage by estimates, without search.

    Args:
        program: the loop program, as `from_graph` returns it; stages that are scheduled already are left alone.
        cpu: the target CPU; this machine when None.
        threads: number of threads a call may use.
    """
    return apply(program, default_trace(program, cpu, threads))


def default_trace(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> Trace:
    """Return the steps that `default` applies: the first of `traces` for which code can be generated.

    Raises:
        UnsupportedKernel: none of them has code; the message is that of the plainest one.
    """
    refused: InputError | None = None
    for steps in traces(program, cpu, threads):
        try:
            written(apply(program, steps), cpu)
        except InputError as error:
            refused = error
        else:
            return steps
    raise refused or UnsupportedKernel(f"{program.name} has no default schedule")


def traces(program: LoopProgram, cpu: Cpu | None = None, threads: int = 1) -> Iterator[Trace]:
    """Yield default schedules, each plainer than the one before.

    The generator may refuse a schedule, for a tile that reads in an order it does not know or for reductions unrolled
    at too many points.  A plainer one can then succeed.  The last one runs one element after the other, with every sum
    in a stage of its own.
    """
    cpu, seen = cpu or host(), set[Trace]()
    for plainness in _PLAINNESS:
        try:
            steps = trace(_chosen(program, cpu, threads, plainness)[1])
        except InputError:  # a primitive refuses a step that an estimate asks for
            continue
        if steps not in seen:
            seen.add(steps)
            yield steps


def written(program: LoopProgram, cpu: Cpu | None = None) -> tuple[Code, Code | None]:
    """Generate the code of a scheduled program, and the code that packs its frozen operands, if any.

    Raises:
        InputError: no code can be generated, or more than is worth compiling.
    """
    early, hot = hoisted(program)
    codes = generate(hot, cpu), None if early is None else generate(early, cpu)
    for code in codes:
        if code is not None and code.stack_bytes > MOST_STACK_BYTES:
            raise UnsupportedKernel(f"{code.name} keeps {code.stack_bytes} bytes on the stack")
    return codes


@dataclass(frozen=True, slots=True)
class _Plainness:
    """Features that a default schedule leaves out or replaces, from the full schedule to the plainest.

    Attributes:
        chains: whether chained contractions, or a product and its transforms, may run in one task.
        tiles: whether register tiles, copies of operands, and prefixes in blocks are used.
        knobs: knobs of stages without a tile, in place of those that estimates choose.
        apart: whether every reduction gets a stage of its own.
    """

    chains: bool = True
    tiles: bool = True
    knobs: tuple[tuple[str, int | str], ...] = ()
    apart: bool = False


_SHORT = (("rows", 1), ("vectors", 1))  # nothing at several points, so that windows are written out once
_LOOPS = (
    ("accumulators", 1),
    ("cache", "none"),
    ("cut", 0),
    ("rows", 1),
    ("transpose", 0),
    ("vectors", 1),
    ("window", 0),
)
_SCALAR = (*_LOOPS, ("lane", 0))
_PLAINNESS = (
    _Plainness(),
    _Plainness(knobs=_SHORT),
    _Plainness(chains=False),
    _Plainness(chains=False, knobs=_SHORT),
    _Plainness(False, False),
    _Plainness(False, False, _SHORT),
    _Plainness(False, False, _LOOPS),
    _Plainness(False, False, _SCALAR),
    _Plainness(False, False, _SCALAR, True),
)


def _chosen(program: LoopProgram, cpu: Cpu, threads: int, plain: _Plainness) -> tuple[LoopProgram, Steps]:
    """Return the scheduled program and the steps that lead to it."""
    whole = transformed(program, cpu, threads) if plain.chains else None
    scheduled = None if whole is None else whole.default()
    if scheduled is not None:
        return scheduled
    steps: Steps = []
    waiting = [s.buffer for s in program.stages]
    while waiting:
        name = waiting.pop(0)
        chained = chain(program, name, cpu, threads) if plain.chains else None
        scheduled = None if chained is None else chained.default()
        if scheduled is not None:
            program, steps = scheduled[0], [*steps, *scheduled[1]]
            continue
        before = {s.buffer for s in program.stages}
        if plain.tiles:
            program, made = _tiled(program, name, cpu, threads)
            steps += made
        elif plain.apart:
            program, made = _reductions_apart(program, name)
            steps += made
        if plain.tiles:
            waiting += [s.buffer for s in program.stages if s.buffer not in before and s.value.height]
    for name in [s.buffer for s in program.stages] if plain.tiles else ():
        blocks = _in_blocks(program, name, cpu, threads)
        if blocks is not None:
            program, steps = blocks[0], [*steps, *blocks[1]]
    for stage in program.stages:
        for knob, value in _knobs(stage, cpu, plain).items():
            program = set_knob(program, stage.buffer, knob, value)
            steps.append(["set_knob", stage.buffer, knob, value])
    return program, steps


def _tiled(program: LoopProgram, name: str, cpu: Cpu, threads: int) -> tuple[LoopProgram, Steps]:
    """Tile the contractions of a stage in registers, and copy operands of its windows to lie along the lane."""
    program, steps = _apart(program, name, cpu, threads)
    decisions = decide(program, name, cpu, threads)
    made = None if decisions is None else _tried(program, name, decisions, cpu)
    if made is not None and decisions is not None:
        return made, [*steps, ["tensorize", name, pairs_of(decisions)]]
    copies = _along_lane(program, name)
    return apply(program, copies), [*steps, *copies]


def _reductions_apart(program: LoopProgram, name: str) -> tuple[LoopProgram, Steps]:
    """Put reductions of a stage in stages of their own, inner ones first, where they read inside of their buffers."""
    steps: Steps = []
    refused = 0
    while len(steps) + refused < _MOST_APART:
        value, sums = program.stage(name).value, reductions(program.stage(name))
        inner = [place for place, e in enumerate(sums) if e.height == 1 and e is not value]
        if len(inner) <= refused:
            break
        step = ["materialize", name, f"reduce:{inner[refused]}", f"{name}_r{len(steps)}"]
        after = attempt(program, [step])
        if isinstance(after, LoopProgram):
            program, steps = after, [*steps, step]
        else:
            refused += 1
    return program, steps


def _knobs(stage: Stage, cpu: Cpu, plain: _Plainness) -> dict[str, int | str]:
    """Return the generator's decisions for a stage without a tile."""
    chosen: dict[str, int | str] = {"tasks": 1} if _alone(stage, cpu) else {}
    wide = _LONG * cpu.lanes("float32")
    rows = _of_rows(stage)
    if rows and stage.axes[-1].extent >= wide:
        chosen["vectors"] = _WIDE
    if rows and _read_together(stage):
        chosen |= {"keep": "all", "rows": 1 if stage.axes[-1].extent >= wide else 2, "accumulators": 2}
    if _long_body(stage):
        chosen["vectors"] = 1
    if stage.tile is None:
        chosen |= dict(plain.knobs)
    return chosen


def _tried(program: LoopProgram, name: str, decisions: ContractionDecisions, cpu: Cpu) -> LoopProgram | None:
    """Return the program with a tile; None where an operand cannot be copied in the layout that the tile reads."""
    try:
        return tiled(program, name, decisions, cpu)
    except InputError:
        return None


def _apart(program: LoopProgram, name: str, cpu: Cpu, threads: int) -> tuple[LoopProgram, Steps]:
    """Put every contraction of a stage but the last in a stage of its own, where they are few."""
    steps: Steps = []
    while True:
        stage = program.stage(name)
        sums = list(outermost(stage.value))
        few = 2 <= len(sums) <= _MOST_APART - len(steps)
        if not few or any(r.args[0] != "sum" or r.height > 1 for r in sums):
            return program, steps
        step = ["materialize", name, f"reduce:{reductions(stage).index(sums[0])}", f"{name}_s{len(sums)}"]
        cut = apply(program, [step])
        if decide(cut, step[-1], cpu, threads) is None:
            return program, steps
        program, steps = cut, [*steps, step]


def _alone(stage: Stage, cpu: Cpu) -> bool:
    """Whether an untiled stage has too little work to be worth a fork."""
    if stage.tile is not None or stage.at is not None or any(k == "tasks" for k, _ in stage.knobs):
        return False
    return all(a.kind == "serial" for a in stage.axes) and is_short(cycles(stage, cpu), cpu)


def _of_rows(stage: Stage) -> bool:
    """Whether an untiled stage reduces whole rows and then writes them."""
    if stage.tile is not None or stage.at is not None or not stage.axes or stage.knobs:
        return False
    lane = stage.axes[-1]
    if any(a.kind != "serial" for a in stage.axes):
        return False
    sums = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    rows = [e for e in sums if [s.high for s in e.args[1]] == [lane.symbol.high] and lane.symbol not in e.symbols]
    return bool(rows) and len(rows) == len(sums)


def _read_together(stage: Stage) -> bool:
    """Whether several phases read two or more arrays (a residual), whose sum is then cached between phases."""
    bodies = [e.args[2] for e in subexpressions(stage.value) if e.kind == "reduce"]
    read = [{e.args[0] for e in subexpressions(body) if e.kind == "load"} for body in bodies]
    return len(read) > 1 and min(map(len, read)) > 1


def _long_body(stage: Stage) -> bool:
    """Whether an untiled stage is elementwise, with functions that take many instructions.

    One vector at a time keeps their constants in registers, and the processor overlaps iterations by itself.
    """
    if stage.tile is not None or stage.at is not None or any(k == "vectors" for k, _ in stage.knobs):
        return False
    parts = subexpressions(stage.value)
    if any(a.kind != "serial" for a in stage.axes) or any(e.kind == "reduce" for e in parts):
        return False
    return any(e.kind == "op" and SCALARS[e.args[0]].transcendental and e.symbols for e in parts)


# ---- operands of windows along the lane


def _along_lane(program: LoopProgram, name: str) -> Steps:
    """Return steps that copy the buffers whose windows are read apart in memory; none where there is no such buffer."""
    stage = program.stage(name)
    lanes = [a.symbol for a in stage.axes if a.extent > 1]
    plain = stage.tile is None and stage.at is None and not stage.knobs and all(a.kind == "serial" for a in stage.axes)
    if not plain or not lanes:
        return []
    steps: Steps = []
    for source in dict.fromkeys(e.args[0] for e in _of_windows(stage)):
        copied = _copied(program, stage, source, lanes[-1])
        after = attempt(program, copied)
        if copied and isinstance(after, LoopProgram):
            program, steps = after, [*steps, *copied]
            stage = program.stage(name)
    return steps


def _of_windows(stage: Stage) -> list[Expr]:
    """Return the loads inside reductions."""
    inner = [e for r in subexpressions(stage.value) if r.kind == "reduce" for e in subexpressions(r.args[2])]
    return [e for e in dict.fromkeys(inner) if e.kind == "load"]


def _copied(program: LoopProgram, stage: Stage, source: str, lane: Symbol) -> Steps:
    """Return the steps that copy one buffer with the dimension of the lane last."""
    buffer = program.buffer(source)
    reads = [e for e in _of_windows(stage) if e.args[0] == source and lane in e.symbols]
    if not reads or buffer.scope == "local":
        return []
    dimensions = {d for e in reads for d, x in enumerate(e.args[1]) if not isinstance(x, int) and lane in x.symbols}
    steps = {coefficient(row_major(e.args[1], buffer.shape), lane) for e in reads}
    times = sum(prod([extent(s) for s in e.symbols]) for e in reads) / max(1, prod(buffer.shape))
    if len(dimensions) != 1 or steps & {0, 1, -1, None} or times < _AGAIN:
        return []
    (d,) = dimensions
    order = [*[k for k in range(len(buffer.shape)) if k != d], d]
    copy = f"{source}_along"
    return [
        ["cache_read", stage.buffer, source, copy],
        ["transform_layout", copy, [["permute", order]], "new"],
    ]


# ---- prefixes in blocks


def _in_blocks(program: LoopProgram, name: str, cpu: Cpu, threads: int) -> tuple[LoopProgram, Steps] | None:
    """Cut a prefix along a stage's innermost axis into blocks; return program and steps, or None if left whole."""
    stage = program.stage(name)
    plain = stage.tile is None and stage.at is None and stage.guard is True and not stage.knobs
    if threads < 2 or not cpu.vector_bits or not plain or not stage.axes or any(a.kind != "serial" for a in stage.axes):
        return None
    sums = reductions(stage)
    lane = stage.axes[-1]
    rows = prod(a.extent for a in stage.axes[:-1])
    if len(sums) != 1 or not direction(sums[0], lane.symbol) or 2 * rows > threads or rows * lane.extent < _LEAST:
        return None
    lanes = cpu.lanes("float32")
    block = max(_BLOCK, -(-lane.extent * rows // (_TASKS * threads)))
    steps: Steps = [["split_prefix", name, 0, -(-block // lanes) * lanes]]
    try:
        after = apply(program, steps)
        for axis in after.stage(name).axes[:-1]:
            steps.append(["parallel", name, axis.symbol.name])
            after = apply(after, steps[-1:])
    except InputError:
        return None
    return after, steps
