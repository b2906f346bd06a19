"""The learned model as the objective of the search.

Kernels are priced in batches; what was priced is remembered by the kernel's output node, and the features of steps
and structures are made once per kernel.  Logarithms of prices are rounded to a grid far below the model's error, so
that a price does not depend on which other kernels were in its batch.  The network is compiled when it first prices.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence

import numpy as np

from costmodel import analytical
from costmodel.analytical import Table
from costmodel.encode import Encoder, Structure, kernel_features
from costmodel.features import FEATURES_VERSION
from costmodel.features import kernel_features as step_features
from costmodel.model import Model
from costmodel.node_rows import ENCODING_VERSION
from superopt import machine
from superopt.ir.graph import Graph, Node

_GRID = 4096.0


class Learned:
    """The learned model as an objective.

    Attributes:
        source: where the model comes from, one line for reports.
        model: what was fitted.
    """

    name = "graph network over the roofline"

    def __init__(self, model: Model, source: str) -> None:
        self.model = model
        self.source = source
        self.version = _digest(model)
        self.encoder = Encoder()
        self._known: weakref.WeakKeyDictionary[Node, tuple[float, float]] = weakref.WeakKeyDictionary()

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds that each kernel takes inside a program."""
        return self._ask(kernels)[:, 0]

    def uncertainty(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Relative standard deviation over the heads, per kernel."""
        return self._ask(kernels)[:, 1]

    def outside(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Whether each kernel is unlike all that the model was fitted to, so that the roofline has a say."""
        if not kernels:
            return np.zeros(0, bool)
        table, structures = self.encode(kernels)
        return self.model.hull.gate(kernel_features(table, self.model.prior, structures)) < 1.0

    def _ask(self, kernels: Sequence[Graph]) -> np.ndarray:
        known = self._known
        fresh = [k for k in kernels if len(k.outputs) != 1 or k.outputs[0] not in known]
        found: dict[Graph, tuple[float, float]] = {}
        if fresh:
            from costmodel.predict import predict  # late: brings JAX

            result = predict(self.model, *self.encode(fresh), self.encoder.rows)
            seconds = np.exp(np.round(np.log(result.seconds) * _GRID) / _GRID)
            for kernel, price, spread in zip(fresh, seconds.tolist(), result.uncertainty.tolist(), strict=True):
                if len(kernel.outputs) == 1:
                    known[kernel.outputs[0]] = price, spread
                else:
                    found[kernel] = price, spread
        pairs = [known[k.outputs[0]] if len(k.outputs) == 1 else found[k] for k in kernels]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)

    def encode(self, kernels: Sequence[Graph]) -> tuple[Table, list[Structure]]:
        """Features of steps and structures of kernels."""
        table = analytical.tabulate([step_features(k) for k in kernels])
        return table, [self.encoder.structure(k) for k in kernels]


def _digest(model: Model) -> str:
    sha = hashlib.sha256(repr((FEATURES_VERSION, ENCODING_VERSION, machine.fingerprint(), model.scale)).encode())
    prior = model.prior
    sha.update(np.array([*prior.theta, prior.sharpness, prior.sharing, model.hull.radius]).tobytes())
    for name in sorted(model.params):
        sha.update(np.ascontiguousarray(model.params[name], np.float32).tobytes())
    return sha.hexdigest()[:12]
