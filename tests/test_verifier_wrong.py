"""Wrong rules are refuted with arrays, and no mutant of a true rule is proved that the interpreter refutes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from verifier_texts import TRUE, WRONG

from rewrites.library import load
from rewrites.parse import parse, parse_many
from rewrites.show import show
from rewrites.term import Rule
from superopt.errors import RuleError
from verifier.check import check
from verifier.prove import prove
from verifier.shrink import refute
from verifier.verdict import PROVED, REFUTED

RULES = parse_many(WRONG)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_wrong_rule_is_refuted_with_arrays(rule: Rule) -> None:
    assert not prove(rule).proved
    verdict = check(rule)
    assert verdict.status == REFUTED, str(verdict)
    found = verdict.counterexample
    assert found is not None
    assert set(found.inputs) == set(rule.vars)
    assert all(np.reshape(found.inputs[name], found.shapes[name]).ndim >= 0 for name in found.inputs)
    assert found.left != found.right


def test_there_are_enough_of_them() -> None:
    assert len(RULES) >= 20


def test_refutation_is_deterministic() -> None:
    rule = next(r for r in RULES if r.name == "max-into-dot")
    assert refute(rule, 20) == refute(rule, 20)


def mutants(rule: Rule) -> Iterator[tuple[str, str]]:
    """Texts with one thing changed: an operator, an operand order, an attribute order, a dropped condition."""
    text = show(rule)
    lines = text.split("\n")
    for n, line in enumerate(lines):
        body = line.strip()

        def changed(new: str, n: int = n) -> str:
            return "\n".join([*lines[:n], new, *lines[n + 1 :]] if new.strip() else [*lines[:n], *lines[n + 1 :]])

        if body.startswith("if "):
            conditions = body[3:].split(", ")
            for i, dropped in enumerate(conditions):
                rest = conditions[:i] + conditions[i + 1 :]
                yield f"drop {dropped}", changed("  if " + ", ".join(rest) if rest else "")
        start = line.find("==") + 2 if "==" in line and not body.startswith(("if", "prefer")) else 5
        if "==" not in line[:start] and not body.startswith("with"):
            continue
        for m in re.finditer(r" ([+\-*]) ", line[start:]):
            at = start + m.start(1)
            yield f"{m[1]} at {at}", changed(line[:at] + {"+": "-", "-": "+", "*": "+"}[m[1]] + line[at + 1 :])
        for m in re.finditer(r"\b(concat|where|minimum|maximum)\((\w+), (\w+)", line[start:]):
            a, b = start + m.start(2), start + m.end(3)
            yield f"swap {m[0]}", changed(line[:a] + f"{m[3]}, {m[2]}" + line[b:])
        for m in re.finditer(r"\b([snou])\((\w+), (\w+)(?=[,)])", line[start:]):
            a, b = start + m.start(2), start + m.end(3)
            yield f"swap attributes {m[0]}", changed(line[:a] + f"{m[3]}, {m[2]}" + line[b:])
        for m in re.finditer(r"\b(\w+)\(0, ", line[start:]):
            a = start + m.start()
            yield f"start at 1: {m[0]}", changed(line[:a] + f"{m[1]}(1, " + line[a + len(m[0]) :])


MUTANTS = 8
"""At most so many mutants of one rule are tried."""


def test_no_mutant_is_proved_and_refuted() -> None:
    count: Counter[str] = Counter()
    open_: list[str] = []
    for rule in (*load(), *parse_many(TRUE)):
        texts = list(mutants(rule))
        for what, text in texts[:: 1 + len(texts) // MUTANTS]:  # the longest rules have a hundred
            try:
                mutant = parse(text)
            except RuleError:
                count["refused"] += 1
                continue
            verdict = check(mutant, before=12, after=40)  # raises when proved and refuted at once
            count[verdict.status] += 1
            if verdict.status not in (PROVED, REFUTED):
                open_.append(f"{rule.name}: {what}: {verdict.cause}")
    assert count[REFUTED] >= 100
    assert len(open_) <= 0.1 * count[REFUTED], "\n".join(open_)
