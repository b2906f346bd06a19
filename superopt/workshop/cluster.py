"""Workers on the hosts of a Ray cluster (extra `superopt[ray]`).

`ray start --head` on one host and `ray start --address=HOST:6379` on others make a cluster.  An actor on a node holds a
worker as it is on this machine, a process with limits that may die, and hands its events on.  So a candidate that
crashes is a failure of its job, and only the end of the actor or of its node is a lost worker.  Files that a job reads
are put into the store of objects once, fetched once by each node, and are files there.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from superopt.arrays.bundles import save, scratch_folder
from superopt.errors import UsageError
from superopt.machine import facts
from superopt.machine.extras import need
from superopt.workshop.job import ALONE, FILES, LOST, Event, Failure, Job, WorkerDiedError
from superopt.workshop.process import ENDED, TIME_OVER, ProcessLimits, Worker
from superopt.workshop.scheduler import LOCAL, Executor, Seat
from superopt.workshop.turns import turn

_MORE_S = 1.0  # an actor answers after this time, whether there are events or not
_GRACE_S = 30.0  # until an actor that does not answer is given up
_DONE, _DIED = "done", "died"
_MANIFEST = ".json"
_CONTENT = "content"  # key of an event with the contents of the files that it names
_THREADS = "OMP_NUM_THREADS"  # Ray sets it to 1 for actors, and libraries of linear algebra obey
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # with 0, Ray uses the local interface alone, on any system


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of the cluster.

    Attributes:
        name: Ray's name of it.
        cores: processors that Ray may use.
        key: digest of its processor and versions (`superopt.machine.facts.environment_key`).
        version: its version of superopt.
    """

    name: str
    cores: int
    key: str
    version: str

    @property
    def native(self) -> bool:
        """Whether processor and versions are those of this machine."""
        return self.key == facts.environment_key()


class RayExecutor:
    """Workers on the nodes of a cluster; a context manager that ends them.

    Args:
        address: `ray://HOST:10001`, `HOST:6379`, `auto` for the cluster of this machine, or `local` for a new one that
            ends with this process and that only this machine reaches.
        start: further arguments of `ray.init`.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: there is no cluster at the address, or none of its nodes has this version of superopt.
    """

    def __init__(self, address: str, **start: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address == "local":
            os.environ.setdefault(_LOOPBACK, "0")  # read when Ray is imported
        self._held = ExitStack()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray about its own packages
            need("ray", "a Ray cluster")
            import ray  # late: an optional dependency  # pyright: ignore[reportMissingImports]

            self.ray: Any = ray
            if not ray.is_initialized():
                if address == "local":
                    start = {"include_dashboard": False, **start}
                    if ray.util.get_node_ip_address() not in ("127.0.0.1", "::1"):
                        raise UsageError(
                            "Ray was imported already and would listen on the network",
                            hint="start a cluster by `ray start --head`, and name it `auto`",
                        )
                try:
                    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, namespace="superopt", **start)
                except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
                    raise UsageError(
                        f"there is no Ray cluster at {address}: {str(error).partition(chr(10))[0]}",
                        hint="`ray start --head` starts one; for ray:// addresses, pip install 'ray[client]'",
                    ) from error
                self._held.callback(ray.shutdown)
        try:
            self.nodes = self._nodes()
            self._files = {node.name: self.actor(_Files, node.name) for node in self.nodes}
        except BaseException:
            self._held.close()
            raise
        self._known: dict[tuple[str, int, int], tuple[str, Any]] = {}
        self._placed: dict[tuple[str, str], str] = {}
        self._folder = Path(self._held.enter_context(scratch_folder(0)))
        self._shared: list[tuple[str, str]] = []
        self._done: Counter[str] = Counter()  # node -> number of shared bundles that it has
        self._turn = threading.Lock()

    def seats(self, count: int, limits: ProcessLimits, *, inline: bool = False, loads: str = "") -> list[Seat]:
        """Return workers, at most `count` and no more than there are processors on each node."""
        return [
            Seat(RayWorker(self, node.name, limits, inline=inline, loads=loads), node.name, node.native)
            for node in self.nodes
            for _ in range(min(count, node.cores))
        ]

    def share(self, call: str, files: Mapping[str, bytes]) -> None:
        """Have each node call a function with a bundle of these files, before its next job."""
        path = self._folder / f"shared{len(self._shared)}"
        save(path, {name: np.frombuffer(content, np.uint8) for name, content in files.items()})
        self._shared.append((call, str(path)))

    def unshared(self, node: str) -> list[Job]:
        """Return the jobs of bundles that a node does not have yet; from now on it has them."""
        with self._turn:
            left = self._shared[self._done[node] :]
            self._done[node] += len(left)
        return [Job("make", call, {}, {"path": path}) for call, path in left]

    def actor(self, kind: type[Any], node: str, *arguments: Any) -> Any:
        """Start an actor on a node."""
        from ray.util.scheduling_strategies import (  # late: as above  # pyright: ignore[reportMissingImports]
            NodeAffinitySchedulingStrategy,
        )

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        return self.ray.remote(kind).options(num_cpus=0, scheduling_strategy=where).remote(*arguments)

    def placed(self, node: str, path: str) -> str:
        """Return the path on a node of a file that has the content of this one.

        A manifest beside it (`superopt.arrays.bundles`) goes with it.
        """
        state = os.stat(path)
        known = path, state.st_size, state.st_mtime_ns
        with self._turn:
            self._forget()
            if known not in self._known:
                content = [np.fromfile(x, np.uint8) for x in (path, f"{path}{_MANIFEST}") if os.path.exists(x)]
                total = hashlib.blake2b(digest_size=16)
                for part in content:
                    total.update(part.data)
                self._known[known] = total.hexdigest(), [self.ray.put(part) for part in content]
            digest, references = self._known[known]
            if (node, digest) not in self._placed:
                at = self._files[node].place.remote(digest, references)
                self._placed[node, digest] = self.ray.get(at)
            return self._placed[node, digest]

    def _forget(self) -> None:
        """Forget files that are gone, here and on the nodes."""
        gone = [key for key in self._known if not os.path.exists(key[0])]
        lost = {self._known.pop(key)[0] for key in gone} - {digest for digest, _ in self._known.values()}
        for node, digest in [key for key in self._placed if key[1] in lost]:
            del self._placed[node, digest]
            self._files[node].drop.remote(digest)

    def _nodes(self) -> list[RayNode]:
        """Return the nodes that run this version of superopt.

        Raises:
            UsageError: there is none.
        """
        alive = {n["NodeID"]: int(n["Resources"].get("CPU", 0)) for n in self.ray.nodes() if n["Alive"]}
        asked = {name: self.actor(_NodeFacts, name) for name in alive}
        told = self.ray.get([actor.read.remote() for actor in asked.values()])
        nodes = [RayNode(name, cores, *known) for (name, cores), known in zip(alive.items(), told, strict=True)]
        mine = facts.versions()["superopt"]
        if not any(node.version == mine for node in nodes):
            raise UsageError(f"no node of the Ray cluster has superopt {mine}")
        return [node for node in nodes if node.version == mine]

    def close(self) -> None:
        """End the actors, and the connection if this object made it."""
        for actor in self._files.values():
            with suppress(Exception):
                self.ray.get(actor.close.remote(), timeout=_MORE_S)
        self._files.clear()
        self._held.close()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def executor_at(address: str | None) -> AbstractContextManager[Executor]:
    """Open the cluster at an address, as `RayExecutor`; this machine's processes where there is none."""
    return nullcontext(LOCAL) if address is None else RayExecutor(address)


class RayWorker:
    """A worker on a node of a cluster, started at its first job and again when it was lost."""

    def __init__(
        self, cluster: RayExecutor, node: str, limits: ProcessLimits, *, inline: bool = False, loads: str = ""
    ) -> None:
        self.started, self.alive = 0, False
        self._cluster, self._node, self._arguments = cluster, node, (limits, inline, loads)
        self._actor: Any = None
        self._over = False

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        """Do a job, after those that its node is to do first, and yield its events.

        Raises:
            WorkerDiedError: its process died, or the actor or the node of it is gone (`LOST`).
        """
        for first in () if job.portable else self._cluster.unshared(self._node):
            list(self._requested(first, end_s))
        yield from self._requested(job, end_s)

    def _requested(self, job: Job, end_s: float) -> Iterator[Event]:
        finished, actor = False, None
        try:
            actor = self._ensure()
            files = {name: self._cluster.placed(self._node, path) for name, path in job.files.items()}
            self._ask(actor.begin.remote(replace(job, files=files), end_s - time.monotonic()), end_s)
            while not finished:
                for event in self._ask(actor.more.remote(_MORE_S), end_s):
                    if event["event"] == _DONE:
                        finished = True
                    elif event["event"] == _DIED:
                        self.alive, finished = False, True
                        raise WorkerDiedError(Failure(event["cause"], event["detail"]))
                    else:
                        _write(job.folder, event)
                        yield event
        except self._cluster.ray.exceptions.GetTimeoutError:
            raise WorkerDiedError(Failure("timeout", TIME_OVER)) from None
        except self._cluster.ray.exceptions.RayError as error:
            if self._actor is not actor:  # another thread closed it
                raise WorkerDiedError(Failure("exit", ENDED)) from None
            raise WorkerDiedError(Failure(LOST, f"{type(error).__name__} on node {self._node[:8]}")) from None
        finally:
            if not finished:
                self.close()

    def ready(self) -> None:
        """Start the actor and its process, and wait until both have started.

        Raises:
            WorkerDiedError: they have not.
        """
        try:
            self._ask(self._ensure().ready.remote(), math.inf)
        except self._cluster.ray.exceptions.RayError as error:
            self.close()
            raise WorkerDiedError(Failure(LOST, f"{type(error).__name__} on node {self._node[:8]}")) from None

    def pid(self) -> int:
        """Return the process number of the actor on its node."""
        return self._cluster.ray.get(self._ensure().pid.remote())

    def end(self) -> None:
        """End the worker for good."""
        self._over = True
        self.close()

    def close(self) -> None:
        """End the actor, and with it its process."""
        actor, self._actor, self.alive = self._actor, None, False
        if actor is not None:
            with suppress(Exception):  # it is gone, or the whole cluster is
                self._cluster.ray.kill(actor)

    def __enter__(self) -> RayWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _ensure(self) -> Any:
        if self._over:
            raise WorkerDiedError(Failure("exit", ENDED))
        if self._actor is None:
            self._actor = self._cluster.actor(_Host, self._node, *self._arguments, os.environ.get(_THREADS))
        if not self.alive:
            self.started += 1
            self.alive = True
        return self._actor

    def _ask(self, reference: Any, end_s: float) -> Any:
        left_s = None if end_s == math.inf else max(0.0, end_s - time.monotonic()) + _GRACE_S
        return self._cluster.ray.get(reference, timeout=left_s)


class _Host:
    """The part of a worker that runs on its node: holds the process and keeps its events until they are fetched."""

    def __init__(self, limits: ProcessLimits, inline: bool, loads: str, threads: str | None) -> None:
        if threads is None:
            os.environ.pop(_THREADS, None)
        else:
            os.environ[_THREADS] = threads
        # a process that forks pays where it forks several: else it loads two seconds of modules that jobs may not need
        self._worker = Worker(limits, inline=inline, loads=loads, forked=limits.jobs < math.inf)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def pid(self) -> int:
        return os.getpid()

    def ready(self) -> None:
        with suppress(WorkerDiedError):
            self._worker.ready()

    def begin(self, job: Job, left_s: float) -> None:
        """Begin a job, to be ended after this time."""
        threading.Thread(target=self._do, args=(job, time.monotonic() + left_s), daemon=True).start()

    def more(self, wait_s: float) -> list[Event]:
        """Return the events since the last call, after this time at most."""
        events: list[Event] = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=wait_s))
            while True:
                events.append(self._events.get_nowait())
        return events

    def _do(self, job: Job, end_s: float) -> None:
        try:
            with turn(job.kind in ALONE, end_s), scratch_folder(0) if job.folder else nullcontext("") as folder:
                for event in self._worker.request(replace(job, folder=folder), end_s):
                    self._events.put(event | _read(folder, event))
            self._events.put({"event": _DONE})
        except WorkerDiedError as death:
            self._events.put({"event": _DIED, "cause": death.failure.cause, "detail": death.failure.detail})
        except OSError as error:  # a file of the job is not there, or has no room
            self._events.put({"event": _DIED, "cause": "exit", "detail": str(error)})


def _read(folder: str, event: Event) -> Event:
    """Take the files that an event names out of the folder of a job on its node; return their contents."""
    paths = [Path(folder) / name for name in event.get(FILES, ())]
    content = [np.fromfile(path, np.uint8) for path in paths]
    for path in paths:
        path.unlink()
    return {_CONTENT: content} if paths else {}


def _write(folder: str, event: Event) -> None:
    """Write the files that an event names into the folder of its job here."""
    for name, content in zip(event.get(FILES, ()), event.pop(_CONTENT, ()), strict=True):
        content.tofile(Path(folder) / Path(name).name)


class _Files:
    """The files of a node, by the digests of their contents."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._folder = Path(self._held.enter_context(scratch_folder(0)))

    def place(self, digest: str, content: Sequence[Any]) -> str:
        """Write the contents that references stand for, a file and its manifest; return the path of the file."""
        import ray  # late: only on a node  # pyright: ignore[reportMissingImports]

        path = self._folder / digest
        for part, ending in zip(content, ("", _MANIFEST), strict=False):
            array: Any = ray.get(part)
            array.tofile(f"{path}{ending}")
        return str(path)

    def drop(self, digest: str) -> None:
        """Remove a file and its manifest."""
        for ending in ("", _MANIFEST):
            (self._folder / f"{digest}{ending}").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files."""
        self._held.close()


class _NodeFacts:
    """Reads what decides which jobs a node may do."""

    def read(self) -> tuple[str, str]:
        """Return the key of the processor and versions, and the version of superopt."""
        return facts.environment_key(), facts.versions()["superopt"]
