"""Random statements: the verifier answers each without an exception, and values do not contradict its proofs."""

from __future__ import annotations

from collections import Counter

import pytest

from superopt.lab.corpora.statements.drawn import drawn
from verifier.statements.statement import check_statement, proved_alone
from verifier.verdict import PROVED, REFUTED


@pytest.mark.parametrize(("first", "count"), [(0, 7), pytest.param(1000, 5000, marks=pytest.mark.slow)])
def test_random_statements_are_answered(first: int, count: int) -> None:
    found = Counter[str]()
    for statement in drawn(first, count):
        alone = proved_alone(statement)
        verdict = check_statement(statement)  # raises where proof and values contradict each other
        found[verdict.status] += 1
        assert not alone.proved or verdict.status != REFUTED, statement.where
    assert found[PROVED] > count // 4
