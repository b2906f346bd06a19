"""Schedules searched for the regions of a program that take longest, in what is left of the stage's time.

Each region gets time in proportion to what it takes in the program, the largest first.  A schedule that the search
finds faster than the default one is proved and tried against XLA like any other, in rounds with the default one; where
it fails there, or is no faster, the default one stays.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from superopt.backends.protocol import Backend
from superopt.choose.trials import Trial, TrialPool
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.kernels.choose.regions import Region
from superopt.kernels.schedule.trace import trace as frozen_trace
from superopt.machine.facts import usable_cores
from superopt.measure import Worker
from superopt.measure.process import WorkerDiedError
from superopt.schedules.tune import ScheduleSearch, builders, tune
from superopt.store import Store
from verifier.schedules.ledger import ScheduleLedger

LEAST_S = 2.0  # of time left, to search at all
_LEAST_EACH_S, _MOST_EACH_S = 1.0, 12.0
_BETTER = 0.97  # the searched schedule's time over the default's, in the final rounds of the search
_LEAST_SHARE = 0.02  # of the time of all regions
_BUILDERS = 4


def search_schedules(
    regions: Sequence[Region],
    tried: dict[Graph, Trial],
    pool: TrialPool,
    *,
    budget_s: float,
    seed: int = 0,
    most: int = 1_000_000,
    store: Store | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[Graph, Trial]:
    """The trials with searched schedules where these are faster.

    Args:
        most: stop the search for a region after so many timed candidates.
    """
    found = dict(tried)
    count = Counter(r.graph for r in regions)
    example = {r.graph: r for r in regions}
    cost = {g: n * (tried[g].own_s or 0.0) for g, n in count.items() if g in tried and not tried[g].failure}
    total = sum(cost.values())
    order = [g for g in sorted(cost, key=lambda g: -cost[g]) if cost[g] > _LEAST_SHARE * total]
    deadline = time.monotonic() + budget_s
    if not order:
        return found
    with ExitStack() as stack:
        processes = [stack.enter_context(worker) for worker in builders(min(_BUILDERS, usable_cores()))]
        with ThreadPoolExecutor(len(processes)) as executor:
            list(executor.map(Worker.ready, processes))
        for place, graph in enumerate(order):
            left_s = deadline - time.monotonic()
            if left_s < _LEAST_EACH_S:
                break
            share = cost[graph] / sum(cost[g] for g in order[place:])
            each_s = min(left_s, _MOST_EACH_S, max(_LEAST_EACH_S, share * left_s))
            try:
                how = ScheduleSearch(each_s, threads=usable_cores(), seed=seed, most=most)
                tuned = tune(graph, how, processes=processes, store=store)
            except (InputError, WorkerDiedError) as error:
                progress(f"{found[graph].name}: no search of schedules: {error}")
                continue
            default = found[graph] = replace(found[graph], candidates=tuned.candidates)
            progress(
                f"{default.name}: {tuned.candidates} schedules, {1e6 * tuned.seconds:.4g} us;"
                f" the default one {1e6 * tuned.default_seconds:.4g} us"
            )
            if tuned.seconds < _BETTER * tuned.default_seconds:
                found[graph] = _better(example[graph], default, frozen_trace(tuned.trace), pool, store)
    return found


def _better(region: Region, default: Trial, trace: tuple[object, ...], pool: TrialPool, store: Store | None) -> Trial:
    """The trial of a searched schedule where it is proved and faster, else that of the default one."""
    if not pool.backend.prove(region.graph, trace, ScheduleLedger(store)).proved:
        return default
    again, trial = pool.try_all([(region, default.trace), (region, trace)])  # in rounds with each other
    if not 0.0 < (trial.own_s or 0.0) < (again.own_s or 0.0) or trial.failure:
        return default
    return replace(trial, candidates=default.candidates, searched=True)


def proved(
    backend: Backend, tried: Mapping[Graph, Trial], store: Store | None, say: Callable[[str], None]
) -> dict[Graph, Trial]:
    """The trials; those of kernels whose schedules are not proved as failed."""
    ledger, found = ScheduleLedger(store), dict(tried)
    for graph, trial in tried.items():
        if not trial.failure:
            verdict = backend.prove(graph, trial.trace, ledger)
            if not verdict.proved:
                say(f"{trial.name}: its schedule is {verdict.status}")
                cause = f"its schedule is {verdict.status}: {verdict.cause}"
                found[graph] = replace(trial, failure=cause[:200])
    return found
