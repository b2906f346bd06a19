"""From a graph and proved rules to a few programs worth measuring.

The e-graph is grown to saturation by the rules that cannot explode.  The rest, the rules of mode `near` and `merge`,
are applied only around the best selection found so far, in rounds of growth and warm search.  Bodies of control flow
are programs of their own: each is explored first and replaced by its best form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from costmodel.measured import Measured
from costmodel.objective import Objective
from rewrites.convert import import_graph
from rewrites.grow import GrowthReport, Limits, grow
from rewrites.term import Rule
from superopt.bodies import improve_bodies
from superopt.budget import SearchBudget
from superopt.ir.graph import Graph, Node
from superopt.ir.program import Program
from superopt.ir.text import print_graph
from superopt.measure import KernelTiming, time_kernels
from superopt.measure.kernels import KernelSettings
from superopt.search.budget import Budget
from superopt.search.explain import rule_gains
from superopt.search.lower import Expand, expand_macros, library_expander
from superopt.search.pricing import Pricer
from superopt.search.search import Finalist, SearchResult, search
from superopt.search.snapshot import Forms

_GROWTH_SECONDS = 15.0
_BODY_STEPS = 2_000
_ROUNDS = (
    0.3,
    0.3,
    0.2,
    0.2,
)  # shares of the search; kernels are timed between rounds, growth is guided after the first
_MEASURE_SHARE = 0.25
_WORTH_TIMING = 0.003
_FINALISTS = 5


@dataclass(frozen=True, slots=True)
class Exploration:
    """Programs worth measuring, cheapest first by prediction, with what was done to find them."""

    graph: Graph
    result: SearchResult
    expand: Expand
    growth: dict[str, Any]
    statistics: dict[str, Any]
    notes: tuple[str, ...]
    before_text: str
    interrupted: bool

    @property
    def finalists(self) -> tuple[Finalist, ...]:
        """All finalists but the original."""
        return tuple(f for f in self.result.finalists if not f.original)

    def program(self, finalist: Finalist) -> Program:
        """A finalist as a program over the inputs of the graph, macros expanded."""
        return self.result.program(finalist, self.graph, self.expand)

    def gains_ms(self, finalist: Finalist) -> dict[str, float]:
        """Predicted milliseconds that each rule of a finalist saves: what the program costs without it."""
        return {rule: 1e3 * seconds for rule, seconds in rule_gains(self.result, finalist).items()}


@dataclass(slots=True)
class _Growth:
    """Sums over the rounds of growth."""

    reports: list[GrowthReport] = field(default_factory=list[GrowthReport])

    def as_dict(self) -> dict[str, Any]:
        first, last = self.reports[0], self.reports[-1]
        unions: Counter[str] = Counter()
        misses: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for report in self.reports:
            for name, counts in report.rules.items():
                unions[name] += counts.unions
                misses.update({f"{name}: {reason}": n for reason, n in counts.misses.items()})
                errors.update({f"{name}: {message}": n for message, n in counts.errors.items()})
        return {
            "stop": first.stop,
            "iterations": sum(r.iterations for r in self.reports),
            "enodes": last.enodes[-1],
            "enodes_saturated": first.enodes[-1],
            "enodes_imported": first.enodes[0],
            "classes": last.classes,
            "live_classes": last.live_classes,
            "cyclic_components": last.components,
            "seconds": round(sum(r.seconds for r in self.reports), 3),
            "unions": dict(sorted((+unions).items())),
            "near_misses": dict(misses.most_common(20)),
            "errors": dict(errors),
        }


def explore(
    graph: Graph,
    rules: Sequence[Rule],
    objective: Objective,
    limits: SearchBudget,
    seed: int,
    *,
    measure: bool = False,
    max_prepared_bytes: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Exploration:
    """Grow, then search in rounds; between rounds grow near the best and, with `measure`, time the kernels in use."""
    notes: list[str] = []
    before_text = print_graph(graph)

    def improve(body: Graph) -> Graph:
        return _best_body(body, rules, objective, seed)

    graph, changed = improve_bodies(graph, improve)
    if changed:
        notes.append(f"{changed} bodies of control flow were optimised by the model alone")
    expand = library_expander([rule for rule in rules if rule.mode == "macro"])
    eg = import_graph(graph)
    growth = _Growth([grow(eg, [r for r in rules if r.mode in ("saturate", "macro")], _growth_limits(limits))])
    progress(f"e-graph: {growth.reports[0].enodes[-1]} e-nodes, {growth.reports[0].stop}")
    timer = KernelTimer(objective, expand, limits) if measure else None
    pricer, forms = Pricer(timer.objective if timer else objective), Forms()
    result: SearchResult | None = None
    proposals, seconds, interrupted = 0, 0.0, False
    for number, share in enumerate(_ROUNDS):
        result = search(
            eg,
            pricer.objective,
            _part(limits, share),
            seed + number,
            finalists=_FINALISTS,
            warm=result.best if result else None,
            pricer=pricer,
            forms=forms,
            max_prepared_bytes=max_prepared_bytes,
        )
        proposals += result.statistics.proposals
        seconds += result.statistics.seconds
        interrupted = result.interrupted
        if interrupted or number == len(_ROUNDS) - 1:
            break
        try:
            if timer is not None:
                timed = timer.learn(result.finalists, 1.0 / (len(_ROUNDS) - 1))
                pricer = Pricer(timer.objective)
                progress(f"round {number + 1}: predicted {1e3 * result.best.predicted_s:.3g} ms, {timed} kernels timed")
            if number < 2:
                growth.reports.append(grow(eg, rules, _growth_limits(limits), near=result.best.classes))
        except KeyboardInterrupt:
            interrupted = True
            break
    assert result is not None
    statistics = {
        "proposals": proposals,
        "seconds": round(seconds, 3),
        "kernels": result.statistics.distinct_kernels,
        "kernels_timed": len(timer.objective.seconds) if timer else 0,
        "model_factors": {k: round(v, 3) for k, v in timer.objective.factors().items()} if timer else {},
        "live_classes": result.statistics.live_classes,
        "options": result.statistics.options,
        "starts_ms": {k: round(1e3 * v, 4) for k, v in result.statistics.starts.items()},
        "predicted_before_ms": round(1e3 * result.original.predicted_s, 4),
        "predicted_after_ms": round(1e3 * result.best.predicted_s, 4),
        "interrupted": interrupted,
    }
    if interrupted:
        notes.append("the search was interrupted; this is the best program it had found")
    if growth.reports[0].stop != "saturated":
        notes.append(f"growth of the e-graph stopped by its limit of {growth.reports[0].stop}, not by saturation")
    return Exploration(graph, result, expand, growth.as_dict(), statistics, tuple(notes), before_text, interrupted)


class KernelTimer:
    """Times the kernels that finalists use and corrects the objective by them."""

    def __init__(self, objective: Objective, expand: Expand, limits: SearchBudget) -> None:
        self.objective = Measured(objective)
        self.expand = expand
        self.seconds = _MEASURE_SHARE * (limits.seconds or 60.0)

    def learn(self, finalists: Sequence[Finalist], share: float) -> int:
        """Time kernels not timed yet, those that matter most first; how many were timed."""
        weight: dict[Node, float] = {}
        graphs: dict[Node, Graph] = {}
        for finalist in finalists:
            for kernel, predicted in finalist.kernels:
                output = kernel.outputs[0]
                if kernel not in self.objective and not _has_opaque(kernel):
                    graphs[output] = kernel
                    weight[output] = weight.get(output, 0.0) + predicted / max(finalist.predicted_s, 1e-9)
        chosen = [n for n in sorted(weight, key=lambda n: -weight[n]) if weight[n] > _WORTH_TIMING]
        plain = [expand_graph(graphs[n], self.expand) for n in chosen]
        timings = time_kernels(plain, settings=_SETTINGS, budget_s=share * self.seconds)
        pairs = [(graphs[n], t.seconds) for n, t in zip(chosen, timings, strict=True) if isinstance(t, KernelTiming)]
        self.objective.learn([g for g, _ in pairs], [s for _, s in pairs])
        return len(pairs)


_SETTINGS = KernelSettings(rounds=3, sample_s=0.003, max_calls=30)


def _has_opaque(kernel: Graph) -> bool:
    return any(node.op in ("opaque", "scan", "while", "cond") for node in kernel.nodes())


def expand_graph(graph: Graph, expand: Expand) -> Graph:
    """The graph with its macros expanded."""
    return Graph(graph.inputs, expand_macros(graph.outputs, expand), graph.constants)


def _growth_limits(limits: SearchBudget) -> Limits:
    if limits.seconds is None:
        return Limits(seconds=_GROWTH_SECONDS)
    return Limits(seconds=max(0.5, min(_GROWTH_SECONDS, 0.25 * limits.seconds)))


def _part(limits: SearchBudget, share: float) -> Budget:
    if limits.seconds is None:
        assert limits.steps is not None
        return Budget(None, max(1, int(share * limits.steps)))
    return Budget(max(1e-2, share * (limits.search_seconds or 0.0)), None)


def _best_body(body: Graph, rules: Sequence[Rule], objective: Objective, seed: int) -> Graph:
    """The best form of a body by the model, if it is clearly cheaper and prepares nothing."""
    found = explore(body, rules, objective, SearchBudget(None, _BODY_STEPS), seed)
    if found.result.best.original or found.result.best.predicted_s > 0.95 * found.result.original.predicted_s:
        return body
    program = found.program(found.result.best)
    return body if program.prepare is not None else program.hot
