"""Proof that two graphs over symbolic sizes are equal for all sizes and all inputs.

The graphs are denoted over `Terms` and their outputs compared at a symbolic index by the prover's own tiers, in this
order:

1. Premises (sizes from 0 or 1 on, constraints, input axes not negative) hold for a concrete witness.
2. Every axis of either graph is not negative, every divisor of a size positive, every read inside its input.  This is
   proved for both sides, although JAX has checked the shapes that it could.
3. Both outputs have one shape and one value at every index: `verifier.equal.equality.equal_terms`; integers by ring
   laws that hold modulo 2^width, or by the tier of machine integers at their width.

The proof runs in the prover's process: two graphs are sent there as bytes, and the result comes back.  Hashes of sizes
are valid in one process only, and nodes are made only through the table of nodes, so both are serialised by parts.
Only the prover's own process reads these bytes.
"""

from __future__ import annotations

import base64
import copyreg
import io
import itertools
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from superopt.ir.algebra import Reader
from superopt.ir.denote import denote
from superopt.ir.graph import Graph, Node, mk, topological
from superopt.ir.index import Form
from superopt.ir.index import Poly as Sizes
from superopt.ir.types import FLOATS, INTEGERS, SIGNED
from verifier.equal import conditions as c
from verifier.equal.algebra import MIXED, WIDEST, ZEROS, Terms, Wraps
from verifier.equal.bits import equal_bits, width_of
from verifier.equal.conditions import Cond, Sym, unwrap
from verifier.equal.equality import ORDER, Proof, Stop, equal_exactly, equal_terms
from verifier.equal.monomial import Unsupported
from verifier.equal.places import factorings, to_poly
from verifier.equal.pointwise import MachineIntegers, decide
from verifier.equal.poly import Poly, const, form_of, read_of, readable, var
from verifier.equal.ranges import PremiseRanges
from verifier.equal.solver import NO, CannotLower, Context, recorded
from verifier.equal.terms import Apply, Read, Reduce, ScalarTerm, Where, alike, reductions, walk_terms
from verifier.rules.process import LimitExceededError, shared
from verifier.rules.prove import EMPTY_ONLY, FINITE
from verifier.statements.opaque import IntegersAlone
from verifier.statements.precision import CPU, apart, several
from verifier.statements.sorting import Sort, is_sort, sort_of, stated, value_at
from verifier.verdict import UNKNOWN, UNSUPPORTED, Query, ValidityDomain, decode, encode

Suspect: TypeAlias = "tuple[dict[str, int], dict[str, Any]]"
"""Sizes, and entries of inputs in row-major order; machine integers are unsigned."""
NEAR, FAR, LOOKS, MOST = 9, 140, 4, 512
"""Bounds on sizes at which values are compared, most such sizes, and most entries of an input taken from a model."""
MOST_PARTS = 8
"""Most parts of axes that are proved one after another."""
SMALL = 64
"""Most elements of a constant array that is written out."""
_Sides: TypeAlias = "tuple[ScalarTerm, ScalarTerm, tuple[Cond, ...]]"
"""Both sides at one symbolic index, and the facts about it."""


@dataclass
class Pair:
    """Two graphs over the same inputs and symbols.

    Attributes:
        left, right: the graphs; what they close over is named by contents (`constants.by_contents`).
        sizes: names of the free sizes.
        lowest: the least value of every size.
        premises: polynomials of sizes that are at least 0.
        compared: comparisons of sizes made while tracing: the size that the trace assumed to be nonzero (None for a
            comparison of another kind), and the comparison as text.
    """

    left: Graph
    right: Graph
    sizes: tuple[str, ...]
    lowest: int
    premises: tuple[Any, ...] = ()
    compared: tuple[tuple[Any, str], ...] = ()


@dataclass
class _Work:
    """State of one proof: obligations first, then equality of the outputs."""

    pair: Pair
    ctx: Context
    done: Proof
    products: dict[Poly, tuple[Poly, ...]]
    shapes: dict[str, tuple[Poly, ...]] = field(default_factory=dict[str, tuple[Poly, ...]])
    checked: dict[tuple[Cond, tuple[Cond, ...]], None] = field(default_factory=dict[Any, None])
    guards: dict[Cond, None] = field(default_factory=dict[Cond, None])
    part: tuple[int, ...] = ()
    rounded: dict[Node, tuple[Node, str]] = field(default_factory=dict[Node, tuple[Node, str]])

    def premises(self) -> None:
        """Prove that sizes meet the premises, and that comparisons of sizes come out as they did while tracing."""
        ctx, pair = self.ctx, self.pair
        ctx.premises += [c.ge(var(name), pair.lowest) for name in pair.sizes]
        ctx.premises += [c.ge(to_poly(p), 0) for p in pair.premises]
        axes = [to_poly(n) for x in pair.left.inputs for n in x.shape]
        ctx.premises += [g for n in dict.fromkeys(axes) if (g := c.ge(n, 0)).kind == "ge" and not _plain(n)]
        self.done.obligations += 1
        witness = ctx.witness(positive=pair.sizes)
        if witness is None:
            if ctx.witness() is not None:
                raise Stop(UNKNOWN, EMPTY_ONLY)
            raise Stop(UNKNOWN, "no sizes meet the constraints")
        self.done.sizes = tuple(sorted(witness.items()))
        for size, question in pair.compared:
            if size is None:
                raise Stop(UNKNOWN, f"code that depends on sizes: it asks for {question}")
            if ctx.possible(c.eq(to_poly(size), 0)) != NO:
                raise Stop(UNKNOWN, f"code that depends on sizes: traced as if not {question}")

    def well_formed(self, graph: Graph) -> None:
        """Prove that no axis is negative, and that no size is divided by a possible 0."""
        for node in graph.nodes():
            if node.op == "literal":
                continue
            shapes = [t.shape for t in node.types]
            for n in itertools.chain(*shapes):
                p = to_poly(n)
                if not _plain(p):
                    self._goal(c.ge(p, 0), (), f"an axis of {node.op} may be negative")
            for d in _divisors((*shapes, *(value for _, value in node.attrs))):
                self._goal(c.ge(to_poly(d), 1), (), f"{node.op} divides a size by what may be 0")

    def _goal(self, goal: Cond, facts: tuple[Cond, ...], what: str) -> None:
        if goal == c.TRUE or (goal, facts) in self.checked:
            return
        self.done.obligations += 1
        if not self.ctx.holds(goal, facts):
            raise Stop(UNKNOWN, f"{what}: {goal} does not follow")
        self.checked[goal, facts] = None

    def _in_bounds(self, term: ScalarTerm, facts: tuple[Cond, ...]) -> None:
        """Prove that every entry that a term reads, under the conditions of that read, is inside its input."""
        seen: set[tuple[int, tuple[Cond, ...]]] = set()
        todo: list[tuple[ScalarTerm, tuple[Cond, ...]]] = [(term, facts)]
        while todo:
            t, path = todo.pop()
            if (id(t), path) in seen:
                continue
            seen.add((id(t), path))
            if isinstance(t, Read):
                self._read_inside(t.name, t.index, path)
            elif isinstance(t, Apply):
                todo += [(a, path) for a in t.args]
            elif isinstance(t, Reduce):
                todo.append((t.body, (*path, *c.within(var(t.var), t.size))))
            elif isinstance(t, Where):
                todo.append((t.then, (*path, *c.clauses(t.guard))))
                todo.append((t.orelse, (*path, *c.clauses(c.negate(t.guard)))))

    def _read_inside(self, name: str, index: Sequence[Poly], path: tuple[Cond, ...]) -> None:
        for i, n in zip(index, self.shapes[name], strict=True):
            for goal in (c.ge(i, 0), c.lt(i, n)):
                if goal != c.TRUE and goal not in path:
                    self._goal(goal, path, f"{name} may be read outside its shape")
            for atom in _entries(i):
                inner = read_of(atom)
                assert inner is not None
                self._read_inside(*inner, path)

    def equal(self, a: Node, b: Node) -> None:
        """Prove that two outputs have one shape, and one value at every index."""
        done = self.done
        sizes = [to_poly(n) for n in a.shape]
        for n, m in zip(sizes, map(to_poly, b.shape), strict=True):
            self._goal(c.eq(n, m), (), "the outputs may have different shapes")
        if a is b:
            done.obligations += 1
            done.note("exact", "same graph")
            return
        if not several((a, b)):
            self._equal_values(a, b)
            return
        taken = Graph((*self.pair.left.inputs, *self.pair.right.inputs), (a, b))
        try:
            self._equal_values(apart(taken, a, self.rounded), apart(taken, b, self.rounded))
        except Stop:
            self._equal_values(a, b)
            done.assume(CPU)

    def _equal_values(self, a: Node, b: Node) -> None:
        """Prove that two outputs of one shape have one value at every index."""
        try:
            self._equal_everywhere(a, b)
        except Stop as stop:
            parts = [n for n in map(self._parts_of, a.shape) if n]
            if self.part or math.prod(parts) not in range(2, MOST_PARTS + 1):
                raise
            try:
                for self.part in itertools.product(*map(range, parts)):
                    self._equal_everywhere(a, b)
            except Stop:
                raise stop from None
            finally:
                self.part = ()

    def _parts_of(self, n: Any) -> int:
        """The number of equal outermost parts into which reshapes split an axis; 0 where it is not a constant."""
        products = self.products.get(to_poly(n), ())
        return int(products[0].value or 0) if len(products) > 1 else 0

    def _equal_everywhere(self, a: Node, b: Node) -> None:
        """Prove that two outputs have one value at every index, or at every index inside the present parts of axes."""
        done = self.done
        terms = self._terms()
        sides = self._denoted(terms, a, b)
        if terms.rounded.mixed() and self._equal_apart(a, b):
            return
        try:
            self._equal_over(terms, a, b, sides)
        except Stop:
            if not terms.tested:
                raise
            terms = self._terms(finite=True)
            self._equal_over(terms, a, b, self._denoted(terms, a, b))
            done.note("real", "finite numbers")
        terms.certify(self.done)
        if terms.rounded.mixed():
            done.note("real", "several types of floats")
            done.assume(MIXED)

    def _equal_apart(self, a: Node, b: Node) -> bool:
        """Whether outputs are proved equal in class exact with functions of different float types kept different."""
        terms = self._terms(apart=True)
        left, right, facts = self._denoted(terms, a, b)
        self._compared(terms, left, right, facts, a, b)
        kind = _kind(terms, left, right, a)
        if not alike(left, right) and not equal_exactly(self.ctx, left, right, facts, self.done, kind):
            return False
        self.done.note("exact", "types of floats apart")
        terms.certify(self.done)
        return True

    def _compared(
        self, terms: Terms, left: ScalarTerm, right: ScalarTerm, facts: tuple[Cond, ...], a: Node, b: Node
    ) -> None:
        """Prove that both sides read inside their inputs; for float maxima, assume that a zero may have either sign."""
        for side in (left, right):
            self._in_bounds(side, facts)
        for term, names in terms.held:
            self._in_bounds(term, self.ctx.facts_of(names))
        for side in (left, right):
            self.guards |= {t.guard: None for t in walk_terms(side) if isinstance(t, Where)}
        orders = reductions(left) | reductions(right)
        if any(t.dtype in FLOATS for x in topological((a, b)) for t in x.types):
            self.done.assumptions = {**(self.done.assumptions or {}), **{ZEROS[k]: None for k in ZEROS if k in orders}}

    def _equal_over(self, terms: Terms, a: Node, b: Node, sides: _Sides) -> None:
        ctx, done = self.ctx, self.done
        left, right, facts = sides
        self._compared(terms, left, right, facts, a, b)
        if alike(left, right):
            done.obligations += 1
            done.note("exact", "same terms")
            return
        kind = _kind(terms, left, right, a)
        try:
            equal_terms(ctx, left, right, facts, done, dtype=kind, machine=True)
        except Stop:
            if not self._by_machine(a, b, mixed=kind == "mixed"):
                raise
        except (Unsupported, NotImplementedError) as missing:
            raise Stop(UNSUPPORTED, str(missing)) from missing

    def _terms(self, *, machine: bool = False, finite: bool = False, typed: bool = False, apart: bool = False) -> Terms:
        least = max((n for _, n in self.done.sizes), default=1)
        ranges = PremiseRanges(self.ctx, least)
        return Terms(self.ctx, ranges, machine, finite, typed, apart, products=self.products)

    def _denoted(self, terms: Any, a: Node, b: Node) -> _Sides:
        made: list[tuple[str, Poly]] = []
        terms.fractions = all(t.dtype != WIDEST for x in topological((a, b)) for t in x.types)
        sorts = {x: sort for x in topological((a, b)) if (sort := sort_of(x)) is not None}
        index = [terms.variable(to_poly(n), "o", made) for n in a.shape]
        if self.part:
            index, made = self._inside_part(a, index, made)
        facts = self.ctx.facts_of(name for name, _ in made)
        sides: list[ScalarTerm] = []
        try:
            for root, graph in ((a, self.pair.left), (b, self.pair.right)):
                read = self._reader(terms, graph, sorts)
                sides.append(denote(root, terms, read, sorts.keys(), terms.site)(*index))
        except (Unsupported, NotImplementedError) as missing:
            raise Stop(UNSUPPORTED, str(missing)) from missing
        except Wraps as wraps:
            raise Stop(UNKNOWN, str(wraps)) from wraps
        return sides[0], sides[1], facts

    def _inside_part(self, a: Node, index: Sequence[Any], made: list[tuple[str, Poly]]) -> Any:
        """The index inside the present part of each axis that has parts: the variables of parts become constants."""
        numbers, left = iter(self.part), dict(made)
        for at, n in enumerate(a.shape):
            if self._parts_of(n):
                p = unwrap(index[at])
                name = next(x for x, _ in made if x in p.vars)
                del left[name]
                index = [*index[:at], Sym(p.subst({name: const(next(numbers))})), *index[at + 1 :]]
        return index, list(left.items())

    def _reader(self, terms: Any, graph: Graph, sorts: Mapping[Node, Sort]) -> Any:
        operands: dict[Node, Reader] = {}

        def of(node: Node) -> Reader:
            if node not in operands:
                operands[node] = denote(node, terms, read, sorts.keys(), terms.site)
            return operands[node]

        def read(node: Node, index: Sequence[Any]) -> ScalarTerm:
            if node in self.rounded:
                value, precision = self.rounded[node]
                return terms.of_floats(Apply(f"precision[{precision}]", (of(value)(*index),)))
            if node in sorts:
                sort = sorts[node]
                types = [terms.type_of(x.type) for x in sort.operands]
                return value_at(terms, sort, tuple(index), list(map(of, sort.operands)), types)
            name, array = node["name"], graph.constants.get(node["name"])
            if array is not None and 0 < array.size <= SMALL:
                return terms.entries(array, index)
            self.shapes.setdefault(name, tuple(to_poly(n) for n in node.shape))
            return terms.read(name, index, node.dtype)

        return read

    def _by_machine(self, a: Node, b: Node, *, mixed: bool) -> bool:
        """Whether the tiers of machine integers prove outputs equal: by arithmetic at one width, else by bits.

        Truth values and integers made of floats are opaque there; exact laws decide which of them are the same.
        """
        kinds = {t.dtype for x in topological((a, b)) for t in x.types} - {"bool", *(FLOATS if mixed else ())}
        if a.dtype in FLOATS or not kinds <= set(INTEGERS):
            return False
        try:
            if len(kinds) == 1 and self._at_one_width(a, b, *kinds):
                return True
        except CannotLower:
            pass
        try:
            return self._by_bits(a, b)
        except CannotLower:
            return False

    def _integers_alone(self, terms: Terms, a: Node, b: Node) -> _Sides:
        left, right, facts = self._denoted(terms, a, b)

        def same(s: ScalarTerm, t: ScalarTerm) -> bool:
            return alike(s, t) or (not terms.wraps(s, t) and equal_exactly(self.ctx, s, t, facts, self.done))

        of = IntegersAlone(terms, same)
        return of(left), of(right), facts

    def _at_one_width(self, a: Node, b: Node, kind: str) -> bool:
        terms = self._terms(machine=True, apart=True)
        left, right, facts = self._integers_alone(terms, a, b)
        theory = MachineIntegers(self.ctx, width_of(kind), kind in SIGNED)
        proved = decide(self.ctx, theory, left, right, facts)
        if proved:
            self.done.note("exact", f"integers ({kind})")
            terms.certify(self.done)
        return proved

    def _by_bits(self, a: Node, b: Node) -> bool:
        terms = self._terms(typed=True, apart=True)
        left, right, facts = self._integers_alone(terms, a, b)
        proved = equal_bits(self.ctx, left, right, a.dtype, terms.ranges.kinds, facts)
        if proved:
            self.done.note("exact", "bits")
            terms.certify(self.done)
        return proved

    def suspects(self) -> Iterator[Suspect]:
        """Yield small sizes at which the solver sees a difference, with the entries of inputs in its model."""
        for sizes, entry in itertools.islice(self.ctx.inputs(NEAR), LOOKS):
            at = {name: const(n) for name, n in sizes.items()}
            values: dict[str, Any] = {}
            for name, shape in self.shapes.items():
                box = [n.subst(at).value for n in shape]
                if any(n is None for n in box) or math.prod(n or 0 for n in box) > MOST:
                    continue
                entries = [entry(f"in {name}", i) for i in itertools.product(*(range(n or 0) for n in box))]
                if entries and None not in entries:
                    values[name] = tuple(entries)
            yield sizes, values


def prove_pair(pair: Pair, done: Proof) -> ValidityDomain:
    """Prove two graphs equal; `done` records the proof.

    Raises:
        Stop: they are not proved equal; contains status and cause.
    """
    for graph in (pair.left, pair.right):
        foreign = unsupported_ops(graph)
        if foreign:
            raise Stop(UNSUPPORTED, f"{', '.join(foreign)}: not in the op table as a value at one index")
    ctx = Context()
    ctx.dims |= set(pair.sizes)
    work = _Work(pair, ctx, done, factorings((pair.left, pair.right)))
    work.premises()
    try:
        done.changes.clear()
        for graph in (pair.left, pair.right):
            work.well_formed(graph)
        for a, b in zip(pair.left.outputs, pair.right.outputs, strict=True):
            work.equal(a, b)
        done.changes += itertools.islice(ctx.edges(work.guards, NEAR, FAR), LOOKS)
    except Stop:
        done.suspects += work.suspects()
        raise
    finally:
        done.queries += ctx.counters.queries
    if done.laws:
        done.assume(FINITE)
    dtypes = tuple(dict.fromkeys(x.dtype for x in pair.left.inputs))
    ranks = tuple((name, "1") for name in pair.sizes)
    assumptions = tuple(done.assumptions or ())
    if done.laws:  # class real ignores signs of zeros
        assumptions = tuple(a for a in assumptions if a not in ZEROS.values())
    assumptions = tuple(map(readable, assumptions))
    return ValidityDomain(ORDER[done.laws], ranks, dtypes, assumptions, done.sizes)


def unsupported_ops(graph: Graph) -> list[str]:
    """Ops without a value at one index, by the name of the primitive."""
    names: dict[str, None] = {}
    for node in graph.nodes():
        if node.op == "opaque" and not is_sort(node):
            names[str(node["primitive"])] = None
        elif node.op in ("scan", "while", "cond"):
            names[node.op] = None
    return list(names)


def _kind(terms: Terms, left: ScalarTerm, right: ScalarTerm, a: Node) -> str:
    """`Terms.kind` of an output's terms; a float output with integers is `mixed`, since floats have a -0."""
    kind = terms.kind(left, right)
    return "mixed" if kind and a.dtype in FLOATS else kind


def _plain(n: Poly) -> bool:
    """Whether a polynomial is a sum of products of sizes, and so not negative."""
    return not n.forms and all(k >= 0 for _, k in n.terms)


def _divisors(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for x in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _divisors(x)
    elif isinstance(value, Sizes):
        for atom in value.atoms:
            if isinstance(atom, Form):
                if atom.op in ("//", "%") and not isinstance(atom.args[1], int):
                    yield atom.args[1]
                yield from _divisors(atom.args)


def _entries(p: Poly) -> Iterator[str]:
    """Entries of integer inputs inside an index."""
    for atom in p.forms:
        form = form_of(atom)
        if read_of(atom) is not None:
            yield atom
        elif form is not None:
            for a in form[1]:
                yield from _entries(a)


# ---- exchange with the prover's process


def prove_elsewhere(pair: Pair, done: Proof) -> tuple[ValidityDomain, tuple[Query, ...]]:
    """Run `prove_pair` in the prover's process; return its domain and its solver queries.

    Raises:
        Stop: they are not proved equal; UNKNOWN where a limit was exceeded.
    """
    try:
        told = decode(shared().call("verifier.statements.prove:prove_bytes", _written(pair)))
    except (LimitExceededError, RecursionError) as limit:
        raise Stop(UNKNOWN, str(limit) or "it is nested too deeply to be written down") from limit
    done.tiers = dict.fromkeys(told["tiers"])
    done.obligations += told["obligations"]
    done.queries += told["queries"]
    done.changes, done.suspects = list(told["changes"]), [*done.suspects, *told["suspects"]]
    if told["domain"] is None:
        raise Stop(told["status"], told["cause"])
    return told["domain"], told["asked"]


def prove_bytes(text: str) -> Any:
    """Entry point of the prover's process for `prove_elsewhere`."""
    done, domain, status, cause = Proof(), None, "", ""
    with recorded() as asked:
        try:
            domain = prove_pair(_read(text), done)
        except Stop as stop:
            status, cause = stop.status, readable(stop.cause)
    return encode(
        {
            "domain": domain,
            "status": status,
            "cause": cause,
            "tiers": tuple(done.tiers or ()),
            "obligations": done.obligations,
            "queries": done.queries,
            "changes": tuple(done.changes),
            "suspects": tuple(done.suspects),
            "asked": tuple(asked),
        }
    )


def _form(x: Form) -> Any:
    return Form, (x.op, x.args)


def _poly(x: Sizes) -> Any:
    return Sizes, (x.terms,)


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | {Form: _form, Sizes: _poly}


def _written(pair: Pair) -> str:
    sides = [_rows(stated(graph)) for graph in (pair.left, pair.right)]
    out = io.BytesIO()
    _Pickler(out).dump((sides, pair.sizes, pair.lowest, pair.premises, pair.compared))
    return base64.b64encode(out.getvalue()).decode()


def _rows(graph: Graph) -> Any:
    nodes = topological((*graph.inputs, *graph.outputs))
    at = {node: i for i, node in enumerate(nodes)}
    rows = [(node.op, [at[x] for x in node.inputs], node.attrs) for node in nodes]
    return rows, [at[x] for x in graph.inputs], [at[x] for x in graph.outputs], dict(graph.constants)


def _read(text: str) -> Pair:
    sides, sizes, lowest, premises, compared = pickle.loads(base64.b64decode(text))
    left, right = [_graph(*side) for side in sides]
    return Pair(left, right, sizes, lowest, premises, compared)


def _graph(rows: Any, inputs: list[int], outputs: list[int], constants: Any) -> Graph:
    nodes: list[Node] = []
    row: tuple[str, list[int], tuple[tuple[str, Any], ...]]
    for row in rows:
        op, operands, attrs = row
        nodes.append(mk(op, *[nodes[i] for i in operands], **dict(attrs)))
    return Graph(tuple(nodes[i] for i in inputs), tuple(nodes[i] for i in outputs), constants)
