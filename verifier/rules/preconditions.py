"""Weakest preconditions: is every premise of a rule needed?

Each premise is dropped in turn.  Arrays on which the two sides then differ show that it is needed; a proof without it,
in a domain as wide, shows that it is redundant.  A premise may also be needed for the domain alone: without it the
rule still holds, but for fewer ranks, under more assumptions, or only over the reals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewrites.language.parse import parse
from rewrites.language.show import expr, show, text
from rewrites.language.term import Rule
from verifier.rules.mutate import with_parts
from verifier.rules.process import shared
from verifier.verdict import EXACTNESS, PROVED, REFUTED, Counterexample, ValidityDomain

NEEDED, REDUNDANT, DOMAIN, OPEN = "needed", "redundant", "needed for the domain", "open"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What becomes of a rule without one of its premises.

    Attributes:
        rule: its name.
        premise: the premise as text.
        status: needed (refuted without it), redundant (proved without it), needed for the domain, or open.
        counterexample: of a needed premise.
        cause: what the domain loses, or why nothing is known.
    """

    rule: str
    premise: str
    status: str
    counterexample: Counterexample | None = None
    cause: str = ""

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.premise} is {self.status}{': ' if self.cause else ''}{self.cause}"]
        return "\n".join([*lines, str(self.counterexample)] if self.counterexample else lines)


def preconditions(rule: Rule) -> list[Dropped]:
    """Each premise of a proved rule, dropped in turn; nothing for a rule that is not proved."""
    weaker = list(_weaker(rule))
    whole = shared().check(rule) if weaker else None
    if whole is None or whole.domain is None:
        return []
    out: list[Dropped] = []
    for premise, without in weaker:
        verdict = shared().check(without)
        if verdict.status == REFUTED:
            out.append(Dropped(rule.name, premise, NEEDED, verdict.counterexample))
        elif verdict.status == PROVED and verdict.domain is not None:
            lost = _lost(whole.domain, verdict.domain)
            out.append(Dropped(rule.name, premise, DOMAIN if lost else REDUNDANT, cause=lost))
        else:
            out.append(Dropped(rule.name, premise, OPEN, cause=verdict.cause))
    return out


def _weaker(rule: Rule) -> Iterator[tuple[str, Rule]]:
    for i, e in enumerate(rule.cond):
        yield expr(e), _read(with_parts(rule, cond=rule.cond[:i] + rule.cond[i + 1 :]))
    for i, t in enumerate(rule.given):
        yield text(rule, t), _read(with_parts(rule, given=rule.given[:i] + rule.given[i + 1 :]))


def _read(rule: Rule) -> Rule:
    """The rule as its own text says it."""
    return parse(show(rule), rule.where)


def _lost(whole: ValidityDomain, without: ValidityDomain) -> str:
    """What a domain has that another has not."""
    lost: list[str] = []
    if EXACTNESS.index(without.exactness) > EXACTNESS.index(whole.exactness):
        lost.append(f"only {without.exactness} without it")
    held = dict(without.ranks)
    lost += [f"ranks of {r} up to {held[r]} only" for r, n in whole.ranks if n != held.get(r, n)]
    lost += [f"not for {kind}" for kind in whole.dtypes if kind not in without.dtypes]
    lost += [f"assumes that {a}" for a in without.assumptions if a not in whole.assumptions]
    return "; ".join(lost)


def report(rules: Sequence[Rule]) -> tuple[dict[str, Any], str]:
    """What `superopt verify --preconditions` prints: counts with one row per premise, and text."""
    found = [dropped for rule in rules for dropped in preconditions(rule)]
    counts = {status: sum(d.status == status for d in found) for status in (NEEDED, REDUNDANT, DOMAIN, OPEN)}
    words = ", ".join(f"{n} {status}" for status, n in counts.items())
    data = {"rules": len(rules), "premises": len(found), **counts, "rows": [asdict(d) for d in found]}
    return data, "\n".join([*map(str, found), f"{len(found)} premises of {len(rules)} rules: {words}"])
