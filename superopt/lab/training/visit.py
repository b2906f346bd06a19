"""The kernels that the search visits on a program, grouped by the function that they compute.

The program is imported, its e-graph saturated, searched, grown around the best, and searched again.  Then kernels are
taken from the original, the finalists, and random selections (options, layouts and fusion bits drawn at random).  In
each of these states every kernel is varied: other options of its class, other layouts of its result and operands.
Kernels of one class with the same leaf classes are forms of one task.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from costmodel.labels.microsuite import suite
from costmodel.model.objective import Objective
from rewrites.build.expander import Expand, expand_graph, library_expander
from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import GrowthLimits, grow
from rewrites.language.term import Rule
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node
from superopt.ir.ops.table import CONTROL
from superopt.lab.training.program import TrainingProgram
from superopt.lab.training.tasks import MOST_FORMS, KernelForm, Task, canonical, make_form
from superopt.machine.deadline import Deadline
from superopt.search.moves import free_layouts, region
from superopt.search.pricing import Pricer, kernel_graph
from superopt.search.search import SearchResult, SearchSettings, search
from superopt.search.snapshot import Forms
from superopt.search.state import State

VisitedPlace = tuple[int, frozenset[int]]  # class and leaf classes: one function
LONGEST_S = 0.06
CLEAR_S = 1e-5  # shorter kernels are timed less well and taken less often


@dataclass(frozen=True, slots=True)
class Effort:
    """Limits of a visit: growth, search, random states, and the size of the sample."""

    enodes: int = 3_000
    guided_enodes: int = 1_500
    steps: int = 4_000
    states: int = 6
    variations: int = 10
    tasks: int = 15


def visit(
    program: TrainingProgram, rules: Sequence[Rule], objective: Objective, effort: Effort | None = None, seed: int = 0
) -> list[Task]:
    """Tasks of a program with their forms, a sample of at most `effort.tasks`."""
    effort = effort or Effort()
    rng = random.Random(f"{program.name} {seed}")
    result = explored(program.graph(), rules, objective, effort)
    seen = Visited(rng, effort)
    for name, state in states(result, effort, rng):
        seen.take(name, state)
    return _sampled(program, seen, objective, library_expander(rules), rng)


def explored(graph: Graph, rules: Sequence[Rule], objective: Objective, effort: Effort) -> SearchResult:
    """The search on a grown e-graph, with one round of growth around the best."""
    eg = import_graph(graph)
    tame = [rule for rule in rules if rule.mode in ("saturate", "macro")]
    grow(eg, tame, GrowthLimits(enodes=effort.enodes), deadline=Deadline.within(8.0))
    pricer, forms, settings = Pricer(objective), Forms(), SearchSettings(Deadline(steps=effort.steps))
    first = search(eg, objective, settings, pricer=pricer, forms=forms)
    wider = GrowthLimits(enodes=effort.enodes + effort.guided_enodes)
    grow(eg, rules, wider, near=first.best.classes, deadline=Deadline.within(4.0))
    return search(eg, objective, replace(settings, seed=1), warm=first.best, pricer=pricer, forms=forms)


def states(result: SearchResult, effort: Effort, rng: random.Random) -> Iterator[tuple[str, State]]:
    """The original, the finalists, and random selections."""
    for finalist in (result.original, *result.finalists):
        name = "original" if finalist.original else "best" if finalist is result.best else "finalist"
        yield name, result.state(finalist)
    for number in range(effort.states):
        state = result.state(result.original if number % 2 else result.best)
        _scatter(state, rng, (0.15, 0.5, 1.0)[number % 3])
        yield "random", state


def _scatter(state: State, rng: random.Random, share: float) -> None:
    """Draw options, layouts and fusion bits anew for a share of the classes."""
    classes = list(range(len(state.selection)))
    rng.shuffle(classes)
    for c in classes:
        if not state.readers[c] or rng.random() > share:
            continue
        if len(state.options[c]) > 1:
            state.flip([(c, rng.randrange(len(state.options[c])))])
        if rng.random() < 0.25:
            state.flip((), (), [(c, rng.choice((0, 1, 1, 2)))])
        elif len(state.problem.candidates[c]) > 1:
            layout = rng.choice(state.problem.candidates[c])
            if rng.random() < 0.3:
                region(state, c, layout, rng, 0.2, 40).apply(state)
            else:
                state.flip((), [(c, layout)])


@dataclass(slots=True)
class Visited:
    """Kernels by task: place -> output node -> kind."""

    rng: random.Random
    effort: Effort
    kernels: dict[VisitedPlace, dict[Node, str]] = field(default_factory=dict[VisitedPlace, dict[Node, str]])

    def take(self, name: str, state: State) -> None:
        """The kernels of a state and variations of each."""
        classes = [c for c in state.active() if state.materialised[c]]
        for c in classes:
            self._add(name, state, c)
        for c in classes:
            leaves = [k for k in leaf_classes(state, c) if k != c]
            for _ in range(self.effort.variations):
                self._vary(state, c, leaves)

    def _vary(self, state: State, c: int, leaves: Sequence[int]) -> None:
        rng = self.rng
        options: list[tuple[int, int]] = []
        layouts: list[tuple[int, int]] = []
        if len(state.options[c]) > 1 and rng.random() < 0.6:
            options.append((c, rng.randrange(len(state.options[c]))))
        for k in (c, *leaves):
            others = free_layouts(state, k)
            if others and rng.random() < 0.4:
                layouts.append((k, rng.choice(others)))
        bits = [(rng.choice(leaves), rng.choice((1, 2)))] if leaves and rng.random() < 0.1 else []
        if not (options or layouts or bits):
            return
        change = state.flip(options, layouts, bits)
        if change is not None:
            self._add("flip", state, c)
            state.undo(change)

    def _add(self, name: str, state: State, c: int) -> None:
        option = state.chosen(c)
        if not state.readers[c] or not state.materialised[c] or option.form.op in ("input", *CONTROL):
            return
        node = state.kernel(c)
        if node is not None:
            rule = option.form.rule or (option.origin.rule if option.origin is not None else option.form.op)
            place = (c, frozenset(leaf_classes(state, c)))
            self.kernels.setdefault(place, {}).setdefault(node, f"{name} {rule}")


def leaf_classes(state: State, c: int) -> list[int]:
    """The classes that the kernel of a class reads from memory."""
    classes: dict[int, None] = {}
    queue, seen = [c], {c}
    for x in queue:
        for k in state.chosen(x).kids:
            if state.materialised[k]:
                classes[k] = None
            elif k not in seen:
                seen.add(k)
                queue.append(k)
    return list(classes)


def _sampled(
    program: TrainingProgram, seen: Visited, objective: Objective, expand: Expand, rng: random.Random
) -> list[Task]:
    places = sorted(seen.kernels, key=lambda place: (place[0], sorted(place[1])))
    rng.shuffle(places)
    sampled = {place: _forms(seen.kernels[place], objective, expand, rng) for place in places}

    def weight(place: VisitedPlace) -> float:
        """Weight of a task in the sample: it should have several forms, and be long enough to be timed well."""
        forms = sampled[place]
        length = max((form.predicted_s for form in forms), default=0.0) / CLEAR_S
        return min(len(forms), 4) * min(1.0, max(length, 0.05)) * rng.uniform(0.3, 1.0)

    places.sort(key=weight, reverse=True)
    tasks: list[Task] = []
    taken: set[str] = set()
    for place in places:
        if len(tasks) >= seen.effort.tasks:
            break
        forms = [form for form in sampled[place] if form.key not in taken]
        if forms:
            taken.update(form.key for form in forms)
            leaves = hashlib.sha256(repr(sorted(place[1])).encode()).hexdigest()[:6]
            tasks.append(Task(program.family, program.name, f"{program.name}/{place[0]}-{leaves}", tuple(forms)))
    return tasks


def _forms(kernels: dict[Node, str], objective: Objective, expand: Expand, rng: random.Random) -> list[KernelForm]:
    """At most `MOST_FORMS` forms: the original's, the two that look best, others at random."""
    graphs: dict[str, tuple[str, Graph]] = {}
    for node, kind in kernels.items():
        try:
            plain = canonical(expand_graph(kernel_graph(node), expand))
        except SuperoptError:
            continue  # a macro that does not apply in this layout: it could not run either
        if plain.outputs[0].op != "input":
            form = make_form(kind, plain)
            graphs.setdefault(form.text, (kind, plain))
    prices = objective.price([plain for _, plain in graphs.values()])
    forms = [make_form(kind, plain, float(s)) for (kind, plain), s in zip(graphs.values(), prices, strict=True)]
    forms = [form for form in forms if form.predicted_s < LONGEST_S]
    if len(forms) <= MOST_FORMS:
        return forms
    chosen = [form for form in forms if form.kind.startswith(("original", "best"))][:3]
    chosen += sorted((f for f in forms if f not in chosen), key=lambda f: f.predicted_s)[:2]
    rest = [form for form in forms if form not in chosen]
    return chosen + rng.sample(rest, MOST_FORMS - len(chosen))


def micro_tasks(objective: Objective) -> list[Task]:
    """The micro-suite as a family."""
    forms: dict[str, list[KernelForm]] = {}
    for case in suite():
        form = make_form(case.name.rpartition("/")[2], canonical(case.graph))
        price = float(objective.price([case.graph])[0])
        if price < LONGEST_S:
            forms.setdefault(case.task, []).append(KernelForm(form.kind, form.key, form.text, price))
    return [Task("micro", f"micro/{task}", f"micro/{task}", tuple(row)) for task, row in forms.items()]
