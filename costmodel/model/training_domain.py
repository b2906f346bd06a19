"""The training domain of the model: whether a kernel is like those that the model was fitted to.

Kernels are compared by how the roofline divides their time (square roots of the shares of its components), how long
they take and how large their operands are.  A few hundred representatives of the training kernels are chosen, farthest
first.  A kernel is within the domain if its nearest representative is closer than the radius that covers nearly all
training kernels.  Beyond it the gate closes linearly, and at twice the radius the roofline decides alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import KernelFeatures, PerKernel
from costmodel.features.counts import INDEX
from costmodel.model.encode import BASIC

if TYPE_CHECKING:
    from jaxtyping import Float

REPRESENTATIVES = 512
"""Centres of the domain: of a quarter of the labels held out 97 % are inside its radius of 0.44.

With 128 centres 99 % are, within 0.75, with 1024 93 %, within 0.30.
"""
QUANTILE = 0.995  # of the training kernels lie inside: in one of 200 the network's word already counts less
LEAST_RADIUS = 0.25  # of few kernels, all of them representatives; the shipped radius is 0.45
_SCALE_SIZE = 0.08  # weight of one unit of log time or log size against a share of one


@dataclass(frozen=True, slots=True, eq=False)
class TrainingDomain:
    """Representatives of the training kernels and the distance up to which a kernel counts as like them."""

    centres: Float[np.ndarray, "centres coordinates"]
    radius: float
    squares: Float[np.ndarray, " centres"] = field(init=False)
    turned: Float[np.ndarray, "coordinates centres"] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "squares", (self.centres * self.centres).sum(1))
        object.__setattr__(self, "turned", np.ascontiguousarray(-2.0 * self.centres.T))

    def distance(self, kernel: KernelFeatures) -> PerKernel:
        """Return the distance of kernels (their features, not standardised) to the nearest representative."""
        x = coordinates(kernel)
        squares = x @ self.turned
        squares += self.squares
        return np.sqrt(np.maximum(squares.min(1, initial=np.inf) + (x * x).sum(1), 0.0))

    def gate(self, kernel: KernelFeatures) -> PerKernel:
        """Return 1 inside the domain, falling linearly to 0 at twice its radius."""
        return np.clip(2.0 - self.distance(kernel) / self.radius, 0.0, 1.0).astype(np.float32)


def coordinates(kernel: KernelFeatures) -> Float[np.ndarray, "kernels coordinates"]:
    """Return the coordinates by which kernels are compared."""
    shares = np.sqrt(kernel[:, BASIC + len(INDEX) :])
    return np.concatenate([shares, _SCALE_SIZE * kernel[:, :1], 4.0 * _SCALE_SIZE * kernel[:, 3:4]], axis=1)


def training_domain_of(kernel: KernelFeatures) -> TrainingDomain:
    """Return the domain of training kernels."""
    x = coordinates(kernel)
    chosen = [0]
    nearest = np.full(len(x), np.inf)
    while len(chosen) < min(REPRESENTATIVES, len(x)):
        nearest = np.minimum(nearest, ((x - x[chosen[-1]]) ** 2).sum(1))
        best = int(np.argmax(nearest))
        if nearest[best] <= 1e-12:
            break
        chosen.append(best)
    domain = TrainingDomain(x[chosen].astype(np.float32), 1.0)
    radius = max(float(np.quantile(domain.distance(kernel), QUANTILE)), LEAST_RADIUS)
    return TrainingDomain(domain.centres, radius)
