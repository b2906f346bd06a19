"""Stages of a run called by themselves."""

from __future__ import annotations

from typing import Any

from costmodel.model.load import load_objective
from costmodel.model.objective import Objective
from superopt.choose.implement import implement
from superopt.choose.trials import TrialPool
from superopt.contest.checks import Builds
from superopt.contest.comparing import Tools
from superopt.contest.judgement import Judgement
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.budget import SearchBudget, parse_budget
from superopt.measure import Worker


def steps(count: int, objective: Objective | None = None, seed: int = 0) -> Request:
    """A search of so many steps in which nothing is measured."""
    return Request(SearchBudget(None, count), objective or load_objective(None), seed, deterministic=True)


def implemented(
    imported: Imported,
    found: Exploration,
    judged: Judgement,
    budget: str | SearchBudget,
    pool: TrialPool | None = None,
    **asked: Any,
) -> Judgement:
    """What becomes of a judgement when kernels are tried, in processes where no pool is given."""
    request = Request(parse_budget(budget) if isinstance(budget, str) else budget, **asked)
    with Worker() as worker, TrialPool() as processes:
        return implement(imported, found, judged, request, Tools(worker, Builds.of(imported)), pool or processes)
