"""What the search minimises: seconds per kernel.

An `Objective` prices kernel graphs in batches; the search adds the prices up.  Here stands the protocol and, behind
`load_objective`, its first implementation: the calibrated roofline of `costmodel.analytical`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from superopt.ir.graph import Graph


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
