"""Reductions as loops with accumulators, before any code is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from superopt.ir.expr import Expr, const, load, op, reduce, where
from superopt.ir.index import Guard, Symbol, nonnegative, of_atom
from superopt.kernels.emit.lower import AccumulatorLoop, AccumulatorStep, LoopCode, Ready, lower, prefixes
from superopt.kernels.emit.options import DEFAULT, STRICT, Knobs
from superopt.kernels.emit.scope import LoopScope
from superopt.kernels.loops.stage import Buffer
from tests.support.machines import WIDE

ROW, COLUMN = Symbol("o0", 0, 999), Symbol("o1", 0, 99)
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


def scan(sign: int) -> Expr:
    """The sum of a row's elements up to the column, or from it on."""
    r = Symbol("r0", 0, 99)
    guard = nonnegative((of_atom(COLUMN) - of_atom(r)) * sign)
    assert isinstance(guard, Guard)
    return reduce("sum", [r], where(guard, lambda: x(r), lambda: const(0.0, "float32")))


def test_a_prefix_is_an_accumulator_of_the_loop_over_its_end() -> None:
    made = prefixes(op("add", "float32", scan(1), x(COLUMN)), COLUMN, HERE)
    assert made is not None
    assert (made.sign, made.along, [(p.reduction, p.lanes) for p in made.prefixes]) == (1, False, [(scan(1), 0)])
    along = prefixes(scan(-1), COLUMN, HERE, lanes=16)
    assert along is not None
    assert (along.sign, along.along, along.prefixes[0].lanes) == (-1, True, 16)
    spread = prefixes(scan(1), COLUMN, HERE.spread_over(ROW, range(3)))
    assert spread is not None
    assert [p.point for p in spread.prefixes] == [0, 1, 2]
    assert prefixes(total(100), COLUMN, HERE) is None


def test_one_loop_carries_prefixes_of_one_direction() -> None:
    made = prefixes(op("add", "float32", scan(1), scan(-1)), COLUMN, HERE)
    assert made is not None
    assert len(made.prefixes) == 1


def test_terms_in_their_order_are_carried_upwards_and_not_along_lanes() -> None:
    strict = replace(HERE, licence=STRICT)
    assert prefixes(scan(1), COLUMN, strict) is not None
    assert prefixes(scan(-1), COLUMN, strict) is None
    assert prefixes(scan(1), COLUMN, strict, lanes=16) is None
