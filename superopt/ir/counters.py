"""Work and traffic of nodes, graphs and fused kernels: the denotations in the algebra of counts.

A scalar of this algebra is the cost of computing it once: its scalar functions, transcendental ones counted apart.  A
reduction costs its extent times (body + 1 combination), so a product of m x k by k x n costs 2*m*n*k.

    node_cost    one op on operands in memory; guards count as true: exact without padding, else an upper bound.
    graph_cost   every node materialised; scans times their length, the dearest branch of a cond, one turn of a while.
    block_cost   a fused kernel in its free form: every distinct expression once per point of the iterators that it
                 depends on, guards weighted by the share of points where they hold.

Bytes read are at most one read per operand element; a prefix fold (cumsum ...) counts as a running accumulator,
and a sum by segments as one addition for each row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from superopt.ir.denote import site_of
from superopt.ir.expr import Expr, subexpressions
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.index import Guard, Poly, Symbol, bounds, evaluate, of_atom, substitute_guard
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.ops.table import lookup
from superopt.ir.prefix import direction, step_of
from superopt.ir.program import type_bytes
from superopt.ir.scalar import SCALARS
from superopt.ir.types import ITEMSIZE_BYTES, Shape, Size

_ENUMERATE = 1 << 16  # points of a guard that are visited one by one


@dataclass(frozen=True, slots=True)
class Cost:
    """Work and traffic.

    Attributes:
        flops: operations that are not transcendental (integer and comparison operations count).
        transcendentals: exp, log, division-free roots and the like.
        read_bytes: bytes of operands that are read, each element once.
        write_bytes: bytes of results.
    """

    flops: float = 0
    transcendentals: float = 0
    read_bytes: float = 0
    write_bytes: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
        )

    def times(self, count: float) -> Cost:
        """Return the cost of doing it so many times."""
        return Cost(*(count * x for x in (self.flops, self.transcendentals, self.read_bytes, self.write_bytes)))


@dataclass(frozen=True, slots=True)
class Count:
    """Cost of one scalar: operations, transcendentals, and reads by operand."""

    flops: float = 0
    transcendentals: float = 0
    reads: Mapping[int, float] = field(default_factory=dict[int, float])

    def __add__(self, other: Count) -> Count:
        reads = {k: self.reads.get(k, 0) + other.reads.get(k, 0) for k in self.reads.keys() | other.reads.keys()}
        return Count(self.flops + other.flops, self.transcendentals + other.transcendentals, reads)

    def times(self, count: float) -> Count:
        """Return the cost of doing it so many times."""
        return Count(self.flops * count, self.transcendentals * count, {k: n * count for k, n in self.reads.items()})


class Counter:
    """The algebra of counts; every index is 0 and every guard is taken both ways."""

    def const(self, value: bool | int | float, dtype: str) -> Count:
        return Count()

    def op(self, fn: str, dtype: str, *args: Count) -> Count:
        spec = SCALARS[fn]
        return sum(args, Count(spec.flops, int(spec.transcendental)))

    def convert(self, value: Count, source: str, target: str) -> Count:
        return value

    def where(self, guard: Any, then: Callable[[], Count], orelse: Callable[[], Count]) -> Count:
        a, b = then(), orelse()
        both = a + b
        return Count(max(a.flops, b.flops), max(a.transcendentals, b.transcendentals), both.reads)

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Count], dtype: str) -> Count:
        points, once = _product(extents), body(*[0] * len(extents))
        return once if points == 1 else (once + Count(1)).times(points)

    def inverse(self, rows: Shape, columns: Shape, entry: Callable[..., Count], at: Sequence[int], dtype: str) -> Count:
        """Count the n^2 entries as parts of the 2 n^3 operations of an inverse."""
        return entry(*[0] * len((*rows, *columns))) + Count(2 * _product(rows))

    def to_index(self, value: Count) -> int:
        return 0

    def from_index(self, index: int, dtype: str) -> Count:
        return Count()

    def clip(self, index: int, low: Size, high: Size) -> int:
        return 0

    def all(self, *guards: Any) -> bool:
        return True

    def eq(self, a: int, b: int) -> bool:
        return True

    def regroup(self, index: Sequence[int], outer: Shape, inner: Shape) -> Sequence[int]:
        return [0] * len(inner)


def _product(shape: Iterable[Size]) -> int:
    return prod(int(n) for n in shape)  # pyright: ignore[reportArgumentType] (counts need concrete sizes)


def count_at(node: Node) -> Count:
    """Return the cost of one element of a node's result, from operands in memory."""
    at = lookup(node.op).at
    if at is None:
        return Count()

    def reader(operand: int) -> Callable[..., Count]:
        return lambda *_: Count(reads={operand: 1})

    return at(Counter(), (0,) * len(node.shape), [reader(j) for j in range(len(node.inputs))], site_of(node))


def node_cost(node: Node) -> Cost:
    """Return the cost of one node on operands in memory; leaves are free, bodies of control flow are included."""
    if node.op in ("input", "literal", "result"):
        return Cost()
    written = float(sum(map(type_bytes, node.types)))
    if lookup(node.op).at is None:
        read = float(sum(type_bytes(x.type) for x in node.inputs))
        return _repeated(node) + Cost(read_bytes=read, write_bytes=written)
    inner = node["op"] if node.op == "macro" else node.op
    elements = _product(node.shape)
    if inner in CUMULATIVE:
        total = Count(1, 0, {0: 1}).times(elements)
    elif inner == "solve":
        total = _solving(node)
    elif inner == "segment_sum":  # each row is read and added once
        total = Count(1, 0, {0: 1, 1: 1}).times(_product(node.inputs[0].shape))
    else:
        total = count_at(node).times(elements)
    read = 0.0
    for j, x in enumerate(node.inputs):
        size = _product(x.shape)
        share = min(1.0, total.reads.get(j, 0) / size) if size else 0.0
        read += share * type_bytes(x.type)
    return Cost(total.flops, total.transcendentals, read, written)


def _solving(node: Node) -> Count:
    """Return the work of solving by triangular factors: 2/3 n^3 operations for these, 2 n^2 for each right side."""
    matrix, right = (_product(x.shape) for x in node.inputs)
    size = _product(node.inputs[0].shape[-1:])
    return Count(2 * matrix * size // 3 + 2 * right * size, 0, {0: matrix, 1: right})


def _repeated(node: Node) -> Cost:
    """Return the work of the bodies of a control node."""
    parts = [graph_cost(body) for body in bodies_of(node)]
    if not parts:
        return Cost()
    if node.op == "cond":
        return max(parts, key=lambda c: (c.flops + c.transcendentals, c.read_bytes + c.write_bytes))
    total = sum(parts, Cost())
    return total.times(node["length"]) if node.op == "scan" else total


def graph_cost(graph: Graph) -> Cost:
    """Return the cost of all nodes, each reading its operands from and writing its result to memory."""
    return sum(map(node_cost, graph.nodes()), Cost())


def boundary_bytes(graph: Graph) -> tuple[int, int]:
    """Return the bytes of the used inputs and of the outputs: the least traffic of the graph as one kernel."""
    used = [node for node in graph.nodes() if node.op == "input"]
    return sum(type_bytes(n.type) for n in used), sum(type_bytes(n.type) for n in set(graph.outputs))


# ---- fused kernels


def block_cost(iterators: Sequence[Symbol], root: Expr, *, rows: bool = False) -> Cost:
    """Return the cost of a kernel that computes `root` at every point, in the loop order of `iterators`.

    An expression is computed at the level of the deepest iterator that it depends on, hence once for each value of the
    iterators around it.  An expression inlined into several places at different indices is computed at each.  With
    `rows` the kernel keeps a row that it has reduced: the body of a reduction over as many elements as an iterator
    further in is computed once for both.  A prefix that ends at an iterator is carried along it.
    """
    walk = _Walk(tuple(iterators) if rows else ())
    walk.visit(root, tuple(iterators), 1.0)
    reads: dict[str, float] = {}
    for e in subexpressions(root):
        if e.kind == "load":
            footprint = prod([_width(x) for x in e.args[1]]) * _itemsize(e.dtype)
            reads[e.args[0]] = max(reads.get(e.args[0], 0), footprint)
    written = prod([_extent(it) for it in iterators]) * _itemsize(root.dtype)
    return Cost(walk.flops, walk.transcendentals, sum(reads.values()), written)


def _itemsize(dtype: str) -> int:
    return ITEMSIZE_BYTES[dtype]


def _extent(it: Symbol) -> int:
    return int(it.extent)  # pyright: ignore[reportArgumentType] (counts need concrete sizes)


def _width(index: Size) -> float:
    """Return the number of values that an index takes, as far as its range and common stride tell."""
    if isinstance(index, int):
        return 1
    low, high = bounds(index)
    step = min(abs(c) for m, c in index.terms if m)
    return (high - low) // step + 1


class _Walk:
    """The walk that sums the work of an expression, each distinct one counted once per loop level.

    Attributes:
        rows: iterators whose kept row a reduction may read in its place.
        carried: the iterator whose loop carries prefixes, and 1 or -1 for their direction.
        inside: reductions around the current expression.
    """

    def __init__(self, rows: tuple[Symbol, ...] = ()) -> None:
        self.rows = rows
        self.carried: tuple[Symbol, int] | None = None
        self.inside = 0
        self.flops = self.transcendentals = 0.0
        self.seen: set[tuple[Expr, tuple[Symbol, ...]]] = set()

    def visit(self, e: Expr, around: tuple[Symbol, ...], share: float) -> None:
        """Count an expression once for each value of the iterators around it that it depends on."""
        level = max((j + 1 for j, it in enumerate(around) if it in e.symbols), default=0)
        key = (e, around[:level])
        if key in self.seen:
            return
        self.seen.add(key)
        volume = prod([_extent(it) for it in around[:level]]) * share
        match e.kind:
            case "op":
                spec = SCALARS[e.args[0]]
                self.flops += spec.flops * volume
                self.transcendentals += spec.transcendental * volume
            case "reduce":
                _, inner, body = e.args
                step = self._carried(e, around[:level])
                if step is not None:
                    self.flops += volume
                    self.visit(step, around, share)
                    return
                part = guard_share(body.args[0]) if body.kind == "where" else 1.0
                self.flops += volume * prod([_extent(it) for it in inner]) * part
                along = self._along(inner, around[:level], body)
                moved: dict[Symbol, Size] = {r: of_atom(it) for r, it in zip(inner, along, strict=True) if it is not r}
                self.inside += 1
                self.visit(body.substitute(moved), (*around[:level], *along), share)
                self.inside -= 1
                return
            case "where":
                part = guard_share(e.args[0])
                self.visit(e.args[1], around, share * part)
                self.visit(e.args[2], around, share * (1 - part))
                return
            case _:
                pass
        for x in e.operands:
            self.visit(x, around, share)

    def _carried(self, e: Expr, around: tuple[Symbol, ...]) -> Expr | None:
        """Return the step that a prefix adds at its end, where a loop of the kernel carries it; else None.

        One loop carries prefixes, in one direction, and their steps hold no prefix again.
        """
        ends = [(it, k) for it in around if (k := direction(e, it))] if not self.inside else []
        if not ends or (self.carried or ends[-1]) not in ends:
            return None
        step = step_of(e, (self.carried or ends[-1])[0])
        if any(direction(x, it) for x in subexpressions(step) if x.kind == "reduce" for it in around):
            return None
        self.carried = self.carried or ends[-1]
        return step

    def _along(self, inner: tuple[Symbol, ...], around: tuple[Symbol, ...], body: Expr) -> tuple[Symbol, ...]:
        """Return the iterators of a reduction, replaced by those of a kept row where there is one."""
        free = [it for it in self.rows if it not in around and it not in body.symbols]
        symbols: list[Symbol] = []
        for r in inner:
            it = next((it for it in free if it.extent == r.extent), r)
            symbols.append(it)
            if it is not r:
                free.remove(it)
        return tuple(symbols)


@functools.lru_cache(maxsize=4096)
def guard_share(guard: Guard) -> float:
    """Return the share of the points of its iterators at which a guard holds.

    Exact where the conditions fall into groups with iterators of their own that are few enough to visit; a group with
    too many points, or that reads a tensor, counts as true.
    """
    groups: list[tuple[set[Symbol], list[Poly]]] = []
    for term in guard.ordered:
        symbols, terms = set(term.symbols), [term]
        apart: list[tuple[set[Symbol], list[Poly]]] = []
        for other, members in groups:
            if other & symbols:
                symbols, terms = symbols | other, members + terms
            else:
                apart.append((other, members))
        groups = [*apart, (symbols, terms)]
    share = 1.0
    for symbols, terms in groups:
        ordered = sorted(symbols, key=lambda s: s.name)
        extents = [_extent(s) for s in ordered]
        if prod(extents) > _ENUMERATE:
            continue
        if all(map(_is_plain, terms)):
            share *= _held(terms, ordered, extents) / prod(extents)
            continue
        part = Guard(terms)
        held = 0
        for point in itertools.product(*map(range, extents)):
            known = substitute_guard(part, dict(zip(ordered, point, strict=True)))
            held += known is not False
        share *= held / prod(extents)
    return share


def _is_plain(x: Size) -> bool:
    """Whether the index is made of iterators and numbers alone, with divisors that are numbers."""
    if isinstance(x, int):
        return True
    for a in x.atoms:
        if not isinstance(a, Symbol) and (
            a.op == "value"
            or not all(map(_is_plain, a.args))
            or (a.op in ("//", "%") and not isinstance(a.args[1], int))
        ):
            return False
    return True


def _held(terms: Sequence[Poly], symbols: Sequence[Symbol], extents: Sequence[int]) -> int:
    """Count the points at which all terms are >= 0: all points at once."""
    import numpy as np  # late: counting alone needs no arrays

    def clip(x: Any, low: Any, high: Any) -> Any:
        return np.minimum(np.maximum(x, low), high)

    grid: dict[Symbol, Any] = dict(zip(symbols, np.ix_(*map(np.arange, extents)), strict=True))
    ways: dict[str, Callable[..., Any]] = {
        "//": np.floor_divide,
        "%": np.mod,
        "min": np.minimum,
        "max": np.maximum,
        "clip": clip,
    }

    def atom(a: Any) -> Any:
        return grid[a] if isinstance(a, Symbol) else ways[a.op](*(evaluate(x, atom) for x in a.args))

    held = np.ones(extents, bool)
    for term in terms:
        held &= evaluate(term, atom) >= 0
    return int(held.sum())
