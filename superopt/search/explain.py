"""What each rule of a finalist is worth: the predicted time of the same program without it.

For a rule, every option that it introduced is given up; the classes concerned fall back on the finalist's other
choices, then on the program's own e-nodes, then on whatever is left, and layouts are repaired locally.  Gains of
rules that need each other overlap, so they do not add up to the whole gain.
"""

from __future__ import annotations

from superopt.search.budget import Budget, Meter
from superopt.search.descent import attempt_now
from superopt.search.graphs import extract
from superopt.search.moves import Move, free_layouts
from superopt.search.pricing import UNIT_S
from superopt.search.search import Finalist, SearchResult
from superopt.search.snapshot import Option
from superopt.search.state import State

_GIVEN_UP, _OTHER, _OWN, _KEPT = 1e9, 1e3, 3.0, 1.0
_REPAIR_STEPS = 2_000


def rule_gains(result: SearchResult, finalist: Finalist) -> dict[str, float]:
    """Rule -> predicted seconds that the finalist loses without it, largest first."""
    problem, selection = result.problem, finalist.selection
    state = State(problem, selection.options, selection.layouts, selection.bits)
    chosen = {c: state.selection[c] for c in state.active()}
    gains: dict[str, float] = {}
    for rule in finalist.rules:
        without = State(problem, _without(result, chosen, rule), selection.layouts, selection.bits)
        _repair_layouts(without, [c for c in without.active() if without.selection[c] != chosen.get(c)])
        gains[rule] = (without.cost - state.cost) * UNIT_S
    return dict(sorted(gains.items(), key=lambda item: (-item[1], item[0])))


def _without(result: SearchResult, chosen: dict[int, int], rule: str) -> list[int]:
    """The finalist's options with those of a rule replaced; acyclic by construction."""
    snapshot = result.problem.snapshot

    def cost(c: int, option: Option) -> float:
        if option.origin is not None and option.origin.rule == rule:
            return _GIVEN_UP
        if c in chosen and option is snapshot.options[c][chosen[c]]:
            return _KEPT
        return _OWN if option.origin is None else _OTHER

    picked, _ = extract(snapshot, cost, max)
    return [0 if choice is None else choice for choice in picked]


def _repair_layouts(state: State, changed: list[int]) -> None:
    """Let the changed classes and their neighbours choose their layouts again."""
    meter = Meter(Budget(steps=_REPAIR_STEPS))
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
