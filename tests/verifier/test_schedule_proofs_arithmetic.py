"""The arithmetic behind proofs about schedules: intervals, sums of guards, inverses and points, against enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from superopt.ir.expr import const, convert, load, op, reduce, where
from superopt.ir.index import Guard, Poly, Size, Symbol, clip, greatest, least, nonnegative, of_atom
from superopt.lab.corpora.schedules.lemmas import lemmas, prove
from verifier.schedules.comparable import guarded
from verifier.schedules.domain import Domain, ExhaustedError, QuestionBudget, value_at
from verifier.schedules.equal import Equality
from verifier.schedules.intervals import ExprRanges, interval
from verifier.schedules.maps import solve
from verifier.schedules.value import difference
from verifier.schedules.wire import Encoder, decoder

I, J, K = (Symbol(name, 0, n) for name, n in (("i", 4), ("j", 6), ("k", 2)))
i, j, k = (of_atom(s) for s in (I, J, K))
RANGES = {I: (0, 4), J: (0, 6), K: (0, 2)}


def _index(rng: np.random.Generator, depth: int = 2) -> Size:
    """A random index over i, j, k."""
    if depth == 0 or rng.random() < 0.25:
        return [i, j, k][rng.integers(3)] * int(rng.integers(-4, 5)) + int(rng.integers(-6, 7))
    a, b = _index(rng, depth - 1), _index(rng, depth - 1)
    match int(rng.integers(0, 7)):
        case 0 | 1 | 2:
            return a + b * int(rng.choice([-2, -1, 1, 3]))
        case 3:
            return a // int(rng.integers(2, 6))
        case 4:
            return a % int(rng.integers(2, 6))
        case 5:
            return least(a, b) if rng.random() < 0.5 else greatest(a, b)
        case _:
            return clip(a, int(rng.integers(-3, 2)), int(rng.integers(2, 8)))


def _points(facts: list[Poly]) -> Iterator[Mapping[Symbol, int]]:
    for at in itertools.product(*(range(h + 1) for _, h in RANGES.values())):
        point = dict(zip(RANGES, at, strict=True))
        if all(value_at(f, point) >= 0 for f in facts):
            yield point


def test_values_that_differ_for_the_largest_integers_alone_are_evaluated() -> None:
    x = load("x", (i,), "int32")
    found = difference(x, op("min", "int32", x, const(1_000, "int32")), Domain({I: (0, 4)}))
    assert found is not None
    assert found[1] > found[2] == 1_000
    assert difference(x, op("max", "int32", x, x), Domain({I: (0, 4)})) is None


@pytest.mark.parametrize("seed", range(40))
def test_what_a_domain_proves_holds_at_every_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    guards = [p for p in (_index(rng, 1) for _ in range(int(rng.integers(0, 4)))) if isinstance(p, Poly)]
    domain = Domain(RANGES, guards)
    points = list(_points(guards))
    if domain.empty:
        assert not points
    for _ in range(10):
        p = _index(rng)
        values = [value_at(p, at) for at in points]
        low, high = domain.bounds(p)
        assert all(low <= v <= high for v in values)
        if not domain.empty:
            low, high = domain.tight(p)
            assert all(low <= v <= high for v in values)
        assert all(value_at(domain.reduced(p), at) == v for at, v in zip(points, values, strict=True))
        if domain.holds(p):
            assert all(v >= 0 for v in values)
        found, absent = domain.violation(p, 1 << 12)
        assert absent == all(v >= 0 for v in values)
        if found is not None:
            assert value_at(p, found) < 0
        assert not domain.never(Guard((p,)) if isinstance(p, Poly) else p >= 0) or all(v < 0 for v in values)


def test_points_are_points() -> None:
    domain = Domain(RANGES, [p for p in (i + j - 5, 4 - i) if isinstance(p, Poly)])
    found = domain.points(20)
    assert 0 < len(found) <= 20
    assert all(at[I] + at[J] >= 5 for at in found)


@pytest.mark.parametrize("seed", range(30))
def test_a_solved_index_map_has_no_other_solution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    index = [_index(rng, 1) for _ in range(int(rng.integers(1, 4)))]
    goal = [Symbol(f"t{d}", -100, 100) for d in range(len(index))]
    solved = solve(index, [of_atom(t) for t in goal], RANGES, Domain(RANGES))
    for at in _points([]):
        element: dict[Any, int] = {t: value_at(x, at) for t, x in zip(goal, index, strict=True)}
        for s, value in solved.items():
            assert value_at(value, element) == at[s]


@pytest.mark.parametrize(
    "index",
    [
        (7 * i + j,), (i, j, k), (j, 3 * i + k), ((3 * j + k) // 4, i, (3 * j + k) % 4), (21 * i + 3 * j + k,),
        (4 - i, 6 - j, 2 - k), (i // 2, j + 7 * (i % 2), k),
    ],
)  # fmt: skip
def test_digits_are_solved(index: tuple[Size, ...]) -> None:
    used = {s for x in index if isinstance(x, Poly) for s in x.symbols}
    goal = [of_atom(Symbol(f"t{d}", -1000, 1000)) for d in range(len(index))]
    assert set(solve(index, goal, used, Domain({s: RANGES[s] for s in used}))) == used


def test_tiles_that_end_inside_a_row_are_solved() -> None:
    """Seven pixels at a time of images of 28 x 28, in tasks of three and a half rows, at their place in the images."""
    task, tile, pixel = (of_atom(Symbol(name, 0, n)) for name, n in (("t", 15), ("m", 13), ("r", 6)))
    flat = 98 * task + 7 * tile + pixel
    index = (flat // 784, flat // 28 % 28, flat % 28)
    goal = [of_atom(Symbol(f"e{d}", None, None)) for d in range(3)]
    ranges = {s: (s.low or 0, s.high or 0) for s in flat.symbols}
    assert set(solve(index, goal, ranges, Domain(ranges))) == flat.symbols


def test_a_folded_index_map_is_not_solved() -> None:
    for index in ((6 * i + j,), (i + j,), (j // 2,), (2 * i + k,)):
        used = {s for x in index if isinstance(x, Poly) for s in x.symbols}
        goal = [of_atom(Symbol("t", -1000, 1000))]
        assert set(solve(index, goal, used, Domain({s: RANGES[s] for s in used}))) != used


def test_guards_decide_quotients() -> None:
    wide = Symbol("w", 0, 31)
    w = of_atom(wide)
    domain = Domain({wide: (0, 31)}, [p for p in (24 - w,) if isinstance(p, Poly)])
    assert domain.reduced(w // 25) == 0
    assert domain.reduced(w % 25) == w
    assert domain.zero(w % 25 - w)


def test_steps_are_counted() -> None:
    domain = Domain(RANGES, (), QuestionBudget(2))
    domain.holds(i - 1)
    domain.holds(j - 1)
    with pytest.raises(ExhaustedError):
        domain.holds(k - 1)


# ---- masks


def test_what_a_mask_hides_is_nothing_in_a_maximum_and_zero_as_an_exponential() -> None:
    def row(at: Size, hidden: float, until: Size = 2) -> Any:
        shown = nonnegative(until - at)
        return where(shown, lambda: load("x", (at,), "float32"), lambda: const(hidden, "float32"))

    def exponential(of: Any) -> Any:
        return op("exp", "float32", op("sub", "float32", of, load("m", (), "float32")))

    shown = nonnegative(2 - i)
    value = exponential(load("x", (i,), "float32"))
    assert guarded(exponential(row(i, -math.inf))) == where(shown, lambda: value, lambda: const(0, "float32"))
    for other in (value, exponential(row(i, -1.0)), exponential(row(i, -1e30))):
        assert guarded(other) == other
    greatest_of = [reduce("max", (K,), row(k, hidden, i)) for hidden in (-1e30, -math.inf, -1.0)]
    assert guarded(greatest_of[0]) == greatest_of[1]
    assert guarded(greatest_of[2]) == greatest_of[2]


# ---- folds


def _sum(n: int, body: Any, name: str = "r") -> Any:
    r = Symbol(name, 0, n - 1)
    return reduce("sum", (r,), body(of_atom(r)))


def test_folds_are_equal_under_bijections_only() -> None:
    d = Domain({})
    whole = _sum(12, lambda r: load("x", (r,), "float32"))
    backwards = _sum(12, lambda r: load("x", (11 - r,), "float32"))
    fused = _sum(3, lambda a: _sum(4, lambda b: load("x", (4 * a + b,), "float32"), "b"), "a")
    padded = _sum(16, lambda r: where(11 - r >= 0, lambda: load("x", (r,), "float32"), lambda: const(0.0, "float32")))
    for other in (backwards, fused, padded):
        assert Equality().same(whole, other, d)
    overlapping = _sum(4, lambda a: _sum(4, lambda b: load("x", (3 * a + b,), "float32"), "b"), "a")
    shifted = _sum(12, lambda r: load("x", (r + 1,), "float32"))
    shorter = _sum(11, lambda r: load("x", (r,), "float32"))
    for other in (overlapping, shifted, shorter):
        assert not Equality().same(whole, other, d)
        assert not Equality().same(other, whole, d)


def test_guards_of_terms_without_factors_count() -> None:
    def counted(offset: int) -> Any:
        def one() -> Any:
            return const(1.0, "float32")

        total = _sum(9, lambda r: where(i + offset - r >= 0, one, lambda: const(0.0, "float32")))
        return op("mul", "float32", total, total)

    d = Domain({I: (0, 4)})
    assert Equality().same(counted(1), op("mul", "float32", *counted(1).operands), d)
    assert not Equality().same(counted(1), counted(2), d)
    chosen = where(i - 2 >= 0, lambda: const(1.0, "float32"), lambda: const(0.0, "float32"))
    other = where(i - 3 >= 0, lambda: const(1.0, "float32"), lambda: const(0.0, "float32"))
    x = load("x", (i,), "float32")
    left, right = (op("add", "float32", op("mul", "float32", c, c), x) for c in (chosen, other))
    assert not Equality().same(left, right, d)


def test_iterators_of_one_name_are_not_confused() -> None:
    outer, r = Symbol("r0", 0, 4), of_atom(Symbol("r0", 0, 4))
    once = _sum(5, lambda i: load("x", (i,), "float32"))
    assert once.args[1] == (outer,)
    guarded = Domain({outer: (0, 4)}, [p for p in (1 - r,) if isinstance(p, Poly)])
    assert guarded.holds(1 - r)
    assert not guarded.over(once.args[1]).holds(1 - r)  # the sum's iterator hides the axis
    read = load("x", (r,), "float32")
    assert not Equality().same(once, op("add", "float32", read, read), guarded)
    twice = _sum(3, lambda _: op("mul", "float32", once, load("y", (0,), "float32")))
    assert not Equality().same(twice, op("mul", "float32", once, load("y", (0,), "float32")), Domain({}))
    shorter = _sum(2, lambda i: load("x", (i,), "float32"))
    assert not Equality().same(once, shorter, guarded)


def test_a_maximum_may_repeat_what_a_sum_may_not() -> None:
    def folded(monoid: str, index: Any) -> Any:
        a, b = Symbol("a", 0, 3), Symbol("b", 0, 3)
        return reduce(monoid, (a, b), load("x", (index(of_atom(a), of_atom(b)),), "float32"))

    def plain(monoid: str) -> Any:
        r = Symbol("r", 0, 6)
        return reduce(monoid, (r,), load("x", (of_atom(r),), "float32"))

    assert not Equality().same(plain("sum"), folded("sum", lambda a, b: a + b), Domain({}))
    assert not Equality().same(plain("max"), folded("max", lambda a, b: 2 * a + b), Domain({}))


def test_bytes_offset_and_widened_again_are_themselves() -> None:
    x = load("x", (0,), "int8")
    wide = op("add", "int32", convert(x, "int8", "int32"), const(128, "int32"))
    there_and_back = convert(convert(wide, "int32", "uint8"), "uint8", "int32")
    assert Equality().same(
        op("sub", "int32", there_and_back, const(128, "int32")), convert(x, "int8", "int32"), Domain({})
    )
    narrow = convert(convert(op("add", "int32", wide, const(1, "int32")), "int32", "uint8"), "uint8", "int32")
    plain = op("add", "int32", wide, const(1, "int32"))
    assert not Equality().same(narrow, plain, Domain({}))  # 128 + 128 is no byte


def test_ranges_of_integers() -> None:
    a, b = (convert(load(n, (of_atom(K),), d), d, "int32") for n, d in (("a", "uint8"), ("b", "int8")))
    ranges = ExprRanges()
    total = reduce("sum", (K,), op("mul", "int32", a, b))
    ranges.of(total)
    assert ranges.exact[total] == (-3 * 255 * 128, 3 * 255 * 127)
    assert ranges.whole[total]


# ---- lemmas, and what travels


@pytest.mark.parametrize("lemma", lemmas(), ids=lambda x: x.name)
def test_lemmas_hold_for_all_sizes(lemma: Any) -> None:
    assert prove(lemma)[0] == "PROVED"


def test_a_lemma_without_one_of_its_premises_is_not_proved() -> None:
    from dataclasses import replace

    (digit,) = [x for x in lemmas() if x.name == "digit"]
    without = replace(digit, premises=tuple(p for p in digit.premises if "s" not in p.vars or "w" not in p.vars))
    assert len(without.premises) < len(digit.premises)
    assert prove(without)[0] == "UNKNOWN"


def test_expressions_travel_unchanged() -> None:
    x = load("x", ((3 * i + j) // 4, clip(k - 1, 0, 2)), "float32")
    e = op(
        "add",
        "float32",
        where(i - j >= 0, lambda: x, lambda: const(-1.5, "float32")),
        _sum(3, lambda r: load("y", (r,), "float32")),
    )
    encoder = Encoder()
    number = encoder.expr(e)
    read = decoder(encoder.ranges(), encoder.nodes)
    assert read.expr(number) is e
    assert interval(i, {I: (2, 3)}) == (2, 3)
