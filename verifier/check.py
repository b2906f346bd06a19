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
from verifier.prove import DEFINED, prove
from verifier.refute import PATIENCE, Attempts, Difference, differ_at, search
from verifier.shapes import solved_envs
from verifier.shrink import readable
from verifier.solver import recorded
from verifier.verdict import REFUTED, UNSUPPORTED, Verdict

BEFORE, AFTER = 3, 40


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
    found = search(reading, before, attempts=attempts)
    with recorded() as asked:
        verdict = prove(rule, direction)
    if verdict.proved:
        verdict = replace(verdict, asked=tuple(asked))
    if verdict.proved and found is not None and found.undefined and _assumes(verdict):
        found = None  # outside the domain: the assumptions of the certificate exclude it
    if found is None and not verdict.proved:
        found = search(reading, after, before, attempts) or _solved(reading, after, attempts)
    seconds = time.perf_counter() - start
    if found is None:
        tried = f"; no counterexample in {attempts.built} instances" if verdict.status != UNSUPPORTED else ""
        cause = verdict.cause if verdict.proved else f"{verdict.cause}{tried}"
        return replace(verdict, seconds=seconds, cause=cause)
    if verdict.proved:
        raise VerificationError(
            f"{rule.name} ({direction}) is proved and yet refuted at seed {found.seed}:\n{readable(found)}",
            hint="the prover or the reference interpreter is wrong: please report this rule",
        )
    if found.index is None:
        found = search(reading, PATIENCE, attempts=attempts) or found
    return replace(verdict, status=REFUTED, counterexample=readable(found), cause="", seconds=seconds)


def _assumes(verdict: Verdict) -> bool:
    """Does the certificate assume something about values, beyond their being finite numbers?"""
    return verdict.domain is not None and any(a.startswith(DEFINED) for a in verdict.domain.assumptions)


def _solved(rule: Rule, points: int, attempts: Attempts) -> Difference | None:
    for n, env in enumerate(solved_envs(rule, points)):
        found = differ_at(env, n, attempts)
        if found is not None:
            return found
    return None
