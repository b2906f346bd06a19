"""The fuzzer of whole programs: its programs are reproducible, what fails is seen, survived and made small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.lab.commands import fuzz
from superopt.lab.fuzz import drive, jax_programs, judging, onnx_programs
from superopt.lab.fuzz.case import FuzzCase, FuzzValue, from_dict, smaller, used
from superopt.lab.fuzz.corpus import corpus
from superopt.lab.fuzz.kernels import FuzzCounts, FuzzFailure


@pytest.mark.parametrize("seed", range(4))
def test_a_program_is_its_number(seed: int) -> None:
    for programs in (jax_programs, onnx_programs):
        made = programs.program(seed)
        assert made == programs.program(seed)
        assert from_dict(made.as_dict()) == made
        assert used(made) == made or programs is onnx_programs
    names: dict[str, Any] = dict(jax_programs.SCOPE)
    made = jax_programs.program(seed)
    exec(made.source, names)
    assert len(jax.eval_shape(names["f"], *made.arrays())) == len(made.outputs)


def test_models_have_values() -> None:
    for seed in range(3):
        made = onnx_programs.program(seed)
        _, reference = onnx_programs.original(made)
        for found, name in zip(reference(*made.arrays()), made.outputs, strict=True):
            value = next(x for x in made.lines if x.name == name)
            assert (found.shape, str(found.dtype)) == (value.shape, value.dtype)


def test_the_corpus_has_values() -> None:
    for case in corpus():
        if case.kind == "jax":
            names: dict[str, Any] = dict(jax_programs.SCOPE)
            exec(case.source, names)
            jax.eval_shape(names["f"], *case.arrays())
        else:
            onnx_programs.original(case)[1](*case.arrays())


def test_workers_of_a_process_serve_all_programs_that_it_judges() -> None:
    """One that a call has ended compares nothing for the next one."""
    x = np.ones((40, 40), np.float32)
    with judging.warm():
        for factor in (1.0, 2.0):
            made = superopt.optimize(lambda x, by=factor: jnp.tanh(x @ x) @ (x * by), x, search=False, store=False)
            assert made.report.measured.before_ms, factor


X = FuzzValue("x0", (3,), "float32")
CASE = FuzzCase(
    1,
    (X,),
    (
        FuzzValue("v0", (3,), "float32", "jnp.tanh(x0)"),
        FuzzValue("v1", (3,), "float32", "v0 * 2"),
        FuzzValue("v2", (3,), "float32", "jnp.exp(v1)"),
    ),
    ("v2", "v1"),
    (0,),
    "save",
)


class Told:
    """A judge that finds a program wrong where it holds a text."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0

    def run(self, case: FuzzCase) -> dict[str, Any]:
        self.asked += 1
        return {"status": "wrong" if self.text in case.source else "ok", "cause": "", "seconds": 0.0}


def test_a_failure_is_made_small() -> None:
    told = Told("tanh")
    small, _ = drive.reduced(CASE, told.run(CASE), told.run)
    assert next(x.code for x in small.lines) == "jnp.tanh(x0)"
    assert len(small.lines) <= 2
    assert (small.mode, small.frozen, len(small.outputs)) == ("deterministic", (), 1)
    assert told.asked < drive.TRIALS


def test_smaller_programs_are_programs() -> None:
    for other in smaller(CASE):
        names: dict[str, Any] = dict(jax_programs.SCOPE)
        exec(other.source, names)
        names["f"](*other.arrays())


def test_wrong_results_are_seen() -> None:
    args = CASE.arrays()
    names: dict[str, Any] = dict(jax_programs.SCOPE)
    exec(CASE.source, names)
    right = [np.asarray(x) for x in names["f"](*args)]
    assert judging._difference(CASE, names["f"], args, right, right) == ""
    for wrong in (
        right[0] * np.float32(1.01),
        right[0][:2],
        right[0].astype(np.float16),
        right[0] + np.float32(np.nan),
    ):
        assert judging._difference(CASE, names["f"], args, [wrong, right[1]], right)
    assert judging._difference(CASE, names["f"], args, right[:1], right)
    exact = replace(CASE, mode="exact")
    assert judging._difference(exact, names["f"], args, [np.nextafter(right[0], np.float32(9)), right[1]], right)


def test_a_product_too_small_for_half_precision_has_a_sign_in_float32() -> None:
    """The reference rounds the product of an ONNX model to 0; a kernel that keeps float32 divides it by itself."""
    values = (
        (FuzzValue("x0", (4,), "float16"),),
        (
            FuzzValue("v0", (1,), "float16", "ReduceProd(x0) {}"),
            FuzzValue("v1", (1,), "float16", 'LpNormalization(v0) {"axis": -1}'),
        ),
    )
    case = FuzzCase(0, *values, ("v1",), kind="onnx")
    args, zero, one = [np.full(4, 0.01, np.float16)], np.zeros(1, np.float16), np.ones(1, np.float16)
    assert judging._difference(case, None, args, [one], [zero]) == ""
    assert judging._difference(case, None, args, [20 * one], [zero])
    assert judging._difference(replace(case, mode="exact"), None, args, [one], [zero])


def test_a_process_that_ends_is_a_crash_and_survived(tmp_path: Path) -> None:
    killed = replace(CASE, lines=(FuzzValue("v0", (3,), "float32", "__import__('os')._exit(3)"),), outputs=("v0",))
    without = replace(CASE, lines=(FuzzValue("v0", (3,), "float32", "x0.no_such_name"),), outputs=("v0",))
    found = drive.fuzz(300.0, programs=0, corpus=(killed, without), store=tmp_path / "s.db", reduce=False)
    assert found.counts == {"crash": 1, "invalid": 1}
    assert found.failed
    figures = found.summary()
    assert (figures["programs"], figures["crashes"], figures["hangs"], figures["wrong"]) == (1, 1, 0, 0)
    assert "_exit(3)" in str(found)


def test_no_answer_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = replace(
        CASE, lines=(FuzzValue("v0", (3,), "float32", "__import__('time').sleep(600) or x0"),), outputs=("v0",)
    )
    monkeypatch.setattr(drive, "LIMITS", replace(drive.LIMITS, silence_s=10.0))
    found = drive.fuzz(300.0, programs=0, corpus=(stuck,), store=tmp_path / "s.db", reduce=False)
    assert [(status, cause) for status, cause, _ in found.failures] == [("hang", "timeout: no answer within 10 s")]


def test_a_sample_of_programs(tmp_path: Path) -> None:
    """Four of the programs that `superopt fuzz` runs by the thousand."""
    found = drive.fuzz(300.0, seed=30, programs=4, store=tmp_path / "s.db", reduce=False)
    assert not found.failed, str(found)
    assert found.summary()["programs"] + found.summary()["invalid"] == 4


def test_failing_kernels_are_told_with_what_runs_them_alone() -> None:
    found = drive.Found(counts={"ok": 3})
    failure = FuzzFailure(17, "wrong: 3 of 9 elements differ", "python -m there --describe 17")
    fuzz._count(found, FuzzCounts(5, 0, 1, 0, 0, (failure,)), lambda line: None)
    assert found.failed
    figures = found.summary()
    assert figures["wrong"] == 1
    assert figures["failures"] == [
        {"status": "wrong", "cause": "3 of 9 elements differ", "reproducer": "python -m there --describe 17"}
    ]
    assert "wrong: 3 of 9 elements differ\npython -m there --describe 17" in str(found)


def test_what_the_reference_computes_otherwise_than_the_standard_is_not_drawn() -> None:
    """ONNX's reference sums the squares of `LRN` for as many channels as there are examples."""
    few, many = np.ones((2, 6, 2, 2), np.float32), np.ones((6, 6, 2, 2), np.float32)
    defined = [onnx_programs._is_defined("LRN", [x]) for x in (few, many)]
    assert defined == [False, True]
