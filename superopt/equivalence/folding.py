"""Finds an expression of one program's stored tensors that equals a tensor stored by the other.

Other optimisers store tensors that they computed ahead of time: a kernel times a scale, in another order of axes,
reversed for a transposed convolution, or several matrices side by side for one product.  A match found here
counts for its values alone (`superopt.equivalence.constants`): the expression is evaluated and compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from superopt.equivalence.constants import Constants, Enclosed, same
from superopt.ir.graph import Node, literal, mk
from superopt.ir.types import FLOATS

_PERMS = 24  # orders of four axes: a stored kernel may lie in any of them
_PIECES = 64  # tensors side by side in one tensor: heads of attention times three
_MOVED = 4  # other positions of a stored tensor to try


@dataclass(frozen=True, slots=True)
class Folded:
    """A stored tensor of one program that is an expression of tensors of the other.

    Attributes:
        stored: its input node.
        term: the expression.
        apart: the largest difference relative to the largest element; 0: equal bit by bit.
        also: terms that are equal for the same reason.
    """

    stored: Node
    term: Node
    apart: float
    also: tuple[tuple[Node, Node], ...] = ()


def may_hold(leaf: Node, term: Node) -> bool:
    """Whether a stored tensor can hold the values of a term, alone or beside other values."""
    one, two = sorted(_ints(leaf)), sorted(_ints(term))
    if leaf.dtype != term.dtype or math.prod(two) > math.prod(one) or not two:
        return False
    return math.prod(one) == math.prod(two) or (len(one) == len(two) and len(set(one) - set(two)) <= 1)


def fold(
    leaf: Node, array: npt.NDArray[Any], terms: Sequence[Node], moved: Sequence[Node], constants: Constants
) -> Folded | None:
    """The expression whose values a stored tensor holds; None where none is found.

    Args:
        leaf: input node of the tensor, `array` its values.
        terms: expressions of the other program's tensors that it may hold.
        moved: expressions of this tensor alone.
        constants: values of expressions.
    """
    places = [(leaf, np.arange(math.prod(array.shape)).reshape(array.shape))]
    places += [(t, at) for t in moved if (at := _turned(t, leaf, array.shape)) is not None][:_MOVED]
    for place, at in places:
        stored = array.reshape(-1)[at]
        for term in terms:
            folded = _same(stored, leaf.dtype, term, constants)
            if folded is not None:
                back = _turned_back(place, folded[0])
                return Folded(leaf, back, folded[1], () if place is leaf else ((place, folded[0]),))
    return _side_by_side(leaf, array, terms, constants)


def _same(stored: npt.NDArray[Any], dtype: str, term: Node, constants: Constants) -> tuple[Node, float] | None:
    """The term with its axes in the order that matches these values, and the largest difference."""
    if sorted(term.shape) != sorted(stored.shape):  # pyright: ignore[reportArgumentType]
        return None
    value = constants.bounded(term)
    if value is None:
        return None
    for perm in _orders(term, stored.shape):
        apart = same(stored, dtype, _ordered(value, perm))
        if apart is not None:
            return _transposed(term, perm), apart
    return None


def _orders(term: Node, shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Axis orders of a term that give it a shape, the natural one first."""
    for perm in itertools.islice(itertools.permutations(range(len(shape))), _PERMS):
        if tuple([term.shape[i] for i in perm]) == tuple(shape):
            yield perm


def _ordered(value: Enclosed, perm: tuple[int, ...]) -> Enclosed:
    return Enclosed(value.value.transpose(perm), None if value.error is None else value.error.transpose(perm))


def _transposed(term: Node, perm: tuple[int, ...]) -> Node:
    return term if perm == tuple(range(len(perm))) else mk("transpose", term, permutation=perm)


# ---- the same tensor elsewhere


def _turned(term: Node, leaf: Node, shape: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """Positions of a term's elements in a tensor that it only moves; None where it does more, or nothing."""
    steps = _steps(term, leaf)
    if not steps:
        return None
    at = np.arange(math.prod(shape)).reshape(shape)
    for node in steps:
        if node.op == "transpose":
            at = at.transpose(node["permutation"])
        else:
            at = np.flip(at, node["dimensions"]) if node.op == "rev" else at.reshape(_ints(node))
    return at


def _steps(term: Node, leaf: Node) -> list[Node]:
    """The ops that move a tensor to a term, the first one first; empty where the term does more than move."""
    steps: list[Node] = []
    while term is not leaf:
        if term.op not in ("transpose", "rev", "reshape"):
            return []
        steps.append(term)
        term = term.inputs[0]
    return steps[::-1]


def _turned_back(place: Node, term: Node) -> Node:
    """Apply the inverse movement of `place` to a term that equals `place`."""
    while place.op != "input":
        below = place.inputs[0]
        if place.op == "transpose":
            order = tuple(int(i) for i in np.argsort(place["permutation"]))
            term = mk("transpose", term, permutation=order)
        elif place.op == "rev":
            term = mk("rev", term, dimensions=place["dimensions"])
        else:
            term = mk("reshape", term, new_sizes=below.shape)
        place = below
    return term


# ---- several in one


def _side_by_side(leaf: Node, array: npt.NDArray[Any], terms: Sequence[Node], constants: Constants) -> Folded | None:
    """The terms that a stored tensor holds side by side, with zeros between them."""
    for axis, size in enumerate(array.shape):
        rest = sorted(array.shape[:axis] + array.shape[axis + 1 :])
        fitting = [t for t in terms if len(t.shape) == array.ndim and _fits(t, rest, size)]
        pieces: list[Node] = []
        worst, at = 0.0, 0
        while at < size and len(pieces) < _PIECES and fitting:
            piece = _piece(array, leaf.dtype, axis, at, fitting, constants)
            if piece is None:
                break
            pieces.append(piece[0])
            worst = max(worst, piece[1])
            at += _ints(piece[0])[axis]
        if at == size and any(p.op != "broadcast_in_dim" or p.inputs[0].op != "literal" for p in pieces):
            return Folded(leaf, mk("concatenate", *pieces, dimension=axis), worst, _parts(leaf, pieces, axis))
    return None


def _parts(leaf: Node, pieces: Sequence[Node], axis: int) -> tuple[tuple[Node, Node], ...]:
    """The slices of a stored tensor, each with the term that it equals."""
    out: list[tuple[Node, Node]] = []
    start = [0] * len(leaf.shape)
    for piece in pieces:
        limit = list(_ints(leaf))
        limit[axis] = start[axis] + _ints(piece)[axis]
        out.append((mk("slice", leaf, start_indices=tuple(start), limit_indices=tuple(limit)), piece))
        start[axis] = limit[axis]
    return tuple(out)


def _fits(term: Node, rest: Sequence[int], most: int) -> bool:
    """Whether all axes of a term but one match those of a tensor but one, and that axis is shorter than `most`."""
    left = list(_ints(term))
    for n in rest:
        if n not in left:
            return False
        left.remove(n)
    return 0 < left[0] < most


def _piece(
    array: npt.NDArray[Any], dtype: str, axis: int, at: int, terms: Sequence[Node], constants: Constants
) -> tuple[Node, float] | None:
    """The term, or run of zeros, that a tensor holds at a position along an axis, and the largest difference."""
    for term in terms:
        value = constants.bounded(term)
        if value is None:
            continue
        for perm in itertools.islice(itertools.permutations(range(array.ndim)), _PERMS):
            moved = _ordered(value, perm)
            shape = moved.value.shape
            if shape[axis] > array.shape[axis] - at or _without(shape, axis) != _without(array.shape, axis):
                continue
            part = array[(slice(None),) * axis + (slice(at, at + shape[axis]),)]
            apart = same(part, dtype, moved)
            if apart is not None:
                return _transposed(term, perm), apart
    others = tuple(i for i in range(array.ndim) if i != axis)
    nothing = ~np.any(array, axis=others)[at:]
    run = int(np.argmin(np.append(nothing, False)))
    if not run or dtype not in FLOATS:
        return None
    shape = (*array.shape[:axis], run, *array.shape[axis + 1 :])
    return mk("broadcast_in_dim", literal(0.0, dtype), shape=shape, broadcast_dimensions=()), 0.0


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _ints(node: Node) -> tuple[int, ...]:
    return tuple(int(n) for n in node.shape)  # pyright: ignore[reportArgumentType]  # sizes are given


__all__ = ["Folded", "fold", "may_hold"]
