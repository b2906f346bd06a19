"""Prices on a GPU: a roofline by the figures of its data sheet.

    seconds = launch + max(bytes / bandwidth, products / rate of matrix units + other operations / rate)

Nothing here was fitted: kernels timed during the search correct it, as they do every model.  `docs/costmodel.md` says
how far it is from times on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import PerKernel
from superopt.ir.counters import boundary_bytes, node_cost
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import CONVOLUTIONS, PRODUCTS
from superopt.ir.scalar import DTYPE

LAUNCH_S = 3e-6  # launch of a kernel after another on the same stream: the order of magnitude in CUDA's documentation
_TRANSCENDENTAL = 4.0  # operations: special function units have a quarter of the rate


@dataclass(frozen=True, slots=True)
class Card:
    """The data sheet of a GPU.

    Attributes:
        name: part of JAX's name for the device.
        bandwidth: bytes a second from its memory.
        flops: float32 operations a second.
        matrix_flops: operations a second of products of 16-bit floats, dense; of narrower types at least as many, of
            float32 as `tf32` half as many.
    """

    name: str
    bandwidth: float
    flops: float
    matrix_flops: float


_CARDS = (
    Card("H200", 4.8e12, 67e12, 989e12),
    Card("H100", 3.35e12, 67e12, 989e12),
    Card("A100", 1.56e12, 19.5e12, 312e12),
    Card("L40S", 8.64e11, 91.6e12, 362e12),
    Card("L4", 3e11, 30.3e12, 121e12),
)
"""From NVIDIA's data sheets; where a card comes with several memories, the slowest."""
UNKNOWN = Card("unknown", 1.56e12, 19.5e12, 312e12)
"""A card without a sheet here is priced as an A100: ratios of kernels matter, not seconds."""


def card_of(kind: str) -> Card:
    """Return the sheet of the device with this JAX name, or `UNKNOWN`."""
    return next((card for card in _CARDS if card.name in kind.replace("-", " ").split()), UNKNOWN)


class CardRoofline:
    """The roofline of a GPU as an objective."""

    name = "roofline of the card"
    source = "data sheet, not measured"

    def __init__(self, card: Card) -> None:
        self.card, self.version = card, repr(card)

    def price(self, kernels: Sequence[Graph]) -> PerKernel:
        """Return the seconds of each kernel that reads its inputs and writes its outputs once."""
        return np.array([self._seconds(kernel) for kernel in kernels], dtype=np.float64)

    def _seconds(self, kernel: Graph) -> float:
        busy_s = 0.0
        for node in kernel.nodes():
            cost = node_cost(node)
            busy_s += cost.flops / (self._matrix_flops(node) or self.card.flops)
            busy_s += _TRANSCENDENTAL * cost.transcendentals / self.card.flops
        return LAUNCH_S + max(sum(boundary_bytes(kernel)) / self.card.bandwidth, busy_s)

    def _matrix_flops(self, node: Node) -> float:
        """Return the rate of matrix units on a product; 0 where they are not used."""
        widths = {DTYPE[x.dtype].itemsize for x in node.inputs}
        if node.op not in CONVOLUTIONS | PRODUCTS or max(widths) > 4 or (max(widths) == 4 and _exact(node)):
            return 0.0
        return self.card.matrix_flops / (2 if max(widths) == 4 else 1)


def _exact(node: Node) -> bool:
    """Whether a product of 32 bits is not `tf32`, in which XLA multiplies float32 unless asked for more."""
    return node["precision"] == "highest" or node.inputs[0].dtype != "float32"
