"""What `optimize` was asked for: made once, and handed down to every stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from costmodel.model.joint import NativeModel
from costmodel.model.objective import Objective, Roofline
from costmodel.model.weights_file import uncalibrated
from rewrites.language.term import Rule
from superopt.machine.budget import SearchBudget


@dataclass(frozen=True, slots=True)
class Request:
    """What a run was asked for, or one of its stages, whose budget is then its own.

    Attributes:
        budget: seconds or steps, and whether kernels of our own have a part of them.
        objective: the performance model of kernels by XLA.
        native: what is known of kernels of our own; None where there are to be none.
        seed: of the search, of random inputs and of the timing order.
        numerics: which rules may be used: `exact`, `real` or `range`.
        deterministic: the model alone decides; nothing is measured.
        searches: more than the plain candidate is wanted.
        rules: in place of the library; None for the library.
        max_prepared_bytes: of prepared and packed weights.
    """

    budget: SearchBudget
    objective: Objective = field(default_factory=lambda: Roofline(uncalibrated(), "uncalibrated"))
    native: NativeModel | None = None
    seed: int = 0
    numerics: str = "real"
    deterministic: bool = False
    searches: bool = True
    rules: tuple[Rule, ...] | None = None
    max_prepared_bytes: int | None = None

    @property
    def exact(self) -> bool:
        """Must results agree in every bit?"""
        return self.numerics == "exact"

    def within(self, budget: SearchBudget) -> Request:
        """The same for a stage that has this budget."""
        return replace(self, budget=budget)
