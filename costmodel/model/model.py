"""A fitted model as data: roofline, network, standardisation of its inputs, domain, scale of the correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from costmodel.arrays import KernelInputs, PerInput
from costmodel.features.node_rows import OPCODES, WIDTH
from costmodel.model.analytical import Coefficients
from costmodel.model.encode import KERNEL_WIDTH, POOLED_WIDTH, POSITIONS
from costmodel.model.training_domain import TrainingDomain

if TYPE_CHECKING:
    import jax

Params: TypeAlias = "dict[str, np.ndarray | jax.Array]"
CLIP = 4.0  # standard deviations: a feature further out says that a kernel is far, not how far


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Sizes of a network; half of its members read the graph, half the pooled numbers.

    Attributes:
        width, layers: width and number of the graph layers.
        trunk: units of each hidden layer after it, and of those of the perceptron.
        heads: members of each half.
        bound: the most that a member adds to the logarithm of the roofline's time.
    """

    width: int = 48
    layers: int = 3
    trunk: int = 96
    heads: int = 5
    bound: float = 2.3

    @property
    def members(self) -> int:
        """The number of members of both halves."""
        return 2 * self.heads


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """All data that pricing needs; `scale` multiplies the correction (1 on the machine that it was fitted on)."""

    prior: Coefficients
    params: Params
    shape: NetworkShape
    mean: PerInput
    std: PerInput
    domain: TrainingDomain
    scale: float = 1.0

    def standard(self, kernel: KernelInputs) -> KernelInputs:
        """Return features of kernels, wide and pooled, standardised for the network."""
        return np.clip((kernel - self.mean) / self.std, -CLIP, CLIP).astype(np.float32)


def shapes(shape: NetworkShape) -> dict[str, tuple[int, ...]]:
    """Return the name and size of every parameter array of a network."""
    w, t = shape.width, shape.trunk
    sizes: dict[str, tuple[int, ...]] = {
        "op": (len(OPCODES), w), "row": (WIDTH, w), "row_bias": (w,), "pool": (3 * w, t), "kernel": (KERNEL_WIDTH, t),
        "trunk_bias": (t,), "hidden": (t, t), "hidden_bias": (t,), "heads": (t, shape.heads),
        "heads_bias": (shape.heads,),
        "flat": (KERNEL_WIDTH + POOLED_WIDTH, t), "flat_bias": (t,), "flat_hidden": (t, t), "flat_hidden_bias": (t,),
        "flat_heads": (t, shape.heads), "flat_heads_bias": (shape.heads,),
    }  # fmt: skip
    for k in range(shape.layers):
        sizes |= {
            f"own{k}": (w, w), f"operand{k}": (w, w), f"reader{k}": (w, w), f"bias{k}": (w,),
            f"position{k}": (POSITIONS, w),
        }  # fmt: skip
    return sizes
