"""Prices of many kernels by a fitted model: batches padded to a few shapes, one compiled program for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from costmodel import network
from costmodel.analytical import Table
from costmodel.encode import Rows, Structure, batches, kernel_features, pack, prior_seconds
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


def predict(
    model: Model, table: Table, structures: Sequence[Structure], rows: Rows, *, gated: bool = True
) -> Predicted:
    """Prices of kernels given by the features of their steps and their structures over a table of rows."""
    prior_s = prior_seconds(table, model.prior)
    kernel = kernel_features(table, model.prior, structures)
    gate = model.hull.gate(kernel) if gated else np.ones(len(kernel), np.float32)
    standard = model.standard(kernel)
    found = np.zeros((len(kernel), model.shape.heads))
    for start, end in batches(structures):
        packed = pack(structures[start:end], rows)
        features = np.zeros((packed.size, standard.shape[1]), np.float32)
        features[: end - start] = standard[start:end]
        scale = np.zeros(packed.size, np.float32)
        scale[: end - start] = model.scale * gate[start:end]
        nodes = network.as_arrays(packed) | {"rows": _rows(packed.rows, rows)}
        raw = _correction(model.params, nodes, features, scale, model.shape.bound)
        found[start:end] = np.asarray(raw)[: end - start]
    return Predicted(prior_s[:, None] * np.exp(found), prior_s, gate)


def _rows(at: np.ndarray, rows: Rows) -> np.ndarray:
    used = at < len(rows.values)
    return np.where(used[:, None], rows.values[np.where(used, at, 0)], np.float32(0.0))


_correction = partial(jax.jit, static_argnums=4)(network.correction)
