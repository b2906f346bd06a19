"""Questions about indices, and the findings that answer them.

A question asks whether polynomials are >= 0 on a domain.  It is settled by a proof with this package's arithmetic, or
by a point that refutes it.  Questions that stay open are collected, so that the solver gets them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from superopt.ir.index import Form, Size
from verifier.schedules.domain import Domain, DomainPoint, shown
from verifier.schedules.verdict import CheckLimits, Finding, Witness, point
from verifier.verdict import PROVED, REFUTED, UNKNOWN

Says = Callable[[DomainPoint], str]


@dataclass
class Open:
    """A question for the solver: its finding becomes PROVED when all goals hold, REFUTED by a point where one fails."""

    at: int
    domain: Domain
    goals: list[Size]
    says: Says


@dataclass
class Findings:
    """Findings of one check so far, and the questions that are still open.

    Attributes:
        limits: limits of the check.
        inputs: names of the buffers whose entries are arbitrary.
        found: findings, in the order in which they were made.
        open: questions for the solver, by the place of their finding.
    """

    limits: CheckLimits
    inputs: frozenset[str] = frozenset()
    found: list[Finding] = field(default_factory=list[Finding])
    open: list[Open] = field(default_factory=list[Open])

    def add(
        self, obligation: str, stage: str, what: str, status: str, tier: str, witness: Witness | None = None
    ) -> bool:
        """Record a settled finding; return whether it is proved."""
        self.found.append(Finding(obligation, stage, what, status, tier, witness))
        return status == PROVED

    def ask(
        self,
        obligation: str,
        stage: str,
        what: str,
        domain: Domain,
        goals: Sequence[Size],
        says: Says,
        last: bool = False,
    ) -> bool:
        """Ask whether all goals are >= 0 on the domain; record the answer as a finding and return whether it is proved.

        Args:
            obligation, stage, what: of the finding.
            domain: the points in question.
            goals: polynomials that should be >= 0.
            says: describes what goes wrong at a point where a goal is negative.
            last: whether to keep the question from the solver.
        """
        tiers: set[str] = set()
        left: list[Size] = []
        for goal in goals:
            tier = domain.proof(goal)
            if tier:
                tiers.add(tier)
                continue
            violation, absent = domain.violation(goal, self.limits.points)
            if violation is not None and possible(violation, self.inputs):
                return self.add(
                    obligation, stage, what, REFUTED, "point", Witness(point(violation), (), says(violation))
                )
            if absent:
                tiers.add("enumeration")
            else:
                left.append(goal)
        if not left:
            order = ("enumeration", "linear", "intervals")
            return self.add(obligation, stage, what, PROVED, next((t for t in order if t in tiers), "intervals"))
        self.found.append(Finding(obligation, stage, what, UNKNOWN))
        if not last:
            self.open.append(Open(len(self.found) - 1, domain, left, says))
        return False

    def settle(self, question: Open, status: str, tier: str, at: DomainPoint | None = None) -> None:
        """Record the solver's answer to a question."""
        known = self.found[question.at]
        witness = None if at is None else Witness(point(at), (), question.says(at))
        self.found[question.at] = replace(known, status=status, tier=tier, witness=witness)


def possible(at: DomainPoint, inputs: frozenset[str]) -> bool:
    """Whether a program's inputs can have the entries at a point: none is computed, and none has two values."""
    known: dict[tuple[str, tuple[int | str, ...]], int] = {}
    for atom, value in at.items():
        if isinstance(atom, Form):
            if atom.op != "value" or atom.args[0].args[0] not in inputs:
                return False
            load = atom.args[0]
            if known.setdefault((load.args[0], tuple(shown(load.args[1], at))), value) != value:
                return False
    return True
