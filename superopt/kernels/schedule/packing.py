"""cache_read: an operand kept on its coordinates, in the order in which the loops want it.

The coordinates of an operand are the distinct linear forms through which it sees the iterators: rows and depth of a
matrix, `2*p+r`, `2*q+s` and the channel of a convolution's image.  The operand over its coordinates is an ordinary
stage, guards of padding included; it belongs to the frozen part of the program where it reads only frozen buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import InputError
from superopt.ir.expr import Expr, load, reindexed, subexpressions, values_of
from superopt.ir.index import Poly, Size, Symbol, all_of, bounds, nonnegative, of_atom, substitute
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.stage import Axis, Buffer, LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, written
from superopt.kernels.schedule.compose import kept_where
from superopt.kernels.schedule.edit import before, new_buffer, part, plain, require, rewritten, with_buffers
from superopt.kernels.schedule.guards import enclosing, inside


def cache_read(program: LoopProgram, stage: str, what: int | str, name: str | None = None) -> LoopProgram:
    """Read an operand from a copy: a buffer as it is, or a part of the value over its coordinates.

    before
        for o0<6, o1<5
          out0[o0,o1] = sum_{r0<3} [2*o0+r0-1>=0] ? x[2*o0+r0-1,o1] : 0
    cache_read out0 1 packed
        for c0<13, c1<5
          packed[c0,c1] = [c0-1>=0] ? x[c0-1,c1] : 0
        for o0<6, o1<5
          out0[o0,o1] = sum_{r0<3} packed[2*o0+r0,o1]

    Args:
        program: a well-formed program.
        stage: which reads.
        what: name of a buffer; or place of a part in `edit.parts`, `reduce:N`.
        name: of the copy; by default that of the buffer, or the stage's, with `_packed`.

    Raises:
        InputError: the stage does not read the buffer, has no such part, or the part reads at indices without
            bounds, or beyond its arrays where it does not occur.
    """
    found = plain(program.stage(stage), "cache_read")
    if isinstance(what, str) and not what.startswith("reduce:"):
        return _copied(program, found, what, name)
    target = part(found, what)
    result = new_buffer(program, name, f"{stage}_packed", "cache_read")
    around = enclosing(found, target)
    own = [p for p in around if isinstance(p, int) or p.symbols <= target.symbols]
    for guard in ([], own, around):
        value = kept_where(guard, target)
        packed = _over_coordinates(value)
        if packed is None:
            continue
        its, at, moved = packed
        if inside(program, moved):
            return _packed(program, found, target, Stage(result, tuple(map(Axis, its)), _points(its), moved), at)
    raise InputError(f"cache_read {target}: its coordinates have no bounds, or it reads beyond its arrays on them")


def _packed(program: LoopProgram, stage: Stage, target: Expr, new: Stage, at: Sequence[Size]) -> LoopProgram:
    reading = load(new.buffer, at, target.dtype)
    rest = rewritten(stage, lambda e: reading if e is target else None)
    stages = [rest if s is stage else s for s in before(program, stage.buffer, new)]
    shape = tuple([a.extent for a in new.axes])
    return with_buffers(program, stages, [Buffer(new.buffer, shape, target.dtype, "scratch")])


def _copied(program: LoopProgram, stage: Stage, source: str, name: str | None) -> LoopProgram:
    buffer = program.buffer(source)
    require(source in reads(stage), f"cache_read {source}: stage {stage.buffer} does not read it")
    require(buffer.scope != "local", f"cache_read {source}: it is local to {stage.buffer} already")
    result = new_buffer(program, name, f"{source}_packed", "cache_read")
    its, element = element_of(buffer.shape, [])
    exists: list[Size] = []
    if buffer.scope not in ("input", "frozen"):
        its, element, exists = written(program.stage(source), buffer)
    guard = all_of(*map(nonnegative, exists))
    copy = Stage(result, tuple(map(Axis, its)), tuple(element), load(source, element, buffer.dtype), guard)

    def change(e: Expr) -> Expr | None:
        if e.kind != "load" or e.args[0] != source or any(x for i in e.args[1] for x in values_of(i)):
            return None
        return load(result, e.args[1], e.dtype)

    rest = rewritten(stage, change)
    require(source not in reads(rest), f"cache_read {source}: it is read at indices that are read themselves")
    stages = [rest if s is stage else s for s in before(program, stage.buffer, copy)]
    return with_buffers(program, stages, [Buffer(result, buffer.shape, buffer.dtype, "scratch")])


def _points(its: Sequence[Symbol]) -> tuple[Size, ...]:
    return tuple([of_atom(it) if it.high != 0 else 0 for it in its])


def _over_coordinates(value: Expr) -> tuple[list[Symbol], list[Size], Expr] | None:
    """Coordinates, where they stand at each iteration, and the value over them; None without numeric bounds."""
    found = _forms(value)
    its, points = element_of([int(high - low) + 1 for _, low, high in found], [])
    if any(high == float("inf") or low == -float("inf") for _, low, high in found):
        return None
    at: list[Size] = [form - int(low) for form, low, _ in found]
    single: dict[Symbol, Size] = {}
    whole: dict[Size, Size] = {}
    for (form, low, _), i in zip(found, points, strict=True):
        back = i + int(low)
        whole[form] = back
        if isinstance(form, Poly) and form.is_atom and isinstance(form.terms[0][0][0], Symbol):
            single[form.terms[0][0][0]] = back
    return its, at, _moved(value, value.symbols, whole, single)


def _forms(value: Expr) -> list[tuple[Size, float, float]]:
    """The distinct non-constant parts of the indices and conditions in a value, with their ranges."""
    free = value.symbols
    forms: dict[Size, None] = {}
    alone: dict[Size, None] = {}
    for e in subexpressions(value):
        for x in e.indices:
            if isinstance(x, int) or x.symbols.isdisjoint(free):
                continue
            low, high = bounds(x)
            if x.symbols <= free and high - low < float("inf") and not list(values_of(x)):
                forms[_upright(x - x.constant)] = None
            else:  # it mixes iterators of the part with others, or is read: its iterators are coordinates
                alone |= dict.fromkeys(of_atom(s) for s in x.symbols & free)
    alone |= {f: None for f in forms if isinstance(f, Poly) and f.is_atom and isinstance(f.terms[0][0][0], Symbol)}
    singles = frozenset(s for f in alone if isinstance(f, Poly) for s in f.symbols)
    kept = [f for f in forms if isinstance(f, Poly) and f not in alone and not f.symbols <= singles]
    return [(f, *bounds(f)) for f in sorted([*alone, *kept], key=_order)]


def _order(form: Size) -> tuple[str, ...]:
    return tuple(sorted(s.name for s in form.symbols)) if isinstance(form, Poly) else ()


def _upright(form: Size) -> Size:
    """The form or its negative: the one whose coefficients have a positive sum."""
    if isinstance(form, int):
        return form
    total = sum(c for _, c in form.terms)
    return form if total > 0 or (total == 0 and form.terms[0][1] > 0) else -form


def _moved(e: Expr, free: frozenset[Symbol], whole: dict[Size, Size], single: dict[Symbol, Size]) -> Expr:
    """The value with each index as a function of the coordinates."""

    def index(x: Size) -> Size:
        if isinstance(x, int) or x.symbols.isdisjoint(free):
            return x
        form = x - x.constant
        if form in whole:
            return whole[form] + x.constant
        if -form in whole:
            return x.constant - whole[-form]
        return substitute(x, single)

    return reindexed(e, index)
