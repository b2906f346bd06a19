"""The stages as data: each reads only what those before it have set."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

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
