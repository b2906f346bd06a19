"""Kernels as arrays of fixed layout, and batches of them padded to a few shapes.

A kernel is a list of nodes (opcode and row, see `costmodel.node_rows`), edges from operand to reader with the
operand's position, and kernel features: what the roofline makes of it, as logarithms and shares of the time of each
of its components, with the working set against the caches.  A batch lays the nodes of its kernels end to end, so
large and small kernels share one; it is padded to one of a few sizes, so few programs are compiled.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from costmodel import analytical
from costmodel.analytical import Coefficients, Table
from costmodel.features import COMPUTE, INDEX, MEMORY
from costmodel.node_rows import OUTPUT, WIDTH, opcode, row
from superopt import machine
from superopt.ir.graph import Graph, Node, topological
from superopt.ir.program import type_bytes

POSITIONS = 4  # operands after the third count as the last position
UNIT_S = 5e-7
LEAST_S = 2e-7
BASIC = 8  # kernel features that do not belong to a component
KERNEL_WIDTH = BASIC + 2 * len(INDEX)
SIZES = (16, 64, 256)  # kernels of a batch
NODES, EDGES = 14, 18  # room per kernel of a batch
_SHARED = len(COMPUTE) + len(MEMORY)


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """Nodes and edges of one kernel.

    Attributes:
        rows: per node, its place in the encoder's table.
        edges: operand, reader, position, operand, reader, position, ...
        bytes: of what is given and of the results.
    """

    rows: list[int]
    edges: list[int]
    bytes: float

    @property
    def links(self) -> int:
        """Number of edges."""
        return len(self.edges) // 3


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A batch; arrays are padded with nodes, edges and kernels that belong to one more kernel at the end.

    Attributes:
        ops, rows, owner: per node; rows are places in the encoder's table.
        sources, readers, positions: per edge.
        size: kernels that the batch has room for.
    """

    ops: np.ndarray
    rows: np.ndarray
    owner: np.ndarray
    sources: np.ndarray
    readers: np.ndarray
    positions: np.ndarray
    size: int


class Rows:
    """Distinct opcodes and rows of nodes, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.ops = np.zeros(256, np.int32)
        self.values = np.zeros((256, WIDTH), np.float32)
        self._place: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._place)

    def add(self, op: int, values: np.ndarray) -> int:
        """Place of a row."""
        key = values.tobytes() + op.to_bytes(2, "little")
        place = self._place.setdefault(key, len(self._place))
        if place == len(self.values):
            self.ops = np.concatenate([self.ops, np.zeros_like(self.ops)])
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.ops[place], self.values[place] = op, values
        return place


class Encoder:
    """Structures of kernels; rows are made once per node and kept once per content."""

    def __init__(self) -> None:
        self.rows = Rows()
        self._inner: weakref.WeakKeyDictionary[Node, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._outer: weakref.WeakKeyDictionary[Node, int] = weakref.WeakKeyDictionary()

    def structure(self, graph: Graph) -> Structure:
        """Nodes and edges of a kernel in an order that its structure alone decides."""
        order = topological(graph.outputs)
        place = {node: i for i, node in enumerate(order)}
        known, outputs = self._inner, graph.outputs
        rows: list[int] = []
        edges: list[int] = []
        size = 0
        for i, node in enumerate(order):
            inputs = node.inputs
            if node in outputs:
                rows.append(self._output(node))
                size += sum(type_bytes(t) for t in node.types)
            else:
                entry = known.get(node)
                if entry is None:
                    given = type_bytes(node.types[0]) if node.op == "input" else 0
                    entry = known[node] = self.rows.add(opcode(node), row(node)), given
                rows.append(entry[0])
                size += entry[1]
            if inputs:
                k = 0
                for x in inputs:
                    edges += (place[x], i, k)
                    if k < POSITIONS - 1:
                        k += 1
        return Structure(rows, edges, float(size))

    def _output(self, node: Node) -> int:
        found = self._outer.get(node)
        if found is None:
            values = row(node)
            values[OUTPUT] = 1.0
            found = self._outer[node] = self.rows.add(opcode(node), values)
        return found


def prior_seconds(table: Table, coefficients: Coefficients) -> np.ndarray:
    """Seconds by the roofline, at least what can be measured: kernels without a step have none."""
    return np.maximum(analytical.seconds(table, coefficients), LEAST_S)


def kernel_features(table: Table, coefficients: Coefficients, structures: Sequence[Structure]) -> np.ndarray:
    """Features of kernels as a whole, one row each."""
    times = table.counts * coefficients.theta
    times[:, :_SHARED] /= table.spread[:, None] ** coefficients.sharing
    times *= table.repeat[:, None]
    component = _sum_rows(times, table.owner, table.kernels)
    total = prior_seconds(table, coefficients)
    facts = machine.describe()
    caches = dict(facts.caches_bytes)
    l2 = caches.get("L2", 1 << 20) * facts.cores
    l3 = caches.get("L3", 8 * l2)
    size = np.array([s.bytes for s in structures])
    out = np.zeros((table.kernels, KERNEL_WIDTH), np.float32)
    out[:, 0] = np.log(total / 1e-5)
    out[:, 1] = np.log1p(size / l2)
    out[:, 2] = np.log1p(size / l3)
    out[:, 3] = np.log1p(size / 4096.0) / 4.0
    out[:, 4] = np.log1p(np.bincount(table.owner, minlength=table.kernels))
    out[:, 5] = np.log1p([len(s.rows) for s in structures])
    wide = _sum_rows(times.sum(1, keepdims=True) * table.spread[:, None], table.owner, table.kernels)[:, 0]
    out[:, 6] = np.log(np.maximum(wide, 1e-12) / np.maximum(component.sum(1), 1e-12))
    out[:, 7] = component[:, :_SHARED].sum(1) / np.maximum(component.sum(1), 1e-12)
    out[:, BASIC : BASIC + len(INDEX)] = np.log1p(component / UNIT_S)
    out[:, BASIC + len(INDEX) :] = component / np.maximum(component.sum(1, keepdims=True), 1e-12)
    return out


def _sum_rows(values: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Sums of rows that belong together; owners do not decrease."""
    out = np.zeros((count, values.shape[1]))
    if len(owner):
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        out[owner[first]] = np.add.reduceat(values, first, axis=0)
    return out


def batches(structures: Sequence[Structure], most: int = SIZES[-1]) -> Iterator[tuple[int, int]]:
    """Ranges of kernels that fit one batch each."""
    start = nodes = edges = 0
    for i, s in enumerate(structures):
        n, e = len(s.rows), s.links
        if i > start and (i - start >= most or nodes + n > most * NODES or edges + e > most * EDGES):
            yield start, i
            start, nodes, edges = i, 0, 0
        nodes, edges = nodes + n, edges + e
    if len(structures) > start:
        yield start, len(structures)


def pack(structures: Sequence[Structure], rows: Rows, size: int | None = None) -> Packed:
    """One batch, padded: kernels to `size` or the next of `SIZES`, nodes and edges in proportion."""
    counts = np.array([len(s.rows) for s in structures])
    links = np.array([s.links for s in structures])
    nodes, edges = int(counts.sum()), int(links.sum())
    if size is None:
        fitting = (s for s in SIZES if len(counts) <= s and nodes <= s * NODES and edges <= s * EDGES)
        size = next(fitting, SIZES[-1])
    room, lanes = size * NODES, size * EDGES
    while room < nodes or lanes < edges:  # one huge kernel: doubled until it fits
        room, lanes = 2 * room, 2 * lanes
    ops, at, owner = np.zeros(room, np.int32), np.full(room, len(rows.values), np.int32), np.full(room, size, np.int32)
    at[:nodes] = np.fromiter(chain.from_iterable(s.rows for s in structures), np.int32, nodes)
    ops[:nodes] = rows.ops[at[:nodes]]
    owner[:nodes] = np.repeat(np.arange(len(counts)), counts)
    found = np.fromiter(chain.from_iterable(s.edges for s in structures), np.int32, 3 * edges).reshape(-1, 3)
    shift = np.repeat(np.cumsum(counts) - counts, links)
    sources, readers = np.full(lanes, room, np.int32), np.full(lanes, room, np.int32)
    positions = np.zeros(lanes, np.int32)
    sources[:edges] = found[:, 0] + shift
    readers[:edges] = found[:, 1] + shift
    positions[:edges] = found[:, 2]
    return Packed(ops, at, owner, sources, readers, positions, size)
