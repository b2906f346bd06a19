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
BASIC = 8  # kernel features that do not belong to a component
KERNEL_WIDTH = BASIC + 2 * len(INDEX)
SIZES = (16, 64, 256)  # kernels of a batch
NODES, EDGES = 14, 18  # room per kernel of a batch
_SHARED = len(COMPUTE) + len(MEMORY)


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """Nodes and edges of one kernel: opcodes, rows, and columns (operand, reader, position) of its edges."""

    ops: np.ndarray
    rows: np.ndarray
    edges: np.ndarray
    bytes: float


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A batch; arrays are padded with nodes, edges and kernels that belong to one more kernel at the end.

    Attributes:
        ops, rows, owner: per node.
        sources, readers, positions: per edge.
        kernel: kernel features (not standardised).
        count: kernels in use.
    """

    ops: np.ndarray
    rows: np.ndarray
    owner: np.ndarray
    sources: np.ndarray
    readers: np.ndarray
    positions: np.ndarray
    kernel: np.ndarray
    count: int


class Encoder:
    """Structures of kernels; rows are remembered per node."""

    def __init__(self) -> None:
        self._rows: weakref.WeakKeyDictionary[Node, tuple[int, np.ndarray]] = weakref.WeakKeyDictionary()

    def structure(self, graph: Graph) -> Structure:
        """Nodes and edges of a kernel in an order that its structure alone decides."""
        order = topological(graph.outputs)
        place = {node: i for i, node in enumerate(order)}
        known = self._rows
        found: list[tuple[int, np.ndarray]] = []
        edges: list[tuple[int, int, int]] = []
        size = 0.0
        outputs = set(graph.outputs)
        for i, node in enumerate(order):
            entry = known.get(node)
            if entry is None:
                entry = known[node] = (opcode(node), row(node))
            found.append(entry)
            for k, x in enumerate(node.inputs):
                edges.append((place[x], i, k if k < POSITIONS else POSITIONS - 1))
            if node.op == "input" or node in outputs:
                size += sum(type_bytes(t) for t in node.types)
        rows = np.stack([r for _, r in found])
        for node in outputs:
            rows[place[node], OUTPUT] = 1.0
        ops = np.array([op for op, _ in found], np.int32)
        return Structure(ops, rows, np.array(edges, np.int32).reshape(-1, 3), size)


def kernel_features(table: Table, coefficients: Coefficients, structures: Sequence[Structure]) -> np.ndarray:
    """Features of kernels as a whole, one row each."""
    times = table.counts * coefficients.theta
    times[:, :_SHARED] /= table.spread[:, None] ** coefficients.sharing
    times *= table.repeat[:, None]
    component = _sum_rows(times, table.owner, table.kernels)
    total = analytical.seconds(table, coefficients)
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
    out[:, 5] = np.log1p([len(s.ops) for s in structures])
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
        n, e = len(s.ops), len(s.edges)
        if i > start and (i - start >= most or nodes + n > most * NODES or edges + e > most * EDGES):
            yield start, i
            start, nodes, edges = i, 0, 0
        nodes, edges = nodes + n, edges + e
    if len(structures) > start:
        yield start, len(structures)


def pack(structures: Sequence[Structure], kernel: np.ndarray, size: int | None = None) -> Packed:
    """One batch, padded: kernels to `size` or the next of `SIZES`, nodes and edges in proportion."""
    counts = np.array([len(s.ops) for s in structures])
    links = np.array([len(s.edges) for s in structures])
    nodes, edges = int(counts.sum()), int(links.sum())
    if size is None:
        size = next((s for s in SIZES if len(structures) <= s and nodes <= s * NODES and edges <= s * EDGES), SIZES[-1])
    room, lanes = size * NODES, size * EDGES
    while room < nodes or lanes < edges:  # one huge kernel: doubled until it fits
        room, lanes = 2 * room, 2 * lanes
    ops = np.zeros(room, np.int32)
    rows = np.zeros((room, WIDTH), np.float32)
    owner = np.full(room, size, np.int32)
    ops[:nodes] = np.concatenate([s.ops for s in structures])
    np.concatenate([s.rows for s in structures], out=rows[:nodes])
    owner[:nodes] = np.repeat(np.arange(len(structures)), counts)
    found = np.concatenate([s.edges for s in structures])
    shift = np.repeat(np.cumsum(counts) - counts, links)
    sources, readers = (np.full(lanes, room, np.int32) for _ in range(2))
    positions = np.zeros(lanes, np.int32)
    sources[:edges] = found[:, 0] + shift
    readers[:edges] = found[:, 1] + shift
    positions[:edges] = found[:, 2]
    features = np.zeros((size, kernel.shape[1]), np.float32)
    features[: len(structures)] = kernel
    return Packed(ops, rows, owner, sources, readers, positions, features, len(structures))
