"""Oracles: meanings evaluated one index at a time, and any choice of e-nodes as a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rewrites.egraph.convert import node_of, transposed
from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS, PERM_MASK, inverse_of, perm_of
from superopt.ir import denote, scalar
from superopt.ir.algebra import COMBINE
from superopt.ir.graph import Node
from superopt.ir.interp import Array, Numbers, _argument, reader
from superopt.ir.ops.record import identity

Ref = int
Choose = Callable[[int], Any]


class Numeric:
    """Indices are ints, scalars are numbers of NumPy, and a read outside of an input is an error."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays

    def read(self, name: str, index: Sequence[int]) -> Any:
        """The entry of an input."""
        where = tuple(index)
        array = self._arrays[name]
        if any(not 0 <= i < n for i, n in zip(where, array.shape, strict=True)):
            raise IndexError(f"{name}{list(where)} is outside the shape {list(array.shape)}")
        return array[where]

    def const(self, value: bool | int | float, dtype: str) -> Any:
        """A constant of the type."""
        return scalar.numpy_dtype(dtype).type(value)

    def op(self, fn: str, dtype: str, *args: Any) -> Any:
        """A scalar function by its table entry."""
        return scalar.apply(fn, dtype, args)[()]

    def convert(self, value: Any, source: str, target: str) -> Any:
        """A value in another type."""
        return scalar.convert(value, source, target)[()]

    def where(self, guard: bool, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """A choice; only the branch taken is evaluated."""
        return then() if guard else orelse()

    def reduce(self, monoid: str, extents: Sequence[int], body: Callable[..., Any], dtype: str) -> Any:
        """Fold over the box, row-major."""
        total = self.const(identity(monoid, dtype), dtype)
        for index in itertools.product(*map(range, extents)):
            total = self.op(COMBINE[monoid], dtype, total, body(*index))
        return total

    def inverse(self, rows: Any, columns: Any, entry: Callable[..., Any], at: Sequence[int], dtype: str) -> Any:
        """An entry of the inverse of a matrix, by cofactors."""
        down, right = (list(itertools.product(*map(range, sizes))) for sizes in (rows, columns))
        matrix = [[float(entry(*r, *c)) for c in right] for r in down]
        column, row = right.index(tuple(at[: len(columns)])), down.index(tuple(at[len(columns) :]))
        minor = [[x for k, x in enumerate(own) if k != column] for r, own in enumerate(matrix) if r != row]
        cofactor = np.linalg.det(np.reshape(minor, (len(down) - 1,) * 2)) * (-1) ** (row + column)
        return scalar.numpy_dtype(dtype).type(cofactor / np.linalg.det(np.array(matrix)))

    def to_index(self, value: Any) -> int:
        """An integer as an index."""
        return int(value)

    def from_index(self, index: int, dtype: str) -> Any:
        """An index as a scalar."""
        return self.const(index, dtype)

    def clip(self, index: int, low: int, high: int) -> int:
        """The index, moved into a range."""
        return min(max(index, low), high)

    def all(self, *guards: bool) -> bool:
        """Conjunction."""
        return all(guards)

    def eq(self, a: int, b: int) -> bool:
        """Equality of indices."""
        return a == b

    def regroup(self, index: Sequence[int], outer: Sequence[int], inner: Sequence[int]) -> Sequence[int]:
        """The index at the same row-major position in another shape."""
        return denote.regroup(index, tuple(outer), tuple(inner))


def extract_any(eg: EGraph, ref: Ref, choose: Choose, memo: dict[int, Node] | None = None) -> Node:
    """The IR node of a reference, with the e-node `choose(class)` in each class.

    Raises:
        ValueError: the choice has a cycle.
    """
    memo = {} if memo is None else memo
    return _node_at(eg, eg.find(ref), _extract_class(eg, eg.find_class(ref), choose, memo))


def _node_at(eg: EGraph, ref: Ref, node: Node) -> Node:
    """The node of a reference, given the node of its class in natural order."""
    if not ref & PERM_MASK:
        return node
    return transposed(node, perm_of(ref & PERM_MASK, eg.rank_of_class(ref >> PERM_BITS)))


def _extract_class(eg: EGraph, root: int, choose: Choose, memo: dict[int, Node]) -> Node:
    """The node of a class in natural order; depth first without recursion."""
    stack = [root]
    open_: set[int] = set()
    while stack:
        cls = stack[-1]
        if cls in memo:
            stack.pop()
            continue
        enode = choose(cls)
        children = [eg.find(child) for child in enode[1:]]
        missing = [child >> PERM_BITS for child in children if child >> PERM_BITS not in memo]
        if missing:
            if cls in open_:
                raise ValueError(f"the choice of e-nodes has a cycle through class {cls}")
            open_.add(cls)
            stack.extend(missing)
            continue
        node = node_of(eg, enode, [_node_at(eg, c, memo[c >> PERM_BITS]) for c in children])
        own = eg.ref_of(enode)  # value(e-node) = transpose(value(class), perm)
        if own & PERM_MASK:
            node = transposed(node, inverse_of(perm_of(own & PERM_MASK, eg.rank_of_class(cls))))
        memo[cls] = node
        stack.pop()
    return memo[root]


def evaluate_at(root: Node, env: Mapping[str, Array], index: Sequence[int], wide: bool = False) -> Array:
    """Value of a node at one index, with everything below it computed at the indices at which it is read.

    Raises:
        ArgumentError: an input has no value, or one of another shape or dtype.
        InputError: a node has no value at one index (opaque, control flow).
    """
    arrays: dict[Node, Callable[..., Array]] = {}

    def read(node: Node, i: tuple[Any, ...]) -> Array:
        if node not in arrays:
            arrays[node] = reader(_argument(node, env, wide))
        return arrays[node](*i)

    with np.errstate(all="ignore"):
        value = denote.denote(root, Numbers(wide=wide), read)(*[int(k) for k in index])
    return np.asarray(value, scalar.numpy_dtype(root.dtype, wide))[()]
