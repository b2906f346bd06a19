"""The learned model: kernels priced by roofline and network, and these prices as the objective of the search.

Kernels are priced in batches; a price is remembered with the kernel's output node.  Logarithms of prices are rounded to
a grid far below the model's error, so that a price does not depend on which other kernels were in its batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import KernelMask, KernelMembers, PerKernel
from costmodel.features.counts import FEATURES_VERSION
from costmodel.features.node_rows import ENCODING_VERSION
from costmodel.model.analytical import FeatureTable
from costmodel.model.encode import (
    KernelEncoder,
    KernelStructure,
    NodeRows,
    join,
    kernel_features,
    pooled_features,
    prior_seconds,
)
from costmodel.model.forward import BATCH_NODES, Forward
from costmodel.model.model import Model
from superopt.ir.graph import Graph
from superopt.machine import facts as machine

_GRID = 4096.0  # steps of a unit of log time: a price is the same to 0.02 % whatever batch it is computed in


class Learned:
    """The learned model as an objective.

    Attributes:
        source: where the model comes from, one line for reports.
        model: the fitted model.
    """

    name = "network over the roofline"

    def __init__(self, model: Model, source: str) -> None:
        self.model = model
        self.source = source
        self.version = _digest(model)
        self.encoder = KernelEncoder()
        self._forward: Forward | None = None

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel takes inside a program."""
        return self._ask(kernels)[:, 0]

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the relative standard deviation over the members, per kernel."""
        return self._ask(kernels)[:, 1]

    def outside(self, kernels: Sequence[Graph]) -> KernelMask:
        """Return whether each kernel is outside the training domain, so that the roofline contributes."""
        if not kernels:
            return np.zeros(0, bool)
        table, structures = self.encode(kernels)
        return self.model.domain.gate(kernel_features(table, self.model.prior, structures)) < 1.0

    def _ask(self, kernels: Sequence[Graph]) -> np.ndarray:
        entry = self.encoder.catalogue.entry
        last = [entry(k.outputs[0]) if len(k.outputs) == 1 else None for k in kernels]
        pairs = [None if e is None else e.price for e in last]
        fresh = [i for i, pair in enumerate(pairs) if pair is None]
        if fresh:
            for i, pair in zip(fresh, self._predicted([kernels[i] for i in fresh]), strict=True):
                pairs[i] = pair
                known = last[i]
                if known is not None:
                    known.price = pair
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)

    def _predicted(self, kernels: Sequence[Graph]) -> Iterator[tuple[float, float]]:
        if self._forward is None:
            self._forward = Forward(self.model.params, self.model.shape, self.encoder.rows)
        result = predict(self.model, *self.encode(kernels), self.encoder.rows, forward=self._forward)
        seconds = np.exp(np.round(np.log(result.seconds) * _GRID) / _GRID)
        return zip(seconds.tolist(), result.uncertainty.tolist(), strict=True)

    def encode(self, kernels: Sequence[Graph]) -> tuple[FeatureTable, list[KernelStructure]]:
        """Return features of steps and structures of kernels."""
        return self.encoder.encode(kernels)


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Seconds of kernels by each member, the roofline's seconds, and the gate (0: the roofline decides)."""

    members_s: KernelMembers
    prior_s: PerKernel
    gate: PerKernel

    @property
    def seconds(self) -> PerKernel:
        """The geometric mean over members."""
        return np.exp(np.log(self.members_s).mean(1))

    @property
    def uncertainty(self) -> PerKernel:
        """Relative standard deviation over members."""
        return np.log(self.members_s).std(1)


def predict(
    model: Model,
    table: FeatureTable,
    structures: Sequence[KernelStructure],
    rows: NodeRows,
    *,
    gated: bool = True,
    forward: Forward | None = None,
) -> Predicted:
    """Predict the seconds of kernels from the features of their steps and their structures over a table of rows.

    Args:
        gated: whether the roofline takes over outside the training domain.
        forward: the network over these rows, if it was built before.
    """
    forward = forward or Forward(model.params, model.shape, rows)
    prior_s = prior_seconds(table, model.prior)
    kernel = kernel_features(table, model.prior, structures, prior_s)
    gate = model.domain.gate(kernel) if gated else np.ones(len(kernel), np.float32)
    bound = model.shape.bound
    members = np.zeros((len(kernel), model.shape.members))
    for start, end in _batches(structures):
        batch = join(structures[start:end], rows)
        raw = forward(batch, model.standard(np.hstack([kernel[start:end], pooled_features(batch, rows)])))
        members[start:end] = (model.scale * gate[start:end, None] * bound) * np.tanh(raw / bound)
    return Predicted(prior_s[:, None] * np.exp(members), prior_s, gate)


def _batches(structures: Sequence[KernelStructure]) -> Iterator[tuple[int, int]]:
    """Yield ranges of kernels of a batch each."""
    start = nodes = 0
    for i, structure in enumerate(structures):
        n = len(structure.rows)
        if i > start and nodes + n > BATCH_NODES:
            yield start, i
            start, nodes = i, 0
        nodes += n
    if len(structures) > start:
        yield start, len(structures)


def _digest(model: Model) -> str:
    sha = hashlib.sha256(repr((FEATURES_VERSION, ENCODING_VERSION, machine.fingerprint(), model.scale)).encode())
    prior = model.prior
    sha.update(np.array([*prior.theta, prior.sharpness, prior.sharing, model.domain.radius]).tobytes())
    for name in sorted(model.params):
        sha.update(np.ascontiguousarray(model.params[name], np.float32).tobytes())
    for array in (model.mean, model.std, model.domain.centres):
        sha.update(np.ascontiguousarray(array, np.float32).tobytes())
    return sha.hexdigest()[:12]
