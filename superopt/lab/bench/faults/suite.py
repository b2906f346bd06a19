"""Damaged and forged files: whether reading them ends in one typed error, and within bounds.

Files of every kind are mutated and read in a process of their own, which is watched.  Figures are what it raises,
whether it dies, its processor time and memory, and which files outside of its folder it opens, writes or runs.  Files
with faults are kept in the folder `superopt-faults`; `python -m superopt.lab.bench.faults.worker KIND FILE` reads one
again and prints the full traceback.

    saved    `.superopt` files: loaded, called, validated.       Counts files, untyped, deaths, outside.
    store    Entries of the store, with right digests.           Also answers unlike the original's: foreign_answers.
    flips    One bit of a store's file.                          Counts foreign_answers.
    onnx     Models.                                             Counts files, untyped, deaths, outside.
    rules    Texts of rules.                                     Counts files, untyped, deaths, outside.
    weights  Weights of the cost model.                          Counts files, untyped, deaths, outside.
    stages   Faults in the stages of an optimisation.            Counts lost_results.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from superopt.lab.bench import Result, Say, table, wanted
from superopt.machine.extras import need
from superopt.workshop.job import Job, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker

KINDS = ("saved", "store", "flips", "onnx", "rules", "weights", "stages")
FAULTS = ("untyped", "outside", "foreign_answers", "over_limits")  # faults that a process can detect in itself
SECONDS, BYTES = 10.0, 500_000_000  # processor time and memory allowed for one file
KEPT = "superopt-faults"
_OFTEN = {"flips": 10}  # multiples of the number of files of other kinds
_FRESH = 500  # files after which the process is replaced
_SHOWN = 20  # faults of each kind to list
_JOBS = "superopt.lab.bench.faults.worker"
MODULES = {
    "saved": "superopt.lab.bench.faults.saved",
    "store": "superopt.lab.bench.faults.store",
    "flips": "superopt.lab.bench.faults.flips",
    "onnx": "superopt.lab.bench.faults.onnx",
    "rules": "superopt.lab.bench.faults.rules",
    "weights": "superopt.lab.bench.faults.weights",
}
"""Modules for each kind of files: `corpus(folder)` writes good ones, `mutated(data, rng, outside)` returns the bytes of
a mutant.  `read(path, good)` reads one: returns how its answer differs from that of the good file, or an empty text."""


@dataclass
class _Found:
    """Results for the files of one kind."""

    kind: str
    files: int = 0
    refused: int = 0
    untyped: int = 0
    deaths: int = 0
    outside: int = 0
    foreign_answers: int = 0
    lost_results: int = 0
    over_limits: int = 0
    seconds: float = 0.0
    bytes: int = 0
    faults: list[str] = field(default_factory=list[str])

    def count_fault(self, name: str, what: str, text: str) -> None:
        """Count a fault, and keep its text while there are few."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.faults) < _SHOWN:
            self.faults.append(f"{self.kind} {name}: {what}: {text}")

    def row(self) -> dict[str, Any]:
        """The results as a row of the table."""
        return {**vars(self), "megabytes": self.bytes / 1e6}


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say, count: int = 200) -> Result:
    """Read `count` mutated files of every kind whose name contains one of `cases` (ten times as many flips)."""
    del budget
    told: list[_Found] = []
    for kind in KINDS:
        if not wanted(kind, cases):
            continue
        files = count * _OFTEN.get(kind, 1)
        if kind == "onnx":
            need("onnx", "reading mutated ONNX models")
        told.append(_stages(count, say) if kind == "stages" else _files(kind, MODULES[kind], files, seed, say))
        say(f"{kind}: {told[-1].files} files, {len(told[-1].faults)} faults told")
    rows = [x.row() for x in told]
    fields = ("files", "untyped", "deaths", "outside", "foreign_answers", "lost_results", "over_limits")
    summary = {name: float(sum(row[name] for row in rows)) for name in fields}
    text = "\n".join([table(rows, _COLUMNS), *(line for x in told for line in x.faults)])
    return rows, summary, text


_COLUMNS = (
    ("kind", "files", ""),
    ("files", "number", "d"),
    ("refused", "refused", "d"),
    ("untyped", "untyped errors", "d"),
    ("deaths", "deaths", "d"),
    ("outside", "outside", "d"),
    ("foreign_answers", "foreign answers", "d"),
    ("lost_results", "lost results", "d"),
    ("over_limits", "over 10 s or 500 MB", "d"),
    ("seconds", "longest s", ".2f"),
    ("megabytes", "largest MB", ".0f"),
)


def _files(kind: str, module: str, count: int, seed: int, say: Say) -> _Found:
    """Read mutated files of a kind by the functions of its module."""
    files = _Found(kind)
    with tempfile.TemporaryDirectory(prefix="superopt-faults-") as folder:
        with Worker(ProcessLimits(silence_s=600.0, memory_bytes=3 << 30, processor=True)) as worker:
            list(worker.request(Job("make", f"{_JOBS}:make_corpus", {"module": module, "place": folder})))
            worker.limits = replace(worker.limits, silence_s=2 * SECONDS)
            message = {
                "kind": kind, "module": module, "place": folder, "seed": seed,
                "kept": str(Path.cwd()),
            }  # fmt: skip
            for event in _events(worker, message, count, files):
                files.files += 1
                files.refused += event["refused"]
                files.seconds = max(files.seconds, event["seconds"])
                files.bytes = max(files.bytes, event["bytes"])
                for what in FAULTS:
                    if event.get(what):
                        files.count_fault(event["kept"], what, event[what])
                if files.files % 1000 == 0:
                    say(f"{kind}: {files.files} of {count}")
        left = sorted(p.name for p in (Path(folder) / "outside").iterdir())
        for name in left:  # by code that is not Python's, which no hook sees
            files.count_fault("", "outside", f"{name} was written")
    return files


def _events(worker: Worker, message: Mapping[str, Any], count: int, found: _Found) -> Iterator[Mapping[str, Any]]:
    """The events of all files; after a death it goes on with the file after the one that was being read."""
    number = 0
    while number < count:
        last, read = min(count, number + _FRESH), None
        try:
            data = {**message, "first": number, "last": last}
            for event in worker.request(Job("validate", f"{_JOBS}:read_mutated", data)):
                if event["event"] == "begin":
                    number, read = event["number"], Path(event["file"])
                elif event["event"] == "end":
                    yield event
            number = last
            worker.close()
        except WorkerDiedError as error:
            kind, seed, failure = message["kind"], message["seed"], error.failure
            if read is None:
                raise RuntimeError(f"good files of the kind {kind} are not read: {failure.detail}") from error
            found.files += 1
            found.count_fault(keep(read, kind, seed, number), "deaths", f"{failure.cause}: {failure.detail}")
            number += 1


def keep(path: Path, kind: str, seed: int, number: int, folder: Path | None = None) -> str:
    """Copy a file with a fault into the folder of faults; return its name there."""
    target = (folder or Path.cwd()) / KEPT / f"{kind}-{seed}-{number}{path.suffix}"
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, target)
    return f"{KEPT}/{target.name}"


def _stages(count: int, say: Say) -> _Found:
    """Put faults into the stages of an optimisation, and tell of each."""
    from superopt.lab.bench.faults import results  # late: the worker, which imports this module, is to stay small

    stages = _Found("stages")

    def note(outcome: results.FaultOutcome) -> None:
        if outcome.lost:
            stages.count_fault("", "lost_results", f"{outcome.fault.target}: {outcome.error}: {outcome.lost}")
        stages.files += 1
        say(f"{outcome.fault.target}: {outcome.lost or 'kept'}")

    results.lost_results(most=count, progress=note)
    return stages


__all__ = ["BYTES", "FAULTS", "KINDS", "MODULES", "SECONDS", "keep", "run"]
