"""One rule, one verdict: refute first, prove, refute again.

A few tiny instances kill most wrong rules in milliseconds; what survives goes to the prover; what is not proved gets a
longer search for arrays before it is called UNKNOWN.  PROVED comes from the prover alone, REFUTED from the reference
interpreter alone; that both happen for one rule would be an error of the trusted part, and is raised as such.
"""

from __future__ import annotations

import time
from dataclasses import replace

from rewrites.direction import directions
from rewrites.term import Rule
from superopt.errors import VerificationError
from verifier.prove import prove
from verifier.refute import Attempts, refute
from verifier.verdict import REFUTED, UNSUPPORTED, Verdict

BEFORE, AFTER = 3, 60


def check(rule: Rule, direction: str = "forward", *, before: int = BEFORE, after: int = AFTER) -> Verdict:
    """The verdict on one direction of a rule.

    Args:
        rule: the rule.
        direction: forward or backward.
        before: random instances tried before the proof.
        after: further instances tried when the proof fails.

    Raises:
        VerificationError: the rule is proved and refuted at once (the prover or the interpreter is wrong).
    """
    start = time.perf_counter()
    forward, backward = directions(rule)
    reading = (forward if direction == "forward" else backward).rule
    if reading is None:
        return prove(rule, direction)
    attempts = Attempts()
    found = refute(reading, before, attempts=attempts)
    verdict = prove(rule, direction)
    if found is None and not verdict.proved:
        found = refute(reading, after, before, attempts)
    seconds = time.perf_counter() - start
    if found is None:
        tried = f"; no counterexample in {attempts.built} instances" if verdict.status != UNSUPPORTED else ""
        cause = verdict.cause if verdict.proved else f"{verdict.cause}{tried}"
        return replace(verdict, seconds=seconds, cause=cause)
    if verdict.proved:
        raise VerificationError(
            f"{rule.name} ({direction}) is proved and yet refuted at seed {found.seed}: {found.left} != {found.right}",
            hint="the prover or the reference interpreter is wrong: please report this rule",
        )
    return replace(verdict, status=REFUTED, counterexample=found, cause="", seconds=seconds)
