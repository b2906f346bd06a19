"""Prices of kernels, cached by structure and requested in batches.

A kernel's price depends on its structure only: ops, attributes, physical shapes, which operands are frozen, not on
which weights it reads.  The structure is the hash-consed output node of the kernel's graph over inputs numbered in
order of first use, so equal kernels are the same object and are priced once.

Prices are kept as integers (femtoseconds).  Sums, differences and undo are then exact, and the cost of a state equals
a fresh evaluation bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from costmodel.model.objective import Objective
from superopt.ir.graph import Graph, Node, topological
from superopt.search.meter import CHECK_EVERY, Meter

UNIT_S = 1e-15  # prices are integers: their sums do not depend on the order
LONGEST_S = 1e4  # the price of what has none, NaN included
BATCH = 512  # kernels per evaluation of the model


def to_units(seconds: float) -> int:
    """Seconds as an integer number of femtoseconds; NaN and infinity become the longest price."""
    if not seconds < LONGEST_S:  # catches NaN as well
        seconds = LONGEST_S
    return round(max(seconds, 0.0) / UNIT_S)


def kernel_graph(output: Node) -> Graph:
    """The graph of a kernel whose inputs are those that its output reaches, in topological order."""
    inputs = tuple(node for node in topological((output,)) if node.op == "input")
    return Graph(inputs, (output,))


class Pricer:
    """Prices by structure over an objective; shared by all searches under that objective.

    Attributes:
        by_node: output node of a kernel -> price in units.
        batches: number of calls of the objective.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.by_node: dict[Node, int] = {}
        self.batches = 0

    def price(self, nodes: Iterable[Node]) -> None:
        """Ask the objective for every kernel not priced yet."""
        fresh = list(dict.fromkeys(node for node in nodes if node not in self.by_node))
        for start in range(0, len(fresh), BATCH):
            part = fresh[start : start + BATCH]
            prices = np.asarray(self.objective.price([kernel_graph(node) for node in part]), dtype=np.float64)
            self.batches += 1
            for node, price in zip(part, prices, strict=True):
                self.by_node[node] = to_units(float(price))


class Memo:
    """Prices by the keys of one snapshot, with the kernels that wait to be priced.

    Attributes:
        prices: key -> price in units.
        nodes: key -> the kernel's output node (None: a kernel without cost).
        pending: keys seen and not yet priced.
        lookups: number of times a price was needed, known or not.
    """

    def __init__(self, pricer: Pricer) -> None:
        self.pricer = pricer
        self.prices: dict[Hashable, int] = {}
        self.nodes: dict[Hashable, Node | None] = {}
        self.pending: dict[Hashable, Node] = {}
        self.lookups = 0

    def add(self, key: Hashable, node: Node | None) -> int | None:
        """Price of a kernel seen for the first time under this key; None when it has to be requested."""
        self.nodes[key] = node
        known = 0 if node is None else self.pricer.by_node.get(node)
        if known is None:
            assert node is not None
            self.pending[key] = node
            return None
        self.prices[key] = known
        return known

    def flush(self, meter: Meter | None = None) -> None:
        """Request prices of everything pending; with a clock, only of as much as there is time for.

        The rest is forgotten until it is seen again, as cutting and pricing a kernel in Winograd's form takes 60 ms.
        """
        waiting = list(self.pending.items())
        self.pending.clear()
        clock = None if meter is None or meter.seconds is None else meter
        size = BATCH if clock is None else CHECK_EVERY
        for start in range(0, len(waiting), size):
            part = waiting[start : start + size]
            self.pricer.price(node for _, node in part)
            for key, node in part:
                self.prices[key] = self.pricer.by_node[node]
            if clock is not None and clock.exhausted():
                return
