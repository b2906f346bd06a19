"""Index polynomials and conditions agree with Python's integers."""

from __future__ import annotations

import random

import pytest

from verifier.equal import conditions as c
from verifier.equal.conditions import Sym
from verifier.equal.monomial import Atom, Monomial, canonical
from verifier.equal.poly import Poly, const, divide, entry, greatest, least, var
from verifier.equal.solver import Context
from verifier.equal.weights import eliminate

NAMES = ("i", "n", "q")


def value(p: Poly, at: dict[str, int]) -> int:
    found = p.subst({k: const(v) for k, v in at.items()}).value
    assert found is not None
    return found


def random_poly(rng: random.Random, depth: int) -> tuple[Poly, str]:
    """A polynomial and the Python expression that it stands for; divisors are n + 1 or constants."""
    if depth == 0:
        if rng.random() < 0.4:
            k = rng.randint(-3, 4)
            return const(k), f"({k})"
        name = rng.choice(NAMES)
        return var(name), name
    a, x = random_poly(rng, depth - 1)
    b, y = random_poly(rng, depth - 1)
    op = rng.choice(["+", "-", "*", "//", "%", "min", "max"])
    if op == "+":
        return a + b, f"({x} + {y})"
    if op == "-":
        return a - b, f"({x} - {y})"
    if op == "*":
        return a * b, f"({x} * {y})"
    if op in ("//", "%"):
        d, text = rng.choice([(var("q"), "q"), (const(3), "3"), (var("n") + 1, "(n + 1)"), (var("q") * 2, "(q * 2)")])
        return divide(a, d)[op == "%"], f"({x} {op} {text})"
    return (least if op == "min" else greatest)(a, b), f"{op}({x}, {y})"


def test_polynomials_are_the_integers_they_stand_for():
    rng = random.Random(1)
    for _ in range(400):
        p, text = random_poly(rng, 3)
        for _ in range(4):
            at = {"i": rng.randint(-6, 9), "n": rng.randint(0, 7), "q": rng.randint(1, 5)}
            assert value(p, at) == eval(text, {"min": min, "max": max}, at), (str(p), text, at)


def test_equal_polynomials_are_equal_values():
    i, n, q = map(var, NAMES)
    assert (i + n) * (i - n) == i * i - n * n
    assert (q * i + n) // q == i + n // q
    assert (q * i + n) % q == n % q
    assert (i * 6 + 4) // 3 == i * 2 + 1
    assert (i // q) // n == i // (q * n)
    assert (i % (q * n)) // n == (i // n) % q
    assert (i % (q * n)) % n == i % n
    assert hash(i + 1 + n) == hash(n + i + 1)
    assert least(n, n + 2) == n
    assert entry("I", (i + 1 - 1,)) == entry("I", (i,))


def test_affine_part_and_division_by_zero():
    i, n = var("i"), var("n")
    assert (i * n + i * 2 + n).affine("i") == (n + 2, n)
    assert (i * i).affine("i") is None
    assert (i // 2).affine("i") is None
    with pytest.raises(ZeroDivisionError):
        divide(i, const(0))
    with pytest.raises(TypeError, match="truth"):
        bool(i)


def test_conditions_are_the_comparisons_they_stand_for():
    rng = random.Random(2)
    python = {"ge": int.__ge__, "lt": int.__lt__, "eq": int.__eq__, "ne": int.__ne__}
    for _ in range(300):
        (a, _), (b, _) = random_poly(rng, 2), random_poly(rng, 2)
        kind = rng.choice(list(python))
        cond = getattr(c, kind)(a, b)
        for _ in range(4):
            at = {"i": rng.randint(-6, 9), "n": rng.randint(0, 7), "q": rng.randint(1, 5)}
            sub = {k: const(v) for k, v in at.items()}
            want = python[kind](value(a, at), value(b, at))
            assert cond.subst(sub) == c.truth(want)
            assert c.negate(cond).subst(sub) == c.truth(not want)


def test_conditions_are_reduced():
    i, n = var("i"), var("n")
    assert c.lt(i * 2, n * 2) == c.lt(i, n)
    assert c.ge(i * 2, 1) == c.ge(i, 1)
    assert c.eq(i * 2, 1) == c.FALSE
    assert c.negate(c.conj([c.ge(i, 0), c.lt(i, n)])) == c.disj([c.lt(i, 0), c.ge(i, n)])


def test_symbols_compare_to_conditions():
    i = Sym(var("i"))
    assert (i + 1 > 3) == c.ge(var("i"), 3)
    assert (i == 2) == c.eq(var("i"), 2)
    assert str((7 - i) // 2 % 2) == str((const(7) - var("i")) // 2 % 2)


def test_equal_summands_have_equal_texts_whatever_their_binders():
    def m(k: str, r: str) -> Monomial:
        guards = (c.ge(var(k), 0), c.lt(var(k), var("n")), c.ge(var(r), 0), c.lt(var(r), var("q")))
        return Monomial(guards=guards, binders=(k, r), atoms=(Atom("X", (var(k) + var(r),)), Atom("W", (var(r),))))

    assert canonical(m("k!1", "k!2")) == canonical(m("k!9", "k!3"))


def test_quotient_and_remainder_are_solved_together():
    ctx = Context()
    ctx.dims |= {"n", "q"}
    ctx.premises += [c.ge(var("q"), 1), c.ge(var("n"), 0)]
    o, i, a = var("o"), var("i"), var("a")
    guards = (c.ge(o, 0), c.lt(o, var("n")), c.ge(i, 0), c.lt(i, var("q")))
    m = Monomial(guards=guards, binders=("o", "i"), atoms=(Atom("X", (o * var("q") + i,)),))
    weight = eliminate(ctx, m, [a], (), exists=False)
    assert weight.guard == c.conj([c.ge(a, 0), c.lt(a, var("n") * var("q"))])


def test_a_number_is_solved_from_its_quotient_and_remainder():
    ctx = Context(dims={"n", "q"})
    k, n, q, a, b = map(var, "knqab")
    ctx.premises.append(c.ge(q, 1))
    m = Monomial(guards=(c.ge(k, 0), c.lt(k, n)), binders=("k",), atoms=(Atom("X", (k // q, k % q)),))
    weight = eliminate(ctx, m, [a, b], (), exists=False)
    whole = a * q + b
    assert weight.guard == c.conj([c.ge(whole, 0), c.lt(whole, n), c.ge(b, 0), c.lt(b, q)])


@pytest.mark.parametrize("size", [var("q"), const(3)], ids=str)
def test_an_even_quotient_says_what_is_divided(size: Poly) -> None:
    ctx = Context(dims={"q"})
    ctx.premises.append(c.ge(var("q"), 1))
    a, v, other = var("a"), var("v"), c.ge(var("w"), 1)
    m = Monomial(guards=(other, c.eq(a // size, v), c.eq(a % size, 0)), binders=(), atoms=(Atom("X", (a,)),))
    assert eliminate(ctx, m, [a], (), exists=False).guard == c.conj([other, c.eq(a, v * size)])


def test_sizes_that_are_all_one_number_may_make_a_divisor_zero() -> None:
    ctx = Context(dims={"n", "m"})
    ctx.premises += [c.ge(divide(var("n"), var("n") - var("m"))[0], 1), c.ge(var("n") - var("m"), 1)]
    found = ctx.witness(("n", "m"))
    assert found is not None
    assert found["n"] // (found["n"] - found["m"]) >= 1
