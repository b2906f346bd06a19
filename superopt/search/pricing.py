"""Prices of kernels, cached by structure and requested in batches.

A kernel's price depends on its structure only: ops, attributes, physical shapes, which operands are frozen, not on
which weights it reads.  The structure is the hash-consed output node of the kernel's graph over inputs numbered in
order of first use, so equal kernels are the same object and are priced once.

Prices are kept as integers (femtoseconds).  Sums, differences and undo are then exact, and the cost of a state equals
a fresh evaluation bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import numpy as np

from costmodel.model.objective import Objective
from superopt.ir.graph import Graph, Node, topological
from superopt.machine.deadline import Deadline, Stopwatch
from superopt.search.emit import alone
from superopt.search.meter import CHECK_EVERY
from superopt.search.snapshot import FUSED, Forms, OptionForm

UNIT_S = 1e-15  # prices are integers: their sums do not depend on the order
LONGEST_S = 1e4  # the price of what has none, NaN included
BATCH = 512  # kernels per evaluation of the model
FUSED_PART = 0.5  # share of the time of an elementwise op or a view alone that it costs inside another kernel: in
# starts, with shares from 0 to 1 the best of searches of five training programs stays within 0.2 %


def to_units(seconds: float) -> int:
    """Seconds as an integer number of femtoseconds; NaN and infinity become the longest price."""
    if not seconds < LONGEST_S:  # catches NaN as well
        seconds = LONGEST_S
    return round(max(seconds, 0.0) / UNIT_S)


def kernel_graph(output: Node) -> Graph:
    """The graph of a kernel whose inputs are those that its output reaches, in topological order."""
    inputs = tuple(node for node in topological((output,)) if node.op == "input")
    return Graph(inputs, (output,))


def fused_part(form: OptionForm) -> float:
    """Share of an op's own kernel time that it is taken to cost inside another kernel."""
    return FUSED_PART if form.op in FUSED else 1.0


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
        self.room = CHECK_EVERY  # kernels of the next batch under a clock

    def price(self, nodes: Iterable[Node], until: Deadline | None = None) -> None:
        """Ask the objective for every kernel not priced yet, or for as many as there is time for.

        Under a clock, kernels with a macro come last, as expanding and cutting one takes a hundred times as long, and a
        batch is as large as fits into a small part of the time that is left.
        """
        fresh = list(dict.fromkeys(node for node in nodes if node not in self.by_node))
        clock = until if until is not None and until.is_timed else None
        if clock is not None:
            fresh.sort(key=lambda node: any(n.op == "macro" for n in topological((node,))))
        start = 0
        while start < len(fresh) and not (clock is not None and clock.is_over):
            watch, left_s = Stopwatch(), 0.0 if clock is None else clock.left_s
            part = fresh[start : start + (BATCH if clock is None else self.room)]
            prices = np.asarray(self.objective.price([kernel_graph(node) for node in part]), dtype=np.float64)
            self.batches += 1
            for node, price in zip(part, prices, strict=True):
                self.by_node[node] = to_units(float(price))
            start += len(part)
            if clock is not None:
                fitting = len(part) * left_s / CHECK_EVERY / max(watch.elapsed_s, 1e-9)
                self.room = max(1, min(BATCH, 2 * self.room, int(fitting)))


class Memo:
    """Prices by the signatures of kernels, with the kernels that wait to be priced.

    Attributes:
        nodes: key -> the kernel's output node (None: a kernel without cost).
        prices, drafts: key -> price in units, estimate of it.
        pending: output nodes of kernels to be priced.
        lookups: number of times a price was needed, known or not.
    """

    def __init__(self, pricer: Pricer, forms: Forms) -> None:
        self.pricer, self.forms, self.nodes = pricer, forms, forms.kernels
        self.prices: dict[Hashable, int] = {}
        self.drafts: dict[tuple[int, ...], int] = {}
        self.pending: dict[Node, None] = {}
        self.lookups = 0

    def known(self, key: Hashable) -> int | None:
        """Price of a kernel, if it was asked for under this key or another; else None."""
        price = self.prices.get(key)
        if price is None and key in self.nodes:
            node = self.nodes[key]
            price = 0 if node is None else self.pricer.by_node.get(node)
            if price is not None:
                self.prices[key] = price
        return price

    def price(self, key: Hashable, make: Callable[[], Node | None]) -> int | None:
        """Price of a kernel; None where it is not known and now waits to be asked for.

        Args:
            key: the kernel's signature.
            make: makes its output node, where no search has met it before.
        """
        if key not in self.nodes:
            self.nodes[key] = make()
        price = self.known(key)
        if price is None:
            node = self.nodes[key]
            assert node is not None
            self.pending[node] = None
        return price

    def draft(self, key: tuple[int, ...]) -> int | None:
        """Estimate of a kernel: the prices of its ops alone, less where they are fused.

        None where such a price is missing and now waits to be asked for.
        """
        draft = self.drafts.get(key)
        if draft is None:
            numbers, at = list[int](), 0
            while at < len(key):
                numbers.append(key[at])
                at += 1 + self.forms.laid[key[at]][0].frozen.count(None)
            parts = [(number, alone(self.forms, number)) for number in numbers]
            missing = {node: None for _, node in parts if node is not None and node not in self.pricer.by_node}
            if missing:
                self.pending |= missing
                return None
            costs = [
                (1.0 if len(parts) == 1 else fused_part(self.forms.laid[number][0])) * self.pricer.by_node[node]
                for number, node in parts
                if node is not None
            ]
            draft = self.drafts[key] = round(sum(costs))
        return draft

    def flush(self, until: Deadline | None = None) -> None:
        """Request prices of everything pending, as far as there is time; the rest is forgotten until seen again."""
        waiting = list(self.pending)
        self.pending.clear()
        self.pricer.price(waiting, until)
