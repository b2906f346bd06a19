"""The measuring worker: faults become data, the others go on, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superopt.measure import EntryPoint, Timing, compare
from superopt.measure.session import ComparisonSettings
from superopt.workshop.job import Failure
from superopt.workshop.process import ProcessLimits, Worker

HERE = str(Path(__file__).parents[1] / "support")
X = np.linspace(0.0, 1.0, 64, dtype=np.float32)
FROZEN = {"bias": np.ones(64, np.float32)}
QUICK = ComparisonSettings(5, 0.0005)


def entry(name: str) -> EntryPoint:
    return EntryPoint(f"measure_faults:{name}", HERE)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_programs_are_timed_where_memory_is_kept() -> None:
    with Worker() as worker:
        (found,) = compare(entry("good"), [entry("waits_for_pages")], [X], FROZEN, QUICK, worker=worker).candidates
    assert isinstance(found, Timing), found


def test_every_fault_is_data_and_the_rest_is_timed() -> None:
    names = ["raises", "segfault", "same", "exits", "wrong", "aborts", "shouts", "crashes_when_timed", "slow"]
    with Worker(ProcessLimits(silence_s=60.0)) as worker:
        result = compare(entry("good"), [entry(n) for n in names], [X], FROZEN, QUICK, worker=worker)
        assert worker.started == 5  # one at first, one after each of the four deaths
    by_name = dict(zip(names, result.candidates, strict=True))
    causes = {n: c.cause for n, c in by_name.items() if isinstance(c, Failure)}
    assert causes == {
        "raises": "build", "segfault": "crash", "exits": "exit", "wrong": "numerics", "aborts": "crash",
        "crashes_when_timed": "crash",
    }  # fmt: skip
    assert "cannot be built" in by_name["raises"].detail
    assert "SIGSEGV" in by_name["segfault"].detail
    assert "status 7" in by_name["exits"].detail
    assert by_name["wrong"].errors[0].normwise == pytest.approx(0.0066, rel=0.2)
    slow = by_name["slow"]
    assert isinstance(slow, Timing)
    assert slow.pruned
    assert slow.ratio.high < 0.5
    same = by_name["same"]
    assert isinstance(same, Timing)
    assert len(same.samples_s) == 5
    assert same.errors[0].normwise < 1e-6
    assert isinstance(result.reference, Timing)
    assert result.noise_floor >= 0.0
    assert result.isolated


def test_endless_loop_and_hungry_candidate_are_stopped() -> None:
    started = time.monotonic()
    limits = ProcessLimits(silence_s=6.0, memory_bytes=1 << 30)
    with Worker(limits) as worker:
        candidates = [entry("hangs"), entry("eats_memory"), entry("same")]
        result = compare(entry("good"), candidates, [X], FROZEN, QUICK, worker=worker)
    hang, eater, same = result.candidates
    assert isinstance(hang, Failure)
    assert hang.cause == "timeout"
    assert isinstance(eater, Failure)
    assert eater.cause == "memory"
    assert isinstance(same, Timing)
    assert time.monotonic() - started < 60.0


def test_forked_children_die_with_the_worker(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    frozen = {**FROZEN, "pidfile": np.frombuffer(str(pidfile).encode(), np.uint8)}
    with Worker(ProcessLimits(silence_s=4.0)) as worker:
        result = compare(entry("good"), [entry("forks")], [X], frozen, QUICK, worker=worker)
    assert isinstance(result.candidates[0], Failure)
    child = int(pidfile.read_text())
    deadline = time.monotonic() + 5.0
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_reference_that_fails_leaves_nothing_to_compare() -> None:
    result = compare(entry("segfault"), [entry("same")], [X], FROZEN, QUICK)
    assert isinstance(result.reference, Failure)
    assert isinstance(result.candidates[0], Failure)
    assert result.best() is None


def test_in_process_comparison() -> None:
    result = compare(
        entry("good"), [entry("same"), entry("raises"), entry("slow")], [X], FROZEN, replace(QUICK, isolate=False)
    )
    assert not result.isolated
    assert [type(c) for c in result.candidates] == [Timing, Failure, Timing]
    assert not result.faster(2)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_worker_does_not_outlive_its_parent(how: signal.Signals) -> None:
    code = (  # whoever runs the tests may ignore SIGINT, which children inherit
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys, numpy as np; from superopt.measure import *; from superopt.workshop.process import Worker;"
        "from superopt.workshop.job import PING; w = Worker();"
        "print(next(w.request(PING))['pid'], flush=True);"
        f"compare(EntryPoint('measure_faults:good', {HERE!r}), [EntryPoint('measure_faults:hangs', {HERE!r})],"
        "[np.ones(64, np.float32)], {'bias': np.ones(64, np.float32)}, worker=w)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    first = int(parent.stdout.readline())  # the generator was dropped there, so the comparison starts another one
    time.sleep(3.0)
    group = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent.pid)], capture_output=True, text=True
    ).stdout.split()
    workers = [first, *map(int, group)]
    parent.send_signal(how)
    parent.wait(timeout=20)
    parent.stdout.close()
    deadline = time.monotonic() + 10.0
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def test_modules_in_the_folder_of_the_user_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('not meant for the worker')\n")
    monkeypatch.chdir(tmp_path)
    with Worker(ProcessLimits(silence_s=60.0)) as worker:
        worker.ready()
