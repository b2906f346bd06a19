"""Measured gains of a winner's most important rules: the winner is timed against itself without each of them.

The variants are built and timed interleaved with the winner, in the same rounds; there are as many as half of the
time left allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superopt.candidates.candidate import Candidate
from superopt.candidates.evidence import Gain
from superopt.contest.rounds import Rounds, Series
from superopt.explore.found import Exploration
from superopt.machine.budget import PROGRAMS
from superopt.machine.deadline import HALF
from superopt.search.finalists import without_rules
from superopt.search.search import Finalist


def measured_gains(
    rounds: Rounds, found: Exploration, winner: Finalist, options: Mapping[str, bool | str], known: Series
) -> dict[str, Gain]:
    """Map rules to their measured gains, for the rules of largest predicted gain; all are built with the same options.

    Args:
        known: earlier rounds of these programs, from which the time of further ones is estimated.
    """
    affordable = HALF * rounds.left_s / rounds.expected_s(0, known, built=False) - 1.0  # the winner is built again
    most = int(max(0.0, min(PROGRAMS, affordable)))
    rules = [rule for rule, gain in found.gains_ms(winner).items() if gain > 0][:most]
    if not rules:
        return {}
    forms = [winner, *(without(found, winner, rule) for rule in rules)]
    entries = [Candidate(name=form.name, program=found.program(form), options=options) for form in forms]
    series = Series(entries, rounds.request.seed)
    series.add(rounds.timed(entries, whole=True), range(len(entries)), 0)
    gains: dict[str, Gain] = {}
    for number, rule in enumerate(rules, 1):
        ratio, winner_s = series.ratio(0, number), series.median_s(0)
        if ratio is not None and winner_s is not None:
            gains[rule] = Gain(1e3 * winner_s * (ratio.ratio - 1.0), ratio)
    return gains


def without(found: Exploration, winner: Finalist, rule: str) -> Finalist:
    """The winner with a selection that does not use the rule."""
    state = without_rules(found.result.state(winner), {rule})
    return replace(winner, name=f"{winner.name} without {rule}", selection=state.choice())
