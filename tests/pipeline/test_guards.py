"""Guards between a wrong, slow or unfinished program and its user: each test is red when one of them is taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from superopt.backends.mixed import whole_kernel
from superopt.candidates.candidate import Candidate, Provenance, original_candidate
from superopt.candidates.evidence import NumericCheck
from superopt.candidates.ledger import ChoiceReason, Chosen, Compared, Rejected, RunLedger, Validated, Why
from superopt.certify.kernels import Refutation, ValidatedCode
from superopt.contest.checks import OriginalLostError
from superopt.contest.choices import original_returned
from superopt.contest.rounds import Series
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.choose.regions import Region
from superopt.kernels.choose.specs import NATIVE
from superopt.machine.deadline import Deadline
from superopt.machine.fallback import Fallback, StageWarning
from superopt.make import schedules
from superopt.make.plain import KernelMaker, fits, in_regions, own_form
from superopt.make.schedules import ScheduleStage
from superopt.make.trials import Trial
from superopt.measure import Comparison, Timing
from superopt.measure.stats import paired_ratio
from superopt.pipeline import checking, contesting, exploring, finishing, forming, plain, validating
from superopt.pipeline.state import RunState
from superopt.workshop.job import Failure

IMPORTED = import_function(lambda x: jnp.tanh(x) * 2.0, (np.ones((3, 4), np.float32),))
GRAPH = IMPORTED.graph
FORM = own_form(GRAPH)
ORIGINAL = original_returned(IMPORTED, ChoiceReason.NONE_FASTER)
KERNELS = (whole_kernel(FORM, FORM.hot, (), NATIVE),)
ANY: Any = None


def candidate(name: str, **changes: Any) -> Candidate:
    return Candidate(name=name, program=FORM, **changes)


def chosen(name: str, **changes: Any) -> Chosen:
    return Chosen(candidate(name, **changes), why=Why(ChoiceReason.FASTER))


def session(**changes: Any) -> Any:
    """A session in which no process runs and everything is thrown away."""
    nothing = SimpleNamespace(say=lambda line: None, elapsed_s=1.0)
    request = SimpleNamespace(searches=True, deterministic=False, keeps_plain=False, kernels_by="native", seed=0)
    runs = SimpleNamespace(has_run=False, build_s=0.0, call_s=0.0, end_s=float("inf"))
    return SimpleNamespace(
        **{
            "imported": IMPORTED, "runs": runs, "fallback": Fallback(), "ledger": RunLedger(), "clock": nothing,
            "entered": lambda one: one, "end": lambda *processes: None, "worker": ANY, "pool": ANY, "alone": ANY,
            "maker": ANY, "kernel_maker": ANY, "kernels": True, "request": request, "deadline": Deadline(), **changes,
        }
    )  # fmt: skip


# ---- schedules


def rounds(monkeypatch: pytest.MonkeyPatch, default_s: float, searched_s: float | None) -> None:
    """Let the rounds of both schedules be of these seconds, where the second can be timed."""

    def timing(seconds: float) -> Timing:
        series = (seconds,) * 31
        return Timing(series, paired_ratio(series, series))

    def duel(rounds: Any, entries: Sequence[Candidate]) -> Series:
        series = Series(entries, 0)
        searched = Failure("crash", "it died") if searched_s is None else timing(searched_s)
        found = Comparison(timing(1e-3), (timing(default_s), searched), again_s=(1e-3,) * 31)
        series.add(found, (0, 1), 0)
        return series

    monkeypatch.setattr(schedules, "duel", duel)


@pytest.mark.parametrize(
    ("searched_s", "is_taken"), [(0.5e-3, True), (1e-3, False), (2e-3, False), (None, False)]
)  # fmt: skip
def test_a_searched_schedule_is_taken_where_it_is_faster_beyond_doubt(
    monkeypatch: pytest.MonkeyPatch, searched_s: float | None, is_taken: bool
) -> None:
    rounds(monkeypatch, 1e-3, searched_s)
    proved = SimpleNamespace(name=NATIVE, prove=lambda *_: SimpleNamespace(proved=True))
    pool: Any = SimpleNamespace(backend=proved, make_all=lambda jobs: [()])
    region: Any = SimpleNamespace(graph=GRAPH)
    default = Trial("tanh", "map", ANY)
    found = ScheduleStage(pool, ANY)._better(region, default, (("tile", "i", 4),), Deadline())
    assert found.searched is is_taken
    assert (found.trace != default.trace) is is_taken


# ---- kernels


def test_kernels_that_were_refused_are_not_used_again() -> None:
    backend = SimpleNamespace(name=NATIVE, can_run=lambda graph: True)
    pool: Any = SimpleNamespace(backend=backend, start=lambda: None, ready=lambda end_s: True, batch=1, spent_s=0.0)
    maker = KernelMaker(pool)
    form = in_regions("own form", FORM)
    maker.refuse(form.regions, "its machine code is wrong")
    assert maker.make(form).kernels == ()
    assert {row.failure for row in maker.rows(form)} == {"its machine code is wrong"}


def test_programs_whose_kernels_pack_too_much_have_none() -> None:
    said: list[str] = []

    def keeps_within(most: int | None) -> bool:
        return fits("form", form, kernels, most, said.append)

    weights = import_function(
        lambda w, x: x @ w, (np.ones((64, 64), np.float32), np.ones((8, 64), np.float32)), frozen=0
    )
    form = own_form(weights.graph)
    kernels = (whole_kernel(form, form.hot, (), NATIVE),)
    assert keeps_within(None)
    assert keeps_within(1 << 20)
    assert said == []
    assert not keeps_within(64)
    assert said == ["form: what kernels pack is more than max_prepared_bytes allows"]


# ---- the plain candidate


@pytest.mark.parametrize("made", [None, replace(original_candidate(GRAPH), name="own form")])
def test_without_a_plain_candidate_the_original_is_returned(
    monkeypatch: pytest.MonkeyPatch, made: Candidate | None
) -> None:
    monkeypatch.setattr(plain, "plain_candidate", lambda *_, **__: made)
    run = session(pool=SimpleNamespace(backend=SimpleNamespace(unavailable=lambda: "")))
    run.fallback.lost["the plain candidate"] = "it failed"
    found = plain.make_alone(run, RunState()).otherwise
    assert found is not None
    assert found.returns_original
    assert found.why.reason is (ChoiceReason.STAGE_LOST if made is None else ChoiceReason.NOTHING_TO_DO)


def test_a_plain_candidate_that_changes_nothing_is_no_candidate() -> None:
    def making(made: Candidate | None) -> Any:
        return SimpleNamespace(result=lambda: made)

    for made in (None, candidate("own form", origin=Provenance.OWN_FORM)):
        assert plain.join_plain(session(), RunState(making=making(made))).made == ()
    (found,) = plain.join_plain(session(), RunState(making=making(candidate("a")))).made
    assert found.plain


@pytest.mark.parametrize(
    ("setting", "otherwise", "timed"),
    [
        ({}, chosen("plain"), True), ({}, ORIGINAL, False), ({}, None, False),
        ({"deterministic": True}, chosen("plain"), False), ({"keeps_plain": True}, chosen("plain"), False),
    ],
)  # fmt: skip
def test_the_plain_candidate_is_timed_where_it_may_be_refused(
    setting: dict[str, bool], otherwise: Chosen | None, timed: bool
) -> None:
    run = session()
    run.request = SimpleNamespace(**{**vars(run.request), **setting})
    assert plain.times_plain(run, RunState(otherwise=otherwise)) is timed


# ---- forms of the search


@pytest.mark.parametrize(
    ("changes", "state", "wanted"),
    [
        ({}, {}, True), ({}, {"hurried": True}, False), ({}, {"made": ()}, False), ({}, {"found": None}, False),
        ({"kernel_maker": None}, {}, False), ({"interrupted": True}, {}, False), ({"left_s": 0.1}, {}, False),
    ],
)  # fmt: skip
def test_schedules_are_searched_where_there_is_a_program_and_time(
    changes: dict[str, Any], state: dict[str, Any], wanted: bool
) -> None:
    run = session(kernel_maker=changes.get("kernel_maker", SimpleNamespace()))
    run.fallback.interrupted = "interrupted" in changes
    limits = Deadline.within(changes.get("left_s", 600.0))
    made = (candidate("a", predicted_s=1.0, kernels=KERNELS),)
    found: Any = SimpleNamespace(interrupted=False)
    before = RunState(**{"found": found, "made": made, "limits": limits, **state})
    assert forming.searches_schedules(run, before) is wanted


def test_schedules_are_searched_for_the_program_that_is_predicted_to_be_fastest() -> None:
    made = tuple(candidate(name, predicted_s=s, kernels=KERNELS) for name, s in (("a", 2.0), ("b", 1.0), ("c", 3.0)))
    asked: list[str] = []

    def searched(form: Candidate, *_: Any) -> Candidate | None:
        asked.append(form.name)
        return candidate("found") if len(asked) == 1 else None

    run = session(maker=SimpleNamespace(searched=searched), worker=None)
    state = RunState(made=made)
    assert [one.name for one in forming.search_schedules(run, state).made] == ["a", "b", "c", "found"]
    assert forming.search_schedules(run, state).made == made
    assert asked == ["b", "b"]


# ---- the check


def checked(
    monkeypatch: pytest.MonkeyPatch, run: Any, proposals: Sequence[Chosen], wrong: Sequence[str],
    refuted: Callable[[int], dict[int, Refutation]] = lambda count: {}, lost: Sequence[str] = (),
    otherwise: Chosen = ORIGINAL,
) -> Chosen:  # fmt: skip
    """The choice where the check refuses these candidates, and validation these of their kernels."""

    def compared(one: Candidate, runs: Any) -> Compared:
        if one.name in lost:
            raise OriginalLostError("it has no result")
        return Compared(one, NumericCheck(0.0), "other results" if one.name in wrong else "")

    def validate(hot: Any, kernels: Sequence[Any], *_: Any) -> ValidatedCode:
        return ValidatedCode(refuted=refuted(len(kernels)))

    monkeypatch.setattr(checking, "compare_with_original", compared)
    monkeypatch.setattr(validating, "validate_code", validate)
    found = checking.check(run, RunState(proposals=tuple(proposals), otherwise=otherwise)).choice
    assert found is not None
    return found


def test_the_first_proposal_that_computes_the_same_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    run, proposals = session(), [chosen("wrong"), chosen("right"), chosen("later")]
    assert checked(monkeypatch, run, proposals, ["wrong"]).candidate.name == "right"
    assert [one.candidate.name for one in run.ledger.of(Rejected)] == ["wrong"]
    run = session()
    assert checked(monkeypatch, run, proposals, ["wrong", "right"], lost=["later"]).returns_original
    assert [one.candidate.name for one in run.ledger.of(Rejected)] == ["wrong", "right", "later"]
    run = session()
    assert checked(monkeypatch, run, [], ["plain"], otherwise=chosen("plain")).returns_original
    assert [one.candidate.name for one in run.ledger.of(Rejected)] == ["plain"]
    options = Chosen(original_candidate(GRAPH).with_options(("fast",), {"fast": True}), why=ANY)
    assert options.needs_check


def test_kernels_whose_machine_code_is_wrong_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[Region] = []
    run = session(maker=SimpleNamespace(refuse=lambda regions, cause: refused.extend(regions)))
    wrong = {0: Refutation("tanh", "a difference")}
    with pytest.warns(StageWarning, match="the code of the kernel tanh"):
        found = checked(monkeypatch, run, [chosen("a", kernels=KERNELS)], [], lambda count: wrong if count else {})
    assert (found.candidate.name, found.candidate.kernels) == ("a", ())
    assert found.why.reason is ChoiceReason.CODE_WRONG
    assert len(refused) == 1


def test_validation_that_fails_validates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(count: int) -> dict[int, Refutation]:
        raise RuntimeError("it fails")

    run = session()
    with pytest.warns(StageWarning, match="validation of machine code"):
        assert checked(monkeypatch, run, [chosen("a", kernels=KERNELS)], [], failing).candidate.name == "a"
    assert run.ledger.of(Validated) == []
    assert "it fails" in run.fallback.lost["the validation of machine code"]


# ---- what is at hand, and what is kept


def test_what_is_cut_off_returns_the_plain_candidate_or_the_original() -> None:
    one = candidate("plain", plain=True)
    run = session(request=SimpleNamespace(searches=True, kernels_by=""), kernels=False)
    found = contesting.at_hand(run, RunState(plain=one, made=(one,), proposals=(chosen("a"),)))
    assert found.otherwise is not None
    assert (found.proposals, found.otherwise.candidate) == ((), one)
    assert not found.otherwise.interrupted
    run.fallback.interrupted = True
    found = contesting.at_hand(run, RunState())
    assert found.otherwise is not None
    assert (found.otherwise.returns_original, found.otherwise.interrupted) == (True, True)
    assert not contesting.contests(run, RunState(made=(one,)))


@pytest.mark.parametrize(
    ("choice", "lost", "rejected", "found", "kept"),
    [
        (chosen("a"), False, False, True, True), (chosen("a"), True, False, True, False),
        (replace(chosen("a"), interrupted=True), False, False, True, False),
        (replace(chosen("a"), noisy=True), False, False, True, True), (ORIGINAL, False, False, True, True),
        (replace(ORIGINAL, noisy=True), False, False, True, False), (ORIGINAL, False, True, True, False),
        (ORIGINAL, False, False, False, False), (chosen("a"), False, False, False, True),
    ],
)  # fmt: skip
def test_results_that_another_run_may_better_are_not_kept(
    choice: Chosen, lost: bool, rejected: bool, found: bool, kept: bool
) -> None:
    run = session()
    if lost:
        run.fallback.lost["a stage"] = "a cause"
    if rejected:
        run.ledger.add(Rejected(candidate("b"), Why(ChoiceReason.WRONG_RESULTS)))
    exploration: Any = SimpleNamespace() if found else None
    assert finishing._is_kept(run, RunState(found=exploration), choice) is kept


# ---- the search


@pytest.mark.parametrize(
    ("left_s", "hurried", "wanted"), [(600.0, False, True), (0.0, False, False), (600.0, True, False)]
)
def test_a_search_is_begun_where_there_is_time(left_s: float, hurried: bool, wanted: bool) -> None:
    run = session(budget=SimpleNamespace(is_kept=True))
    state = RunState(limits=Deadline.within(left_s), hurried=hurried)
    assert exploring.explores(run, state) is wanted
    begun: Any = SimpleNamespace(is_searched=True)
    assert exploring.explores(run, replace(state, begun=begun)), "what has begun goes on"
