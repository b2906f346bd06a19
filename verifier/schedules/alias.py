"""Buffers that share memory: an output that takes the place of an input overwrites nothing that is still read.

What a phase before has read does no harm; what a later phase reads is gone.  In the phase that writes, an element may
be read by the iteration that writes it, since operands are loaded before the result is stored, and by a stage placed
inside the writer's loops in the iteration of these loops in which it is written; by no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.index import Poly, Size, of_atom
from superopt.kernels.loops.stage import Stage
from verifier.schedules.obligations import reads
from verifier.schedules.points import Point, shown
from verifier.schedules.questions import Findings
from verifier.schedules.stages import View
from verifier.schedules.verdict import ALIAS, PROVED, REFUTED, UNKNOWN, Witness


def aliases(view: View, pairs: Sequence[tuple[str, str]], out: Findings) -> None:
    """The obligations of outputs that take the memory of inputs; and that no stage writes an input otherwise."""
    program = view.program
    for stage in program.stages:
        scope = program.buffer(stage.buffer).scope
        fixed = scope in ("input", "frozen")
        says = Witness((), (), f"{stage.buffer} is {scope} and is written")
        what = f"{stage.buffer} is no input"
        out.add(ALIAS, stage.buffer, what, REFUTED if fixed else PROVED, "structure", says if fixed else None)
    for output, source in pairs:
        _pair(view, output, source, out)


def _root(view: View, stage: Stage) -> Stage:
    while stage.at is not None:
        stage = view.stages[stage.at[0]]
    return stage


def _pair(view: View, output: str, source: str, out: Findings) -> None:
    new, old = view.program.buffer(output), view.program.buffer(source)
    what = f"{output} may take the memory of {source}"
    if (new.shape, new.dtype) != (old.shape, old.dtype) or old.scope != "input" or new.scope != "output":
        says = ", ".join(f"{b.name} is {b.scope} {b.dtype}{list(b.shape)}" for b in (new, old))
        out.add(ALIAS, output, what, REFUTED, "structure", Witness((), (), says))
        return
    phases = [s.buffer for s in view.program.phases()]
    writer = view.stages[output]
    when = phases.index(_root(view, writer).buffer)
    if writer.combine is not None:
        out.add(ALIAS, output, what, REFUTED, "structure", Witness((), (), f"{output} is cleared before it is summed"))
        return
    for stage in view.program.stages:
        for access in reads(view, stage, True):
            if access.load.args[0] != source:
                continue
            then = phases.index(_root(view, stage).buffer)
            text = f"{source}[{','.join(map(str, access.load.args[1]))}]"
            if then > when:
                says = Witness((), (), f"{stage.buffer} reads {source} after {output} has overwritten it")
                out.add(ALIAS, stage.buffer, f"{text} is read before {output} is written", REFUTED, "structure", says)
            elif then == when:
                together = len(writer.axes) if stage is writer else _common(view, stage, writer)
                at = view.source(writer, access.load.args[1], 0)
                if at.missing:
                    out.add(ALIAS, stage.buffer, f"{text} is not overwritten too early", UNKNOWN, "")
                    continue
                domain = access.domain
                for p in at.conditions:
                    domain = domain.under(p >= 0) if isinstance(p, Poly) else domain if p >= 0 else domain.below(0)
                moved = [(s, at.at[s.symbol] - of_atom(s.symbol)) for s in writer.axes[:together]]
                goals: list[Size] = [g for _, p in moved for g in (p, -p)]

                def says_at(point: Point, index: Sequence[Size] = access.load.args[1], source: str = source) -> str:
                    return f"{source}{shown(index, point)} is read there and overwritten elsewhere"

                out.ask(ALIAS, stage.buffer, f"{text} is overwritten where it is read alone", domain, goals, says_at)


def _common(view: View, stage: Stage, writer: Stage) -> int:
    """Axes of the writer that a stage placed inside it shares; 0 where it is none of these."""
    count = 0
    while stage.at is not None:
        count = stage.at[1]
        if stage.at[0] == writer.buffer:
            return count
        stage = view.stages[stage.at[0]]
    return 0
