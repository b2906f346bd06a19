"""The roll call: every rule is proved for all sizes and ranks and agrees with the interpreter; wrong variants fall."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from rewrites.language.parse import parse
from rewrites.language.show import equation, show
from rewrites.language.term import Rule, subterms
from rewrites.library import by_name
from rewrites.lift.generate import instance
from superopt.errors import SuperoptError
from superopt.ir.interp import evaluate
from superopt.lab.corpora.rollcall import FAMILIES, load, wrong
from tests.support.sampling import one_in, ops_of, sampled
from verifier.equal.equality import NO_OVERFLOW, POSITIONS
from verifier.equal.normal import PARTIAL
from verifier.equal.ranks import ANY
from verifier.rules.check import check
from verifier.rules.prove import FINITE, prove
from verifier.verdict import PROVED, REFUTED, ValidityDomain, Verdict

RULES = [rule for rules in load().values() for rule in rules]
BY_NAME = {rule.name: rule for rule in RULES}
SEEDS = range(4)


@functools.cache
def verdict_of(name: str) -> Verdict:
    """The verdict on a rule of the roll call, proved once."""
    return prove(BY_NAME[name])


@pytest.mark.parametrize("rule", sampled(RULES, one_in(9, ops_of)), ids=lambda r: r.name)
def test_rule_is_proved_for_every_size_and_rank(rule: Rule) -> None:
    verdict = verdict_of(rule.name)
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert all(ranks == ANY for _, ranks in verdict.domain.ranks), str(verdict)
    assert equation(rule)
    assert show(parse(show(rule))) == show(rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_both_sides_agree_on_instances(rule: Rule) -> None:
    compared = 0
    # outside its domain a function may be evaluated on one side only: the certificate assumes the domain
    partial = any(t.op == "ew" and t["f"] in PARTIAL | {"rsqrt", "div"} for t in subterms(rule.lhs))
    for seed in SEEDS:
        try:
            made = instance(rule, seed, largest=3, smallest=seed % 2)
        except SuperoptError:  # the physical op takes no such sizes
            continue
        if made is None:
            continue
        assert made.rhs, made.reason
        values = made.arrays(seed)
        if made.given and not all(np.all(g) for g in evaluate(made.given, values)):
            continue
        compared += 1
        with np.errstate(all="ignore"):
            for left, right in zip(evaluate(made.lhs, values), evaluate(made.rhs, values), strict=True):
                a, b = np.asarray(left), np.asarray(right)
                same = a == b
                if a.dtype.kind == "f":
                    same |= np.isclose(a, b, rtol=1e-9, atol=1e-9) | ~np.isfinite(a) | (partial & ~np.isfinite(b))
                assert np.all(same), f"{rule.name} seed {seed}"
    assert compared or rule.given


@pytest.mark.parametrize("rule", wrong(), ids=lambda r: r.name)
def test_wrong_variant_is_refuted_with_arrays(rule: Rule) -> None:
    verdict = check(rule)
    assert verdict.status == REFUTED, str(verdict)
    assert verdict.counterexample is not None
    assert verdict.counterexample.left != verdict.counterexample.right


def test_every_rule_of_xla_is_there() -> None:
    found = {m[0] for rule in RULES if (m := re.match(r"XLA \w+/\d+", rule.source))}
    assert found == {f"XLA {family}/{n + 1}" for family, count in FAMILIES.items() for n in range(count)}
    assert len(found) == 119  # the 118 of TensorRight's list and the swap of a convolution's operands
    assert sum(rule.source.startswith("XLA beyond") for rule in RULES) >= 25
    assert all(rule.source for rule in RULES)
    assert len(RULES) >= 145


def test_every_family_has_a_wrong_variant() -> None:
    names = {rule.name for rule in wrong()}
    for family in FAMILIES:
        word = {"divmod": "div"}.get(family, family)
        assert any(name.startswith(f"wrong-{word}") for name in names), family


def test_what_a_verdict_says() -> None:
    def domain(name: str) -> ValidityDomain:
        valid = verdict_of(name).domain
        assert valid is not None
        return valid

    assert domain("slice-of-slice").exactness == "exact"
    assert domain("dot-to-the-left").exactness == "real"
    assert domain("product-of-exponentials").exactness == "range"
    assert domain("not-of-not").dtypes == ("bool",)
    assert domain("rem-of-rem").dtypes == ("int",)
    assert domain("rem-of-rem").assumptions == ()
    assert domain("rem-of-shifted-iota").assumptions == (POSITIONS,)
    assert domain("div-of-quotients").dtypes == ("float",)
    assert domain("min-of-max-is-clamp").dtypes == ("float", "int")
    assert "int" not in domain("max-of-negation").dtypes  # the least integer is its own negation
    assert "int" not in domain("max-with-least").dtypes  # no integer is infinite
    assert POSITIONS in domain("causal-block-skipped").assumptions
    assert "given: le(L, H)" in domain("max-of-min-is-clamp").assumptions
    assert FINITE in domain("le-of-itself").assumptions  # a NaN is unequal to itself


INTEGERS = [rule for rule in RULES if rule.dtype == "int" or not rule.source.startswith("kernel")]


@pytest.mark.parametrize(("every", "least"), [(4, 50), pytest.param(1, 200, marks=pytest.mark.slow)])
def test_rules_proved_for_integers_hold_for_integers_that_wrap(every: int, least: int) -> None:
    compared = 0
    for rule in INTEGERS[::every]:
        domain = verdict_of(rule.name).domain
        if domain is None or "int" not in domain.dtypes or NO_OVERFLOW in domain.assumptions:
            continue
        compared += sum(wraps_alike(rule, dtype) for dtype in ("int8", "uint8"))
    assert compared >= least


def wraps_alike(rule: Rule, dtype: str) -> bool:
    """Compare both sides on the least and greatest integers of a type; False where there is no such instance."""
    try:
        made = instance(rule, 1, largest=3, dtype=dtype)
    except (SuperoptError, OverflowError, ValueError):  # a constant that the type does not have
        return False
    if made is None or not made.rhs:
        return False
    info, rng = np.iinfo(dtype), np.random.default_rng(1)
    values = dict(made.arrays(1))
    for name, node in made.inputs.items():
        if node.dtype == dtype:
            sizes = tuple(int(str(n)) for n in node.shape)
            values[name] = rng.choice([info.min, info.max, 0, 1, int(rng.integers(info.min, info.max))], sizes).astype(
                dtype
            )
    if made.given and not all(np.all(g) for g in evaluate(made.given, values)):
        return False
    with np.errstate(all="ignore"):
        for left, right in zip(evaluate(made.lhs, values), evaluate(made.rhs, values), strict=True):
            np.testing.assert_array_equal(np.asarray(left), np.asarray(right), err_msg=rule.name)
    return True


@pytest.mark.parametrize("name", ["conv-winograd", "conv-winograd-four", "grouped-dense", "grouped-apart"])
def test_forms_of_convolutions_are_proved(name: str) -> None:
    verdict = prove(by_name(name))
    assert verdict.proved
    assert verdict.domain is not None
    assert all(ranks == ANY for _, ranks in verdict.domain.ranks)
