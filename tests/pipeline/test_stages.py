"""The stages as data: each reads only what those before it have set."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from superopt.backends.mixed import whole_kernel
from superopt.candidates.candidate import Candidate
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import original_program
from superopt.kernels.choose.specs import NATIVE
from superopt.machine.deadline import Deadline
from superopt.machine.fallback import Fallback, StageWarning
from superopt.pipeline import forming
from superopt.pipeline.stages import CHECK, MEASURED, PREDICTED, UNSEARCHED
from superopt.pipeline.state import RunStage, RunState

FIELDS = {field.name for field in fields(RunState)}


@pytest.mark.parametrize("stages", [UNSEARCHED, PREDICTED, MEASURED], ids=["unsearched", "predicted", "measured"])
def test_what_a_stage_needs_is_given_by_a_stage_before_it(stages: tuple[RunStage, ...]) -> None:
    given = set[str]()
    for stage in stages:
        assert {*stage.needs, *stage.gives} <= FIELDS, stage.lost
        assert set(stage.needs) <= given, f"{stage.lost} needs {set(stage.needs) - given}"
        given |= set(stage.gives)
    assert "otherwise" in given
    assert set(CHECK.gives) == {"choice"}


def test_no_module_of_a_stage_is_longer_than_a_screen_and_a_half() -> None:
    files = {inspect.getsourcefile(stage.run) or "" for stage in (*UNSEARCHED, *PREDICTED, *MEASURED, CHECK)}
    lengths = {Path(file).name: Path(file).read_text(encoding="utf-8").count("\n") for file in files}
    assert {name: count for name, count in lengths.items() if count > 120} == {}


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_forms_that_were_made_before_a_failure_are_in_the_contest(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    x = make_input("x", (3,))
    program = original_program(Graph((x,), (mk("neg", x),)))
    plain, *forms = (Candidate(name=name, program=program, predicted_s=1.0) for name in ("plain", "a", "b", "c"))
    kernels = (whole_kernel(program, program.hot, (), NATIVE),)

    def made(form: Candidate, limits: Deadline) -> Candidate:
        if form.name == "b":
            raise error
        return replace(form, kernels=kernels)

    monkeypatch.setattr(forming, "apart_s", lambda *_: None)
    monkeypatch.setattr(forming, "forms_of", lambda _: forms)
    monkeypatch.setattr(forming, "priced", lambda _, forms: forms)
    monkeypatch.setattr(forming, "that_differ", lambda _, forms, made: forms)
    maker = SimpleNamespace(
        make=made, predicted=lambda form: form, seconds_for=lambda form: math.inf, has_made=lambda form: True
    )
    session: Any = SimpleNamespace(fallback=Fallback(), kernel_maker=maker)
    found: Any = SimpleNamespace(model=None, timer=None, result=SimpleNamespace(original=None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StageWarning)
        begun = RunState(found=found, made=(plain,), hurried=True, limits=Deadline.within(60.0))
        after = forming.make_forms(session, begun)
    assert [form.name for form in after.made] == ["plain", "a"]
    assert list(session.fallback.lost) == ["further programs of the search in kernels"]
