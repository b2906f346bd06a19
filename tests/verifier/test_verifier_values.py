"""Integers, truth values, positions and premises about values: what is proved, for which types, and what is not."""

from __future__ import annotations

import pytest

from rewrites.language.parse import parse
from verifier.equal import conditions as c
from verifier.equal.equality import NO_OVERFLOW, POSITIONS
from verifier.equal.monomial import Atom, Monomial
from verifier.equal.pointwise import ALWAYS, IN_RANGE, equal_integers
from verifier.equal.poly import var
from verifier.equal.ranks import ANY
from verifier.equal.solver import Context
from verifier.equal.terms import Apply, Const, Read, ScalarTerm
from verifier.equal.weights import _atoms_of_condition, signature
from verifier.rules.prove import CONTRADICTION, prove
from verifier.verdict import PROVED, UNKNOWN, UNSUPPORTED

A, B, C = (Read(name, (var("i"),)) for name in "ABC")


def op(fn: str, *args: ScalarTerm) -> Apply:
    return Apply(fn, args)


def number(n: int) -> Const:
    from fractions import Fraction

    return Const(Fraction(n))


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        (op("sub", A, B), op("add", A, op("neg", B)), ALWAYS),
        (op("rem", op("rem", A, B), B), op("rem", A, B), ALWAYS),
        (op("gt", op("max", A, B), B), op("gt", A, B), ALWAYS),
        (op("neg", op("neg", A)), A, ALWAYS),
        (op("max", op("neg", A), op("neg", B)), op("neg", op("min", A, B)), IN_RANGE),  # the least integer
        (op("max", op("add", A, C), op("add", B, C)), op("add", op("max", A, B), C), IN_RANGE),
        (op("lt", op("add", A, number(1)), A), op("lt", A, A), IN_RANGE),
        (op("div", op("neg", A), B), op("neg", op("div", A, B)), IN_RANGE),
        (op("div", op("mul", A, B), B), A, ""),  # B may be zero
        (op("rem", op("add", A, B), B), op("rem", A, B), ""),  # wrong where A is negative
        (op("max", A, B), op("min", A, B), ""),
    ],
)
def test_integers_wrap_and_divide_towards_zero(left: ScalarTerm, right: ScalarTerm, found: str) -> None:
    answer = equal_integers(Context(), left, right, ())
    assert answer == found or (found == IN_RANGE and answer == "")


def test_what_no_machine_integer_holds_is_equal_in_range_alone() -> None:
    """A constant that no type has says nothing about how types wrap."""
    beyond = number(2**80)
    assert equal_integers(Context(), op("add", A, beyond), op("add", beyond, A), ()) == IN_RANGE


def test_a_premise_about_values_is_used_where_entries_are_read() -> None:
    left, right = op("max", A, number(0)), A
    assert not equal_integers(Context(), left, right, ())
    assert equal_integers(Context(), left, right, (), [(c.TRUE, op("ge", A, number(0)))]) == ALWAYS
    elsewhere = op("ge", Read("A", (var("j"),)), number(0))
    assert not equal_integers(Context(), left, right, (), [(c.TRUE, elsewhere)])


def domain(text: str):
    verdict = prove(parse(text))
    assert verdict.status == PROVED, str(verdict)
    assert verdict.domain is not None
    return verdict.domain


def test_types_of_a_proof() -> None:
    assert domain("t: A[*a]  B[*a]\n  (-A) / B == -(A / B)").dtypes == ("float",)
    assert domain("t: A[*a *k]  B[*a]\n  max(-A, k) == -min(A, k)").dtypes == ("float",)
    assert domain("t: A[*a]  B[*a]\n  (A + B) * 0.5 == A * 0.5 + B * 0.5").dtypes == ("float",)
    assert domain("t: A[*a]  B[*a]\n  (A + B) * 2 == A * 2 + B * 2").dtypes == ("float", "int")
    assert domain("t: A[*a]  B[*a]\n  minimum(A, maximum(A, B)) == minimum(maximum(B, A), A)").dtypes == (
        "float",
        "int",
    )
    assert domain("t: P[*a]  Q[*a]\n  invert(logical_and(P, Q)) == logical_or(invert(P), invert(Q))").dtypes == (
        "bool",
    )
    assert domain("t: A[*a]  B[*a]\n  A - B - A == -B\n  dtype int").exactness == "exact"
    shifted = domain(
        "t: c in int  X[*a]\n  rem(X + c, c) == rem(X, c)\n  given ge(X, 0), ge(c, 1)\n  dtype int\n  mode proof"
    )
    assert shifted.dtypes == ("int",)
    assert NO_OVERFLOW in shifted.assumptions
    masked = domain("t: A[*a n]  extra m\n  where(lt(iota(n), count(n)), A, 0) == A + 0\n  mode proof")
    assert POSITIONS in masked.assumptions


def test_what_is_not_proved() -> None:
    for text, cause in (
        ("t: A[*a]  B[*a]\n  lt(A, B) == A - B", "dtypes disagree"),
        ("t: T[n *d]  I[*b]\n  take(T, I, n) + I == I + take(T, I, n)", "dtypes disagree"),
        ("t: A[*a]  S[*a]\n  A + 0 * S == A\n  given lt(S, S)\n  mode proof", CONTRADICTION),
        ("t: A[*a *k]  S[*a]\n  max(A * S, k) == max(A, k) * S\n  if k >= 1\n  mode proof", "not added up alike"),
        (
            "t: A[*a *k]  S[*a *k]\n  max(A * S, k) == max(A, k) * max(S, k)\n  given ge(S, 0)\n  mode proof",
            "not added up alike",
        ),
        ("t: A[*a *n]\n  dynslice(A, n(i, m)) == slice(A, n(i, i + m))\n  mode proof", "ill-formed"),
        ("t: A[*a n]  extra m\n  prod(A + A, n) == prod(A, n) * 2\n  mode proof", "not added up alike"),
        (
            "t: A[*a *n]  B[*a *n2]\n  dynupdate(A, B, n(i)) == dynupdate(A, B, n(i + 1))\n  mode proof",
            "not added up alike",
        ),
    ):
        verdict = prove(parse(text))
        assert verdict.status in (UNKNOWN, UNSUPPORTED), str(verdict)
        assert cause in verdict.cause, str(verdict)


def test_maxima_and_minima_of_nothing_are_infinite() -> None:
    padded = domain("t: A[*a k]\n  max(pad(A, -inf, k(l, h)), k) == max(A, k)\n  if l >= 0, h >= 0")
    assert padded.exactness == "exact"
    assert padded.assumptions == ()
    assert prove(parse("t: A[*a k]\n  max(A, k) == bcast(-inf, a)\n  if k == 0")).status == PROVED
    assert prove(parse("t: A[*a k]\n  max(A, k) == bcast(0, a)\n  if k == 0")).status == UNKNOWN


def test_statements_of_a_condition_are_counted() -> None:
    x, y = var("x"), var("y")
    atom = Atom("A", (x,))
    inside = (c.ge(x, 0), c.lt(x, y))
    outside = c.negate(c.conj(inside))
    plain = Monomial(atoms=(atom,))

    def count(*ms: Monomial) -> int:
        return _atoms_of_condition(list(ms), signature(ms[0]))

    assert count(plain) == 0  # an equation that all share holds wherever the weights differ
    assert count(plain, Monomial(atoms=(Atom("A", (y,)),))) == 2
    assert count(Monomial(guards=inside, atoms=(atom,)), Monomial(guards=(outside,), atoms=(atom,))) == 1
    mixed = c.disj([c.ge(x, 9), c.conj(inside)])
    assert count(Monomial(guards=(mixed,), atoms=(atom,))) == 2
    twice = Monomial(atoms=(atom, Atom("A", (y,))))
    assert count(twice) == 2  # two orders of equal atoms


def test_the_dynamic_rules_hold_at_every_rank() -> None:
    found = domain("t: A[*a *n]  B[*a *n2]\n  dynslice(dynupdate(A, B, n(i)), n(i, n2)) == B\n  mode proof")
    assert all(ranks == ANY for _, ranks in found.ranks)
    assert found.exactness == "exact"
