"""What the search minimises: seconds per kernel.

An `Objective` prices kernel graphs in batches; the search adds the prices up.  `Roofline` is the calibrated
analytical model of `costmodel.model.analytical`; `costmodel.model.load.load_objective` finds its coefficients.  Macro
nodes are priced as what they expand to, since that is what runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from costmodel.arrays import KernelMask, PerKernel
from costmodel.features.counts import FEATURES_VERSION
from costmodel.model.analytical import Coefficients, seconds
from costmodel.model.catalogue import Catalogue
from superopt.ir.graph import Graph
from superopt.machine import facts as machine


@runtime_checkable
class Objective(Protocol):
    """Prices kernels.

    Attributes:
        name: which model this is.
        version: changes whenever a price may change; part of every cache key.
    """

    name: str

    @property
    def version(self) -> str: ...

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds that each kernel takes inside a program."""
        ...


@runtime_checkable
class Fitted(Protocol):
    """An objective that says how far it may be off."""

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Standard deviation of the logarithm of each price."""
        ...

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Whether each kernel is unlike all that it was fitted to; None where what is below it does not say."""
        ...


def uncertainty_of(objective: Objective, kernels: Sequence[Graph]) -> PerKernel:
    """How far prices may be off: of an objective that does not say, all alike."""
    return objective.uncertainty(kernels) if isinstance(objective, Fitted) else np.ones(len(kernels))


def outside_of(objective: Objective, kernels: Sequence[Graph]) -> KernelMask | None:
    """Whether each kernel is unlike all that an objective was fitted to; None for one that does not say."""
    return objective.outside(kernels) if isinstance(objective, Fitted) else None


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
        self._catalogue = Catalogue()

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Seconds that each kernel takes inside a program."""
        if not kernels:
            return np.zeros(0)
        return seconds(self._catalogue.table(self._catalogue.reached(kernels)), self.coefficients)
