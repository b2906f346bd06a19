"""An e-graph with proofs: it records the reason of every union, so that the rule instances behind a program are known.

Every class is born with one e-node, whose children are classes born before.  A class number thus stands for one
concrete term, whatever its class holds later.  The *proof forest* (Nieuwenhuis and Oliveras, 2005) has an edge between
two numbers for every union: by a rule instance, or by congruence.  An edge depends in turn on pairs of equal numbers.
For a congruence these are the pairs of children.  For a rule instance they are the equalities that were used to find
its left side and to bring its right side into normal form; they are logged while both sides are built once more.
`explain` collects the instances on which a set of pairs depends.

Nothing here is trusted: a proof that lacks an instance is refused by the checker, and never accepted wrongly.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rewrites.build.terms import build
from rewrites.egraph.convert import node_of, transposed
from rewrites.egraph.enode import ENode, Origin, Ref
from rewrites.egraph.graph import EGraph
from rewrites.egraph.perm import PERM_BITS, PERM_MASK, perm_of
from superopt.ir.graph import Attrs, Node

if TYPE_CHECKING:
    from rewrites.match.matching import Match

ClassPair = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class ProofStep:
    """A rule instance, and the pairs of equal classes on which it depends."""

    match: Match
    pairs: tuple[ClassPair, ...]
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """Justification of a union: rule instances (none for a congruence), and pairs of classes on which it depends."""

    steps: tuple[ProofStep, ...]
    pairs: tuple[ClassPair, ...]


class ProvingEGraph(EGraph):
    """An e-graph with a proof forest."""

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self.births: list[ENode] = []
        self.birth_of: dict[ENode, int] = {}
        self.steps = 0
        self._up: dict[int, tuple[int, Reason]] = {}
        self._claims: dict[ClassPair, Reason] = {}
        self._by_origin: dict[Origin, list[ProofStep]] = {}
        self._constant_from: dict[int, int] = {}
        self._congruent: tuple[int, int] | None = None
        self._log: list[ClassPair] | None = None
        self._nodes_of: dict[int, Node] = {}

    # ---- operations of the e-graph, with logging

    def insert(self, op: str, attrs: Attrs, children: Sequence[Ref]) -> Ref:
        """Insert as the e-graph does; for a known e-node, log the pairs that connect its children to those at birth."""
        if self._log is None:
            return super().insert(op, attrs, children)
        node, _ = self.canonical((self.intern_op(op, attrs), *children))
        if node in self._hashcons:
            self._use(node, [c >> PERM_BITS for c in children])
        return super().insert(op, attrs, children)

    def views(self, ref: Ref, op: str) -> Iterator[tuple[ENode, tuple[int, ...]]]:
        """Yield the views of the e-graph, and log the pairs on which each depends."""
        for node, perm in super().views(ref, op):
            if self._log is not None:
                self._use(node, [c >> PERM_BITS for c in node[1:]])
                self._log.append((ref >> PERM_BITS, self.find_class(ref)))
            yield node, perm

    def scalar(self, ref: Ref) -> bool | int | float | None:
        """The constant that fills a tensor, as in the e-graph; logs the class from which the constant comes."""
        value = super().scalar(ref)
        if self._log is not None and value is not None:
            cls = self.find_class(ref)
            self._log += [(ref >> PERM_BITS, cls), (cls, self._constant_from.get(cls, cls))]
        return value

    def _use(self, node: ENode, children: Sequence[int]) -> None:
        assert self._log is not None
        born = self.birth_of[node]
        self._log.append((born, self.find_class(self._hashcons[node])))
        self._log += self._matched(children, [c >> PERM_BITS for c in self.births[born][1:]])

    def _matched(self, left: Sequence[int], right: Sequence[int]) -> list[ClassPair]:
        """Pairs of class numbers, one of each side, that are in one class now."""
        roots = {c: self.find_class(c << PERM_BITS) for c in (*left, *right)}
        return [(a, b) for a in dict.fromkeys(left) for b in dict.fromkeys(right) if a != b and roots[a] == roots[b]]

    def _new_class(self, node: ENode) -> Ref:
        ref = super()._new_class(node)
        self.births.append(node)
        self.birth_of[node] = ref >> PERM_BITS
        return ref

    def _repair(self, node: ENode) -> None:
        born = self.birth_of.pop(node, None)
        if born is None:
            super()._repair(node)
            return
        fresh, _ = self.canonical(node)
        known = self.birth_of.get(fresh)
        self._congruent = None if known is None else (known, born)
        super()._repair(node)
        self._congruent = None
        if known is None:
            self.birth_of[fresh] = born

    def union(self, a: Ref, b: Ref, origin: Origin | None = None) -> bool:
        """Unite as the e-graph does, and add an edge to the proof forest."""
        ends = (a >> PERM_BITS, b >> PERM_BITS)
        roots = self.find_class(a), self.find_class(b)
        values = self._value[roots[0]], self._value[roots[1]]
        if roots[0] == roots[1]:
            return super().union(a, b, origin)
        if self._congruent is not None:
            ends = self._congruent
            below = [[c >> PERM_BITS for c in self.births[end][1:]] for end in ends]
            reason = Reason((), tuple(self._matched(*below)))
        else:
            reason = self._claims.pop(ends, None) or self._loose(origin)
        changed = super().union(a, b, origin)
        self._link(*ends, reason)
        kept = self.find_class(a)
        for root, value in zip(roots, values, strict=True):
            if value is not None:
                self._constant_from.setdefault(kept, self._constant_from.get(root, root))
        return changed

    def _loose(self, origin: Origin | None) -> Reason:
        """A reason made of all instances claimed for an origin, for a union that follows from several together."""
        steps = self._by_origin.get(origin, []) if origin is not None else []
        return Reason(tuple(dict.fromkeys(steps)), ())

    def _link(self, a: int, b: int, reason: Reason) -> None:
        """Make a's tree a subtree of b; the edges on the path from a to its root are reversed."""
        at, above = a, (b, reason)
        while True:
            following = self._up.get(at)
            self._up[at] = above
            if following is None:
                return
            above, at = (at, following[1]), following[0]

    # ---- claims, recorded by growth

    def claim(self, match: Match, values: Sequence[Ref], origin: Origin) -> None:
        """Record a rule instance whose right sides have been built, unless it adds no new equality."""
        roots = [root for root, _ in match.roots]
        if all(self.find_class(r) == self.find_class(v) for r, v in zip(roots, values, strict=True)):
            return
        step = ProofStep(match, self._dependencies(match), self.steps)
        self.steps += 1
        self._by_origin.setdefault(origin, []).append(step)
        for root, value in zip(roots, values, strict=True):
            self._claims.setdefault((root >> PERM_BITS, value >> PERM_BITS), Reason((step,), ()))

    def claim_same(self, node: ENode, ref: Ref, other: Ref) -> None:
        """Record that an e-node equals the macro that stands for it."""
        born = self.birth_of[node]
        below = [[c >> PERM_BITS for c in self.births[n][1:]] for n in (born, other >> PERM_BITS)]
        pairs = [(ref >> PERM_BITS, born), *self._matched(*below)]
        self._claims[(ref >> PERM_BITS, other >> PERM_BITS)] = Reason((), tuple(pairs))

    def rename(self, origin: Origin, known: Origin) -> None:
        """Add the instances claimed for `known` to those of `origin`."""
        self._by_origin.setdefault(origin, []).extend(self._by_origin.get(known, ()))

    @contextmanager
    def logged(self) -> Generator[list[ClassPair]]:
        """Context manager: collect the pairs on which reads of classes inside the block depend."""
        self._log = log = []
        try:
            yield log
        finally:
            self._log = None

    def _dependencies(self, match: Match) -> tuple[ClassPair, ...]:
        """Pairs of equal classes on which an instance depends.

        They come from the e-nodes that matched the left side, and from the reads made while the right side is built.
        """
        pairs: list[ClassPair] = []
        for key in match.trail:
            if isinstance(key, tuple):
                pairs += self.selected(cast(ENode, key))
            elif isinstance(key, int):
                pairs.append((key, self._constant_from.get(key, key)))
        with self.logged() as log:
            build(match, self)
        return tuple(dict.fromkeys((a, b) for a, b in (*pairs, *log) if a != b and self._one(a, b)))

    def _one(self, a: int, b: int) -> bool:
        return self.find_class(a << PERM_BITS) == self.find_class(b << PERM_BITS)

    # ---- explanations, after growth

    def explain(self, pairs: Iterable[ClassPair]) -> list[ProofStep]:
        """The rule instances on which some pairs of equal class numbers depend, in the order of their creation."""
        todo = list(pairs)
        seen: set[ClassPair] = set()
        edges: set[int] = set()
        steps: dict[int, ProofStep] = {}
        while todo:
            a, b = todo.pop()
            if a == b or (a, b) in seen or not self._one(a, b):
                continue
            seen.add((a, b))
            for child, reason in self._path(a, b):
                if child in edges:
                    continue
                edges.add(child)
                todo += reason.pairs
                for step in reason.steps:
                    if step.number not in steps:
                        steps[step.number] = step
                        todo += step.pairs
        return [steps[number] for number in sorted(steps)]

    def _path(self, a: int, b: int) -> list[tuple[int, Reason]]:
        """The edges on the path between two class numbers of one tree, each with its lower end."""
        above: dict[int, int] = {a: 0}
        way: list[tuple[int, Reason]] = []
        while a in self._up:
            way.append((a, self._up[a][1]))
            a = self._up[a][0]
            above[a] = len(way)
        other: list[tuple[int, Reason]] = []
        while b not in above:
            other.append((b, self._up[b][1]))
            b = self._up[b][0]
        return way[: above[b]] + other

    def selected(self, enode: ENode) -> list[ClassPair]:
        """The pairs on which the use of an e-node as a member of its class depends."""
        born = self.birth_of[enode]
        below = self._matched([c >> PERM_BITS for c in enode[1:]], [c >> PERM_BITS for c in self.births[born][1:]])
        return [(born, self.find_class(self._hashcons[enode])), *below]

    def term(self, ref: Ref) -> Node:
        """The term that a reference stands for: the e-node with which its class was born, over the program's inputs."""
        stack = [ref >> PERM_BITS]
        while stack:
            cls = stack[-1]
            missing = [c >> PERM_BITS for c in self.births[cls][1:] if c >> PERM_BITS not in self._nodes_of]
            if cls not in self._nodes_of and missing:
                stack += missing
                continue
            if cls not in self._nodes_of:
                born = self.births[cls]
                self._nodes_of[cls] = node_of(self, born, [self._seen(c) for c in born[1:]])
            stack.pop()
        return self._seen(ref)

    def _seen(self, ref: Ref) -> Node:
        node = self._nodes_of[ref >> PERM_BITS]
        p = ref & PERM_MASK
        return transposed(node, perm_of(p, len(node.shape))) if p else node


def claims(eg: EGraph, match: Any, values: Sequence[Ref], origin: Origin) -> None:
    """Record a rule instance if the e-graph keeps proofs."""
    if isinstance(eg, ProvingEGraph):
        eg.claim(match, values, origin)


__all__ = ["ClassPair", "ProofStep", "ProvingEGraph", "Reason", "claims"]
