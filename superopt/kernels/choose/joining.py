"""Joins regions where one kernel can run a chain of contractions, or a product between two transforms.

A chain is a product whose operand rows are made of another product and reduced on the way, or a product larger than
everything both read and write.  Its regions are joined if nothing else reads the values between them and a chain
schedule fits (`superopt.kernels.choose.chains`).  The large value in the middle then stays in the cache.  Divisors that
rows are reduced to may be applied after the last product.  Elementwise maps of operands that nothing else reads join as
well.  The measured search of the partition may cut such a region again.

A product may be the only reader of one map and be read at several places by one other map (Winograd).  All three are
one region where a schedule fits (`superopt.kernels.choose.transforms`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod

from superopt.errors import InputError
from superopt.ir.counters import Cost, boundary_bytes
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import PRODUCTS
from superopt.kernels.choose.chains import chain
from superopt.kernels.choose.regions import Region, cut
from superopt.kernels.choose.transforms import transformed
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.program import from_graph


def with_chains(regions: Sequence[Region], graph: Graph, kept: frozenset[Node]) -> tuple[Region, ...]:
    """Return the partition with the regions of chains joined.

    Args:
        regions: a partition, operands first.
        graph: the partitioned graph.
        kept: nodes that must lie in memory whatever reads them.
    """
    joining = _Joining(regions, graph, kept)
    for last in [r for r in regions if _is_product(r)]:
        joining.join(last)
        joining.join_transforms(last)
    return tuple(joining.found.values())


class _Joining:
    """The regions while they are being joined.

    Attributes:
        found: the regions, by root.
        readers: roots of the regions that read a value.
        apart: values that must lie in memory whatever the partition.
    """

    def __init__(self, regions: Sequence[Region], graph: Graph, kept: frozenset[Node]) -> None:
        self.found = {r.root: r for r in regions}
        self.readers: dict[Node, set[Node]] = {}
        for region in regions:
            for x in region.reads:
                self.readers.setdefault(x, set()).add(region.root)
        seen = {n for r in regions for n in r.nodes}
        other = {x for n in graph.nodes() if n not in seen for x in n.inputs}  # read by nodes that XLA computes
        self.apart = {*graph.outputs, *kept, *other}

    def join(self, last: Region) -> None:
        """Join a product with the regions it forms a chain with, if there is a schedule."""
        if last.root not in self.found:
            return
        for inner in self._chains(last):
            tops = [(root, inner | {last.root}) for root in self.readers.get(last.root, ()) if root in self.found]
            for root, gone in ((last.root, inner), *tops):
                if gone and self._closed(root, gone) and self._joined(root, gone, runs_as_chain):
                    self._with_maps(root)
                    return

    def join_transforms(self, product: Region) -> None:
        """Join a product with the transforms before and after it (Winograd), if there is a schedule."""
        if product.root not in self.found or not _has_planes(product):
            return
        before = [x for x in product.reads if x in self.found and self.found[x].kind == "map"]
        after = [root for root in self.readers.get(product.root, ()) if root in self.found]
        if len(before) == len(after) == 1 and self.found[after[0]].kind == "map":
            gone = {product.root, *before}
            if self._closed(after[0], gone):
                self._joined(after[0], gone, runs_as_transforms)

    def _chains(self, last: Region) -> Iterator[set[Node]]:
        """Yield sets of values to keep out of memory: a product, and rows made of it, which the last product reads."""
        for x in last.reads:
            middle = self.found.get(x)
            if middle is None:
                continue
            if middle.kind == "rows":
                first = {y for y in middle.reads if y in self.found and _is_product(self.found[y])}
                if len(first) == 1:
                    gone = {x, *first}
                    yield gone | {y for y in last.reads if y in self.found and gone.issuperset(self.found[y].reads)}
            elif _is_product(middle):
                ends = {last.root, *middle.reads, *last.reads} - {x}
                if _size(x) > sum(map(_size, ends)):
                    yield {x}  # nothing is reduced on the way, but most of the traffic is saved

    def _closed(self, root: Node, gone: set[Node]) -> bool:
        """Whether nothing outside the joined region reads the values that would no longer lie in memory."""
        return self.apart.isdisjoint(gone) and all(self.readers.get(x, set()) <= gone | {root} for x in gone)

    def _joined(self, root: Node, gone: set[Node], runs: Callable[[Graph], bool]) -> bool:
        whole = cut(root, {x for node in (root, *gone) for x in self.found[node].reads} - gone)
        if not runs(whole.graph):
            return False
        for node in gone:
            for x in self.found.pop(node).reads:
                self.readers[x].discard(node)
        for x in whole.reads:
            self.readers.setdefault(x, set()).add(root)
        self.found[root] = whole
        return True

    def _with_maps(self, root: Node) -> None:
        """Join elementwise maps (scaled or rotated queries) to the chain that is their only reader."""
        for x in self.found[root].reads:
            region = self.found.get(x)
            if region is not None and region.kind == "map" and self._closed(root, {x}):
                self._joined(root, {x}, runs_as_chain)


def _is_product(region: Region) -> bool:
    return region.kind == "contraction"


def _has_planes(region: Region) -> bool:
    """Whether the factors of a product share batch axes, which is a cheap sign of a Winograd form."""
    return any(n.op == "macro" or (n.op in PRODUCTS and n["dimension_numbers"][1][0]) for n in region.nodes)


def _size(node: Node) -> int:
    return prod(int(n) for n in node.shape)  # pyright: ignore[reportArgumentType]


@functools.lru_cache(maxsize=1024)
def runs_as_chain(graph: Graph) -> bool:
    """Whether this machine has a schedule for the graph as one chain."""
    if not supported():
        return False
    try:
        program = from_graph(graph.outputs)
        chained = chain(program, program.stages[-1].buffer, host())
        return chained is not None and bool(chained.decisions.steps(chained.decisions.start))
    except InputError:
        return False


@functools.lru_cache(maxsize=1024)
def runs_as_transforms(graph: Graph) -> bool:
    """Whether this machine has a schedule for the graph as a product between two transforms."""
    if not supported():
        return False
    try:
        program = from_graph(graph.outputs)
    except InputError:
        return False
    whole = transformed(program, host())
    return whole is not None and whole.default() is not None


def joint_cost(region: Region, parts: Sequence[Cost]) -> Cost:
    """Return the cost of a joined region: the work of its parts with the memory traffic of the whole."""
    work = sum(parts, Cost())
    return Cost(work.flops, work.transcendentals, *boundary_bytes(region.graph))
