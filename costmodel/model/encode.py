"""Encodes kernels as arrays of fixed layout, and pads batches of them to one shape.

A kernel is a list of nodes (opcode and row, see `costmodel.features.node_rows`), edges from operand to reader with the
operand's position, and kernel features.  The kernel features are the roofline's time and working set against the
caches, as logarithms, and the shares of its components in the time.  Pooled features summarize a kernel's rows without
its edges.  A batch lays the nodes of its kernels end to end, so large and small kernels share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from costmodel.arrays import (
    KernelFeatures,
    NodeRow,
    NodesPerKernel,
    PerEdge,
    PerKernel,
    PerNode,
    PooledFeatures,
)
from costmodel.features.counts import COMPUTE, INDEX, MEMORY
from costmodel.features.node_rows import OPCODES, OUTPUT, WIDTH, opcode, row
from costmodel.features.steps import Kind, Reached
from costmodel.model import analytical
from costmodel.model.analytical import Coefficients, FeatureTable
from costmodel.model.catalogue import Catalogue
from superopt.ir.graph import Graph
from superopt.machine import facts as machine
from superopt.measure.kernels import MIN_SECONDS

POSITIONS = 4  # operands after the third count as the last position
UNIT_S = 1e-6 * analytical.NOISE_US  # components below the uncertainty of a label count in proportion
BASIC = 8  # kernel features that do not belong to a component
KERNEL_WIDTH = BASIC + 2 * len(INDEX)
POOLED_WIDTH = 2 * WIDTH + len(OPCODES)  # ops last: those of weights on disk are taken from there
NODES, EDGES = 14, 18  # room per kernel of a padded batch
_SHARED = len(COMPUTE) + len(MEMORY)


@dataclass(slots=True, eq=False)
class KernelStructure:
    """Nodes and edges of one kernel; immutable.

    Attributes:
        rows: per node, its place in the encoder's table.
        operands: places in `rows` of the operands of each node, one after the other.
        bytes: bytes of the inputs and of the results.
    """

    rows: list[int]
    operands: list[int]
    bytes: int

    @property
    def links(self) -> int:
        """Number of edges."""
        return len(self.operands)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedKernels:
    """The nodes and edges of many kernels, end to end; edges are sorted by their readers.

    Attributes:
        rows: per node, its place in the encoder's table.
        counts: nodes of each kernel.
        sources, readers, positions: per edge.
    """

    rows: PerNode
    counts: NodesPerKernel
    sources: PerEdge
    readers: PerEdge
    positions: PerEdge


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """A padded batch; padding nodes, edges and kernels belong to one more kernel at the end.

    Attributes:
        ops, rows, owner: per node; rows are places in the encoder's table.
        sources, readers, positions: per edge.
        size: number of kernels that the batch has room for.
    """

    ops: PerNode
    rows: PerNode
    owner: PerNode
    sources: PerEdge
    readers: PerEdge
    positions: PerEdge
    size: int


class NodeRows:
    """Distinct opcodes, rows and numbers of operands of nodes, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.ops = np.zeros(256, np.int32)
        self.fans = np.zeros(256, np.int32)
        self.values = np.zeros((256, WIDTH), np.float32)
        self._place: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._place)

    def add(self, op: int, values: NodeRow, fan: int) -> int:
        """Return the place of a row, adding it if it is new."""
        key = values.tobytes() + op.to_bytes(2, "little") + fan.to_bytes(4, "little")
        place = self._place.setdefault(key, len(self._place))
        if place == len(self.values):
            self.ops = np.concatenate([self.ops, np.zeros_like(self.ops)])
            self.fans = np.concatenate([self.fans, np.zeros_like(self.fans)])
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.ops[place], self.fans[place], self.values[place] = op, fan, values
        return place


class KernelEncoder:
    """Encoder of kernels over a catalogue of nodes; rows are made once per kind and kept once per content."""

    def __init__(self, catalogue: Catalogue | None = None) -> None:
        self.catalogue = catalogue or Catalogue()
        self.rows = NodeRows()
        self._inner: dict[Kind, int] = {}
        self._outer: dict[Kind, int] = {}

    def encode(self, kernels: Iterable[Graph]) -> tuple[FeatureTable, list[KernelStructure]]:
        """Return features of steps, and structures, of kernels without macros."""
        reached = self.catalogue.reached(kernels)
        return self.catalogue.table(reached), [self.structure(kernel) for kernel in reached]

    def structure(self, kernel: Reached) -> KernelStructure:
        """Return nodes and edges of a kernel in an order that its structure alone decides."""
        place = kernel.place
        kinds = [entry.kind for entry in place]
        inner = self._inner
        try:
            rows = [inner[kind] for kind in kinds]
        except KeyError:
            rows = [self._row(kind) for kind in kinds]
        size = sum([kind.given for kind in kinds])
        for output in {*kernel.outputs}:
            kind = output.kind
            row = self._outer.get(kind)
            rows[place[output]] = self._output(kind) if row is None else row
            size += kind.result - kind.given
        return KernelStructure(rows, kernel.operands, size)

    def _row(self, kind: Kind) -> int:
        number = self._inner.get(kind)
        if number is None:
            node = kind.example
            number = self._inner[kind] = self.rows.add(opcode(node), row(node), len(node.inputs))
        return number

    def _output(self, kind: Kind) -> int:
        node = kind.example
        values = self.rows.values[self._row(kind)].copy()
        values[OUTPUT] = 1.0
        number = self._outer[kind] = self.rows.add(opcode(node), values, len(node.inputs))
        return number


def prior_seconds(table: FeatureTable, coefficients: Coefficients) -> PerKernel:
    """Return seconds by the roofline, at least the measurable minimum, which kernels without steps get."""
    return np.maximum(analytical.seconds(table, coefficients), MIN_SECONDS)


def kernel_features(
    table: FeatureTable,
    coefficients: Coefficients,
    structures: Sequence[KernelStructure],
    total: PerKernel | None = None,
) -> KernelFeatures:
    """Return the features of kernels as a whole, one row each; `total` is the result of `prior_seconds`."""
    width = len(INDEX)
    times = np.empty((len(table.counts), width + 1))  # the last column: time if nothing were shared out
    np.multiply(table.counts, coefficients.theta, out=times[:, :width])
    times[:, :_SHARED] /= (table.spread**coefficients.sharing)[:, None]
    times[:, :width] *= table.repeat[:, None]
    times[:, width] = times[:, :width].sum(1) * table.spread
    sums = _sum_rows(times, table.owner, table.kernels)
    component, wide = sums[:, :width], sums[:, width]
    whole = np.maximum(component.sum(1), 1e-12)
    total = prior_seconds(table, coefficients) if total is None else total
    facts = machine.describe()
    caches = dict(facts.caches_bytes)
    l2 = caches.get("L2", 1 << 20) * facts.cores
    l3 = caches.get("L3", 8 * l2)
    size = np.array([s.bytes for s in structures], float)
    out = np.empty((table.kernels, KERNEL_WIDTH), np.float32)
    out[:, 0] = np.log(total / 1e-5)
    out[:, 1] = np.log1p(size / l2)
    out[:, 2] = np.log1p(size / l3)
    out[:, 3] = np.log1p(size / 4096.0) / 4.0
    out[:, 4] = np.log1p(np.bincount(table.owner, minlength=table.kernels))
    out[:, 5] = np.log1p([len(s.rows) for s in structures])
    out[:, 6] = np.log(np.maximum(wide, 1e-12) / whole)
    out[:, 7] = component[:, :_SHARED].sum(1) / whole
    out[:, BASIC : BASIC + width] = np.log1p(component / UNIT_S)
    np.divide(component, whole[:, None], out=out[:, BASIC + width :], casting="same_kind")
    return out


def pooled_features(batch: JoinedKernels, rows: NodeRows) -> PooledFeatures:
    """Return edge-free features of kernels: sums and maxima of node rows, node counts by op; log1p, signed."""
    count = len(batch.counts)
    out = np.zeros((count, POOLED_WIDTH), np.float32)
    if len(batch.rows):
        filled, starts = batch.counts > 0, batch.counts.cumsum() - batch.counts
        values = rows.values.take(batch.rows, axis=0)
        out[filled, :WIDTH] = np.add.reduceat(values, starts[filled], axis=0)
        out[filled, WIDTH : 2 * WIDTH] = np.maximum.reduceat(values, starts[filled], axis=0)
        owner = np.repeat(np.arange(count), batch.counts)
        ops = np.bincount(owner * len(OPCODES) + rows.ops.take(batch.rows), minlength=count * len(OPCODES))
        out[:, 2 * WIDTH :] = ops.reshape(count, len(OPCODES))
    return np.copysign(np.log1p(np.abs(out)), out)


def _sum_rows(values: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Sum rows that belong together; owners do not decrease."""
    if len(owner) == count and (owner[1:] != owner[:-1]).all():  # one each
        return values
    out = np.zeros((count, values.shape[1]))
    if len(owner):
        first = np.concatenate([[0], 1 + np.flatnonzero(owner[1:] != owner[:-1])])
        out[owner[first]] = np.add.reduceat(values, first, axis=0)
    return out


def join(structures: Sequence[KernelStructure], rows: NodeRows) -> JoinedKernels:
    """Return the nodes and edges of kernels, end to end."""
    counts = np.array([len(s.rows) for s in structures])
    links = np.array([len(s.operands) for s in structures])
    at = np.array(list(chain.from_iterable([s.rows for s in structures])), np.int64)
    sources = np.array(list(chain.from_iterable([s.operands for s in structures])), np.int64)
    sources += np.repeat(counts.cumsum() - counts, links)
    fans = rows.fans.take(at)
    readers = np.repeat(np.arange(len(at)), fans)
    positions = np.arange(len(sources)) - (fans.cumsum() - fans).take(readers)
    return JoinedKernels(at, counts, sources, readers, np.minimum(positions, POSITIONS - 1, out=positions))


def pack(structures: Sequence[KernelStructure], rows: NodeRows, size: int) -> PackedBatch:
    """Return a batch with room for `size` kernels, and for nodes and edges in proportion.

    Raises:
        ValueError: the kernels do not fit.
    """
    room, lanes = size * NODES, size * EDGES
    joined = join(structures, rows)
    nodes, edges = len(joined.rows), len(joined.sources)
    if len(structures) > size or nodes > room or edges > lanes:
        raise ValueError(f"{len(structures)} kernels of {nodes} nodes do not fit a batch of {size}")
    ops, at, owner = np.zeros(room, np.int32), np.full(room, len(rows.values), np.int32), np.full(room, size, np.int32)
    at[:nodes] = joined.rows
    ops[:nodes] = rows.ops[joined.rows]
    owner[:nodes] = np.repeat(np.arange(len(structures)), joined.counts)
    sources, readers = np.full(lanes, room, np.int32), np.full(lanes, room, np.int32)
    positions = np.zeros(lanes, np.int32)
    sources[:edges], readers[:edges], positions[:edges] = joined.sources, joined.readers, joined.positions
    return PackedBatch(ops, at, owner, sources, readers, positions, size)
