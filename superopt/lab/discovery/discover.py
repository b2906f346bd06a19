"""The run: enumerate level by level, then judge the candidates from small to large.

All results are stored on disk under a key of their inputs, so an interrupted or expired run resumes where it stopped.
Candidates are judged in batches by workers that get the rules found so far.  A new rule is checked once more against
the rules that were found meanwhile, and at the end against all others, since a special case may have been found before
the general rule.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewrites.language.show import rule_key
from rewrites.library import load
from superopt.errors import UsageError
from superopt.lab import Say
from superopt.lab.discovery import calls
from superopt.lab.discovery.algebra import BASE, OPS, OpForm
from superopt.lab.discovery.draft import Draft, subsides
from superopt.lab.discovery.enumeration import PartitionRows, jobs
from superopt.lab.discovery.judge import IMPLIED, NEW, Judged, judge_many, still_new
from superopt.lab.discovery.merges import proved_merges
from superopt.lab.discovery.terms import Universe, leaves_for
from superopt.store import default_path
from superopt.workshop.scheduler import ONE_WORKER, Workers, Workshop
from verifier.record.ledger import versions

ROWS = 400_000
"""Rows of a job and of a partition: the most that one worker has in memory at a time."""
BATCH = 12
"""Candidates that a worker judges in one task."""
ENUMERATING = ("algebra", "terms", "enumeration", "lift", "draft")
JUDGING = ("judge", "widen", "implied")


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Settings of the enumeration.

    Attributes:
        ops: names out of `OPS`.
        size: most ops per side.
        seconds: budget; partial results are kept.
        library: drop rules that the hand-written library implies.
        rows: bound on the rows that one worker has in memory.
    """

    ops: tuple[str, ...] = BASE
    size: int = 3
    seconds: float = 600.0
    library: bool = True
    rows: int = ROWS


@dataclass(slots=True)
class Discovery:
    """Results of a run.

    Attributes:
        rules: texts of the rules found, none implied by the others.
        exactness: rule name -> exactness class.
        merges: texts of proved rules with two roots (see `merges`).
        summary: flat figures.
        done: whether all candidates were judged.
    """

    rules: tuple[str, ...]
    exactness: dict[str, str]
    merges: tuple[str, ...]
    summary: dict[str, Any]
    done: bool


@dataclass(slots=True)
class _DiscoveryRun:
    settings: DiscoverySettings
    folder: Path
    say: Say
    deadline_s: float
    counts: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def check_ops(ops: Sequence[str]) -> tuple[str, ...]:
    """Op names in the order of the table.

    Raises:
        UsageError: there is no such op.
    """
    unknown = [op for op in ops if op not in OPS]
    if unknown or not ops:
        raise UsageError(
            f"unknown op {', '.join(unknown)}" if unknown else "no op given", hint=f"out of {','.join(OPS)}"
        )
    return tuple(op for op in OPS if op in ops)


def default_folder() -> Path:
    """The folder of runs unless another is given."""
    return default_path().parent / "discovery"


def key_of(settings: DiscoverySettings) -> str:
    """Identity of an enumeration: ops, size, bound on rows, and digests of the sources that it depends on."""
    return _digest(repr((settings.ops, settings.size, settings.rows)), ENUMERATING)


def key_of_fates(settings: DiscoverySettings) -> str:
    """Identity of the fates of candidates: the known rules, and digests of the sources that judge."""
    known = "\n".join(rule_key(r) for r in load()) if settings.library else ""
    return _digest(known + repr(sorted(versions().items())), JUDGING)


def _digest(text: str, modules: Sequence[str]) -> str:
    total = hashlib.sha256(text.encode())
    for name in modules:
        total.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return total.hexdigest()[:16]


def discover(
    settings: DiscoverySettings,
    folder: Path | None = None,
    say: Say = lambda _: None,
    workers: Workers = ONE_WORKER,
) -> Discovery:
    """Find rules; see `DiscoverySettings` and `Discovery`.

    Args:
        settings: what to enumerate.
        folder: folder in which runs are stored.
        say: receives progress lines.
        workers: workers that judge candidates; as many of this machine enumerate.

    Raises:
        UsageError: there is no such op, or the size is below 1.
    """
    check_ops(settings.ops)
    if settings.size < 1 or workers.count < 1:
        raise UsageError("size and workers are at least 1")
    begin = time.perf_counter()
    home = (folder or default_folder()) / key_of(settings)
    home.mkdir(parents=True, exist_ok=True)
    run = _DiscoveryRun(settings, home, say, begin + settings.seconds)
    run.counts["jobs"] = workers.count
    done = False
    judged: list[Judged] = []
    with Workers(workers.count).workshop(calls.LIMITS) as workshop:
        pairs = _enumerate(run, workshop)
    if pairs is not None:
        run.counts["pairs"] = len(pairs)
        with workers.workshop(calls.LIMITS) as workshop:
            judged, done = _judge(run, workshop, pairs)
    rules = [(j.text, j.exactness) for j in judged if j.status == NEW]
    kept = _minimal([text for text, _ in rules])
    merges = proved_merges(pairs.values()) if pairs is not None and done else []
    exactness = {_name(text): e for text, e in rules if text in kept}
    run.seconds["total"] = time.perf_counter() - begin
    run.counts["merges"] = len(merges)
    return Discovery(tuple(kept), exactness, tuple(merges), _summary(run, judged, len(rules), len(kept), done), done)


def _enumerate(run: _DiscoveryRun, workshop: Workshop) -> dict[str, Draft] | None:
    """Candidate pairs of all levels by text; None where the budget ended before."""
    settings = run.settings
    leaves = [x.type for x in leaves_for(settings.ops, settings.size).terms]
    made: list[tuple[OpForm, tuple[int, ...]]] = []
    pairs: dict[str, Draft] = {}
    start = time.perf_counter()
    for level in range(1, settings.size + 1):
        universe = run.folder / f"universe-{level}.pickle"
        if not universe.exists():
            calls.save_universe(universe, leaves, made)
        level_rows = _level(run, workshop, universe, level)
        if level_rows is None:
            return None
        for part in level_rows:
            made += part.reps
            pairs.update(part.pairs)
            run.counts["terms"] += part.rows
            run.counts["unliftable"] += part.unliftable
            run.counts["shared"] += part.shared
            run.counts["capped"] += part.capped
        run.say(f"level {level}: {run.counts['terms']} terms, {len(made)} representatives, {len(pairs)} pairs")
    run.counts["representatives"] = len(made)
    run.seconds["enumerate"] = time.perf_counter() - start
    return pairs


def _level(run: _DiscoveryRun, workshop: Workshop, universe: Path, level: int) -> list[PartitionRows] | None:
    settings, ops = run.settings, frozenset(run.settings.ops)
    folder = run.folder / f"level-{level}"
    folder.mkdir(exist_ok=True)
    u: Universe = calls.load_universe(universe)
    todo = jobs(u, level, settings.rows)
    rough = len(todo) * settings.rows // 2 if level > 1 else settings.rows
    partitions = max(1, min(4096, 2 * rough // settings.rows))
    tasks = ((universe, job, ops, folder, partitions) for job in todo)
    for _ in calls.in_turn(workshop, "make", calls.make, _until(run, tasks)):
        pass
    if time.perf_counter() > run.deadline_s:
        return None
    last = level == settings.size
    reading = ((universe, ops, folder, p, last) for p in range(partitions))
    read = calls.in_turn(workshop, "make", calls.read, _until(run, reading))
    rows = [calls.rows_at(path) for path in read]
    if len(rows) < partitions:
        return None
    for p in range(partitions):
        shutil.rmtree(folder / f"{p:04d}", ignore_errors=True)  # read: the result is kept instead
    return sorted(rows, key=repr_of)


def repr_of(found: PartitionRows) -> str:
    """Sort key of partitions that does not depend on the order in which they finish."""
    return repr(found.reps[:1]) + "".join(sorted(found.pairs)[:1])


def _until(run: _DiscoveryRun, tasks: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The tasks, until the time is over."""
    for task in tasks:
        if time.perf_counter() > run.deadline_s:
            return
        yield task


def weight(draft: Draft) -> tuple[int, int]:
    """Sort key of candidates: ops of both sides, then tensors; small ones first, of these the more general first."""
    ops = sum(s[0] != "var" for side in draft.sides for root in side for s in subsides(root))
    return ops, -len(draft.vars)


def _judge(run: _DiscoveryRun, workshop: Workshop, pairs: dict[str, Draft]) -> tuple[list[Judged], bool]:
    """The fates of all candidates, read from the log where recorded, and whether all are judged."""
    start = time.perf_counter()
    log = run.folder / f"fates-{key_of_fates(run.settings)}.jsonl"
    judged = [Judged(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    run.counts["resumed"] = len(judged)
    known = [j.text for j in judged if j.status == NEW]
    on_record = {j.key for j in judged}
    todo = sorted((k for k in pairs if k not in on_record), key=lambda k: (weight(pairs[k]), k))

    def tasks() -> Iterator[tuple[Any, ...]]:
        for i in range(0, len(todo), BATCH):
            chunk = [(k, pairs[k], f"found-{len(on_record) + i + n}") for n, k in enumerate(todo[i : i + BATCH])]
            yield chunk, tuple(known), run.settings.library

    with log.open("a", encoding="utf-8") as file:
        for batch in calls.in_turn(workshop, "validate", judge_many, _until(run, tasks())):
            for one in batch:
                if one.status == NEW and len(workshop.seats) > 1 and not still_new(one.text, known):
                    one = Judged(one.key, IMPLIED, seconds=one.seconds)
                if one.status == NEW:
                    known.append(one.text)
                    run.say(one.text)
                judged.append(one)
                file.write(json.dumps(asdict(one)) + "\n")
            file.flush()
    run.seconds["judge"] = time.perf_counter() - start
    return judged, len(judged) == len(pairs)


def _minimal(texts: Sequence[str]) -> list[str]:
    """The rules without those that the others imply; later rules have priority to stay."""
    kept = list(texts)
    for text in texts:
        others = [t for t in kept if t != text]
        if not still_new(text, others):
            kept = others
    return kept


def _name(text: str) -> str:
    return text.partition(":")[0]


def _summary(run: _DiscoveryRun, judged: Sequence[Judged], new: int, kept: int, done: bool) -> dict[str, Any]:
    fates = Counter(j.status.lower() for j in judged)
    busy = sum(j.seconds for j in judged)
    return {
        "ops": list(run.settings.ops), "size": run.settings.size, "done": done,
        **run.counts, "judged": len(judged), **fates, "rules": kept, "before_minimising": new,
        "discovery_pairs_per_s": len(judged) / busy if busy else 0.0,
        **{f"{k}_s": v for k, v in run.seconds.items()},
    }  # fmt: skip
