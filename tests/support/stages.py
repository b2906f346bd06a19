"""Stages of a run called by themselves."""

from __future__ import annotations

from typing import Any

from costmodel.model.load import load_objective
from costmodel.model.objective import Objective
from superopt.candidates.candidate import Candidate
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.deadline import Deadline
from superopt.make.plain import KernelMaker, in_regions, own_form
from superopt.make.trials import TrialPool


def steps(count: int, objective: Objective | None = None, seed: int = 0) -> Request:
    """A search of so many steps in which nothing is measured."""
    return Request(Deadline(steps=count), objective or load_objective(None), seed=seed, deterministic=True)


def own_kernels(imported: Imported, pool: TrialPool | None = None, **asked: Any) -> Candidate:
    """The program's own form in kernels, which are made in a process where no pool is given."""
    with TrialPool(processes=1) as processes:
        return KernelMaker(pool or processes, **asked).make(in_regions("own form", own_form(imported.graph)))
