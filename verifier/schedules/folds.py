"""Folds in normal form: sums of `[guards] body` over iterators, and guesses at how two of them correspond.

A fold over a fold is one fold; a choice whose other branch is neutral is a guard; a factor that is 0 unless a guard
holds makes it a guard of the product.  What is guessed here (from the indices at which two bodies read the same
buffers, or from extents) is proved by who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from superopt.ir.algebra import COMBINE
from superopt.ir.expr import Expr, convert, op, reduce, subexpressions
from superopt.ir.index import Poly, Size, Symbol, of_atom, substitute
from superopt.ir.ops.record import accumulator, identity
from superopt.ir.scalar import COMMUTATIVE
from verifier.schedules.intervals import box_of

_WRITTEN_OUT = 64  # iterations of a fold that are compared one by one with the operands of a sum
Equations = list[tuple[Size, Size]]


@dataclass(frozen=True, slots=True)
class Part:
    """`body` folded over iterators where all guards hold; `strict`: guards came out of a product by 0 * x = 0."""

    iterators: tuple[Symbol, ...]
    guards: tuple[Poly, ...]
    body: Expr
    strict: bool = False


def is_zero(e: Expr) -> bool:
    """Is an expression the constant 0?"""
    return e.kind == "const" and e.args[0] == 0


def row_major(left: Sequence[Symbol], right: Sequence[Symbol]) -> dict[Symbol, Size] | None:
    """Each iterator as a number whose digits are the next iterators of the other side, as a split makes it."""
    found: dict[Symbol, Size] = {}
    rest = list(right)
    for s in left:
        total: Size = 0
        reach = 1
        while rest and (reach < extent(s) or not found):
            digit = rest.pop(0)
            total = total * extent(digit) + of_atom(digit)
            reach *= extent(digit)
            if reach >= extent(s):
                break
        if reach < extent(s):
            return None
        found[s] = total
    return None if rest else found


# ---- normal form of folds


def parts(e: Expr, monoid: str, split: bool) -> list[Part]:
    """An expression as a fold of guarded bodies.

    Args:
        e: the expression.
        monoid: of the fold.
        split: take the operands of the monoid's own function apart.
    """
    neutral = identity(monoid, e.dtype)
    if e.kind == "reduce" and e.args[0] == monoid:
        own = frozenset[Symbol](e.args[1])
        found = [apart(p, own) for p in parts(e.args[2], monoid, split)]
        return [replace(p, iterators=(*e.args[1], *p.iterators)) for p in found]
    if e.kind == "where":
        guard, then, orelse = e.args
        if _is_const(orelse, neutral):
            return [_under(p, guard.ordered) for p in parts(then, monoid, split)]
        if len(guard.terms) == 1:
            (g,) = guard.terms
            negated = -1 - g
            assert isinstance(negated, Poly)
            kept = [] if _is_const(then, neutral) else [(g, p) for p in parts(then, monoid, split)]
            kept += [(negated, p) for p in parts(orelse, monoid, split)]
            return [_under(p, [g]) for g, p in kept]
    if split and e.kind == "op" and e.args[0] == COMBINE[monoid] and e.args[1] == e.dtype:
        return [p for x in e.operands for p in parts(x, monoid, split)]
    if monoid == "sum":
        guards, core = _stripped(e)
        if core is not e:
            return [replace(_under(p, guards), strict=True) for p in parts(core, monoid, split)]
    return [Part((), (), e)]


def widened(e: Expr) -> Expr:
    """A sum or product of 16-bit floats as what it denotes: formed in float32, and rounded once."""
    if e.kind != "reduce" or e.args[0] not in ("sum", "prod") or accumulator(e.dtype) == e.dtype:
        return e
    wide = accumulator(e.dtype)
    return convert(reduce(e.args[0], e.args[1], convert(e.args[2], e.dtype, wide)), wide, e.dtype)


def _under(p: Part, guards: Sequence[Poly]) -> Part:
    p = apart(p, frozenset[Symbol]().union(*(g.symbols for g in guards)))
    return replace(p, guards=(*guards, *p.guards))


def apart(p: Part, taken: frozenset[Symbol]) -> Part:
    """The same fold with iterators under other names than those taken."""
    new = unlike(p.iterators, taken)
    if not new:
        return p
    mapping: dict[Symbol, Size] = {s: of_atom(t) for s, t in new.items()}
    guards = tuple([g for g in (substitute(g, mapping) for g in p.guards) if isinstance(g, Poly)])
    return replace(
        p, iterators=tuple([new.get(s, s) for s in p.iterators]), guards=guards, body=p.body.substitute(mapping)
    )


def unlike(symbols: Sequence[Symbol], taken: frozenset[Symbol]) -> dict[Symbol, Symbol]:
    """New names for the iterators whose names are taken."""
    names = {s.name for s in (*taken, *symbols)}
    used = {t.name for t in taken}
    found: dict[Symbol, Symbol] = {}
    for s in symbols:
        if s.name in used:
            name = s.name
            while name in names:
                name += "'"
            names.add(name)
            found[s] = Symbol(name, s.low, s.high)
    return found


def _stripped(e: Expr) -> tuple[tuple[Poly, ...], Expr]:
    """Guards under which factors of a product are not 0, and the product without them."""
    if e.kind == "where" and is_zero(e.args[2]):
        guards, core = _stripped(e.args[1])
        return (*e.args[0].ordered, *guards), core
    if e.kind == "op" and e.args[0] == "mul":
        found = [_stripped(x) for x in e.operands]
        if any(core is not x for (_, core), x in zip(found, e.operands, strict=True)):
            return tuple(g for gs, _ in found for g in gs), op("mul", e.args[1], *(core for _, core in found))
    if e.kind == "convert":
        guards, core = _stripped(e.args[1])
        if core is not e.args[1]:
            return guards, convert(core, e.args[0], e.dtype)
    return (), e


def _is_const(e: Expr, value: float) -> bool:
    return e.kind == "const" and e.args[0] == value


def written_out(found: list[Part], count: int) -> list[Part]:
    """Short folds as their terms, when that may give the number that the other side has."""
    if len(found) >= count or any(p.guards for p in found):
        return found
    if sum(prod(extent(s) for s in p.iterators) for p in found) > _WRITTEN_OUT:
        return found
    out: list[Part] = []
    for p in found:
        for point in product(*(range(extent(s)) for s in p.iterators)):
            out.append(Part((), (), p.body.substitute(dict(zip(p.iterators, point, strict=True)))))
    return out


def extent(s: Symbol) -> int:
    """Number of values of an iterator."""
    low, high = box_of(s)
    return high - low + 1


# ---- what two bodies read


def unified(l: Expr, r: Expr) -> Iterator[Equations]:
    """Equations between indices under which two bodies may be the same: a guess, which is checked by who asks."""
    for swap in (False, True):
        found: Equations = []
        if _unify(l, r, found, swap, set()):
            yield found
    yield []


def _unify(l: Expr, r: Expr, found: Equations, swap: bool, seen: set[tuple[Expr, Expr]]) -> bool:
    if (l, r) in seen:
        return True
    seen.add((l, r))
    if l.kind == "where" and r.kind != "where":
        return _unify(l.args[1], r, found, swap, seen)
    if r.kind == "where" and l.kind != "where":
        return _unify(l, r.args[1], found, swap, seen)
    if l.kind != r.kind or l.dtype != r.dtype:
        return False
    match l.kind:
        case "load":
            if l.args[0] != r.args[0]:
                return False
            found += zip(l.args[1], r.args[1], strict=True)
            return True
        case "index":
            found.append((l.args[0], r.args[0]))
            return True
        case "op":
            a, b = list(l.operands), list(r.operands)
            if l.args[0] != r.args[0] or len(a) != len(b):
                return False
            if l.args[0] in COMMUTATIVE and len(a) == 2 and _swapped(a, b, swap):
                b.reverse()
            return all(_unify(x, y, found, swap, seen) for x, y in zip(a, b, strict=True))
        case "reduce":
            return l.args[0] == r.args[0] and _unify(l.args[2], r.args[2], found, swap, seen)
        case "const":
            return l is r
        case _:
            return all(_unify(x, y, found, swap, seen) for x, y in zip(l.operands, r.operands, strict=True))


def _swapped(a: list[Expr], b: list[Expr], swap: bool) -> bool:
    """Do two operands read the same buffers only when they change places?"""
    left, right = [_buffers(x) for x in a], [_buffers(x) for x in b]
    if left == right:
        return swap and left[0] == left[1]
    return left == right[::-1]


def _buffers(e: Expr) -> frozenset[str]:
    return frozenset(x.args[0] for x in subexpressions(e) if x.kind == "load")
