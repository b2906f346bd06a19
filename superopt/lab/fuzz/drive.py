"""Drives the fuzzer: draws programs, watches the process that runs them, counts, and reduces failing ones.

The seeds of the corpus come first, then programs by number: two of JAX, one of ONNX.  A process that ends is a crash,
one that does not answer a hang; either way the next program gets a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from superopt.lab.fuzz import jax_programs, onnx_programs
from superopt.lab.fuzz.case import FuzzCase, from_dict, smaller

HANG_S = 120.0
"""Seconds without an answer: no program here needs a tenth of it on an idle machine."""
SLACK, GRACE_S = 1.15, 5.0
"""A run may exceed its budget by this factor and so many seconds, in which one build and the checks fit."""
TRIALS, REDUCE_S = 60, 120.0
RENEWED = 400  # programs after which a process is replaced: compiled code stays in it
FAILED = ("wrong", "crash", "hang")


class FuzzChild:
    """The process that runs programs; started on first use."""

    def __init__(self, store: str, hang_s: float = HANG_S) -> None:
        self.store, self.hang_s, self.count = store, hang_s, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def run(self, case: FuzzCase) -> dict[str, Any]:
        """The verdict on a program, which may be that it hangs or ended the process."""
        if self.count >= RENEWED:
            self.close()
        process = self._process
        first = process is None
        if process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
            command = [sys.executable, "-P", "-m", "superopt.lab.fuzz.child", self.store]
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
            )
            self.count = 0
        assert process.stdin is not None
        assert process.stdout is not None
        self.count += 1
        begin = time.monotonic()
        try:
            process.stdin.write(json.dumps(case.as_dict()).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended("the process had ended")
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if not ready.select(self.hang_s * (3 if first else 1)):  # a first one proves rules
                self.close()
                return {"status": "hang", "cause": f"no answer in {self.hang_s:.0f} s", "seconds": self.hang_s}
        line = process.stdout.readline()
        if not line:
            return self._ended(f"the process ended with {process.wait()}")
        return json.loads(line) | {"whole": time.monotonic() - begin, "first": first}

    def _ended(self, cause: str) -> dict[str, Any]:
        assert self._errors is not None
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        self.close()
        return {"status": "crash", "cause": " ".join([cause, *last])[:300], "seconds": 0.0}

    def close(self) -> None:
        """End the process and its children."""
        if self._process is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(self._process.pid, number)
                    self._process.wait(5)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._process, self.count = None, 0


@dataclass
class Found:
    """Results of a run of the fuzzer.

    Attributes:
        counts: programs by status, and `over_budget`.
        failures: (status, cause, reduced program).
        seconds: duration of the run.
        kernels: random kernels that were compared, and those that were wrong or ended their process.
    """

    counts: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[tuple[str, str, FuzzCase]] = field(default_factory=list[tuple[str, str, FuzzCase]])
    seconds: float = 0.0
    kernels: dict[str, int] = field(default_factory=dict[str, int])

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
            "failures": [
                {"status": s, "cause": c, "program": str(x), "case": x.as_dict()} for s, c, x in self.failures
            ],
        }

    def __str__(self) -> str:
        figures = self.summary()
        lines = [f"{k} {v}" for k, v in figures.items() if k != "failures"]
        told = [f"{s}: {c}\n{x}\n" for s, c, x in self.failures]
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
) -> Found:
    """Run programs until the time or their number is reached.

    Args:
        seconds: time of the run.
        seed: number of the first program.
        programs: how many; as many as fit by default.
        corpus: programs that come first, whatever the number.
        store: path at which proofs and results are kept; a temporary folder by default.
        say: called with one line per failure and per hundred programs.
        reduce: whether failures are made smaller.
    """
    begin = time.monotonic()
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        child = FuzzChild(str(store or Path(folder) / "store.db"))
        try:
            for done, case in enumerate(_cases(seed, corpus)):
                if time.monotonic() - begin >= seconds or (programs is not None and done >= programs + len(corpus)):
                    break
                _count(found, child, case, say, reduce)
                if done % 100 == 99:
                    say(f"{done + 1} programs in {time.monotonic() - begin:.0f} s: {found.counts}")
        finally:
            child.close()
    found.seconds = time.monotonic() - begin
    return found


def _cases(seed: int, corpus: Sequence[FuzzCase]) -> Any:
    yield from corpus
    number = seed
    while True:
        yield (onnx_programs if number % 3 == 2 else jax_programs).program(number)
        number += 1


def _count(found: Found, child: FuzzChild, case: FuzzCase, say: Callable[[str], None], reduce: bool) -> None:
    verdict = child.run(case)
    status = verdict["status"]
    found.counts[status] = found.counts.get(status, 0) + 1
    budget = verdict.get("budget")
    if budget and not verdict.get("first") and verdict["seconds"] > SLACK * budget + GRACE_S:
        found.counts["over_budget"] = found.counts.get("over_budget", 0) + 1
    if status not in FAILED:
        return
    if reduce:
        case, verdict = reduced(case, verdict, child)
    found.failures.append((status, verdict["cause"], case))
    say(f"{status}: {verdict['cause']}\n{case}")


def reduced(case: FuzzCase, verdict: dict[str, Any], child: FuzzChild) -> tuple[FuzzCase, dict[str, Any]]:
    """The smallest program found that fails in the same way, and its verdict."""
    begin, trials, again = time.monotonic(), 0, True
    while again:
        again = False
        for other in smaller(case):
            trials += 1
            if trials > TRIALS or time.monotonic() - begin > REDUCE_S:
                return case, verdict
            found = child.run(other)
            if found["status"] == verdict["status"] and _kind(found) == _kind(verdict):
                case, verdict, again = other, found, True
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
