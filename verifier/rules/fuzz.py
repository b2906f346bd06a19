"""Fuzzing of the verifier with mutants: counts of false proofs, and of mutants that stay undecided.

Each mutant of each rule gets a verdict.  A mutant that is PROVED is evaluated on many more generated graphs than
`check` tries, with other ranks, sizes and axis orders: one difference is a *false proof*.  Mutants whose premises
contradict each other state nothing; they are counted separately.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from rewrites.language.parse import parse
from rewrites.language.show import rule_key, show, statement
from rewrites.language.term import Rule
from superopt.errors import VerificationError
from superopt.machine.deadline import Stopwatch
from verifier.equal.equality import DEFINED
from verifier.equal.normal import EXACT
from verifier.rules.check import check
from verifier.rules.mutate import Mutant, mutants
from verifier.rules.process import LimitExceededError, Prover, each
from verifier.rules.prove import CONTRADICTION, EMPTY_ONLY
from verifier.rules.refute import different_bits
from verifier.rules.shrink import readable, refute
from verifier.verdict import PROVED, UNKNOWN, Counterexample

FALSE_PROOF, VACUOUS = "FALSE PROOF", "VACUOUS"
BY_ZERO = "division by zero"  # by a literal; if the right side alone divided, the interpreter would have seen it
GRAPHS = 40
"""Further instances on which a proved mutant is evaluated."""


@dataclass(frozen=True, slots=True)
class MutantOutcome:
    """The outcome of one mutant.

    Attributes:
        mutant: the mutant.
        status: a verdict, or `VACUOUS`, or `FALSE PROOF`.
        cause: cause of an open verdict.
        counterexample: arrays that show a false proof.
        seconds: time taken by the verdict.
    """

    mutant: Mutant
    status: str
    cause: str = ""
    counterexample: Counterexample | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.status} {self.mutant.of}: {self.mutant.what} {self.cause}", statement(self.mutant.rule)]
        return "\n".join([*lines, str(self.counterexample)] if self.counterexample else lines)


@dataclass
class Fuzzed:
    """The outcomes of many mutants."""

    outcomes: list[MutantOutcome] = field(default_factory=list[MutantOutcome])

    @property
    def counts(self) -> Counter[str]:
        """Mutants by status."""
        return Counter(o.status for o in self.outcomes)

    @property
    def false_proofs(self) -> list[MutantOutcome]:
        """Mutants that are proved and numerically false."""
        return [o for o in self.outcomes if o.status == FALSE_PROOF]

    @property
    def open(self) -> list[MutantOutcome]:
        """Mutants that are neither proved nor refuted."""
        return [o for o in self.outcomes if o.status in ("UNKNOWN", "UNSUPPORTED")]

    @property
    def unknown_fraction(self) -> float:
        """Fraction of open mutants among those that state something."""
        stated = len(self.outcomes) - self.counts[VACUOUS]
        return len(self.open) / stated if stated else 0.0

    def summary(self) -> dict[str, Any]:
        """Counts, and one row for each mutant that is open or falsely proved."""
        return {
            "mutants": len(self.outcomes),
            "false_proofs": len(self.false_proofs),
            "unknown_fraction": self.unknown_fraction,
            "statuses": dict(self.counts),
            "rows": [
                {"rule": o.mutant.of, "change": o.mutant.what, "status": o.status, "text": show(o.mutant.rule)}
                | {"cause": o.cause}
                for o in (*self.false_proofs, *self.open)
            ],
        }

    def __str__(self) -> str:
        words = ", ".join(f"{n} {status}" for status, n in self.counts.items())
        lines = [str(o) for o in (*self.false_proofs, *self.open)]
        return "\n".join([*lines, f"{len(self.outcomes)} mutants: {words}; {self.unknown_fraction:.2%} open"])


def draw(rules: Sequence[Rule], count: int, seed: int = 0) -> list[Mutant]:
    """Draw `count` distinct mutants, about equally many of each rule; the same seed draws the same ones."""
    lists = [mutants(rule, limit, seed) for rule, limit in zip(rules, _shares(rules, count), strict=True)]
    seen: dict[str, Mutant] = {}
    own = {rule_key(rule) for rule in rules}
    for turn in range(max(map(len, lists), default=0)):
        for made in lists:
            if turn < len(made) and rule_key(made[turn].rule) not in own:
                seen.setdefault(rule_key(made[turn].rule), made[turn])
    return list(seen.values())[:count]


def _shares(rules: Sequence[Rule], count: int) -> Iterator[int]:
    """Mutants to draw of each rule: three times its share, since short rules have too few mutants."""
    for _ in rules:
        yield max(1, 3 * count // len(rules))


def try_mutant(mutant: Mutant, graphs: int = GRAPHS) -> MutantOutcome:
    """The outcome of a mutant: its verdict, tested by evaluation where it is PROVED."""
    watch = Stopwatch()
    try:
        verdict = check(mutant.rule, before=8, small=False)
    except VerificationError as contradiction:  # the refuter found arrays after the proof
        return MutantOutcome(mutant, FALSE_PROOF, str(contradiction), seconds=watch.elapsed_s)
    seconds = watch.elapsed_s
    if verdict.status != PROVED:
        vacuous = verdict.cause.startswith((CONTRADICTION, EMPTY_ONLY)) or BY_ZERO in verdict.cause
        return MutantOutcome(mutant, VACUOUS if vacuous else verdict.status, verdict.cause, seconds=seconds)
    example = refute(mutant.rule, graphs, first_seed=1000)
    assumed = verdict.domain.assumptions if verdict.domain is not None else ()
    outside = example is not None and example.undefined and any(a.startswith(DEFINED) for a in assumed)
    if example is not None and not outside:
        return MutantOutcome(mutant, FALSE_PROOF, counterexample=example, seconds=seconds)
    exact = verdict.domain is not None and verdict.domain.exactness == EXACT and not mutant.rule.dtype
    other = different_bits(mutant.rule, graphs // 4) if exact else None
    if other is not None:
        return MutantOutcome(mutant, FALSE_PROOF, "exact, but not in every bit", readable(other, False), seconds)
    return MutantOutcome(mutant, PROVED, seconds=seconds)


def try_text(of: str, kind: str, what: str, text: str) -> dict[str, Any]:
    """Entry point of a worker process: the outcome, as JSON, of a mutant given by its text."""
    outcome = try_mutant(Mutant(of, kind, what, parse(text, where="<mutant>")))
    shown = None if outcome.counterexample is None else str(outcome.counterexample)
    return {"status": outcome.status, "cause": outcome.cause, "shown": shown, "seconds": outcome.seconds}


def try_all(mutants: Sequence[Mutant], jobs: int = 1) -> Iterator[tuple[int, MutantOutcome]]:
    """Yield the outcomes of mutants with their numbers as they come, from `jobs` processes limited as a `Prover` is."""
    with ExitStack() as stack:
        provers = [stack.enter_context(Prover()) for _ in range(jobs)]
        yield from stack.enter_context(closing(each(mutants, _asked, provers)))


def _asked(prover: Prover, mutant: Mutant) -> MutantOutcome:
    try:
        told = prover.call("verifier.rules.fuzz:try_text", mutant.of, mutant.kind, mutant.what, show(mutant.rule))
    except LimitExceededError as limit:
        return MutantOutcome(mutant, UNKNOWN, str(limit), seconds=prover.seconds)
    cause = told["cause"] or told["shown"] or ""
    return MutantOutcome(mutant, told["status"], cause, seconds=told["seconds"])


def fuzz(rules: Sequence[Rule], count: int, seed: int = 0) -> Fuzzed:
    """The outcomes of `count` mutants of some rules, in as many processes as this process may use cores."""
    drawn = draw(rules, count, seed)
    outcomes = dict(try_all(drawn, cores()))
    return Fuzzed([outcomes[i] for i in range(len(drawn))])


def cores() -> int:
    """Number of cores that this process may use; 1 where the system cannot say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
