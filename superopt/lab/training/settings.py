"""Settings of a fit: one set for everything, chosen on inner splits of programs that no reported random split tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.model.model import NetworkShape


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings of a fit.

    Attributes:
        shape: shape of the network.
        epochs, batch, rate, decay: passes over the labels, kernels per batch, Adam's peak rate and weight decay.
        delta: error of log time at which the Huber loss turns linear.
        rank, rank_scale: weight of the loss on the order of pairs, and the difference of log time that it resolves.
        quiet: weight of the size of corrections.
        row_drop, kernel_drop, trunk_drop: share of the numbers of nodes, of kernels and of the trunk that are dropped
            in a step of the fit.
        bootstrap: share of a task's weight that differs between members.
        prior_steps: steps of the roofline's fit.
    """

    shape: NetworkShape = field(default_factory=NetworkShape)
    epochs: int = 40
    batch: int = 32
    rate: float = 3e-3
    decay: float = 3e-2
    delta: float = 0.2
    rank: float = 1.0
    rank_scale: float = 0.1
    quiet: float = 0.003
    row_drop: float = 0.1
    kernel_drop: float = 0.2
    trunk_drop: float = 0.1
    bootstrap: float = 0.5
    prior_steps: int = 1500
