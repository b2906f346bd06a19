"""A state without one of its rules: what the program would be if that rule did not exist.

Every option that the rule introduced is given up; the classes concerned fall back on the state's other choices, then
on the program's own e-nodes, then on whatever is left, and layouts are repaired locally.  It tells what a rule is
worth, and it is how a set of finalists hedges against a model that is wrong about one kind of kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.search.budget import Budget, Meter
from superopt.search.descent import attempt_now
from superopt.search.graphs import extract
from superopt.search.moves import Move, free_layouts
from superopt.search.snapshot import Option
from superopt.search.state import State

_GIVEN_UP, _OTHER, _OWN, _KEPT = 1e9, 1e3, 3.0, 1.0
_REPAIR_STEPS = 2_000


def rules_of(state: State) -> list[str]:
    """Rules whose e-nodes the state uses."""
    return sorted({o.origin.rule for o in map(state.chosen, state.active()) if o.origin is not None})


def without_rule(state: State, rule: str) -> State:
    """A new state like `state` that uses no e-node of the rule (where there is a choice)."""
    snapshot = state.snapshot
    chosen = {c: state.selection[c] for c in state.active()}

    def cost(c: int, option: Option) -> float:
        if option.origin is not None and option.origin.rule == rule:
            return _GIVEN_UP
        if c in chosen and option is snapshot.options[c][chosen[c]]:
            return _KEPT
        return _OWN if option.origin is None else _OTHER

    picked, _ = extract(snapshot, cost, max)
    other = State(state.problem, [0 if i is None else i for i in picked], state.layouts, state.bits)
    repair_layouts(other, [c for c in other.active() if other.selection[c] != chosen.get(c)])
    return other


def repair_layouts(state: State, changed: Sequence[int]) -> None:
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
