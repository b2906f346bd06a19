"""Workers forked from a process that has loaded what they need behave as processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from superopt.kernels.llvm.cpu import supported
from superopt.kernels.llvm.jit import cache_folder
from superopt.workshop import forks
from superopt.workshop.job import PING, Job, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def started(worker: Worker) -> int:
    (event,) = worker.request(PING)
    return event["pid"]


def test_workers_are_forked_by_one_process_in_sessions_of_their_own() -> None:
    with Worker() as one, Worker(inline=True, loads="superopt.make.making:load") as two:
        pids = [started(one), started(two)]
        assert parent_of(pids[0]) == parent_of(pids[1]) != os.getpid()
        assert [os.getsid(pid) for pid in pids] == pids


@pytest.mark.parametrize("name", ["SUPEROPT_TEST", "XLA_FLAGS"])
def test_another_environment_is_that_of_the_worker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker() as one:
        before = started(one)
        monkeypatch.setenv(name, "--xla_cpu_enable_fast_math=false")
        with Worker() as two:
            assert f"{name}=--xla".encode() in Path(f"/proc/{parent_of(started(two))}/environ").read_bytes()
        assert started(one) == before, "a worker of the process before goes on"


@pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
def test_what_jax_and_llvm_load_late_is_loaded_before_the_fork() -> None:
    with Worker() as worker:
        (event,) = worker.request(Job("make", "tests.support.jobs:late", {}))
    assert not [name for name in event["modules"] if name.startswith(("jax", "llvmlite", "superopt"))]


def test_a_module_that_cannot_be_loaded_before_the_fork_is_missed_by_its_job_alone() -> None:
    program = "from superopt.workshop import forks; forks.LOADED = ('no_module', 'json.tool'); forks._load(mine)"
    shown = "import socket, sys; mine, theirs = socket.socketpair(); {}; print('json.tool' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown.format(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_name_of_the_current_test_is_none_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each test that optimises loads JAX for itself."""
    with Worker() as one:
        nursery = parent_of(started(one))
        monkeypatch.setenv("PYTEST_CURRENT_TEST", "another one")
        with Worker() as two:
            assert parent_of(started(two)) == nursery


def test_a_worker_has_the_cache_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That folder is found at work: another one is no reason to load JAX again."""

    def cache(worker: Worker) -> str:
        (event,) = worker.request(Job("make", "tests.support.jobs:cache", {}))
        return event["path"]

    with Worker() as one:
        nursery, before = parent_of(started(one)), cache(one)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with Worker() as two:
            assert parent_of(started(two)) == nursery
            assert cache(two) == str(cache_folder()) != before
        monkeypatch.delenv("XDG_CACHE_HOME")
        with Worker() as three:
            assert cache(three) == str(cache_folder())


def test_a_worker_is_started_where_what_forked_the_last_one_is_dead() -> None:
    with Worker() as one:
        nursery = parent_of(started(one))
        os.kill(nursery, signal.SIGKILL)
        with Worker() as two:
            assert parent_of(started(two)) != nursery


def test_a_worker_is_started_where_none_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError

    monkeypatch.setenv("SUPEROPT_TEST", "another process that forks is needed")
    monkeypatch.setattr(socket, "socketpair", none)
    with Worker() as worker:
        assert parent_of(started(worker)) == os.getpid()


def test_how_a_forked_worker_ended_is_known() -> None:
    with Worker(ProcessLimits(silence_s=60.0)) as worker:
        process = worker._ensure()
        os.kill(process.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDiedError, match="crash: SIGSEGV"):
            worker._next_event(process)
        assert started(worker)


def test_a_worker_works_in_the_folder_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker() as one:
        started(one)
        monkeypatch.chdir(tmp_path)
        with Worker() as two:
            assert Path(f"/proc/{started(two)}/cwd").resolve() == tmp_path


def test_a_forked_worker_leads_its_group_as_soon_as_it_is_known() -> None:
    """Else a worker that is ended at once goes on, and the call that ended it waits for it."""
    for _ in range(20):
        mine, theirs = os.pipe()
        process = forks.fork(["0"], {}, theirs)
        assert isinstance(process, forks.Forked)
        try:
            assert os.getpgid(process.pid) == process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(timeout=10.0) == -signal.SIGKILL
            for stream in (process.stdin, process.stderr):
                stream.close()
            os.close(mine)
            os.close(theirs)


def test_a_forking_process_that_still_loads_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(300.0)\n")
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    load = "forks.LOADED = ('slow_module',); forks.main(int(sys.argv[1]))"
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from superopt.workshop import forks; {load}"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )  # fmt: skip
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # as long as its parent is there, it loads
        mine.close()
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.wait()
