"""A fitted model as data: roofline, network, what its inputs are standardised by, hull, scale of the correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from costmodel.arrays import KernelFeatures, PerWide
from costmodel.features.node_rows import OPCODES, WIDTH
from costmodel.model.analytical import Coefficients
from costmodel.model.encode import KERNEL_WIDTH, POSITIONS
from costmodel.model.hull import Hull

if TYPE_CHECKING:
    import jax

Params: TypeAlias = "dict[str, np.ndarray | jax.Array]"
CLIP = 4.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a network; `bound` is the most that it adds to the logarithm of the roofline's time."""

    width: int = 48
    layers: int = 3
    trunk: int = 96
    heads: int = 5
    bound: float = 2.3


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """All that pricing needs; `scale` multiplies the correction (1 on the machine that it was fitted on)."""

    prior: Coefficients
    params: Params
    shape: Shape
    mean: PerWide
    std: PerWide
    hull: Hull
    scale: float = 1.0

    def standard(self, kernel: KernelFeatures) -> KernelFeatures:
        """Kernel features as the network reads them."""
        return np.clip((kernel - self.mean) / self.std, -CLIP, CLIP).astype(np.float32)


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> size of every parameter array of a network."""
    w, t = shape.width, shape.trunk
    found: dict[str, tuple[int, ...]] = {
        "op": (len(OPCODES), w), "row": (WIDTH, w), "row_bias": (w,), "pool": (3 * w, t), "kernel": (KERNEL_WIDTH, t),
        "trunk_bias": (t,), "hidden": (t, t), "hidden_bias": (t,), "heads": (t, shape.heads),
        "heads_bias": (shape.heads,),
    }  # fmt: skip
    for k in range(shape.layers):
        found |= {
            f"own{k}": (w, w), f"operand{k}": (w, w), f"reader{k}": (w, w), f"bias{k}": (w,),
            f"position{k}": (POSITIONS, w),
        }  # fmt: skip
    return found
