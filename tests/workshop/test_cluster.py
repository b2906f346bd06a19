"""Workers on a Ray cluster do what workers of this machine do; one that is killed takes no job with it."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.arrays import placing
from superopt.backends import made, native
from superopt.backends.native import Native
from superopt.errors import UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.llvm.cpu import supported
from superopt.lab.bench import workshop as suite
from superopt.lab.bench.workshop import CLUSTER, WORKERS, _equal, _recovered, _scaling
from superopt.lab.discovery import discover
from superopt.lab.discovery.judge import still_new
from superopt.lab.fuzz import drive
from superopt.lab.fuzz.case import FuzzCase, FuzzValue
from superopt.lab.fuzz.corpus import corpus
from superopt.machine.deadline import Deadline
from superopt.machine.switches import plain_kept
from superopt.make.trials import TrialPool
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.pipeline import optimizer
from superopt.schedules.tune import ScheduleSearch, builders, tune
from superopt.schedules.workload import workload
from superopt.workshop import cluster as clusters
from superopt.workshop.cluster import RayExecutor, RayNode
from superopt.workshop.job import LOST, Event, Failure, Job, WorkerDiedError
from superopt.workshop.process import ONE_KERNEL, ProcessLimits
from superopt.workshop.scheduler import LOCAL, ONE_WORKER, Executor, Seat, Workers, sole_worker
from tests.support.jobs import SPANS, spans
from verifier.kernels.check import version
from verifier.verdict import PROVED

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is of the extra `superopt[ray]`")
kernels = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in version 6, and ::1 in the tables of the kernel."""
TWO = 2
"""Workers where one is lost and another goes on; each of a cluster loads JAX for itself."""
SQUARE, CONTENT = "tests.support.jobs:square", "tests.support.jobs:content"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of caches of the cluster's workers, which is another one than here, as on another machine."""
    return tmp_path_factory.mktemp("there")


@pytest.fixture(scope="module")
def cluster(there: Path) -> Iterator[RayExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(there))
        executor = RayExecutor("local", **CLUSTER)
    with executor as found:
        yield found


def test_a_cluster_of_this_machine_is_on_the_local_interface_alone(cluster: RayExecutor) -> None:
    assert {node["NodeManagerAddress"] for node in cluster.ray.nodes()} == {"127.0.0.1"}
    own = _sockets(cluster)
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in own}
    assert listening
    assert listening <= LOOPBACK


def _sockets(cluster: RayExecutor) -> set[str]:
    """Inodes of the sockets of the processes of the cluster that this process started."""
    root = str(cluster.ray._private.worker._global_node.get_session_dir_path())
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if root.encode() not in (process / "cmdline").read_bytes():
                continue
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    found.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    return found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite of the workshop with fewer workers, operators and jobs that sleep."""
    monkeypatch.setattr(suite, "OPERATORS", suite.OPERATORS[1:3])  # one of floats and one of integers
    monkeypatch.setattr(suite, "_SLEEPS", 4 * WORKERS)
    monkeypatch.setattr(suite, "WORKERS", TWO)


@pytest.mark.usefixtures("short")
def test_deterministic_jobs_give_the_local_results(cluster: RayExecutor) -> None:
    jobs, equal = _equal(cluster, 0)
    assert jobs == 8
    assert equal == 1.0


@pytest.mark.usefixtures("short")
def test_jobs_of_a_killed_worker_come_back(cluster: RayExecutor) -> None:
    assert _recovered(cluster, 1)[1] == 1.0


@pytest.mark.usefixtures("short")
def test_two_workers_do_more_than_one(cluster: RayExecutor) -> None:
    assert _scaling(cluster, 0)[1] > 1.3


def test_a_failure_of_a_job_is_no_lost_worker(cluster: RayExecutor) -> None:
    """Else it would come back and end the next worker."""
    with Workers(1, cluster).workshop(ONE_KERNEL) as workshop:
        done = workshop.done([Job("make", SQUARE, {"number": n}) for n in (2, -1, 3)])
        assert workshop.seats[0].worker.started == 2
    assert done[0] == [{"event": "square", "square": 4}]
    assert isinstance(done[1], Failure)
    assert done[1].cause == "exit"
    assert done[2] == [{"event": "square", "square": 9}]


def test_a_killed_worker_is_told_from_one_that_died_of_its_job(cluster: RayExecutor, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    (seat,) = cluster.seats(1, ONE_KERNEL)
    with seat.worker as worker:
        worker.ready()
        threading.Timer(0.5, os.kill, (worker.pid(), signal.SIGKILL)).start()  # type: ignore[attr-defined]
        with pytest.raises(WorkerDiedError) as lost:
            list(worker.request(Job("make", CONTENT, {"seconds": 30.0}, {"path": str(path)})))
        assert lost.value.failure.cause == LOST
        assert not worker.alive
        (event,) = worker.request(Job("make", CONTENT, {}, {"path": str(path)}))
        assert event["bytes"] == 1000


def test_a_file_goes_to_a_node_once(cluster: RayExecutor, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 100)
    with Workers(2, cluster).workshop(ONE_KERNEL) as workshop:
        done = workshop.done([Job("make", CONTENT, {}, {"path": str(path)}) for _ in range(4)])
    events = [result[0] for result in done.values() if not isinstance(result, Failure)]
    assert [event["bytes"] for event in events] == [25600] * 4
    (there,) = {event["path"] for event in events}
    assert there != str(path)
    path.unlink()
    (tmp_path / "other").write_bytes(b"y")
    cluster.placed(cluster.nodes[0].name, str(tmp_path / "other"))
    assert not Path(there).exists()


def test_timings_count_only_from_hosts_of_this_processor(cluster: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [node.native for node in cluster.nodes] == [True]
    assert len(builders(Workers(WORKERS, cluster))) == WORKERS
    unlike = [RayNode(node.name, node.cores, "another", node.version) for node in cluster.nodes]
    monkeypatch.setattr(cluster, "nodes", unlike)
    with pytest.raises(Exception, match="no host of the cluster has the processor"):
        builders(Workers(WORKERS, cluster))


def test_one_job_at_a_time_is_timed_on_a_host_whoever_sends_it(cluster: RayExecutor) -> None:
    """Two processes drive workers of one cluster, and neither knows of the other."""
    address = cluster.ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", f"from tests.support.jobs import drive; drive({address!r})"]
    with (
        Workers(1, cluster).workshop(ONE_KERNEL) as workshop,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        workshop.start()
        workshop.ready()
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with ThreadPoolExecutor(1) as reader:
            theirs = reader.submit(other.communicate, "begin\n")
            mine = spans(workshop)
        there = json.loads(theirs.result()[0])
    assert (len(mine), len(there)) == (SPANS, SPANS)
    assert max(mine[0][0], there[0][0]) < min(mine[-1][1], there[-1][1]), "they drive at the same time"
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted([*mine, *map(tuple, there)])))


class Killing:
    """A cluster that has one worker of each request for some killed in its first job.

    Attributes:
        victims: these workers.
    """

    def __init__(self, cluster: RayExecutor) -> None:
        self._cluster = cluster
        self.victims: list[Any] = []

    @property
    def victim(self) -> Any:
        """The last of them."""
        return self.victims[-1]

    def share(self, call: str, files: Mapping[str, bytes]) -> None:
        self._cluster.share(call, files)

    def seats(self, count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> list[Seat]:
        seats = self._cluster.seats(count, limits, inline=inline, loads=loads)
        victim = seats[0].worker
        self.victims.append(victim)
        victim.ready()
        request, number = victim.request, victim.pid()  # type: ignore[attr-defined]

        def first(job: Job, end_s: float = math.inf) -> Iterator[Event]:
            victim.request = request
            threading.Timer(0.02, os.kill, (number, signal.SIGKILL)).start()
            return request(job, end_s)

        victim.request = first
        return seats


@pytest.mark.slow
def test_a_discovery_with_a_killed_worker_finds_the_local_rules(
    cluster: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "BATCH", 1)  # each worker has a job
    settings, killing = discover.DiscoverySettings(("dot",), 2, library=False), Killing(cluster)
    local = discover.discover(settings, tmp_path / "local")
    found = discover.discover(settings, tmp_path / "cluster", workers=Workers(TWO, killing))
    assert killing.victim.started == 2
    assert (found.done, found.summary["judged"]) == (True, local.summary["judged"])
    assert not any(still_new(text, local.rules) for text in found.rules)
    assert not any(still_new(text, found.rules) for text in local.rules)


@pytest.mark.slow
def test_a_fuzzer_with_a_killed_worker_counts_what_a_local_one_counts(cluster: RayExecutor, tmp_path: Path) -> None:
    """A program that ends its own process is a crash; a worker that is lost is none."""
    ending = FuzzValue("v0", (3,), "float32", "__import__('os')._exit(3)")
    given = FuzzValue("x0", (3,), "float32")
    cases = [FuzzCase(1, (given,), (ending,), ("v0",), (), "save"), corpus()[0]]
    killing = Killing(cluster)
    local, found = (
        drive.fuzz(300.0, programs=0, corpus=cases, store=tmp_path / name, reduce=False, workers=workers)
        for name, workers in (("local", ONE_WORKER), ("cluster", Workers(TWO, killing)))
    )
    assert killing.victim.started in (2, 3)  # once more where the program that ends its process fell to it
    assert found.counts == local.counts
    assert local.counts["crash"] == 1
    assert sum(local.counts.values()) == len(cases)


def test_a_node_with_another_version_is_left_out(cluster: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters.facts, "versions", lambda: {"superopt": "0.0.1"})
    with pytest.raises(UsageError, match=r"no node of the Ray cluster has superopt 0\.0\.1"):
        cluster._nodes()


def test_a_search_on_a_cluster_tries_what_a_local_one_tries(cluster: RayExecutor) -> None:
    """Proposals at random depend on the seed alone."""
    how = ScheduleSearch(120.0, strategy="random", most=8)

    def tried(executor: Executor) -> list[tuple[str, str]]:
        with ExitStack() as stack:
            processes = [stack.enter_context(worker) for worker in builders(Workers(2, executor))]
            found = tune(workload("dot f32 64x96x32"), how, processes=processes)
        assert found.seconds > 0
        return [(json.dumps(c.trace), c.digest) for c in found.history]

    local = tried(LOCAL)
    assert len(local) > 3
    assert tried(cluster) == local


def dots(*sizes: int) -> list[Graph]:
    return [workload(f"dot f32 {size}x24x40") for size in sizes]


@kernels
def test_kernels_of_a_cluster_are_those_of_this_machine(
    cluster: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with the verdicts on their code, although a worker is killed in the middle."""
    graphs, killing = dots(*range(20, 34, 2)), Killing(cluster)

    def stored(name: str, executor: Executor) -> list[Any]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        native.compiled.cache_clear()
        with TrialPool(TWO, Native(), executor) as pool:
            traces = [found for found in pool.make_all([(graph, None) for graph in graphs]) if isinstance(found, tuple)]
            keys = [Native().key(*one) for one in zip(graphs, traces, strict=True)]
            objects = [made.objects(*(made.find(key) or ())) for key in keys]
            with pool.meanwhile((), list(zip(graphs, traces, strict=True))):
                until = Deadline.within(60.0)
                while not (until.is_over or all(made.has_verdict(key, version()) for key in keys)):
                    time.sleep(0.05)
        verdicts = [made.verdict(key, version(), of) for key, of in zip(keys, objects, strict=True)]
        return [traces, keys, objects, verdicts]

    local, found = stored("local", LOCAL), stored("cluster", killing)
    assert killing.victim.started == 2
    assert found == local
    assert {said for said, _ in found[3]} == {PROVED}


@kernels
def test_a_host_has_kernels_that_others_made_before_its_next_job(
    cluster: RayExecutor, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the host of a contest would make them again."""
    (graph,) = dots(50)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key, region = Native().key(graph), native.compiled(graph)
    assert region.graph == graph
    made.hand_over(key, tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith(key)}
    cluster.share("superopt.make.making:take", files)
    (seat,) = cluster.seats(1, ONE_KERNEL)
    stored = there / "superopt" / "kernels" / f"{key}.kernel"
    with seat.worker as worker:
        list(worker.request(Job("make", SQUARE, {"number": 2}, portable=True)))
        assert not stored.exists(), "it needs none"
        list(worker.request(Job("make", SQUARE, {"number": 2})))
        assert stored.exists()


@pytest.fixture
def killing(cluster: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> Killing:
    """The cluster of calls that name one; every kind of worker in them is killed once."""
    killing = Killing(cluster)
    monkeypatch.setattr(optimizer, "executor_at", lambda address: nullcontext(killing if address else LOCAL))
    return killing


W, V, X = (np.random.default_rng(0).standard_normal(s).astype("f") for s in ((96, 80), (80, 72), (40, 96)))


def layers(w: Any, v: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ v)


@kernels
def test_the_plain_candidate_of_a_cluster_is_that_of_this_machine(killing: Killing) -> None:
    with plain_kept():
        local, found = (
            superopt.optimize(layers, W, V, X, frozen=(0, 1), search=False, store=False, workers=workers)
            for workers in (None, "auto")
        )
    *_, maker = killing.victims
    assert maker.started == 2
    assert found.kernels
    assert found.kernels == local.kernels
    np.testing.assert_array_equal(found(W, V, X), local(W, V, X))


def test_a_comparison_on_a_cluster_outlives_its_worker(cluster: RayExecutor, tmp_path: Path) -> None:
    """Placed weights go along, and are fetched by the node."""
    imported, killing = import_function(layers, (W, V, X), frozen=(0, 1)), Killing(cluster)
    program, weights = original_program(imported.graph), placing.place(tmp_path, imported.frozen_values)
    with sole_worker(killing) as worker:
        found = compare(program, [program], imported.live_values, weights, ComparisonSettings(3, 0.0), worker=worker)
    assert killing.victim.started == 2
    (timing,) = found.candidates
    assert isinstance(timing, Timing), timing
    assert (len(timing.samples_s), timing.max_error) == (3, 0.0)


@kernels
@pytest.mark.slow
def test_a_search_on_a_cluster_outlives_all_its_workers(killing: Killing) -> None:
    """That of kernels is killed where there is time to time any."""
    lines: list[str] = []
    found = superopt.optimize(
        layers, W, V, X, frozen=(0, 1), store=False, workers="auto", budget="60s", progress=lines.append
    )
    timed = any(re.search(r"[1-9]\d*( of \d+)? kernels( of the program's own form)? timed", line) for line in lines)
    timer, _, alone, maker, *_ = killing.victims
    assert [worker.started for worker in (timer, alone, maker)] == [2, 1 + timed, 2], lines
    assert found.report.measured.before_ms
    assert not found.report.lost
    np.testing.assert_allclose(found(W, V, X), layers(W, V, X), rtol=1e-5, atol=1e-5)
