"""Statements about edges of types and operations: none is proved in a class in which it is false."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from tests.support.edge_statements import EDGES, EMPTY, EXACT, NO, ORDER, REAL, SIZES
from tests.support.sampling import sampled
from verifier.equal.algebra import ANY_ORDER, SORTED
from verifier.statements.statement import Statement, check_statement, make_statement, proved_alone
from verifier.verdict import REFUTED, UNKNOWN, UNSUPPORTED, Verdict

CLASSES = (EXACT, REAL, NO)
BY_NAME = {edge[0]: edge for edge in EDGES}


def statement(name: str) -> Statement:
    _, left, right, specs, constraints, _ = BY_NAME[name]
    return make_statement(name, left, right, specs, {}, constraints)


def class_of(verdict: Verdict) -> str:
    if verdict.domain is None:
        return NO
    return EXACT if verdict.domain.exactness == EXACT else REAL


OFTEN = {edge[0]: n % 6 == 0 for edges in (EMPTY, ORDER, SIZES) for n, edge in enumerate(edges)}
"""Of these families, NaN of programs, sorts and sizes as floats, the normal suite gives the prover more statements."""
PROVED_IN_ORDER = {
    "first-of-sorted": REAL, "last-of-sorted": EXACT, "first-of-sorted-integers": EXACT, "rows-sorted": EXACT,
    "sorted-twice": EXACT, "sorted-backwards": EXACT, "sorted-descending": EXACT, "first-of-descending": EXACT,
    "sorted-of-a-concatenation": EXACT, "sorted-with-a-zero": REAL, "read-in-order": EXACT,
    "read-in-order-along-axis": EXACT, "carried-in-order": EXACT, "place-of-the-least": REAL,
    "place-of-the-least-integer": EXACT, "top-one": REAL, "top-one-of-integers": EXACT, "top-two-sorted": REAL,
    "place-of-top-one-of-integers": EXACT, "read-at-top-places": EXACT, "rows-top-one": REAL,
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(BY_NAME, lambda n, name: n % 25 == 0 or OFTEN.get(name, False)))
def test_the_prover_alone_claims_no_class_that_is_too_strong(name: str) -> None:
    verdict = proved_alone(statement(name))
    assert CLASSES.index(class_of(verdict)) >= CLASSES.index(BY_NAME[name][-1]), verdict


@pytest.mark.parametrize("name", sampled(BY_NAME, lambda n, _: n % 80 == 5))
def test_only_what_is_false_is_refuted(name: str) -> None:
    verdict = check_statement(statement(name))  # raises where proof and values contradict each other
    assert CLASSES.index(class_of(verdict)) >= CLASSES.index(BY_NAME[name][-1]), verdict
    assert verdict.status != REFUTED or BY_NAME[name][-1] == NO, verdict


@pytest.mark.parametrize("name", PROVED_IN_ORDER)
def test_entries_in_order_are_proved_in_their_class(name: str) -> None:
    assert class_of(proved_alone(statement(name))) == PROVED_IN_ORDER[name]


def test_an_order_says_what_it_leaves_open() -> None:
    def assumed(left: Any, right: Any, *specs: str) -> tuple[str, ...]:
        verdict = check_statement(make_statement("order", left, right, specs, {}, ("n >= 1",)))
        assert verdict.domain is not None, verdict
        return verdict.domain.assumptions

    assert SORTED in assumed(lambda x: jnp.sort(x)[0], jnp.min, "n")
    assert SORTED not in assumed(lambda x: jnp.sort(x)[-1], jnp.max, "n")
    assert ANY_ORDER in assumed(lambda x: jnp.sort(x[::-1]), jnp.sort, "n")
    assert ANY_ORDER not in assumed(lambda i: jnp.sort(i[::-1]), jnp.sort, "int32[n]")


def test_the_diagonal_of_sorted_rows_is_not_sorted() -> None:
    def diagonal(x: Any) -> Any:
        at = jnp.arange(x.shape[0])
        return jnp.sum(jnp.where(at[:, None] == at, jnp.sort(x, 1), 0), 1)

    made = make_statement("diagonal", lambda x: jnp.sort(diagonal(x)), diagonal, ("n n",), {}, ("n >= 2",))
    assert not proved_alone(made).proved


def test_sorts_of_several_keys_or_that_are_not_stable_have_no_places() -> None:
    def carried(**given: Any) -> Verdict:
        return proved_alone(
            make_statement(
                "carried", lambda x, y: lax.sort((x, y), **given)[1],
                lambda x, y: lax.sort((x, y), **given)[1][::-1][::-1], ("n", "n"), {},
            )
        )  # fmt: skip

    assert carried(num_keys=1).proved
    assert carried(num_keys=2).status == UNSUPPORTED
    assert carried(num_keys=1, is_stable=False).status == UNSUPPORTED


def test_a_sort_of_values_that_are_never_numbers_says_nothing() -> None:
    def never(sign: float) -> Any:
        return lambda x: jnp.sort(x + jnp.log(sign - 2 - x * x))[0]

    made = make_statement("never", never(1.0), lambda x: jnp.min(x + jnp.log(-1 - x * x)), ("n",), {}, ("n >= 1",))
    assert check_statement(made).status in (UNKNOWN, REFUTED)
