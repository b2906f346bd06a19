"""Wrong rules are refuted with arrays that people can read, and no mutant of a true rule is proved that is false."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import superopt
from rewrites.language.parse import parse, parse_many
from rewrites.language.show import rule_key
from rewrites.language.term import Rule
from rewrites.library import by_name, load
from superopt.lab.corpora import wrong
from superopt.lab.corpora.statements.wrong import STATEMENTS
from tests.support.sampling import one_in, ops_of, sampled
from tests.support.verifier_texts import TRUE
from verifier.rules.check import check
from verifier.rules.fuzz import FALSE_PROOF, Fuzzed, MutantOutcome, draw, try_mutant
from verifier.rules.mutate import _integers, mutants
from verifier.rules.preconditions import DOMAIN, NEEDED, REDUNDANT, preconditions, remedy
from verifier.rules.shrink import refute
from verifier.verdict import PROVED, REFUTED, Counterexample

RULES = wrong.load()


checked = functools.cache(check)
SAMPLE = sampled(RULES, one_in(4, ops_of))
SMALL = [rule for rule in load() if rule.mode != "macro"]
"""The library without its longest texts: `superopt verify --library --fuzz N` and `--preconditions` take all."""


def runs_and_fails(found: Counterexample) -> None:
    """The test that a counterexample offers runs by itself and fails."""
    names: dict[str, Any] = {}
    exec(compile(found.code, "<counterexample>", "exec"), names)
    (test,) = (f for name, f in names.items() if name.startswith("test_"))
    with pytest.raises((AssertionError, TypeError, ValueError)):
        test()


@pytest.mark.parametrize("rule", SAMPLE, ids=lambda r: r.name)
def test_wrong_rule_is_refuted_with_arrays(rule: Rule) -> None:
    verdict = checked(rule)  # raises where it is proved, too
    assert verdict.status == REFUTED, str(verdict)
    found = verdict.counterexample
    assert found is not None
    assert list(found.inputs) == list(rule.vars)
    assert all(np.reshape(found.inputs[name], found.shapes[name]).ndim >= 0 for name in found.inputs)
    assert found.left != found.right
    if found.index is not None:
        left, right = (np.asarray(side) for side in found.results)
        assert str(left[found.index]) == found.left
        assert str(right[found.index]) == found.right
    runs_and_fails(found)


@pytest.mark.parametrize("statement", sampled(STATEMENTS, one_in(3)), ids=lambda s: s.name)
def test_wrong_statement_is_refuted_with_arrays(statement: Any) -> None:
    verdict = superopt.verify(statement)
    assert verdict.status == REFUTED, str(verdict)
    assert verdict.counterexample.index is not None or "shape" in verdict.counterexample.right


def test_there_are_enough_of_them() -> None:
    assert len(RULES) >= 50
    assert len(STATEMENTS) >= 10


def test_refutation_is_deterministic() -> None:
    rule = next(r for r in RULES if r.name == "max-into-dot")
    assert refute(rule, 20) == refute(rule, 20)


def test_counterexamples_are_small_and_plain() -> None:
    chosen = [case.values[0] for case in SAMPLE if not case.marks]
    median = sorted(v.elements for r in chosen if (v := checked(r).counterexample) is not None)[len(chosen) // 2]
    assert median <= 3
    found = checked(next(r for r in RULES if r.name == "clamp-reordered")).counterexample
    assert found is not None
    assert found.inputs == {"A": 0.0, "L": 1.0, "H": 0.0}
    assert found.results == (0.0, 1.0)
    assert "maximum" not in found.code
    assert "lax.max(" in found.code


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("pad-pad-negative", {"l >= 0", "h >= 0"}),
        ("conv-of-cropping-pad", {"l >= 0", "h >= 0"}),
        ("slice-concat-unconditional", {"e <= n"}),
        ("mean-of-means", {"n == n2"}),
        ("clamp-reordered", {"L <= H"}),
        ("softmax-shift-along", {"C does not vary along k"}),
        ("sum-of-broadcast", {"k == 1"}),
    ],
)
def test_condition_that_makes_a_wrong_rule_true(name: str, condition: set[str]) -> None:
    rule = next(r for r in RULES if r.name == name)
    assert set(remedy(rule).split(", ")) == condition


def test_no_condition_is_invented() -> None:
    assert remedy(next(r for r in RULES if r.name == "silu-as-exp")) == ""
    assert remedy(next(r for r in RULES if r.name == "select-swapped")) == ""


def test_verdict_of_a_text_says_when_it_would_be_proved() -> None:
    verdict = superopt.verify("mean: A[*a n]  B[*a n2]\n  slice(concat(A, B, n), n(s, e))  ==  slice(A, n(s, e))")
    assert verdict.status == REFUTED
    assert verdict.proved_when == "e <= n"
    assert "it is proved when e <= n" in str(verdict)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_premise_of_the_library_is_needed(every: int) -> None:
    found = [d for rule in [r for r in SMALL if r.cond][::every] for d in preconditions(rule)]
    assert len(found) >= 40 // every
    assert not [str(d) for d in found if d.status not in (NEEDED, DOMAIN)]
    assert all(d.counterexample is not None for d in found if d.status == NEEDED)


def test_redundant_premise_is_reported() -> None:
    (dropped,) = preconditions(
        parse("twice: A[*a *n]\n  rev(rev(slice(A, n(s, e)), n), n)  ==  slice(A, n(s, e))\n  if s <= e")
    )
    assert (dropped.premise, dropped.status) == ("s <= e", REDUNDANT)


def test_mutants_are_distinct_rules_and_reproducible() -> None:
    made = mutants(by_name("dot-scale-out"), 30)
    assert len(made) == 30
    assert len({rule_key(m.rule) for m in made} | {rule_key(by_name("dot-scale-out"))}) == 31
    assert [m.what for m in made] == [m.what for m in mutants(by_name("dot-scale-out"), 30)]
    assert {"operator", "order", "sign", "role"} <= {m.kind for m in made}


def test_an_attribute_becomes_another_of_its_axis_or_its_neighbour() -> None:
    rule: Any = SimpleNamespace(owner={"s": "n", "e": "n", "i": "n", "l": "m"}, indices={"i"})
    s, one = ("v", "s"), ("n", 1)
    assert {new for _, new in _integers(rule, s)} == {("+", s, one), ("-", s, one), ("v", "e")}


def test_attributes_of_an_axis_change_places() -> None:
    made = mutants(parse("s: A[*a n]\n  slice(exp(A), n(s, e))  ==  exp(slice(A, n(s, e)))"))
    swapped = {f"attributes 1 and 2 of slice swapped on the {side}" for side in ("left", "right")}
    assert swapped <= {m.what for m in made}


@pytest.mark.parametrize("count", [30, pytest.param(150, marks=pytest.mark.slow)])
def test_no_mutant_is_proved_and_false(count: int) -> None:
    fuzzed = Fuzzed([try_mutant(mutant, graphs=6) for mutant in draw((*SMALL, *parse_many(TRUE)), count)])
    assert fuzzed.false_proofs == []
    assert fuzzed.counts[REFUTED] >= count * 2 // 3
    assert fuzzed.counts[PROVED] >= count // 15
    assert fuzzed.unknown_fraction <= 0.02, str(fuzzed)


def test_a_false_proof_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(m for m in mutants(by_name("dot-factor")) if "sub for add on the right" in m.what)
    honest = check(by_name("dot-factor"))
    monkeypatch.setattr("verifier.rules.fuzz.check", lambda *_, **__: honest)
    outcome: MutantOutcome = try_mutant(mutant)
    assert outcome.status == FALSE_PROOF
    assert outcome.counterexample is not None
