"""Packs small prepared vectors into one flat buffer, since every argument of a call costs time.

An argument costs up to a microsecond per call, as much as a small kernel.  Folded scales and biases are vectors of a
few kilobytes at most and are read by elementwise kernels, into which XLA:CPU fuses the slices of a buffer.  So from
four vectors of one dtype on they share a buffer, each at a multiple of 64 bytes.

Matrices stay arguments of their own: a product that reads a slice of a buffer needs an extra kernel.  So does a vector
that an opaque operation reads, and hundreds of them take XLA seconds to compile.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.core import Tracer

from superopt.ir.graph import Node

_FEWEST = 4  # small operands of a call; fewer are passed one by one
_LARGEST_BYTES = 4096  # of a vector that is packed: a page
_ALIGNED_BYTES = 64  # a line of the cache, and the widest vector register


@dataclass(frozen=True, slots=True)
class Packing:
    """The assignment of tensors to buffers.

    Attributes:
        count: number of tensors.
        alone: positions of those that stay as they are.
        buffers: for each buffer, the (position, start, shape) of its tensors, in elements.
    """

    count: int
    alone: tuple[int, ...]
    buffers: tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]

    def pack(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return the buffers, then the tensors that stay alone."""
        return (*(_joined(tensors, places) for places in self.buffers), *(tensors[i] for i in self.alone))

    def unpack(self, passed: Sequence[Any]) -> list[Any]:
        """Return the tensors in order, from the result of `pack` (traced into the program that reads them)."""
        trees: list[Any] = [None] * self.count
        for i, x in zip(self.alone, passed[len(self.buffers) :], strict=True):
            trees[i] = x
        for buffer, places in zip(passed, self.buffers, strict=False):
            for i, start, shape in places:
                trees[i] = lax.reshape(lax.slice(buffer, (start,), (start + math.prod(shape),)), shape)
        return trees


def packing_of(nodes: Sequence[Node], apart: Container[Node] = ()) -> Packing:
    """Choose the packing of tensors of these types.

    Args:
        apart: tensors that stay alone whatever their size.
    """
    by_dtype: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        shape: tuple[int, ...] = node.shape  # pyright: ignore[reportAssignmentType] (sizes of programs are concrete)
        size = math.prod(shape)
        small = 0 < size == max(shape, default=1) and size * _itemsize(node) <= _LARGEST_BYTES
        if small and node not in apart:
            by_dtype.setdefault(node.dtype, []).append(i)
    buffers: list[tuple[tuple[int, int, tuple[int, ...]], ...]] = []
    for members in by_dtype.values():
        if len(members) < _FEWEST:
            continue
        places: list[tuple[int, int, tuple[int, ...]]] = []
        start, step = 0, max(1, _ALIGNED_BYTES // _itemsize(nodes[members[0]]))
        for i in members:
            places.append((i, start, nodes[i].shape))  # pyright: ignore[reportArgumentType] (see above)
            start += -(-math.prod(places[-1][2]) // step) * step
        buffers.append(tuple(places))
    packed = {i for places in buffers for i, _, _ in places}
    return Packing(len(nodes), tuple(i for i in range(len(nodes)) if i not in packed), tuple(buffers))


def _joined(tensors: Sequence[Any], places: Sequence[tuple[int, int, tuple[int, ...]]]) -> Any:
    """Join the tensors into one buffer at their places, with zeros between them."""
    traced = any(isinstance(tensors[i], Tracer) for i, _, _ in places)
    xp: Any = jnp if traced else np
    parts: list[Any] = []
    end = 0
    for i, start, shape in places:
        tensor = xp.asarray(tensors[i])
        parts += [xp.zeros(start - end, tensor.dtype), xp.reshape(tensor, -1)]
        end = start + math.prod(shape)
    buffer = xp.concatenate(parts)
    return buffer if traced else jax.device_put(buffer)


def _itemsize(node: Node) -> int:
    return jnp.dtype(node.dtype).itemsize
