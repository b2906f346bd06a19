"""Prices of many kernels by a fitted model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import KernelMembers, PerKernel
from costmodel.model.analytical import FeatureTable
from costmodel.model.encode import (
    KernelStructure,
    NodeRows,
    join,
    kernel_features,
    pooled_features,
    prior_seconds,
)
from costmodel.model.forward import Forward
from costmodel.model.model import Model

_NODES = 1024  # nodes of a batch: its arrays stay in the L2 cache


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
    found = np.zeros((len(kernel), model.shape.members))
    for start, end in _batches(structures):
        batch = join(structures[start:end], rows)
        raw = forward(batch, model.standard(np.hstack([kernel[start:end], pooled_features(batch, rows)])))
        found[start:end] = (model.scale * gate[start:end, None] * bound) * np.tanh(raw / bound)
    return Predicted(prior_s[:, None] * np.exp(found), prior_s, gate)


def _batches(structures: Sequence[KernelStructure]) -> Iterator[tuple[int, int]]:
    """Yield ranges of kernels of a batch each."""
    start = nodes = 0
    for i, structure in enumerate(structures):
        n = len(structure.rows)
        if i > start and nodes + n > _NODES:
            yield start, i
            start, nodes = i, 0
        nodes += n
    if len(structures) > start:
        yield start, len(structures)
