"""True rules are proved, for every rank and size, with the exactness class, domain and assumptions that they have."""

from __future__ import annotations

import functools

import pytest

from rewrites.language.parse import parse, parse_many
from rewrites.language.term import Rule
from rewrites.library import load
from tests.support.sampling import one_in, ops_of, sampled
from tests.support.verifier_texts import TRUE
from verifier.equal.equality import DEFINED
from verifier.equal.ranks import ANY, attribute_roles
from verifier.rules.check import check
from verifier.rules.prove import FINITE, prove
from verifier.verdict import PROVED, UNKNOWN, UNSUPPORTED, Verdict

RULES = [*load(), *parse_many(TRUE)]
EXACT = {"dot-view": "real", "ew2-view": "exact", "pad-pad": "exact", "slice-slice": "exact", "max-max": "exact"}
EXACT |= {"conv-merge": "real", "softmax-shift": "range", "flash-merge": "range", "exp-product": "range"}
EXACT |= {"log-of-exp": "real", "pool-relu": "exact", "wmax-shifts": "exact", "add-assoc": "real", "div-div": "real"}


BY_NAME = {rule.name: rule for rule in RULES}


@functools.cache
def verdict_of(name: str) -> Verdict:
    """The verdict on a rule, which is proved and evaluated once."""
    return check(BY_NAME[name], before=6)


OFTEN = one_in(9, ops_of)


@pytest.mark.parametrize("rule", sampled(RULES, lambda n, r: r.name in EXACT or OFTEN(n, r)), ids=lambda r: r.name)
def test_rule_is_proved_and_survives_instances(rule: Rule) -> None:
    verdict = verdict_of(rule.name)
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    assert all(ranks == ANY for _, ranks in verdict.domain.ranks), str(verdict)
    assert verdict.domain.exactness == EXACT.get(rule.name, verdict.domain.exactness)
    assert all(n >= 1 for name, n in verdict.domain.sizes if name in rule.sizes)
    assert (FINITE in verdict.domain.assumptions) == (verdict.domain.exactness != "exact")


@pytest.mark.parametrize("rule", sampled(RULES, one_in(10)), ids=lambda r: r.name)
def test_backward_reading_is_proved_or_has_a_reason(rule: Rule) -> None:
    verdict = check(rule, "backward", before=6, after=30)
    if verdict.status == UNSUPPORTED:
        assert "not usable backward" in verdict.cause
    elif verdict.status != PROVED:
        assert verdict.counterexample is not None, str(verdict)


def one(text: str) -> Rule:
    return parse(text.strip())


def test_only_the_side_that_is_replaced_may_lose_range() -> None:
    """A program that computes the logarithm of an exponential overflows where its argument does not."""
    plain, lossy = "X - log(S)", "log(exp(X) / S)"
    rules = [one(f"r: X[*a *k]  S[*a]\n  {a}  ==  {b}") for a, b in ((lossy, plain), (plain, lossy))]
    found = [prove(rule).domain for rule in rules]
    assert [domain and domain.exactness for domain in found] == ["real", "range"]
    shifted = one("r: A[*a k]\n  log(sum(exp(A - max(A, k)), k)) + max(A, k)  ==  log(sum(exp(A), k))")
    domain = prove(shifted).domain
    assert domain is not None
    assert domain.exactness == "range"


def test_a_dot_takes_an_empty_image_and_a_window_does_not() -> None:
    rule = next(r for r in RULES if r.name == "conv-pointwise")
    assert prove(rule).proved
    assert "ill-formed" in prove(rule, "backward").cause


def test_right_side_out_of_bounds_is_not_proved() -> None:
    rule = one("""
hole: A[*a n]
  slice(A, n(s, e)) - slice(A, n(s, e))  ==  slice(A, n(s + n, e + n)) - slice(A, n(s + n, e + n))
""")
    verdict = prove(rule)
    assert verdict.status == UNKNOWN
    assert "ill-formed" in verdict.cause


def test_index_out_of_bounds_under_a_fold_is_not_proved() -> None:
    rule = one("""
fold-hole: X[*b *s]
  wsum(X, s(w)) * 0  ==  sigma(r < w, slice(X, s(r + 1, s - w + r + 2))) * 0
""")
    assert "ill-formed" in prove(rule).cause


@pytest.mark.parametrize(
    ("right", "premise"),
    [
        ("sigma(r < a, merge(slice(X, a(0, r + 1), b(0, a - r)), a, b, a))", "a >= 3, b >= a"),  # 3, 4, 3
        ("slice(sigma(r < a, concat(slice(Y, a(0, r + 1, 2)), slice(Y, a(0, a - r, 2)), a)), a(0, 3))", "a == 3"),
    ],
)
def test_the_ends_of_a_fold_do_not_speak_for_shapes_that_are_not_affine_in_its_index(right: str, premise: str) -> None:
    rule = one(f"""
bent: X[a b]  Y[a]
  sum(X, b) * (0 * Y)  ==  {right} * (0 * Y)
  if {premise}
""")
    verdict = prove(rule)
    assert verdict.status == UNKNOWN
    assert "not affine" in verdict.cause


def test_vacuous_premises_prove_nothing() -> None:
    contradiction = one("""
never: A[*a n]  B[*a n2]
  concat(A, B, n)  ==  concat(B, A, n)
  if n > n2, n2 > n
""")
    assert prove(contradiction).cause.startswith("the premises contradict")
    empty = one("""
empty: A[*a n]  C[*a n2]  D[*a n]
  concat(A, C, n) + concat(D, slice(D, n(n, n + n2)), n)  ==  concat(A, C, n) + concat(D, slice(D, n(n, n + n2)), n) + 0
""")
    assert "empty tensors only" in prove(empty).cause


def test_premises_divide_by_what_is_positive() -> None:
    rule = one("""
divisor: A[*a n]
  slice(A, n(s, e))  ==  slice(A, n(s, 2 * s))
  if e // s == 2, e % s == 0
""")
    assert "divides by what may not be positive" in prove(rule).cause
    never = one("""
negative: A[*a n]
  slice(A, n(s, e))  ==  slice(A, n(s, e, 1)) + 0
  if e // (0 - 2) == 1
""")
    assert "negative constant" in prove(never).cause


def test_a_rule_that_says_nothing_is_not_proved() -> None:
    assert "same term" in prove(one("same: A[*a]  B[*a]\n  A + B  ==  A + B")).cause


def test_premises_are_needed() -> None:
    for name, clause in (
        ("slice-concat-left", "if e <= n"),
        ("slice-slice", "if x < y"),
        ("pad-pad", "if l >= 0, h >= 0"),
    ):
        from rewrites.language.show import show

        rule = next(r for r in RULES if r.name == name)
        text = show(rule)
        assert clause in text
        assert not prove(parse(text.replace(clause, "if 0 <= 0"))).proved


def test_divisors_of_the_left_side_are_assumed_and_new_ones_refused() -> None:
    verdict = prove(one("self: A[*a]\n  A / A  ==  bcast(1, a)"))
    assert verdict.domain is not None
    assert f"{DEFINED} A is not zero" in verdict.domain.assumptions
    for step in ("floor", "sign"):
        verdict = prove(one(f"step: A[*a]  B[*a]\n  {step}(A / B) - {step}(A / B)  ==  A - A"))
        assert verdict.domain is not None
        assert f"{DEFINED} B is not zero" in verdict.domain.assumptions, "also of those inside a step function"
    verdict = prove(one("new: A[*a]  B[*a]\n  A + (B - B)  ==  A * B / B"))
    assert verdict.status == UNKNOWN
    assert "divides by B" in verdict.cause
    verdict = prove(one("root: A[*a]  B[*a]\n  A + (B - B)  ==  A + sqrt(B) - sqrt(B) + (B - B)"))
    assert verdict.status == UNKNOWN
    assert "sqrt" in verdict.cause


def test_positive_divisors_are_discharged() -> None:
    verdict = prove(next(r for r in RULES if r.name == "softmax-shift"))
    assert verdict.domain is not None
    assert verdict.domain.assumptions == (FINITE,)
    introduced = prove(one("one: X[*b *k]\n  X - X  ==  X * (exp(X) / exp(X)) - X"))
    assert introduced.proved
    flash = next(r for r in RULES if r.name == "flash-merge")
    from rewrites.language.show import show

    unconditional = prove(parse(show(flash).replace("if k >= 1, k2 >= 1", "if 0 <= 0")))
    assert unconditional.domain is None or any("non-empty" in a for a in unconditional.domain.assumptions)


def test_integers_only_where_wrap_around_is_harmless() -> None:
    names = ("dot-assoc", "conv-merge", "pad-pad", "div-frozen", "softmax-shift", "clamp-clamp", "conv-winograd")
    dtypes = {name: d.dtypes for name in names if (d := verdict_of(name).domain) is not None}
    assert "int" in dtypes["dot-assoc"]
    assert "int" in dtypes["conv-merge"]
    assert "int" in dtypes["pad-pad"]
    assert "int" not in dtypes["div-frozen"]
    assert "int" not in dtypes["softmax-shift"]
    assert "int" in dtypes["clamp-clamp"]
    assert "int" not in dtypes["conv-winograd"]  # halves


def test_attribute_roles_are_those_whose_axes_differ() -> None:
    roles = {r.name: attribute_roles(r) for r in RULES}
    assert roles["dot-assoc"] == ()
    assert roles["conv-merge"] == ("s",)
    assert roles["pad-pad"] == ("n",)
    assert roles["flash-merge"] == ()


def test_reducers_are_proved_one_by_one() -> None:
    rule = one("""
linear: R in sum|max  A[*a *k]  S[*a]
  R(A * S, k)  ==  R(A, k) * S
""")
    assert prove(rule).status == UNKNOWN  # true of sum, false of max


def test_outside_the_theory_is_unsupported_not_unknown() -> None:
    verdict = prove(one("infinite: A[*a *k]\n  sum(A * inf, k)  ==  sum(inf * A, k)"))
    assert verdict.status == UNSUPPORTED
    assert "infinity" in verdict.cause


def test_unknown_is_unknown() -> None:
    verdict = check(one("double: A[*a]\n  sin(A + A)  ==  2 * sin(A) * cos(A)"), after=6)  # true, but no law says so
    assert verdict.status == UNKNOWN
    assert "no counterexample in" in verdict.cause


def test_proofs_are_deterministic() -> None:
    names = ("flash-merge", "conv-undilate", "cumsum-blocks", "slice-slice")
    chosen = [r for r in RULES if r.name in names]
    first = [prove(r) for r in chosen]
    again = [prove(r) for r in reversed(chosen)][::-1]
    assert first == again
