"""The search's objective: the sum of predicted seconds per kernel.

An `Objective` prices kernel graphs in batches; the search adds the prices up.  `Roofline` is the calibrated analytical
model of `costmodel.model.analytical`; `costmodel.model.load.load_objective` finds its coefficients.  Macro nodes are
priced as their expansion, since that is what runs.
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
        name: name of the model.
        version: changes whenever a price may change; part of every cache key.
    """

    name: str

    @property
    def version(self) -> str: ...

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel takes inside a program."""
        ...


@runtime_checkable
class Fitted(Protocol):
    """An objective with an uncertainty and a training domain."""

    def uncertainty(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the standard deviation of the logarithm of each price."""
        ...

    def outside(self, kernels: Sequence[Graph]) -> KernelMask | None:
        """Return whether each kernel is outside its training domain; None where the underlying model has none."""
        ...


def uncertainty_of(objective: Objective, kernels: Sequence[Graph]) -> PerKernel:
    """Return the standard deviation of the logarithm of each price; 1 for all under an objective without one."""
    return objective.uncertainty(kernels) if isinstance(objective, Fitted) else np.ones(len(kernels))


def outside_of(objective: Objective, kernels: Sequence[Graph]) -> KernelMask | None:
    """Return whether each kernel is outside the objective's training domain; None for an objective without one."""
    return objective.outside(kernels) if isinstance(objective, Fitted) else None


class Roofline:
    """The calibrated roofline as an objective.

    Attributes:
        source: where the coefficients come from, one line for reports.
        coefficients: coefficients of the model.
    """

    name = "roofline"

    def __init__(self, coefficients: Coefficients, source: str) -> None:
        self.coefficients = coefficients
        self.source = source
        facts = (FEATURES_VERSION, machine.fingerprint(), coefficients.theta.tobytes(), coefficients.sharpness)
        self.version = hashlib.sha256(repr((*facts, coefficients.sharing)).encode()).hexdigest()[:12]
        self._catalogue = Catalogue()

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds that each kernel takes inside a program."""
        if not kernels:
            return np.zeros(0)
        return seconds(self._catalogue.table(self._catalogue.reached(kernels)), self.coefficients)
