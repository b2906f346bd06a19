"""Regions joined where one kernel does a chain of contractions: attention instead of product, softmax and product.

A product that reads rows which are made of another product and reduced on the way is joined with both, if nothing else
reads what lies between and a schedule of a chain fits (`superopt.kernels.chains`): the large value in the middle then
stays in the cache.  The measured search of the partition may cut such a region again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superopt.ir.counters import Cost, boundary_bytes
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import lookup

if TYPE_CHECKING:
    from superopt.kernels.partition import Region


def with_chains(regions: Sequence[Region], graph: Graph, kept: frozenset[Node]) -> tuple[Region, ...]:
    """The regions, chains joined.

    Args:
        regions: a partition, operands first.
        graph: that it is a partition of.
        kept: nodes that lie in memory whatever reads them.
    """
    from superopt.kernels.partition import cut  # late: it calls this module

    place = {node: i for i, node in enumerate(graph.nodes())}
    found = {r.root: r for r in regions}
    users: dict[Node, int] = {}
    for region in regions:
        for x in region.reads:
            users[x] = users.get(x, 0) + 1
    apart = {*graph.outputs, *kept}
    seen = {n for r in regions for n in r.nodes}
    other = {x for n in graph.nodes() if n not in seen for x in n.inputs}  # read by what XLA computes
    inner = [r for r in found.values() if users.get(r.root) == 1 and r.root not in apart and r.root not in other]
    middle = {r.root: r for r in inner if r.kind == "rows"}
    first = {r.root: r for r in inner if _is_product(r)}
    for last in [r for r in regions if _is_product(r)]:
        for x in last.reads:
            gone = {x, *[y for y in middle[x].reads if y in first]} if x in middle else set[Node]()
            if len(gone) != 2:
                continue
            whole = cut(last.root, set(found) - gone, place)
            if runs_as_chain(whole.graph):
                for node in gone:
                    del found[node]
                found[last.root] = whole
                break
    return tuple(found.values())


def _is_product(region: Region) -> bool:
    return region.kind == "contraction"


@functools.lru_cache(maxsize=1024)
def runs_as_chain(graph: Graph) -> bool:
    """Does this machine have a schedule for the graph as one chain?"""
    from superopt.errors import InputError
    from superopt.kernels.chains import chain  # late: loads LLVM
    from superopt.kernels.cpu import host, supported
    from superopt.kernels.program import from_graph

    if not supported():
        return False
    try:
        program = from_graph(graph.outputs)
    except InputError:
        return False
    return chain(program, program.stages[-1].buffer, host()) is not None


def is_chained(region: Region) -> bool:
    """Does the region hold more than one contraction?"""
    return sum(lookup(n["op"] if n.op == "macro" else n.op).family == "contraction" for n in region.nodes) > 1


def joint_cost(region: Region, parts: Sequence[Cost]) -> Cost:
    """The work of the parts, with the traffic of the whole."""
    work = sum(parts, Cost())
    return Cost(work.flops, work.transcendentals, *boundary_bytes(region.graph))
