"""What `optimize` was asked for: made once, and handed down to every stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from costmodel.model.objective import Objective, Roofline
from costmodel.model.weights_file import uncalibrated
from rewrites.language.term import Rule
from superopt.backends.protocol import Backend
from superopt.machine.budget import SearchBudget


@dataclass(frozen=True, slots=True)
class Request:
    """What a run was asked for, or one of its stages, whose budget is then its own.

    Attributes:
        budget: seconds or steps, and whether kernels of our own have a part of them.
        objective: the performance model of kernels by XLA.
        own: the backend of kernels of our own as the search prices it; None where it knows none.
        kernels_by: name of the backend that makes kernels, priced or not; empty where none are made.
        seed: of the search, of random inputs and of the timing order.
        numerics: which rules may be used: `exact`, `real` or `range`.
        deterministic: the model alone decides; nothing is measured.
        searches: more than the plain candidate is wanted.
        keeps_plain: without a search the plain candidate is returned whatever it takes.
        rules: in place of the library; None for the library.
        max_prepared_bytes: of prepared and packed weights.
    """

    budget: SearchBudget
    objective: Objective = field(default_factory=lambda: Roofline(uncalibrated(), "uncalibrated"))
    own: Backend | None = None
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
        """Must results agree in every bit?"""
        return self.numerics == "exact"

    def within(self, budget: SearchBudget) -> Request:
        """The same for a stage that has this budget."""
        return replace(self, budget=budget)
