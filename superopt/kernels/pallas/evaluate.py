"""Evaluates loop expressions over a block.

Expressions are hash-consed, so each is evaluated once per frame.  A reduction takes the first way that fits:

- a sum of products over different dimensions is a `dot` (`contraction`).
- a sum over exp(s - max s) is one pass (`online`).
- its iterator becomes a block iterator over the same range, so a row that is reduced and then mapped is loaded once.

Otherwise the iterator becomes a new dimension, or a loop over chunks of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jax import numpy as jnp
from jax.experimental.pallas import triton as plt

from superopt.ir.expr import Expr, values_of
from superopt.ir.index import Poly, Size, Symbol, of_atom, row_major
from superopt.ir.scalar import HALVES
from superopt.kernels.loops.stage import Buffer
from superopt.kernels.pallas import contraction, online, scalars
from superopt.kernels.pallas.chunks import chunks, loop, split_counter
from superopt.kernels.pallas.frame import Block, Frame, PallasPlace, extent, power, whole

LIMIT = 1 << 14  # elements of a block of one reduction


@dataclass(frozen=True, slots=True)
class Decisions:
    """Parameters of a stage's evaluation, beside its axes.

    Attributes:
        depth: iterations of a contraction or of an online sum in one step.
        precision: precision of products of float32: `ieee`, `tf32x3` or `tf32`.
        online: whether sums over exp(s - max s) are taken in one pass.
        limit: elements of a block of one reduction; a longer one goes in chunks.
        warps, stages: Triton's number of warps and of pipeline stages.
    """

    depth: int = 32
    precision: str = "ieee"
    online: bool = True
    limit: int = LIMIT
    warps: int = 4
    stages: int = 2


class Evaluator:
    """Evaluates expressions over a block, with loads from references to flattened buffers."""

    def __init__(self, refs: Mapping[str, Any], buffers: Mapping[str, Buffer], decisions: Decisions) -> None:
        self.refs, self.buffers, self.decisions = refs, buffers, decisions

    # ---- expressions

    def value(self, frame: Frame, root: Expr) -> Block:
        """Return the value of an expression in a frame, computed once."""
        stack = [root]
        while stack:
            e = stack[-1]
            if frame.found(e) is not None:
                stack.pop()
                continue
            if e.kind in ("op", "convert", "where"):
                waiting = [x for x in e.operands if frame.found(x) is None]
                if waiting:
                    stack += waiting
                    continue
            frame.values[e] = self._compute(frame, e)
        return frame.found(root)

    def _compute(self, frame: Frame, e: Expr) -> Block:
        args = e.args
        match e.kind:
            case "const":
                return scalars.constant(args[0], e.dtype)
            case "load":
                block = self.load(frame, e)
                return block.astype(np.float32) if e.dtype in HALVES else block
            case "op":
                return scalars.apply(args[0], args[1], tuple([frame.found(x) for x in args[2:]]))
            case "convert":
                return scalars.convert(frame.found(args[1]), args[0], e.dtype)
            case "index":
                return jnp.asarray(self.index(frame, args[0])).astype(scalars.held(e.dtype))
            case "where":
                holds = frame.condition(args[0], lambda x: self.value(frame, x))
                return frame.found(args[1]) if holds is None else jnp.where(holds, *map(frame.found, args[1:]))
            case _:
                return self.reduction(frame, e)

    def index(self, frame: Frame, x: Any) -> Block:
        """Return the value of an index."""
        return frame.index(x, lambda e: self.value(frame, e))

    def load(self, frame: Frame, e: Expr) -> Block:
        """Load elements of a buffer in their stored dtype; 0 where the index is outside it."""
        key = ("raw", e)
        value = frame.found(key)
        if value is None:
            value = frame.values[key] = self._load(frame, e)
        return value

    def _load(self, frame: Frame, e: Expr) -> Block:
        name, index = e.args
        shape = self.buffers[name].shape
        kind = np.dtype(self.refs[name].dtype)
        if 0 in shape:
            return kind.type(0)
        offset, mask = self.offset(frame, shape, index)
        at = self.refs[name].at[offset]
        if mask is None:
            return plt.load(at)
        return plt.load(at, mask=whole(jnp.asarray(mask), np.shape(offset)), other=kind.type(0))

    def offset(self, frame: Frame, shape: Sequence[int], index: Sequence[Size]) -> tuple[Block, Block | None]:
        """Return row-major positions in a buffer of this shape, and the mask of valid indices (None: everywhere)."""
        mask = frame.inbounds(index, lambda x: self.index(frame, x), shape)
        position = row_major(index, shape)  # of merged axes, quotient and remainder join again
        varying = frozenset[Symbol]().union(*(x.symbols for x in index if isinstance(x, Poly)))
        return whole(jnp.asarray(self.index(frame, position), np.int32), frame.shape(varying)), mask

    # ---- reductions

    def reduction(self, frame: Frame, e: Expr) -> Block:
        """Return the value of a reduction."""
        monoid, iterators, body = e.args
        if monoid == "sum":
            stream = online.usable(online.find(e), frame) if self.decisions.online else None
            apart = stream is not None and online.contracts(stream, frame)
            if stream is not None and (apart or not self.fits(frame, iterators, body)):
                return online.emit(self, frame, stream)
            product = contraction.find(e, frame.places)
            if product is not None:
                return contraction.emit(self, frame, product)
        if scalars.across(monoid, e.dtype) and self.fits(frame, iterators, body):
            return self._at_once(frame, monoid, iterators, body)
        return self._in_chunks(frame, monoid, iterators, body)

    def fits(self, frame: Frame, iterators: tuple[Symbol, ...], body: Expr) -> bool:
        """Whether the block of a reduction is small enough to be held at once."""
        taken = _assigned(frame, iterators, body)
        new = prod(power(extent(it)) for it in iterators if it not in taken)
        return new == 1 or new * prod(frame.shape(body.symbols)) <= self.decisions.limit

    def _at_once(self, frame: Frame, monoid: str, iterators: tuple[Symbol, ...], body: Expr) -> Block:
        over = _assigned(frame, iterators, body)
        for it in iterators:
            if it not in over:
                over[it] = frame.add_row(extent(it))
        inner = body.substitute({it: of_atom(s) for it, s in over.items()})
        value = self.value(frame, inner)
        for place in sorted([frame.places[s] for s in over.values()], key=lambda p: -(p.dim or 0)):
            value = self.reduced(place, monoid, value, inner)
        return value

    def reduced(self, place: PallasPlace, monoid: str, value: Block, body: Expr) -> Block:
        """Reduce a block along the dimension of an iterator, over its valid values."""
        assert place.dim is not None
        rank = max(np.ndim(value), place.dim + 1)
        shape = [1] * (rank - np.ndim(value)) + list(np.shape(value))
        shape[rank - 1 - place.dim] = place.size
        value = whole(value, shape)
        if place.valid is not None:
            value = jnp.where(place.valid, value, scalars.neutral(monoid, body.dtype))
        return scalars.reduce_axis(monoid, value, rank - 1 - place.dim)

    def _in_chunks(self, frame: Frame, monoid: str, iterators: tuple[Symbol, ...], body: Expr) -> Block:
        """Return a reduction, computed chunk by chunk along its longest iterator."""
        *outer, last = sorted(iterators, key=extent)
        others = prod(frame.shape(body.symbols))
        room = max(1, self.decisions.limit // others) if scalars.across(monoid, body.dtype) else 1
        size = min(power(extent(last)), 1 << (room.bit_length() - 1))
        dim = frame.layout.rank
        if size > 1:
            frame.layout.rank += 1
        shape = list(frame.shape(body.symbols - {last}))
        if size > 1:
            shape = [size] + [1] * (dim - len(shape)) + shape
        self.hoist(frame, body, frozenset(iterators))
        chunk, steps = chunks(last, size, dim)

        def step(j: Block, total: Block) -> Block:
            places, inner = split_counter(j, outer, steps)
            place = chunk(inner)
            deeper = frame.inside(places | {last: place})
            value = whole(self.value(deeper, body), shape)
            if place.valid is not None:
                value = jnp.where(place.valid, value, scalars.neutral(monoid, body.dtype))
            return scalars.combine(monoid, total, value)

        start = jnp.full(shape, scalars.neutral(monoid, body.dtype))
        total = loop(steps * prod(map(extent, outer)), step, start)
        return scalars.reduce_axis(monoid, total, 0) if size > 1 else total

    def hoist(self, frame: Frame, root: Expr, bound: frozenset[Symbol]) -> None:
        """Compute subexpressions that do not depend on the iterators of a loop, ahead of it."""
        seen: set[Expr] = set()
        stack = [root]
        while stack:
            e = stack.pop()
            if e in seen or e.kind == "const":
                continue
            seen.add(e)
            if e.symbols.isdisjoint(bound) and all(s in frame.places for s in e.symbols):
                self.value(frame, e)
            else:
                stack += list(_parts(e))


def _parts(e: Expr) -> Iterator[Expr]:
    yield from e.operands
    for x in e.indices:
        yield from values_of(x)


def _assigned(frame: Frame, iterators: tuple[Symbol, ...], body: Expr) -> dict[Symbol, Symbol]:
    """Map iterators of a reduction to block iterators that can replace them: of the same range, not in its body."""
    taken: dict[Symbol, Symbol] = {}
    for it in iterators:
        for s, place in frame.places.items():
            free = s not in body.symbols and s not in taken.values()
            if place.full and free and extent(s) == extent(it):
                taken[it] = s
                break
    return taken


# ---- loops
