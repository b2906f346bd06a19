"""The search: starts, descents, perturb-and-repair and annealing over the selections of an e-graph.

    start   the original, greedy, and the dynamic program with and without cuts (and a selection carried over)
    descend sweeps of single flips, regions and groups from every start
    improve perturb-and-repair from the best, annealing chains from the best different states
    hedge   the best without each of the rules it uses

The result holds a few finalists that differ in their kernels, for measuring; the original is always among them, since
a model has errors and a search finds every one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from costmodel.objective import Objective
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program
from superopt.search.ablation import rules_of, without_rule
from superopt.search.anneal import anneal
from superopt.search.budget import Budget, Meter
from superopt.search.descent import descend, perturb_and_repair
from superopt.search.graphs import is_acyclic, original_selection
from superopt.search.layout import candidates
from superopt.search.lower import Expand, Lowering, Selection
from superopt.search.moves import Groups, Weights
from superopt.search.pricing import UNIT_S, Pricer, kernel_graph
from superopt.search.snapshot import MASK, SHIFT, Forms, Snapshot
from superopt.search.starts import LocalCosts, dynamic, greedy
from superopt.search.state import Problem, State

if TYPE_CHECKING:
    from rewrites.egraph import EGraph

Record = tuple[int, "list[int]", "list[int]", "list[int]"]  # cost, options, layouts, bits
DIVERSE_WITHIN = 1.3  # finalists cost at most this times the best
SLOWER_THAN_ORIGINAL = 1.02  # and at most this times the original
CHAINS = 4
ANNEALING_STEPS = 5_000  # proposals per class after which annealing ends whatever time is left


@dataclass(frozen=True, slots=True)
class Finalist:
    """One program worth measuring.

    Attributes:
        name: where it came from.
        predicted_s: the objective's time.
        selection: options, layouts and materialised classes.
        kernels: (kernel graph, predicted seconds) in execution order, equal kernels repeated.
        rules: rule name -> number of instances whose e-nodes it uses.
        carried: (class reference in its layout, e-node) of every class in use, to warm-start a later search.
        classes: the e-graph classes in use (`near` rules grow there).
        prepared_bytes: size of what it prepares.
    """

    name: str
    predicted_s: float
    selection: Selection
    kernels: tuple[tuple[Graph, float], ...]
    rules: Counter[str]
    carried: tuple[tuple[int, tuple[int, ...]], ...]
    classes: frozenset[int]
    prepared_bytes: int
    original: bool = False


@dataclass(slots=True)
class Statistics:
    """What a search did."""

    live_classes: int = 0
    options: int = 0
    cyclic_components: int = 0
    rejected_options: int = 0
    proposals: int = 0
    seconds: float = 0.0
    kernels_priced: int = 0
    distinct_kernels: int = 0
    batches: int = 0
    starts: dict[str, float] = field(default_factory=dict[str, float])
    descended: dict[str, float] = field(default_factory=dict[str, float])
    improved: dict[str, float] = field(default_factory=dict[str, float])
    phases_s: dict[str, float] = field(default_factory=dict[str, float])


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

    def program(self, finalist: Finalist, graph: Graph, expand: Expand | None = None) -> Program:
        """The finalist as a program over the inputs of `graph`."""
        return self.lowering.lower(finalist.selection, graph, expand)


def search(
    eg: EGraph,
    objective: Objective,
    budget: Budget,
    seed: int = 0,
    *,
    finalists: int = 6,
    warm: Finalist | None = None,
    pricer: Pricer | None = None,
    forms: Forms | None = None,
    max_leaf_bytes: int | None = None,
    max_prepared_bytes: int | None = None,
    fusion_moves: bool = False,
    watch: Callable[[str, float, float], None] | None = None,
) -> SearchResult:
    """Look for cheap selections of an e-graph.

    Args:
        warm: a finalist of an earlier search on the same e-graph (which may have grown since).
        pricer, forms: memos to share with other searches under the same objective.
        max_leaf_bytes: rewritten options that need a larger frozen tensor are dropped.
        max_prepared_bytes: finalists that prepare more are dropped (the original never is).
        fusion_moves: let annealing flip fusion overrides too.
        watch: called with (phase, fraction of the budget spent, best predicted seconds).
    """
    run = _Run(eg, objective, budget, seed, pricer, forms, max_leaf_bytes, watch)
    interrupted = False
    try:
        run.start(warm)
        run.descend()
        run.improve(fusion_moves)
        run.hedge()
    except KeyboardInterrupt:
        interrupted = True
        run.salvage()
    chosen = run.choose(finalists, max_prepared_bytes)
    return SearchResult(tuple(chosen), run.statistics(), interrupted, run.lowering, run.problem)


class _Run:
    """The phases of one search; `records` holds the named states worth keeping."""

    def __init__(
        self,
        eg: EGraph,
        objective: Objective,
        budget: Budget,
        seed: int,
        pricer: Pricer | None,
        forms: Forms | None,
        max_leaf_bytes: int | None,
        watch: Callable[[str, float, float], None] | None,
    ) -> None:
        self.meter = Meter(budget)
        self.rng = random.Random(seed)
        self.seed = seed
        self.watch = watch
        self.snapshot = Snapshot(eg, forms, max_leaf_bytes)
        self.pricer = pricer or Pricer(objective)
        self.problem = Problem(self.snapshot, self.pricer, candidates(self.snapshot))
        self.lowering = Lowering(self.snapshot, self.problem.wants)
        self.groups = Groups(self.problem)
        self.records: dict[str, Record] = {}
        self.stats = Statistics()
        self.active_state: State | None = None
        self._original = original_selection(self.snapshot)
        self._keep("original", State(self.problem, self._original))

    def _keep(self, name: str, state: State) -> None:
        record = (state.cost, list(state.selection), list(state.layouts), list(state.bits))
        known = self.records.get(name)
        if known is None or record[0] < known[0]:
            self.records[name] = record

    def _state(self, name: str) -> State:
        _, selection, layouts, bits = self.records[name]
        self.active_state = State(self.problem, selection, layouts, bits)
        return self.active_state

    def _best(self) -> str:
        return min(self.records, key=lambda name: self.records[name][0])

    def _phase(self, name: str, began_s: float) -> None:
        self.stats.phases_s[name] = self.meter.elapsed_s - began_s
        if self.watch is not None:
            self.watch(name, self.meter.spent(), self.records[self._best()][0] * UNIT_S)

    def start(self, warm: Finalist | None) -> None:
        """The original, a carried-over selection, greedy, and the dynamic programs."""
        began = self.meter.elapsed_s
        if warm is not None:
            self._keep("warm", self._carry(warm))
        local = LocalCosts(self.problem)
        local.price_everything()
        base = greedy(local)
        self._keep("greedy", State(self.problem, base))
        for name, cut in (("dynamic", False), ("dynamic-cut", True)):
            selection, layouts = dynamic(local, base, cut=cut)
            self._keep(name, State(self.problem, selection, layouts))
        self.stats.starts = {name: record[0] * UNIT_S for name, record in self.records.items()}
        self._phase("start", began)

    def _carry(self, warm: Finalist) -> State:
        """The state of an earlier finalist, by identity of its e-nodes."""
        eg, snapshot = self.snapshot.eg, self.snapshot
        number = {cls: c for c, cls in enumerate(snapshot.class_ids)}
        selection, layouts = list(self._original), list(self.problem.home)
        for ref, enode in warm.carried:
            ref = eg.find(ref)
            c = number.get(ref >> SHIFT)
            if c is None:
                continue
            fresh = eg.canonical(enode)[0]
            for i, option in enumerate(snapshot.options[c]):
                if option.enode == fresh:
                    selection[c] = i
                    if ref & MASK in self.problem.candidates[c]:
                        layouts[c] = ref & MASK
                    break
        return State(self.problem, selection if is_acyclic(snapshot, selection) else self._original, layouts)

    def descend(self) -> None:
        """Sweeps from every start; the original and the cheapest first."""
        began = self.meter.elapsed_s
        order = sorted(self.records, key=lambda name: (name != "original", self.records[name][0]))
        seen: set[object] = set()
        for name in order:
            state = self._state(name)
            key = state.key()
            if key in seen:
                continue
            seen.add(key)
            descend(state, self.groups, self.rng, self.meter.share(0.5 if name == order[0] else 0.2))
            self._keep(f"{name}+descent", state)
            self.stats.descended[name] = state.seconds
            if self.meter.spent() >= 0.7:
                break
        self._phase("descend", began)

    def improve(self, fusion_moves: bool) -> None:
        """Perturb-and-repair from the best, then annealing from the best few, then repair again."""
        began = self.meter.elapsed_s
        left = 1.0 - self.meter.spent()
        if left <= 0 or not self.snapshot.size:  # all of the program may be known ahead of time
            return
        state = self._state(self._best())
        perturb_and_repair(state, self.groups, self.rng, self.meter.share(0.5 * left))
        self._keep("repair", state)
        self.stats.improved["repair"] = state.seconds
        self._phase("repair", began)
        began = self.meter.elapsed_s
        names = sorted(self.records, key=lambda name: self.records[name][0])
        names = list({self.records[n][0]: n for n in reversed(names)}.values())[::-1][:CHAINS]
        weights = Weights(fusion=0.05) if fusion_moves else Weights()
        states = [self._state(name) for name in names]
        chains = anneal(
            states,
            self.groups,
            self.seed,
            self.meter.share(0.35 * left, ANNEALING_STEPS * self.snapshot.size),
            weights=weights,
        )
        self.active_state = None
        for name, chain in zip(names, chains, strict=True):
            cost, selection, layouts, bits = chain.best
            self.records[f"{name}+annealing"] = (cost, selection, layouts, bits)
            self.stats.improved[f"{name}+annealing"] = cost * UNIT_S
        self._phase("anneal", began)
        began = self.meter.elapsed_s
        state = self._state(self._best())
        perturb_and_repair(state, self.groups, self.rng, self.meter)
        self._keep("last", state)
        self.stats.improved["last"] = state.seconds
        self._phase("repair again", began)

    def hedge(self) -> None:
        """The best without each of its rules."""
        state = self._state(self._best())
        for rule in rules_of(state):
            self._keep(f"without {rule}", without_rule(state, rule))

    def salvage(self) -> None:
        """Keep what an interrupted state had reached (its lists are whole even when its costs are not)."""
        state = self.active_state
        if state is not None and is_acyclic(self.snapshot, state.selection):
            self._keep("interrupted", State(self.problem, state.selection, state.layouts, state.bits))

    # ---- results

    def choose(self, count: int, max_prepared_bytes: int | None) -> list[Finalist]:
        """The best record, then those that differ most from what is chosen, the original last."""
        original = self._finalist("original")
        pool: list[Finalist] = []
        best: float | None = None
        worst = SLOWER_THAN_ORIGINAL * original.predicted_s
        for name in sorted(self.records, key=lambda name: self.records[name][0]):
            cost = self.records[name][0] * UNIT_S
            if name == "original" or cost > worst or (best is not None and cost > DIVERSE_WITHIN * best):
                continue
            finalist = self._finalist(name)
            if max_prepared_bytes is not None and finalist.prepared_bytes > max_prepared_bytes:
                continue
            best = cost if best is None else best
            pool.append(finalist)
        chosen: list[Finalist] = []
        taken = [original]
        while pool and len(chosen) < count - 1:
            pick = pool[0] if not chosen else max(pool, key=lambda f: min(_distance(f, t) for t in taken))
            pool.remove(pick)
            if min(_distance(pick, t) for t in taken) > 0:
                chosen.append(pick)
                taken.append(pick)
        return [*sorted(chosen, key=lambda f: f.predicted_s), original]

    def _finalist(self, name: str) -> Finalist:
        _, options, layouts, bits = self.records[name]
        state = State(self.problem, options, layouts, bits)
        snapshot = self.snapshot
        selection = Selection(tuple(options), tuple(layouts), tuple(bits), tuple(state.materialised))
        place = {c: i for i, c in enumerate(self.lowering.order(selection))}
        kernels = sorted(state.kernels(), key=lambda item: place[item[0]])
        active = state.active()
        origins = {state.chosen(c).origin for c in active} - {None}
        return Finalist(
            name,
            state.seconds,
            selection,
            tuple((kernel_graph(node), state.kernel_cost[c] * UNIT_S) for c, node in kernels),
            Counter(origin.rule for origin in sorted(origins, key=lambda o: (o.rule, o.step))),
            tuple((snapshot.class_ids[c] << SHIFT | layouts[c], state.chosen(c).enode) for c in active),
            frozenset(snapshot.class_ids[c] for c in active),
            self.lowering.prepared_bytes(selection),
            original=name == "original",
        )

    def statistics(self) -> Statistics:
        """Figures of the run."""
        stats = self.stats
        stats.live_classes, stats.options = self.snapshot.size, self.snapshot.option_count
        stats.cyclic_components, stats.rejected_options = self.snapshot.cyclic_components, self.snapshot.rejected
        stats.proposals, stats.seconds = self.meter.steps, self.meter.elapsed_s
        stats.distinct_kernels, stats.batches = len(self.pricer.by_node), self.pricer.batches
        stats.kernels_priced = len(self.problem.memo.prices)
        return stats


def _distance(a: Finalist, b: Finalist) -> float:
    """Seconds of kernels that one program has and the other has not, by kernel structure."""
    table: Counter[Node] = Counter()
    price: dict[Node, float] = {}
    for sign, finalist in ((1, a), (-1, b)):
        for graph, seconds in finalist.kernels:
            table[graph.outputs[0]] += sign
            price[graph.outputs[0]] = seconds
    return sum(abs(n) * price[node] for node, n in table.items())


__all__ = ["Finalist", "SearchResult", "Statistics", "search"]
