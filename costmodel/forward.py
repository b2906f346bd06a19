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
        self.made = 0
        self.start = np.zeros((0, 4 * shape.width), np.float32)  # embedding and first messages of each row

    def __call__(self, batch: Joined, kernel: np.ndarray) -> np.ndarray:
        """Unbounded correction of log time, kernels by heads.

        Args:
            batch: nodes and edges of the kernels.
            kernel: their standardised features.
        """
        params, width = self.params, self.width
        pooled = self._pooled(batch)
        trunk = pooled @ self.pool
        trunk += kernel @ params["kernel"]
        trunk += params["trunk_bias"]
        np.maximum(trunk, 0.0, out=trunk)
        hidden = trunk @ params["hidden"]
        hidden += params["hidden_bias"]
        np.maximum(hidden, 0.0, out=hidden)
        hidden += trunk
        assert pooled.shape[1] == 3 * width
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
        found = self._started().take(batch.rows, axis=0)
        h, said = found[:, :width], found[:, width:]
        positions = int(batch.positions.max(initial=-1)) + 1
        heard = _messages(batch, positions)
        messages = np.empty((positions + 1, nodes, width), np.float32)
        for k, (weight, position, bias) in enumerate(self.layers):
            if k:
                said = h @ weight
            np.multiply(said[:, width : 2 * width], position[:positions], out=messages[:positions])
            messages[positions] = said[:, 2 * width :]
            new = heard @ messages.reshape(-1, width)
            new += said[:, :width]
            new += bias
            np.maximum(new, 0.0, out=new)
            new += h
            scale = np.einsum("ij,ij->i", new, new)
            scale *= np.float32(1.0 / width)
            scale += np.float32(1.0)
            new /= np.sqrt(scale, out=scale)[:, None]
            h = new
        ends = batch.counts.cumsum()
        out = np.empty((len(ends), 3 * width), np.float32)
        total = _sums(ends) @ h
        out[:, :width] = total
        np.divide(total, batch.counts.astype(np.float32)[:, None], out=out[:, width : 2 * width])
        np.maximum.reduceat(h, ends - batch.counts, axis=0, out=out[:, 2 * width :])
        return out


def _messages(batch: Joined, positions: int) -> csr_matrix:
    """From messages (of operands by position, then of readers) to their means at each node."""
    nodes, edges = len(batch.rows), len(batch.sources)
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
    assert starts[-1] == 2 * edges
    shape = (nodes, (positions + 1) * nodes)
    return csr_matrix((values, columns.take(order).astype(np.int32), starts), shape=shape, copy=False)


def _sums(ends: np.ndarray) -> csr_matrix:
    """From rows that lie end to end to the sum of each run."""
    starts = np.zeros(len(ends) + 1, np.int32)
    starts[1:] = ends
    size = int(ends[-1])
    values = np.ones(size, np.float32)
    return csr_matrix((values, np.arange(size, dtype=np.int32), starts), shape=(len(ends), size), copy=False)
