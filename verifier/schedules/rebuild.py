"""Expressions with some of their loads replaced by values."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ir.expr import Expr, load, values_of, with_parts
from superopt.ir.index import APPLY, Atom, Size, Symbol, evaluate, of_atom

Read = Callable[[Expr], "Expr | None"]


def rebuilt(root: Expr, read: Read) -> Expr:
    """The expression with each load that `read` gives a value for replaced by it, loads in indices included."""
    return _Rebuild(read).value(root)


class _Rebuild:
    def __init__(self, read: Read) -> None:
        self.read = read
        self.done: dict[Expr, Expr] = {}

    def value(self, root: Expr) -> Expr:
        stack = [root]
        while stack:
            e = stack[-1]
            if e in self.done:
                stack.pop()
                continue
            inner = [*e.operands, *(v for index in e.indices for v in values_of(index))]
            waiting = [x for x in inner if x not in self.done]
            if waiting:
                stack += waiting
                continue
            self.done[e] = self.one(e)
            stack.pop()
        return self.done[root]

    def one(self, e: Expr) -> Expr:
        if e.kind == "load":
            index = tuple(self.index(x) for x in e.args[1])
            same = e if index == e.args[1] else load(e.args[0], index, e.dtype)
            found = self.read(same)
            return same if found is None else found
        inner = [self.done[x] for x in e.operands]
        changed = any(a is not b for a, b in zip(inner, e.operands, strict=True))
        read_by = [v for index in e.indices for v in values_of(index)]
        if not changed and all(self.done[v] is v for v in read_by):
            return e
        return with_parts(e, inner, self.index)

    def index(self, x: Size) -> Size:
        if all(self.done[v] is v for v in values_of(x)):
            return x

        def atom(a: Atom) -> Size:
            if isinstance(a, Symbol):
                return of_atom(a)
            if a.op == "value":
                return self.done[a.args[0]].as_index()
            return APPLY[a.op](*(self.index(y) for y in a.args))

        return evaluate(x, atom)
