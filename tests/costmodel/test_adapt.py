"""The shipped model on another machine: calibrated in the time that there is, kept in a store, and said where from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.labels.microsuite import suite
from costmodel.model import adapt, learned_file
from costmodel.model.adapt import LEAST_KERNELS, SCALES, on_another_machine
from costmodel.model.learned import Learned
from costmodel.model.model import Model
from superopt.ir.graph import Graph
from superopt.measure import KernelTiming
from superopt.store import Store
from superopt.workshop.job import Failure

MODEL, CARD = learned_file.read()
ELSEWHERE = {**CARD, "machine": {"cpu": "Other 9000"}}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Timings succeed for as many kernels as the number says; a calibration is the model at half its scale."""
    most = [10**6]

    def time_kernels(graphs: Sequence[Graph], **_: Any) -> list[Any]:
        done = [KernelTiming(1e-5, (1e-5,), 0.0)] * min(most[0], len(graphs))
        return [*done, *[Failure("timeout", "too late")] * (len(graphs) - len(done))]

    def adapted(model: Model, cases: Sequence[Any], measured_s: np.ndarray) -> Model:
        assert len(cases) == len(measured_s) == min(most[0], len(suite()))
        return replace(model, scale=0.5)

    monkeypatch.setattr(adapt, "time_kernels", time_kernels)
    monkeypatch.setattr(adapt, "adapt", adapted)
    return most


def source(store: Store | None, seconds: float = 30.0, said: list[str] | None = None) -> str:
    found = on_another_machine(MODEL, ELSEWHERE, store, seconds, ([] if said is None else said).append)
    assert isinstance(found, Learned)
    assert (found.model.scale == 0.5) == ("calibrated on this one" in found.source and "not cal" not in found.source)
    assert "Other 9000" in found.source
    return found.source


def test_a_calibration_is_made_once_for_a_store(timed: list[int], tmp_path: Path) -> None:
    said: list[str] = []
    with Store(tmp_path / "s.sqlite") as store:
        assert source(store, said=said).endswith(f"with {len(suite())} kernels")
        assert len(said) == 1
        assert source(store, said=said).endswith("calibrated on this one")
        assert len(said) == 1, "the second answer is that of the store"
        other = {**ELSEWHERE, "sha256": "of other weights"}
        assert "with" in on_another_machine(MODEL, other, store, 30.0, said.append).source
        assert len(said) == 2, "a calibration of other weights is none of these"


@pytest.mark.parametrize("store", [None, "memory"])
def test_a_calibration_without_a_store_on_disk_is_for_one_run(timed: list[int], store: str | None) -> None:
    if store is None:
        assert source(None).endswith("for this run only")
    else:
        with Store(memory=True) as opened:
            assert source(opened).endswith("for this run only")


def test_without_time_or_with_few_kernels_nothing_is_calibrated(timed: list[int]) -> None:
    assert source(None, 0.0).endswith("not calibrated on this one")
    timed[0] = LEAST_KERNELS - 1
    assert "calibration gave up: 59 kernels timed" in source(None)
    timed[0] = LEAST_KERNELS
    assert "with 60 kernels" in source(None)


def test_a_stored_calibration_that_cannot_be_used_is_said_to_be_refused(timed: list[int], tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        source(store)
        ((key, kept),) = store.items("calibration")
        store.put("calibration", key, {**kept, "scale": 7})
        assert "stored calibration refused: " in source(store, 0.0)
        assert "stored calibration refused: " in source(store)
        assert source(store, 0.0).endswith("calibrated on this one"), "and is made anew"


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.25])
def test_a_calibration_finds_how_much_the_network_is_worth(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a machine on which the roofline holds, and the network's corrections by a part."""
    monkeypatch.setattr(adapt.analytical, "fit", lambda *_, start, **__: start)
    cases = [case for case in suite() if case.kind in ("dot", "loop")][::3]
    assert scale in SCALES
    found = replace(MODEL, scale=scale)
    labels = Learned(found, "made up").price([case.graph for case in cases])
    assert adapt.adapt(MODEL, cases, labels).scale == scale
