"""A watch over the prover: every proved rule is evaluated where a wrong proof would show first.

The instances are random ones that the refuter has not seen, and those at which the solver says that a condition on
indices changes.  Values are those of the refuter, in float64.  Where the certificate claims bit equality, they are
special values in the types of programs: zeros of both signs, NaN, infinities, the largest and the least number.  Where
it claims integers, they are the ends of their types, next to which arithmetic wraps.  Results come from the interpreter
alone: a difference is a defect of the prover, unless the certificate excludes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rewrites.language.named import Env
from rewrites.language.term import Rule
from verifier.equal.equality import DEFINED, NO_OVERFLOW, POSITIONS
from verifier.equal.normal import EXACT
from verifier.rules.nonvacuity import ASSUMED
from verifier.rules.refute import (
    TYPED_FLOATS,
    TYPED_INTEGERS,
    Difference,
    differ_at,
    different_bits,
    env_of_seed,
    seen_at,
)
from verifier.verdict import ValidityDomain

LOOKS = 3
"""Number of random instances; those from the solver come on top."""
INSTANCES = 12
"""Most random instances searched for finite values; most rules have some at the first, and `LOOKS` are always tried."""


def contradicted(
    rule: Rule, domain: ValidityDomain, changes: Sequence[Env], first_seed: int
) -> tuple[Difference, str] | None:
    """A difference between the two sides of a proved rule, with the dtype in which it shows; None where there is none.

    Args:
        rule: the proved rule.
        domain: the domain that its certificate claims.
        changes: environments at which conditions on indices change.
        first_seed: seed of the first instance.
    """
    drawn = {seed: env_of_seed(rule, seed) for seed in range(first_seed, first_seed + LOOKS)}
    envs = {**dict(enumerate(changes, first_seed + LOOKS)), **{n: env for n, env in drawn.items() if env is not None}}
    for seed, env in envs.items():
        example = differ_at(env, seed)
        if example is not None and not (example.undefined and excludes_undefined(domain)):
            return example, rule.dtype or "float64"
        for dtype in _types(rule, domain, seed):
            example = different_bits(rule, 1, at={seed: env}, dtype=dtype)
            if example is not None:
                return example, dtype
    return None


def vacuous(rule: Rule, domain: ValidityDomain, first_seed: int) -> str:
    """The message that a proof which assumes finite or defined values is vacuous; empty where such values occur.

    Args:
        rule, domain: the proved rule and its domain.
        first_seed: seed of the first instance.
    """
    left, looks, tried = set(range(len(rule.lhs))), 0, 0
    if domain.exactness == EXACT and not excludes_undefined(domain):
        return ""
    seeds = range(first_seed, first_seed + INSTANCES)
    for empty, seed in itertools.product((False, True), seeds):
        if empty and looks:  # arrays without entries tell something only of a rule that has no others
            break
        env = env_of_seed(rule, seed)
        seen = None if env is None else seen_at(env, seed, empty=empty)
        if seen is None or not seen.tried:
            continue
        looks, tried = looks + 1, tried + seen.tried
        for root in range(len(rule.lhs)):
            if seen.unlike(root):
                return seen.missing(root)
        left &= set(seen.left)
        if not left and looks >= LOOKS:
            break
    return f"{ASSUMED}, and none of {tried} inputs tried gave any" if left else ""


def _types(rule: Rule, domain: ValidityDomain, seed: int) -> list[str]:
    """Dtypes in which a certificate claims bit equality, one of floats and one of integers for each instance."""
    out: list[str] = []
    if domain.exactness == EXACT and not rule.dtype and "float" in domain.dtypes:
        out.append(TYPED_FLOATS[seed % len(TYPED_FLOATS)])
    if "int" in domain.dtypes and not {NO_OVERFLOW, POSITIONS} & set(domain.assumptions):
        out.append(TYPED_INTEGERS[seed % len(TYPED_INTEGERS)])
    return out


def excludes_undefined(domain: ValidityDomain) -> bool:
    """Whether a certificate assumes that values are defined, beyond assuming that they are finite."""
    return any(a.startswith(DEFINED) for a in domain.assumptions)
