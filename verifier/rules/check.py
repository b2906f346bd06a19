"""One rule, one verdict: refute first, prove, refute again.

A few tiny instances refute most wrong rules in milliseconds.  Rules that survive go to the prover.  A rule that is not
proved gets a longer search for arrays, first at sizes where the solver sees a difference, before it is called UNKNOWN.
A rule that is proved is evaluated where a wrong proof would show (`verifier.rules.watch`).  PROVED comes from the
prover alone, REFUTED from the reference interpreter alone.  A rule that is both shows a defect of the trusted part,
which is raised as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rewrites.language.direction import directions
from rewrites.language.named import Env
from rewrites.language.term import Rule
from superopt.errors import ProverDefectError
from superopt.machine.deadline import Stopwatch
from superopt.machine.shared import paused_collector
from verifier.equal.equality import NO_OVERFLOW
from verifier.equal.solver import recorded
from verifier.rules.instance import solved_envs
from verifier.rules.prove import prove
from verifier.rules.refute import Attempts, Difference, differ_at, search
from verifier.rules.shrink import readable
from verifier.rules.watch import contradicted, excludes_undefined, vacuous
from verifier.verdict import REFUTED, UNKNOWN, UNSUPPORTED, Verdict

BEFORE, AFTER = 3, 40


def check(
    rule: Rule, direction: str = "forward", *, before: int = BEFORE, after: int = AFTER, small: bool = True
) -> Verdict:
    """The verdict on one direction of a rule.

    Args:
        rule: the rule.
        direction: forward or backward.
        before: random instances tried before the proof.
        after: further instances tried when the proof fails.
        small: whether a counterexample is made small and readable.

    Raises:
        ProverDefectError: the rule is proved and refuted at once (the prover or the interpreter is wrong).
    """
    watch = Stopwatch()
    forward, backward = directions(rule)
    reading = (forward if direction == "forward" else backward).rule
    if reading is None:
        return prove(rule, direction)
    attempts = Attempts()
    example = search(reading, before, attempts=attempts)
    suspects: list[Env] = []  # for a proved rule: environments where its conditions change
    with recorded() as asked, paused_collector():  # terms that are freed give their numbers to others
        verdict = prove(rule, direction, suspects)
    if verdict.proved:
        verdict = replace(verdict, asked=tuple(asked))
    kinds = f"at seed {example.seed}" if example is not None else ""
    if verdict.domain is not None and example is not None and example.undefined and excludes_undefined(verdict.domain):
        example = None  # outside the domain: the assumptions of the certificate exclude it
    if verdict.proved and _only_in_range(
        verdict
    ):  # integers wrap: where arrays show it, the rule is false as it stands
        example = example or search(reading, after, before, attempts)
        if example is not None or reading.vars:  # entries of inputs may be large
            cause = f"proved only where {NO_OVERFLOW}"
            verdict = replace(verdict, status=UNKNOWN, domain=None, proved_when=NO_OVERFLOW, cause=cause)
    if example is None and verdict.domain is not None:
        watched = contradicted(reading, verdict.domain, suspects, before)
        if watched is not None:
            example, kinds = watched[0], f"in {watched[1]} at seed {watched[0].seed}"
        elif nothing := vacuous(reading, verdict.domain, before):
            verdict = replace(verdict, status=UNKNOWN, domain=None, cause=nothing)
    if example is None and not verdict.proved:
        example = _first(suspects, attempts) or search(reading, after, before, attempts)
        example = example or _first(solved_envs(reading, after), attempts)
    seconds = watch.elapsed_s
    if example is None:
        tried = f"; no counterexample in {attempts.built} instances" if verdict.status != UNSUPPORTED else ""
        cause = verdict.cause if verdict.proved else f"{verdict.cause}{tried}"
        return replace(verdict, seconds=seconds, cause=cause)
    if verdict.proved:
        told = readable(example, example.index is None or "in " not in kinds)
        raise ProverDefectError(f"{rule.name} ({direction}) is proved and yet refuted {kinds}:\n{told}")
    if example.index is None and small:
        example = search(reading, after, attempts=attempts, patience=after) or example
    return replace(verdict, status=REFUTED, counterexample=readable(example, small), cause="", seconds=seconds)


def _only_in_range(verdict: Verdict) -> bool:
    """Whether a proof about integers assumes that no operation wraps."""
    return verdict.domain is not None and NO_OVERFLOW in verdict.domain.assumptions


def _first(envs: Iterable[Env], attempts: Attempts) -> Difference | None:
    """The first of some sizes and attributes, chosen by the solver, at which the interpreter sees a difference."""
    for n, env in enumerate(envs):
        example = differ_at(env, n, attempts)
        if example is not None:
            return example
    return None
