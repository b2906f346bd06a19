"""The frozen part of a loop program: the stages that read only frozen buffers (packed weights), to be run once."""

from __future__ import annotations

from dataclasses import replace

from superopt.kernels.emit.bitwise_consistency import agreements, phase_of
from superopt.kernels.loops.program import checked, ordered, reads
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage


def hoisted(program: LoopProgram) -> tuple[LoopProgram | None, LoopProgram]:
    """Split a program into the stages that read only frozen buffers, to be run once, and the rest.

    The outputs of the first program are those of its buffers that the second reads, under the same names; there they
    are frozen.  Stages that must round a value alike (`agreement`) stay together.

    Returns:
        (prepare, hot); prepare is None where no scratch buffer depends on frozen buffers alone.
    """
    constant = {b.name for b in program.buffers if b.scope == "frozen"}
    moved: set[str] = set()
    for stage in program.phases():
        group = _group(program, stage)
        own = {s.buffer for s in group}
        if program.buffer(stage.buffer).scope == "scratch" and all(reads(s) <= constant | moved | own for s in group):
            moved |= own
    moved = _together(program, moved)
    if not moved:
        return None, program
    early = [s for s in program.stages if s.buffer in moved]
    late = [s for s in program.stages if s.buffer not in moved]
    needed_early = {n for s in early for n in reads(s)}
    needed_late = {n for s in late for n in reads(s)}
    prepared: list[Buffer] = []
    hot: list[Buffer] = []
    for b in program.buffers:
        if b.name in moved:
            crosses = b.name in needed_late
            prepared.append(replace(b, scope="output") if crosses else b)
            if crosses:
                hot.append(replace(b, scope="frozen"))
        elif b.scope == "frozen":
            prepared += [b] if b.name in needed_early else []
            hot += [b] if b.name in needed_late else []
        else:
            hot.append(b)
    return (
        checked(LoopProgram(f"{program.name}_prepare", ordered(prepared), tuple(early))),
        checked(LoopProgram(program.name, ordered(hot), tuple(late))),
    )


def _together(program: LoopProgram, moved: set[str]) -> set[str]:
    """Return the stages that may be moved, given that stages that must agree are all moved or none."""
    parties = [{phase_of(program, name) for name in a.stages} for a in agreements(program)] if moved else []
    while True:
        torn = {name for party in parties if not party <= moved for name in party & moved}
        kept = {n for n in moved if phase_of(program, n) not in torn}
        constant = {b.name for b in program.buffers if b.scope == "frozen"} | kept
        groups = [_group(program, s) for s in program.phases() if s.buffer in kept]
        kept -= {s.buffer for group in groups for s in group if not all(reads(x) <= constant for x in group)}
        if kept == moved:
            return moved
        moved = kept


def _group(program: LoopProgram, stage: Stage) -> list[Stage]:
    """Return a phase and the stages placed inside it, at any depth."""
    stages = [stage]
    for host in stages:
        stages += program.placed(host.buffer)
    return stages
