"""Prices of kernels, remembered by structure and asked for in batches.

A kernel's price depends on its structure only: ops, attributes, physical shapes, which operands are frozen, not on
which weights it reads.  The structure is the hash-consed output node of the kernel's graph over inputs numbered in
order of first use, so equal kernels are the same object and are priced once.

Prices are kept as integers (femtoseconds): sums, differences and undo are then exact, and the cost of a state equals
a fresh evaluation bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from costmodel.objective import Objective
from superopt.ir.graph import Graph, Node, topological

UNIT_S = 1e-15
LONGEST_S = 1e4
BATCH = 512


def to_units(seconds: float) -> int:
    """Seconds as an integer number of femtoseconds; NaN and endless become the longest price."""
    if not seconds < LONGEST_S:  # catches NaN as well
        seconds = LONGEST_S
    return round(max(seconds, 0.0) / UNIT_S)


def kernel_graph(output: Node) -> Graph:
    """The graph of a kernel whose inputs are those that its output reaches, in topological order."""
    inputs = tuple(node for node in topological((output,)) if node.op == "input")
    return Graph(inputs, (output,))


class Pricer:
    """Memo of kernel prices over an objective.

    Attributes:
        prices: key of a kernel in some snapshot -> price in units.
        nodes: key -> the kernel's output node (None: a kernel without cost).
        by_node: the same prices by structure, across snapshots.
        asked, batches: kernels sent to the objective, and in how many calls.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.prices: dict[Hashable, int] = {}
        self.nodes: dict[Hashable, Node | None] = {}
        self.by_node: dict[Node, int] = {}
        self.pending: dict[Hashable, Node] = {}
        self.hits = 0
        self.misses = 0
        self.batches = 0

    def add(self, key: Hashable, node: Node | None) -> int | None:
        """Price of a kernel seen for the first time under this key, or None when it has to be asked for."""
        self.nodes[key] = node
        if node is None:
            self.prices[key] = 0
            return 0
        known = self.by_node.get(node)
        if known is None:
            self.pending[key] = node
            return None
        self.prices[key] = known
        return known

    def flush(self) -> None:
        """Ask the objective for everything pending."""
        fresh = list(dict.fromkeys(node for node in self.pending.values() if node not in self.by_node))
        for start in range(0, len(fresh), BATCH):
            part = fresh[start : start + BATCH]
            prices = np.asarray(self.objective.price([kernel_graph(node) for node in part]), dtype=np.float64)
            self.batches += 1
            for node, price in zip(part, prices, strict=True):
                self.by_node[node] = to_units(float(price))
        self.misses += len(fresh)
        for key, node in self.pending.items():
            self.prices[key] = self.by_node[node]
        self.pending.clear()

    def price_nodes(self, nodes: Iterable[Node]) -> dict[Node, int]:
        """Prices of kernels given by their output nodes."""
        wanted = list(nodes)
        for node in wanted:
            if node not in self.by_node:
                self.pending[node] = node
        self.flush()
        return {node: self.by_node[node] for node in wanted}
