"""Sums of products over different dimensions of a block, as `dot` on tensor cores.

The body of the sum is taken apart into factors.  Factors that share a dimension belong to one operand.  Where they fall
into two groups, the sum is a matrix product of the two over chunks of one of its iterators.  The factors are arbitrary:
loads through any index (a convolution needs no im2col), guards, dequantisation, a softmax.  Each operand is evaluated
in a frame of its own, with the chunk beside its dimensions.  A factor converted from 16 bits (8-bit integers) is used
as it is stored: products in float32 (int32) of these are exact.  For float32 operands the precision is a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import numpy as jnp

from superopt.ir.expr import Expr, const, op, subexpressions, where
from superopt.ir.index import Guard, Size, Symbol, Truth, all_of, of_atom
from superopt.ir.scalar import DTYPE, HALVES
from superopt.kernels.pallas import scalars
from superopt.kernels.pallas.chunks import chunks, loop, split_counter
from superopt.kernels.pallas.frame import Block, BlockRank, Frame, PallasPlace, arranged, extent, power, spread, whole

if TYPE_CHECKING:
    from superopt.kernels.pallas.evaluate import Evaluator

LEAST = 16  # least extent of a dimension of `dot`


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """A sum of products.

    Attributes:
        left, right: operands, guards included.
        rows, columns: iterators of the block that each depends on, outermost dimension first.
        iterators: iterators of the sum, the one that goes in chunks last.
        dtype: dtype of the sum.
    """

    left: Expr
    right: Expr
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    iterators: tuple[Symbol, ...]
    dtype: str


def find(e: Expr, places: Mapping[Symbol, PallasPlace]) -> BlockProduct | None:
    """Return the reduction as a product of two operands over different dimensions of a block; None if it is not one."""
    monoid, iterators, body = e.args
    if monoid != "sum":
        return None
    frame = Frame(BlockRank(0), dict(places))
    factors, guards = taken_apart(body)
    sides = _grouped(frame, factors)
    if sides is None:
        return None
    operands: list[tuple[Expr, tuple[Symbol, ...]]] = []
    for side in sides:
        symbols = frozenset[Symbol]().union(*(f.symbols for f in side))
        mine = [g for g in guards if {s for s in g.symbols if s in places and places[s].dim is not None} <= symbols]
        guards = [g for g in guards if g not in mine]
        operands.append((_guarded(side, all_of(*mine)), tuple(frame.spanned(symbols))))
    (left, rows), (right, columns) = operands
    if guards or not all(set(iterators) & x.symbols for x in (left, right)) or operand_dtype(left, right) is None:
        return None
    shared = [s for s in iterators if s in left.symbols and s in right.symbols] or list(iterators)
    last = max(shared, key=lambda s: (extent(s), iterators.index(s)))
    order = (*[s for s in iterators if s != last], last)
    return BlockProduct(left, right, rows, columns, order, e.dtype)


def taken_apart(body: Expr) -> tuple[list[Expr], list[Guard]]:
    """Return the factors of a product, and the conditions outside which it is 0."""
    factors: list[Expr] = []
    guards: list[Guard] = []
    stack = [body]
    while stack:
        e = stack.pop()
        if e.kind == "op" and e.args[0] == "mul":
            stack += reversed(e.args[2:])
        elif e.kind == "where" and e.args[2].kind == "const" and e.args[2].args[0] == 0:
            guards += [Guard((p,)) for p in e.args[0].ordered]
            stack.append(e.args[1])
        else:
            factors.append(e)
    return factors, guards


def _grouped(frame: Frame, factors: list[Expr]) -> tuple[list[Expr], list[Expr]] | None:
    """Return the factors in two groups that share no dimension; the group of the outermost dimension first."""
    groups: list[tuple[set[Symbol], list[Expr]]] = []
    loose: list[Expr] = []
    for f in factors:
        dims, members = set(frame.spanned(f.symbols)), [f]
        if not dims:
            loose.append(f)
            continue
        apart: list[tuple[set[Symbol], list[Expr]]] = []
        for other, theirs in groups:
            if other & dims:
                dims, members = dims | other, theirs + members
            else:
                apart.append((other, theirs))
        groups = [*apart, (dims, members)]
    if len(groups) < 2:
        return None
    groups.sort(key=lambda g: -max(frame.places[s].dim or 0 for s in g[0]))
    rest = [f for _, members in groups[1:] for f in members]
    return [*groups[0][1], *loose], rest


def _guarded(factors: list[Expr], guard: Truth) -> Expr:
    value = factors[0]
    for f in factors[1:]:
        value = op("mul", value.dtype, value, f)
    return where(guard, lambda: value, lambda: const(0, value.dtype))


def stored(e: Expr) -> tuple[Expr, str]:
    """Return an operand without an exact conversion to a wider type, and its dtype."""
    if e.kind == "where" and e.args[2].kind == "const":
        inner, dtype = stored(e.args[1])
        return where(e.args[0], lambda: inner, lambda: const(0, dtype)), dtype
    if e.kind == "convert" and (e.args[0], e.dtype) in _EXACT:
        return e.args[1], e.args[0]
    return e, e.dtype


_EXACT = {*((h, w) for h in HALVES for w in ("float32", "float64")), ("int8", "int32")}


def operand_dtype(left: Expr, right: Expr) -> str | None:
    """Return the dtype in which two operands are multiplied; None where `dot` does not support it."""
    (_, a), (_, b) = stored(left), stored(right)
    kind = a if a == b else left.dtype
    return kind if kind in (*HALVES, "float32", "float64", "int8") else None


def least(root: Expr, across: Sequence[Symbol], others: Sequence[Symbol]) -> dict[Symbol, int]:
    """Return the least block extents of iterators for which `dot` accepts both sides of an expression's products.

    Args:
        root: an expression over the iterators `across` and `others`.
        across: iterators that vary within a block.
        others: iterators that do not.
    """
    places = {s: PallasPlace(0, 0, 0, j, 2) for j, s in enumerate(reversed(across))}
    places |= {s: PallasPlace(0, 0, 0) for s in others}
    needed: dict[Symbol, int] = {}
    for e in subexpressions(root):
        free = sorted((s for s in e.symbols if s not in places), key=lambda s: s.name)
        bound = {s: PallasPlace(0, 0, 0, len(across) + j, 2) for j, s in enumerate(free)}
        product = find(e, {**places, **bound}) if e.kind == "reduce" else None
        for side in (product.rows, product.columns) if product is not None else ():
            own = [s for s in side if s in across]
            if own:
                room = prod(power(extent(s)) for s in own[:-1])
                needed[own[-1]] = max(needed.get(own[-1], 1), -(-LEAST // room))
    return needed


def emit(evaluator: Evaluator, frame: Frame, product: BlockProduct) -> Block:
    """Compute a product in a frame."""
    left, right = (_Operand(evaluator, frame, product, lead) for lead in (False, True))
    precision = evaluator.decisions.precision

    def step(j: Block, total: Block) -> Block:
        places, inner = split_counter(j, list(product.iterators[:-1]), left.steps)
        a, b = left.at(places, inner), right.at(places, inner)
        return total + dot(a.reshape(-1, left.size), b.reshape(left.size, -1), precision)

    rows, columns = (prod(frame.places[s].size for s in side) for side in (product.rows, product.columns))
    start = jnp.zeros((rows, columns), _accumulator(left.kind))
    total = loop(left.steps * prod(map(extent, product.iterators[:-1])), step, start)
    return arranged(total.astype(scalars.held(product.dtype)), [*product.rows, *product.columns], frame)


def prepare(evaluator: Evaluator, frame: Frame, root: Expr, it: Symbol) -> None:
    """Compute, ahead of a loop over the last dimension's iterator, the operands that the loop uses whole and unchanged.

    Compilers move loads out of a loop, but not the copy of the loaded value that a matrix instruction reads.
    """
    inside = frame.inside({it: PallasPlace(0, 0, 0, 0, 2)})
    for e in subexpressions(root):
        product = find(e, inside.places) if e.kind == "reduce" and it in e.symbols else None
        if product is None or len(product.iterators) > 1:
            continue
        for lead, x in ((False, product.left), (True, product.right)):
            if it not in x.symbols and x.symbols <= frame.places.keys() | set(product.iterators):
                side = _Operand(evaluator, frame, product, lead)
                if side.steps == 1:
                    frame.values[side.key] = side.at({}, 0)


class _Operand:
    """One side of a product: rows by chunk, or chunk by columns (`lead`)."""

    def __init__(self, evaluator: Evaluator, frame: Frame, product: BlockProduct, lead: bool) -> None:
        self.evaluator, self.last = evaluator, product.iterators[-1]
        self.e, symbols = (product.right, product.columns) if lead else (product.left, product.rows)
        self.order = (self.last, *symbols) if lead else (*symbols, self.last)
        kind = operand_dtype(product.left, product.right)
        assert kind is not None
        self.kind = kind
        self.key = ("operand", self.e, self.order, kind)
        self.size = chunk_size(evaluator, self.last)
        self.chunk, self.steps = chunks(self.last, self.size, len(symbols) if lead else 0)
        self.known = frame.found(self.key)
        self.frame = operand_frame(frame, symbols, lead)
        if self.known is None:
            evaluator.hoist(self.frame, self.e, frozenset(product.iterators))

    def at(self, places: dict[Symbol, PallasPlace], inner: Block) -> Block:
        """Return the block of one step."""
        if self.known is not None:
            return self.known
        frame = self.frame.inside(places | {self.last: self.chunk(inner)})
        return operand(self.evaluator, frame, self.e, self.kind, self.order, self.last)


def chunk_size(evaluator: Evaluator, symbol: Symbol) -> int:
    """Return the iterations of a product's sum in one step."""
    return min(max(LEAST, evaluator.decisions.depth), max(LEAST, power(extent(symbol))))


def operand_frame(frame: Frame, symbols: tuple[Symbol, ...], lead: bool) -> Frame:
    """Return a frame for an operand: these iterators, with a dimension for the chunk before (`lead`) or after them."""
    count = len(symbols)
    places = {s: p for s, p in frame.places.items() if p.dim is None}
    for j, s in enumerate(symbols):
        dim = count - 1 - j + (not lead)
        old = frame.places[s]
        places[s] = moved(old, s, dim)
    return Frame(BlockRank(count + 1), places)


def moved(place: PallasPlace, symbol: Symbol, dim: int) -> PallasPlace:
    """Return a place moved to another dimension."""
    if place.full:
        return spread(symbol, dim, place.size)
    value = jnp.reshape(place.value, (place.size,) + (1,) * dim)
    valid = None if place.valid is None else jnp.reshape(place.valid, (place.size,) + (1,) * dim)
    return PallasPlace(value, place.low, place.high, dim, place.size, False, valid)


def operand(evaluator: Evaluator, frame: Frame, e: Expr, kind: str, order: tuple[Symbol, ...], last: Symbol) -> Block:
    """Evaluate an operand over its iterators in a chunk; 0 beyond the last iteration."""
    inner, dtype = stored(e)
    if dtype != kind:
        inner = e
    inner = _unguarded(evaluator, inner)
    raw = DTYPE[kind] if kind in (*HALVES, "int8") else scalars.held(kind)
    value = evaluator.load(frame, inner) if inner.kind == "load" else evaluator.value(frame, inner)
    value = jnp.asarray(value).astype(raw)
    shape = tuple([frame.places[s].size for s in order])
    value = whole(value, shape)
    valid = frame.places[last].valid
    if valid is not None and not _masked(evaluator, inner, last):
        value = jnp.where(valid, value, raw.type(0))
    return value


def _masked(evaluator: Evaluator, e: Expr, last: Symbol) -> bool:
    """Whether a load itself gives 0 beyond the last iteration."""
    if e.kind != "load":
        return False
    shape = evaluator.buffers[e.args[0]].shape
    return any(x == of_atom(last) and n == extent(last) for x, n in zip(e.args[1], shape, strict=True))


def _unguarded(evaluator: Evaluator, e: Expr) -> Expr:
    """Drop a guard around a load that only restates that the index is inside the buffer, where loads give 0."""
    if e.kind != "where" or e.args[1].kind != "load" or e.args[2].kind != "const" or e.args[2].args[0] != 0:
        return e
    name, index = e.args[1].args
    inside: set[Size] = set()
    for x, n in zip(index, evaluator.buffers[name].shape, strict=True):
        inside |= {x, n - 1 - x}
    return e.args[1] if set(e.args[0].terms) <= inside else e


def _accumulator(kind: str) -> type:
    return np.int32 if kind == "int8" else np.float64 if kind == "float64" else np.float32


def dot(a: Block, b: Block, precision: str) -> Block:
    """Compute a matrix product, accumulated in float32 (float64, int32)."""
    algorithm = None
    if a.dtype == np.float32:
        algorithm = _PRECISIONS[precision]
    elif a.dtype == np.float64:
        algorithm = jax.lax.Precision.HIGHEST
    accumulator = _accumulator(str(a.dtype))
    if min(*a.shape, *b.shape) < LEAST:
        return jnp.sum(a[:, :, None].astype(accumulator) * b[None].astype(accumulator), axis=1, dtype=accumulator)
    return jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=algorithm, preferred_element_type=accumulator)


_PRECISIONS = {
    "ieee": jax.lax.Precision.HIGHEST,
    "tf32": jax.lax.DotAlgorithmPreset.TF32_TF32_F32,
    "tf32x3": jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
}
