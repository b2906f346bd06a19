"""The graph network's forward pass in NumPy: what the search prices with.

It computes what `costmodel.network` says, arranged for batches of any size on one core, without compiling: embeddings
of nodes and their first layer's messages are made once per distinct row; the three products of a layer are one; what
operands and readers say to a node is one sparse product, with means and positions in its entries and columns.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from costmodel.encode import Joined, Rows
from costmodel.model import Params, Shape

_ROWS = 1024


class Forward:
    """The forward pass of one network over one table of rows, which may grow."""

    def __init__(self, params: Params, shape: Shape, rows: Rows) -> None:
        given = {name: np.asarray(value, np.float32) for name, value in params.items()}
        self.params, self.rows, self.width = given, rows, shape.width
        self.layers = [
            (
                np.concatenate([given[f"own{k}"], given[f"operand{k}"], given[f"reader{k}"]], axis=1),
                given[f"position{k}"][:, None, :],
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

    def __call__(self, batch: Joined, kernel: np.ndarray) -> np.ndarray:
        """Unbounded correction of log time, kernels by heads.

        Args:
            batch: nodes and edges of the kernels.
            kernel: their standardised features.
        """
        params = self.params
        trunk = self._pooled(batch) @ self.pool
        trunk += kernel @ params["kernel"]
        trunk += params["trunk_bias"]
        np.maximum(trunk, 0.0, out=trunk)
        hidden = trunk @ params["hidden"]
        hidden += params["hidden_bias"]
        np.maximum(hidden, 0.0, out=hidden)
        hidden += trunk
        return hidden @ params["heads"] + params["heads_bias"]

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

    def _pooled(self, batch: Joined) -> np.ndarray:
        """Sum, mean and maximum over the nodes of each kernel."""
        width, nodes = self.width, len(batch.rows)
        found = self._started().take(batch.rows, axis=0, out=self._room("start", nodes, 4 * width), mode="clip")
        h, said = found[:, :width], found[:, width:]
        positions = int(batch.positions.max(initial=-1)) + 1
        heard = _messages(batch, positions)
        flat = self._room("messages", (positions + 1) * nodes, width)
        messages = flat.reshape(positions + 1, nodes, width)
        scratch = self._room("scratch", nodes, width)
        for k, (weight, position, bias) in enumerate(self.layers):
            if k:
                said = np.matmul(h, weight, out=self._room("said", nodes, 3 * width))
            np.multiply(said[:, width : 2 * width], position[:positions], out=messages[:positions])
            messages[positions] = said[:, 2 * width :]
            new = heard @ flat
            new += said[:, :width]
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
        """An array that is used again in the next batch: fresh memory costs more than the arithmetic on it."""
        found = self.rooms.get(name)
        if found is None or found.size < rows * width:
            found = self.rooms[name] = np.empty(max(rows, _ROWS) * width, np.float32)
        return found[: rows * width].reshape(rows, width)


def _messages(batch: Joined, positions: int) -> csr_matrix:
    """From messages (of operands by position, then of readers) to their means at each node."""
    nodes = len(batch.rows)
    into = np.concatenate([batch.readers, batch.sources])
    columns = np.concatenate([batch.positions * nodes + batch.sources, positions * nodes + batch.readers])
    counts = np.zeros((2, nodes), np.int64)
    counts[0] = np.bincount(batch.readers, minlength=nodes)
    counts[1] = np.bincount(batch.sources, minlength=nodes)
    means = (1.0 / np.maximum(counts, 1)).astype(np.float32)
    order = np.argsort(into, kind="stable")
    values = means.ravel().take(np.concatenate([batch.readers, batch.sources + nodes])).take(order)
    starts = np.zeros(nodes + 1, np.int32)
    np.cumsum(counts.sum(0), out=starts[1:])
    shape = (nodes, (positions + 1) * nodes)
    return csr_matrix((values, columns.take(order).astype(np.int32), starts), shape=shape, copy=False)
