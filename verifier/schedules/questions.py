"""Questions about indices, and how they become findings: the arithmetic of this package first, then a point, then Z3.

A question asks whether polynomials are >= 0 on a domain.  What is neither proved nor refuted here is kept, so that
all that is open is put to the solver at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from superopt.ir.index import Form, Size
from verifier.schedules.domain import Domain, Point, shown
from verifier.schedules.verdict import CheckLimits, Finding, Witness, point
from verifier.verdict import PROVED, REFUTED, UNKNOWN

Says = Callable[[Point], str]


@dataclass
class Open:
    """A question for the solver: its finding becomes PROVED when every goal holds, REFUTED by a point of one."""

    at: int
    domain: Domain
    goals: list[Size]
    says: Says


@dataclass
class Findings:
    """What was found so far.

    Attributes:
        limits: of the check.
        inputs: names of the buffers whose entries may be anything.
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
        """A finding that is settled; is it proved?"""
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
        """Are all goals >= 0 on the domain?  The answer becomes a finding; is it proved?

        Args:
            obligation, stage, what: of the finding.
            domain: where.
            goals: what should be >= 0.
            says: what goes wrong at a point where a goal is negative.
            last: do not ask the solver.
        """
        tiers: set[str] = set()
        left: list[Size] = []
        for goal in goals:
            tier = domain.proof(goal)
            if tier:
                tiers.add(tier)
                continue
            found, absent = domain.violation(goal, self.limits.points)
            if found is not None and possible(found, self.inputs):
                return self.add(obligation, stage, what, REFUTED, "point", Witness(point(found), (), says(found)))
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

    def settle(self, question: Open, status: str, tier: str, at: Point | None = None) -> None:
        """The solver's answer to a question."""
        known = self.found[question.at]
        witness = None if at is None else Witness(point(at), (), question.says(at))
        self.found[question.at] = replace(known, status=status, tier=tier, witness=witness)


def possible(at: Point, inputs: frozenset[str]) -> bool:
    """May the entries at a point be those of a program's inputs: none is computed, and none has two values?"""
    known: dict[tuple[str, tuple[int | str, ...]], int] = {}
    for atom, value in at.items():
        if isinstance(atom, Form):
            if atom.op != "value" or atom.args[0].args[0] not in inputs:
                return False
            load = atom.args[0]
            if known.setdefault((load.args[0], tuple(shown(load.args[1], at))), value) != value:
                return False
    return True
