"""Lazy products of the NumPy algebra: a product under a sum stays two factors, so the sum becomes a matrix product.

`sum over k of a * b`, for arrays that broadcast against each other, is a matrix product after the axes are sorted.
They are batch (both vary), m (a alone), n (b alone) and k (summed), for any two arrays, whatever op they came from.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from superopt.ir.scalar import Array


class Product:
    """`a * b`, not yet multiplied."""

    __slots__ = ("a", "b")

    def __init__(self, a: Array, b: Array) -> None:
        self.a, self.b = a, b

    @staticmethod
    def worth(a: Array, b: Array) -> bool:
        """Whether the product would be larger than both factors."""
        if isinstance(a, Product) or isinstance(b, Product) or a.dtype != b.dtype:
            return False
        return a.ndim > 0 and b.ndim > 0 and prod(np.broadcast_shapes(a.shape, b.shape)) > max(a.size, b.size)

    @property
    def size(self) -> int:
        """Number of elements of the product."""
        return prod(np.broadcast_shapes(self.a.shape, self.b.shape))

    def array(self) -> Array:
        """Return the product, multiplied."""
        return np.multiply(self.a, self.b)

    def guarded(self, guard: Array) -> Product | None:
        """Return the product where the guard holds, else 0; None where no factor can take the guard without growing."""
        for first, other in ((self.a, self.b), (self.b, self.a)):
            shape = np.broadcast_shapes(first.shape, guard.shape)
            if shape == first.shape and np.isfinite(other).all():  # 0 times infinity would not be 0
                zero = np.where(guard, first, np.zeros((), first.dtype))
                return Product(zero, other) if first is self.a else Product(other, zero)
        return None

    def summed(self, sizes: list[int], rank: int, kind: Any) -> Array:
        """Sum over the leading axes of these sizes, as an array with the remaining axes."""
        a, b = (of_rank(x, rank).astype(kind, copy=False) for x in (self.a, self.b))
        leading = len(sizes)
        # axes along which a factor does not vary: it is taken out of the sum there, unless it is infinite somewhere
        repeats = prod(n for d, n in enumerate(sizes) if a.shape[d] == 1 and b.shape[d] == 1)
        a, b = _varying(a, b, leading), _varying(b, a, leading)
        alone = [tuple([d for d in range(leading) if y.shape[d] == 1]) for y in (b, a)]
        a, b = (x.sum(axes, dtype=kind, keepdims=True) for x, axes in zip((a, b), alone, strict=True))
        inner = [d for d in range(leading) if a.shape[d] > 1]
        batch = [d for d in range(leading, rank) if a.shape[d] > 1 and b.shape[d] > 1]
        m = [d for d in range(leading, rank) if a.shape[d] > 1 and b.shape[d] == 1]
        n = [d for d in range(leading, rank) if b.shape[d] > 1 and a.shape[d] == 1]
        left = _matrix(a, batch, m, inner)
        right = _matrix(b, batch, inner, n)
        result = self.times(left, right)
        order = [*batch, *m, *n]
        shape = [max(a.shape[d], b.shape[d]) for d in order]
        result = result.reshape(shape).transpose(sorted(range(len(order)), key=order.__getitem__))
        full = [max(a.shape[d], b.shape[d]) for d in range(leading, rank)]
        return (result * kind.type(repeats) if repeats > 1 else result).reshape(full)

    def times(self, left: Array, right: Array) -> Array:
        """Multiply two matrices, or two batches of them."""
        return np.matmul(left, right)


def _varying(x: Array, other: Array, leading: int) -> Array:
    """Return the factor; with an infinity in it, repeated along the other's summed axes: inf * (a + b) hides signs."""
    if np.isfinite(x).all():
        return x
    return np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:leading], other.shape[:leading]), *x.shape[leading:]))


def of_rank(x: Array, rank: int) -> Array:
    """Add leading axes of extent 1 to an array, or drop those that a value from a deeper reduction has."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape[max(0, x.ndim - rank) :])


def _matrix(x: Array, *groups: list[int]) -> Array:
    shape = [prod(x.shape[d] for d in group) for group in groups]
    rest = [d for d in range(x.ndim) if not any(d in group for group in groups)]
    return x.transpose([*rest, *(d for group in groups for d in group)]).reshape(shape)
