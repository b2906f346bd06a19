"""Oracles: meanings evaluated one index at a time, and any choice of e-nodes as a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from rewrites.egraph.convert import node_of, transposed
from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS, PERM_MASK, inverse_of, perm_of
from superopt.ir import denote, scalar
from superopt.ir.graph import Node
from superopt.ir.interp import Array, Numbers, _argument, reader
from verifier.equal import conditions as c
from verifier.equal.conditions import Int, Truth, unwrap

Ref = int
Choose = Callable[[int], Any]


def _int(i: Int) -> int:
    v = unwrap(i).value
    if v is None:
        raise TypeError(f"{i} is not a number")
    return v


class Numeric:
    """Indices are ints, scalars are Python numbers: the meaning of a rule evaluated at one index."""

    def __init__(self, arrays: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self._arrays, self._functions = arrays, functions

    def read(self, name: str, index: Sequence[Int]) -> Any:
        """The entry of an input."""
        where = tuple(_int(i) for i in index)
        array = self._arrays[name]
        if any(not 0 <= i < n for i, n in zip(where, array.shape, strict=True)):
            raise IndexError(f"{name}{list(where)} is outside the shape {list(array.shape)}")
        return array[where]

    def const(self, value: Fraction | float) -> Any:
        """A constant as a float, or a truth value."""
        return value if isinstance(value, bool) else float(value)

    def size(self, value: Int) -> Any:
        """An integer as a float."""
        return float(_int(value))

    def op(self, fn: str, *args: Any) -> Any:
        """A scalar function by its table entry."""
        return self._functions[fn](*args)

    def where(self, guard: Truth, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        """A choice; only the branch taken is evaluated."""
        g = c.truth(guard)
        return then() if g == c.TRUE else orelse()

    def reduce(self, kind: str, sizes: Sequence[Int], body: Callable[[Sequence[Int]], Any]) -> Any:
        """Fold over the box, row-major."""
        total = {"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0, "and": True, "or": False}[kind]
        fold = {"sum": "add", "prod": "mul"}.get(kind, kind)
        counts = [_int(n) for n in sizes]
        for flat in range(math.prod(counts)):
            index: list[Int] = []
            for n in reversed(counts):
                flat, i = divmod(flat, n)
                index.insert(0, i)
            total = self._functions[fold](total, body(index))
        return total

    def divmod(self, index: Int, inner: Int) -> tuple[Int, Int]:
        """Quotient and remainder."""
        return divmod(_int(index), _int(inner))

    def entry(self, value: Any, size: Int) -> Int:
        """The integer, clipped."""
        return max(0, min(int(value), _int(size) - 1))


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
