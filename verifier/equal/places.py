"""Symbolic indices, sizes and conditions on them: the sorts of the algebra other than scalars.

An axis that a reshape splits or merges is a pair of indices: `o` below m*k is `i*k + j` with i below m and j below k,
so that no query to the solver multiplies unknowns.  `products` lists the sizes that are such products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superopt.ir.denote import common_groups
from superopt.ir.graph import Graph, Node
from superopt.ir.index import Atom, Symbol, evaluate
from superopt.ir.index import Poly as Sizes
from superopt.ir.ops.record import Site
from superopt.ir.types import Size as Extent
from superopt.ir.types import TensorType
from verifier.equal import conditions as c
from verifier.equal.conditions import Cond, CondOrBool, Int, Sym, unwrap
from verifier.equal.poly import OPS, Poly, const, divide, form_of, greatest, least, poly, var
from verifier.equal.solver import Context


@dataclass
class Places:
    """Indices and conditions on them under premises.

    Attributes:
        ctx: premises, ranges of index variables, the solver.
        products: a product of sizes -> its factors, outermost first.
        settled: sizes that a premise determines, in terms of others.
        guards: conditions of choices, also of those that premises and ranges decide.
        added_by: the op being denoted, with the order in which it adds up; empty without a graph.
    """

    ctx: Context
    products: dict[Poly, tuple[Poly, ...]] = field(default_factory=dict[Poly, tuple[Poly, ...]], kw_only=True)
    settled: Mapping[str, Poly] = field(default_factory=dict[str, Poly], kw_only=True)
    guards: dict[Cond, None] = field(default_factory=dict[Cond, None], kw_only=True)
    added_by: str = field(default="", init=False)
    _original: dict[Poly, Extent] = field(default_factory=dict[Poly, Extent], init=False)
    _known: dict[tuple[Cond, tuple[Poly, ...]], bool] = field(default_factory=dict[Any, Any], init=False)

    def known(self, fact: Cond) -> bool:
        """Whether a condition is proved from the premises and the ranges of its variables; cached."""
        if fact in (c.TRUE, c.FALSE):
            return fact == c.TRUE
        names = [x for x in sorted(fact.vars) if self.ctx.range_of(x) is not None]
        renamed = {x: var(f"#{i}") for i, x in enumerate(names)}
        key = fact.subst(renamed), tuple([self.ctx.ranges[x].subst(renamed) for x in names])
        if key not in self._known:
            held = not self._fails(fact, names) and self.ctx.holds(fact, self.ctx.facts_of(names))
            self._known[key] = held
        return self._known[key]

    def _fails(self, fact: Cond, names: Sequence[str]) -> bool:
        """Whether a condition fails at the example of the premises, at the first or the last indices."""
        sizes = [self.ctx.ranges[x].subst(self.ctx.example).value or 0 for x in names]
        if not self.ctx.example or min(sizes, default=1) < 1:
            return False
        ends = ([0] * len(names), [n - 1 for n in sizes])
        at = [self.ctx.example | {x: const(i) for x, i in zip(names, end, strict=True)} for end in ends]
        return any(fact.subst(point) == c.FALSE for point in at)

    def size(self, n: Extent) -> Int:
        """A size of the graph as a symbol (a constant stays an int)."""
        if not isinstance(n, Sizes):
            return int(n)
        p = to_poly(n)
        self._original.setdefault(p, n)
        return Sym(p)

    def site(self, node: Node) -> Site:
        """Types and attributes of a node over symbols."""
        self.added_by = node.op + " from the end" * bool(dict(node.attrs).get("reverse"))
        return Site(
            tuple([self.type_of(x.type) for x in node.inputs]),
            self.type_of(node.type),
            {name: self._attribute(value) for name, value in node.attrs},
        )

    def type_of(self, t: TensorType) -> TensorType:
        """A type of the graph over symbols."""
        return TensorType(tuple([self.size(n) for n in t.shape]), t.dtype)  # pyright: ignore[reportArgumentType]

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, Sizes):
            return self.size(value)
        if isinstance(value, tuple):
            return tuple([self._attribute(x) for x in value])  # pyright: ignore[reportUnknownVariableType]
        return value

    def variable(self, n: Poly, prefix: str, made: list[tuple[str, Poly]]) -> Int:
        """An index that runs over 0 .. n - 1: a new variable, or several for a product that reshapes split."""
        n = n.subst(self.settled)
        if n.value == 1:
            return 0
        total = const(0)
        for factor in self.products.get(n, (n,)):
            name = self.ctx.fresh(factor, prefix)
            made.append((name, factor))
            total = total * factor + var(name)
        return Sym(total)

    def clip(self, index: Int, low: Int, high: Int) -> Int:
        """`min(max(index, low), high)`, without a bound that is known to hold."""
        p, a, b = unwrap(index), unwrap(low), unwrap(high)
        if not self.known(c.ge(p, a)):
            p = greatest(p, a)
        return Sym(p) if self.known(c.ge(b, p)) else Sym(least(p, b))

    def all(self, *guards: CondOrBool) -> CondOrBool:
        """Conjunction."""
        return c.conj(guards)

    def eq(self, a: Int, b: Int) -> CondOrBool:
        """Equality of indices."""
        return c.eq(unwrap(a), unwrap(b))

    def regroup(self, index: Sequence[Int], outer: Sequence[Int], inner: Sequence[Int]) -> Sequence[Int]:
        """The index in `inner` at the same row-major position as `index` in `outer`."""
        places: list[Int] = [0] * len(inner)
        if 1 in (len(outer), len(inner)):
            groups = [(tuple(range(len(outer))), tuple(range(len(inner))))]
        else:
            groups = common_groups(self._sizes(outer), self._sizes(inner))
        for ins, outs in groups:
            flat = const(0)
            for d in ins:
                flat = joined(flat, unwrap(outer[d]), unwrap(index[d]))
            live = [d for d in outs if unwrap(inner[d]).value != 1]
            for d in reversed(live[1:]):
                flat, rest = self._divide(flat, unwrap(inner[d]))
                places[d] = Sym(rest)
            if live:
                places[live[0]] = Sym(flat)
        return places

    def _sizes(self, shape: Sequence[Int]) -> tuple[Extent, ...]:
        return tuple([n if isinstance(n, int) else self._original[unwrap(n)] for n in shape])

    def _divide(self, whole: Poly, q: Poly) -> tuple[Poly, Poly]:
        """Quotient and remainder by q; a part known to be in 0 .. q - 1 is the remainder where q divides the rest."""
        over: list[Any] = []
        under: list[Any] = []
        for mono, k in whole.terms:
            (over if divide(Poly([(mono, k)]), q)[1].value == 0 else under).append((mono, k))
        rest = Poly(under)
        if rest.value == 0 or (self.known(c.ge(rest, 0)) and self.known(c.lt(rest, q))):
            return divide(Poly(over), q)[0], rest
        return divide(whole, q)


def joined(outer: Poly, size: Poly, inner: Poly) -> Poly:
    """outer * size + inner; a quotient and remainder of one x by `size` are joined to x."""
    if len(outer.forms) and len(inner.forms) == 1:
        f = form_of(inner.forms[0])
        if f is not None and f[0] == "%" and f[1][1] == size and inner == var(inner.forms[0]):
            x = f[1][0]
            quotient = divide(x, size)[0]
            if outer.vars and (outer - quotient).value is not None:
                return (outer - quotient) * size + x
    return outer * size + inner


def _named(a: Atom) -> Poly:
    assert isinstance(a, Symbol)
    return var(a.name)


def to_poly(n: Extent, leaf: Callable[[Atom], Poly] = _named) -> Poly:
    """A size of the IR as a polynomial of the prover; `leaf` converts symbols and entries of tensors."""

    def atom(a: Atom) -> Poly:
        if isinstance(a, Symbol) or a.op == "value":
            return leaf(a)
        args = [to_poly(x, leaf) for x in a.args]
        if a.op == "clip":
            return least(greatest(args[0], args[1]), args[2])
        return OPS[a.op](*args)

    return poly(evaluate(n, atom))


def factorings(graphs: Sequence[Graph]) -> dict[Poly, tuple[Poly, ...]]:
    """Sizes that reshapes of these graphs split or merge, with their factors, outermost first."""
    factors: dict[Poly, tuple[Poly, ...]] = {}
    for node in [n for g in graphs for n in g.nodes() if n.op == "reshape"]:
        outer, inner = node.shape, node.inputs[0].shape
        for ins, outs in common_groups(outer, inner):
            sides = [[to_poly(n) for n in part] for part in ([outer[d] for d in ins], [inner[d] for d in outs])]
            one, many = sorted(([n for n in side if n.value != 1] for side in sides), key=len)
            if len(one) == 1 and len(many) > len(factors.get(one[0], (one[0],))):
                factors[one[0]] = tuple(many)
    for _ in range(len(factors)):  # factors may be products themselves
        factors = {n: tuple(q for f in fs for q in factors.get(f, (f,))) for n, fs in factors.items()}
    return factors
