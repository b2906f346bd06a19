"""Programs as plans, with the kernels that their steps call; lowering makes them, files hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.kernels.runtime.entry import size_bytes
from superopt.kernels.runtime.kernel import Kernel
from superopt.native.plan import NativePlan, PlanChoice, PlanLoop
from superopt.native.planner import Lifetime


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program as a plan.

    Attributes:
        plan: its weights are the prepared tensors, then the literals.
        kernels: digest -> kernel.
        literals: values of the literals that steps read.
        lives: lifetimes of the values in the arena.
    """

    plan: NativePlan
    kernels: Mapping[str, Kernel]
    literals: tuple[np.ndarray, ...]
    lives: tuple[Lifetime, ...]

    @property
    def several(self) -> bool:
        """Whether it runs several steps: one step alone is a single call inside XLA as well."""
        return len(self.plan.steps) > 1 or any(isinstance(step, PlanLoop | PlanChoice) for step in self.plan.steps)


def buffers_of(kernels: Mapping[str, Kernel]) -> dict[str, Sequence[tuple[str, int]]]:
    """Return what `verifier.memory` reads of kernels: digest -> scope and bytes of each buffer, in their order."""
    return {digest: [(b.scope, size_bytes(b)) for b in kernel.pointers] for digest, kernel in kernels.items()}
