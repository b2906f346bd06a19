"""What lies between the kernels of a program: calls, operands that lie elsewhere, weights that come from memory.

    seconds = dispatch + company * sum of kernels + call * kernels + stream * bytes of weights beyond the last cache

Kernels alone find all that they read in the caches of their core.  The coefficients are fitted to whole programs
(`superopt.lab.training.whole`) and ship with the model of our kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from superopt.machine import facts as machine

PerProgram: TypeAlias = "np.ndarray | float"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Coefficients.

    Attributes:
        dispatch_s: of the call of a program.
        company: how many times longer a kernel takes among others.
        call_s: of a kernel.
        stream_s: of a byte of weights that does not stay in the last cache.
    """

    dispatch_s: float
    company: float
    call_s: float
    stream_s: float

    def seconds(self, kernels_s: PerProgram, kernels: PerProgram, frozen_bytes: PerProgram) -> np.ndarray:
        """Of a program: the sum of its kernels, how many there are, and bytes of the weights that they read."""
        beyond = np.maximum(frozen_bytes - dict(machine.describe().caches_bytes).get("L3", 0), 0.0)
        between = self.dispatch_s + self.call_s * np.asarray(kernels) + self.stream_s * beyond
        return self.company * np.asarray(kernels_s) + between


NOTHING = Boundary(0.0, 1.0, 0.0, 0.0)
"""A program takes what its kernels take."""
