"""Drives the fuzzer: draws programs, hands them to workers, counts verdicts, and reduces failing programs.

The seeds of the corpus come first, then programs by number: two of JAX, one of ONNX.  Each is a job of a worker
(`superopt.lab.fuzz.judging`).  A process that ends is a crash, one that does not answer a hang; either way the next
program gets a new process.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from superopt.lab.fuzz import jax_programs, onnx_programs
from superopt.lab.fuzz.case import FuzzCase, from_dict, smaller
from superopt.workshop.job import LOST, Event, Failure, Job
from superopt.workshop.process import ProcessLimits
from superopt.workshop.scheduler import ONE_WORKER, Workers, Workshop

HANG_S = 120.0
"""Seconds without an answer: no program here needs a tenth of it on an idle machine."""
SLACK, GRACE_S = 1.15, 5.0
"""A run may exceed its budget by this factor and so many seconds, in which one build and the checks fit."""
TRIALS, REDUCE_S = 60, 120.0
FAILED = ("wrong", "crash", "hang")
LIMITS = ProcessLimits(silence_s=HANG_S, jobs=400)
_JOBS = "superopt.lab.fuzz.judging"


@dataclass
class Found:
    """Results of a run of the fuzzer.

    Attributes:
        counts: programs by status, and `over_budget`.
        failures: (status, cause, reduced program).
        seconds: duration of the run.
        kernels: random kernels that were compared, and those that were wrong or ended their process.
        of_kernels: (status, cause, command that runs it alone) of these.
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[tuple[str, str, FuzzCase]] = field(default_factory=list[tuple[str, str, FuzzCase]])
    seconds: float = 0.0
    kernels: dict[str, int] = field(default_factory=dict[str, int])
    of_kernels: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    @property
    def failed(self) -> bool:
        """Whether any program or kernel was wrong, crashed or hung."""
        return any(figures.get(x, 0) for x in FAILED for figures in (self.counts, self.kernels))

    def summary(self) -> dict[str, Any]:
        """Figures as plain data."""
        get, kernel = self.counts.get, self.kernels.get
        return {
            "programs": sum(get(x, 0) for x in ("ok", "refused", *FAILED)),
            "kernels": sum(self.kernels.values()),
            "wrong": get("wrong", 0) + kernel("wrong", 0),
            "crashes": get("crash", 0) + kernel("crash", 0),
            "hangs": get("hang", 0) + kernel("hang", 0),
            "over_budget": get("over_budget", 0),
            "refused": get("refused", 0),
            "invalid": get("invalid", 0),
            "seconds": round(self.seconds, 1),
            "failures": [{"status": s, "cause": c, "program": str(x), "case": x.as_dict()} for s, c, x in self.failures]
            + [{"status": s, "cause": c, "reproducer": command} for s, c, command in self.of_kernels],
        }

    def __str__(self) -> str:
        figures = self.summary()
        lines = [f"{k} {v}" for k, v in figures.items() if k != "failures"]
        told = [f"{s}: {c}\n{x}\n" for s, c, x in (*self.failures, *self.of_kernels)]
        return "\n".join([*told, ", ".join(lines)])


def fuzz(
    seconds: float,
    seed: int = 0,
    programs: int | None = None,
    *,
    corpus: Sequence[FuzzCase] = (),
    store: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    reduce: bool = True,
    workers: Workers = ONE_WORKER,
) -> Found:
    """Run programs until the time or their number is reached.

    Args:
        seconds: time of the run.
        seed: number of the first program.
        programs: how many; as many as fit by default.
        corpus: programs that come first, whatever the number.
        store: path at which proofs and results are kept; by default each worker has a store of its own.
        say: called with one line per failure and per hundred programs.
        reduce: whether failures are made smaller.
        workers: workers that judge programs.
    """
    begin = time.monotonic()
    found = Found()
    end_s = begin + seconds
    kept = None if store is None else str(store)
    most = None if programs is None else programs + len(corpus)
    cases: list[FuzzCase] = []

    def drawn() -> Iterator[Job]:
        for case in itertools.islice(_cases(seed, corpus), most):
            cases.append(case)
            yield job_of(case, kept)

    with workers.workshop(LIMITS, loads=f"{_JOBS}:begin") as workshop:
        for done, (number, result) in enumerate(workshop.each(drawn(), halted=lambda: time.monotonic() >= end_s), 1):
            _count(found, cases[number], verdict_on(result), workshop if reduce else None, kept, say)
            if done % 100 == 0:
                say(f"{done} programs in {time.monotonic() - begin:.0f} s: {found.counts}")
    found.seconds = time.monotonic() - begin
    return found


def job_of(case: FuzzCase, store: str | None = None) -> Job:
    """Return the job that judges a program."""
    return Job("make", f"{_JOBS}:judge", {"case": case.as_dict(), "store": store}, portable=True)


def verdict_on(result: list[Event] | Failure) -> dict[str, Any]:
    """Return the verdict of a job, which may be that it hangs or ended its process; `lost` says nothing of it."""
    if not isinstance(result, Failure):
        return result[0]
    status = {"timeout": "hang", LOST: LOST}.get(result.cause, "crash")
    return {"status": status, "cause": f"{result.cause}: {result.detail}"[:300], "seconds": 0.0}


def _cases(seed: int, corpus: Sequence[FuzzCase]) -> Iterator[FuzzCase]:
    yield from corpus
    number = seed
    while True:
        yield (onnx_programs if number % 3 == 2 else jax_programs).program(number)
        number += 1


def _count(
    found: Found,
    case: FuzzCase,
    verdict: dict[str, Any],
    reducer: Workshop | None,
    store: str | None,
    say: Callable[[str], None],
) -> None:
    status = verdict["status"]
    found.counts[status] = found.counts.get(status, 0) + 1
    budget = verdict.get("budget")
    if budget and not verdict["first"] and verdict["seconds"] > SLACK * budget + GRACE_S:
        found.counts["over_budget"] = found.counts.get("over_budget", 0) + 1
    if status not in FAILED:
        return
    if reducer is not None:
        case, verdict = reduced(case, verdict, lambda other: verdict_on(reducer.done([job_of(other, store)])[0]))
    found.failures.append((status, verdict["cause"], case))
    say(f"{status}: {verdict['cause']}\n{case}")


def reduced(
    case: FuzzCase, verdict: dict[str, Any], judge: Callable[[FuzzCase], dict[str, Any]]
) -> tuple[FuzzCase, dict[str, Any]]:
    """The smallest program found that fails in the same way, and its verdict."""
    begin, trials, again = time.monotonic(), 0, True
    while again:
        again = False
        for other in smaller(case):
            trials += 1
            if trials > TRIALS or time.monotonic() - begin > REDUCE_S:
                return case, verdict
            judged = judge(other)
            if judged["status"] == verdict["status"] and _kind(judged) == _kind(verdict):
                case, verdict, again = other, judged, True
                break
    return case, verdict


def _kind(verdict: dict[str, Any]) -> str:
    """Kind of a failure; for crashes, the exception."""
    return verdict["cause"].partition(":")[0] if verdict["status"] == "crash" else ""


def read_corpus(path: Path) -> list[FuzzCase]:
    """Programs of a file with one JSON object per line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [from_dict(json.loads(line)) for line in lines if line.strip() and not line.startswith("#")]


def varied(case: FuzzCase, modes: Sequence[str]) -> list[FuzzCase]:
    """A program in several modes."""
    return [replace(case, mode=mode) for mode in modes]
