"""Graphs as terms of the prover: the op table's own denotations over symbolic indices.

`Terms` implements the protocol of `superopt.ir.algebra` with polynomials as indices and the terms of
`verifier.equal.terms` as scalars, so that what is proved of a statement is said by the very code that the reference
interpreter runs.

An axis that a reshape splits or merges is a pair of indices: `o` below m*k is `i*k + j` with i below m and j below k,
so that no question to the solver multiplies unknowns.  `products` says which sizes are such products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from superopt.ir.denote import common_groups
from superopt.ir.graph import Graph, Node
from superopt.ir.index import Form, evaluate
from superopt.ir.index import Poly as Sizes
from superopt.ir.ops.record import Site, identity
from superopt.ir.types import FLOATS, Size, TensorType
from verifier.equal import conditions as c
from verifier.equal.conditions import Int, Sym, Truth, unwrap
from verifier.equal.monomial import Unsupported
from verifier.equal.poly import OPS, Poly, const, divide, form_of, greatest, least, var
from verifier.equal.terms import ZERO, Reduce, Term, Where
from verifier.statements.scalars import INTEGERS, Scalars

UNROLLED = 16


@dataclass
class Terms(Scalars):
    """The algebra of statements.

    Attributes:
        products: a product of sizes -> its factors, outermost first.
    """

    products: dict[Poly, tuple[Poly, ...]] = field(default_factory=dict[Poly, tuple[Poly, ...]])
    _original: dict[Poly, Size] = field(default_factory=dict[Poly, Size])

    # ---- sizes
    def size(self, n: Size) -> Int:
        """A size of the graph as a symbol (a constant stays an int)."""
        if not isinstance(n, Sizes):
            return int(n)
        p = to_poly(n)
        self._original.setdefault(p, n)
        return Sym(p)

    def site(self, node: Node) -> Site:
        """Types and attributes of a node over symbols."""
        return Site(
            tuple([self._type(x.type) for x in node.inputs]),
            self._type(node.type),
            {name: self._attribute(value) for name, value in node.attrs},
        )

    def _type(self, t: TensorType) -> TensorType:
        return TensorType(tuple([self.size(n) for n in t.shape]), t.dtype)  # pyright: ignore[reportArgumentType]

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Sizes):
            return self.size(value)
        if isinstance(value, tuple):
            return tuple([self._attribute(x) for x in value])  # pyright: ignore[reportUnknownVariableType]
        return value

    # ---- choice and reductions
    def where(self, guard: Truth, then: Callable[[], Term], orelse: Callable[[], Term]) -> Term:
        """A choice by an index condition; none where premises and ranges decide it."""
        g = c.truth(guard)
        if self.known(g):
            return then()
        return orelse() if self.known(c.negate(g)) else Where(g, then(), orelse())

    def reduce(self, monoid: str, extents: Sequence[Int], body: Callable[..., Term], dtype: str) -> Term:
        """Fold over fresh bound variables; short products are written out."""
        sizes = [unwrap(n) for n in extents]
        counts = [n.value for n in sizes]
        if monoid in ("prod", "xor"):
            if None in counts or math.prod(n or 0 for n in counts) > UNROLLED:
                raise Unsupported(f"reduction {monoid}")
            return self._unrolled(monoid, [n or 0 for n in counts], body, dtype)
        kind = {"max": "or", "min": "and"}.get(monoid, monoid) if dtype == "bool" else monoid
        binders: list[tuple[str, Poly]] = []
        index = [self.variable(n, "k", binders) for n in sizes]
        term = body(*index)
        for name, n in reversed(binders):
            term = Reduce(kind, name, n, term)
        if kind == "sum" and dtype in FLOATS and sizes and not binders:
            term = self.op("add", dtype, ZERO, term)  # of -0 that is 0
        return self.wrapping(term, dtype) if dtype in INTEGERS and monoid == "sum" else term

    def _unrolled(self, monoid: str, counts: Sequence[int], body: Callable[..., Term], dtype: str) -> Term:
        total: Term | None = None
        fold = {"prod": "mul"}.get(monoid, monoid)
        for at in np.ndindex(*counts):
            part = body(*[int(i) for i in at])
            total = part if total is None else self.op(fold, dtype, total, part)
        return self.const(identity(monoid, dtype), dtype) if total is None else total

    def variable(self, n: Poly, prefix: str, made: list[tuple[str, Poly]]) -> Int:
        """An index that runs over 0 .. n - 1: a new variable, or several for a product that reshapes split."""
        if n.value == 1:
            return 0
        total = const(0)
        for factor in self.products.get(n, (n,)):
            name = self.ctx.fresh(factor, prefix)
            made.append((name, factor))
            total = total * factor + var(name)
        return Sym(total)

    # ---- indices
    def clip(self, index: Int, low: Int, high: Int) -> Int:
        """`min(max(index, low), high)`; the index itself where that is known."""
        p, a, b = unwrap(index), unwrap(low), unwrap(high)
        if not self.known(c.ge(p, a)):
            p = greatest(p, a)
        return Sym(p) if self.known(c.ge(b, p)) else Sym(least(p, b))

    def all(self, *guards: Truth) -> Truth:
        """Conjunction."""
        return c.conj(guards)

    def eq(self, a: Int, b: Int) -> Truth:
        """Equality of indices."""
        return c.eq(unwrap(a), unwrap(b))

    def regroup(self, index: Sequence[Int], outer: Sequence[Int], inner: Sequence[Int]) -> Sequence[Int]:
        """The index in `inner` at the same row-major position as `index` in `outer`."""
        found: list[Int] = [0] * len(inner)
        for ins, outs in common_groups(self._sizes(outer), self._sizes(inner)):
            flat = const(0)
            for d in ins:
                flat = joined(flat, unwrap(outer[d]), unwrap(index[d]))
            live = [d for d in outs if unwrap(inner[d]).value != 1]
            for d in reversed(live[1:]):
                flat, rest = self._divide(flat, unwrap(inner[d]))
                found[d] = Sym(rest)
            if live:
                found[live[0]] = Sym(flat)
        return found

    def _sizes(self, shape: Sequence[Int]) -> tuple[Size, ...]:
        return tuple([n if isinstance(n, int) else self._original[unwrap(n)] for n in shape])

    def _divide(self, whole: Poly, q: Poly) -> tuple[Poly, Poly]:
        """Quotient and remainder; a part known to be in 0 .. q - 1 is the remainder where q divides the rest."""
        over: list[Any] = []
        under: list[Any] = []
        for mono, k in whole.terms:
            (over if divide(Poly([(mono, k)]), q)[1].value == 0 else under).append((mono, k))
        rest = Poly(under)
        if rest.value == 0 or (self.known(c.ge(rest, 0)) and self.known(c.lt(rest, q))):
            return divide(Poly(over), q)[0], rest
        return divide(whole, q)


def joined(outer: Poly, size: Poly, inner: Poly) -> Poly:
    """outer * size + inner, where that is x for outer = x // size and inner = x % size."""
    if len(outer.forms) and len(inner.forms) == 1:
        f = form_of(inner.forms[0])
        if f is not None and f[0] == "%" and f[1][1] == size and inner == var(inner.forms[0]):
            x = f[1][0]
            quotient = divide(x, size)[0]
            if outer.vars and (outer - quotient).value is not None:
                return (outer - quotient) * size + x
    return outer * size + inner


def to_poly(n: Size) -> Poly:
    """A size of the IR as a polynomial of the prover."""
    if not isinstance(n, Sizes):
        return const(int(n))

    def atom(a: Any) -> Poly:
        if not isinstance(a, Form):
            return var(a.name)
        args = [to_poly(x) for x in a.args]
        if a.op == "clip":
            return least(greatest(args[0], args[1]), args[2])
        return OPS[a.op](*args)

    found = evaluate(n, atom)
    return found if isinstance(found, Poly) else const(found)


def factorings(graphs: Sequence[Graph]) -> dict[Poly, tuple[Poly, ...]]:
    """Sizes that reshapes of these graphs split or merge, with their factors, outermost first."""
    found: dict[Poly, tuple[Poly, ...]] = {}
    for node in [n for g in graphs for n in g.nodes() if n.op == "reshape"]:
        outer, inner = node.shape, node.inputs[0].shape
        for ins, outs in common_groups(outer, inner):
            sides = [[to_poly(n) for n in part] for part in ([outer[d] for d in ins], [inner[d] for d in outs])]
            one, many = sorted(([n for n in side if n.value != 1] for side in sides), key=len)
            if len(one) == 1 and len(many) > len(found.get(one[0], (one[0],))):
                found[one[0]] = tuple(many)
    for _ in range(len(found)):  # factors may be products themselves
        found = {n: tuple(q for f in fs for q in found.get(f, (f,))) for n, fs in found.items()}
    return found
