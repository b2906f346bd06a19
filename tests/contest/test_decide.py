"""Properties of the decision of a contest, from rounds that are made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.candidates.candidate import Candidate, original_candidate
from superopt.candidates.evidence import NumericCheck
from superopt.candidates.ledger import ChoiceReason, Compared, LedgerEvent, Made, Rejected, RunLedger, Timed, Why
from superopt.contest.decide import decide
from superopt.contest.rounds import Series
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.specs import KernelSpec

ORIGINAL = original_candidate(import_function(jnp.tanh, (np.ones((4, 4), np.float32),)).graph)
ROUNDS = 7
few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 10**6)


def candidates(rng: random.Random) -> list[Candidate]:
    """The plain candidate, and some others in kernels or computed by XLA."""
    own = Candidate(name="plain", program=ORIGINAL.program, kernels=(KernelSpec(1, (0,)),), plain=True)
    others = [replace(own, name=f"form {i}", plain=False) for i in range(rng.randint(1, 4))]
    return [own, *(replace(form, kernels=()) if rng.random() < 0.3 else form for form in others)]


def batch(rng: random.Random, entries: Sequence[Candidate], final: bool = False) -> Timed:
    """Rounds of an original and of programs at random speeds, in which some fail."""
    original_s, noise = rng.choice((1e-4, 1e-2)), rng.choice((0.001, 0.05, 0.4))

    def samples(speed: float) -> tuple[float, ...]:
        return tuple(original_s / speed * (1.0 + noise * abs(rng.gauss(0.0, 1.0))) for _ in range(ROUNDS))

    speeds = {id(entry): rng.choice((0.5, 1.0, 1.02, 1.5, 3.0)) for entry in entries}
    fails = [entry for entry in entries if rng.random() < 0.1]
    timed = [entry for entry in entries if entry not in fails]
    return Timed(
        final=final, baseline_s=samples(1.0), again_s=samples(1.0),
        samples_s=tuple((entry, samples(speeds[id(entry)])) for entry in timed),
        failures=tuple((entry, "crash: SIGSEGV") for entry in fails),
    )  # fmt: skip


def ledger_of(entries: Sequence[Candidate], events: Sequence[LedgerEvent]) -> RunLedger:
    ledger = RunLedger()
    for event in (*map(Made, entries), *events):
        ledger.add(event)
    return ledger


def contest(seed: int) -> tuple[list[Candidate], list[Timed]]:
    """A contest with a final in half of the cases, in which some candidates take part."""
    rng = random.Random(seed)
    entries = candidates(rng)
    events = [batch(rng, entries) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.5:
        events.append(batch(rng, [entries[0], *rng.sample(entries[1:], 1)], final=True))
    return entries, events


@few
@given(seeds)
def test_the_plain_candidate_loses_only_to_evidence(seed: int) -> None:
    entries, events = contest(seed)
    series = Series(entries, 0)
    for event in events:
        series.take(event)
    order = decide(ledger_of(entries, events)).order
    if not order or order[0].plain:
        return
    over, own = series.ratio(entries.index(order[0]), 0), series.ratio(0)
    faster = over is not None and over.low > 1.0
    assert faster or own is None or own.ratio <= 1.0 or any(event.final for event in events)
    if any(event.final for event in events) and own is not None and own.ratio > 1.0 and not faster:
        final = Series(entries, 0)
        final.take(events[-1])
        assert not final.may_be_returned(0), "what the final does not confirm is evidence against it"


@few
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_insertion(seed: int, shuffler: random.Random) -> None:
    entries, events = contest(seed)
    expected = decide(ledger_of(entries, events)).order
    shuffled = list(entries)
    shuffler.shuffle(shuffled)

    def mixed(event: Timed) -> Timed:
        samples, failures = list(event.samples_s), list(event.failures)
        shuffler.shuffle(samples)
        shuffler.shuffle(failures)
        return replace(event, samples_s=tuple(samples), failures=tuple(failures))

    found = decide(ledger_of(shuffled, [mixed(event) for event in events])).order
    assert [entry.name for entry in found] == [entry.name for entry in expected]


@few
@given(seeds)
def test_a_ledger_is_replayed_to_the_same_decision_whatever_else_is_in_it(seed: int) -> None:
    entries, events = contest(seed)
    ledger = ledger_of(entries, events)
    expected = decide(ledger)
    again = RunLedger()
    for event in ledger:
        again.add(event)
        again.add(Compared(entries[-1], NumericCheck(0.5), "an output differs"))
        again.add(Rejected(entries[0], Why(ChoiceReason.WRONG_RESULTS)))
    assert decide(again) == decide(ledger) == expected
    assert all(entry in entries for entry in expected.order)
    failed = {id(entry) for event in events if event.final for entry, _ in event.failures}
    assert not any(id(entry) in failed for entry in expected.order), "what failed in the end is not returned"
