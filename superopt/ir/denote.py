"""Denotation of graphs: from a graph to the value at an index, in any algebra.

`denote(root, algebra, read, stop)` composes the denotations of a graph into one index function: inputs and the nodes of
`stop` are read, everything else is computed at the index at which it is read.  Values are memoised by (node, index),
without which shared producers would be evaluated once per path.

The choice of materialised nodes is not part of any denotation: it is the `stop` set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Any

from superopt.errors import InputError
from superopt.ir.algebra import AnyAlgebra, Index, Reader
from superopt.ir.graph import Node
from superopt.ir.index import divide
from superopt.ir.ops.record import Site
from superopt.ir.ops.table import lookup
from superopt.ir.types import Shape, Size

ReadNode = Callable[[Node, Index], Any]


class TooLarge(InputError):
    """Composed movement ops read a value at more and more places: the expression is too large to be useful."""


def site_of(node: Node) -> Site:
    """Return operand types, result type and attributes of a node."""
    return Site(tuple([x.type for x in node.inputs]), node.type, dict(node.attrs))


def denote(
    root: Node,
    algebra: AnyAlgebra,
    read: ReadNode,
    stop: Set[Node] = frozenset(),
    site: Callable[[Node], Site] = site_of,
    most: float = math.inf,
) -> Reader:
    """Return the value of `root` as a function of the index.

    Args:
        root: a node with one result.
        algebra: the algebra to compute in.
        read: value of an input or of a node of `stop` at an index.
        stop: nodes that are read instead of computed.
        site: types and attributes of a node, for an algebra with symbolic sizes of its own.
        most: values of nodes at indices that may be computed.

    Raises:
        TooLarge: more values would be computed.
        InputError: a node without a value at one index (control flow, opaque) is not in `stop`.
    """
    return _Denotation(algebra, read, stop, site, most).reader(root)


class _Denotation:
    """Readers of the nodes of one graph, and their values so far."""

    def __init__(
        self, algebra: AnyAlgebra, read: ReadNode, stop: Set[Node], site: Callable[[Node], Site], most: float
    ) -> None:
        self.algebra, self.read, self.stop, self.site, self.most = algebra, read, stop, site, most
        self.readers: dict[Node, Reader] = {}
        self.values: dict[tuple[Node, tuple[Any, ...]], tuple[Index, Any]] = {}

    def reader(self, node: Node) -> Reader:
        reader = self.readers.get(node)
        if reader is None:
            reader = self.readers[node] = self._make(node)
        return reader

    def _make(self, node: Node) -> Reader:
        if node.op == "input" or node in self.stop:
            return lambda *i: self.read(node, i)
        if node.op == "literal":
            return lambda *i: self.algebra.const(node["value"], node.dtype)

        def at(*i: Any) -> Any:
            key = _key(i)
            value = self.values.get((node, key))
            if value is None:
                for inner in self._pointwise(node, key):
                    self._compute(inner, i, key)
                value = self.values[node, key]
            return value[1]

        return at

    def _compute(self, node: Node, i: Index, key: tuple[Any, ...]) -> None:
        at = lookup(node.op).at
        if at is None:
            raise InputError(
                f"{node.op} has no value at one index", hint="name it in `stop`, or evaluate the graph node by node"
            )
        if len(self.values) >= self.most:
            raise TooLarge(f"more than {self.most:g} values are needed for one element")
        value = at(self.algebra, i, [self.reader(x) for x in node.inputs], self.site(node))
        self.values[node, key] = i, value  # keeps the index alive: keys of arrays are their addresses

    def _pointwise(self, node: Node, key: tuple[Any, ...]) -> list[Node]:
        """Return the nodes read at this same index through elementwise ops, operands first, to avoid deep recursion."""
        order: list[Node] = []
        seen: set[Node] = set()
        stack = [(node, False)]
        while stack:
            current, done = stack.pop()
            if done:
                order.append(current)
                continue
            if current in seen or (current, key) in self.values:
                continue
            seen.add(current)
            stack.append((current, True))
            if lookup(current.op).family == "elementwise":
                stack += [
                    (x, False)
                    for x in current.inputs
                    if x.op not in ("input", "literal") and x not in self.stop and x.shape == current.shape
                ]
        return order


def _key(index: Index) -> tuple[Any, ...]:
    """Return the memo key of an index: arrays by address, an unhashable symbolic index by its `key`."""
    return tuple([("at", getattr(k, "key", id(k))) if type(k).__hash__ is None else k for k in index])


def common_groups(outer: Shape, inner: Shape) -> list[tuple[range, range]]:
    """Return the finest partition of two shapes of equal size into runs of axes with equal products."""
    groups: list[tuple[range, range]] = []
    a = b = first_a = first_b = 0
    left: Size = 1
    right: Size = 1
    while a < len(outer) or b < len(inner):
        if a < len(outer) and (a == first_a or b == len(inner) or not _behind(right, left)):
            left, a = left * outer[a], a + 1
        else:
            right, b = right * inner[b], b + 1
        if left == right and a > first_a and b > first_b:
            groups.append((range(first_a, a), range(first_b, b)))
            first_a, first_b, left, right = a, b, 1, 1
    if first_a < a or first_b < b:  # trailing axes of size 1, or sizes without a common grouping
        if groups and left == right:
            last_a, last_b = groups.pop()
            first_a, first_b = last_a.start, last_b.start
        groups.append((range(first_a, a), range(first_b, b)))
    return groups


def _behind(right: Size, left: Size) -> bool:
    """Whether the inner side takes an axis next; with symbols, whether it is a proper divisor of the outer side."""
    if isinstance(left, int) and isinstance(right, int):
        return right < left
    rest = 0 if right == 1 else divide(left, right)[1]
    return right != left and isinstance(rest, int) and rest == 0


def regroup(index: Sequence[Any], outer: Shape, inner: Shape) -> list[Any]:
    """Return the index in `inner` at the same row-major position as `index` in `outer`.

    An axis of one element is always read at 0.  Under a guard its index may be larger (a part of a concatenation at its
    place there), and where the guard holds it is 0.
    """
    places: list[Any] = [0] * len(inner)
    for ins, outs in common_groups(outer, inner):
        flat: Any = 0
        for d in ins:
            if not (isinstance(outer[d], int) and outer[d] == 1):
                flat = flat * outer[d] + index[d]
        last = next((d for d in outs if not (isinstance(inner[d], int) and inner[d] == 1)), None)
        for d in reversed(outs):
            if d == last or (isinstance(inner[d], int) and inner[d] == 1):
                places[d] = flat if d == last else 0
            else:
                places[d] = flat % inner[d]
                flat = flat // inner[d]
    return places
