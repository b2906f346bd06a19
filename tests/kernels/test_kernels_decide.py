"""Choices that ranges decide: the branch that is taken, and nothing of the other."""

from __future__ import annotations

import pytest

from superopt.ir import expr as ex
from superopt.ir.expr import Expr
from superopt.ir.index import Symbol, nonnegative, of_atom
from superopt.kernels.loops import simplify

IT = Symbol("o0", 0, 9999)


def _part(n: int) -> Expr:
    return ex.op("exp", "float32", ex.load(f"x{n}", [of_atom(IT)], "float32"))


def _parts(count: int) -> Expr:
    """Return the value of a concatenation of so many parts of two elements."""
    value = _part(count - 1)
    for n in reversed(range(count - 1)):
        part, rest = _part(n), ex.op("tanh", "float32", value)
        value = ex.where(nonnegative(2 * n + 1 - of_atom(IT)), lambda part=part: part, lambda rest=rest: rest)
    return value


@pytest.mark.parametrize("place", [0, 7, 1500])
def test_a_part_deep_inside_is_taken(place: int) -> None:
    found = simplify.decide(_parts(2000), {IT: (2 * place, 2 * place + 1)})
    for _ in range(place):
        assert found.args[0] == "tanh"
        found = found.args[2]
    assert found is _part(place)


def test_a_branch_that_is_not_taken_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    known = simplify.known
    monkeypatch.setattr(simplify, "known", lambda guard, ranges: (seen.append(guard), known(guard, ranges))[1])
    simplify.decide(_parts(50), {IT: (0, 1)})
    assert len(set(seen)) == 1


def test_what_ranges_leave_open_stays() -> None:
    whole = _parts(3)
    assert simplify.decide(whole, {}) is whole
    some = simplify.decide(whole, {IT: (0, 3)})
    assert [e.kind for e in ex.subexpressions(some)].count("where") == 1
