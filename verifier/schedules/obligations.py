"""Obligations: accesses in bounds, index maps one to one, outputs complete, reads after writes, memory, overflow.

*Buffers that share memory.*  An output that takes the place of an input overwrites nothing that is still read.  Reads
of earlier phases are safe, reads of later phases are not.  In the phase that writes, an element may be read by the
iteration that writes it, since operands are loaded before the result is stored.  A stage placed inside the writer's
loops may read it in the iteration of these loops in which it is written.  No other iteration may.

*Integer sums* stay in the range of their type, or wrap exactly as the sum that they stand for.  A sum of k products of
bytes stays below k * 255 * 128.  Where that fits the accumulator nothing wraps.  Where it does not, the accumulator
must have the type in which the program before sums, whose wrapping it then shares.  A narrower one is refuted by a
number of terms and values that overflow it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Atom, Guard, Poly, Size, Symbol, of_atom, row_major
from superopt.ir.ops.record import accumulator
from superopt.ir.scalar import DTYPE
from superopt.ir.types import range_of
from superopt.kernels.loops.program import loads
from superopt.kernels.loops.stage import Buffer, LoopProgram, Stage
from verifier.schedules.domain import Domain, DomainPoint, elements, shown, values
from verifier.schedules.intervals import ExprRanges, box_of, sums
from verifier.schedules.maps import solve
from verifier.schedules.questions import Findings
from verifier.schedules.stages import Access, View, accesses
from verifier.schedules.verdict import ALIAS, BOUNDS, LAYOUT, ONCE, ORDER, OVERFLOW, VALUE, Witness, point
from verifier.verdict import PROVED, REFUTED, UNKNOWN

Clash = tuple[Mapping[Any, int], Mapping[Any, int], list[int | str]]
"""Two iterations, and the element that both write."""
_TRIED = 1 << 16  # iterations that are searched for two that write one element


def sequence(program: LoopProgram, out: Findings) -> bool:
    """Check that every buffer that a stage reads is filled by an earlier stage or not filled by the program at all."""
    place = {s.buffer: k for k, s in enumerate(program.stages)}
    for k, stage in enumerate(program.stages):
        for e in loads(stage):
            name = e.args[0]
            if place.get(name, -1) >= k:
                first: DomainPoint = {a.symbol: 0 for a in stage.axes}
                at = Witness(point(first), (), f"{name} is not filled yet when {stage.buffer} reads it")
                what = f"{_text(name, e.args[1])} is written before {stage.buffer} reads it"
                return out.add(ORDER, stage.buffer, what, REFUTED, "structure", at)
    return True


def reads(view: View, stage: Stage, refine: bool = False) -> list[Access]:
    """The loads of a stage: those of its value where it is computed, those of its index and guard wherever it runs.

    Without `refine` the domain of a load may be larger than the iterations in which it happens.
    """
    key = (stage.buffer, refine)
    if key not in view.reads:
        whole = view.domain(stage)
        all_reads = list(accesses(stage.value, whole, refine))
        for x in stage.index:
            for v in values_of(x):
                all_reads += accesses(v, whole, refine)
        if isinstance(stage.guard, Guard):
            everywhere = Domain(whole.ranges, (), view.budget)
            for p in stage.guard.ordered:
                for v in values_of(p):
                    all_reads += accesses(v, everywhere, refine)
        view.reads[key] = all_reads
    return view.reads[key]


def refined(view: View, stage: Stage, access: Access) -> list[Access]:
    """The same load, split into parts whose domains are exactly the iterations in which it happens."""
    return [a for a in reads(view, stage, True) if a.load is access.load]


# ---- bounds


def bounds(view: View, stage: Stage, out: Findings) -> None:
    """Check that every element that a stage writes or reads is inside its buffer, under the guards of that access."""
    buffer = view.program.buffer(stage.buffer)
    _inside(out, stage, buffer, stage.index, view.domain(stage), "writes")
    done: set[Expr] = set()
    for access in reads(view, stage):
        buffer = view.program.buffer(access.load.args[0])
        goals = [g for i, n in zip(access.load.args[1], buffer.shape, strict=True) for g in (i, n - 1 - i)]
        if all(access.domain.holds(g) for g in goals):
            _inside(out, stage, buffer, access.load.args[1], access.domain, "reads")
        elif access.load not in done:
            done.add(access.load)
            for part in refined(view, stage, access):
                _inside(out, stage, buffer, part.load.args[1], part.domain, "reads")


def _inside(out: Findings, stage: Stage, buffer: Buffer, index: Sequence[Size], domain: Domain, verb: str) -> None:
    goals = [g for i, n in zip(index, buffer.shape, strict=True) for g in (i, n - 1 - i)]

    def says(at: DomainPoint) -> str:
        element = shown(index, at)
        return f"{verb} {buffer.name}{element}, outside of {list(buffer.shape)}: address {_flat(element, buffer)}"

    out.ask(
        BOUNDS, stage.buffer, f"{verb} {_text(buffer.name, index)} inside {list(buffer.shape)}", domain, goals, says
    )


def _text(name: str, index: Sequence[Size]) -> str:
    return f"{name}[{','.join(map(str, index))}]"


def _flat(element: Sequence[int | str], buffer: Buffer) -> int | str:
    at = [i for i in element if isinstance(i, int)]
    if len(at) < len(element):
        return "?"
    place = row_major(at, buffer.shape)
    assert isinstance(place, int)
    return place


# ---- one to one, and complete


def layout(view: View, stage: Stage, out: Findings) -> None:
    """Check that the index map of a stage is one to one: on all of its padded axes, or where its guard holds."""
    placed = stage.at[1] if stage.at is not None else 0
    plain = view.plain(stage)
    own = [a.symbol for a in plain.axes[placed:]]
    needed = own
    if stage.combine is not None:  # iterations of the sum write one element; those of two tasks must not
        needed = [a.symbol for a in stage.axes if a.kind == "parallel" and stage.at is None]
    what = f"{_text(stage.buffer, stage.index)} is one to one"
    guarded = view.domain(stage)
    settled = set(needed) <= set(own)
    ranges = {a.symbol: box_of(a.symbol) for a in plain.axes}
    for domain in (Domain(ranges, (), view.budget), Domain(ranges, (), view.budget).under(plain.guard)):
        fresh = [of_atom(Symbol(f"element.{d}", None, None)) for d in range(len(plain.index))]
        if settled and (domain.empty or len(solve(plain.index, fresh, own, domain)) == len(own)):
            out.add(LAYOUT, stage.buffer, what, PROVED, "digits")
            _tasks(stage, out, None)
            return
    if not needed:
        out.add(LAYOUT, stage.buffer, what, UNKNOWN, "")
        return
    pair, whole = _collision(stage, needed, guarded)
    if pair is not None:
        at, other = pair
        element = shown(stage.index, at)
        witness = Witness(point(at), point(other), f"both write {stage.buffer}{element}")
        out.add(LAYOUT, stage.buffer, what, REFUTED, "point", witness)
        _tasks(stage, out, (at, other, element))
    else:
        out.add(LAYOUT, stage.buffer, what, PROVED if whole else UNKNOWN, "enumeration")
        if whole:
            _tasks(stage, out, None)


def accumulation(stage: Stage, out: Findings) -> None:
    """Report a stage that accumulates in 16-bit floats: it rounds partial results, its specification does not."""
    dtype = stage.value.dtype
    if stage.combine in ("sum", "prod") and accumulator(dtype) != dtype:
        out.add(VALUE, stage.buffer, f"partial results of the {stage.combine} are kept as {dtype}", UNKNOWN, "")


def _tasks(
    stage: Stage, out: Findings, pair: tuple[Mapping[Any, int], Mapping[Any, int], list[int | str]] | None
) -> None:
    """Check that tasks write disjoint regions: it follows from the index map, or two iterations are a race."""
    parallel = [a.symbol for a in stage.axes if a.kind == "parallel"]
    if not parallel or stage.at is not None:
        return
    what = f"tasks over {','.join(s.name for s in parallel)} write apart"
    if pair is None:
        out.add(ORDER, stage.buffer, what, PROVED, "digits")
        return
    at, other, element = pair
    tasks = [tuple(x[s] for s in parallel) for x in (at, other)]
    if tasks[0] == tasks[1]:
        out.add(ORDER, stage.buffer, what, UNKNOWN, "")
        return
    says = f"tasks {tasks[0]} and {tasks[1]} both write {stage.buffer}{element}"
    out.add(ORDER, stage.buffer, what, REFUTED, "point", Witness(point(at), point(other), says))


def _collision(
    stage: Stage, needed: Sequence[Symbol], domain: Domain
) -> tuple[tuple[Mapping[Any, int], Mapping[Any, int]] | None, bool]:
    """Two iterations that write one element and differ in a needed axis, or None; and whether all were tried.

    Iterations that differ in parallel axes are preferred: they are a race.
    """
    symbols = [a.symbol for a in stage.axes]
    placed = stage.at[1] if stage.at is not None else 0
    if any(isinstance(x, Poly) and any(True for _ in values_of(x)) for x in (*stage.index, *domain.facts)):
        return None, False
    parallel = [a.symbol for a in stage.axes if a.kind == "parallel"]
    whole = math.prod(h - l + 1 for l, h in map(box_of, symbols)) <= _TRIED
    for chosen in [parallel, needed] if parallel else [needed]:
        columns = _corner(symbols, chosen)
        exists = np.ones(next(iter(columns.values())).shape if columns else (), bool)
        for f in domain.facts:
            exists &= values(f, columns) >= 0
        rows = np.flatnonzero(exists)
        keys = [np.broadcast_to(values(x, columns), exists.shape)[rows] for x in stage.index]
        keys += [columns[s][rows] for s in symbols[:placed]]
        collision = _twice(keys, [columns[s][rows] for s in chosen], len(rows))
        if collision is not None:
            pair = tuple({s: int(columns[s][rows[k]]) for s in symbols} for k in collision)
            return (pair[0], pair[1]), False
    return None, whole


def _corner(symbols: Sequence[Symbol], first: Sequence[Symbol]) -> dict[Atom, Any]:
    """All iterations, or a corner of them that extends furthest along the axes in `first`."""
    sizes = {s: box_of(s)[1] + 1 for s in symbols}
    taken = dict.fromkeys(symbols, 1)
    left = _TRIED
    for s in [*first, *(s for s in reversed(symbols) if s not in first)]:
        share = max(2, round(left ** (1 / max(1, len(first))))) if s in first else left
        taken[s] = max(1, min(sizes[s], share, left))
        left //= taken[s]
    for s in symbols:
        grown = min(sizes[s], taken[s] * left) if left > 1 else taken[s]
        left = left * taken[s] // max(grown, 1) if grown > taken[s] else left
        taken[s] = grown
    axes: Sequence[Any] = np.meshgrid(*[np.arange(taken[s]) for s in symbols], indexing="ij") if symbols else []
    return {s: a.ravel() for s, a in zip(symbols, axes, strict=True)}


def _twice(keys: list[Any], marks: list[Any], count: int) -> tuple[int, int] | None:
    """Indices of two rows with equal keys and different marks, or None."""
    if count < 2:
        return None
    order = np.lexsort([*marks[::-1], *keys[::-1]])
    same = np.ones(count - 1, bool)
    for k in keys:
        same &= k[order][1:] == k[order][:-1]
    differ = np.zeros(count - 1, bool)
    for m in marks:
        differ |= m[order][1:] != m[order][:-1]
    where = np.flatnonzero(same & differ)
    return (int(order[where[0]]), int(order[where[0] + 1])) if where.size else None


def complete(view: View, stage: Stage, out: Findings) -> None:
    """Check that a stage writes every element of its buffer."""
    buffer = view.program.buffer(stage.buffer)
    symbols = [Symbol(f"{buffer.name}.{d}", 0, n - 1) for d, n in enumerate(buffer.shape)]
    element: list[Size] = [of_atom(s) if s.high else 0 for s in symbols]
    domain = Domain({s: box_of(s) for s in symbols}, (), view.budget)
    written(view, stage, element, 0, domain, out, (ONCE, stage.buffer, f"all of {buffer.name}{list(buffer.shape)}"))


def order(view: View, stage: Stage, out: Findings) -> None:
    """Check that elements that a stage reads were written before, and by the same task where the buffer is local."""
    position = {s.buffer: k for k, s in enumerate(view.program.stages)}
    for access in reads(view, stage):
        name = access.load.args[0]
        writer = view.stages.get(name)
        if writer is None:
            continue
        what = f"{_text(name, access.load.args[1])} is written before {stage.buffer} reads it"
        shared = view.shared(writer, stage)
        local = view.program.buffer(name).scope == "local"
        early = position[name] < position[stage.buffer] and (writer.at is None) == (not local)
        if shared is None or not early or writer is stage or _inside_of(view, writer, stage):
            first = {s: box[0] for s, box in access.domain.ranges.items()}
            says = f"{name} is not filled yet when {stage.buffer} reads it"
            out.add(ORDER, stage.buffer, what, REFUTED, "structure", Witness(point(first), (), says))
            continue
        source = view.source(writer, access.load.args[1], shared)
        goals = [*source.conditions, *[g for p in source.equal for g in (p, -p)]]
        exact = source.missing or all(access.domain.holds(g) for g in goals)
        for part in [access] if exact else refined(view, stage, access):
            written(view, writer, part.load.args[1], shared, part.domain, out, (ORDER, stage.buffer, what))


def _inside_of(view: View, writer: Stage, reader: Stage) -> bool:
    """Whether a reader is placed inside the stage that fills the buffer that it reads."""
    while reader.at is not None:
        reader = view.stages[reader.at[0]]
        if reader is writer:
            return True
    return False


def written(
    view: View,
    writer: Stage,
    element: Sequence[Size],
    shared: int,
    domain: Domain,
    out: Findings,
    about: tuple[str, str, str],
) -> bool:
    """Check that a stage writes an element at every point of a domain; return whether it is proved."""
    source = view.source(writer, element, shared)
    if domain.empty:
        return out.add(*about, PROVED, "intervals")

    def says(at: DomainPoint) -> str:
        return f"{writer.buffer}{shown(element, at)} is never written"

    if source.missing:
        return _tried(view, writer, element, shared, domain, out, about)
    goals = [g for p in source.equal for g in (p, -p) if p != 0]
    return out.ask(*about, domain, [*source.conditions, *goals], says)


def _tried(
    view: View,
    writer: Stage,
    element: Sequence[Size],
    shared: int,
    domain: Domain,
    out: Findings,
    about: tuple[str, str, str],
) -> bool:
    """As `written`, by enumeration of the iterations of both sides; UNKNOWN where they are too many."""
    plain = view.plain(writer)
    kept = [a.symbol for a in plain.axes[:shared]]
    ranges = {a.symbol: box_of(a.symbol) for a in plain.axes}
    own = Domain(ranges, (), view.budget).under(plain.guard)
    wrote = elements(own.box, own.ranges, own.facts, [*map(of_atom, kept), *plain.index], _TRIED)
    read = elements(domain.box, domain.ranges, domain.facts, [*map(of_atom, kept), *element], _TRIED)
    if wrote is None or read is None:
        return out.add(*about, UNKNOWN, "")
    known = set(wrote)
    missing = next((e for e in read if e not in known), None)
    if missing is None:
        return out.add(*about, PROVED, "enumeration")
    at = tuple((s.name, int(x)) for s, x in zip(kept, missing, strict=False))
    says = f"{writer.buffer}{list(missing[shared:])} is never written"
    return out.add(*about, REFUTED, "point", Witness(at, (), says))


def aliases(view: View, pairs: Sequence[tuple[str, str]], out: Findings) -> None:
    """Check outputs that take the memory of inputs, and that no stage writes an input otherwise."""
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
    """Ask whether an output may take the memory of an input."""
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

                def says_at(
                    point: DomainPoint, index: Sequence[Size] = access.load.args[1], source: str = source
                ) -> str:
                    return f"{source}{shown(index, point)} is read there and overwritten elsewhere"

                out.ask(ALIAS, stage.buffer, f"{text} is overwritten where it is read alone", domain, goals, says_at)


def _common(view: View, stage: Stage, writer: Stage) -> int:
    """Number of the writer's axes that a stage placed inside it shares; 0 for a stage that is not placed inside it."""
    count = 0
    while stage.at is not None:
        count = stage.at[1]
        if stage.at[0] == writer.buffer:
            return count
        stage = view.stages[stage.at[0]]
    return 0


def overflow(before: View, after: View, out: Findings) -> None:
    """Check that no sum of integers of a program overflows, or that it wraps as the sum of the program before."""
    known = {_width(e) for s in before.program.stages for e in sums(before.plain(s).value)}
    ranges = ExprRanges()
    for stage in after.program.stages:
        for e in sums(after.plain(stage).value):
            _sum(stage, e, ranges, known, out)


def _width(e: Expr) -> int:
    return DTYPE[e.dtype].itemsize


def _sum(stage: Stage, e: Expr, ranges: ExprRanges, known: set[int], out: Findings) -> None:
    ranges.of(e)
    low, high = ranges.exact[e]
    least, most = range_of(e.dtype)
    inside = ranges.whole.get(e.args[2], True)
    what = f"the sum over {','.join(f'{s}<{s.extent}' for s in e.args[1])} in {e.dtype}"
    if least <= low and high <= most and inside:
        out.add(OVERFLOW, stage.buffer, f"{what} stays in {int(low)} .. {int(high)}", PROVED, "intervals")
    elif known and _width(e) >= min(known):
        out.add(OVERFLOW, stage.buffer, f"{what} wraps as the sum before does", PROVED, "structure")
    else:
        one = ranges.of(e.args[2])
        end = most if high > most else least
        size = max(one[1], 1) if high > most else min(one[0], -1)
        steps = int(end // size) + 1
        says = f"after {steps} terms of {int(size)} the sum is {int(steps * size)}, and {e.dtype} ends at {int(end)}"
        at = tuple((s.name, 0) for s in e.args[1])
        out.add(OVERFLOW, stage.buffer, what, REFUTED, "intervals", Witness(at, (), says))
