"""The plain form of a program: which regions it is cut into, and which of them become kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.counters import Cost
from superopt.kernels.choose.partition import is_covered
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import Trial, TrialPool


def embedded(table: Any, rows: Any, n: Any) -> Any:
    return jnp.tanh(table[rows]) * n, n + 1


def test_kernels_of_scalars_are_chosen_where_all_others_could_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.ones((9, 8), np.float32)
    graph = import_function(embedded, (table, np.array([3, -1]), np.float32(2))).graph
    form = in_regions("own form", own_form(graph))
    assert is_covered(form.program.hot, form.regions)
    assert sorted(region.is_free for region in form.regions) == [False, True]
    with TrialPool(1) as pool:
        for failure, chosen in (("", 2), ("it crashed", 0)):
            maker = KernelMaker(pool)
            for region in form.regions:
                trial = Trial(str(region), region.kind, Cost(), ())
                maker._made[region.graph] = trial if region.is_free else replace(trial, failure=failure)
            monkeypatch.setattr(maker, "_compile", lambda *_: None)
            assert len(maker.make(form).kernels) == chosen
