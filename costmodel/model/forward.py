"""The network's forward pass in NumPy, by which the search prices kernels.

It computes the same as `costmodel.model.network`, arranged for batches of any size on one core, without compiling.
Embeddings of nodes and their first layer's messages are made once per distinct row.  The three products of a layer are
one.  The messages of operands and readers to a node are one sparse product, with means and positions in its entries and
columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import KernelInputs, KernelMembers
from costmodel.model.encode import KERNEL_WIDTH, JoinedKernels, NodeRows
from costmodel.model.model import NetworkShape, Params

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

BATCH_NODES = 1024  # nodes of a batch: its arrays stay in the L2 cache


class Forward:
    """The forward pass of one network over one table of rows, which may grow."""

    def __init__(self, params: Params, shape: NetworkShape, rows: NodeRows) -> None:
        given = {name: np.asarray(value, np.float32) for name, value in params.items()}
        self.params, self.rows, self.width = given, rows, shape.width
        self.layers = [
            (
                np.concatenate([given[f"own{k}"], given[f"operand{k}"], given[f"reader{k}"]], axis=1),
                given[f"position{k}"],
                given[f"bias{k}"],
            )
            for k in range(shape.layers)
        ]
        pool = given["pool"].copy()
        pool[: shape.width] /= 8.0
        self.pool = pool
        self.mean = np.full((shape.width, 1), 1.0 / shape.width, np.float32)
        self.rooms: dict[str, np.ndarray] = {}
        self.made = 0
        self.start = np.zeros((0, 4 * shape.width), np.float32)  # embedding and first messages of each row

    def __call__(self, batch: JoinedKernels, kernel: KernelInputs) -> KernelMembers:
        """Return the unbounded correction of log time, kernels by members.

        Args:
            batch: nodes and edges of the kernels.
            kernel: their standardised features, wide and pooled.
        """
        params = self.params
        trunk = self._pooled(batch) @ self.pool
        trunk += kernel[:, :KERNEL_WIDTH] @ params["kernel"]
        flat = kernel @ params["flat"]
        return np.concatenate([self._heads(trunk, "trunk_bias"), self._heads(flat, "flat_bias", "flat_")], axis=1)

    def _heads(self, trunk: np.ndarray, bias: str, of: str = "") -> np.ndarray:
        """Return the outputs of the heads of one half of the members; `trunk` is overwritten."""
        params = self.params
        trunk += params[bias]
        np.maximum(trunk, 0.0, out=trunk)
        hidden = trunk @ params[f"{of}hidden"]
        hidden += params[f"{of}hidden_bias"]
        np.maximum(hidden, 0.0, out=hidden)
        hidden += trunk
        return hidden @ params[f"{of}heads"] + params[f"{of}heads_bias"]

    def _started(self) -> np.ndarray:
        if self.made < len(self.rows):
            params, new = self.params, slice(self.made, len(self.rows))
            h = self.rows.values[new] @ params["row"]
            h += params["op"][self.rows.ops[new]]
            h += params["row_bias"]
            np.maximum(h, 0.0, out=h)
            if new.stop > len(self.start):
                self.start = np.concatenate(
                    [self.start, np.zeros((len(self.rows.values) - len(self.start), self.start.shape[1]), np.float32)]
                )
            self.start[new, : self.width] = h
            self.start[new, self.width :] = h @ self.layers[0][0]
            self.made = len(self.rows)
        return self.start

    def _pooled(self, batch: JoinedKernels) -> np.ndarray:
        """Return sum, mean and maximum over the nodes of each kernel."""
        width, nodes, edges = self.width, len(batch.rows), len(batch.sources)
        start = self._started()
        h = start[:, :width].take(batch.rows, axis=0)
        # own part and messages of every node, then operands' messages along edges
        parts = self._room("parts", 3 * nodes + edges, width)
        along = parts[3 * nodes :]
        said = parts[: 3 * nodes]
        heard = _heard(batch)
        operands = 3 * batch.sources + 1
        scratch = self._room("scratch", nodes, width)
        for k, (weight, position, bias) in enumerate(self.layers):
            if k:
                np.matmul(h, weight, out=said.reshape(nodes, 3 * width))
            else:
                said.reshape(nodes, 3 * width)[:] = start[:, width:].take(batch.rows, axis=0)
            said.take(operands, axis=0, out=along, mode="clip")
            along *= position.take(batch.positions, axis=0)
            new = heard @ parts
            new += bias
            np.maximum(new, 0.0, out=new)
            new += h
            scale = np.multiply(new, new, out=scratch) @ self.mean
            scale += np.float32(1.0)
            new /= np.sqrt(scale, out=scale)
            h = new
        ends = batch.counts.cumsum()
        starts = ends - batch.counts
        out = np.empty((len(ends), 3 * width), np.float32)
        place = np.arange(nodes)
        mine = (place >= starts[:, None]) & (place < ends[:, None])
        np.matmul(mine.astype(np.float32), h, out=out[:, :width])
        np.divide(out[:, :width], batch.counts.astype(np.float32)[:, None], out=out[:, width : 2 * width])
        np.maximum.reduceat(h, starts, axis=0, out=out[:, 2 * width :])
        return out

    def _room(self, name: str, rows: int, width: int) -> np.ndarray:
        """Return an array that is reused in the next batch: fresh memory costs more than the arithmetic on it."""
        room = self.rooms.get(name)
        if room is None or room.size < rows * width:
            room = self.rooms[name] = np.empty(max(rows, BATCH_NODES) * width, np.float32)
        return room[: rows * width].reshape(rows, width)


def _heard(batch: JoinedKernels) -> csr_matrix:
    """Return the sparse matrix that sums each node's own part with the means of messages from operands and readers."""
    from scipy.sparse import csr_matrix  # late: takes longer to load than this package; only prices need it

    nodes, edges = len(batch.rows), len(batch.sources)
    readers, sources = batch.readers, batch.sources
    small = sources.astype(np.int16) if nodes < 1 << 15 else sources  # sorted by radix
    order = small.argsort(kind="stable")
    below, above = np.bincount(readers, minlength=nodes), np.bincount(sources, minlength=nodes)
    starts = np.zeros(nodes + 1, np.int32)
    np.cumsum(below + above + 1, out=starts[1:])
    own = starts[:-1]
    number = np.arange(edges)
    into = (own + 1 - (below.cumsum() - below)).take(readers) + number
    back = (own + 1 + below - (above.cumsum() - above)).take(sources.take(order)) + number
    columns, values = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    columns[own], values[own] = np.arange(0, 3 * nodes, 3), 1.0
    columns[into], values[into] = 3 * nodes + number, (1.0 / np.maximum(below, 1)).take(readers)
    columns[back] = (3 * readers + 2).take(order)
    values[back] = (1.0 / np.maximum(above, 1)).take(sources.take(order))
    return csr_matrix((values, columns, starts), shape=(nodes, 3 * nodes + edges), copy=False)
