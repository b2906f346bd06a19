"""Proposals of a search for measurement: finalists, ablations of rules, and rival kernels.

A *finalist* is one program worth measuring; the distance of two of them is measured by their kernels.

A state *without some of its rules* is the program that would result if these rules did not exist.  Every option that
they introduced is given up; the classes concerned fall back on the state's other choices, then on the program's own
e-nodes, then on any other, and layouts are repaired locally.  The difference is the gain of a rule (gains of rules that
need each other overlap, so they do not add up to the whole gain).  Such states also hedge a set of finalists against a
model that is wrong about one kind of kernel.  Without any rule the state has the program's own operations.  Other cuts
and layouts alone may make these faster, and most of its kernels are those of the original.

*Rival kernels* are those that a program does not use, but would if the model erred.  A flip of one class (another op,
another layout, a group) replaces some kernels by others.  It is a rival when it would lower the cost if its new kernels
were cheaper than predicted by as much as the model may be wrong.  Timing the new kernels of the most promising rivals
decides questions that the model cannot.  It is the lower confidence bound criterion of active learning, over the
neighbourhood of the best program.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from superopt.ir.graph import Graph, Node
from superopt.machine.deadline import Deadline
from superopt.search.descent import attempt_now
from superopt.search.lower import Lowering
from superopt.search.meter import Meter
from superopt.search.moves import Groups, Move, free_layouts, neighbours
from superopt.search.pricing import BATCH, UNIT_S, kernel_graph
from superopt.search.snapshot import SHIFT, Option, Selection
from superopt.search.state import Problem, Record, State

MOST_FLIPS = 4_000  # without a clock: all flips of one class at a time in a network of a thousand classes
_GIVEN_UP, _OTHER, _OWN, _KEPT = 1e9, 1e3, 3.0, 1.0
"""Costs of options without the rules given up, by preference alone: the dearest below a class counts, no sums do."""
_REPAIR_STEPS = 2_000  # without a clock: 200 to 20,000 yield the same forms of five training programs


@dataclass(frozen=True, slots=True)
class Finalist:
    """One program worth measuring.

    Attributes:
        name: its origin in the search.
        predicted_s: the objective's time.
        selection: options, layouts and materialised classes.
        kernels: (kernel graph, predicted seconds) in execution order, equal kernels repeated.
        rules: rule name -> number of instances whose e-nodes it uses.
        carried: (class reference in its layout, e-node, override) of every class in use, to start a later search.
        classes: the e-graph classes in use (`near` rules grow there).
    """

    name: str
    predicted_s: float
    selection: Selection
    kernels: tuple[tuple[Graph, float], ...]
    rules: Counter[str]
    carried: tuple[tuple[int, tuple[int, ...], int], ...]
    classes: frozenset[int]
    original: bool = False


def finalist(problem: Problem, lowering: Lowering, name: str, record: Record) -> Finalist:
    """A recorded state with the data that building, reporting and continuing need."""
    state = State(problem, *record[1:])
    class_ids, selection = problem.snapshot.class_ids, state.choice()
    place = {c: i for i, c in enumerate(lowering.order(selection))}
    kernels = sorted(state.kernels(), key=lambda item: place[item[0]])
    active = state.active()
    origins = {state.chosen(c).origin for c in active} - {None}
    return Finalist(
        name,
        state.seconds,
        selection,
        tuple((kernel_graph(node), state.kernel_cost[c] * UNIT_S) for c, node in kernels),
        Counter(origin.rule for origin in sorted(origins, key=lambda o: (o.rule, o.step))),
        tuple((class_ids[c] << SHIFT | state.layouts[c], state.chosen(c).enode, state.bits[c]) for c in active),
        frozenset(class_ids[c] for c in active),
        original=name == "original",
    )


def kernel_costs(state: State) -> Counter[Node]:
    """Cost of the state by kernel structure."""
    table: Counter[Node] = Counter()
    for c, node in state.kernels():
        table[node] += state.kernel_cost[c]
    return table


def distance(a: Counter[Node], b: Counter[Node]) -> int:
    """Cost units of kernels that only one of the two programs has."""
    return sum(abs(a[node] - b[node]) for node in a.keys() | b.keys())


# ---- without rules


def rules_of(state: State) -> list[str]:
    """Rules whose e-nodes the state uses."""
    return sorted({o.origin.rule for o in map(state.chosen, state.active()) if o.origin is not None})


def without_rules(state: State, rules: Set[str], repair: Deadline | None = None) -> State:
    """A new state like `state` that uses no e-node of these rules (where there is a choice).

    Args:
        repair: deadline of repairing layouts; None where no clock ends it.
    """
    snapshot = state.snapshot
    chosen = {c: state.selection[c] for c in state.active()}

    def cost(c: int, option: Option) -> float:
        if option.origin is not None and option.origin.rule in rules:
            return _GIVEN_UP
        if c in chosen and option is snapshot.options[c][chosen[c]]:
            return _KEPT
        return _OWN if option.origin is None else _OTHER

    picked, _ = snapshot.extract(cost, max)
    other = State(state.problem, [0 if i is None else i for i in picked], state.layouts, state.bits)
    repair_layouts(other, [c for c in other.active() if other.selection[c] != chosen.get(c)], repair)
    return other


def repair_layouts(state: State, changed: Sequence[int], deadline: Deadline | None = None) -> None:
    """Let the changed classes and their neighbours choose their layouts again."""
    meter = Meter(replace(deadline or Deadline(), steps=_REPAIR_STEPS))
    todo = list(changed)
    while todo and not meter.exhausted():
        c = todo.pop()
        if not state.readers[c]:
            continue
        for layout in free_layouts(state, c):
            meter.step()
            if attempt_now(state, Move((), ((c, layout),))):
                todo.extend(u for u in state.readers[c] if u >= 0)
                todo.extend(state.chosen(c).kids)


def rule_gains(problem: Problem, finalist: Finalist) -> dict[str, float]:
    """Rule -> predicted seconds that the finalist loses without it, largest first."""
    state = State.at(problem, finalist.selection)
    gains = {rule: (without_rules(state, {rule}).cost - state.cost) * UNIT_S for rule in finalist.rules}
    return dict(sorted(gains.items(), key=lambda item: (-item[1], item[0])))


# ---- rival kernels


def rival_kernels(
    problem: Problem, finalist: Finalist, optimism: float, deadline: Deadline | None = None
) -> list[tuple[Graph, float]]:
    """Kernels of rival flips and the seconds that each flip might gain, most promising first.

    Args:
        optimism: the factor by which prices of new kernels may be too high.
        deadline: when to stop; after a search that ended early, kernels may still have to be cut and priced.
    """
    state = State.at(problem, finalist.selection)
    gains: dict[Node, float] = {}
    moves = itertools.islice(neighbours(state, Groups(problem)), MOST_FLIPS)
    while (deadline is None or not deadline.is_over) and (some := list(itertools.islice(moves, BATCH))):
        for _ in range(3):  # asks for its ops alone, then for its kernels, then judges
            some = [move for move in some if not _is_judged(state, move, optimism, gains)]
            state.memo.flush(deadline)
    return [(kernel_graph(node), gain) for node, gain in sorted(gains.items(), key=lambda item: -item[1])]


def _is_judged(state: State, move: Move, optimism: float, gains: dict[Node, float]) -> bool:
    """Put down the kernels and the gain of a flip if it is a rival; return False where a price is missing for that."""
    cost = state.cost
    undo = move.apply(state)
    if undo is None:
        return True
    hopeless = state.is_hopeless(undo, optimism=optimism) if state.unknown else False
    priced = hopeless is False and state.reprice()
    if priced:
        changed = [c for c, old, *_ in undo.prices if state.kernel_cost[c] not in (0, old)]
        fresh = sum(state.kernel_cost[c] for c in changed)
        gain = (cost - state.cost + fresh * (1.0 - 1.0 / optimism)) * UNIT_S
        for node in _nodes(state, changed) if gain > 0 else ():
            gains[node] = max(gains.get(node, 0.0), gain)
    state.undo(undo)
    return priced or bool(hopeless)


def _nodes(state: State, classes: list[int]) -> list[Node]:
    """Output nodes of the kernels of some classes (transposes of outputs are not timed)."""
    return [node for c in classes if c < state.snapshot.size and (node := state.kernel_of(c)) is not None]
