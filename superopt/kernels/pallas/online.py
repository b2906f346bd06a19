"""Sums over exp(s - max s) in one pass: softmax denominators and attention (online softmax).

    sum_k exp(s[k] - max s) * w[k]      the score s and the weights w do not depend on the maximum

is kept relative to the maximum so far.  When the maximum grows, the partial sum is scaled by exp(old - new).  All sums
that share a score go in one pass, which also gives the maximum: the denominator of a softmax and the product of its
numerators with values.  Factors that do not depend on k are taken out of the sum first: of sum (e / sum e) v, 1 / sum
e. Where a causal mask makes scores -inf beyond the last row of a block, the pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.ir import index as indices
from superopt.ir.expr import Expr, op, subexpressions
from superopt.ir.index import Poly, Size, Symbol, bounds, of_atom
from superopt.ir.scalar import DTYPE, HALVES
from superopt.ir.types import FLOATS, SIGNED
from superopt.kernels.pallas import contraction, scalars
from superopt.kernels.pallas.chunks import chunks, loop
from superopt.kernels.pallas.frame import Block, Frame, arranged, extent, whole

if TYPE_CHECKING:
    from superopt.kernels.pallas.evaluate import Evaluator

_LOG2E = 1 / log(2)
_LOWEST = -1e30  # a score below this counts as masked


@dataclass(frozen=True, slots=True)
class Stream:
    """One sum over exp(score - peak).

    Attributes:
        total: the reduction.
        iterator: iterator of the sum.
        score: the score, over the iterator.
        peak: the maximum of the score, a reduction.
        weights: the other factors that depend on the iterator.
        above, below: factors and divisors that do not.
        half: the 16-bit dtype to which a product of the sum was rounded, if one was.
    """

    total: Expr
    iterator: Symbol
    score: Expr
    peak: Expr
    weights: tuple[Expr, ...]
    above: tuple[Expr, ...]
    below: tuple[Expr, ...]
    half: str | None


def find(e: Expr) -> Stream | None:
    """Return the reduction as a sum over exp(score - peak); None if it is not one."""
    monoid, iterators, body = e.args
    if monoid != "sum" or len(iterators) != 1 or e.dtype not in FLOATS:
        return None
    (iterator,) = iterators
    above: list[Expr] = []
    below: list[Expr] = []
    half = _factors(body, above, below)
    inside = [f for f in above if iterator in f.symbols]
    if any(iterator in f.symbols for f in below):
        return None
    for f in inside:
        sums = _exponential(f, iterator)
        if sums is None:
            continue
        score, peak = sums
        weights = tuple([x for x in inside if x is not f])
        if any(peak in subexpressions(w) for w in weights):
            return None
        outside = tuple([x for x in above if iterator not in x.symbols])
        return Stream(e, iterator, score, peak, weights, outside, tuple(below), half)
    return None


def _factors(e: Expr, above: list[Expr], below: list[Expr]) -> str | None:
    """Take a product apart into `above` and `below`; return the 16-bit dtype it was rounded to on the way, if any."""
    if e.kind == "op" and e.args[0] == "mul":
        a = _factors(e.args[2], above, below)
        return _factors(e.args[3], above, below) or a
    if e.kind == "op" and e.args[0] == "div" and e.dtype in FLOATS:
        b = _factors(e.args[3], below, above)
        return _factors(e.args[2], above, below) or b
    if e.kind == "convert" and e.dtype in FLOATS and e.args[0] in FLOATS and e.args[1].kind != "load":
        inner = _factors(e.args[1], above, below)
        return inner or (e.dtype if e.dtype in HALVES else None)
    above.append(e)
    return None


def _exponential(e: Expr, iterator: Symbol) -> tuple[Expr, Expr] | None:
    """Return the score and its maximum in exp(score - max over the iterator of score)."""
    if e.kind != "op" or e.args[0] != "exp" or e.args[2].kind != "op" or e.args[2].args[0] != "sub":
        return None
    score, peak = e.args[2].args[2:]
    while peak.kind == "op" and peak.args[0] == "max" and _minus_infinity(peak):
        peak = next(x for x in peak.args[2:] if x.kind != "const")
    if peak.kind != "reduce" or peak.args[0] != "max" or len(peak.args[1]) != 1 or iterator in peak.symbols:
        return None
    (other,) = peak.args[1]
    same = extent(other) == extent(iterator) and peak.args[2].substitute({other: of_atom(iterator)}) is score
    return (score, peak) if same else None


def _minus_infinity(e: Expr) -> bool:
    return any(x.kind == "const" and x.args[0] == -float("inf") for x in e.args[2:])


# ---- code


def usable(stream: Stream | None, frame: Frame) -> Stream | None:
    """Return the sum if its weights vary along the dimensions of the score only, or along others only; else None."""
    if stream is None:
        return None
    rows, columns = _sides(stream, frame)
    return stream if columns <= rows or not columns & rows else None


def contracts(stream: Stream, frame: Frame) -> bool:
    """Whether the weights vary along other dimensions of the block than the score."""
    rows, columns = _sides(stream, frame)
    return not columns <= rows


def _sides(stream: Stream, frame: Frame) -> tuple[set[Symbol], set[Symbol]]:
    weights = frozenset[Symbol]().union(*(w.symbols for w in stream.weights))
    return set(frame.spanned(stream.score.symbols)), set(frame.spanned(weights))


def emit(evaluator: Evaluator, frame: Frame, stream: Stream) -> Block:
    """Compute a sum in a frame; the maximum and the sums that it is divided by are memoized in the frame."""
    streams = [stream]
    for e in subexpressions_of((*stream.above, *stream.below)):
        other = usable(find(e), frame) if e.kind == "reduce" and frame.found(e) is None else None
        if other is not None and other.peak is stream.peak:
            streams.append(other)
    peak, totals = _one_pass(evaluator, frame, streams)
    frame.values[stream.peak] = peak
    for s, total in reversed(list(zip(streams, totals, strict=True))):
        value = total
        for f in s.above:
            value = value * evaluator.value(frame, f)
        for f in s.below:
            value = value / evaluator.value(frame, f)
        frame.values[s.total] = value
    return frame.values[stream.total]


def subexpressions_of(roots: Sequence[Expr]) -> list[Expr]:
    """Return every expression in any of these."""
    return list(dict.fromkeys(e for root in roots for e in subexpressions(root)))


def _one_pass(evaluator: Evaluator, frame: Frame, streams: Sequence[Stream]) -> tuple[Block, list[Block]]:
    """Return the maximum of the score and the sums, without their outer factors."""
    first = streams[0]
    it, score = first.iterator, first.score
    rows = tuple(frame.spanned(score.symbols))
    sizes = [frame.places[s].size for s in rows]
    size = contraction.chunk_size(evaluator, it)
    left = contraction.operand_frame(frame, rows, lead=False)
    evaluator.hoist(left, score, frozenset((it,)))
    contraction.prepare(evaluator, left, score, it)
    chunk, total_steps = chunks(it, size, 0)
    kind = scalars.held(score.dtype)
    sums = [_Sum(evaluator, frame, s, it, rows, size) for s in streams]

    def step(j: Block, carry: Any) -> Any:
        old, totals = carry
        place = chunk(j)
        inner = left.inside({it: place})
        s = whole(evaluator.value(inner, score), (*sizes, size))
        if place.valid is not None:
            s = jnp.where(place.valid, s, kind.type(-np.inf))
        new = jnp.maximum(old, jnp.max(s, axis=-1, keepdims=True))
        base = jnp.where(new == kind.type(-np.inf), kind.type(0), new)
        p = jnp.exp2((s - base) * kind.type(_LOG2E))
        scale = jnp.exp2((old - base) * kind.type(_LOG2E))
        return new, tuple([x.step(j, inner, p, scale, total) for x, total in zip(sums, totals, strict=True)])

    start = jnp.full((*sizes, 1), kind.type(-np.inf)), tuple([x.start() for x in sums])
    steps = _steps(evaluator, frame, score, it, size, total_steps)
    peak, totals = loop(steps, step, start)
    shown = arranged(jnp.reshape(peak, sizes), rows, frame)
    return shown, [x.finish(t) for x, t in zip(sums, totals, strict=True)]


class _Sum:
    """One of the sums of a pass: along rows, or a matrix product with weights over other dimensions."""

    def __init__(
        self, evaluator: Evaluator, frame: Frame, stream: Stream, it: Symbol, rows: tuple[Symbol, ...], size: int
    ) -> None:
        self.evaluator, self.frame, self.it, self.rows, self.size = evaluator, frame, it, rows, size
        self.sizes = [frame.places[s].size for s in rows]
        weight = None
        for w in stream.weights:
            w = w.substitute({stream.iterator: of_atom(it)})
            weight = w if weight is None else op("mul", w.dtype, weight, w)
        self.weight = weight
        self.columns = tuple(frame.spanned(weight.symbols)) if weight is not None else ()
        self.product = bool(self.columns) and not set(self.columns) <= set(rows)
        self.kind = scalars.held(stream.total.dtype)
        stored = contraction.stored(weight)[1] if weight is not None else ""
        self.operand = stored if stored == stream.half else str(self.kind)
        if weight is not None and self.product:
            self.right = contraction.operand_frame(frame, self.columns, lead=True)
            evaluator.hoist(self.right, weight, frozenset((it,)))

    def start(self) -> Block:
        columns = prod(self.frame.places[s].size for s in self.columns)
        return jnp.zeros((prod(self.sizes), columns) if self.product else (*self.sizes, 1), self.kind)

    def step(self, j: Block, inner: Frame, p: Block, scale: Block, total: Block) -> Block:
        if not self.product:
            if self.weight is not None:
                w = whole(self.evaluator.value(inner, self.weight), (*self.sizes, self.size))
                valid = inner.places[self.it].valid
                p = p * (w if valid is None else jnp.where(valid, w, self.kind.type(0)))
            return total * scale + jnp.sum(p, axis=-1, keepdims=True)
        assert self.weight is not None
        chunk, _ = chunks(self.it, self.size, len(self.columns))
        deeper = self.right.inside({self.it: chunk(j)})
        order = (self.it, *self.columns)
        w = contraction.operand(self.evaluator, deeper, self.weight, self.operand, order, self.it)
        a = jnp.reshape(p, (prod(self.sizes), self.size)).astype(w.dtype)
        part = contraction.dot(a, jnp.reshape(w, (self.size, -1)), self.evaluator.decisions.precision)
        return total * jnp.reshape(scale, (prod(self.sizes), 1)) + part.astype(self.kind)

    def finish(self, total: Block) -> Block:
        if self.product:
            return arranged(total, (*self.rows, *self.columns), self.frame)
        return arranged(jnp.reshape(total, self.sizes), self.rows, self.frame)


# ---- where a mask ends the pass


def _steps(evaluator: Evaluator, frame: Frame, score: Expr, it: Symbol, size: int, total: int) -> Block:
    """Return the number of chunks up to the last in which some row of the block has an unmasked score."""
    last: Block | None = None
    for p in _kept(score, it):
        beyond = p + of_atom(it)  # the iterator is at most this
        ends: dict[Symbol, Size] = {}
        for s in frame.spanned(beyond.symbols if isinstance(beyond, Poly) else frozenset()):
            growing = _slope(beyond, s)
            if growing is None:
                break
            ends[s] = frame.places[s].high if growing else frame.places[s].low
        else:
            end = evaluator.index(frame, indices.substitute(beyond, ends))
            last = end if last is None else jnp.minimum(last, end)
    if last is None:
        return total
    return jnp.clip(lax.div(jnp.asarray(last, np.int32), np.int32(size)) + 1, 1, total).astype(np.int32)


def _kept(score: Expr, it: Symbol) -> Iterator[Size]:
    """Yield bounds `p - it >= 0` outside of which the score is masked, and inside of which every row has a key."""
    for p, value in _conditions(score):
        rest = indices.substitute(p, {it: 0})
        exact = value == -np.inf or bounds(rest)[0] >= 0
        if exact and value <= _LOWEST and p + of_atom(it) == rest:
            yield p


def _conditions(e: Expr) -> Iterator[tuple[Size, float]]:
    """Yield polynomials that are >= 0 where an expression is not a constant, and the constant."""
    if e.kind == "where" and e.args[2].kind == "const":
        yield from ((p, e.args[2].args[0]) for p in e.args[0].ordered)
        yield from _conditions(e.args[1])
    if e.kind == "op" and e.args[0] == "select_n" and len(e.operands) == 3:
        which, no, yes = e.operands
        for masked, kept, holds in ((no, yes, True), (yes, no, False)):
            if masked.kind == "const":
                yield from ((p, masked.args[0]) for p in _implied(which, holds))
                yield from _conditions(kept)


def _implied(e: Expr, holds: bool) -> Iterator[Size]:
    """Yield polynomials that are >= 0 where a predicate holds (or does not)."""
    if e.kind == "where" and _decides(e.args[2], e.args[1], holds):
        yield from e.args[0].ordered
    if e.kind != "op":
        return
    if e.args[0] == "not":
        yield from _implied(e.operands[0], not holds)
    elif e.args[0] == ("and" if holds else "or"):
        for x in e.operands:
            yield from _implied(x, holds)
    elif e.args[0] == "select_n" and len(e.operands) == 3:
        which, no, yes = e.operands
        for first, second, taken in ((no, yes, True), (yes, no, False)):
            if _decides(first, second, holds):
                yield from _implied(which, taken)
    elif e.args[0] in _COMPARED:
        a, b = map(_affine, e.operands)
        if a is not None and b is not None:
            yield _COMPARED[e.args[0] if holds else _OPPOSITE[e.args[0]]](a, b)


def _decides(other: Expr, taken: Expr, value: bool) -> bool:
    """Whether, of two branches, only `taken` can have this value."""
    return other.kind == "const" and bool(other.args[0]) != value and taken.dtype == "bool"


_COMPARED: dict[str, Callable[[Size, Size], Size]] = {
    "ge": lambda a, b: a - b, "gt": lambda a, b: a - b - 1, "le": lambda a, b: b - a, "lt": lambda a, b: b - a - 1,
}  # fmt: skip
_OPPOSITE = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}


def _affine(e: Expr) -> Size | None:
    """Return an integer expression as an index, where it cannot wrap; else None."""
    if e.dtype not in SIGNED:
        return None
    position: Size | None = None
    if e.kind == "const":
        position = int(e.args[0])
    elif e.kind == "index":
        position = e.args[0]
    elif e.kind == "convert":
        position = _affine(e.args[1])
    elif e.kind == "op" and e.args[0] in ("add", "sub"):
        a, b = map(_affine, e.operands)
        if a is not None and b is not None:
            position = a + b if e.args[0] == "add" else a - b
    if position is None:
        return None
    low, high = bounds(position)
    info = np.iinfo(DTYPE[e.dtype])
    return position if info.min <= low and high <= info.max else None


def _slope(x: Size, s: Symbol) -> bool | None:
    """Return whether a polynomial grows with a symbol; None where it is not linear in it."""
    coefficients = [c for m, c in x.terms if m == (of_atom(s).terms[0][0][0],)] if isinstance(x, Poly) else []
    alone = indices.substitute(x, {s: 0})
    linear = len(coefficients) == 1 and not (isinstance(alone, Poly) and s in alone.symbols)
    if not linear or x != alone + of_atom(s) * coefficients[0]:
        return None
    return coefficients[0] > 0
