"""Proving rules for users: `superopt.verify(rule)`, `@superopt.rule`, rule files, and the library as a whole."""

from __future__ import annotations

import ast
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.errors import InputError, UsageError, VerificationError

if TYPE_CHECKING:
    from rewrites.term import Rule
    from verifier.verdict import Verdict


def verify(statement: str | Rule) -> Verdict:
    """Prove or refute a rule: the text of one rule, or a `Rule`.

    Returns:
        A verdict whose `status` is PROVED (with its domain), REFUTED (with arrays), UNKNOWN (with a cause) or
        UNSUPPORTED (with the op).

    Raises:
        RuleError: the text is not a rule.
        UsageError: something else was given.
    """
    from rewrites.parse import parse  # late: z3 and the rule engine are only loaded when used
    from rewrites.term import Rule  # late: see above
    from verifier.ledger import verify_rules  # late: see above

    if isinstance(statement, str):
        statement = parse(statement, where="<text>")
    if not isinstance(statement, Rule):
        raise UsageError(
            f"cannot verify a {type(statement).__name__}",
            hint="give the text of a rule, or what superopt.rule returned",
        )
    return verify_rules([statement])[0]


def rule(text: str) -> Rule:
    """A rule from its text, after it was proved.

    Raises:
        RuleError: the text is not a rule.
        VerificationError: it is not proved; the message holds the counterexample or the cause.
    """
    from rewrites.parse import parse  # late: see verify

    made = parse(text, where="<text>")
    verdict = verify(made)
    if verdict.status != "PROVED":
        raise VerificationError(f"the rule {made.name} is {verdict.status}:\n{verdict}")
    return made


def verify_library(names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Prove the shipped library from scratch: summary and text.

    Raises:
        InputError: no rule has such a name.
    """
    from rewrites.library import load  # late: see verify

    return _verify(chosen_rules(load(), names))


def verify_files(files: Sequence[str], names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Prove every rule of some files: rule texts, or Python files with a RULES text (which are read, not run).

    Raises:
        InputError: a file that cannot be read, or without rules, or no rule of such a name.
        RuleError: a text that is not a rule.
    """
    return _verify(chosen_rules(rules_of_files(files), names))


def rules_of_files(files: Sequence[str]) -> list[Rule]:
    """The rules of some files.

    Raises:
        InputError: a file that cannot be read, or without rules.
        RuleError: a text that is not a rule.
    """
    from rewrites.parse import parse_many  # late: see verify

    rules: list[Rule] = []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {file}: {error}", hint="give a text file of rules") from error
        first = 1
        if Path(file).suffix == ".py":
            text, first = _rules_text(text, file)
        rules += parse_many(text, where=f"{file}:{first}")
    return rules


def _rules_text(source: str, file: str) -> tuple[str, int]:
    """The string that a Python file assigns to RULES, and the line on which it starts."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file} is not Python: {error}", hint="give a text file of rules") from error
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id="RULES")], value=ast.Constant(value=str(text)) as value):
                return text, value.lineno
            case _:
                pass
    raise InputError(f"{file} defines no RULES text", hint='write RULES = """..."""')


def chosen_rules(rules: Sequence[Rule], names: Sequence[str]) -> list[Rule]:
    """The rules whose names contain one of some texts, or all where there is no text.

    Raises:
        InputError: there is none.
    """
    chosen = [r for r in rules if not names or any(text in r.name for text in names)]
    if not chosen:
        hint = "a rule starts with `name: declarations` at the margin"
        raise InputError("no rule to verify", hint="no rule has such a name" if rules else hint)
    return chosen


def _verify(rules: Sequence[Rule]) -> tuple[dict[str, Any], str]:
    from verifier.ledger import summary, verify_rules  # late: see verify

    begin = time.perf_counter()
    verdicts = verify_rules(rules)
    data = summary(verdicts, time.perf_counter() - begin)
    lines = [str(v) for v in verdicts]
    lines.append(
        f"{data['rules']} rules: {data['proved']} proved, {data['refuted']} refuted, {data['unknown']} unknown"
        f" in {data['seconds']:.1f} s"
    )
    return data, "\n".join(lines)
