"""What the search minimises: seconds per kernel.

An `Objective` prices kernel graphs in batches; the search adds the prices up.  `Roofline` is the calibrated
analytical model of `costmodel.analytical`; `costmodel.calibrate.load_objective` finds its coefficients.  Macro nodes
are priced as what they expand to, since that is what runs.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from costmodel.analytical import Coefficients, Table, join, seconds, tabulate
from costmodel.features import FEATURES_VERSION, kernel_features
from superopt import machine
from superopt.ir.graph import Graph, Node


@runtime_checkable
class Objective(Protocol):
    """Prices kernels.

    Attributes:
        name: which model this is.
        version: changes whenever a price may change; part of every cache key.
    """

    name: str
    version: str

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds that each kernel takes inside a program."""
        ...


class Roofline:
    """The calibrated roofline as an objective.

    Attributes:
        source: where the coefficients come from, one line for reports.
        coefficients: of the model.
    """

    name = "roofline"

    def __init__(self, coefficients: Coefficients, source: str) -> None:
        self.coefficients = coefficients
        self.source = source
        facts = (FEATURES_VERSION, machine.fingerprint(), coefficients.theta.tobytes(), coefficients.sharpness)
        self.version = hashlib.sha256(repr((*facts, coefficients.sharing)).encode()).hexdigest()[:12]
        self._known: weakref.WeakKeyDictionary[Node, Table] = weakref.WeakKeyDictionary()

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        """Seconds that each kernel takes inside a program."""
        if not kernels:
            return np.zeros(0)
        return seconds(join([self.table(kernel) for kernel in kernels]), self.coefficients)

    def table(self, kernel: Graph) -> Table:
        """Features of one kernel, remembered for kernels of one result."""
        if len(kernel.outputs) != 1:
            return tabulate([kernel_features(kernel)])
        output = kernel.outputs[0]
        found = self._known.get(output)
        if found is None:
            found = self._known[output] = tabulate([kernel_features(kernel)])
        return found
