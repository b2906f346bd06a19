"""Costs between the kernels of a program: the call, operands that lie elsewhere, weights from memory.

    seconds = dispatch + company * sum of kernels + byte * bytes that the kernels read and write.
    a kernel whose weights come from memory = alone, weights in the caches, + cold * bytes of its weights.

Kernels timed alone find all their inputs in the caches of their core.  Where a program has more weights than the last
cache holds, those of each kernel come from memory.  The coefficients are fitted to whole programs and the timed kernels
in them (`superopt.lab.training.whole`) and ship with the model of our kernels.  The median error on programs of unseen
families is 8.3 % with them, 17.5 % without; a term for each kernel gets no weight in the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

PerProgram: TypeAlias = "np.ndarray | float"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Coefficients of the costs between kernels.

    Attributes:
        dispatch_s: seconds of the call of a program.
        company: factor by which a kernel takes longer among others.
        byte_s: seconds of a byte that a kernel reads or writes.
        cold_s: seconds of a byte of frozen operands that come from memory, in a kernel of ours.
        cold_xla_s: the same in a kernel of XLA's.
    """

    dispatch_s: float
    company: float
    byte_s: float
    cold_s: float = 0.0
    cold_xla_s: float = 0.0

    def seconds(self, kernels_s: PerProgram, moved_bytes: PerProgram) -> np.ndarray:
        """Return the seconds of a program from the sum of its kernels and the bytes that they read and write."""
        return self.dispatch_s + self.company * np.asarray(kernels_s) + self.byte_s * np.asarray(moved_bytes)


NOTHING = Boundary(0.0, 1.0, 0.0)
"""No costs between kernels: a program takes the sum of its kernels."""
