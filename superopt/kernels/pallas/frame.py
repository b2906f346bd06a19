"""Coordinates of a block: the dimension of each iterator, indices over them, and masks that keep loads in bounds.

A block spans dimensions numbered from the right.  A value has extent 1 along the dimensions that it does not depend on,
so a row sum and a row stay small until they meet.  Extents are powers of two, as Triton requires.  Coordinates beyond
the end of their axis are not valid, and every load masks the indices that its ranges do not prove to be in its buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from superopt.ir import index as indices
from superopt.ir.expr import Expr
from superopt.ir.index import Atom, Guard, Size, Symbol, Truth, bounds
from superopt.kernels.pallas.scalars import Block as Block

_ROWS = itertools.count()


def power(n: int) -> int:
    """Return the least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def iota(size: int, dim: int) -> Block:
    """Return 0, 1 ... along a dimension."""
    if size == 1:
        return np.int32(0)
    return lax.broadcasted_iota(np.int32, (size,) + (1,) * dim, 0)


@dataclass(frozen=True, slots=True)
class PallasPlace:
    """The values of an iterator in a block.

    Attributes:
        value: a scalar, or a block along `dim`.
        low, high: inclusive bounds of the values, those that are not valid included.
        dim: dimension along which it varies; None: a scalar.
        size: extent along it.
        full: whether it takes every value of the iterator once.
        valid: mask of the values that are ones of the iterator; None: all.
    """

    value: Block
    low: int
    high: int
    dim: int | None = None
    size: int = 1
    full: bool = False
    valid: Block | None = None


def scalar(value: Block, symbol: Symbol) -> PallasPlace:
    """Return the place of an iterator with one value in a block, a run-time number within its range."""
    return PallasPlace(value, 0, extent(symbol) - 1)


def spread(symbol: Symbol, dim: int, least: int = 1) -> PallasPlace:
    """Return the place of all values of an iterator along a dimension of at least this extent."""
    n = extent(symbol)
    size = max(power(n), least)
    value = iota(size, dim)
    return PallasPlace(value, 0, size - 1, dim, size, True, None if size == n else value < np.int32(n))


def extent(symbol: Symbol) -> int:
    """Return the number of values of an iterator."""
    n = symbol.extent
    assert isinstance(n, int)
    return n


@dataclass(slots=True)
class BlockRank:
    """The number of dimensions that blocks of a frame have so far."""

    rank: int


@dataclass(slots=True)
class Frame:
    """Iterators with their places, and a memo of values computed with them, nested in an outer frame."""

    layout: BlockRank
    places: dict[Symbol, PallasPlace]
    outer: Frame | None = None
    values: dict[Any, Block] = field(default_factory=dict[Any, Block])

    def found(self, key: Any) -> Block | None:
        """Return a value memoized in this frame or one around it; None if there is none."""
        frame: Frame | None = self
        while frame is not None:
            if key in frame.values:
                return frame.values[key]
            frame = frame.outer
        return None

    def inside(self, places: dict[Symbol, PallasPlace]) -> Frame:
        """Return an inner frame with more iterators."""
        return Frame(self.layout, self.places | places, self)

    def add_row(self, n: int) -> Symbol:
        """Add a dimension with an iterator of its own below n."""
        symbol = Symbol(f"row{next(_ROWS)}", 0, n - 1)
        self.places[symbol] = spread(symbol, self.layout.rank)
        self.layout.rank += 1
        return symbol

    def spanned(self, symbols: frozenset[Symbol]) -> list[Symbol]:
        """Return the iterators among these that vary within a block, outermost dimension first."""
        spanned = [s for s in symbols if s in self.places and self.places[s].dim is not None]
        return sorted(spanned, key=lambda s: (-self._dim(s), s.name))

    def _dim(self, symbol: Symbol) -> int:
        dim = self.places[symbol].dim
        assert dim is not None
        return dim

    def shape(self, symbols: frozenset[Symbol]) -> tuple[int, ...]:
        """Return the shape of a block over these iterators."""
        varying = self.spanned(symbols)
        sizes = [1] * (1 + max((self._dim(s) for s in varying), default=-1))
        for s in varying:
            sizes[-1 - self._dim(s)] = self.places[s].size
        return tuple(sizes)

    @property
    def within(self) -> dict[Symbol, tuple[float, float]]:
        """The bounds of the iterators, for ranges of indices."""
        return {s: (p.low, p.high) for s, p in self.places.items()}

    # ---- indices

    def index(self, x: Size, read: Callable[[Expr], Block]) -> Block:
        """Return an index as a block of int32, or an integer; `read` gives the scalar expressions that it reads."""

        def atom(a: Atom) -> Block:
            if isinstance(a, Symbol):
                return self.places[a].value
            if a.op == "value":
                return jnp.asarray(read(a.args[0])).astype(np.int32)
            args = [self.index(y, read) for y in a.args]
            match a.op:
                case "//" | "%":
                    return self._divided(a.op, a.args, args)
                case "min":
                    return _fold(min, jnp.minimum, args)
                case "max":
                    return _fold(max, jnp.maximum, args)
                case _:  # clip: high wins where low > high
                    return _fold(min, jnp.minimum, [_fold(max, jnp.maximum, args[:2]), args[2]])

        value = indices.evaluate(x, atom)
        return value if isinstance(value, int) else jnp.asarray(value, np.int32)

    def _divided(self, op: str, of: Sequence[Size], args: list[Block]) -> Block:
        a, b = args
        if isinstance(a, int) and isinstance(b, int):
            return a // b if op == "//" else a % b
        a, b = jnp.broadcast_arrays(jnp.asarray(a, np.int32), jnp.asarray(b, np.int32))
        if bounds(of[0], self.within)[0] >= 0:
            return lax.div(a, b) if op == "//" else lax.rem(a, b)
        rest = lax.rem(a, b)  # of the sign of a; b is positive
        below = rest < 0
        return lax.div(a, b) - below.astype(np.int32) if op == "//" else jnp.where(below, rest + b, rest)

    def condition(self, guard: Truth, read: Callable[[Expr], Block]) -> Block | None:
        """Return the mask where a guard holds; None: everywhere."""
        if not isinstance(guard, Guard):
            return None if guard else np.bool_(False)
        return both(*[self.index(p, read) >= 0 for p in guard.ordered if bounds(p, self.within)[0] < 0])

    def inbounds(self, index: Sequence[Size], value: Callable[[Size], Block], shape: Sequence[int]) -> Block | None:
        """Return the mask where an index lies in a shape; None: everywhere."""
        within, conditions = self.within, []
        for x, n in zip(index, shape, strict=True):
            low, high = bounds(x, within)
            if low < 0:
                conditions.append(value(x) >= 0)
            if high >= n:
                conditions.append(value(x) < n)
        return both(*conditions)


def both(*conditions: Block | None) -> Block | None:
    """Return the conjunction of masks; None is true."""
    result: Block | None = None
    for c in conditions:
        if c is not None:
            result = c if result is None else jnp.logical_and(result, c)
    return result


def _fold(plain: Callable[..., int], block: Callable[..., Block], args: Sequence[Block]) -> Block:
    if all(isinstance(a, int) for a in args):
        return plain(*args)
    return block(*[jnp.asarray(a, np.int32) for a in args])


# ---- shapes


def whole(x: Block, shape: Sequence[int]) -> Block:
    """Broadcast a block to a shape; leading extents of 1 that the shape lacks are dropped."""
    if np.ndim(x) > len(shape):
        x = jnp.reshape(x, np.shape(x)[np.ndim(x) - len(shape) :])
    return x if np.shape(x) == tuple(shape) else jnp.broadcast_to(x, tuple(shape))


def arranged(x: Block, symbols: Sequence[Symbol], frame: Frame) -> Block:
    """Move a block over these iterators, one axis each (merged or not), to the dimensions that they have in a frame."""
    sizes = [frame.places[s].size for s in symbols]
    if np.shape(x) != tuple(sizes):
        x = jnp.reshape(x, sizes)
    order = sorted(range(len(symbols)), key=lambda j: -frame._dim(symbols[j]))
    if order != sorted(order):
        x = jnp.transpose(x, order)
    used = [frame._dim(symbols[j]) for j in order]
    missing = [d for d in range(max(used, default=-1)) if d not in used]
    for d in sorted(missing):
        x = jnp.expand_dims(x, np.ndim(x) - d)
    return x
