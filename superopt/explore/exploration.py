"""Explores the programs equal to a graph by proved rules, and proposes a few that are worth measuring.

The e-graph is grown to saturation by the rules that cannot explode.  The rest, the rules of mode `near` and `merge`,
are applied only around the best selection found so far, in rounds of growth and warm search.  Sums of products get
rules of their own, proved when they are made (`rewrites.contraction`).  Bodies of control flow are programs of their
own: each is explored first and replaced by its best form.  Before that, what a trip does not need from the trip before
it is taken out of its loop (`superopt.explore.loops`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.model.joint import Joint
from rewrites.build.expander import Expand, library_expander
from rewrites.contraction.instance import contraction_rules
from rewrites.egraph.convert import import_into
from rewrites.egraph.graph import EGraph
from rewrites.grow.growth import GrowthLimits, GrowthReport, grow
from rewrites.grow.proof import ProvingEGraph
from rewrites.language.term import Rule
from superopt.certify.library import ProvedLibrary, prove_instances
from superopt.certify.plan import BodyPlan
from superopt.explore.bodies import body_size, body_sizes, improve_bodies
from superopt.explore.found import Exploration
from superopt.explore.kernel_timer import KernelTimer
from superopt.explore.loops import opened as opened_loops
from superopt.explore.request import Request
from superopt.explore.trace import make_plan
from superopt.ir.graph import Graph
from superopt.ir.loop_steps import LoopStep
from superopt.ir.program import frozen_bytes
from superopt.machine.budget import LEAST_KERNELS_S, WORTH
from superopt.machine.deadline import Deadline, Stopwatch
from superopt.machine.fallback import Fallback
from superopt.search.finalists import Finalist
from superopt.search.pricing import Pricer
from superopt.search.search import SMALL, SearchResult, SearchSettings, Statistics, search
from superopt.search.snapshot import Forms
from superopt.workshop.job import JobWorker

_MATCHES = 15_000  # matches of all growths without a clock, about 1 ms each; DenseNet-121's first has 13,000
_LATER_MATCHES = _MATCHES // 10  # of each growth that finds none left: a net of 4 nodes took 39 s, 145 with all
_LEAST_NODE_S = 1e-3  # seconds per node of a body: import, one pass of the rules and a descent take that long
_BODY_STEPS = 100  # proposals per node of a body: all descents of SqueezeNet take 36 per class, repair the rest
_ROUNDS = 3  # searches, with timings between them: 0.448, 0.390, 0.387 ms after each (inverted residual)
_FINALISTS, _SMALL_FINALISTS = 6, 13  # the model misplaces forms of windows and rows by a third (docs/search.md)


Meanwhile = Callable[[Sequence[Graph]], AbstractContextManager[object]]  # compiles regions while the context is open


def _nothing(_: Sequence[Graph]) -> AbstractContextManager[object]:
    """A context manager that does nothing, where no kernels are made during the search."""
    return nullcontext()


@dataclass(slots=True)
class Begun:
    """A search that has begun by the models alone, while other processes start; `explore` goes on with it."""

    imported: Graph
    graph: Graph
    loops: tuple[LoopStep, ...]
    bodies: _Bodies
    expand: Expand
    run: _Exploring

    @property
    def is_searched(self) -> bool:
        """Whether there is a program of a search; growth alone may have taken the time."""
        return self.run.result is not None

    @property
    def interrupted(self) -> bool:
        """Whether the user has ended the search."""
        return self.bodies.interrupted or self.run.interrupted


def begin(
    imported: Graph,
    rules: Sequence[Rule],
    request: Request,
    progress: Callable[[str], None] = lambda line: None,
) -> Begun:
    """Grow the e-graph and search it once, before anything of this machine is timed.

    It is not searched where less time is left than the growth took: the first price of every kernel takes about as long
    again (Swin-T, quantised: 5 s of growth, 8 s until the search makes a proposal).
    """
    watch = Stopwatch()
    begun = _begun(imported, rules, request, progress)
    if not request.deadline.is_timed or request.deadline.left_s > watch.elapsed_s:
        begun.run.rounds += 1
        begun.run.search()
    return begun


def _begun(imported: Graph, rules: Sequence[Rule], request: Request, progress: Callable[[str], None]) -> Begun:
    graph, loops = _opened(imported, request, products=False)
    bodies = _Bodies(rules, request, body_sizes(graph))
    graph, further = _opened(improve_bodies(graph, bodies.improved), request, products=True)
    loops += further
    if bodies.interrupted:
        request = request.within(request.deadline.at_most(0.0))
    expand = library_expander(rules)
    model = Joint(request.objective, expand, request.own, frozen_bytes(graph), request.earlier)
    eg = import_into(ProvingEGraph(exact=request.exact), graph)
    return Begun(imported, graph, loops, bodies, expand, _Exploring(eg, rules, request, model, progress))


def explore(
    imported: Graph,
    rules: Sequence[Rule],
    request: Request,
    progress: Callable[[str], None] = lambda line: None,
    worker: JobWorker | None = None,
    made: Sequence[Graph] = (),
    meanwhile: Meanwhile | None = None,
    begun: Begun | None = None,
) -> Exploration:
    """Grow the e-graph, then alternate searches with timings of kernels in use and growth near the best selection.

    Kernels are timed in the worker; nothing is where there is none.  Those of `made`, regions of the program's own
    form, are timed first, in half of what a round may take.  Regions of the best form of each round are handed to
    `meanwhile`, for the time of the search of the next.  What has `begun` goes on.
    With numerics `exact` the e-graph's own laws are only those that keep every bit; `rules` are the caller's business.
    """
    notes: list[str] = []
    begun = begun or _begun(imported, rules, request, progress)
    graph, bodies, run = begun.graph, begun.bodies, begun.run
    if bodies.plans:
        notes.append(f"{len(bodies.plans)} bodies of control flow were optimised by the model alone")
    if bodies.left_out:
        notes.append(f"{bodies.left_out} bodies of control flow were left as they are for lack of time")
    if bodies.interrupted:
        request = request.within(request.deadline.at_most(0.0))
    model = run.model
    timer = None if worker is None else KernelTimer(model, worker)
    if timer is not None and made:
        timed = timer.calibrate(made, _timing(request.deadline.share(1.0 / _ROUNDS)))
        progress(f"{timed} of {len(set(made))} kernels of the program's own form timed")
    run.go_on(request, timer, meanwhile or _nothing)
    interrupted = run.interrupted or bodies.interrupted
    if interrupted:
        notes.append("the search was interrupted; this is the best program it had found")
    notes += run.fallback.notes
    stop = run.growth[0].stop
    if stop != "saturated":
        notes.append(f"growth of the e-graph stopped by its limit of {stop}, not by saturation")
    return Exploration(
        imported=imported,
        graph=graph,
        result=run.found,
        expand=begun.expand,
        model=model,
        timer=timer,
        growth=_growth_figures(run.growth),
        statistics=run.statistics(interrupted),
        notes=tuple(notes),
        interrupted=interrupted,
        bodies=tuple(bodies.plans),
        loops=begun.loops,
        rules=(*run.rules, *run.instances.rules),
        instances=run.instances,
    )


def _opened(graph: Graph, request: Request, *, products: bool) -> tuple[Graph, tuple[LoopStep, ...]]:
    """The graph with work taken out of its loops, where results need not agree in every bit."""
    return (graph, ()) if request.exact else opened_loops(graph, request.deadline, products=products)


@dataclass(slots=True)
class _Exploring:
    """Rounds over one growing e-graph, saturated first; a round is a search, timings, and growth near the best."""

    eg: EGraph
    rules: Sequence[Rule]
    request: Request
    model: Joint
    progress: Callable[[str], None]
    timer: KernelTimer | None = None
    meanwhile: Meanwhile = _nothing
    rounds: int = _ROUNDS
    forms: Forms = field(default_factory=Forms)
    growth: list[GrowthReport] = field(default_factory=list[GrowthReport])
    searches: list[Statistics] = field(default_factory=list[Statistics])
    result: SearchResult | None = None
    instances: ProvedLibrary = field(default_factory=lambda: ProvedLibrary((), {}))
    pricer: Pricer = field(init=False)
    imported: int = 0  # e-nodes
    round_deadline: Deadline = field(init=False)  # of the current round
    fallback: Fallback = field(default_factory=Fallback)
    done: bool = False

    def __post_init__(self) -> None:
        self.pricer, self.imported = Pricer(self.model), self.eg.enode_count
        self._saturate()
        self.progress(f"e-graph: {self.growth[0].enodes[-1]} e-nodes, {self.growth[0].stop}")
        self._contract()

    def _saturate(self) -> None:
        saturating = [rule for rule in self.rules if rule.mode in ("saturate", "macro")]
        self.growth.append(self._grown(saturating, self.deadline.share()))

    def _contract(self) -> None:
        """Give sums of products their cheapest orders by rules that are proved now; others wait for the next round."""
        if self.request.rules is not None or self.request.exact or self.deadline.is_over:
            return
        made = [rule for rule in contraction_rules(self.eg) if rule.name not in self.instances.certificates]
        if made:
            proved = prove_instances(made, self.request.numerics, self.deadline.share())
            self.instances = self.instances.with_instances(proved)
            self.growth.append(self._grown(proved.rules, self.deadline.share(), passes=1))
            self._saturate()
            self.progress(f"{len(proved.rules)} of {len(made)} orders of sums of products proved")

    @property
    def deadline(self) -> Deadline:
        """The deadline of all rounds together."""
        return self.request.deadline

    @property
    def found(self) -> SearchResult:
        """The result of the last round."""
        assert self.result is not None
        return self.result

    def go_on(self, request: Request, timer: KernelTimer | None, meanwhile: Meanwhile) -> None:
        """All rounds that are left, within what is asked now, with what was timed meanwhile."""
        self.request, self.timer, self.meanwhile = request, timer, meanwhile
        if self.result is not None:
            self.pricer = Pricer(self.model)
            self.done = self._ended()
        while not self.done:
            self.step()

    def step(self) -> None:
        """One round: search, and where another follows, time kernels and grow near the best.

        Where it is interrupted or fails, the result of the round before stands.
        """
        number = len(self.searches) + 1
        if self.result is None:
            self.search()
        else:
            self.fallback.around(f"round {number} of the search", self.search, None)
        if not self._ended():
            self.fallback.around(f"what follows round {number} of the search", self._prepare, None)
        self.done = self._ended()

    def _ended(self) -> bool:
        """Whether the search ends here."""
        over = len(self.searches) == self.rounds or self.deadline.is_over
        return self.interrupted or bool(self.fallback.lost) or over

    @property
    def interrupted(self) -> bool:
        """Whether the user has interrupted a stage or a search."""
        return self.fallback.interrupted or (self.result is not None and self.result.interrupted)

    def search(self) -> None:
        """One search of the e-graph as it is, from the best that is known."""
        number = len(self.searches)
        last = number == self.rounds - 1
        deadline = self.round_deadline = self.deadline.share(1.0 / (self.rounds - number))
        settings = SearchSettings(
            _searching(deadline if last else deadline.share()),
            self.request.seed + number,
            finalists=_SMALL_FINALISTS if self.growth[-1].live_classes <= SMALL else _FINALISTS,
            max_prepared_bytes=self.request.max_prepared_bytes,
            in_kernels=self.model.own is not None,
        )
        warm = None if self.result is None else self.result.best
        with self.meanwhile(self._regions(warm)):
            self.result = search(self.eg, self.model, settings, warm=warm, pricer=self.pricer, forms=self.forms)
        self.searches.append(self.result.statistics)

    def _regions(self, best: Finalist | None) -> list[Graph]:
        """Regions of a form that are to be our kernels and were not made yet, the slowest first."""
        model, regions = self.model, dict[Graph, None]()
        if best is not None and model.own is not None:
            for kernel, _ in sorted(best.kernels, key=lambda pair: -pair[1]):
                regions |= dict.fromkeys(model.own.parts(kernel) or ())
        return [region for region in regions if model.is_own(region) and not model.was_made(region)]

    def _prepare(self) -> None:
        """Rebuild the pricer and the round's limits for the next round."""
        best = self.found.best
        if self.timer is not None:
            timed = self.timer.learn(self.found, self._timing())
            self.progress(
                f"round {len(self.searches)}: predicted {1e3 * best.predicted_s:.3g} ms, {timed} kernels timed"
            )
            self.pricer = Pricer(self.model)
        self.growth.append(self._grown(self.rules, self.round_deadline, near=best.classes))
        self._contract()

    def _timing(self) -> Deadline:
        """The deadline of timings after a round: as much as each search and each timing to come, whatever it took."""
        return _timing(self.deadline.share(1.0 / (self.rounds - len(self.searches))))

    def _grown(
        self,
        rules: Sequence[Rule],
        deadline: Deadline,
        near: Collection[int] | None = None,
        passes: int = GrowthLimits().iterations,
    ) -> GrowthReport:
        """Grow the e-graph; without a clock, by as many matches on every machine."""
        enodes = GrowthLimits().enodes + self.imported  # a program of 20,000 nodes may grow, too
        limits = GrowthLimits(enodes=enodes, iterations=passes)
        if deadline.is_timed:
            return grow(self.eg, rules, limits, near, deadline.at_least(1e-2))
        used = sum(count.matches for report in self.growth for count in report.rules.values())
        limits = replace(limits, matches=max(_MATCHES - used, _LATER_MATCHES))
        return grow(self.eg, rules, limits, near, deadline)

    def statistics(self, interrupted: bool) -> dict[str, Any]:
        """Figures of all rounds for the report."""
        last = self.found.statistics
        return {
            "proposals": sum(s.proposals for s in self.searches),
            "seconds": round(sum(s.seconds for s in self.searches), 3),
            "kernels": last.distinct_kernels,
            "batches": last.batches,
            "chains": last.chains,
            "price_lookups": last.lookups,
            "price_cache_hits": round(max(0.0, 1.0 - last.kernels_priced / max(1, last.lookups)), 6),
            "kernels_timed": self.model.count,
            "model_factors": {k: round(v, 3) for k, v in self.model.factors().items()},
            "live_classes": last.live_classes,
            "options": last.options,
            "starts_ms": {k: round(1e3 * v, 4) for k, v in last.starts.items()},
            "predicted_before_ms": 1e3 * self.found.by_xla(self.found.original, self.model.xla).seconds,
            "predicted_best_ms": 1e3 * self.found.best.predicted_s,
            "interrupted": interrupted,
        }


def _growth_figures(rounds: Sequence[GrowthReport]) -> dict[str, Any]:
    """Sums over the rounds of growth, for the report."""
    first, last = rounds[0], rounds[-1]
    unions: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in rounds:
        for name, counts in report.rules.items():
            unions[name] += counts.unions
            seconds[name] += counts.seconds
            misses.update({f"{name}: {reason}": n for reason, n in counts.misses.items()})
            errors.update({f"{name}: {message}": n for message, n in counts.errors.items()})
    return {
        "stop": first.stop,
        "iterations": sum(r.iterations for r in rounds),
        "enodes": last.enodes[-1],
        "enodes_saturated": first.enodes[-1],
        "enodes_imported": first.enodes[0],
        "classes": last.classes,
        "live_classes": last.live_classes,
        "cyclic_components": last.components,
        "seconds": round(sum(r.seconds for r in rounds), 3),
        "unions": dict(sorted((+unions).items())),
        "rounds": [
            {
                "stop": r.stop,
                "iterations": r.iterations,
                "enodes": list(r.enodes),
                "seconds": round(r.seconds, 3),
                "hidden": r.hidden,
                "class_caps": r.class_caps,
            }
            for r in rounds
        ],
        "rule_seconds": {name: round(seconds[name], 3) for name in sorted(seconds, key=lambda n: -seconds[n])[:8]},
        "near_misses": dict(misses.most_common(100)),
        "errors": dict(errors),
    }


def _timing(stage: Deadline) -> Deadline:
    """The deadline of timings in a stage: half of what is left of it, or a few seconds where no clock ends it."""
    return stage.share().or_within(LEAST_KERNELS_S)


def _searching(stage: Deadline) -> Deadline:
    """The deadline of one of the searches, with its part of the steps."""
    steps = None if stage.steps is None else max(1, stage.steps // _ROUNDS)
    return replace(stage.at_least(1e-2), steps=steps)


@dataclass(slots=True)
class _Bodies:
    """Explores bodies of control flow, each within its share of the time that they have together.

    Attributes:
        sizes: node counts of all bodies; time is shared in proportion to them.
        plans: proofs for the bodies that were replaced.
        left_out: number of bodies for which there was no time.
        interrupted: whether the user interrupted; bodies that wait are left as they are.
    """

    rules: Sequence[Rule]
    request: Request
    sizes: Sequence[int]
    plans: list[BodyPlan] = field(default_factory=list[BodyPlan])
    left_out: int = 0
    interrupted: bool = False
    _together: Deadline = field(init=False)
    _waiting: int = 0

    def __post_init__(self) -> None:
        self._waiting, self._together = sum(self.sizes), self.request.deadline.share()

    def improved(self, body: Graph) -> Graph:
        """The best form of a body by the model, if it is clearly cheaper and prepares nothing."""
        size = body_size(body)
        deadline = self._together.share(size / max(size, self._waiting))
        self._waiting -= size
        if self.interrupted or deadline.left_s < _LEAST_NODE_S * size:
            self.left_out += 1
            return body
        steps = min(_BODY_STEPS * size, self.request.deadline.steps or _BODY_STEPS * size)
        deadline = replace(deadline, steps=steps)
        asked = replace(self.request, deadline=deadline, own=None, deterministic=True, max_prepared_bytes=None)
        found = explore(body, self.rules, asked)
        self.interrupted = found.interrupted
        best, own = found.result.best, found.result.original
        if best.original or WORTH * best.predicted_s > own.predicted_s:
            return body
        program = found.program(best)
        if program.prepare is not None:
            return body
        self.plans.append(BodyPlan(body, program.hot, make_plan(found, best, self.request.numerics)))
        return program.hot
