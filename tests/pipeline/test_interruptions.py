"""Ctrl-C while programs are measured: what was found is returned, nothing more is begun, nothing is kept."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest

import superopt
import superopt.contest.contest
from rewrites.library import load
from superopt.candidates.ledger import Chosen
from superopt.make.plain import KernelMaker
from superopt.pipeline import building, checking, contesting, exploring, finishing, plain

A, B = [np.random.default_rng(seed).standard_normal((256, 256)).astype(np.float32) for seed in (0, 1)]


def product(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    return (a @ b) @ x


def interrupt(*args: Any, **kwargs: Any) -> Chosen:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at hand is checked, however busy the machine is."""
    monkeypatch.setattr(checking, "AFTER_S", 60.0)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the stages begun so far."""
    names: list[str] = []
    for module, name in ((contesting, "contest"), (finishing, "remember")):
        stage = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, _name=name, _stage=stage, **k: names.append(_name) or _stage(*a, **k)
        )
    return names


def run(**options: Any) -> superopt.Optimized:
    x = np.ones((256, 1), np.float32)
    rules = [rule for rule in load() if rule.name == "dot-assoc"]
    fast = superopt.optimize(product, A, B, x, budget="50steps", store=False, rules=rules, **options)
    np.testing.assert_allclose(fast(A, B, x), product(A, B, x), rtol=1e-3, atol=1e-3)
    return fast


def test_nothing_begins_after_measuring_was_interrupted(monkeypatch: pytest.MonkeyPatch, begun: list[str]) -> None:
    monkeypatch.setattr(superopt.contest.contest._Contest, "held", interrupt)
    assert "measuring was interrupted" in run(kernels=False).report.verdict
    assert begun == ["contest"]


def test_nothing_begins_after_the_search_of_schedules_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    monkeypatch.setattr(KernelMaker, "searched", interrupt)
    report = run().report
    assert "interrupted" in " ".join((report.verdict, *report.notes))
    assert begun == []


@pytest.mark.parametrize(("module", "name"), [(exploring, "proved_library"), (building, "validation_s")])
def test_stages_before_the_search_keep_the_plain_candidate(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, interrupt)
    fast = run()
    assert "plain program returned; the search was interrupted" in fast.report.verdict
    assert fast.kernels


def test_an_interruption_before_there_is_a_plain_candidate_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "plain_candidate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run()


def test_an_interrupted_contest_keeps_the_plain_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelMaker, "searched", lambda *_: None)
    monkeypatch.setattr(contesting, "contest", interrupt)
    fast = run()
    assert "the search was interrupted" in fast.report.verdict
    assert fast.kernels


def test_an_interruption_of_the_gains_keeps_the_winner(monkeypatch: pytest.MonkeyPatch, begun: list[str]) -> None:
    monkeypatch.setattr(contesting, "measured_gains", interrupt)
    monkeypatch.setattr(contesting, "contest", functools.partial(contesting.contest, options=False))
    assert run(kernels=False).report.verdict == "faster program returned"
    assert begun == ["contest"]


def test_an_ignored_ctrl_c_is_heeded_by_commands() -> None:
    code = (
        "import signal, time; from superopt.commands.console import guarded; "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); guarded(lambda: print('on', flush=True) or time.sleep(60))"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=30)
    assert (command.returncode, told) == (130, "superopt: interrupted\n")


def test_an_interruption_of_the_check_keeps_the_program_that_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = checking.compare_with_original

    def interrupted(*args: Any) -> Any:
        time.sleep(0.1)  # the main thread waits by then
        os.kill(os.getpid(), signal.SIGINT)
        return compared(*args)

    monkeypatch.setattr(checking, "compare_with_original", interrupted)
    report = run(kernels=False).report
    assert not report.original_returned
    assert not report.not_chosen  # the user waits
