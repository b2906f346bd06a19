"""Kernels that are made while this process searches: as many at once as leave it a core here."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.ir.build import kernel, tensor
from superopt.ir.graph import mk
from superopt.make import trials
from superopt.make.trials import TrialPool

REGION = kernel(mk("exp", tensor("x", 4)))


@pytest.mark.parametrize(("here", "cores", "most"), [(True, 4, [3]), (True, 1, []), (False, 1, [2]), (False, 4, [2])])
def test_a_core_of_this_machine_is_left_to_the_search(
    here: bool, cores: int, most: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def done(_: TrialPool, wanted: Any, *, halted: Any, most: int) -> dict[int, Any]:
        assert [kind for kind, *_ in wanted] == ["make", "validate"]
        asked.append(most)
        return {}

    monkeypatch.setattr(trials, "usable_cores", lambda: cores)
    monkeypatch.setattr(TrialPool, "is_here", here)
    monkeypatch.setattr(TrialPool, "_done", done)
    with TrialPool(processes=2) as pool:
        with pool.meanwhile([REGION], [(REGION, None)]) as made:
            pass
        assert made == {}
        assert asked == most
        with pool.meanwhile([]):
            pass
        assert asked == most, "nothing is asked for"
