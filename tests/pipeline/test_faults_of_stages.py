"""A stage that fails does not lose the program, which is returned and right; the report says what was done without."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import superopt
from superopt.errors import UsageError
from superopt.lab.bench.faults.results import MEASURED, MODEL_ALONE, WITH_KERNELS, Fault, failing, faults, inject
from superopt.machine.budget import parse_budget
from superopt.machine.fallback import Fallback, StageWarning
from superopt.report.data import read_report
from tests.support.sampling import one_in, sampled

pytestmark = pytest.mark.usefixtures("workers_quickly")
STAGES = {
    "superopt.explain.drawing:draw": MODEL_ALONE,
    "superopt.explain.evidence:not_chosen": MODEL_ALONE,
    "superopt.explore.trace:make_plan": MODEL_ALONE,
    "superopt.explain.summary:make_report": MODEL_ALONE,
    "superopt.explore.exploration:explore": MODEL_ALONE,
    "superopt.search.search:search": MODEL_ALONE,
    "superopt.contest.checks:check": MODEL_ALONE,
    "superopt.contest.contest:contest": MEASURED,
    "superopt.make.forms:forms_of": WITH_KERNELS,
}
BEFORE = (
    "superopt.returned.remember:run_key",
    "superopt.store.sqlite:_prepare",
    "superopt.store.sqlite:Store.put_many",
)


def fault(stage: str, target: str) -> Fault:
    return Fault(stage, target, STAGES.get(target, MODEL_ALONE))


def missing() -> KeyError:
    return KeyError(-3)


BOTH = [
    (target, error)
    for target, options in STAGES.items()
    if options is MODEL_ALONE
    for error in (missing, MemoryError, KeyboardInterrupt)
]


@pytest.mark.parametrize(("target", "error"), sampled(BOTH, one_in(4, lambda case: [case[0]])))
def test_a_stage_that_fails_does_not_lose_the_program(target: str, error: type[BaseException]) -> None:
    outcome = inject(fault("search", target), error)
    assert (outcome.met, outcome.lost) == (True, "")


def test_a_judgement_that_fails_does_not_lose_the_program() -> None:
    outcome = inject(fault("judgement", "superopt.contest.contest:contest"), RuntimeError)
    assert (outcome.met, outcome.lost) == (True, "")


def test_the_original_is_returned_where_the_choice_of_it_fails() -> None:
    outcome = inject(Fault("judgement", "superopt.contest.choices:original_returned", MEASURED), MemoryError)
    assert (outcome.met, outcome.lost) == (True, "")


@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize("name", ["_started", "_drain", "_Queue.take", "_Queue.finish"])
def test_a_workshop_that_fails_does_not_hang(name: str) -> None:
    outcome = inject(Fault("processes", f"superopt.workshop.scheduler:{name}", WITH_KERNELS), KeyError)
    assert (outcome.met, outcome.lost) == (True, "")


def test_ctrl_c_before_there_is_a_program_ends_the_call() -> None:
    outcome = inject(Fault("timing", "superopt.measure.compare:_program", MEASURED), KeyboardInterrupt)
    assert (outcome.met, outcome.lost) == (True, "")


@pytest.mark.usefixtures("unsearched")
def test_kernels_that_fail_do_not_lose_the_program() -> None:
    outcome = inject(fault("kernels", "superopt.make.forms:forms_of"), RuntimeError)
    assert (outcome.met, outcome.lost) == (True, "")


@pytest.mark.parametrize("target", BEFORE)
def test_a_store_that_fails_does_not_lose_the_program(target: str) -> None:
    outcome = inject(fault("store", target), lambda: OSError(28, "No space left on device"))
    assert (outcome.met, outcome.lost) == (True, "")


@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize("error", [lambda: OSError(28, "No space left on device"), KeyboardInterrupt])
@pytest.mark.parametrize(
    "target",
    [
        "superopt.workshop.scheduler:sole_worker", "superopt.workshop.process:Worker.__init__",
        "superopt.make.trials:TrialPool.__init__", "superopt.pipeline.weights:Shelf.imported",
    ],
)  # fmt: skip
def test_processes_that_cannot_be_set_up_do_not_lose_the_program(
    target: str, error: Callable[[], BaseException]
) -> None:
    outcome = inject(Fault("processes", target, WITH_KERNELS), error)
    assert (outcome.met, outcome.lost) == (True, "")


@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize(
    "target",
    [
        "superopt.workshop.forks:load", "superopt.workshop.cluster:executor_at",
        "superopt.contest.checks:OriginalRuns.of", "superopt.pipeline.beside:kept_for_peers",
        "superopt.pipeline.finishing:finished", "superopt.frontends.jax.walk:Importer.run",
    ],
)  # fmt: skip
def test_what_stands_between_the_stages_does_not_lose_the_program(target: str) -> None:
    outcome = inject(Fault("between", target, WITH_KERNELS), lambda: RuntimeError("a fault"))
    assert (outcome.met, outcome.lost) == (True, "")


def test_a_program_whose_import_fails_is_that_of_jax() -> None:
    met: list[str] = []
    x = np.ones((4, 4), np.float32)
    with failing("superopt.frontends.jax.walk:Importer.run", lambda: KeyError("jaxpr"), met):
        with pytest.warns(StageWarning, match="kept whole"):
            result = superopt.optimize(lambda x: x * 2.0, x, budget="20steps", deterministic=True, store=False)
        with pytest.warns(StageWarning, match="kept whole"):
            np.testing.assert_array_equal(superopt.jit(lambda x: x + 1.0, budget="20steps", store=False)(x), x + 1.0)
    assert met
    assert "its import failed: KeyError" in result.report.verdict
    np.testing.assert_array_equal(result(x), 2.0 * x)


def test_an_original_that_cannot_be_sent_to_a_process_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    x = np.ones((4, 4), np.float32)
    monkeypatch.setattr("superopt.contest.checks.is_short", lambda graph: False)  # it is called in a process
    with (
        failing("superopt.measure.compare:ran", lambda: OSError(28, "No space left on device"), met),
        pytest.warns(StageWarning, match="No space left"),
    ):
        result = superopt.optimize(lambda x: x @ x, x, search=False, store=False)
    assert met
    assert result.report.original_returned
    assert result.report.before_text, "the rest of the report is there"
    np.testing.assert_array_equal(result(x), x @ x)


def test_after_ctrl_c_no_stage_begins() -> None:
    met: list[str] = []
    x = np.ones((4, 4), np.float32)
    with failing("superopt.pipeline.weights:Shelf.imported", KeyboardInterrupt, met):
        result = superopt.optimize(lambda x: x @ x, x, budget="20steps", store=False)
    assert met
    assert [stage.name for stage in result.report.stages] == ["import", "model"]
    assert "interrupted" in result.report.verdict


def test_the_report_says_what_was_done_without() -> None:
    met: list[str] = []
    x = np.ones((4, 4), np.float32)
    with (
        failing("superopt.explain.drawing:draw", lambda: KeyError(-3), met),
        pytest.warns(StageWarning, match="the drawing"),
    ):
        result = superopt.optimize(lambda x: x * 1.0, x, budget="20steps", deterministic=True, store=False, rules=[])
    assert met
    assert result.report.lost["the drawing"].startswith("failed: KeyError: -3 (results.py, line ")
    assert "done without the drawing" in str(result.report)
    assert read_report(result.report.to_json()).lost == result.report.lost


def test_errors_of_the_caller_pass_the_barrier() -> None:
    with pytest.raises(UsageError):
        Fallback().around("the budget", lambda: parse_budget("0s"), None, let=(UsageError,))


def test_a_barrier_keeps_what_happened() -> None:
    fallback = Fallback()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fallback.around("a", lambda: 1 / 0, 3) == 3

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert fallback.around("b", interrupted, 4) == 4
    assert fallback.interrupted
    assert list(fallback.lost) == ["a", "b"]
    assert fallback.notes[0].startswith("done without a, which failed: ZeroDivisionError: division by zero (test_")
    assert fallback.notes[1] == "done without b, which was interrupted"


def test_a_stage_is_not_lost_to_its_warning() -> None:
    """Where warnings are errors, as under pytest, what takes the place of a stage is returned all the same."""
    fallback = Fallback()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fallback.around("a", lambda: 1 / 0, 3) == 3
    assert list(fallback.lost) == ["a"]


def test_every_stage_has_faults() -> None:
    found = {f.stage for f in faults()}
    assert found >= {"search", "growth", "plan", "report", "store", "judgement", "kernels", "timing", "processes"}
    assert len(faults()) > 300
