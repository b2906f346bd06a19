"""The roofline as arithmetic: its formula, tables of several kernels, weights of labels, the start of a fit."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.features.counts import COMPUTE, FIXED, MEMORY
from costmodel.model import analytical
from costmodel.model.analytical import COUNT, DEFAULT_S, REFERENCE_S, Coefficients, FeatureTable, seconds

BLOCKS = [len(COMPUTE), len(COMPUTE) + len(MEMORY)]


def table(steps: list[int], seed: int = 0) -> FeatureTable:
    """Made-up features of kernels of so many steps, shared out and repeated by whole numbers."""
    rng = np.random.default_rng(seed)
    rows = sum(steps)
    counts = rng.integers(0, 4, (rows, COUNT)) * rng.choice([1.0, 1e3, 1e5], (rows, COUNT))
    spread, repeat = rng.integers(1, 5, (2, rows)).astype(float)
    return FeatureTable(counts, spread, repeat, np.repeat(np.arange(len(steps)), steps), len(steps))


COEFFICIENTS = Coefficients(DEFAULT_S * np.random.default_rng(1).uniform(0.5, 2.0, COUNT), 2.5, 0.7)


def test_seconds_are_those_of_the_formula() -> None:
    made = table([3, 1, 2])
    wanted = np.zeros(3)
    for counts, spread, repeat, owner in zip(made.counts, made.spread, made.repeat, made.owner, strict=True):
        c, m, f = (float(part.sum()) for part in np.split(counts * COEFFICIENTS.theta, BLOCKS))
        p, g = COEFFICIENTS.sharpness, COEFFICIENTS.sharing
        wanted[owner] += repeat * (f + (c**p + m**p) ** (1 / p) / spread**g)
    np.testing.assert_allclose(seconds(made, COEFFICIENTS), wanted, rtol=1e-12)
    assert len(FIXED) == COUNT - BLOCKS[1]


def test_tables_are_joined_and_taken_apart() -> None:
    one, other = table([2, 1], 2), table([1, 3, 1], 3)
    joined = analytical.join([one, other])
    apart = np.concatenate([seconds(one, COEFFICIENTS), seconds(other, COEFFICIENTS)])
    np.testing.assert_allclose(seconds(joined, COEFFICIENTS), apart)
    some = analytical.take(joined, np.array([1, 3]))
    assert some.kernels == 2
    assert some.owner.tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(seconds(some, COEFFICIENTS), apart[[1, 3]])


def test_labels_of_short_kernels_weigh_less() -> None:
    np.testing.assert_allclose(analytical.long_ones(REFERENCE_S * np.array([1.0, 3.0, 0.25])), [0.5, 0.75, 0.2])


def test_a_fit_is_nearer_to_labels_of_more_weight() -> None:
    """Of two equal kernels, one of which takes four times as long."""
    made = table([1, 1])
    made.counts[1], made.spread[1], made.repeat[1] = made.counts[0], made.spread[0], made.repeat[0]
    labels = seconds(made, COEFFICIENTS) * np.array([1.0, 4.0])
    short, long = (
        float(seconds(made, analytical.fit(made, labels, weights, steps=100, start=COEFFICIENTS))[0])
        for weights in (np.array([9.0, 1.0]), np.array([1.0, 9.0]))
    )
    assert short < 2.0 * labels[0] < long


def test_a_fit_to_what_is_predicted_stays_where_it_starts() -> None:
    made = table([2, 1, 3])
    found = analytical.fit(made, seconds(made, COEFFICIENTS), steps=1, start=COEFFICIENTS)
    assert (found.sharpness, found.sharing) == pytest.approx((COEFFICIENTS.sharpness, COEFFICIENTS.sharing), rel=0.03)


@pytest.mark.parametrize("feature", [0, BLOCKS[0], BLOCKS[1]])
def test_a_fit_starts_from_least_squares(feature: int) -> None:
    """Of kernels with one feature: it takes their time, and what no kernel shows keeps about its default."""
    counts = np.zeros((4, COUNT))
    counts[:, feature] = np.array([1.0, 2.0, 4.0, 8.0]) * 1e-3 / DEFAULT_S[feature]
    made = FeatureTable(counts, np.full(4, 16.0), np.full(4, 3.0), np.arange(4), 4)
    shared = 1.0 if feature == BLOCKS[1] else 16.0**0.7  # fixed costs are not shared out
    labels = 2.0 * 3.0 * counts[:, feature] * DEFAULT_S[feature] / shared
    found = analytical._least_squares(made, labels, np.ones(4))
    np.testing.assert_allclose(found[feature], 2.0 * DEFAULT_S[feature], rtol=1e-2)
    others = np.delete(np.arange(COUNT), feature)
    np.testing.assert_allclose(found[others], DEFAULT_S[others])
