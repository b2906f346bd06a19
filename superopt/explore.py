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

from costmodel.objective import Objective
from rewrites.convert import import_graph
from rewrites.grow import GrowthReport, Limits, grow
from rewrites.term import Rule
from superopt.budget import SearchBudget
from superopt.ir.graph import Graph, Node, mk, topological, with_inputs
from superopt.ir.program import Program
from superopt.ir.text import print_graph
from superopt.search.budget import Budget
from superopt.search.explain import rule_gains
from superopt.search.lower import Expand, library_expander
from superopt.search.pricing import Pricer
from superopt.search.search import Finalist, SearchResult, search
from superopt.search.snapshot import Forms

NEAR_ROUNDS = 2
_FIRST_SHARE = 0.5
_GROWTH_SECONDS = 15.0
_BODY_STEPS = 2_000


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
    max_prepared_bytes: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Exploration:
    """Grow, search, grow around the best, search again."""
    notes: list[str] = []
    before_text = print_graph(graph)
    graph = improve_bodies(graph, rules, objective, seed, notes)
    eg = import_graph(graph)
    saturating = [rule for rule in rules if rule.mode in ("saturate", "macro")]
    near = [rule for rule in rules if rule.mode in ("near", "merge")]
    growth = _Growth([grow(eg, saturating, Limits(seconds=_growth_seconds(limits)))])
    progress(f"e-graph: {growth.reports[0].enodes[-1]} e-nodes, {growth.reports[0].stop}")
    pricer, forms = Pricer(objective), Forms()
    options: dict[str, Any] = {
        "pricer": pricer,
        "forms": forms,
        "max_prepared_bytes": max_prepared_bytes,
    }
    share = _FIRST_SHARE if near else 1.0
    result = search(eg, objective, _part(limits, share), seed, **options)
    proposals, seconds = result.statistics.proposals, result.statistics.seconds
    for number in range(NEAR_ROUNDS if near else 0):
        if result.interrupted:
            break
        before = growth.reports[-1].enodes[-1]
        growth.reports.append(grow(eg, rules, Limits(seconds=_growth_seconds(limits)), near=result.best.classes))
        if growth.reports[-1].enodes[-1] <= before:
            break
        part = _part(limits, (1.0 - _FIRST_SHARE) / NEAR_ROUNDS)
        result = search(eg, objective, part, seed + number + 1, warm=result.best, **options)
        proposals += result.statistics.proposals
        seconds += result.statistics.seconds
    statistics = {
        "proposals": proposals,
        "seconds": round(seconds, 3),
        "kernels": result.statistics.distinct_kernels,
        "live_classes": result.statistics.live_classes,
        "options": result.statistics.options,
        "starts_ms": {k: round(1e3 * v, 4) for k, v in result.statistics.starts.items()},
        "predicted_before_ms": round(1e3 * result.original.predicted_s, 4),
        "predicted_after_ms": round(1e3 * result.best.predicted_s, 4),
        "interrupted": result.interrupted,
    }
    if result.interrupted:
        notes.append("the search was interrupted; this is the best program it had found")
    if growth.reports[0].stop != "saturated":
        notes.append(f"growth of the e-graph stopped by its limit of {growth.reports[0].stop}, not by saturation")
    expand = library_expander([rule for rule in rules if rule.mode == "macro"])
    return Exploration(graph, result, expand, growth.as_dict(), statistics, tuple(notes), before_text)


def _growth_seconds(limits: SearchBudget) -> float:
    return _GROWTH_SECONDS if limits.seconds is None else max(0.5, min(_GROWTH_SECONDS, 0.25 * limits.seconds))


def _part(limits: SearchBudget, share: float) -> Budget:
    if limits.seconds is None:
        assert limits.steps is not None
        return Budget(None, max(1, int(share * limits.steps)))
    return Budget(max(1e-2, share * (limits.search_seconds or 0.0)), None)


def improve_bodies(graph: Graph, rules: Sequence[Rule], objective: Objective, seed: int, notes: list[str]) -> Graph:
    """The graph with the bodies of its control flow replaced by their best forms."""
    done: dict[Node, Node] = {}
    changed = 0
    for node in topological(graph.outputs):
        inputs = [done[x] for x in node.inputs]
        if node.op in ("scan", "while", "cond"):
            attrs: dict[str, Any] = {}
            for name, value in node.attrs:
                attrs[name] = _improved(value, rules, objective, seed)
                changed += attrs[name] is not value
            done[node] = mk(node.op, *inputs, **attrs)
        else:
            done[node] = with_inputs(node, inputs)
    if changed:
        notes.append(f"{changed} bodies of control flow were optimised by the model alone")
        return Graph(graph.inputs, tuple(done[x] for x in graph.outputs), graph.constants)
    return graph


def _improved(value: Any, rules: Sequence[Rule], objective: Objective, seed: int) -> Any:
    if isinstance(value, tuple):
        parts = tuple(_improved(x, rules, objective, seed) for x in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    if not isinstance(value, Graph) or value.constants or len(value.nodes()) == len(value.inputs):
        return value
    found = explore(value, rules, objective, SearchBudget(None, _BODY_STEPS), seed)
    if found.result.best.original or found.result.best.predicted_s > 0.95 * found.result.original.predicted_s:
        return value
    program = found.program(found.result.best)
    return value if program.prepare is not None else program.hot
