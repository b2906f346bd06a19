"""Attempts to have something false proved: divisors elsewhere, signs of zeros, NaN, infinities, ranks, overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from rewrites.language.parse import parse
from rewrites.library import load
from superopt.certify.library import ledger_of, proved_library
from superopt.certify.plan import empty_plan
from superopt.certify.validate import validate
from superopt.errors import VerificationError
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import Program
from superopt.lab.corpora import rollcall
from tests.support.saved_files import edited
from verifier.record.ledger import require_proved
from verifier.rules.check import check
from verifier.rules.prove import prove
from verifier.rules.refute import differ_at, different_bits, env_of_seed, first_other_bits
from verifier.verdict import REFUTED

# ---- what the right side divides by, and where

ELSEWHERE = {
    "a quotient on the other branch": "P[*a]  A[*a]  B[*a]\n  where(P, A / B, A)  ==  where(P, A / B, A * B / B)",
    "a quotient in another part": """A[*a n]  B[*a n]
  concat(slice(A / B, n(0, 3)), slice(A, n(3, n)), n)  ==  concat(slice(A / B, n(0, 3)), slice(A * B / B, n(3, n)), n)
  if n >= 3
  mode proof""",
    "a root on the other branch": "P[*a]  A[*a]\n  where(P, sqrt(A), 0)  ==  where(P, sqrt(A), sqrt(A) - sqrt(A))",
    "under two predicates, not one": """P[*a]  Q[*a]  A[*a]  B[*a]
  where(P, where(Q, A / B, A), A)  ==  where(P, where(Q, A / B, A * B / B), A)""",
}
SAME_PLACE = {
    "both branches divide": "P[*a]  A[*a]  B[*a]  C[*a]\n  where(P, A / B, C / B)  ==  where(P, A, C) / B",
    "the same branch divides": "P[*a]  A[*a]  B[*a]\n  where(P, A / B, A)  ==  where(P, A * (1 / B), A)",
    "under the negated predicate": "P[*a]  A[*a]  B[*a]\n  where(P, A / B, A)  ==  where(invert(P), A, A * (1 / B))",
    "nested predicates": """P[*a]  Q[*a]  A[*a]  B[*a]
  where(P, where(Q, A / B, A), A)  ==  where(logical_and(P, Q), A * (1 / B), A)""",
    "inside the padded part": "A[*a n]  B[*a n]\n  pad(A / B, 0, n(l, h))  ==  pad(A * (1 / B), 0, n(l, h))",
    "a divisor that padding makes one": """A[*a n]  B[*a n]
  pad(A / B, 0, n(l, h))  ==  pad(A, 0, n(l, h)) / pad(B, 1, n(l, h))
  if l >= 0, h >= 0""",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_divisor_elsewhere_discharges_nothing(name: str) -> None:
    assert not prove(parse(f"r: {ELSEWHERE[name]}")).proved


@pytest.mark.parametrize("name", SAME_PLACE)
def test_a_divisor_at_the_same_place_does(name: str) -> None:
    verdict = prove(parse(f"r: {SAME_PLACE[name]}"))
    assert verdict.proved, verdict


@pytest.mark.parametrize("term", ["A * A / A", "A + (sqrt(A) - sqrt(A))"])
def test_a_predicate_of_what_may_be_undefined_has_a_value(term: str) -> None:
    """Where A is 0 the quotient is NaN, which is unequal to itself: nothing excludes that, as False is a value."""
    for before in (3, 12):
        assert not prove(parse(f"r: A[*a]\n  eq({term}, {term})  ==  bcast(True, a)")).proved
        assert check(parse(f"r: A[*a]\n  eq({term}, {term})  ==  bcast(True, a)"), before=before).status == REFUTED
        assert check(parse(f"r: A[*a]\n  eq({term}, A)  ==  eq(A, {term})"), before=before).proved


# ---- the class exact: NaN and zeros with signs

NOT_EXACT = {
    "a <= b is not the negation of b < a": "A[*a]  B[*a]\n  invert(lt(A, B))  ==  ge(A, B)",
    "padding of a negation": "A[*a n]\n  -pad(A, 0, n(l, h))  ==  pad(-A, 0, n(l, h))\n  if l >= 0, h >= 0",
    "relu of a negation": "A[*a]\n  maximum(-A, 0)  ==  -minimum(A, 0)",
    "a negated constant that may be zero": "A[*a]  c in int\n  A + num(0 - c)  ==  A + -num(c)\n  mode proof",
}
EXACT = {
    "comparisons the other way round": "A[*a]  B[*a]\n  ge(A, B)  ==  le(B, A)",
    "negated equality": "A[*a]  B[*a]\n  invert(eq(A, B))  ==  ne(A, B)",
    "padding of padding": "A[*a n]\n  pad(pad(A, 0, n(l, h)), 0, n(p, q))  ==  pad(A, 0, n(l + p, h + q))"
    "\n  if l >= 0, h >= 0, p >= 0, q >= 0",
}


@pytest.mark.parametrize("name", NOT_EXACT)
def test_what_changes_bits_is_not_exact(name: str) -> None:
    verdict = prove(parse(f"r: {NOT_EXACT[name]}"))
    assert verdict.domain is None or verdict.domain.exactness != "exact"


@pytest.mark.parametrize("name", EXACT)
def test_what_keeps_bits_is_exact(name: str) -> None:
    verdict = prove(parse(f"r: {EXACT[name]}"))
    assert verdict.domain is not None, verdict
    assert verdict.domain.exactness == "exact"


def test_exact_rules_keep_every_bit() -> None:
    rules = [*load(), *(rule for rules in rollcall.load().values() for rule in rules)]
    proved, certificates = require_proved(rules[::9], ledger_of(None))  # those of the library are on record
    exact = [rule for rule in proved if certificates[rule.name].exactness == "exact" and not rule.dtype]
    assert len(exact) > 10
    for rule in exact:
        assert different_bits(rule, 4) is None, rule.name


def test_zeros_have_signs_where_bits_count() -> None:
    found = different_bits(parse("r: A[*a]\n  A * 2 + 0  ==  A * 2"), 20)
    assert found is not None
    assert first_other_bits(np.array([0.0]), np.array([-0.0])) == (0,)
    assert first_other_bits(np.array([0.0]), np.array([-0.0]), zeros=False) is None


@pytest.mark.parametrize(
    ("left", "right", "specs"),
    [
        (lambda x: x + 0.0, lambda x: x + (-0.0), ("n",)),
        (lambda a, b: a >= b, lambda a, b: ~(a < b), ("n", "n")),
        (lambda x: x.astype(jnp.bfloat16).astype("float32"), lambda x: x.astype("float32"), (("n", "float16"),)),
    ],
    ids=["minus zero", "comparison of NaN", "bfloat16 has fewer digits than float16"],
)
def test_statements_that_change_bits_are_not_exact(left: Any, right: Any, specs: Any) -> None:
    verdict = superopt.verify(left, right, *specs)
    assert verdict.domain is None or verdict.domain.exactness != "exact"


# ---- infinities, signs of sizes, positions


@pytest.mark.parametrize(
    "text",
    [
        "A[*a]\n  A + (inf - inf)  ==  A",
        "A[*a]  c in int\n  A * abs(num(c))  ==  A * num(c)\n  mode proof",
    ],
    ids=["both infinities", "the absolute value of any integer"],
)
def test_no_law_without_its_condition(text: str) -> None:
    assert not prove(parse(f"r: {text}")).proved


@pytest.mark.parametrize(
    ("left", "right", "specs"),
    [
        (lambda x: x * abs((100 - jnp.arange(x.shape[0])).astype("float32")),
         lambda x: x * (100 - jnp.arange(x.shape[0])).astype("float32"), ("n",)),
        (lambda x: jnp.where((jnp.arange(x.shape[0]) - 50).astype("uint32") < 100, x, 0),
         lambda x: jnp.where(jnp.arange(x.shape[0]) - 50 < 100, x, 0), ("n",)),
        (lambda x: jnp.where(jnp.isfinite(jnp.full_like(x, jnp.inf)), x, 0), lambda x: x * 1, ("n",)),
        (lambda x: jnp.where(jnp.full_like(x, jnp.nan) == jnp.nan, x, 0), lambda x: x * 1, ("n",)),
        (lambda x: x * 0 + 1, lambda x: x / x, ("n",)),
    ],
    ids=["negative from 100 on", "unsigned positions", "a finite infinity", "NaN equal to itself", "zero by zero"],
)  # fmt: skip
def test_false_statements_are_not_proved(left: Any, right: Any, specs: Any) -> None:
    assert not superopt.verify(left, right, *specs).proved


def test_products_of_positions_are_not_taken_to_be_in_range() -> None:
    verdict = superopt.verify(
        lambda x: jnp.where(jnp.arange(x.shape[0]) ** 4 >= 0, x, 0), lambda x: jnp.where(x > 0, x, x), "n"
    )
    assert not verdict.proved


# ---- ranks


def test_a_product_over_a_role_in_an_attribute_limits_the_ranks() -> None:
    """True below rank 3 of m, where m has 2 x 2 x 2 = 8 elements and 7 are too few."""
    rule = parse(
        "r: X[n]  A[*m]\n  dot(slice(X, n(0, min(n, prod(m)))), A)  ==  dot(slice(X, n(0, min(7, prod(m)))), A)\n"
        "  if m == 2, n == 8\n  mode proof"
    )
    verdict = prove(rule)
    assert verdict.domain is None or dict(verdict.domain.ranks)["m"] != "any"


# ---- integers


@pytest.mark.parametrize(
    "equation",
    ["-maximum(A, B)  ==  minimum(-A, -B)", "lt(A - B, 0)  ==  lt(A, B)", "maximum(A * A, 0)  ==  A * A"],
)
def test_a_rule_about_integers_that_overflow_breaks_is_refuted(equation: str) -> None:
    names = "A[*a]  B[*a]" if "B" in equation else "A[*a]"
    verdict = check(parse(f"r: {names}\n  {equation}\n  dtype int"))
    assert verdict.status == "REFUTED"
    assert "overflow" in verdict.proved_when


# ---- returned programs: what a call passes


def test_arguments_in_another_order_are_refused() -> None:
    a, b = make_input("a", (3,)), make_input("b", (3,))
    graph = Graph((a, b), (mk("sub", a, b),))
    swapped = Program(None, Graph((b, a), graph.outputs))
    assert not validate(graph, swapped, empty_plan(graph), ledger_of(None)).valid
    assert validate(graph, Program(None, graph), empty_plan(graph), ledger_of(None)).valid


def _weighted(w: Any, x: Any, y: Any) -> Any:
    return {"p": x @ w - y, "q": y @ w - x}


@pytest.mark.parametrize("what", ["live", "arguments", "results"])
def test_a_saved_program_that_is_called_otherwise_is_refused(what: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, x, y = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(3))
    result = superopt.optimize(_weighted, w, x, y, frozen=0, budget="20steps", deterministic=True, store=False)
    saved, changed = result.save(tmp_path / "a.superopt"), tmp_path / "b.superopt"
    assert superopt.verify(_weighted, superopt.load(saved)).valid
    changes = {
        "live": {"meta": lambda data: data.replace(b'"live": [1, 2]', b'"live": [2, 1]')},
        "arguments": {"meta": lambda data: data.replace(b'"names": ["w", "x", "y"]', b'"names": ["w", "y", "x"]')},
        "results": {"trees": lambda data: data.replace(b'"p"', b'"r"')},
    }
    edited(saved, changed, **changes[what])
    assert not superopt.verify(_weighted, superopt.load(changed)).valid


def test_proved_rules_of_this_file_hold_on_arrays() -> None:
    for name, text in {**SAME_PLACE, **EXACT}.items():
        rule = parse(f"r: {text}")
        for seed in range(6):
            env = env_of_seed(rule, seed)
            found = None if env is None else differ_at(env, seed)
            assert found is None or found.undefined, (name, found)


# ---- rules that are proved for less than a site may be


@pytest.mark.parametrize(
    "text",
    [
        "r: A[*a]  B[*a]\n  rem(rem(A, B), B)  ==  rem(A, B)\n  dtype int",
        "r: X[n]  A[*m]\n  dot(slice(X, n(0, min(n, prod(m)))), A)  ==  dot(A, slice(X, n(0, min(n, prod(m)))))\n"
        "  if m == 2\n  mode proof",
    ],
    ids=["integers", "ranks"],
)
def test_a_rule_that_is_proved_for_less_is_not_given_to_the_search(text: str) -> None:
    rule = parse(text)
    assert prove(rule).proved
    with pytest.raises(VerificationError, match="cannot be used"):
        proved_library(None, [rule])
