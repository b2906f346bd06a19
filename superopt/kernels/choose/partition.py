"""Partition of a graph into kernels: the values that lie in memory, and the ops that each kernel fuses.

    x = relu(conv(a, w) + b)          one kernel: a product and what follows it at the same index.
    softmax(x), layer_norm(x + y)     one kernel: the reductions are over the rows that the kernel goes through.
    reshape, transpose, broadcast     part of every kernel that reads them: index maps.

A region is the cone of one value down to inputs and to the values of other regions, so every partition is legal.
Regions grow from the outputs towards the inputs.  A producer joins its only reading region where nothing is recomputed:
it is read at one index, or reduced over rows in the loop order of the reader (priced by `counters.block_cost`).  A
region holds one product at most, and only index maps stand between a product and its operands.  A prefix fold is the
loop of its region; a region that reads it at another index reads it from memory.  A value compared with itself is
computed by one region (`superopt.kernels.choose.bitwise_consistency`).  Ops without a value at one index (control flow,
opaque operations) belong to no region and stay with XLA.

What is made of scalars alone, views that only XLA reads, and updates stay with XLA as well: a call of a kernel costs
more there than they do.  Where nothing else is left to XLA they are regions, and the program is a plan with its loops.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from math import inf, prod

from superopt.ir.counters import Cost, block_cost
from superopt.ir.denote import TooLarge
from superopt.ir.expr import block
from superopt.ir.graph import Graph, Node, bodies_of
from superopt.ir.ops import table
from superopt.ir.ops.table import lookup
from superopt.ir.program import type_bytes
from superopt.ir.views import begins_at, needs_memory, repeated
from superopt.kernels.choose.bitwise_consistency import computed_twice
from superopt.kernels.choose.joining import joint_cost, with_chains
from superopt.kernels.choose.regions import (
    UPDATES,
    Region,
    boundary,
    cone,
    has_kernel,
    is_chained,
    is_contraction,
    is_inside,
    region_of,
    standing_alone,
)
from superopt.kernels.loops.program import between_transforms

VIEWS = table.VIEWS - {"pad"}  # a pad chooses between an element and a value

STEPPED = frozenset(("scan", "while", "cond"))
"""Ops with bodies for which plans have steps."""
_MOST_VALUES = 96  # of nodes at indices for one element, so nodes too: regions of whole networks take up to 94
_TRANSCENDENTAL = 8.0  # cost of a transcendental function, in operations
_AGAIN = 1.3  # work of a joint kernel over that of two, at most
_ROW_BYTES = 1 << 19  # bytes of a row that a kernel may read more than once


def partition(graph: Graph, kept: Set[Node] = frozenset(), whole: bool = False) -> tuple[Region, ...]:
    """Partition a graph into regions, operands first; XLA computes the nodes that belong to none.

    Args:
        graph: a graph of concrete sizes.
        kept: nodes that must lie in memory whatever reads them.
        whole: whether all that a plan needs a step for is to be in a region.
    """
    lying = frozenset(kept)
    while True:
        regions = with_chains(_Partition(graph, lying, whole).regions(), graph, lying)
        twice = computed_twice(graph, regions) - lying
        if not twice:
            return regions
        lying |= twice


def partition_bodies(graph: Graph, whole: bool = False) -> tuple[Region, ...]:
    """Partition the bodies of a graph's control flow into regions; `whole` as of `partition`."""
    regions: dict[Node, Region] = {}
    for node in graph.nodes():
        trips = int(node["length"]) if node.op == "scan" else 1
        for body in bodies_of(node):
            for region in (*partition(body, whole=whole), *partition_bodies(body, whole)):
                if whole or any(x.shape for x in (region.root, *region.reads)):
                    known = regions.get(region.root)
                    more = 0 if known is None else known.runs
                    regions[region.root] = replace(known or region, runs=trips * region.runs + more)
    return tuple(regions.values())


def partition_whole(graph: Graph, kept: Set[Node] = frozenset()) -> tuple[Region, ...]:
    """Partition a graph and its bodies into regions that move or compute anything; arguments as of `partition`."""
    regions = {region.root: region for region in partition_bodies(graph)}
    regions |= {region.root: region for region in partition(graph, kept)}
    return tuple(region for region in regions.values() if not region.is_free)


def partition_program(graph: Graph, kept: Set[Node] = frozenset()) -> tuple[Region, ...]:
    """Partition a program into the regions of a plan, or as `partition_whole` where something has no region."""
    regions = {region.root: region for region in partition_bodies(graph, whole=True)}
    regions |= {region.root: region for region in partition(graph, kept, whole=True)}
    needed = tuple(region for region in regions.values() if not region.is_same_bytes)
    return needed if is_covered(graph, needed) else partition_whole(graph, kept)


def worthwhile(graph: Graph, regions: Iterable[Region]) -> tuple[Region, ...]:
    """Return the regions that pay as kernels: without those that only a plan needs where they make none."""
    given = tuple(regions)
    if is_covered(graph, given):
        return given
    return tuple(region for region in given if not region.is_free and region.root.op not in UPDATES)


def has_step(node: Node) -> bool:
    """Whether plans have a step for a node with bodies."""
    return node.op in STEPPED and not (node.op == "scan" and node["length"] == 0)


def is_covered(graph: Graph, regions: Iterable[Region]) -> bool:
    """Whether regions compute all of a graph and of its bodies, apart from values in memory and their reshapes."""
    made = {region.root: region for region in regions}

    def covered(outputs: Sequence[Node]) -> bool:
        seen, stack = set[Node](), list(outputs)
        while stack:
            node = stack.pop()
            if node in seen or node.op == "input" or repeated(node) is not None:
                continue
            seen.add(node)
            if node in made:
                stack += made[node].reads
                continue
            stack += node.inputs
            stepped = has_step(node) and all(covered(body.outputs) for body in bodies_of(node))
            if not (stepped or node.op == "result" or begins_at(node) is not None):
                return False
        return True

    return covered(graph.outputs)


def work(cost: Cost) -> float:
    """Return the number of operations, transcendental ones counted as several."""
    return cost.flops + _TRANSCENDENTAL * cost.transcendentals


def cost_of(region: Region) -> Cost:
    """Return the work and traffic of a region as one kernel that caches the rows it goes through."""
    if is_chained(region) or between_transforms(region.graph.outputs, region.graph.nodes()):
        return joint_cost(region, [_price(r.graph) for r in _Partition(region.graph, frozenset(), False).regions()])
    return _price(region.graph)


class _Partition:
    """The regions while they grow.

    Attributes:
        homes: the roots of the regions in which a node is computed; a value that XLA computes is its own home.
        members: the nodes of a region.
        below: the nodes of a region that its product reads.
        works: the work of a region, where it is known.
    """

    def __init__(self, graph: Graph, kept: Set[Node], whole: bool) -> None:
        self.graph, self.kept, self.whole = graph, kept, whole
        self.order = graph.nodes()
        self.users: dict[Node, list[Node]] = {n: [] for n in self.order}
        for node in self.order:
            for x in set(node.inputs):
                self.users[x].append(node)
        self.generated = _generated(self.order)
        self.homes: dict[Node, set[Node]] = {}
        self.members: dict[Node, set[Node]] = {}
        self.below: dict[Node, set[Node]] = {}
        self.works: dict[Node, float] = {}
        self._grow()

    def _grow(self) -> None:
        outputs = {*self.graph.outputs, *self.kept}
        for node in reversed(self.order):
            if node.op in ("input", "literal"):
                continue
            if not (has_kernel(node) if self.whole else is_inside(node)):
                self.homes[node] = {node}
                continue
            readers = {home for user in self.users[node] for home in self.homes[user]}
            lies = self.whole and needs_memory(node) and not readers <= self.members.keys()
            if node in outputs or not readers or lies:
                self._open(node)
            elif (view := self._is_view(node)) or self._joins(node, readers):
                self.homes[node] = readers
                for root in readers & self.members.keys():
                    self._add(root, node)
                    if view and node in self.generated:
                        self.works.pop(root, None)
            else:
                self._open(node)

    def _open(self, node: Node) -> None:
        self.homes[node] = {node}
        self.members[node], self.below[node] = {node}, set()

    def _add(self, root: Node, node: Node) -> None:
        self.members[root].add(node)
        if self._is_below(root, node):
            self.below[root].add(node)

    def _is_below(self, root: Node, node: Node) -> bool:
        inner = [u for u in self.users[node] if u in self.members[root]]
        return any(u in self.below[root] or is_contraction(u) for u in inner)

    def _is_view(self, node: Node) -> bool:
        """Whether a node is fused into every reader: index maps, constants, and conversions to a wider type."""
        if node.op == "convert_element_type":
            return type_bytes(node.type) >= type_bytes(node.inputs[0].type) and node.inputs[0].dtype != "bool"
        return node.op in VIEWS or node in self.generated

    def _joins(self, node: Node, readers: set[Node]) -> bool:
        if len(readers) != 1:
            return False
        (root,) = readers
        members = self.members.get(root)
        if members is None or len(members) >= _MOST_VALUES or self._is_below(root, node):
            return False
        if node.op in UPDATES or root.op in UPDATES:
            return False  # a copy of the operand, which nothing else may slow down
        if is_contraction(node) and not all(_follows(n) for n in members):
            return False
        family = lookup(node.op).family
        if family == "reduction" and any(is_contraction(n) or n.op == "concatenate" for n in members):
            return False  # under a choice between operands loops are neither shared nor vectors: 47 ms in place of 0.1
        inner = [u for u in self.users[node] if u in members]
        pointwise = family == "elementwise" and all(_is_pointwise(u) and u.shape == node.shape for u in inner)
        if pointwise or (is_contraction(node) and self._is_at_one_index(node, members)):
            self.works.pop(root, None)
            return True
        return self._pays(root, node)

    def _is_at_one_index(self, node: Node, members: set[Node]) -> bool:
        """Whether a node is read at the index of the region's result alone, so that both take their own work."""
        above = {node}
        for n in (stack := [node]):  # grows while it is walked
            for u in self.users[n]:
                if u in members and u not in above:
                    if not (_is_pointwise(u) and u.shape == node.shape):
                        return False
                    above.add(u)
                    stack.append(u)
        return True

    def _pays(self, root: Node, node: Node) -> bool:
        """Whether the fused kernel does no more work than two kernels."""
        members, family = self.members[root], lookup(node.op).family
        if family == "reduction" and not _rows_fit(node):
            return False
        if root not in self.works:
            self.works[root] = work(_price(_cut_out(root, members)))
        alone = 0.0 if family == "movement" else work(_price(_cut_out(node, {node})))
        together = work(_price(_cut_out(root, members | {node})))
        pays = together < inf and together <= _AGAIN * (self.works[root] + alone) + 1.0
        if pays:
            self.works[root] = together
        return pays

    def regions(self) -> tuple[Region, ...]:
        """The regions, operands first."""
        regions: list[Region] = []
        for root in self.order:
            if root in self.members:
                regions.append(region_of(root, boundary(cone(root, None, self.members[root]))))
        return tuple(regions)


def _follows(node: Node) -> bool:
    """Whether a node may be fused after a product in its kernel."""
    return _is_pointwise(node) or node.op in VIEWS


def _is_pointwise(node: Node) -> bool:
    return lookup(node.op).family == "elementwise"


def _rows_fit(node: Node) -> bool:
    """Whether the rows of a reduction are short enough to be read several times."""
    source = node.inputs[0].type
    return type_bytes(source) <= _ROW_BYTES * max(1, prod(int(n) for n in node.shape))  # pyright: ignore[reportArgumentType]


def _generated(order: Iterable[Node]) -> set[Node]:
    """Return the nodes that read nothing from memory: positions, constants, and cheap functions of them."""
    nodes: set[Node] = set()
    for node in order:
        made = bool(node.inputs) and all(x in nodes for x in node.inputs)
        if node.op in ("iota", "literal") or (made and lookup(node.op).family in ("elementwise", "movement")):
            nodes.add(node)
    return nodes


def _cut_out(root: Node, members: set[Node]) -> Graph:
    """Return the cone of a root within members as a graph over inputs of its own."""
    return standing_alone(root, boundary(cone(root, None, members)))


@functools.lru_cache(maxsize=4096)
def _price(graph: Graph) -> Cost:
    try:
        iterators, value = block(graph.outputs[0], most=_MOST_VALUES)
    except TooLarge:
        return Cost(inf)
    return block_cost(iterators, value, rows=True)
