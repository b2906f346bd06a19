"""Indices, guards and expressions as JSON and back: the format of questions to the solver's process.

An expression is a list of nodes, operands first; iterators are numbered per message, since two may share a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.ir import expr
from superopt.ir.expr import Expr
from superopt.ir.index import APPLY, Atom, Guard, Size, Symbol, Truth, all_of, nonnegative, of_atom


@dataclass
class Encoder:
    """Encoder of one message; it numbers iterators and expressions in order of first use."""

    symbols: dict[Symbol, int] = field(default_factory=dict[Symbol, int])
    nodes: list[Any] = field(default_factory=list[Any])
    _numbers: dict[Expr, int] = field(default_factory=dict[Expr, int])

    def symbol(self, s: Symbol) -> int:
        """The number of an iterator of constant range in this message."""
        return self.symbols.setdefault(s, len(self.symbols))

    def size(self, x: Size) -> Any:
        """Encode an index."""
        if isinstance(x, int):
            return x
        return [[c, [self._atom(a) for a in mono]] for mono, c in x.terms]

    def _atom(self, a: Atom) -> Any:
        if isinstance(a, Symbol):
            return self.symbol(a)
        if a.op == "value":
            return ["value", self.expr(a.args[0])]
        return [a.op, *[self.size(x) for x in a.args]]

    def guard(self, g: Truth) -> Any:
        """Encode a guard as the list of polynomials that are >= 0."""
        return [self.size(p) for p in g.ordered] if isinstance(g, Guard) else g

    def expr(self, root: Expr) -> int:
        """Encode an expression; return its number."""
        for e in expr.subexpressions(root):
            if e not in self._numbers:
                self.nodes.append([e.kind, e.dtype, *self._parts(e)])
                self._numbers[e] = len(self.nodes) - 1
        return self._numbers[root]

    def _parts(self, e: Expr) -> list[Any]:
        inner = [self._numbers[x] for x in e.operands]
        match e.kind:
            case "load":
                return [e.args[0], [self.size(x) for x in e.args[1]]]
            case "const":
                return [repr(e.args[0])]
            case "op":
                return [e.args[0], e.args[1], inner]
            case "convert":
                return [e.args[0], inner]
            case "where":
                return [self.guard(e.args[0]), inner]
            case "reduce":
                return [e.args[0], [self.symbol(s) for s in e.args[1]], inner]
            case _:
                return [self.size(e.args[0])]

    def ranges(self) -> list[Any]:
        """Names, least and greatest values of the iterators, in the order of their numbers."""
        return [[s.name, s.low, s.high] for s in self.symbols]


@dataclass
class Decoder:
    """Decoder of a message that an `Encoder` wrote."""

    symbols: Sequence[Symbol]
    nodes: Sequence[Any]
    sizes: Sequence[Symbol] = ()
    _made: dict[int, Expr] = field(default_factory=dict[int, Expr])

    def size(self, x: Any) -> Size:
        """Decode an index."""
        if isinstance(x, int):
            return x
        total: Size = 0
        for c, mono in x:
            term: Size = c
            for a in mono:
                term = term * self._atom(a)
            total = total + term
        return total

    def _atom(self, a: Any) -> Size:
        if isinstance(a, int):
            return of_atom(self.symbols[a])
        if a[0] == "value":
            return self.expr(a[1]).as_index()
        return APPLY[a[0]](*(self.size(x) for x in a[1:]))

    def guard(self, g: Any) -> Truth:
        """Decode a guard."""
        return g if isinstance(g, bool) else all_of(*(nonnegative(self.size(p)) for p in g))

    def expr(self, number: int) -> Expr:
        """Decode the expression with a number."""
        for k in range(number + 1):
            if k not in self._made:
                self._made[k] = self._node(self.nodes[k])
        return self._made[number]

    def _node(self, node: Any) -> Expr:
        kind, dtype, *parts = node
        inner = [self._made[k] for k in parts[-1]] if kind in ("op", "convert", "where", "reduce") else []
        match kind:
            case "load":
                return expr.load(parts[0], [self.size(x) for x in parts[1]], dtype)
            case "const":
                return expr.const(_number(parts[0]), dtype)
            case "op":
                return expr.op(parts[0], parts[1], *inner)
            case "convert":
                return expr.convert(inner[0], parts[0], dtype)
            case "where":
                return expr.where(self.guard(parts[0]), lambda: inner[0], lambda: inner[1])
            case "reduce":
                iterators: list[Symbol] = [self.symbols[k] for k in parts[1]]
                return expr.reduce(parts[0], iterators, inner[0])
            case _:
                return expr.from_index(self.size(parts[0]), dtype)


def _number(text: str) -> bool | int | float:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)


def decoder(ranges: Sequence[Any], nodes: Sequence[Any]) -> Decoder:
    """A decoder of a message with these iterators and nodes; a range may end at a size, given by its name."""
    sizes = {high: Symbol(high, 1, None) for _, _, high in ranges if isinstance(high, str)}
    symbols: list[Symbol] = []
    for name, low, high in ranges:
        symbols.append(Symbol(name, low, of_atom(sizes[high]) - 1 if isinstance(high, str) else high))
    return Decoder(symbols, nodes, tuple(sizes.values()))
