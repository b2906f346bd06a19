"""The result of an exploration: programs worth measuring, with the data of the search that later stages read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from costmodel.model.joint import Joint
from rewrites.build.expander import Expand
from rewrites.language.term import Rule
from superopt.certify.library import ProvedLibrary
from superopt.certify.plan import BodyPlan
from superopt.explore.kernel_timer import KernelTimer
from superopt.ir.graph import Graph
from superopt.ir.loop_steps import LoopStep
from superopt.ir.program import Program
from superopt.search.finalists import rule_gains
from superopt.search.search import Finalist, SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """Programs worth measuring, cheapest first by prediction, with the figures of the search that found them.

    Attributes:
        rules: all rules of the search.
        instances: those of them that were made for this program.
    """

    imported: Graph
    graph: Graph
    result: SearchResult
    expand: Expand
    model: Joint
    timer: KernelTimer | None
    growth: dict[str, Any]
    statistics: dict[str, Any]
    notes: tuple[str, ...]
    interrupted: bool
    bodies: tuple[BodyPlan, ...] = ()
    loops: tuple[LoopStep, ...] = ()
    rules: tuple[Rule, ...] = ()
    instances: ProvedLibrary = field(default_factory=lambda: ProvedLibrary((), {}))

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """The finalists worth measuring; the original's own form only where it prepares weights or improves bodies.

        The search has frozen work done ahead of time and bodies improved in every form, which is a gain by itself.
        """
        return tuple(f for f in self.result.finalists if not f.original or self._prepares(f))

    def finalist(self, name: str) -> Finalist | None:
        """The finalist of this name, as candidates refer to it; None where there is none."""
        return next((f for f in self.result.finalists if f.name == name), None)

    def _prepares(self, finalist: Finalist) -> bool:
        return self.program(finalist).computes_ahead or self.graph is not self.imported

    def program(self, finalist: Finalist) -> Program:
        """A finalist as a program over the inputs of the graph, macros expanded."""
        return self.result.program(finalist, self.graph, self.expand)

    def by_xla_s(self, finalist: Finalist) -> float:
        """Predicted seconds of a finalist where XLA computes all of it."""
        return self.result.by_xla(finalist, self.model.xla).seconds

    def gains_ms(self, finalist: Finalist) -> dict[str, float]:
        """Predicted milliseconds that each rule of a finalist saves: its time without the rule, less its time."""
        return {rule: 1e3 * seconds for rule, seconds in rule_gains(self.result.problem, finalist).items()}
