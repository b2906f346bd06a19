"""The search: a mixture of strategies over the selections of an e-graph, and the finalists that it proposes.

    Starts     The original, greedy, and the dynamic program with and without cuts (and a selection carried over).
    Descents   Sweeps of single flips, regions and groups run from every start.
    Restarts   The same sweeps from random states.
    Repairing  Perturb-and-repair by many chains in lockstep from the best different states.
    hedge      The best without each of the rules it uses, without any of them, and without fusion overrides.  In a
               small program also states one move away (or every program there is).  Forms that the model thinks up to
               twice as slow are measured.

The result holds a few finalists for measurement that differ in their kernels.  The original is always among them, as
the search will find every error of the model.  So are the original's own operations, cut as the search would.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.model.objective import Objective
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program
from superopt.machine.deadline import Deadline
from superopt.search.chains import Repairing
from superopt.search.descent import Descents, Restarts, recut
from superopt.search.finalists import Finalist, distance, finalist, kernel_costs, rules_of, without_rules
from superopt.search.layout import candidates
from superopt.search.lower import Expand, Lowering
from superopt.search.meter import Meter
from superopt.search.moves import Groups, every_state, neighbours
from superopt.search.pricing import UNIT_S, Pricer
from superopt.search.snapshot import MASK, SHIFT, Forms, Snapshot
from superopt.search.starts import Starts
from superopt.search.state import RULE, Problem, State
from superopt.search.strategy import Ground, Mixture, SearchStrategy

if TYPE_CHECKING:
    from rewrites.egraph.graph import EGraph

DIVERSE_WITHIN = 1.3  # finalists cost at most this times the best
SLOWER_THAN_ORIGINAL = 1.02  # and at most this times the original
SMALL = 40  # classes of a program that is built and timed so quickly that the model need not be trusted as far:
SMALL_WITHIN, SMALL_SLOWER = 2.0, 1.1  # the two bounds there
MOST_STATES, MOST_NEIGHBOURS = 300, 2_000  # of a space that is tried in full; of states one flip from the best
POOL = 32  # records looked at for finalists
MIXTURE: Mixture = ((Starts, 1.0), (Descents, 0.7), (Restarts, 0.5), (Repairing, 1.0))
RECUT_STEPS = 4  # proposals per class for cuts alone: two sweeps, of which the second finds nothing more
HEDGE_SHARE = 0.1  # of the budget, on top of it: for these, and again for finalists without rules, each of which has
# two seconds of kernels to cut and price (DenseNet-121), 0.6 s for ResNet-50
OWN_OPERATIONS = "without rewrites"  # the record of the original's operations, with the cuts and layouts of the best


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
        deadline: end of the search, or its number of steps; its seconds are counted from when the problem is built.
        finalists: number of programs to propose, the original included.
        max_prepared_bytes: finalists that prepare more are dropped (the original never is).
        in_kernels: whether programs are made of our kernels.
        mixture: the strategies.
    """

    deadline: Deadline
    seed: int = 0
    finalists: int = 6
    max_prepared_bytes: int | None = None
    in_kernels: bool = False
    mixture: Mixture = MIXTURE


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of a search; `starts`: name -> predicted seconds."""

    live_classes: int
    options: int
    proposals: int
    seconds: float
    kernels_priced: int
    distinct_kernels: int
    batches: int
    lookups: int
    chains: int
    starts: dict[str, float]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Finalists (cheapest first by prediction, the original last) and statistics."""

    finalists: tuple[Finalist, ...]
    statistics: Statistics
    interrupted: bool
    lowering: Lowering
    problem: Problem

    @property
    def best(self) -> Finalist:
        """The cheapest by prediction."""
        return min(self.finalists, key=lambda f: f.predicted_s)

    @property
    def original(self) -> Finalist:
        """The program as it was imported."""
        return next(f for f in self.finalists if f.original)

    def state(self, finalist: Finalist) -> State:
        """The state of a finalist's selection."""
        return State.at(self.problem, finalist.selection)

    def by_xla(self, finalist: Finalist, objective: Objective) -> State:
        """The state of a finalist's selection where XLA computes everything, under an objective for XLA."""
        problem, chosen = self.problem, finalist.selection
        if not problem.in_kernels:
            return self.state(finalist)
        return State(Problem(problem.snapshot, Pricer(objective), problem.candidates), chosen.options, chosen.layouts)

    def program(self, finalist: Finalist, graph: Graph, expand: Expand | None = None) -> Program:
        """The finalist as a program over the inputs of `graph`."""
        return self.lowering.lower(finalist.selection, graph, expand)


def search(
    eg: EGraph,
    objective: Objective,
    settings: SearchSettings,
    *,
    warm: Finalist | None = None,
    pricer: Pricer | None = None,
    forms: Forms | None = None,
) -> SearchResult:
    """Look for cheap selections of an e-graph.

    Args:
        warm: a finalist of an earlier search on the same e-graph (which may have grown since).
        pricer, forms: memos to share with other searches under the same objective.
    """
    asked = Meter(settings.deadline)
    snapshot = Snapshot(eg, forms)
    problem = Problem(snapshot, pricer or Pricer(objective), candidates(snapshot), in_kernels=settings.in_kernels)
    run = SearchRun(problem, settings, Meter(asked.part(1.0)))
    interrupted = False
    try:
        run.explore(warm)
        run.hedge()
    except KeyboardInterrupt:
        interrupted = True
        run.collect()
    return SearchResult(tuple(run.choose()), run.statistics(), interrupted, run.lowering, run.problem)


class SearchRun:
    """One search; what its strategies and hedges find is recorded on the ground."""

    def __init__(self, problem: Problem, settings: SearchSettings, meter: Meter) -> None:
        self.problem, self.settings, self.meter = problem, settings, meter
        self.snapshot = problem.snapshot
        self.lowering = Lowering(problem.wants)
        self.ground = Ground(problem, Groups(problem), random.Random(settings.seed))
        self.starts: dict[str, float] = {}
        self.most_chains = 0
        self.active: SearchStrategy | None = None
        self._original = self.snapshot.original()
        self._keep("original", State(problem, self._original))

    def _keep(self, name: str, state: State) -> None:
        self.ground.keep(name, state.record())

    def _best(self) -> State:
        records = self.ground.records
        return self.ground.state(min(records, key=lambda name: records[name][0]))

    def explore(self, warm: Finalist | None = None) -> None:
        """Run the strategies of the mixture from the original and a carried-over selection."""
        if warm is not None:
            self._keep("warm", self._carry(warm))
        for make, share in self.settings.mixture if self.snapshot.size else ():  # all may be known ahead of time
            left = 1.0 - self.meter.spent()
            if left <= 0:
                return
            self.active = make(self.ground, self.meter.share(share * left))
            while not self.active.done():
                self.active.step()
            self.collect()
            if not self.starts:
                self.starts = {name: record[0] * UNIT_S for name, record in self.ground.records.items()}

    def collect(self) -> None:
        """Record what the strategy at work has found."""
        if self.active is not None:
            if isinstance(self.active, Repairing):
                self.most_chains = max(self.most_chains, len(self.active.chains))
            for name, record in self.active.records().items():
                self.ground.keep(name, record)
            self.active = None

    def _carry(self, warm: Finalist) -> State:
        """The state of an earlier finalist, by identity of its e-nodes."""
        eg, snapshot = self.snapshot.eg, self.snapshot
        number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
        selection, layouts, bits = list(self._original), list(self.problem.home), [RULE] * snapshot.size
        for ref, enode, bit in warm.carried:
            ref = eg.find(ref)
            c = number.get(ref >> SHIFT)
            if c is None:
                continue
            fresh = eg.canonical(enode)[0]
            for i, option in enumerate(snapshot.options[c]):
                if option.enode == fresh:
                    selection[c], bits[c] = i, bit
                    if ref & MASK in self.problem.candidates[c]:
                        layouts[c] = ref & MASK
                    break
        return State(self.problem, selection if snapshot.is_acyclic(selection) else self._original, layouts, bits)

    def hedge(self) -> None:
        """Record the best without any of its rules, without each while there is time, and without fusion overrides."""
        state = self._best()
        rules = rules_of(state)
        beyond = self._beyond()
        if rules:
            own = without_rules(state, set(rules), beyond.part(1.0))
            recut(own, self._beyond(RECUT_STEPS * self.snapshot.size))
            self._keep(OWN_OPERATIONS, own)
        for rule in rules:
            if not beyond.is_late:
                self._keep(f"without {rule}", without_rules(state, {rule}, beyond.rest))
        if any(state.bits):
            self._keep("without overrides", State(self.problem, state.selection, state.layouts))
        if self.snapshot.size <= SMALL:
            self._keep_neighbours(self._best())

    def _beyond(self, steps: int | None = None) -> Meter:
        """A meter over an extra part of the budget, beyond its end."""
        return Meter(self.meter.part(HEDGE_SHARE, steps))

    def _keep_neighbours(self, state: State) -> None:
        """Record all states of a very small program, else those one move away from this one, overrides excepted."""
        limit, beyond = SMALL_WITHIN * state.cost, self._beyond()
        everything = every_state(state, MOST_STATES, beyond)
        if everything is not None:
            for i, other in enumerate(everything):
                if other.cost <= limit:
                    self._keep(f"state {i}", other)
            return
        for i, move in enumerate(itertools.islice(neighbours(state, self.ground.groups), MOST_NEIGHBOURS)):
            if beyond.is_late:
                return
            undo = None if move.bits else move.apply(state)
            if undo is None:
                continue
            state.settle()
            if state.cost <= limit:
                self._keep(f"beside {i + 1}", state)
            state.undo(undo)

    # ---- results

    def choose(self) -> list[Finalist]:
        """The best record, its own operations, then those that differ most from the ones chosen, the original last."""
        original = self._finalist("original")
        pool = self._pool(original.predicted_s)
        chosen: list[Finalist] = []
        taken = [kernel_costs(State(self.problem, *self.ground.records["original"][1:]))]
        while pool and len(chosen) < self.settings.finalists - 1:
            own = [p for p in pool if p[1] == OWN_OPERATIONS]
            if not chosen:
                name = min(pool)
            else:
                name = own[0] if own else max(pool, key=lambda p: min(distance(pool[p], t) for t in taken))
            kernels = pool.pop(name)
            if min(distance(kernels, t) for t in taken) == 0:
                continue
            picked = self._finalist(name[1])
            most = self.settings.max_prepared_bytes
            if most is None or self.lowering.prepared_bytes(picked.selection) <= most:
                chosen.append(picked)
                taken.append(kernels)
        return [*sorted(chosen, key=lambda f: f.predicted_s), original]

    def _pool(self, original_s: float) -> dict[tuple[int, str], Counter[Node]]:
        """Kernel costs of the records that may be measured: (place, name) -> node -> units."""
        names = sorted(self.ground.records, key=lambda name: self.ground.records[name][0])
        pool: dict[tuple[int, str], Counter[Node]] = {}
        least: int | None = None
        seen: set[int] = set()
        small = self.snapshot.size <= SMALL
        within, slower = (SMALL_WITHIN, SMALL_SLOWER) if small else (DIVERSE_WITHIN, SLOWER_THAN_ORIGINAL)
        for name in names:
            cost, own = self.ground.records[name][0], name == OWN_OPERATIONS  # kept whatever the model says of rewrites
            if name == "original" or (cost in seen and not own) or cost * UNIT_S > slower * original_s:
                continue
            least = cost if least is None else least
            if not own and (cost > within * least or len(pool) >= POOL):
                continue
            seen.add(cost)
            pool[len(pool), name] = kernel_costs(State(self.problem, *self.ground.records[name][1:]))
        return pool

    def _finalist(self, name: str) -> Finalist:
        return finalist(self.problem, self.lowering, name, self.ground.records[name])

    def statistics(self) -> Statistics:
        """The figures of this search."""
        problem = self.problem
        return Statistics(
            live_classes=problem.snapshot.size,
            options=problem.snapshot.option_count,
            proposals=self.meter.steps,
            seconds=self.meter.elapsed_s,
            kernels_priced=len(problem.memo.prices),
            distinct_kernels=len(problem.pricer.by_node),
            batches=problem.pricer.batches,
            lookups=problem.memo.lookups,
            chains=self.most_chains,
            starts=self.starts,
        )


__all__ = ["Finalist", "SearchResult", "SearchSettings", "Statistics", "search"]
