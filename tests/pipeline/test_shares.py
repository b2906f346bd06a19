"""The budget of a function is shared out over the types that it is optimised for, and never exceeded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from superopt.machine.budget import LEAST_S
from superopt.pipeline.shares import Shares


@given(st.floats(0.1, 1e4))
def test_shares_never_exceed_the_budget(seconds: float) -> None:
    shares, given_s = Shares(f"{seconds}s"), list[float]()
    while isinstance(share := shares.next(), float):
        given_s.append(share)
        assert len(given_s) < 100
    assert share is None
    assert given_s, "the first type is optimised, however small the budget"
    assert sum(given_s) <= seconds * (1 + 1e-9)
    assert all(a >= b for a, b in pairwise(given_s))
    assert all(share >= LEAST_S for share in given_s[1:])


def test_steps_are_given_to_each_type() -> None:
    shares = Shares("200steps")
    assert [shares.next() for _ in range(5)] == ["200steps"] * 5
