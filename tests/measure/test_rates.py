"""Rates of this processor: measured once, kept for all processes, read again, and never those of default schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from superopt.files.seals import sealed
from superopt.kernels.choose.cycles import fork, from_beyond_l2, is_short
from superopt.kernels.llvm import jit
from superopt.kernels.llvm.cpu import host, supported
from superopt.machine.facts import fingerprint, own
from superopt.machine.rates import NOMINAL
from superopt.measure import rates

pytestmark = pytest.mark.skipif(not supported(), reason="no code is written for this processor")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the rates, in a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates.measured.cache_clear()
    yield jit.cache_folder() / f"{fingerprint(own())}.rates"
    rates.measured.cache_clear()


def test_what_is_measured_is_a_processor() -> None:
    """A core makes at most two vector multiply-adds a cycle; what lies farther away comes no faster."""
    found = rates.measured()
    assert 5e8 < found.hertz < 8e9
    assert 0.4 < found.fma_s * found.hertz < 4.0
    assert found.from_l2 > found.from_memory > 0.05
    assert (found.ticks, found.wake_s) == (NOMINAL.ticks, NOMINAL.wake_s)


def test_rates_are_measured_once(path: Path) -> None:
    first = rates.measured()
    assert path.exists()
    rates.measured.cache_clear()  # as in another process
    assert rates.measured() == first
    assert rates.this_cpu().rates == first


@pytest.mark.parametrize("hertz", [0.0, -1.0, float("inf"), float("nan"), "fast"])
def test_a_file_that_states_no_speed_is_not_believed(path: Path, hertz: object) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(sealed(path, json.dumps({**asdict(NOMINAL), "hertz": hertz}).encode()))
    found = rates.measured()
    assert 5e8 < found.hertz < 8e9


def test_a_file_of_another_folder_is_not_believed(path: Path) -> None:
    path.parent.mkdir(parents=True)
    content = json.dumps({**asdict(NOMINAL), "hertz": 1.0}).encode()
    path.write_bytes(sealed(path.parent.parent / path.name, content))
    assert rates.measured().hertz > 5e8


def test_default_schedules_are_those_of_the_nominal_processor() -> None:
    """They are computed in several processes, and those that a program was saved with are found again."""
    rates.measured()
    assert host().rates == NOMINAL


def test_estimates_of_default_schedules_read_the_rates_of_their_processor() -> None:
    cpu = replace(host(), l2=1 << 20, l3=1 << 24)
    slow = replace(cpu, rates=replace(NOMINAL, hertz=1e9, from_l3=12.0, from_memory=1.0))
    assert from_beyond_l2(1 << 20, cpu) == 0
    assert from_beyond_l2(1 << 22, slow) == 2 * from_beyond_l2(1 << 22, cpu)
    assert from_beyond_l2(1 << 25, slow) == 6 * from_beyond_l2(1 << 25, cpu)
    assert fork(slow, 2) == 1e3 < fork(cpu, 2)
    assert fork(slow, 1) == 0
    assert not is_short(5e3, slow)
    assert is_short(5e3, cpu)
