"""Row cache: a value that one phase of a row computes is kept where a later phase needs it again.

    max_{r} x[o,r]; sum_{r} exp(x[o,r] - max); out[o,j] = exp(x[o,j] - max) / sum
    ->  the sum stores exp(x[o,r] - max) in row[r], the last phase reads row[j].

The same expression up to the name of its iterator is the same object after substitution (expressions are hash-consed),
so finding it is one identity test.  The row is on the stack, or is the row of the output that is written last.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.ir.expr import Expr, load, rewrite, subexpressions, values_of
from superopt.ir.index import Size, Symbol, coefficient, of_atom, substitute
from superopt.ir.scalar import SCALARS
from superopt.kernels.emit.registers import stored
from superopt.kernels.emit.values import Emitter
from superopt.kernels.loops.stage import Buffer, extent

LARGEST = 1 << 18  # bytes of one row on the stack


@dataclass(frozen=True, slots=True)
class CachedRow:
    """The row that the last phase writes: its iterator, the buffer and its linear index."""

    lane: Symbol
    buffer: str
    index: Size


def kept(em: Emitter, e: Expr, row: CachedRow) -> tuple[Emitter, Expr, list[Expr], bool]:
    """Return the value with cached subexpressions read from buffers.

    Returns:
        The place with these buffers; the value; the reductions that fill the buffers, in the order in which they must
        be written; whether the row of the output is one of the buffers.
    """
    mode = em.scope.knobs.cache
    producers: list[Expr] = []
    in_output = False
    if mode == "none":
        return em, e, producers, in_output
    em, slot = _slots(em)
    while True:
        first = _first(em, e, row, producers)
        if first is None:
            return em, e, producers, in_output
        reduction, value, places = first
        (it,) = reduction.args[1]
        producers.append(reduction)
        direct = mode == "output" and not in_output and _fits(em, row, it, value)
        in_output = in_output or direct
        name, index = row.buffer, row.index
        if not direct:
            em, name = _room(em, value, it)
            index = of_atom(row.lane) + slot * extent(it)
        em = em.within(em.scope.keeping(reduction, (value, name, substitute(index, {row.lane: of_atom(it)}))))
        targets = {
            value.substitute({it: of_atom(l)}): load(name, [substitute(index, {row.lane: of_atom(l)})], value.dtype)
            for l in places
        }
        e = rewrite(e, targets.get, before=lambda x: x if x in producers else None)


def _slots(em: Emitter) -> tuple[Emitter, Size]:
    """Return the number of the point as an index, and the place where it is known: each point has a row of its own."""
    if em.scope.points == 1:
        return em, 0
    slot = Symbol("slot", 0, em.scope.points - 1)
    return em.numbered(slot), of_atom(slot)


def _phases(em: Emitter, e: Expr) -> list[Expr]:
    """Return the reductions over one iterator that are written before the row's last phase, inner ones first."""
    return [
        r for r in em.scope.reductions(e)
        if len(r.args[1]) == 1 and all(s in em.bindings for s in r.symbols) and em.found(r) is None
        and em.scope.lane not in r.symbols
    ]  # fmt: skip


def _first(em: Emitter, e: Expr, row: CachedRow, producers: list[Expr]) -> tuple[Expr, Expr, list[Symbol]] | None:
    """Return the first reduction that computes a value needed again, the value, and the iterators over which it is."""
    shared = (_shared(em, e, r, row, producers) for r in _phases(em, e) if r not in producers)
    return next((hit for hit in shared if hit), None)


def _shared(
    em: Emitter, e: Expr, reduction: Expr, row: CachedRow, producers: list[Expr]
) -> tuple[Expr, Expr, list[Symbol]] | None:
    """Return the largest value of a reduction's body that occurs elsewhere, and the iterators over which it does."""
    (it,) = reduction.args[1]
    body = reduction.args[2]
    outside = _outside(e, {reduction, *producers})
    lanes = {row.lane} | {r.args[1][0] for r in _phases(em, e) if r is not reduction}
    alike = [l for l in lanes if l.high == it.high]
    if not alike or extent(it) * 8 * em.scope.points > LARGEST:
        return None
    for value in reversed(_always(body)):
        if it not in value.symbols or row.lane in value.symbols or not _worth(em, value) or not em.scope.inside(value):
            continue
        places = [l for l in alike if value.substitute({it: of_atom(l)}) in outside]
        if places:
            return reduction, value, places
    return None


def _always(body: Expr) -> list[Expr]:
    """Return the values that every step of the reduction computes, inner ones first."""
    return [e for e in subexpressions_without_choices(body) if e.kind in ("op", "convert")]


def subexpressions_without_choices(root: Expr) -> list[Expr]:
    """Return the expressions reached from the root without passing a choice, a reduction or an index."""
    expressions: dict[Expr, None] = {}
    stack = [(root, False)]
    while stack:
        e, done = stack.pop()
        if done:
            expressions[e] = None
        elif e not in expressions:
            stack.append((e, True))
            if e.kind in ("op", "convert"):
                stack += [(x, False) for x in e.operands]
    return list(expressions)


def _outside(e: Expr, without: set[Expr]) -> set[Expr]:
    """Return the subexpressions reached without entering these reductions."""
    outside: set[Expr] = set()
    stack = [e]
    while stack:
        x = stack.pop()
        if x in outside or x in without:
            continue
        outside.add(x)
        stack += x.operands
        stack += [v for index in x.indices for v in values_of(index)]
    return outside


def _worth(em: Emitter, value: Expr) -> bool:
    """Whether computing the value costs more than a store and a load."""
    parts = subexpressions(value)
    if em.scope.knobs.keep == "all":
        return value.kind == "op"
    return any(x.kind == "op" and (SCALARS[x.args[0]].transcendental or x.args[0] == "div") for x in parts)


def _fits(em: Emitter, row: CachedRow, it: Symbol, value: Expr) -> bool:
    buffer = em.scope.buffers[row.buffer]
    return (
        buffer.dtype == value.dtype and it.high == row.lane.high and coefficient(row.index, row.lane) == 1
        and not em.scope.guards
    )  # fmt: skip


def _room(em: Emitter, value: Expr, it: Symbol) -> tuple[Emitter, str]:
    name, count = f"row{len(em.pointers)}", extent(it) * em.scope.points
    address = em.f.alloca(count, 64, stored(value.dtype))
    return em.holding(Buffer(name, (count,), value.dtype, "local"), address), name
