"""The request of an `optimize` call as plain data: made once, and handed down to every stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from costmodel.model.joint import Priced
from costmodel.model.kept import EarlierKernels, TimedKernel
from costmodel.model.objective import Objective, Roofline
from costmodel.model.weights_file import uncalibrated
from rewrites.language.term import Rule
from superopt.machine.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Request:
    """Options of an `optimize` call, or of one of its stages, whose deadline then replaces that of the call.

    Attributes:
        deadline: when the call or the stage ends, or the steps of its search.
        objective: the performance model of kernels that XLA computes.
        own: the backend of our kernels as the search prices it; None where the search prices none.
        earlier: kernels that other calls timed on this machine, by which prices are corrected.
        kernels_by: name of the backend that makes kernels, priced or not; empty where none are made.
        seed: seed of the search, of random inputs and of the timing order.
        numerics: class of rules that may be used: `exact`, `real` or `range`.
        deterministic: the model alone decides; nothing is measured.
        searches: whether a search follows the plain candidate.
        keeps_plain: without a search, the plain candidate is returned however slow it is.
        rules: rules in place of the library; None for the library.
        max_prepared_bytes: limit on prepared and packed weights.
    """

    deadline: Deadline
    objective: Objective = field(default_factory=lambda: Roofline(uncalibrated(), "uncalibrated"))
    own: Priced | None = None
    earlier: EarlierKernels = field(default_factory=dict[str, tuple[TimedKernel, ...]])
    kernels_by: str = ""
    seed: int = 0
    numerics: str = "real"
    deterministic: bool = False
    searches: bool = True
    keeps_plain: bool = False
    rules: tuple[Rule, ...] | None = None
    max_prepared_bytes: int | None = None

    @property
    def exact(self) -> bool:
        """Whether results must agree in every bit."""
        return self.numerics == "exact"

    def within(self, deadline: Deadline) -> Request:
        """The same request for a stage that has this deadline."""
        return replace(self, deadline=deadline)
