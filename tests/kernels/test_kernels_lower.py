"""Reductions as loops with accumulators, before any code is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ir.expr import Expr, const, load, op, reduce, where
from superopt.ir.index import Symbol, nonnegative, of_atom
from superopt.kernels.emit.lower import AccumulatorLoop, AccumulatorStep, LoopCode, Ready, lower
from superopt.kernels.emit.options import DEFAULT, STRICT, Knobs
from superopt.kernels.emit.scope import LoopScope
from superopt.kernels.loops.stage import Buffer
from tests.support.machines import WIDE

ROW = Symbol("o0", 0, 999)
HERE = LoopScope(
    WIDE, DEFAULT, Knobs(accumulators=2), {"x": Buffer("x", (1 << 20,), "float32", "input")}, bound={ROW: None}
)


def x(it: Symbol) -> Expr:
    return load("x", (1000 * of_atom(ROW) + of_atom(it),), "float32")


def total(n: int, body: Expr | None = None, monoid: str = "sum") -> Expr:
    """A reduction of n steps over r0."""
    r = Symbol("r0", 0, n - 1)
    return reduce(monoid, [r], x(r) if body is None else body)


def shown(code: Sequence[LoopCode]) -> list[str]:
    """Return the loops and steps as lines."""
    made: list[str] = []
    for c in code:
        match c:
            case Ready():
                continue
            case AccumulatorStep():
                made.append(f"a{c.copy} {c.value}")
            case AccumulatorLoop():
                limits = "".join([f" {sign}*{c.it}+{rest}" for sign, rest in c.limits])
                tail = f" {c.tail} lanes" if c.tail else " rest" if c.rest else ""
                turns = ", ".join([line for turn in c.turns for line in shown(turn)])
                made.append(f"{c.it} {c.first}..{c.last} step {c.step}{tail}{limits}: {turns}")
    return made


def test_a_row_runs_along_lanes_with_several_accumulators_and_a_part_of_a_vector_at_the_end() -> None:
    made = lower(total(1000), HERE)
    assert (made.copies, made.scope.lanes, made.wide, made.dtype) == (2, 16, False, "float32")
    value = str(made.reduction.args[2])
    assert shown(made.code) == [
        f"r0 0..992 step 32: a0 {value}, a1 {value}",
        f"r0 992..1000 step 16 8 lanes: a0 {value}",
    ]


def test_terms_in_their_order_have_one_accumulator_and_no_lanes() -> None:
    made = lower(total(1000), replace(HERE, licence=STRICT))
    assert (made.copies, made.scope.lanes) == (1, 0)
    assert shown(made.code) == [f"r0 0..1000 step 1: a0 {made.reduction.args[2]}"]
    assert lower(total(1000, monoid="max"), replace(HERE, licence=STRICT)).copies == 2


def test_what_differs_between_lanes_keeps_the_lane_of_its_place() -> None:
    made = lower(total(100), replace(HERE, knobs=Knobs(window=0)).along(ROW, 16, 3))
    assert made.wide
    assert (made.scope.lane, made.scope.lanes, made.scope.tail) == (ROW, 16, 3)
    assert shown(made.code) == [f"r0 0..100 step 4: {', '.join(f'a{c} {made.reduction.args[2]}' for c in range(4))}"]


def test_short_windows_are_steps_without_a_loop() -> None:
    made = lower(total(3), HERE.along(ROW, 16))
    assert shown(made.code) == ["a0 x[1000*o0]", "a0 x[1+1000*o0]", "a0 x[2+1000*o0]"]


def test_a_guard_whose_other_branch_is_the_identity_bounds_the_loop() -> None:
    """As a number where its iterators have numbers; the loop over the rest is then no loop."""
    r = Symbol("r0", 0, 999)
    body = where(nonnegative(of_atom(ROW) - of_atom(r)), lambda: x(r), lambda: const(0.0, "float32"))
    made = lower(total(1000, body), HERE)
    assert shown(made.code) == [f"r0 0..1000 step 16 rest -1*r0+o0: a0 {x(r)}"]
    known = lower(total(1000, body), HERE.entered(ROW, 31))
    assert shown(known.code) == [f"r0 0..32 step 32: a0 {x(r)}, a1 {x(r)}"]


def test_pieces_of_a_concatenation_are_loops_of_their_own() -> None:
    r = Symbol("r0", 0, 999)
    body = where(nonnegative(399 - of_atom(r)), lambda: x(r), lambda: op("neg", "float32", x(r)))
    loops = [c for c in lower(total(1000, body), HERE).code if isinstance(c, AccumulatorLoop)]
    assert [(c.first, c.last, c.piece) for c in loops if c.tail is None] == [
        (0, 384, (0, 400)), (384, 400, (0, 400)), (400, 976, (400, 1000)), (976, 992, (400, 1000)),
    ]  # fmt: skip
    assert all("neg" in line for line in shown(loops)[2:])


def test_a_scope_never_changes() -> None:
    inner = HERE.entered(Symbol("o1", 0, 3), 2).narrowed(ROW, 3, 5).spread_over(Symbol("o1", 0, 3), [0, 1]).at(1)
    assert (HERE.ranges, HERE.points, HERE.point, dict(HERE.bound)) == ({}, 1, 0, {ROW: None})
    assert (inner.ranges, inner.points, inner.point) == ({ROW: (3, 4)}, 2, 1)
