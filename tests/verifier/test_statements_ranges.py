"""Intervals of integers of statements are exact: ends beyond 2^53 are not rounded into the range of a type."""

from __future__ import annotations

import math

from superopt.ir.intervals import product
from verifier.equal.conditions import ge
from verifier.equal.poly import const, var
from verifier.equal.ranges import PremiseRanges
from verifier.equal.solver import Context


def test_what_is_one_beyond_a_type_does_not_fit() -> None:
    n = var("n")
    square = (n * n).scale(-8)
    ranges = PremiseRanges(Context())
    assert ranges.interval(square - const(1), 2**30) == (-(2**63) - 1, -1)
    assert not PremiseRanges(Context(), least=2**30).fits(square - const(1), "int64")
    assert PremiseRanges(Context(), least=2**30).fits(square, "int64")


def test_conditions_on_entries_are_divided_exactly() -> None:
    big = 2**62 + 1
    ranges = PremiseRanges(Context(), kinds={"x": "int64"})
    entry = next(iter(var("x[n]").vars))
    narrowed = ranges._narrowed(entry, (-(2**63), 2**63 - 1), math.inf, [ge(const(big), var(entry))])
    assert narrowed[1] == big


def test_ends_without_a_bound_meet_integers_beyond_floats() -> None:
    huge = 10**400
    assert product((huge, math.inf), (-2, huge)) == (-math.inf, math.inf)
    n = var("n")
    assert PremiseRanges(Context()).interval(n.scale(huge) + const(-huge)) == (-huge, math.inf)
