"""Every rule on random graphs: both sides equal, the left side is matched, the right side built there is equal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rewrites.grow.growth import is_law
from rewrites.language.direction import directions
from rewrites.language.parse import parse_many
from rewrites.language.term import Rule
from rewrites.library import by_name, load
from rewrites.lift.generate import instance
from tests.support.rules_numeric import check_egraph, check_ir, error, values
from tests.support.rules_texts import MORE, WRONG

TOLERANCE = 1e-9
SEEDS = range(12)
TEXTS = parse_many(MORE)
WRONG_RULES = parse_many(WRONG)
# the constructors of the e-graph bring these left sides into normal form, so nothing is left to match
ABSORBED = {"rev-rev", "ew2-bcast", "select-same"}


@pytest.mark.parametrize("most", [3, pytest.param(len(SEEDS), marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", load() + TEXTS, ids=lambda r: r.name)
def test_rule_on_random_graphs(rule: Rule, most: int) -> None:
    graphs = in_egraph = on_nodes = 0
    for seed in SEEDS:
        if graphs >= most and on_nodes and in_egraph:
            break
        example = instance(rule, seed)
        if example is None:
            continue
        graphs += 1
        assert example.rhs, example.reason
        arrays = example.arrays(seed)
        assert error(values(example.lhs, arrays), values(example.rhs, arrays)) < TOLERANCE, f"seed {seed}"
        chosen = dataclasses.replace(rule, params={q: (n,) for q, n in example.env.params.items()}, cache={})
        count, worst = check_ir(chosen, example, arrays)
        on_nodes += count
        assert worst < TOLERANCE, f"seed {seed}"
        count, worst = check_egraph(chosen, example, arrays)
        in_egraph += count
        assert worst < TOLERANCE, f"seed {seed}"
    assert graphs >= 3
    assert on_nodes or is_law(rule)  # the generator emits no op that does nothing
    assert in_egraph or rule.name in ABSORBED or is_law(rule)


def test_values_of_instances_have_both_signs_and_are_away_from_zero() -> None:
    """Else a quotient by one of them differs by rounding alone."""
    example = next(filter(None, (instance(by_name("dot-assoc"), seed) for seed in SEEDS)))
    drawn = np.concatenate([x.ravel() for seed in SEEDS for x in example.arrays(seed).values()])
    assert np.abs(drawn).min() >= 0.25
    assert drawn.min() < 0 < drawn.max()


@pytest.mark.parametrize("rule", [d.rule for r in load() for d in directions(r)[1:] if d.rule], ids=lambda r: r.name)
def test_backward_matches_are_type_correct(rule: Rule) -> None:
    """A direction needs its own proof; here it must at least match what it builds, and build the type it matched."""
    tried = 0
    for seed in range(12):  # what needs two equal sizes is drawn in one of four
        example = instance(rule, seed) if tried < 4 else None
        if example is None or not example.rhs:
            continue
        arrays = example.arrays(seed)
        tried += 1
        assert error(values(example.lhs, arrays), values(example.rhs, arrays)) < TOLERANCE
        assert check_egraph(rule, example, arrays)[1] < TOLERANCE
    assert tried or rule.name in {"slice-slice-backward"}


@pytest.mark.parametrize("rule", WRONG_RULES, ids=lambda r: r.name)
def test_wrong_rules_are_refuted_by_instances(rule: Rule) -> None:
    for seed in range(60):
        example = instance(rule, seed)
        if example is None:
            continue
        arrays = example.arrays(seed)
        if not example.rhs or error(values(example.lhs, arrays), values(example.rhs, arrays)) > 1e-6:
            return
    pytest.fail("no instance refutes it")
