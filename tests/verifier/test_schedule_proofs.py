"""Schedules: right ones are proved, wrong ones of every kind are refuted where they go wrong, the rest is unknown."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from superopt.ir.expr import from_index, load, op, reduce
from superopt.ir.graph import Node, make_input, mk
from superopt.ir.index import Symbol, clip, of_atom
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.schedule.trace import apply
from superopt.lab.corpora.schedules.examples import Example, constant, dense, examples, rows, stencil
from superopt.lab.corpora.schedules.planted import Planted, planted
from superopt.lab.corpora.schedules.suite import rows_of
from superopt.store import Store
from tests.support.schedule_oracle import faults
from verifier.rules.process import shared
from verifier.schedules import OBLIGATIONS, CheckLimits, ScheduleVerdict, check_schedule
from verifier.schedules import remote as remote_module
from verifier.schedules.ledger import ScheduleLedger
from verifier.schedules.prover import settle

RIGHT = list(examples())
WRONG = list(planted())
QUICK = CheckLimits(solver=False)


@pytest.mark.parametrize("example", RIGHT, ids=lambda e: e.name)
def test_right_schedules_are_proved_without_the_solver(example: Example) -> None:
    verdict = check_schedule(example.before, example.after, QUICK)
    assert verdict.proved, str(verdict)
    assert not verdict.cause
    assert verdict.witness is None


@pytest.mark.parametrize("wrong", WRONG, ids=lambda p: p.name)
def test_wrong_schedules_are_refuted_with_a_witness(wrong: Planted) -> None:
    verdict = check_schedule(wrong.before, wrong.after, QUICK, wrong.aliases)
    assert verdict.status == "REFUTED"
    found = [f for f in verdict.findings if f.obligation == wrong.obligation and f.status == "REFUTED"]
    assert found, str(verdict)
    assert found[0].witness is not None
    assert str(found[0].witness) in verdict.cause


def test_every_obligation_has_a_wrong_schedule() -> None:
    assert {p.obligation for p in WRONG} == set(OBLIGATIONS)


@pytest.mark.parametrize("wrong", [p for p in WRONG if p.before.buffer("out0").shape[0] < 30], ids=lambda p: p.name)
def test_wrong_schedules_go_wrong(wrong: Planted) -> None:
    tiled = any(s.tile is not None for s in wrong.after.stages)  # vectors are not part of the oracle
    if not tiled and not wrong.aliases:
        assert faults(wrong.before, wrong.after, seeds=1)


def test_a_witness_names_iterations_addresses_and_tasks() -> None:
    by_name = {p.name: check_schedule(p.before, p.after, QUICK, p.aliases) for p in WRONG[:6]}
    race = by_name["tasks race"]
    found = next(f for f in race.findings if f.obligation == "order" and f.status == "REFUTED")
    assert found.witness is not None
    one, two = dict(found.witness.at), dict(found.witness.other)
    assert one["o0_0"] != two["o0_0"]
    assert 7 * one["o0_0"] + one["o0_1"] == 7 * two["o0_0"] + two["o0_1"]
    assert "tasks" in found.witness.says
    beyond = by_name["a tail is not guarded"].witness
    assert beyond is not None
    at = dict(beyond.at)
    assert 8 * at["o0_0"] + at["o0_1"] >= 37
    assert "address" in beyond.says


# ---- inputs of the check


def test_other_outputs_and_other_inputs_are_refuted() -> None:
    d = dense(5, 6, 7)
    wider = replace(d.buffer("out0"), dtype="float64")
    changed = replace(d, buffers=tuple([wider if b.name == "out0" else b for b in d.buffers]))
    assert check_schedule(d, changed, QUICK).status == "REFUTED"
    assert check_schedule(d, rows(5, 7), QUICK).status == "REFUTED"


def test_an_ill_formed_program_is_refuted() -> None:
    d = dense(5, 6, 7)
    free = _with(d, index=(of_atom(Symbol("elsewhere", 0, 4)), d.stages[0].index[1]))
    verdict = check_schedule(d, free, QUICK)
    assert verdict.status == "REFUTED"
    assert "well-formed" in verdict.cause


def _with(program: LoopProgram, **fields: Any) -> LoopProgram:
    return replace(program, stages=(replace(program.stages[0], **fields), *program.stages[1:]))


def _filled(count: int, shape: tuple[int, ...], index: Any, value: Any) -> LoopProgram:
    """out0 from x by one loop."""
    i = Symbol("i", 0, count - 1)
    buffers = (Buffer("x", (count,), "float32", "input"), Buffer("out0", shape, "float32", "output"))
    return LoopProgram("filled", buffers, (Stage("out0", (Loop(i),), index(of_atom(i)), value(of_atom(i))),))


def test_empty_buffers_and_scalars_have_schedules() -> None:
    empty = from_graph([mk("exp", make_input("x", (0, 4)))])
    assert check_schedule(empty, empty, QUICK).proved
    x = make_input("x", (6,))
    total = from_graph([mk("reduce_sum", x, axes=(0,))])
    split = apply(total, [["split_reduction", "out0", 0, 0, [4]], ["rfactor", "out0", 0, [0], "part"]])
    assert check_schedule(total, split, QUICK).exactness == "real"


def test_elements_in_another_order_are_one_to_one_by_any_bijection() -> None:
    plain = _filled(12, (12,), lambda i: (i,), lambda i: load("x", (i,), "float32"))
    for index in (lambda i: (11 - i,), lambda i: (i % 4 * 3 + i // 4,), lambda i: (i // 2 * 2 + 1 - i % 2,)):
        moved = _filled(12, (12,), index, lambda i, at=index: load("x", (at(i)[0],), "float32"))
        verdict = check_schedule(plain, moved, QUICK)
        assert verdict.proved, str(verdict)
    folded = _filled(12, (12,), lambda i: (i % 6 * 2,), lambda i: load("x", (i,), "float32"))
    assert check_schedule(plain, folded, QUICK).status == "REFUTED"


def test_entries_of_integer_inputs_are_in_bounds_only_when_clipped() -> None:
    def taken(clipped: bool) -> LoopProgram:
        i, j = Symbol("i", 0, 4), Symbol("j", 0, 2)
        row = load("ids", (of_atom(i),), "int32").as_index()
        at = clip(row, 0, 9) if clipped else row
        buffers = (
            Buffer("ids", (5,), "int32", "input"), Buffer("t", (10, 3), "float32", "input"),
            Buffer("out0", (5, 3), "float32", "output"),
        )  # fmt: skip
        value = load("t", (at, of_atom(j)), "float32")
        return LoopProgram("taken", buffers, (Stage("out0", (Loop(i), Loop(j)), (of_atom(i), of_atom(j)), value),))

    assert check_schedule(taken(True), taken(True), QUICK).proved
    verdict = check_schedule(taken(False), taken(False), QUICK)
    assert verdict.status == "REFUTED"
    assert verdict.witness is not None
    assert any("ids" in name or "value" in name for name, _ in verdict.witness.at)


def test_an_axis_named_like_an_iterator_of_a_sum_is_another() -> None:
    axis, k = Symbol("r0", 0, 4), Symbol("k", 0, 4)
    total = reduce("sum", (k,), load("x", (of_atom(k),), "float32"))
    assert total.args[1] == (axis,)
    buffers = (Buffer("x", (3,), "float32", "input"), Buffer("out0", (3,), "float32", "output"))
    stage = Stage("out0", (Loop(axis),), (of_atom(axis),), total, 2 - of_atom(axis) >= 0)
    program = LoopProgram("named", buffers, (stage,))
    verdict = check_schedule(program, program, QUICK)
    assert verdict.status == "REFUTED"
    assert "reads x[3]" in verdict.cause


def test_sums_of_16_bit_floats_do_not_accumulate_in_their_buffer() -> None:
    def bf16(combine: bool) -> LoopProgram:
        i, k = Symbol("i", 0, 3), Symbol("k", 0, 5)
        read = load("x", (of_atom(i), of_atom(k)), "bfloat16")
        axes = (Loop(i), Loop(k)) if combine else (Loop(i),)
        value = read if combine else reduce("sum", (k,), read)
        stage = Stage("out0", axes, (of_atom(i),), value, combine="sum" if combine else None)
        buffers = (Buffer("x", (4, 6), "bfloat16", "input"), Buffer("out0", (4,), "bfloat16", "output"))
        return LoopProgram("bf16", buffers, (stage,))

    assert check_schedule(bf16(False), bf16(True), QUICK).status == "UNKNOWN"


def test_buffers_may_share_memory_where_nothing_is_read_too_late() -> None:
    x = make_input("x", (8, 9))
    plain = from_graph([mk("exp", x)])
    tiled = apply(plain, [["split", "out0", "o0", [4]], ["parallel", "out0", "o0_0"]])
    assert check_schedule(plain, tiled, QUICK, (("out0", "x"),)).proved
    s = rows(8, 9)
    assert check_schedule(s, s, QUICK, (("out0", "x"),)).status == "REFUTED"  # the row is read again
    t = stencil(8, 9)
    assert check_schedule(t, t, QUICK, (("out0", "x"),)).status == "REFUTED"  # of another shape


# ---- sums


def _sums(value: Any) -> LoopProgram:
    i = Symbol("i", 0, 3)
    names = ("x", "y")
    buffers = [Buffer(n, (4, 6), "float32", "input") for n in names]
    stage = Stage("out0", (Loop(i),), (of_atom(i),), value(of_atom(i)))
    return LoopProgram("sums", (*buffers, Buffer("out0", (4,), "float32", "output")), (stage,))


def test_sums_are_equal_up_to_order_distribution_and_cancellation() -> None:
    k = Symbol("k", 0, 5)

    def x(i: Any) -> Any:
        return load("x", (i, of_atom(k)), "float32")

    def y(i: Any) -> Any:
        return load("y", (i, of_atom(k)), "float32")

    def add(*xs: Any) -> Any:
        return op("add", "float32", *xs)

    def total(body: Any) -> Any:
        return reduce("sum", (k,), body)

    plain = _sums(lambda i: total(add(x(i), y(i))))
    apart = _sums(lambda i: add(total(y(i)), total(x(i))))
    both = _sums(lambda i: op("sub", "float32", add(total(x(i)), add(total(y(i)), total(y(i)))), total(y(i))))
    for other in (apart, both):
        verdict = check_schedule(plain, other, QUICK)
        assert verdict.proved, str(verdict)
        assert verdict.exactness == "real"
    missing = _sums(lambda i: total(x(i)))
    assert check_schedule(plain, missing, QUICK).status == "REFUTED"


# ---- the solver, limits and the ledger


def _clamped(n: int, outer: str) -> LoopProgram:
    x = make_input("x", (n, 3))
    low, high = constant(1.0, x), constant(3.0, x)
    node: Node = mk("max", mk("min", x, high), low) if outer == "max" else mk("min", mk("max", x, low), high)
    return from_graph([node])


def test_what_the_arithmetic_leaves_open_is_asked_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(memory=True) as store:
        ledger = ScheduleLedger(store)
        assert check_schedule(_clamped(9, "max"), _clamped(9, "min"), QUICK).status == "UNKNOWN"
        first = ledger.check(_clamped(9, "max"), _clamped(9, "min"))
        assert first.proved
        assert first.tiers()["prover"] == 1
        assert ledger.check(_clamped(9, "max"), _clamped(9, "min")).cached
        monkeypatch.setattr(remote_module, "shared", None)  # the prover is asked nothing
        again = ScheduleLedger(store).check(_clamped(33, "max"), _clamped(33, "min"))
        assert again.proved
        assert not again.cached


def test_waiting_for_the_prover_is_not_the_time_of_a_schedule() -> None:
    held, limits = threading.Event(), CheckLimits(seconds=2.0)

    def rule() -> None:
        with shared().turn:
            held.set()
            time.sleep(1.5 * limits.seconds)

    other = threading.Thread(target=rule)
    shared().call("time:gmtime", 0)  # the process has started
    other.start()
    assert held.wait(30.0)
    assert check_schedule(_clamped(11, "max"), _clamped(11, "min"), limits).proved
    other.join()


def test_exponentials_are_not_taken_apart() -> None:
    x, y = make_input("x", (3,)), make_input("y", (3,))
    whole = from_graph([mk("exp", mk("add", x, y))])
    parts = from_graph([mk("mul", mk("exp", x), mk("exp", y))])
    assert check_schedule(whole, parts).status == "UNKNOWN"  # true over the reals, and it may overflow


def test_questions_are_answered_by_z3(monkeypatch: pytest.MonkeyPatch) -> None:
    i, j = Symbol("i", 0, 99_999), Symbol("j", 0, 99_999)
    a, b = of_atom(i), of_atom(j)
    answer = settle(remote_module._encoded(_domain(i, j, 2 * a + 3 * b - 7, 7 - 2 * a - 3 * b), [2 - a, 1 - b, 1 - a]))
    statuses = [g["status"] for g in answer["goals"]]
    assert statuses == ["yes", "yes", "no"]
    assert answer["goals"][2]["model"] == [2, 1]


def _domain(i: Symbol, j: Symbol, *facts: Any) -> Any:
    from verifier.schedules.domain import Domain

    return Domain({i: (0, 99_999), j: (0, 99_999)}, facts)


def test_limits_end_a_check() -> None:
    example = RIGHT[0]
    spent = check_schedule(example.before, example.after, CheckLimits(steps=3))
    assert spent.status == "UNKNOWN"
    assert "budget" in str(spent.findings[0]) or "limits" in spent.cause
    start = time.monotonic()
    verdict = check_schedule(_clamped(7, "max"), _clamped(7, "min"), CheckLimits(seconds=0.0))
    assert verdict.status == "UNKNOWN"
    assert time.monotonic() - start < 5


def test_entries_that_the_program_computes_are_no_witness() -> None:
    i = Symbol("i", 0, 4)
    at = of_atom(i)
    buffers = (
        Buffer("t", (5,), "float32", "input"), Buffer("out0", (5,), "float32", "output"),
        Buffer("ids", (5,), "int32", "scratch"),
    )  # fmt: skip
    filled = Stage("ids", (Loop(i),), (at,), from_index(at, "int32"))
    taken = Stage("out0", (Loop(i),), (at,), load("t", (load("ids", (at,), "int32").as_index(),), "float32"))
    program = LoopProgram("indirect", buffers, (filled, taken))
    assert check_schedule(program, program, QUICK).status == "UNKNOWN"  # it is in bounds, which nothing here shows


def test_verdicts_are_kept_under_what_they_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(memory=True) as store:
        e = RIGHT[1]
        fresh = ScheduleLedger(store).check(e.before, e.after, QUICK)
        kept = ScheduleLedger(store).check(e.before, e.after, QUICK)
        assert (fresh.cached, kept.cached) == (False, True)
        assert kept.status == "PROVED"
        assert kept.count() == fresh.count()
        known = ScheduleLedger(store).structure(e.before, e.after)
        assert known is not None
        assert known["proved"] == 1
        monkeypatch.setattr("verifier.schedules.ledger.checker", lambda: "another version")
        assert not ScheduleLedger(store).check(e.before, e.after, QUICK).cached
        wrong = WRONG[0]
        ledger = ScheduleLedger(store)
        refuted = [ledger.check(wrong.before, wrong.after, QUICK).status for _ in range(2)]
        assert refuted == ["REFUTED", "REFUTED"]


def test_verdicts_of_sources_that_changed_meanwhile_are_not_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.ir._BEGAN_S", 0.0)  # every file is newer
    with Store(memory=True) as store:
        ledger = ScheduleLedger(store)
        assert [ledger.check(RIGHT[1].before, RIGHT[1].after, QUICK).cached for _ in range(2)] == [False, True]
        assert not ScheduleLedger(store).check(RIGHT[1].before, RIGHT[1].after, QUICK).cached


def test_proofs_depend_on_all_that_decides_them() -> None:
    code = (
        "import sys, verifier.schedules.check, verifier.schedules.prover\n"
        "from verifier.schedules.ledger import _sources\n"
        "known = {str(file) for file in _sources()}\n"
        "parts = ('verifier.equal', 'verifier.schedules', 'verifier.statements')\n"
        "parts += ('superopt.ir', 'superopt.kernels.loops')\n"
        "asked = [m for m in sys.modules if m.startswith(parts)]\n"
        "assert 'verifier.equal.normal' in asked\n"
        "print([m for m in asked if sys.modules[m].__file__ not in known])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_question_gets_time_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    class Asked:
        turn = contextlib.nullcontext()

        def call(self, *_: Any, seconds: float) -> Any:
            given.append(seconds)
            return {"goals": []}

    monkeypatch.setattr("verifier.schedules.remote.shared", Asked)
    asking = remote_module._Asking(1e-6, None)  # pyright: ignore[reportPrivateUsage]
    asking.about("settle", {})  # else the process that all proofs share is ended, and starts anew
    assert given == [0.1]


def test_candidates_of_one_structure_are_counted_together() -> None:
    ledger = ScheduleLedger()
    d = dense(48, 32, 64)
    traces = [[["split", "out0", "o0", [f]], ["split", "out0", "o1", [g]]] for f in (4, 8, 16) for g in (4, 8)]
    for trace in traces:
        assert ledger.check(d, apply(d, trace), QUICK).proved
    known = ledger.structure(d, apply(d, traces[0]))
    assert known is not None
    assert known["proved"] == len(traces)


def test_the_checker_loads_neither_jax_nor_llvm() -> None:
    code = (
        "import sys, verifier.schedules\n"
        "from superopt.lab.corpora.schedules.examples import dense\n"
        "from superopt.kernels.schedule.trace import apply\n"
        "d = dense(37, 50, 70)\n"
        "v = verifier.schedules.check_schedule(d, apply(d, [['split', 'out0', 'o0', [8]]]))\n"
        "assert v.proved\n"
        "print([m for m in ('jax', 'llvmlite', 'z3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_part_of_the_verifier_suite_checks_schedules() -> None:
    rows = rows_of(["tile"])
    assert {r["kind"] for r in rows} == {"schedule", "wrong schedule"}
    assert all(r["ok"] for r in rows)
    assert all(r["status"] == "PROVED" for r in rows if r["kind"] == "schedule")


def test_verdicts_are_plain_data() -> None:
    verdict: ScheduleVerdict = check_schedule(WRONG[0].before, WRONG[0].after, QUICK)
    data = json.loads(json.dumps(verdict.to_json()))
    assert data["status"] == "REFUTED"
    assert data["witness"] == str(verdict.witness)
    assert sum(data["obligations"].values()) == len(verdict.findings)
