"""What each rule of a finalist is worth: the predicted time of the same program without it.

Gains of rules that need each other overlap, so they do not add up to the whole gain.
"""

from __future__ import annotations

from superopt.search.ablation import without_rule
from superopt.search.pricing import UNIT_S
from superopt.search.search import Finalist, SearchResult
from superopt.search.state import State


def rule_gains(result: SearchResult, finalist: Finalist) -> dict[str, float]:
    """Rule -> predicted seconds that the finalist loses without it, largest first."""
    selection = finalist.selection
    state = State(result.problem, selection.options, selection.layouts, selection.bits)
    gains = {rule: (without_rule(state, rule).cost - state.cost) * UNIT_S for rule in finalist.rules}
    return dict(sorted(gains.items(), key=lambda item: (-item[1], item[0])))
