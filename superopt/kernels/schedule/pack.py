"""Packing: an operand of a contraction as an array of its own, in the order in which a register tile reads it.

`panels` lays B out as [batch.., columns.., panel][depth..][lane]: what the tile streams is contiguous, and the last
panel and the last group of the depth are padded with zeros.

`coordinates` materialises an operand on its distinct linear forms, constants dropped: {m}, {k} of a product, {s*p+r},
{s*q+t}, {c} of a convolution.  Guards become zeros of the copy, so that a padded image is an ordinary packing stage,
without copying an element once per tap.  Inside a task (`outer`) the copy holds the task's part only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from superopt.errors import InputError
from superopt.ir.expr import Expr, const, load, reindexed, subexpressions, where
from superopt.ir.index import Guard, Poly, Size, Symbol, Truth, all_of, bounds, make, of_atom, substitute, terms_of
from superopt.kernels.loops.stage import Axis, Buffer, Stage


@dataclass(frozen=True, slots=True)
class Packed:
    """A packing stage, its buffer, and the operand as a load of it."""

    buffer: Buffer
    stage: Stage
    value: Expr


def guarded(guard: Truth, value: Expr) -> Expr:
    """The value where the guard holds, else 0; conditions that others imply are left out."""
    if isinstance(guard, Guard) and value.kind == "where" and _is_zero(value.args[2]):
        guard, value = all_of(guard, value.args[0]), value.args[1]
    if isinstance(guard, Guard):
        least: dict[Size, Poly] = {}
        for p in guard.ordered:
            known = least.get(p - p.constant)
            if known is None or p.constant < known.constant:
                least[p - p.constant] = p
        guard = Guard(least.values())
    return where(guard, lambda: value, lambda: const(False if value.dtype == "bool" else 0, value.dtype))


def _is_zero(e: Expr) -> bool:
    return e.kind == "const" and e.args[0] == 0


def panels(
    name: str,
    operand: Expr,
    guard: Truth,
    lane: Symbol,
    width: int,
    outer: Sequence[Symbol],
    depth: Sequence[Symbol],
    at: Mapping[Symbol, Size],
    panel: Size,
    inside: Size,
    group: int,
) -> Packed:
    """B in panels.

    Args:
        name: of the buffer.
        operand: a function of lane, outer and depth.
        guard: where it counts; elsewhere the copy is 0.
        lane: the axis that is cut into panels.
        width: lanes of a panel.
        outer: batch and other column axes that it depends on.
        depth: iterators of the sum, outermost first; the last one is inside the lane where group > 1.
        at: the outer axes in terms of the tile's axes.
        panel: the panel in terms of the tile's axes.
        inside: the lane within the panel in terms of the tile's axes.
        group: steps of the sum that an instruction takes.
    """
    count = lane.extent
    assert isinstance(count, int)
    piece, within = Symbol("p", 0, -(-count // width) - 1), Symbol("l", 0, width - 1)
    column = of_atom(piece) * width + of_atom(within) if piece.high else of_atom(within)
    outside, last = (depth[:-1], depth[-1:]) if group > 1 else (depth, ())
    own = {s: Symbol(f"p{s.name}", 0, s.high) for s in (*outer, *depth)}
    mapping: dict[Symbol, Size] = {s: of_atom(t) for s, t in own.items()} | {lane: column}
    value = guarded(guard, operand).substitute(mapping)
    value = guarded(column < count, value)
    axes = [*[own[s] for s in outer], *([piece] if piece.high else []), *[own[s] for s in outside], within]
    axes += [own[s] for s in last]
    index = [*[at[s] for s in outer], *([panel] if piece.high else []), *map(of_atom, outside), inside]
    index += map(of_atom, last)
    return _packed(name, axes, value, index, ())


def coordinates(
    name: str,
    operand: Expr,
    guard: Truth,
    at: Mapping[Symbol, Size],
    outer: Sequence[Axis] = (),
    order: Sequence[str] = (),
    pad: int = 0,
    padded: Set[Symbol] = frozenset(),
) -> Packed:
    """An operand on its coordinates.

    Args:
        name: of the buffer.
        operand: a function of axes and depth iterators.
        guard: where it counts; elsewhere the copy is 0.
        at: axes and depth iterators in terms of those of the tile.
        outer: axes of the task that the copy is made in; none: a phase of its own.
        order: coordinates outermost first, `"1"`, or in two parts `"1/16"` and `"1%16"`; as they occur when empty.
        pad: elements added to the innermost dimension of the buffer, against strides that are powers of two.
        padded: iterators whose range is longer in the tile; the copy is 0 there.

    Raises:
        InputError: the operand sees an axis in another way than linearly.
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
    return _packed(name, whole, value, index, outer, pad)


def parts_of(order: Sequence[str], names: Sequence[str]) -> list[tuple[str, str, int]]:
    """The items of an order as name, kind (whole, `/`, `%`) and factor.

    Raises:
        InputError: a name does not occur whole: once, or once with `/n` and once with `%n`.
    """
    found: list[tuple[str, str, int]] = []
    for item in order:
        kind = "/" if "/" in item else "%" if "%" in item else ""
        name, _, factor = item.replace("%", "/").partition("/")
        found.append((name, kind, int(factor) if factor.isdigit() and int(factor) else 1))
    for name in {*names, *[f[0] for f in found]}:
        kinds = sorted((kind, n) for other, kind, n in found if other == name)
        halves = len(kinds) == 2 and kinds[0][0] == "%" and kinds[1] == ("/", kinds[0][1])
        if name not in names or not (kinds == [("", 1)] or halves):
            raise InputError(f"the order {list(order)} does not have {name!r}, of {list(names)}, or has it not whole")
    return found


def _ordered(
    whole: list[Symbol], index: list[Size], value: Expr, order: Sequence[str]
) -> tuple[list[Symbol], list[Size], Expr]:
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


def _packed(
    name: str, axes: Sequence[Symbol], value: Expr, index: Sequence[Size], outer: Sequence[Axis], pad: int = 0
) -> Packed:
    shape = [int(bounds(of_atom(s))[1]) + 1 for s in axes]
    place: list[Size] = [of_atom(s) for s in axes]
    kept = [(s, i) for s, i in zip(axes, index, strict=True) if s.high != 0]
    single: dict[Symbol, Size] = {s: 0 for s in axes if s.high == 0}
    place = [substitute(x, single) for x in place]
    value = value.substitute(single)
    shape[-1] += pad
    buffer = Buffer(name, tuple(shape), value.dtype, "local" if outer else "scratch")
    loops = [Axis(s) for s, _ in kept]
    stage = Stage(name, (*outer, *loops), tuple(place), value)
    return Packed(buffer, stage, load(name, index, value.dtype))


# ---- linear forms


def linear_forms(operand: Expr) -> list[Size]:
    """The distinct linear forms, constants dropped, through which indices and guards see the free symbols."""
    free = operand.symbols
    found: dict[Size, None] = {}
    conditions: list[Size] = []
    for e in subexpressions(operand):
        if e.kind == "where":
            conditions += e.args[0].ordered
        else:
            for x in e.indices:
                form = _form(x, free)
                if form is not None:
                    found[form] = None
    for x in conditions:
        form = _form(x, free)
        if form is not None and -form not in found:
            found[form] = None
    return list(found)


def _form(x: Size, free: frozenset[Symbol]) -> Size | None:
    """The part of an index that depends on free symbols."""
    if isinstance(x, int) or x.symbols.isdisjoint(free):
        return None
    for mono, _ in x.terms:
        if any(not isinstance(a, Symbol) and not a.symbols.isdisjoint(free) for a in mono) or len(mono) > 1:
            raise InputError(f"the operand sees {x}, which is not linear")
    return make({m: c for m, c in x.terms if m and m[0] in free})


def _on_coordinates(root: Expr, mapping: Mapping[Size, Size]) -> Expr:
    """The operand with its linear forms replaced."""
    free = root.symbols

    def fixed(x: Size) -> Size:
        form = _form(x, free)
        if form is None:
            return x
        if form in mapping:
            return x - form + mapping[form]
        return x - form - mapping[-form]

    return reindexed(root, fixed)


def affine(x: Size) -> bool:
    """Is the index a sum of multiples of symbols?"""
    return isinstance(x, int) or all(len(m) <= 1 and all(isinstance(a, Symbol) for a in m) for m, _ in x.terms)
