"""Index polynomials: normal form, ranges and comparisons agree with arithmetic on integers."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from superopt.ir.index import (
    Guard,
    Poly,
    Size,
    Symbol,
    bounds,
    clip,
    concrete,
    divide,
    greatest,
    iterator,
    least,
    of_atom,
    substitute,
    symbol,
)

I, J, K = (iterator(n, e)[1] for n, e in (("i", 4), ("j", 6), ("k", 5)))


def _random(rng: np.random.Generator, depth: int) -> tuple[Size, Any]:
    """A random polynomial and the same arithmetic as a function of the values of i, j, k."""
    if depth == 0:
        which = int(rng.integers(4))
        if which == 3:
            c = int(rng.integers(-4, 5))
            return c, lambda v: c
        return (I, J, K)[which], lambda v: v[which]
    (a, fa), (b, fb) = _random(rng, depth - 1), _random(rng, depth - 1)
    c = int(rng.choice([1, 2, 3, 4, 6, 12]))
    match int(rng.integers(8)):
        case 0 | 1:
            return a + b * c, lambda v: fa(v) + fb(v) * c
        case 2:
            return a - b, lambda v: fa(v) - fb(v)
        case 3:
            return a * b, lambda v: fa(v) * fb(v)
        case 4:
            return divide(a, c)[0], lambda v: fa(v) // c
        case 5:
            return divide(a, c)[1], lambda v: fa(v) % c
        case 6:
            return least(a, b), lambda v: min(fa(v), fb(v))
        case _:
            return clip(greatest(a, b), -3, 9), lambda v: min(max(fa(v), fb(v), -3), 9)


POINTS = list(itertools.product(range(4), range(6), range(5)))


@pytest.mark.parametrize("seed", range(80))
def test_normal_form_keeps_the_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, f = _random(rng, int(rng.integers(1, 4)))
    low, high = bounds(p)
    test = p >= 2
    for v in POINTS[:: int(rng.integers(1, 7))]:
        env = dict(zip("ijk", v, strict=True))
        want = f(v)
        assert concrete(p, env) == want
        assert low <= want <= high
        if isinstance(test, Guard):
            assert all(concrete(t, env) >= 0 for t in test.terms) == (want >= 2)
        else:
            assert test == (want >= 2)
    point = dict(zip((Symbol("i", 0, 3), Symbol("j", 0, 5), Symbol("k", 0, 4)), POINTS[37], strict=True))
    assert substitute(p, point) == f(POINTS[37])


def test_equal_polynomials_are_equal_objects() -> None:
    h, n = symbol("h"), symbol("n")
    assert h - 1 + 1 == h
    assert (h + n) * (h - n) == h * h - n * n
    assert hash((h + n) * 2) == hash(n + h + n + h)
    assert isinstance(h - h, int)
    assert (h * 0, h * 3 - h * 2) == (0, h)


def test_division_by_sizes() -> None:
    n, m = symbol("n", 1), symbol("m", 1)
    i, j = iterator("i", n)[1], iterator("j", m)[1]
    flat = i * m + j
    assert divide(flat, m) == (i, j)
    assert divide(n * m, m) == (n, 0)
    assert (flat >= 0) is True
    assert (flat < n * m) is True
    assert (i < n) is True
    assert isinstance(i < n - 1, Guard)
    q, r = divide(n, 2)
    assert 2 * q + r == n


def test_quotients_of_sums_with_quotients_are_those_of_integers() -> None:
    rng = random.Random(0)
    ranges = {"a": (0, 36), "b": (0, 10), "c": (-9, 9)}
    a, b, c = (symbol(name, *ends) for name, ends in ranges.items())
    for _ in range(400):
        inner = rng.randint(1, 9) * a + rng.randint(-4, 9) * b + rng.randint(-3, 3) * c + rng.randint(-20, 20)
        outer = inner // rng.randint(2, 9) + rng.randint(-3, 4) * b + rng.randint(-2, 3) * c + rng.randint(-5, 5)
        divisor = rng.randint(2, 50)
        quotient, remainder = divide(outer, divisor)
        for _ in range(5):
            at = {name: rng.randint(*ends) for name, ends in ranges.items()}
            assert (concrete(quotient, at), concrete(remainder, at)) == divmod(concrete(outer, at), divisor)


def test_division_by_numbers_uses_ranges() -> None:
    a, b = iterator("a", 12)[1], iterator("b", 64)[1]
    assert divide(64 * a + b, 64) == (a, b)
    o = iterator("o", 768)[1]
    assert 64 * (o // 64) + o % 64 == o
    assert (o // 4) // 16 == o // 64
    assert (o % 64) % 16 == o % 16
    assert (64 * a + b) // 128 == a // 2
    assert (o // 5 + 6 * a) // 40 == (o + 30 * a) // 200
    flat = o + 30 * a
    assert 8 * (flat % 5) + 40 * (flat // 5 % 40) + 1600 * (flat // 200) == 8 * flat
    assert (64 * a + b) % 128 == 64 * (a % 2) + b
    assert clip(b, 0, 63) == b
    with pytest.raises(ZeroDivisionError):
        divide(o, 0)
    with pytest.raises(ValueError, match="negative"):
        divide(o, -2)


def test_truth_of_a_symbolic_size_is_refused() -> None:
    n = symbol("n")
    with pytest.raises(TypeError, match="not known"):
        bool(n)
    with pytest.raises(TypeError, match="not known"):
        bool(n > 3)
    assert (n >= 0) is True


def test_printing() -> None:
    n = symbol("n")
    o1, r = iterator("o1", 28)[1], iterator("r", 3)[1]
    assert str(o1 + r - 1) == "o1+r-1"
    assert str(28 - o1 - r) == "28-o1-r"
    assert str(64 * o1 + r) == "64*o1+r"
    assert str((o1 + n) // 3) == "(n+o1)//3"
    assert str(2 * (n // 3)) == "2*(n//3)"
    assert str(n * n - 2 * n) == "n*n-2*n"
    assert isinstance(n, Poly)
    assert of_atom(Symbol("n")) == n
