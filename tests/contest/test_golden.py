"""Contests on record: a change that is not meant to change choices decides them as they were decided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from superopt.contest.decide import decide
from tests.support.golden import CONTESTS, COUNT, TIMED, decision, ledger_of, made_up
from tests.support.sampling import one_in, sampled

_SAMPLE = 40


@pytest.mark.parametrize("seeds", [range(0, _SAMPLE, 3), pytest.param(range(COUNT), marks=pytest.mark.slow)], ids=str)
def test_contests_of_made_up_programs_are_decided_as_recorded(seeds: range) -> None:
    known = json.loads(CONTESTS.read_text(encoding="utf-8"))
    for seed in seeds:
        found = json.loads(json.dumps(decision(made_up(seed))))
        assert found == known[seed], f"contest {seed}"


@pytest.mark.parametrize("record", json.loads(TIMED.read_text(encoding="utf-8")), ids=lambda record: record["case"])
def test_recorded_contests_of_real_programs_are_replayed_to_the_same_choice(record: Mapping[str, Any]) -> None:
    ledger, entries = ledger_of(record)
    assert [entry.name for entry in decide(ledger).order] == [entries[i].name for i in record["order"]]


@pytest.mark.parametrize("seed", sampled(range(_SAMPLE), one_in(3)))
def test_a_contest_is_replayed_from_its_ledger(seed: int) -> None:
    record = json.loads(json.dumps(made_up(seed)))
    ledger, entries = ledger_of(record)
    assert [entry.name for entry in decide(ledger).order] == [entries[i].name for i in record["order"]]
