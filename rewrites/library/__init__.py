"""The rule library: each module holds rule texts in `RULES` and nothing else."""

from __future__ import annotations

from rewrites.language import texts
from rewrites.language.term import Rule
from superopt.errors import RuleError
from superopt.machine.shared import once


@once
def load() -> tuple[Rule, ...]:
    """All rules of the library, in order of module and text.

    Raises:
        RuleError: a text is no well-formed rule, or two rules share a name.
    """
    rules = tuple(rule for name in texts.modules(__name__) for rule in texts.read(__name__, name))
    texts.distinct(rules, "rules")
    return rules


def by_name(name: str) -> Rule:
    """One rule of the library.

    Raises:
        RuleError: no rule of that name.
    """
    for rule in load():
        if rule.name == name:
            return rule
    raise RuleError(f"no rule named {name!r}", hint="`superopt verify --library` lists the rules")
