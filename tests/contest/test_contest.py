"""The contest: which program is returned, from figures made up for every process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.options import OptionChoice
from superopt.candidates.candidate import Candidate
from superopt.candidates.ledger import ChoiceReason
from superopt.contest import contest as contests
from superopt.contest import rounds as module
from superopt.contest.choices import decided, original_returned
from superopt.contest.contest import Outcome, contest
from superopt.contest.rounds import ORIGINAL, WORTH, Rounds, Series, Subject, least_s, rounds_fit
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.program import original_program
from superopt.kernels.choose.specs import KernelSpec
from superopt.machine.deadline import Deadline
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Timing
from superopt.measure.session import ComparisonSettings
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import Failure
from superopt.workshop.process import Worker
from tests.support.golden import MadeUp

IMPORTED = import_function(jnp.tanh, (np.ones((4, 4), np.float32),))
PROGRAM = original_program(IMPORTED.graph)
FAST_S, SLOW_S = 1e-4, 1e-1
Speed = Callable[[int, Any, list[float]], Timing | Failure]


def entry(name: str, *, kernels: bool = False, by_xla: frozenset[str] = frozenset()) -> Candidate:
    """A program of which XLA computes nothing with options, unless these are given."""
    own = (KernelSpec(0, ()),) if kernels else ()
    return MadeUp(name=name, program=replace(PROGRAM), kernels=own, operations=by_xla)


def timing(seconds: Sequence[float], base: Sequence[float]) -> Timing:
    return Timing(tuple(seconds), paired_ratio(base, seconds))


def steady(factor: float, base: list[float]) -> Timing:
    """A program of this speed."""
    return timing([s / factor * (1.0 + 1e-3 * (i % 2)) for i, s in enumerate(base)], base)


def held(
    monkeypatch: pytest.MonkeyPatch,
    entries: Sequence[Candidate],
    speed: Speed,
    *,
    original_s: float = FAST_S,
    deadline: Deadline | None = None,
    options: bool = False,
    instead: list[Any] | None = None,
) -> tuple[Outcome, list[tuple[int, list[int], ComparisonSettings]]]:
    """The outcome when programs have these speeds, by process; and for each batch its process, entries and settings.

    Args:
        instead: takes in what was timed in the place of the original.
    """
    instead = [] if instead is None else instead
    batches: list[tuple[int, list[int], ComparisonSettings]] = []
    processes: list[Any] = []

    def compare(reference: Any, candidates: Any, live: Any, frozen: Any, settings: Any, **way: Any) -> Comparison:
        worker = way.get("worker")
        if worker not in processes:
            processes.append(worker)
        number = processes.index(worker)
        base = [original_s * (1.0 + 1e-3 * (i % 3)) for i in range(settings.rounds)]
        batches.append((number, list(candidates), settings))
        rows = tuple(speed(number, candidate, base) for candidate in candidates)
        first = timing(base, base)
        if any(reference.program is e.program for e in entries):  # not the original
            instead.append(reference)
            told = speed(number, reference, base)
            first = told if isinstance(told, Timing) else first
        return Comparison(first, rows, again_s=tuple(base))

    monkeypatch.setattr(module, "compare", compare)
    request = Request(deadline or Deadline())
    with Worker() as worker, Rounds(Subject.of(IMPORTED), request, worker) as rounds:
        said = contest(rounds, entries, options=options)
    return said, batches


def named(entries: Sequence[Candidate], speeds: dict[str, float]) -> Speed:
    """Speeds by the name of the entry whose program it is."""
    names = {id(e.program): e.name for e in entries}
    return lambda process, what, base: steady(speeds[names[id(what.program)]], base)


def test_what_is_said_of_the_winner_comes_from_rounds_that_did_not_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch flatters one of many equal programs; the final tells that it is not faster."""
    entries = [entry(f"form {i}") for i in range(5)]
    lucky = entries[3].program
    seen: list[int] = []

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        seen.append(process)
        return steady(1.5 if program.program is lucky and len(seen) <= len(entries) else 1.0, base)

    said, batches = held(monkeypatch, entries, speed, original_s=SLOW_S)
    assert len(batches) >= 2
    assert len(batches[-1][1]) < len(entries)
    assert said.order == ()
    ratio = said.ratio(3)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(1.0, rel=0.01)
    seeds = [settings.seed for _, _, settings in batches]
    assert len(set(seeds)) == len(seeds)


def test_a_short_program_is_confirmed_in_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry("one"), entry("another")]
    speeds = {0: 1.5, 1: 1.25}

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        return steady(speeds[process] if program.program is entries[0].program else 1.0, base)

    said, batches = held(monkeypatch, entries, speed)
    assert said.order[0] == 0
    assert {process for process, _, _ in batches} == {0, 1}
    ratio = said.ratio(0)
    assert ratio is not None
    assert ratio.low <= 1.2501
    assert ratio.high >= 1.4985
    long_program, batches = held(monkeypatch, entries, lambda p, x, base: steady(1.5, base), original_s=SLOW_S)
    assert long_program.order
    assert {process for process, _, _ in batches} == {0}
    over = Deadline(0.0)
    short_of_time, batches = held(monkeypatch, entries, speed, deadline=over)
    assert short_of_time.order[0] == 0
    assert len(batches) == 1, "what chose is all there is"


@pytest.mark.parametrize("second", [0.97, None])
def test_what_another_process_does_not_confirm_is_not_returned(
    monkeypatch: pytest.MonkeyPatch, second: float | None
) -> None:
    def speed(process: int, program: Any, base: list[float]) -> Timing | Failure:
        if process and second is None:
            return Failure("crash", "SIGSEGV")
        return steady(second if process and second else 1.4, base)

    said, batches = held(monkeypatch, [entry("one"), entry("another")], speed)
    assert {process for process, _, _ in batches} >= {1}
    assert said.order == ()


def test_phases_of_the_machine_do_not_decide_between_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last form is the fastest, but shares a core in more than half of the rounds of every comparison."""
    entries = [entry(f"form {i}") for i in range(3)]

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        if program is entries[2]:
            return timing([s / 2.0 * (3.0 if i % 5 > 1 else 1.0) for i, s in enumerate(base)], base)
        return steady(1.3, base)

    series = Series(entries, 0)
    base = [FAST_S] * 31
    series.add(Comparison(timing(base, base), tuple(speed(0, e, base) for e in entries)), range(3), 0)
    assert series.ranked[0] == 2


def test_programs_of_kernels_are_returned_where_they_are_not_slower_others_where_they_are_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def level(process: int, program: Any, base: list[float]) -> Timing:
        return timing([s / 1.01 * (1.02 if i % 2 else 0.98) for i, s in enumerate(base)], base)

    kernels, _ = held(monkeypatch, [entry("ours", kernels=True)], level, original_s=SLOW_S)
    assert kernels.order == (0,)
    assert not kernels.is_faster(0)
    own = original_returned(IMPORTED, ChoiceReason.NO_TIME)
    assert decided(kernels, 0, own).why.reason is ChoiceReason.NOT_SLOWER
    by_xla, _ = held(monkeypatch, [entry("XLA's")], level, original_s=SLOW_S)
    assert by_xla.order == ()


def test_where_time_is_short_no_options_are_tried_and_nothing_is_built_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(process: int, program: Any, base: list[float]) -> Timing:
        return replace(steady(1.5, base), build_s=3.0)

    entries = [entry("one", by_xla=frozenset({"add"})), entry("another")]
    over = Deadline(0.0)
    said, batches = held(monkeypatch, entries, slow, original_s=SLOW_S, deadline=over, options=True)
    assert said.order
    assert said.build_s == 3.0
    assert said.tried == {}
    assert len(batches) == 1
    assert all(0.0 < settings.builds_s < 1.0 and 0.0 < settings.budget_s < 1.0 for _, _, settings in batches)


@pytest.mark.parametrize("kernels", [False, True], ids=["by XLA", "in kernels"])
@pytest.mark.parametrize("holds", [True, False])
def test_options_are_candidates_of_the_same_contest(
    monkeypatch: pytest.MonkeyPatch, kernels: bool, holds: bool
) -> None:
    """One choice pays, one does not, and one could not be tried; whether it holds in the final, the report says so."""
    choices = [OptionChoice(name, "", ((name, True),)) for name in ("good", "bad")]
    monkeypatch.setattr(contests, "choices_for", lambda ops: (choices, {"other": "absent"}) if ops else ([], {}))
    form = entry("form", kernels=kernels, by_xla=frozenset({"add"}))
    batches: list[int] = []

    def speed(process: int, what: Any, base: list[float]) -> Timing:
        options = dict(what.options)
        batches.append(len(options))
        late = batches.count(1) > 2
        factor = 1.0 if late and not holds else 1.2
        return steady(1.5 * (factor if "good" in options else 1.0) * (0.8 if "bad" in options else 1.0), base)

    said, _ = held(monkeypatch, [form], speed, original_s=SLOW_S, options=True)
    assert [t.choices for t in said.tried["form"]] == [("good",), ("bad",)]
    assert said.tried["form"][0].ratio == pytest.approx(1.2, rel=0.01)
    own = original_returned(IMPORTED, ChoiceReason.NO_TIME)
    judgement = decided(said, said.order[0], own)
    assert judgement.candidate.options == ({"good": True} if holds else {})
    assert judgement.tuning["choices"] == (["good"] if holds else [])
    assert (judgement.tuning["gain"] is not None) == holds
    assert judgement.tuning["not_tried"] == {"other": "absent"}
    assert any("did not hold" in note for note in judgement.notes) == (not holds)
    assert judgement.measured.speedup.ratio == pytest.approx(1.8 if holds else 1.5, rel=0.01)


def test_the_original_may_be_returned_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contests, "choices_for", lambda ops: ([OptionChoice("good", "", (("good", True),))], {}))

    def speed(process: int, what: Any, base: list[float]) -> Timing:
        return steady(1.3 if what.options else 0.9, base)

    for given in ([], [entry("form", by_xla=frozenset({"add"}))]):
        said, _ = held(monkeypatch, given, speed, options=True)
        own = original_returned(IMPORTED, ChoiceReason.NO_TIME)
        judgement = decided(said, said.order[0], own)
        assert judgement.returns_original
        assert judgement.candidate.options == {"good": True}
        assert judgement.why.reason is ChoiceReason.FASTER_WITH_OPTIONS
        assert said.chosen.base_of(said.order[0]) == ORIGINAL
        assert len(judgement.finalists) == len(given)


def test_exact_results_are_compared_in_every_bit_and_no_options_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ComparisonSettings] = []

    def compare(reference: Any, candidates: Any, live: Any, frozen: Any, settings: Any, **_: Any) -> Comparison:
        asked.append(settings)
        base = [SLOW_S] * settings.rounds
        assert not any(c.options for c in candidates)
        return Comparison(timing(base, base), tuple(steady(1.5, base) for _ in candidates), again_s=tuple(base))

    monkeypatch.setattr(module, "compare", compare)
    request = Request(Deadline(), numerics="exact")
    with Worker() as worker, Rounds(Subject.of(IMPORTED), request, worker) as rounds:
        said = contest(rounds, [entry("one", by_xla=frozenset({"add"}))])
    assert said.order == (0,)
    assert said.tried == {}
    assert all(settings.tolerance.normwise == 0.0 for settings in asked)


def noisy(median_s: float, spread: float, seed: int) -> Timing:
    rng = np.random.default_rng(seed)
    samples = tuple(median_s * np.exp(spread * rng.standard_normal(9)))
    return Timing(samples, paired_ratio(samples, samples))


def level(seconds: float) -> Timing:
    """Nine rounds about this median."""
    samples = tuple(seconds * (1.0 + 0.001 * (k % 3)) for k in range(9))
    return Timing(samples, paired_ratio(samples, samples))


def test_the_winner_is_the_fastest_that_is_not_slower_than_the_original_beyond_doubt() -> None:
    series = Series([entry(name, kernels=True) for name in "abc"], 0)
    rows = (level(8e-3), level(5e-3), Failure("crash", "it died"))
    series.add(Comparison(level(10e-3), rows, again_s=level(10e-3).samples_s), (0, 1, 2), 0)
    assert series.order == [1, 0]
    assert series.is_decided
    assert series.failures[2] == "crash: it died"
    slower = Series([entry("a", kernels=True)], 0)
    slower.add(Comparison(level(10e-3), (level(10.4e-3),), again_s=level(10e-3).samples_s), (0,), 0)
    assert slower.order == []
    assert slower.is_decided


def test_noise_is_not_decided_by_and_rounds_add_up() -> None:
    series = Series([entry("a", kernels=True)], 0)
    first = Comparison(noisy(10e-3, 0.4, 1), (noisy(9e-3, 0.4, 2),), again_s=noisy(10e-3, 0.4, 3).samples_s)
    series.add(first, (0,), 0)
    ratio = series.ratio(0)
    assert ratio is not None
    assert ratio.low < 1.0 / WORTH < ratio.high
    assert not series.is_decided
    for k in range(40):
        more = Comparison(
            noisy(10e-3, 0.1, 10 + k), (noisy(8e-3, 0.1, 100 + k),), again_s=noisy(10e-3, 0.1, 200 + k).samples_s
        )
        series.add(more, (0,), 0)
    assert series.is_decided
    assert series.order == [0]


def test_an_interval_of_a_factor_of_two_does_not_say_how_fast_a_program_is() -> None:
    """All of it is a gain: that a program is faster is known, but no number that is worth to be kept."""
    series = Series([entry("a", kernels=True)], 0)
    for process, seconds in enumerate((1.8e-3, 0.4e-3)):
        series.add(Comparison(level(10e-3), (level(seconds),), again_s=level(10e-3).samples_s), (0,), process)
    ratio = series.ratio(0)
    assert ratio is not None
    assert ratio.low > 5.0
    assert series.order == [0]
    assert not series.is_decided


def test_the_interval_covers_what_each_process_says() -> None:
    series = Series([entry("a")], 0)
    for process, factor in enumerate((5e-3, 7e-3)):
        series.add(Comparison(level(10e-3), (level(factor),), again_s=level(10e-3).samples_s), (0,), process)
    ratio = series.ratio(0)
    assert ratio is not None
    assert ratio.low <= 10.0 / 7.0 < 2.0 <= ratio.high


def test_what_was_left_early_is_compared_in_the_rounds_that_it_was_in() -> None:
    series = Series([entry("a")], 0)
    for scale in (1.0, 2.0):
        base = level(10e-3 * scale)
        row = replace(level(30e-3 * scale), samples_s=level(30e-3 * scale).samples_s[:3])
        series.add(Comparison(base, (row,), again_s=base.samples_s), (0,), 0)
    ratio = series.ratio(0)
    assert ratio is not None
    assert ratio.high < 0.34


def test_rounds_are_repeated_until_they_say_something(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        asked.append(process)
        swings = [1.5 if k % 2 else 0.6 for k in range(len(base))] if len(asked) < 3 else [0.9] * len(base)
        return timing([s * x for s, x in zip(base, swings, strict=True)], base)

    said, _ = held(monkeypatch, [entry("another", kernels=True)], speed, original_s=SLOW_S)
    assert len(asked) >= 3
    assert said.is_decided
    assert len(said.samples_s(ORIGINAL)) == 31 * len(asked)


def test_rounds_that_are_not_apart_are_of_one_process_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[dict[str, Any]] = []

    def compare(reference: Any, candidates: Any, live: Any, frozen: Any, settings: Any, **way: Any) -> Comparison:
        ways.append({**way, "end_s": settings.end_s})
        base = level(1e-4)
        return Comparison(base, tuple(level(5e-5) for _ in candidates), again_s=base.samples_s)

    monkeypatch.setattr(module, "compare", compare)
    imported: Imported = IMPORTED
    entries = [Candidate(name=name, program=PROGRAM) for name in "ab"]
    with Worker() as worker:
        with Rounds(Subject.of(imported), Request(Deadline()), worker, apart=False) as rounds:
            said = contest(rounds, entries)
        assert said.final.processes == 1
        assert len(ways) > 1
        assert all(way["worker"] is worker for way in ways)
        assert {way["end_s"] for way in ways} == {math.inf}
        begin_s = time.monotonic()
        with Rounds(Subject.of(imported), Request(Deadline(begin_s + 30.0)), worker, apart=False) as rounds:
            contest(rounds, entries)
        assert begin_s + 29.0 < ways[-1]["end_s"] < begin_s + 40.0


def test_where_there_is_no_candidate_and_no_option_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    said, batches = held(monkeypatch, [], lambda *_: Failure("build", "nothing"))
    assert said.order == ()
    assert batches == []


def test_what_is_left_when_all_of_the_final_fail_may_be_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry("fast", kernels=True), entry("near", kernels=True), entry("sound", kernels=True)]
    speeds = named(entries, {"fast": 3.0, "near": 2.99, "sound": 2.0})
    batches = [0]

    def speed(process: int, what: Any, base: list[float]) -> Timing | Failure:
        batches[0] += 1
        return speeds(process, what, base) if batches[0] <= len(entries) else Failure("crash", "in the final")

    said, _ = held(monkeypatch, entries, speed, original_s=SLOW_S)
    assert 0 not in said.order
    assert said.order[-1] == 2
    own = original_returned(IMPORTED, ChoiceReason.NO_TIME)
    judged = decided(said, 2, own)
    assert judged.noisy
    assert judged.measured.before_ms == pytest.approx(1e3 * SLOW_S, rel=0.01)


@pytest.mark.parametrize(("faster", "slower", "first"), [(1.3, 0.8, "plain"), (1.3, 1.1, "form"), (1.01, 1.01, "form")])
def test_the_plain_candidate_is_returned_unless_another_one_is_surely_faster(
    monkeypatch: pytest.MonkeyPatch, faster: float, slower: float, first: str
) -> None:
    """In rounds that swing a form of ResNet-50 looked faster than the plain candidate, and was 12 % slower."""
    entries = [replace(entry("plain", kernels=True), plain=True), entry("form", kernels=True)]

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        gains = (1.0, 1.0) if program.program is entries[0].program else (faster, slower)
        return timing([s / (2.0 * gains[i % 2]) for i, s in enumerate(base)], base)

    said, _ = held(monkeypatch, entries, speed, original_s=SLOW_S, deadline=Deadline())
    assert entries[said.order[0]].name == first
    assert said.final.samples_s(0), "the plain candidate takes part to the end"


@pytest.mark.parametrize("plain", [True, False])
def test_a_final_that_others_disturb_leaves_the_plain_candidate_if_all_rounds_say_that_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """No rounds have chosen it, so none flatter it: in a final beside other work the original would be returned."""
    entries = [replace(entry("own", kernels=True), plain=plain), entry("form", kernels=True)]
    rows: list[int] = []

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        rows.append(process)
        gains = (1.3, 1.3) if len(rows) <= len(entries) else (0.9, 0.99)
        return timing([s / gains[i % 3 > 0] for i, s in enumerate(base)], base)

    said, _ = held(monkeypatch, entries, speed, original_s=SLOW_S, deadline=Deadline())
    assert [entries[i].name for i in said.order] == (["own"] if plain else [])
    ratio = said.ratio(0)
    assert ratio is not None
    assert (ratio.ratio > 1.0) == plain, "what is told of it is of the rounds that decided"


@pytest.mark.parametrize("original_s", [SLOW_S, 4e-3])
def test_rounds_between_candidates_are_without_an_original_that_is_known_to_be_slower(
    monkeypatch: pytest.MonkeyPatch, original_s: float
) -> None:
    """ResNet-50 takes `jax.jit` 150 ms and the candidates 44 and 41: with it, five rounds took all of the time."""
    entries = [replace(entry("plain", kernels=True), plain=True), entry("form", kernels=True)]
    calls: list[int] = []

    def speed(process: int, program: Any, base: list[float]) -> Timing:
        calls.append(1)
        form = program.program is entries[1].program
        gains = (3.9, 2.4) if form and len(calls) < 4 else (3.3, 3.3) if form else (3.0, 3.0)  # undecided at first
        return timing([s / gains[i % 2] for i, s in enumerate(base)], base)

    instead: list[Any] = []
    said, batches = held(monkeypatch, entries, speed, original_s=original_s, deadline=Deadline(), instead=instead)
    short = original_s / 3.0 < module.SHORT_S
    assert bool(instead) != short, "short programs alternate between processes as they did"
    assert sum(not settings.check for _, _, settings in batches) == len(instead), "each is as far as allowed"
    assert all(reference.program is entries[0].program for reference in instead)
    assert entries[said.order[0]].name == "form"
    ratio = said.ratio(1)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(3.3, rel=0.01), "what is reported is from rounds with the original"


def test_a_candidate_that_fails_in_the_place_of_the_original_has_failed() -> None:
    """It was asked again until the end of the time."""
    entries = [replace(entry("plain", kernels=True), plain=True), entry("form", kernels=True)]
    series, base = Series(entries, 0), [SLOW_S * (1.0 + 1e-3 * (i % 3)) for i in range(10)]
    form = timing([s / (3.9, 2.4)[i % 2] for i, s in enumerate(base)], base)
    series.add(Comparison(timing(base, base), (steady(3.0, base), form), again_s=tuple(base)), [0, 1], 0)
    assert series.base == 0
    lost = Failure("crash", "SIGSEGV")
    series.add(Comparison(lost, (Failure("run", "nothing to compare with"),)), [1], 0, series.base)
    assert series.failures == {0: "crash: SIGSEGV"}
    assert series.base == ORIGINAL


def test_the_plain_candidate_loses_only_to_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is 1.66 times as fast by the median of rounds whose interval reaches below one."""
    plain = replace(entry("plain", kernels=True), plain=True)

    def swinging(process: int, what: Any, base: list[float]) -> Timing:
        return timing([s / 1.66 * (2.5 if i % 2 else 1.0) for i, s in enumerate(base)], base)

    said, _ = held(monkeypatch, [plain], swinging, original_s=SLOW_S, deadline=Deadline(0.0))
    ratio = said.ratio(0)
    assert ratio is not None
    assert ratio.low < 1.0 / WORTH < 1.0 < ratio.ratio
    assert said.order == (0,)
    other, _ = held(
        monkeypatch, [entry("other", kernels=True)], swinging, original_s=SLOW_S,
        deadline=Deadline(0.0),
    )  # fmt: skip
    assert other.order == (), "what the search found has to be surely not slower"
    slow, _ = held(monkeypatch, [plain], lambda p, x, base: steady(0.9, base), original_s=SLOW_S)
    assert slow.order == (), "it is slower, and no doubt about it"


def test_a_noisy_final_decides_with_the_rounds_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that chose say 2.0 beyond doubt, those of the final swing about it: together they say 2.0."""
    form = entry("form", kernels=True)
    other = entry("other", kernels=True)
    batches: list[int] = []

    def speed(process: int, what: Any, base: list[float]) -> Timing:
        batches.append(1)
        if what.program is other.program:
            return steady(1.2, base)
        if len(batches) <= 2:
            return steady(2.0, base)
        return timing([s / 2.0 * (3.0 if i % 2 else 1.0) for i, s in enumerate(base)], base)

    said, _ = held(monkeypatch, [form, other], speed, original_s=SLOW_S)
    assert said.order[:1] == (0,)


@pytest.mark.parametrize(
    ("factor", "rounds", "slower"),
    [(0.9, 31, True), (0.99, 31, False), (0.9, 2, False), (0.4, 1, True), (0.5, 1, False), (1.2, 31, False)],
)
def test_a_program_is_slower_beyond_doubt_by_many_rounds_or_by_much(factor: float, rounds: int, slower: bool) -> None:
    series = Series([entry("a")], 0)
    base = timing([SLOW_S] * rounds, [SLOW_S] * rounds)
    other = timing([SLOW_S / factor] * rounds, [SLOW_S] * rounds)
    series.add(Comparison(base, (other,), again_s=base.samples_s), (0,), 0)
    assert series.is_slower(0) == slower


def test_one_call_of_an_original_that_takes_too_long_for_rounds_is_enough() -> None:
    """It is not called again: what it took is in all rounds, and the interval says that it was one call."""
    entries = [replace(entry("plain", kernels=True), plain=True), entry("other")]
    series, known = Series(entries, 0), [5.0] * 10
    reference = Timing(tuple(known), Speedup(1.0, 0.0, math.inf))
    series.add(Comparison(reference, (steady(200.0, known), steady(3.0, known))), [0, 1], 0)
    ratio = series.ratio(0)
    assert ratio is not None
    assert ratio.low < 150.0 < 200.0 < 250.0 < ratio.high
    assert series.is_decided
    assert series.order == [0, 1]
    assert series.noise_floor == pytest.approx(2.0**0.5 - 1.0)
    assert series.base == 0, "the next rounds are of the candidates alone"
    slower = Series(entries, 0)
    slower.add(Comparison(reference, (steady(0.3, known),)), [0], 0)
    assert slower.is_slower(0)
    assert slower.order == []


@pytest.mark.parametrize(("call_s", "known"), [(1.0, 0.0), (5.0, 5.0)])
def test_an_original_is_called_in_rounds_only_where_the_fewest_end_in_the_time(call_s: float, known: float) -> None:
    assert (0.0 if rounds_fit(call_s, 30.0) else call_s) == known


def test_rounds_are_expected_to_take_as_long_as_calls_and_builds_did() -> None:
    """Programs that took long to build are kept, and need no build where they were built before."""
    slow, fast = 2.0, 0.25
    base = replace(timing([0.1] * 5, [0.1] * 5), build_s=slow)
    row = replace(timing([0.06] * 5, base.samples_s), build_s=fast)
    series = Series([entry("a")], 0)
    series.add(Comparison(base, (row,), again_s=base.samples_s), (0,), 0)
    with Worker() as worker, Rounds(Subject.of(IMPORTED), Request(Deadline()), worker) as rounds:
        assert rounds.expected_s(1, series, built=False) == pytest.approx(3 * 0.5 + slow + fast)
        assert rounds.expected_s(2, series, built=True) == pytest.approx(4 * 0.5 + 2 * fast)
        assert rounds.expected_s(1, series, built=True, base=0) == pytest.approx(3 * 0.3 + fast)
        rounds.known_s = 5.0
        assert rounds.expected_s(1, series, built=True) == pytest.approx(3 * 31 * 6e-3 + fast)
        assert rounds.expected_s(1, series, built=True, base=0) == pytest.approx(3 * 0.3 + fast)
    assert least_s(0.1, 0.2) == pytest.approx(6.0)


@pytest.mark.parametrize(("call_s", "fits"), [(2.5, True), (2.6, False)])
def test_the_fewest_rounds_call_the_original_twelve_times(call_s: float, fits: bool) -> None:
    assert rounds_fit(call_s, 30.0) == fits
