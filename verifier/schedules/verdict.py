"""The verdict on a schedule: one finding per obligation and place, and the status over all of them.

The seven obligations:

    layout    layouts and splits are bijections.
    bounds    accesses are in bounds.
    once      every element of an output is written exactly once.
    order     tasks are free of races and nothing is read before it is written.
    value     values and intrinsics are those of the program before.
    alias     buffers that share memory overwrite nothing that is still read.
    overflow  integer sums do not overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verifier.verdict import PROVED

LAYOUT, BOUNDS, ONCE, ORDER, VALUE, ALIAS, OVERFLOW = OBLIGATIONS = (
    "layout", "bounds", "once", "order", "value", "alias", "overflow",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Bounds of one check.

    Attributes:
        seconds: wall time of the check, and again as much for the solver; then the verdict is UNKNOWN.
        points: a domain with at most this many points is enumerated.
        steps: comparisons of expressions and questions about indices; beyond them the check is UNKNOWN.
        solver: whether to ask Z3 about questions that the arithmetic of this package leaves open.
    """

    seconds: float = 10.0
    points: int = 1 << 16
    steps: int = 20_000
    solver: bool = True


@dataclass(frozen=True, slots=True)
class Witness:
    """A place where an obligation fails.

    Attributes:
        at: values of the iterators.
        other: values of a second iteration that collides with the first; empty where one is enough.
        says: message about the failure: an address, two tasks, an element.
    """

    at: tuple[tuple[str, int], ...]
    other: tuple[tuple[str, int], ...] = ()
    says: str = ""

    def __str__(self) -> str:
        sides = [", ".join(f"{name}={value}" for name, value in side) for side in (self.at, self.other) if side]
        return f"{' and '.join(f'({s})' for s in sides)}: {self.says}" if sides else self.says


@dataclass(frozen=True, slots=True)
class Finding:
    """One obligation at one place.

    Attributes:
        obligation: one of `OBLIGATIONS`.
        stage: the stage that it is about.
        what: the statement in question, for messages.
        status: PROVED, REFUTED or UNKNOWN.
        tier: how it was settled: intervals, linear, digits, enumeration, structure, solver, prover.
        witness: of a refutation.
    """

    obligation: str
    stage: str
    what: str
    status: str
    tier: str = ""
    witness: Witness | None = None

    def __str__(self) -> str:
        tail = f" at {self.witness}" if self.witness is not None else ""
        return f"{self.status} {self.obligation} of {self.stage}: {self.what}{tail}"


@dataclass(frozen=True, slots=True)
class ScheduleVerdict:
    """The verdict on a loop program after a trace.

    Attributes:
        program: name of the program.
        key: digest of both programs, of aliases, and of the checker.
        status: PROVED when all findings are; REFUTED when one is; else UNKNOWN.
        findings: all findings, those that are not proved first.
        exactness: exact: no operation is added, dropped or reordered; real: sums are taken in another order.
        seconds: duration of the check.
        cached: whether the verdict was read from the ledger.
    """

    program: str
    key: str
    status: str
    findings: tuple[Finding, ...]
    exactness: str = "exact"
    seconds: float = field(default=0.0, compare=False)
    cached: bool = field(default=False, compare=False)

    @property
    def proved(self) -> bool:
        """Whether the program may be compiled and run."""
        return self.status == PROVED

    @property
    def cause(self) -> str:
        """The findings that are not proved, in one line; empty for a proof."""
        return "; ".join(str(f) for f in self.findings if f.status == self.status) if not self.proved else ""

    @property
    def witness(self) -> Witness | None:
        """The first witness of a refutation, or None."""
        return next((f.witness for f in self.findings if f.witness is not None), None)

    def count(self) -> dict[str, int]:
        """Number of findings per obligation."""
        return {name: sum(f.obligation == name for f in self.findings) for name in OBLIGATIONS}

    def tiers(self) -> dict[str, int]:
        """Number of findings per tier."""
        counts: dict[str, int] = {}
        for f in self.findings:
            counts[f.tier] = counts.get(f.tier, 0) + 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        return {
            "program": self.program,
            "key": self.key,
            "status": self.status,
            "exactness": self.exactness,
            "milliseconds": round(self.seconds * 1e3, 3),
            "cached": self.cached,
            "obligations": self.count(),
            "tiers": self.tiers(),
            "cause": self.cause,
            "witness": None if self.witness is None else str(self.witness),
        }

    def __str__(self) -> str:
        if self.proved:
            counts = ", ".join(f"{name} {n}" for name, n in self.count().items() if n)
            return f"{self.status} {self.program} ({self.exactness}): {counts}"
        return f"{self.status} {self.program}: {self.cause}"


def point(values: Mapping[Any, int]) -> tuple[tuple[str, int], ...]:
    """Iterator values by name, as a witness keeps them."""
    return tuple(sorted((str(s), int(v)) for s, v in values.items()))
