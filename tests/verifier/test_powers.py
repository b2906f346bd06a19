"""Powers to constants: what is proved of them is true wherever the left side is defined, and the search finds them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rewrites.language.parse import parse
from rewrites.library import by_name
from superopt.lab.discovery.command import run
from superopt.lab.discovery.powers import POINTS, Power, candidates, exponents, terms
from superopt.workshop.scheduler import ONE_WORKER
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.verdict import PROVED


def proved(left: str, right: str) -> bool:
    return prove(parse(f"pair: A[*a]\n  {left}  ==  {right}", where="test")).status == PROVED


@pytest.mark.parametrize("count", [20, pytest.param(240, marks=pytest.mark.slow)])
def test_nothing_false_is_proved(count: int) -> None:
    """Pairs of terms that differ at a point where the left one is a number: the prover alone, without the refuter."""
    with np.errstate(all="ignore"):
        powers = [Power(f"pow(A, {float(c):g})", frozenset(), np.power(POINTS, float(c))) for c in exponents()]
    pool = [*powers, *(x for x in terms(3) if x.size)]
    wrong = [(x, y) for x, y in itertools.permutations(pool, 2) if x.on_positive == y.on_positive and not _holds(x, y)]
    assert len(wrong) > 500
    for x, y in random.Random(0).sample(wrong, count):
        assert not proved(x.text, y.text), (x.text, y.text)
    for x, y in random.Random(1).sample(list(itertools.permutations(pool, 2)), count):
        assert _holds(x, y) or not proved(x.text, y.text), (x.text, y.text)


def _holds(x: Power, y: Power) -> bool:
    there = np.isfinite(x.values)
    return bool(np.allclose(x.values[there], y.values[there], rtol=1e-9, atol=0.0))


@pytest.mark.parametrize(("left", "right"), [
    ("pow(A, 0.75)", "sqrt(A) * sqrt(sqrt(A))"),
    ("pow(A, -0.75)", "rsqrt(A) * rsqrt(sqrt(A))"),
    ("pow(A, 0.0625)", "sqrt(sqrt(sqrt(sqrt(A))))"),
    ("pow(A, 2.625)", "A * A * sqrt(A) * sqrt(sqrt(sqrt(A)))"),
    ("pow(A, 2)", "square(A)"),
    ("pow(A, -3)", "1 / A ** 3"),
    ("pow(A, 0.75) * pow(A, -0.25)", "sqrt(A)"),
    ("A / pow(A, 0.25)", "pow(A, 0.75)"),
    ("sqrt(A * sqrt(A))", "pow(A, 0.75)"),
    ("sqrt(1 + A) * sqrt(1 + A)", "1 + A"),
])  # fmt: skip
def test_powers_by_roots_are_proved(left: str, right: str) -> None:
    verdict = check(parse(f"pair: A[*a]\n  {left}  ==  {right}", where="test"))
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert (verdict.domain.exactness, verdict.domain.dtypes) == ("real", ("float",))


@pytest.mark.parametrize(("left", "right"), [
    ("pow(A, 0.3)", "pow(A, 0.1) * pow(A, 0.2)"),  # no binary digits: not in the law
    ("A", "sqrt(A) * sqrt(A)"),
    ("sqrt(square(A))", "A"),
    ("pow(A, 3)", "pow(A, 1.5) * pow(A, 1.5)"),
    ("sqrt(A)", "A * rsqrt(A)"),
    ("A + square(A)", "A + pow(A, 2.25) / pow(A, 0.25)"),
])  # fmt: skip
def test_what_leaves_the_domain_is_not_proved(left: str, right: str) -> None:
    left = f"{left} + 0 * A" if left == "A" else left
    assert not proved(left, right)


def test_search_finds_and_proves_the_rules_of_the_library() -> None:
    texts = {text.partition("\n")[2].strip() for text in candidates(3)}
    assert "pow(A, 0.75)  ==  sqrt(A) * sqrt(sqrt(A))" in texts
    assert not any(t.startswith("A  ==") or t.endswith("==  sqrt(A) * sqrt(A)") for t in texts)
    summary, text = run(
        ops="powers",
        size=1,
        workers=ONE_WORKER,
        budget="10s",
        library=False,
        coverage=False,
        folder=None,
        say=lambda _: None,
    )
    assert summary["rules"] == len(summary["texts"]) > 2
    assert "pow(A, -0.5)  ==  rsqrt(A)" in text


def test_power_of_a_program_meets_the_rule() -> None:
    import jax.numpy as jnp

    from rewrites.egraph.convert import import_graph
    from rewrites.grow.growth import GrowthLimits, grow
    from superopt.frontends.jax.jaxpr import import_function

    x = np.ones((3, 4), np.float32)
    graph = import_function(lambda _, a: a / jnp.power(1 + a, 0.75), ({}, x), frozen=0).graph
    eg = import_graph(graph)
    report = grow(eg, [by_name("power-3-4")], GrowthLimits(enodes=200, iterations=2))
    assert report.rules["power-3-4"].unions == 1
