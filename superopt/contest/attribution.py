"""What the most important rules of a winner are worth, measured: the winner timed against itself without each of them.

Variants are built and timed interleaved with the winner, in the same rounds, as many as the time set aside allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt.contest.comparing import Comparing
from superopt.explore.found import Exploration
from superopt.machine.speedup import Speedup
from superopt.measure import Timing, Tuned
from superopt.search.finalists import without_rule
from superopt.search.search import Finalist

_ROUNDS = 7
_MOST = 4
_SHARE, _LONGEST_S = 0.1, 8.0
_BUILD_AND_TIME = 1.5  # what a variant takes, in terms of the time that the winner took to build


@dataclass(frozen=True, slots=True)
class Gain:
    """Milliseconds that the winner gains by a rule, and its time without the rule over its time with it."""

    milliseconds: float
    ratio: Speedup


def measured_gains(
    rounds: Comparing, found: Exploration, winner: Finalist, built: Tuned, build_s: float
) -> dict[str, Gain]:
    """Rule -> its measured gain, for the rules with the largest predicted gains; all built with the same options."""
    limits = rounds.request.budget
    budget_s = limits.within(_LONGEST_S if limits.seconds is None else min(_LONGEST_S, _SHARE * limits.seconds))
    affordable = int(budget_s / (_BUILD_AND_TIME * build_s + 0.25)) - 1  # the winner itself is built again
    rules = [rule for rule, gain in found.gains_ms(winner).items() if gain > 0][: max(0, min(_MOST, affordable))]
    if not rules:
        return {}
    variants = [replace(built, program=found.program(without(found, winner, rule))) for rule in rules]
    result = rounds.compare(built, variants, budget_s, rounds=_ROUNDS, prune=0.0, check=False, budget_s=budget_s)
    gains: dict[str, Gain] = {}
    for rule, outcome in zip(rules, result.candidates, strict=True):
        if isinstance(outcome, Timing) and isinstance(result.reference, Timing):
            r = outcome.ratio
            ratio = Speedup(1 / r.ratio, 1 / r.high, 1 / r.low)
            gains[rule] = Gain(1e3 * result.reference.median_s * (ratio.ratio - 1.0), ratio)
    return gains


def without(found: Exploration, winner: Finalist, rule: str) -> Finalist:
    """The winner without a rule, as something that can be lowered."""
    state = without_rule(found.result.state(winner), rule)
    return replace(winner, name=f"{winner.name} without {rule}", selection=state.choice())
