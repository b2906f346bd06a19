"""Contests on record: a change that is not meant to change choices decides them as they were decided."""

from __future__ import annotations

import json

import pytest

from tests.support.golden import CONTESTS, COUNT, decision, made_up

_SAMPLE = 40


@pytest.mark.parametrize("seeds", [range(_SAMPLE), pytest.param(range(COUNT), marks=pytest.mark.slow)], ids=str)
def test_contests_of_made_up_programs_are_decided_as_recorded(seeds: range) -> None:
    known = json.loads(CONTESTS.read_text(encoding="utf-8"))
    for seed in seeds:
        found = json.loads(json.dumps(decision(made_up(seed))))
        assert found == known[seed], f"contest {seed}"
