"""A cache of verdicts about schedules: by content, so that a program is checked once, and by structure, for a search.

Three kinds of entries, all under a digest of the sources of the checker, the prover and what both read of programs:

    verdicts    (program before, program after, aliases) -> a proof, with its counts.
    lemmas      statement -> proved for all sizes and decisions.
    structures  both programs with every number removed -> number of candidates of this structure that were proved, time
                spent, and number of solver answers; those answers serve the next candidate with the same questions.

Only proofs are kept.  A table of JSON objects holds them (`superopt.store.Store`, or a dict).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from superopt.ir import as_loaded
from superopt.kernels.loops import stage as stage_module
from superopt.kernels.loops.show import digest, show
from superopt.kernels.loops.stage import LoopProgram
from verifier.record.ledger import Table
from verifier.schedules.check import check_schedule
from verifier.schedules.verdict import CheckLimits, Finding, ScheduleVerdict
from verifier.verdict import PROVED

TABLE = "certificates"
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_PROVER = ("", "equal", "schedules", "statements")  # folders of the verifier, and sources of programs that it reads
_PROGRAMS = ("ir", "ir/ops", "kernels/loops", "kernels/schedule/intrinsics.py")


@functools.cache
def checker() -> str:
    """Digest of everything that a verdict depends on."""
    return hashlib.sha256(b"\n".join(f.read_bytes() for f in _sources())).hexdigest()[:32]


@functools.cache
def _sources() -> tuple[Path, ...]:
    verifier, package = Path(__file__).parents[1], Path(stage_module.__file__).parents[2]
    files: list[Path] = []
    for path in (*(verifier / name for name in _PROVER), *(package / name for name in _PROGRAMS)):
        files += sorted(path.glob("*.py")) if path.is_dir() else [path]
    return tuple(files)


def key_of(before: LoopProgram, after: LoopProgram, aliases: Sequence[tuple[str, str]] = ()) -> str:
    """The key of a verdict."""
    parts = [digest(before), digest(after), json.dumps(sorted(map(list, aliases))), checker()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def structure_of(before: LoopProgram, after: LoopProgram) -> str:
    """Digest of two programs without their numbers: candidates of one trace with different decisions share it."""
    text = "\n".join(_NUMBER.sub("#", show(p)) for p in (before, after))
    return hashlib.sha256(f"{text}\n{checker()}".encode()).hexdigest()[:32]


class ScheduleLedger:
    """Proofs about schedules in a table, or in memory when there is none."""

    def __init__(self, table: Table | None = None) -> None:
        self._table = table
        self._memory: dict[str, Mapping[str, Any]] = {}

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """An entry that is complete, or None."""
        name = f"schedule:{kind}:{key}"
        row = self._memory.get(name)
        if row is None and self._table is not None:
            row = self._table.get(TABLE, name)
            if row is not None and row.get("key") == key:
                self._memory[name] = row
        return row if row is not None and row.get("key") == key else None

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep an entry; in memory only where the sources have changed since the process began."""
        name, row = f"schedule:{kind}:{key}", {**value, "key": key}
        self._memory[name] = row
        if self._table is not None and as_loaded(_sources()):
            self._table.put(TABLE, name, row)

    def check(
        self,
        before: LoopProgram,
        after: LoopProgram,
        limits: CheckLimits | None = None,
        aliases: Sequence[tuple[str, str]] = (),
    ) -> ScheduleVerdict:
        """The verdict on a schedule: from the table, or by `check_schedule`."""
        key = key_of(before, after, aliases)
        known = self.get("verdict", key)
        if known is not None:
            return _decoded(after.name, known)
        verdict = check_schedule(before, after, limits, aliases, self)
        if verdict.proved:
            self.put("verdict", key, {
                "exactness": verdict.exactness, "seconds": verdict.seconds,
                "findings": [[f.obligation, f.stage, f.what, f.tier] for f in verdict.findings],
            })  # fmt: skip
            self._count(before, after, verdict)
        return verdict

    def _count(self, before: LoopProgram, after: LoopProgram, verdict: ScheduleVerdict) -> None:
        key = structure_of(before, after)
        known = self.get("structure", key) or {"proved": 0, "milliseconds": 0.0, "solver": 0}
        asked = sum(f.tier in ("solver", "prover") for f in verdict.findings)
        self.put("structure", key, {
            "proved": known["proved"] + 1, "milliseconds": known["milliseconds"] + verdict.seconds * 1e3,
            "solver": known["solver"] + asked,
        })  # fmt: skip

    def structure(self, before: LoopProgram, after: LoopProgram) -> Mapping[str, Any] | None:
        """Counts of the proved candidates with the structure of a schedule; None before the first."""
        return self.get("structure", structure_of(before, after))


def _decoded(name: str, row: Mapping[str, Any]) -> ScheduleVerdict:
    findings = tuple(Finding(o, s, what, PROVED, tier) for o, s, what, tier in row["findings"])
    return ScheduleVerdict(name, row["key"], PROVED, findings, row["exactness"], row["seconds"], True)
