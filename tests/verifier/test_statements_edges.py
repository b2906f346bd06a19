"""Statements about edges of types and operations: none is proved in a class in which it is false."""

from __future__ import annotations

import pytest

from tests.support.edge_statements import EDGES, EXACT, NO, REAL, Edge
from tests.support.sampling import sampled
from verifier.statements.statement import Statement, check_statement, make_statement, proved_alone
from verifier.verdict import REFUTED, Verdict

CLASSES = (EXACT, REAL, NO)


def statement(edge: Edge) -> Statement:
    name, left, right, specs, constraints, _ = edge
    return make_statement(name, left, right, specs, {}, constraints)


def class_of(verdict: Verdict) -> str:
    if verdict.domain is None:
        return NO
    return EXACT if verdict.domain.exactness == EXACT else REAL


@pytest.mark.parametrize("edge", sampled(EDGES, lambda n, _: n % 9 == 0), ids=[edge[0] for edge in EDGES])
def test_the_prover_alone_claims_no_class_that_is_too_strong(edge: Edge) -> None:
    verdict = proved_alone(statement(edge))
    assert CLASSES.index(class_of(verdict)) >= CLASSES.index(edge[-1]), verdict


@pytest.mark.parametrize("edge", sampled(EDGES, lambda n, _: n % 40 == 5), ids=[edge[0] for edge in EDGES])
def test_only_what_is_false_is_refuted(edge: Edge) -> None:
    verdict = check_statement(statement(edge))  # raises where proof and values contradict each other
    assert CLASSES.index(class_of(verdict)) >= CLASSES.index(edge[-1]), verdict
    assert verdict.status != REFUTED or edge[-1] == NO, verdict
