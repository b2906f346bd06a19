"""Collects labels: times the kernels that the search visits, in slices until every task has been timed.

The visit is kept in a file beside the corpus, so that a resumed run times at once.  Tasks come in a fixed shuffled
order.  All forms of a task are timed in the same chunk, interleaved, next to one kernel that every chunk has.

Kernels that several threads share have times of several levels, and the very fastest call is a matter of luck.  So the
label is the mean of the fastest quarter of the rounds (each a minimum over calls), less dispatch, which repeats better
than the minimum.  A share of the tasks of earlier sessions is timed again: the relative difference is the noise floor.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.model import weights_file
from costmodel.model.objective import Roofline
from rewrites.language.term import Rule
from superopt.certify.library import proved_library
from superopt.errors import InputError
from superopt.ir.text import parse_graph
from superopt.lab import Say
from superopt.lab.training import families
from superopt.lab.training.tasks import MOST_FORMS, KernelForm, Task, read_lines, task_of, write_lines
from superopt.lab.training.visit import micro_tasks, visit
from superopt.machine import facts as machine
from superopt.measure import KernelTiming, time_kernels
from superopt.measure.kernels import MIN_SECONDS, KernelSettings
from superopt.store import Store
from superopt.workshop.job import LOST, Event, Failure, Job, JobWorker
from superopt.workshop.process import ProcessLimits
from superopt.workshop.scheduler import ONE_WORKER, Workers

CHUNK = 24  # forms timed together, at least one task
AGAIN_SHARE = 0.05
WRITE_EVERY_S = 60.0
VISITOR_LIMITS = ProcessLimits(silence_s=3600.0)
"""Limits of a worker that visits: a search says nothing before its end."""
TIMER_LIMITS = ProcessLimits(silence_s=60.0)
"""Limits of a worker that times kernels."""
SETTINGS = KernelSettings(chunk=1_000, rounds=10, sample_s=0.0025, max_calls=40, most_s=0.15)
NORMALISER = (
    "%0 = input x : f32[256,256]\n%1 = input w : f32[256,256] frozen\n"
    "%2 = dot_general(%0, %1) dimension_numbers=(((1,), (0,)), ((), ())) : f32[256,256]\nreturn %2\n"
)

Row = dict[str, Any]
_Chunk = list[tuple[Task, KernelForm]]
_Timings = tuple[Mapping[str, KernelTiming | Failure], float | None]


@dataclass(slots=True)
class LabelFile:
    """The corpus on disk: a header and one row per timed form."""

    path: Path
    header: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: list[Row] = field(default_factory=list[Row])

    @classmethod
    def read(cls, path: Path) -> LabelFile:
        """Read the corpus on disk; an empty one where there is no file."""
        records = read_lines(path)
        header = records[0]["header"] if records else {"format": 1, "failed": {}, "sessions": []}
        return cls(path, header, records[1:])

    def stamp(self, **more: Any) -> None:
        """Record in the header where, when and how labels are made.

        Raises:
            InputError: the labels on file are from another kind of machine.
        """
        before, here = machine.from_dict(self.header.get("machine")), machine.describe()
        if self.rows and before is not None and self._kind(before) != self._kind(here):
            raise InputError(f"{self.path.name} has labels of another machine", hint="give this one a file of its own")
        self.header.update(
            machine=machine.as_dict(), versions=machine.versions(), date=time.strftime("%Y-%m-%d"), **more
        )

    def _kind(self, facts: machine.Machine) -> tuple[Any, ...]:
        """The machine properties that labels depend on; the cores too, unless each row has its number of threads."""
        return facts.features, facts.caches_bytes, None if "threads" in self.rows[0] else facts.cores

    def write(self) -> None:
        """Write the corpus, replacing the file in one step."""
        write_lines(self.path, [{"header": self.header}, *self.rows])

    @property
    def failed(self) -> dict[str, str]:
        """Map the key of every form that cannot be timed to the reason."""
        return self.header["failed"]


def collect(
    out: Path, budget_s: float, *, workers: Workers = ONE_WORKER, visit_only: bool = False, say: Say
) -> dict[str, Any]:
    """Visit programs that are not visited yet, then time tasks until the budget ends; return a summary.

    Args:
        out: the corpus.
        budget_s: time of the run.
        workers: workers that visit; one of each host times.
        visit_only: whether nothing is timed.
        say: called with one line now and then.
    """
    begin = time.monotonic()
    tasks = visited(tasks_path(out), workers, math.inf if visit_only else budget_s, say)
    labels = LabelFile.read(out)
    if not visit_only:
        left_s = budget_s - (time.monotonic() - begin)
        measure(distinct(tasks), labels, left_s, workers=replace(workers, count=1), say=say)
    return summary(labels, distinct(tasks))


# ---- tasks to time


def tasks_path(out: Path) -> Path:
    """The file of visited tasks beside a corpus."""
    return out.with_name("visited.jsonl.gz")


def visited(path: Path, workers: Workers, budget_s: float, say: Say) -> list[Task]:
    """Tasks of every program, visited by workers; those on file are not visited again."""
    records = read_lines(path)
    header = records[0]["header"] if records else {"programs": [], "failed": {}}
    rows = records[1:]
    known = {*header["programs"], *header["failed"]}
    missing = [(f, n) for f, n in (("micro", 0), *families.names()) if f"{f}/{n}" not in known]
    end = time.monotonic() + budget_s
    if missing:
        todo = [Job("make", f"{__name__}:visit_job", {"family": f, "number": n}) for f, n in missing]
        with workers.workshop(VISITOR_LIMITS, loads=f"{__name__}:proved_rules") as workshop:
            done = workshop.each(todo, halted=lambda: time.monotonic() > end)
            for count, (number, result) in enumerate(done, 1):
                name = "/".join(map(str, missing[number]))
                if isinstance(result, Failure):  # data: a program that cannot be visited, kept with its cause
                    if result.cause == LOST:
                        continue
                    header["failed"][name] = f"{result.cause}: {result.detail}"[:300]
                else:
                    rows += [event["task"] for event in result]
                    header["programs"].append(name)
                if count % 20 == 0 or count == len(missing):
                    write_lines(path, [{"header": header}, *rows])
                    say(f"visited {len(known) + count} programs, {len(rows)} tasks, {len(header['failed'])} failed")
        write_lines(path, [{"header": header}, *rows])
    return [task_of(row) for row in rows]


@functools.cache
def proved_rules() -> tuple[Rule, ...]:
    """The proved rules of the library, loaded once per process."""
    with Store() as store:
        return proved_library(store).rules


def visit_job(request: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the tasks of a program."""
    objective, family = Roofline(weights_file.read()[0], "shipped"), request["family"]
    if family == "micro":
        tasks = micro_tasks(objective)
    else:
        tasks = visit(families.program(family, request["number"]), proved_rules(), objective)
    for task in tasks:
        yield {"event": "task", "task": task.as_dict()}


def distinct(tasks: Sequence[Task]) -> list[Task]:
    """Tasks in a shuffled order that depends on names alone, each kernel in the first task that has it."""
    taken: set[str] = set()
    out: list[Task] = []
    for task in sorted(tasks, key=lambda t: hashlib.sha256(t.name.encode()).digest()):
        forms = list({form.key: form for form in task.forms if form.key not in taken}.values())[:MOST_FORMS]
        if forms:
            taken.update(form.key for form in forms)
            out.append(Task(task.family, task.program, task.name, tuple(forms)))
    return out


# ---- timing


def measure(
    tasks: Sequence[Task],
    labels: LabelFile,
    budget_s: float,
    *,
    settings: KernelSettings = SETTINGS,
    again_share: float = AGAIN_SHARE,
    workers: Workers = ONE_WORKER,
    say: Say,
) -> None:
    """Time tasks that are not in the corpus yet, after a share of those that were timed in earlier sessions.

    All forms of a chunk are timed by one worker.  Chunks whose worker is lost are left to the next session.
    """
    end = time.monotonic() + budget_s
    session = 1 + max((row["session"] for row in labels.rows), default=0)
    known = {row["key"] for row in labels.rows} | set(labels.failed)
    left = [task for task in tasks if any(form.key not in known for form in task.forms)]
    again = again_tasks(tasks, labels, again_share)
    labels.stamp(settings=asdict(settings), normaliser=NORMALISER)
    began, count = time.monotonic(), len(labels.rows)
    written = began
    with workers.workshop(TIMER_LIMITS, inline=True) as workshop:

        def timed(chunks: Iterator[_Chunk]) -> Iterator[tuple[_Chunk, _Timings]]:
            some = itertools.takewhile(lambda _: time.monotonic() <= end, chunks)
            for chunk, result in workshop.dialogues("time", some, lambda seat, x: _timed(x, seat.worker, settings)):
                if not isinstance(result, Failure):
                    yield chunk, result

        rows = {row["key"]: row for row in labels.rows}
        for chunk, (timings, _) in timed(_chunks(again)):
            for _, form in chunk:
                timing = timings.get(form.key)
                if isinstance(timing, KernelTiming) and form.key in rows:
                    rows[form.key]["again_s"] = label_of(timing)[0]
        fresh = ([(task, form) for task, form in chunk if form.key not in known] for chunk in _chunks(left))
        for chunk, (timings, normaliser_s) in timed(fresh):
            for task, form in chunk:
                timing = timings[form.key]
                if isinstance(timing, KernelTiming):
                    labels.rows.append(row_of(task, form, timing, normaliser_s, session))
                else:
                    labels.failed[form.key] = f"{timing.cause}: {timing.detail}"[:200]
            if time.monotonic() > written + WRITE_EVERY_S:
                labels.write()
                written = time.monotonic()
    labels.header["sessions"].append({
        "session": session, "seconds": round(time.monotonic() - began, 1), "labels": len(labels.rows) - count,
        "when": time.strftime("%Y-%m-%dT%H:%M:%S"),
    })  # fmt: skip
    labels.write()
    say(f"session {session}: {len(labels.rows) - count} labels in {time.monotonic() - began:.0f} s")


def again_tasks(tasks: Sequence[Task], labels: LabelFile, share: float) -> list[Task]:
    """Tasks of earlier sessions to time a second time, so that this share of all tasks is timed twice."""
    timed: dict[str, bool] = {}
    for row in labels.rows:
        timed[row["task"]] = timed.get(row["task"], False) or row["again_s"] is not None
    wanted = int(share * len(timed)) - sum(timed.values())
    return [task for task in tasks if timed.get(task.name) is False][: max(0, wanted)]


def row_of(task: Task, form: KernelForm, timing: KernelTiming, normaliser_s: float | None, session: int) -> Row:
    """The corpus row of one timed form."""
    seconds, stderr = label_of(timing)
    return {
        "family": task.family, "program": task.program, "task": task.name, "form": form.kind, "key": form.key,
        "text": form.text, "seconds": seconds, "stderr": stderr,
        "rounds_s": [float(f"{s:.4g}") for s in timing.rounds_s], "dispatch_s": float(f"{timing.dispatch_s:.4g}"),
        "again_s": None, "normaliser_s": normaliser_s, "session": session,
    }  # fmt: skip


def label_of(timing: KernelTiming) -> tuple[float, float]:
    """Seconds as the mean of the fastest quarter of the rounds, and their relative standard error.

    The error is that of the bootstrap: rounds drawn again with repetition, each draw giving a label of its own.
    """
    rounds = np.array(timing.rounds_s)
    seconds = max(_fastest(rounds) - timing.dispatch_s, MIN_SECONDS)
    if len(rounds) < 3:
        return seconds, 1.0
    rng = np.random.default_rng(0)
    draws = [_fastest(rng.choice(rounds, len(rounds))) for _ in range(64)]
    return seconds, round(float(np.std(draws) / seconds), 5)


def _fastest(rounds: np.ndarray) -> float:
    """Mean of the fastest quarter."""
    return float(np.sort(rounds)[: max(1, len(rounds) // 4)].mean())


def _chunks(tasks: Sequence[Task]) -> Iterator[_Chunk]:
    chunk: _Chunk = []
    for task in tasks:
        chunk.extend((task, form) for form in task.forms)
        if len(chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _timed(chunk: _Chunk, worker: JobWorker, settings: KernelSettings) -> _Timings:
    """Timings by key, and the seconds of the reference kernel that every chunk has."""
    graphs = [parse_graph(NORMALISER), *(parse_graph(form.text) for _, form in chunk)]
    first, *rest = time_kernels(graphs, settings=settings, worker=worker)
    timings = {form.key: timing for (_, form), timing in zip(chunk, rest, strict=True)}
    return timings, first.seconds if isinstance(first, KernelTiming) else None


# ---- figures


def summary(labels: LabelFile, tasks: Sequence[Task] = ()) -> dict[str, Any]:
    """Figures of a corpus."""
    rows = labels.rows
    again = [abs(row["again_s"] / row["seconds"] - 1.0) for row in rows if row["again_s"]]
    long = [abs(r["again_s"] / r["seconds"] - 1.0) for r in rows if r["again_s"] and r["seconds"] >= 2e-5]
    seconds = sorted(row["seconds"] for row in rows)
    return {
        "labels": len(rows),
        "tasks": len({row["task"] for row in rows}),
        "programs": len({row["program"] for row in rows}),
        "families": len({row["family"] for row in rows}),
        "kernels": len({row["key"] for row in rows}),
        "left": len({t.name for t in tasks} - {row["task"] for row in rows}),
        "noise_floor_mean": float(np.mean(again)) if again else None,
        "noise_floor_median": float(np.median(again)) if again else None,
        "noise_floor_median_long": float(np.median(long)) if long else None,
        "timed_again": len(again),
        "failed": dict(Counter(cause.partition(":")[0] for cause in labels.failed.values())),
        "seconds_deciles": [float(f"{seconds[len(seconds) * k // 10]:.3g}") for k in range(1, 10)] if rows else [],
        "by_family": dict(sorted(Counter(row["family"] for row in rows).items())),
    }
