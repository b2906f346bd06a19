"""Prices of many kernels by a fitted model: batches padded to a few shapes, one compiled program for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from costmodel import analytical, network
from costmodel.analytical import Table
from costmodel.encode import Structure, batches, kernel_features, pack
from costmodel.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Seconds of kernels by each head, the roofline's seconds, and the gate (0: the roofline decides)."""

    heads_s: np.ndarray
    prior_s: np.ndarray
    gate: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """The geometric mean over heads."""
        return np.exp(np.log(self.heads_s).mean(1))

    @property
    def uncertainty(self) -> np.ndarray:
        """Relative standard deviation over heads."""
        return np.log(self.heads_s).std(1)


def predict(model: Model, table: Table, structures: Sequence[Structure], *, gated: bool = True) -> Predicted:
    """Prices of kernels given by the features of their steps and their structures."""
    prior_s = analytical.seconds(table, model.prior)
    kernel = kernel_features(table, model.prior, structures)
    gate = model.hull.gate(kernel) if gated else np.ones(len(kernel), np.float32)
    standard = model.standard(kernel)
    found = np.zeros((len(kernel), model.shape.heads))
    for start, end in batches(structures):
        packed = pack(structures[start:end], standard[start:end])
        padded = np.zeros(len(packed.kernel), np.float32)
        padded[: end - start] = model.scale * gate[start:end]
        raw = _correction(model.params, network.as_arrays(packed), packed.kernel, padded, model.shape.bound)
        found[start:end] = np.asarray(raw)[: end - start]
    return Predicted(prior_s[:, None] * np.exp(found), prior_s, gate)


_correction = partial(jax.jit, static_argnums=4)(network.correction)
