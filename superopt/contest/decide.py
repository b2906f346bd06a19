"""The decision of a contest: a pure function of the ledger, which can be replayed from recorded timings.

The rounds that choose rank all candidates, and those of the final confirm the best.  The best of several noisy timings
looks better than it is, so the claims about the winner come from the final.  Where the final leaves a doubt, all rounds
decide together.  The plain candidate loses only to evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import Made, RunLedger, Timed
from superopt.contest.rounds import Series


@dataclass(frozen=True, slots=True)
class Decision:
    """The order in which candidates may be returned.

    Attributes:
        order: the candidates that may be returned, the best first; where there is none, the original is.
        held: those of them that the final confirms.
        whole: the claims about the best come from all rounds, not from the final alone.
    """

    order: tuple[Candidate, ...] = ()
    held: tuple[Candidate, ...] = ()
    whole: bool = False


def decide(ledger: RunLedger) -> Decision:
    """Decide from the rounds of a ledger which candidates may be returned, in which order."""
    events = ledger.of(Timed)
    entries = _entries(ledger, events)
    chosen, final = Series(entries, ledger.seed), Series(entries, ledger.seed)
    confirmed = any(event.final for event in events)
    for event in events:
        if confirmed or not _tries_options(event):  # what paid there is returned once a final confirms it
            (final if event.final else chosen).take(event)
    if not confirmed:
        return Decision(tuple(entries[i] for i in chosen.order))
    place = {id(entry): i for i, entry in enumerate(entries)}
    last = [entry for event in events if event.final for entry in _taking_part(event)]
    numbers = list(dict.fromkeys(place[id(entry)] for entry in last))
    plain = [i for i in chosen.timed if entries[i].plain]
    every = chosen.joined(final)  # all rounds determine the order, the last ones the speed-up
    order = every.preferred(every.by_gain(numbers))
    held = [i for i in order if final.may_be_returned(i)]
    if not final.is_decided:  # then the last rounds alone decide nothing, neither for an entry nor against it
        held = [i for i in order if every.may_be_returned(i) and not final.is_slower(i)]
    if not held:
        held = [i for i in plain if every.may_be_returned(i) and not final.is_slower(i)]
    others = [i for i in chosen.order if i not in numbers and entries[i].base is None]
    returned = (*held, *others) if held or all(i in final.failures for i in numbers) else ()
    whole = bool(held) and not final.may_be_returned(held[0])
    return Decision(tuple(entries[i] for i in returned), tuple(entries[i] for i in held), whole)


def _taking_part(event: Timed) -> list[Candidate]:
    return [entry for entry, _ in (*event.samples_s, *event.failures)]


def _tries_options(event: Timed) -> bool:
    return any(entry.base is not None for entry in _taking_part(event))


def _entries(ledger: RunLedger, events: list[Timed]) -> tuple[Candidate, ...]:
    """The candidates that were timed, in the order in which they were made."""
    timed = {id(entry) for event in events for entry in _taking_part(event)}
    timed |= {id(event.baseline) for event in events if event.baseline is not None}
    return tuple(event.candidate for event in ledger.of(Made) if id(event.candidate) in timed)
