"""Folds the free algebra: evaluates a loop expression in any other algebra.

Folding the free form of a node equals evaluating its denotation directly.  A value is computed once in the outermost
scope in which its symbols are bound, so that loop-invariant values of a reduction are computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from superopt.ir.algebra import AnyAlgebra
from superopt.ir.expr import Expr
from superopt.ir.index import APPLY, Atom, Symbol, evaluate, of_atom
from superopt.ir.types import Size


def fold(
    root: Expr, algebra: AnyAlgebra, read: Callable[[str, tuple[Any, ...]], Any], env: Mapping[Symbol, Any]
) -> Any:
    """Return the value of an expression in another algebra.

    Args:
        root: the expression.
        algebra: the algebra to compute in.
        read: value of a buffer at an index of the algebra.
        env: index of the algebra for each free symbol.
    """
    return _Scope(algebra, read, dict(env), frozenset(), None).value(root)


class _Scope:
    """The iterators bound so far, and values that depend on the innermost of them."""

    def __init__(
        self, algebra: AnyAlgebra, read: Any, env: dict[Symbol, Any], bound: frozenset[Symbol], outer: _Scope | None
    ) -> None:
        self.algebra, self.read, self.env, self.bound, self.outer = algebra, read, env, bound, outer
        self.values: dict[Expr, Any] = {}

    def home(self, e: Expr) -> _Scope:
        """Return the outermost scope in which the expression has a value."""
        scope = self
        while scope.outer is not None and e.symbols.isdisjoint(scope.bound):
            scope = scope.outer
        return scope

    def value(self, root: Expr) -> Any:
        stack = [root]
        while stack:
            e = stack[-1]
            scope = self.home(e)
            if e in scope.values:
                stack.pop()
                continue
            if e.kind in ("op", "convert"):
                waiting = [x for x in e.operands if x not in self.home(x).values]
                if waiting:
                    stack += waiting
                    continue
            scope.values[e] = scope.compute(e)
        return self.home(root).values[root]

    def compute(self, e: Expr) -> Any:
        k, args = self.algebra, e.args
        match e.kind:
            case "const":
                return k.const(args[0], e.dtype)
            case "load":
                return self.read(args[0], tuple([self.index(x) for x in args[1]]))
            case "op":
                return k.op(args[0], args[1], *[self.home(x).values[x] for x in args[2:]])
            case "convert":
                return k.convert(self.home(args[1]).values[args[1]], args[0], e.dtype)
            case "index":
                return k.from_index(self.index(args[0]), e.dtype)
            case "where":
                guard = k.all(*[self.index(p) >= 0 for p in args[0].ordered])
                return k.where(guard, lambda: self.value(args[1]), lambda: self.value(args[2]))
            case _:
                return self.reduction(args[0], args[1], args[2], e.dtype)

    def reduction(self, monoid: str, iterators: tuple[Symbol, ...], body: Expr, dtype: str) -> Any:
        def at(*index: Any) -> Any:
            inner = self.env | dict(zip(iterators, index, strict=True))
            return _Scope(self.algebra, self.read, inner, frozenset(iterators), self).value(body)

        extents = [self.index(it.extent) for it in iterators]
        return self.algebra.reduce(monoid, extents, at, dtype)

    def index(self, x: Size) -> Any:
        return x if isinstance(x, int) else evaluate(x, self.atom)

    def atom(self, atom: Atom) -> Any:
        if isinstance(atom, Symbol):
            return self.env[atom] if atom in self.env else of_atom(atom)
        if atom.op == "value":
            return self.algebra.to_index(self.value(atom.args[0]))
        args = [self.index(x) for x in atom.args]
        match atom.op:
            case "//":
                return args[0] // args[1]
            case "%":
                return args[0] % args[1]
            case "clip":
                return self.algebra.clip(*args)
            case _:
                return APPLY[atom.op](*args)
