"""Statements as rules: the lifted text, widened as far as the prover goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.lift.lifting import Lifted, Unliftable, lift, widen
from superopt.errors import RuleError
from verifier.rules.process import shared
from verifier.statements.refute import Pairing
from verifier.verdict import ValidityDomain, Verdict

if TYPE_CHECKING:
    from verifier.statements.statement import Statement


def lifted(statement: Statement, pair: Pairing) -> Lifted:
    """The statement as rule text over single axes.

    Raises:
        Unliftable: no rule text speaks of it.
    """
    if pair.traced is None:
        raise Unliftable("it cannot be traced at symbolic sizes")
    left, right = (t.graph for t in pair.traced)
    return lift(statement.name, left, right, statement.specs.sizes, statement.specs.premises)


def general(
    statement: Statement, pair: Pairing, judge: Callable[[Rule], Verdict] | None = None
) -> tuple[Rule | None, Verdict | None]:
    """The most general rule that the judge (without one, the prover) proves, and its verdict; else the last verdict.

    Raises:
        Unliftable: no rule text speaks of it.
    """
    text = lifted(statement, pair)
    try:
        parse(text.text(), statement.where or "<lifted>")
    except RuleError as error:
        raise Unliftable(f"{text.text()}\n{error.args[0]}") from error
    verdicts: dict[str, Verdict] = {}
    last: list[Verdict] = []

    def accepts(rule: Rule) -> bool:
        verdict = judge(rule) if judge is not None else shared().prove(rule)
        last.append(verdict)
        verdicts[str(sorted(rule.many))] = verdict
        return verdict.proved

    made = widen(text, accepts, statement.where or "<lifted>")
    if made is None:
        return None, last[-1] if last else None
    return made, verdicts[str(sorted(made.many))]


def any_rank(statement: Statement, pair: Pairing, domain: ValidityDomain) -> ValidityDomain:
    """The domain with the ranks that the lifted rule is proved for; as it was where there is no such rule."""
    try:
        made, verdict = general(statement, pair)
    except Unliftable:
        return domain
    if made is None or verdict is None or verdict.domain is None:
        return domain
    wide = dict(verdict.domain.ranks)
    ranks = tuple((role, wide.get(role, "1")) for role in made.roles if role in made.many)
    single = tuple((role, "1") for role in made.roles if role not in made.many)
    return replace(domain, ranks=(*ranks, *single))
