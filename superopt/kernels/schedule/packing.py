"""Packing: copies an operand into an array of its own, in the order in which loops read it.

The coordinates of an operand are the distinct linear forms of iterators in its indices, constants dropped.  For a
matrix these are rows and depth; for a convolution's image `2*p+r`, `2*q+s` and the channel.  The operand over its
coordinates is an ordinary stage, guards of padding included (they become zeros of the copy), and no element is copied
once per tap.  It belongs to the frozen part of the program where it reads only frozen buffers.

`cache_read` copies a part of any value.  `coordinates` copies an operand of a register tile (`tensorizing`), perhaps
inside a task, in a chosen order and padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.ir.expr import Expr, const, load, reindexed, subexpressions, values_of, where
from superopt.ir.index import (
    APPLY,
    Form,
    Guard,
    Mono,
    Poly,
    Size,
    Symbol,
    Truth,
    all_of,
    bounds,
    make,
    nonnegative,
    of_atom,
    substitute,
    terms_of,
)
from superopt.kernels.loops.program import reads
from superopt.kernels.loops.simplify import is_zero
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.bijection import element_of, written
from superopt.kernels.schedule.compose import kept_where
from superopt.kernels.schedule.edit import before, new_buffer, part, plain, require, rewritten, with_buffers
from superopt.kernels.schedule.guards import enclosing, inside


def cache_read(program: LoopProgram, stage: str, what: int | str, name: str | None = None) -> LoopProgram:
    """Read an operand from a copy: a whole buffer, or a part of the value over its coordinates.

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
        stage: the stage that reads.
        what: name of a buffer; or place of a part in `edit.parts`, `reduce:N`.
        name: name of the copy; by default that of the buffer, or the stage's, with `_packed`.

    Raises:
        InputError: the stage does not read the buffer, has no such part, or the part reads at indices without
            bounds, or beyond its arrays where it does not occur.
    """
    current = plain(program.stage(stage), "cache_read")
    if isinstance(what, str) and not what.startswith("reduce:"):
        return _copied(program, current, what, name)
    target = part(current, what)
    result = new_buffer(program, name, f"{stage}_packed", "cache_read")
    around = enclosing(current, target)
    own = [p for p in around if isinstance(p, int) or p.symbols <= target.symbols]
    for guard in ([], own, around):
        value = kept_where(guard, target)
        packed = _over_coordinates(value)
        if packed is None:
            continue
        its, at, moved = packed
        if inside(program, moved):
            return _packed(program, current, target, Stage(result, tuple(map(Loop, its)), _points(its), moved), at)
    raise InputError(f"cache_read {target}: its coordinates have no bounds, or it reads beyond its arrays on them")


def _packed(program: LoopProgram, stage: Stage, target: Expr, new: Stage, at: Sequence[Size]) -> LoopProgram:
    reading = load(new.buffer, at, target.dtype)
    rest = rewritten(stage, lambda e: reading if e is target else None)
    stages = [rest if s is stage else s for s in before(program, stage.buffer, new)]
    shape = tuple([a.extent for a in new.axes])
    return with_buffers(program, stages, [Buffer(new.buffer, shape, target.dtype, "scratch")])


def _copied(program: LoopProgram, stage: Stage, source: str, name: str | None) -> LoopProgram:
    """Return the program with a stage that copies a buffer, which the given stage reads instead."""
    buffer = program.buffer(source)
    require(source in reads(stage), f"cache_read {source}: stage {stage.buffer} does not read it")
    require(buffer.scope != "local", f"cache_read {source}: it is local to {stage.buffer} already")
    result = new_buffer(program, name, f"{source}_packed", "cache_read")
    its, element = element_of(buffer.shape, [])
    exists: list[Size] = []
    if buffer.scope not in ("input", "frozen"):
        its, element, exists = written(program.stage(source), buffer)
    guard = all_of(*map(nonnegative, exists))
    copy = Stage(result, tuple(map(Loop, its)), tuple(element), load(source, element, buffer.dtype), guard)

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
    """Return coordinates, their values at each iteration, and the value over them; None without numeric bounds."""
    forms = _forms(value)
    its, points = element_of([int(high - low) + 1 for _, low, high in forms], [])
    if any(high == float("inf") or low == -float("inf") for _, low, high in forms):
        return None
    at: list[Size] = [form - int(low) for form, low, _ in forms]
    single: dict[Symbol, Size] = {}
    whole: dict[Size, Size] = {}
    for (form, low, _), i in zip(forms, points, strict=True):
        back = i + int(low)
        whole[form] = back
        if isinstance(form, Poly) and form.is_atom and isinstance(form.terms[0][0][0], Symbol):
            single[form.terms[0][0][0]] = back
    return its, at, _moved(value, value.symbols, whole, single)


def _forms(value: Expr) -> list[tuple[Size, float, float]]:
    """Return the distinct non-constant parts of the indices and conditions in a value, with their ranges."""
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
    """Return the form or its negative: the one whose coefficients have a positive sum."""
    if isinstance(form, int):
        return form
    total = sum(c for _, c in form.terms)
    return form if total > 0 or (total == 0 and form.terms[0][1] > 0) else -form


def _moved(e: Expr, free: frozenset[Symbol], whole: dict[Size, Size], single: dict[Symbol, Size]) -> Expr:
    """Return the value with each index as a function of the coordinates."""

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


# ---- operands of register tiles


@dataclass(frozen=True, slots=True)
class Packed:
    """A packing stage, its buffer, and the operand as a load of it."""

    buffer: Buffer
    stage: Stage
    value: Expr


def guarded(guard: Truth, value: Expr) -> Expr:
    """Return the value where the guard holds, else 0; conditions that others imply are left out."""
    if isinstance(guard, Guard) and value.kind == "where" and is_zero(value.args[2]):
        guard, value = all_of(guard, value.args[0]), value.args[1]
    if isinstance(guard, Guard):
        least: dict[Size, Poly] = {}
        for p in guard.ordered:
            known = least.get(p - p.constant)
            if known is None or p.constant < known.constant:
                least[p - p.constant] = p
        guard = Guard(least.values())
    return where(guard, lambda: value, lambda: const(False if value.dtype == "bool" else 0, value.dtype))


def coordinates(
    name: str,
    operand: Expr,
    guard: Truth,
    at: Mapping[Symbol, Size],
    outer: Sequence[Loop] = (),
    order: Sequence[str] = (),
    pad: int = 0,
    padded: Set[Symbol] = frozenset(),
) -> Packed:
    """Pack an operand over its coordinates.

    Args:
        name: name of the buffer.
        operand: a function of axes and depth iterators.
        guard: condition under which the operand counts; elsewhere the copy is 0.
        at: axes and depth iterators in terms of those of the tile.
        outer: axes of the task that the copy is made in; none: a phase of its own.
        order: coordinates outermost first, `"1"`, or in two parts `"1/16"` and `"1%16"`; in order of occurrence when
            empty.
        pad: elements added to the innermost dimension of the buffer, against strides that are powers of two.
        padded: iterators whose range is longer in the tile; the copy is 0 there.

    Raises:
        InputError: an axis enters the operand's indices nonlinearly.
    """
    value = guarded(guard, operand)
    forms = linear_forms(value)
    around = frozenset(a.symbol for a in outer)
    whole: list[Symbol] = []
    mapping: dict[Size, Size] = {}
    conditions: list[Truth] = []
    index: list[Size] = []
    for number, form in enumerate(forms):
        seen = substitute(form, at)
        common = make({m: c for m, c in terms_of(seen) if m and all(a in around for a in m)})
        local = seen - common
        (low, high), (_, known) = bounds(local), bounds(form)
        if not outer and not isinstance(form, int) and form.symbols.isdisjoint(padded):
            high = min(high, known)  # rows beyond do not exist
        it = Symbol(f"c{number}", 0, int(high - low))
        place = of_atom(it) + int(low) + common
        if bounds(place)[1] > known:
            conditions.append(place <= int(known))
        whole.append(it)
        mapping[form] = place
        index.append(local - int(low))
    value = guarded(all_of(*conditions), _on_coordinates(value, mapping))
    if order:
        whole, index, value = _ordered(whole, index, value, order)
    return packed_stage(name, whole, value, index, outer, pad)


def parts_of(order: Sequence[str], names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return the items of an order as name, kind (whole, `/`, `%`) and factor.

    Raises:
        InputError: a name does not occur whole: once, or once with `/n` and once with `%n`.
    """
    pieces: list[tuple[str, str, int]] = []
    for item in order:
        kind = "/" if "/" in item else "%" if "%" in item else ""
        name, _, factor = item.replace("%", "/").partition("/")
        pieces.append((name, kind, int(factor) if factor.isdigit() and int(factor) else 1))
    for name in {*names, *[f[0] for f in pieces]}:
        kinds = sorted((kind, n) for other, kind, n in pieces if other == name)
        halves = len(kinds) == 2 and kinds[0][0] == "%" and kinds[1] == ("/", kinds[0][1])
        if name not in names or not (kinds == [("", 1)] or halves):
            raise InputError(f"the order {list(order)} does not have {name!r}, of {list(names)}, or has it not whole")
    return pieces


def _ordered(
    whole: list[Symbol], index: list[Size], value: Expr, order: Sequence[str]
) -> tuple[list[Symbol], list[Size], Expr]:
    """Return axes, index and value of a copy whose axes are split and ordered; it is 0 beyond the original."""
    axes: list[Symbol] = []
    places: list[Size] = []
    parts: dict[int, Size] = {}
    conditions: list[Truth] = []
    for number, kind, n in parts_of(order, [str(j) for j in range(len(whole))]):
        j = int(number)
        size = whole[j].extent
        assert isinstance(size, int)
        if kind == "/":
            it, place = Symbol(whole[j].name + "h", 0, -(-size // n) - 1), index[j] // n
        elif kind == "%":
            it, place = Symbol(whole[j].name + "l", 0, n - 1), index[j] % n
        else:
            it, place = whole[j], index[j]
        axes.append(it)
        places.append(place)
        parts[j] = parts.get(j, 0) + of_atom(it) * (n if kind == "/" else 1)
    for j, it in enumerate(whole):
        conditions.append(parts[j] <= (it.high if isinstance(it.high, int) else 0))
    mapping: dict[Symbol, Size] = {it: parts[j] for j, it in enumerate(whole)}
    return axes, places, guarded(all_of(*conditions), value.substitute(mapping))


def packed_stage(
    name: str, axes: Sequence[Symbol], value: Expr, index: Sequence[Size], outer: Sequence[Loop] = (), pad: int = 0
) -> Packed:
    """Return a value over its axes as a packing stage, and as a load at an index; arguments as in `coordinates`."""
    shape = [int(bounds(of_atom(s))[1]) + 1 for s in axes]
    place: list[Size] = [of_atom(s) for s in axes]
    kept = [(s, i) for s, i in zip(axes, index, strict=True) if s.high != 0]
    single: dict[Symbol, Size] = {s: 0 for s in axes if s.high == 0}
    place = [substitute(x, single) for x in place]
    value = value.substitute(single)
    shape[-1] += pad
    buffer = Buffer(name, tuple(shape), value.dtype, "local" if outer else "scratch")
    loops = [Loop(s) for s, _ in kept]
    stage = Stage(name, (*outer, *loops), tuple(place), value)
    return Packed(buffer, stage, load(name, index, value.dtype))


# ---- linear forms


def linear_forms(operand: Expr) -> list[Size]:
    """Return the distinct linear forms of the free symbols in indices and guards, constants dropped.

    A quotient or a remainder of a form counts as that form: `x[(o0+r0)//2]` has the coordinate `o0+r0`.
    """
    free = operand.symbols
    conditions: list[Size] = []
    indices: list[Size] = []
    for e in subexpressions(operand):
        if e.kind == "where":
            conditions += e.args[0].ordered
        else:
            indices += e.indices
    forms: dict[Size, None] = {}
    for x in (*indices, *conditions):
        forms |= {form: None for form in _forms_in(x, free) if -form not in forms}
    return list(forms)


def _forms_in(x: Size, free: frozenset[Symbol]) -> Iterator[Size]:
    """Yield the parts of an index that depend on free symbols: those inside quotients, and its own."""
    own, quotients = _parts(x, free)
    for quotient, _ in quotients:
        for y in quotient.args:
            yield from _forms_in(y, free)
    if own != 0:
        yield own


def _parts(x: Size, free: frozenset[Symbol]) -> tuple[Size, list[tuple[Form, int]]]:
    """Return the parts of an index that depend on free symbols: its linear form, and quotients with their factors."""
    own: dict[Mono, int] = {}
    quotients: list[tuple[Form, int]] = []
    for mono, c in terms_of(x):
        if all(a.symbols.isdisjoint(free) for a in mono):
            continue
        atom, *others = mono
        if others or (isinstance(atom, Form) and atom.op == "value"):
            raise InputError(f"the operand sees {x}, which is not linear")
        if isinstance(atom, Symbol):
            own[mono] = c
        else:
            quotients.append((atom, c))
    return make(own), quotients


def _on_coordinates(root: Expr, mapping: Mapping[Size, Size]) -> Expr:
    """Return the operand with its linear forms replaced."""
    free = root.symbols

    def fixed(x: Size) -> Size:
        own, quotients = _parts(x, free)
        for quotient, c in quotients:
            x = x + (APPLY[quotient.op](*map(fixed, quotient.args)) - of_atom(quotient)) * c
        if own == 0:
            return x
        return x - own + (mapping[own] if own in mapping else -mapping[-own])

    return reindexed(root, fixed)
