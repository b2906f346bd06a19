"""All terms up to a size, level by level, with fingerprints in partitioned files.

Level n applies every form to every choice of operands that makes n distinct ops.  Operands are representatives: one
term per class of equal smaller terms, the simplest, since terms built from another member are equal by congruence.
A level is cut into jobs.  A job writes its rows (fingerprint, form, operands) to one file per partition of the
fingerprints, and a partition is then read alone.  So memory holds one job or one partition, and a finished file is not
made again.  In a partition, terms with equal fingerprints are candidate pairs with the representative.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.lab.discovery.algebra import COMMUTE, AxesType, OpForm, apply, binary_forms, digests, result, unary_forms
from superopt.lab.discovery.draft import Draft
from superopt.lab.discovery.lift import UnliftableError, lift, typeable
from superopt.lab.discovery.terms import AnonymousTerm, Universe

NONE = 2**32 - 1
ROW = np.dtype([("digest", np.uint64), ("form", np.uint16), ("a", np.uint32), ("b", np.uint32)])
_NOWHERE = np.empty(0, np.int64)
BLOCK = 4096
"""First operands of one batch: bounds the arrays of a form's values."""
MOST_MEMBERS = 64
"""Members of one class that are paired with its representative."""


@dataclass(frozen=True, slots=True)
class LevelJob:
    """Second operands `start:stop` of size `right` against all first operands of size `left`; unary if right < 0."""

    level: int
    left: int
    right: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """File name of the job."""
        return f"{self.left}-{self.right}-{self.start}"


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Results of reading a partition.

    Attributes:
        reps: (form, operands) of new representatives.
        pairs: rule text -> draft.
        rows: number of terms in the partition.
        unliftable: number of pairs that are equal only where different axes have one length.
        shared: number of pairs that are equal whatever a common part is.
        capped: number of pairs skipped because a class has too many members.
    """

    reps: tuple[tuple[OpForm, tuple[int, ...]], ...]
    pairs: dict[str, Draft]
    rows: int
    unliftable: int
    shared: int
    capped: int


class Batches:
    """Terms of one size by type, with their values stacked."""

    def __init__(self, u: Universe, size: int) -> None:
        by_type: dict[AxesType, list[AnonymousTerm]] = {}
        for x in u.terms:
            if x.size == size:
                by_type.setdefault(x.type, []).append(x)
        self.of = {
            t: (np.array([x.number for x in xs]), np.stack([u.values[x.number] for x in xs]), _index(xs))
            for t, xs in by_type.items()
        }


def _index(terms: Sequence[AnonymousTerm]) -> dict[int, np.ndarray]:
    """For every subterm, the positions of the terms that contain it."""
    places: dict[int, list[int]] = {}
    for place, x in enumerate(terms):
        for n in x.inside:
            places.setdefault(n, []).append(place)
    return {n: np.array(indices) for n, indices in places.items()}


def form_table(u: Universe, ops: frozenset[str]) -> dict[OpForm, int]:
    """All forms over the types of a universe, numbered."""
    types = sorted({x.type for x in u.terms})
    forms = {f for t in types for f in unary_forms(t, ops)}
    forms |= {f for s in types for t in types for f in binary_forms(s, t, ops)}
    return {f: i for i, f in enumerate(sorted(forms, key=repr))}


def jobs(u: Universe, level: int, rows: int) -> list[LevelJob]:
    """The jobs of a level, each of at most about `rows` rows."""
    count = [sum(x.size == n for x in u.terms) for n in range(level)]
    out = [LevelJob(level, level - 1, -1, 0, 0)]
    for left in range(level):
        for right in range(left + 1):
            if left + right < level - 1:
                continue
            few = left + right > level - 1 and right > 0  # operands with common parts only
            step = 2000 if few else max(1, rows // max(1, 4 * count[left]))
            out += [LevelJob(level, left, right, i, min(i + step, count[right])) for i in range(0, count[right], step)]
    return out


def run_job(u: Universe, job: LevelJob, ops: frozenset[str], folder: Path, partitions: int) -> int:
    """Write the rows of a job, one file per partition, unless they exist; return the number of rows."""
    mark = folder / f"{job.name}.done"
    if mark.exists():
        return int(mark.read_text())
    table = form_table(u, ops)
    rows = _rows(table, list(_made(u, job, ops)))
    where = (rows["digest"] % np.uint64(partitions)).astype(np.int64)
    order = np.argsort(where, kind="stable")
    bounds = np.searchsorted(where[order], np.arange(partitions + 1))
    for p in range(partitions):
        if bounds[p] < bounds[p + 1]:
            _replace(folder / f"{p:04d}" / f"{job.name}.npy", rows[order[bounds[p] : bounds[p + 1]]])
    mark.write_text(str(len(rows)))
    return len(rows)


def _replace(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    with fresh.open("wb") as file:
        np.save(file, rows)
    fresh.replace(path)


def _rows(table: dict[OpForm, int], made: list[tuple[OpForm, Any, Any, np.ndarray]]) -> np.ndarray:
    """Terms as rows; an operand is an array, or one number for all."""
    counts = [len(digest) for *_, digest in made]
    rows = np.empty(sum(counts), ROW)
    if made:
        rows["digest"] = np.concatenate([digest for *_, digest in made])
        rows["form"] = np.repeat([table[form] for form, *_ in made], counts)
        for name, operands in (("a", [x for _, x, _, _ in made]), ("b", [x for _, _, x, _ in made])):
            full = [np.broadcast_to(x, n) for x, n in zip(operands, counts, strict=True)]
            rows[name] = np.concatenate(full)
    return rows


def _made(u: Universe, job: LevelJob, ops: frozenset[str]) -> Iterator[tuple[OpForm, Any, Any, np.ndarray]]:
    """Form, operands and fingerprints of all terms of a job."""
    batches = Batches(u, job.left).of
    if job.right < 0:
        for t, (numbers, values, _) in batches.items():
            for form in unary_forms(t, ops):
                yield form, numbers, NONE, digests(apply(form, values, None, (t,)), result(form, t))
        return
    seconds = [x for x in u.terms if x.size == job.right][job.start : job.stop]
    for y in seconds:
        for t, (numbers, values, inside) in batches.items():
            chosen = _partners(job, numbers, inside, y)
            for i in range(0, len(chosen), BLOCK):
                block = chosen[i : i + BLOCK]
                yield from _applied(t, numbers[block], values[block], y, u.values[y.number], ops)


def _partners(job: LevelJob, numbers: np.ndarray, inside: dict[int, np.ndarray], y: AnonymousTerm) -> np.ndarray:
    """Positions of the first operands that with `y` make a term of the level, each unordered pair once."""
    keep = numbers <= y.number if job.left == job.right else np.ones(len(numbers), bool)
    shared = np.zeros(len(numbers), np.int64)
    for n in y.inside:
        shared[inside.get(n, _NOWHERE)] += 1
    return np.flatnonzero(keep & (job.left + job.right - shared == job.level - 1))


def _applied(
    t: AxesType, numbers: np.ndarray, values: np.ndarray, y: AnonymousTerm, value: np.ndarray, ops: frozenset[str]
) -> Iterator[tuple[OpForm, Any, Any, np.ndarray]]:
    for form in binary_forms(t, y.type, ops):
        yield form, numbers, y.number, digests(apply(form, values, value[None], (t, y.type)), result(form, t, y.type))
    for form in binary_forms(y.type, t, ops):
        if form.op in COMMUTE and (form.op == "dot" or len(t) == len(y.type)):
            continue  # these commute: made above
        yield form, y.number, numbers, digests(apply(form, value[None], values, (y.type, t)), result(form, y.type, t))


def read_partition(
    u: Universe, known: np.ndarray, numbers: np.ndarray, ops: frozenset[str], folder: Path, partition: int, last: bool
) -> PartitionRows:
    """New representatives and candidate pairs of a partition; `known` are sorted fingerprints of terms `numbers`."""
    kept = folder / f"found-{partition:04d}.pickle"
    if kept.exists():
        with kept.open("rb") as file:
            return pickle.load(file)
    files = sorted((folder / f"{partition:04d}").glob("*.npy"))
    rows = np.concatenate([np.load(f) for f in files]) if files else np.empty(0, ROW)
    rows = np.sort(rows, order=["digest", "form", "a", "b"])
    parts = _Reader(u, list(form_table(u, ops)), known, numbers, last).read(rows)
    fresh = kept.with_suffix(f".{os.getpid()}")
    with fresh.open("wb") as file:
        pickle.dump(parts, file)
    fresh.replace(kept)
    return parts


class _Reader:
    def __init__(self, u: Universe, forms: list[OpForm], known: np.ndarray, numbers: np.ndarray, last: bool) -> None:
        self.u, self.forms, self.known, self.numbers, self.last = u, forms, known, numbers, last
        self.reps: list[tuple[OpForm, tuple[int, ...]]] = []
        self.pairs: dict[str, Draft] = {}
        self.unliftable = self.shared = self.capped = 0

    def read(self, rows: np.ndarray) -> PartitionRows:
        """Process the classes of a partition."""
        if len(rows):
            starts = np.flatnonzero(np.r_[True, rows["digest"][1:] != rows["digest"][:-1]])
            stops = np.r_[starts[1:], len(rows)]
            heads = rows["digest"][starts]
            at = np.minimum(np.searchsorted(self.known, heads), max(0, len(self.known) - 1))
            old = self.known[at] == heads
            worth = old | (stops - starts > 1) | (not self.last)
            for i in np.flatnonzero(worth):
                rep = self.u.terms[self.numbers[at[i]]] if old[i] else None
                self._class(rep, rows[starts[i] : stops[i]])
        return PartitionRows(tuple(self.reps), self.pairs, len(rows), self.unliftable, self.shared, self.capped)

    def _class(self, rep: AnonymousTerm | None, rows: np.ndarray) -> None:
        if rep is not None and not self.u.canonical(rep):
            return
        members = [self._term(row) for row in rows]
        if rep is None:
            if not self.last:
                members = [x for x in members if typeable(self.u, x)]
                if not members:
                    return
            rep = self._simplest(members)
            if not self.last:
                assert rep.form is not None
                self.reps.append((rep.form, rep.args))
            if not self.u.canonical(rep):
                return
        others = [x for x in members if (x.form, x.args) != (rep.form, rep.args)]
        self.capped += max(0, len(others) - MOST_MEMBERS)
        for other in others[:MOST_MEMBERS]:
            self._pair(rep, other)

    def _term(self, row: Any) -> AnonymousTerm:
        args = (int(row["a"]),) if row["b"] == NONE else (int(row["a"]), int(row["b"]))
        return self.u.make(self.forms[int(row["form"])], args)

    def _simplest(self, members: list[AnonymousTerm]) -> AnonymousTerm:
        """The simplest canonical member, if any is canonical (some renaming of every class has one)."""
        if len(members) == 1:
            return members[0]
        return min(members, key=lambda x: (x.size, not self.u.canonical(x), self.u.spelled(x)))

    def _pair(self, rep: AnonymousTerm, other: AnonymousTerm) -> None:
        if self._common(rep, other):
            self.shared += 1
            return
        try:
            draft = lift(self.u, other, rep)
        except UnliftableError:
            self.unliftable += 1
            return
        self.pairs.setdefault(draft.text(), draft)

    def _common(self, rep: AnonymousTerm, other: AnonymousTerm) -> bool:
        """Whether both contain a common subterm whose value does not matter."""
        for n in (rep.inside & other.inside) - {-1}:
            rng = np.random.default_rng((29, n))
            given = {n: rng.integers(-9, 10, self.u.values[n].shape).astype(np.float64)}
            a, b = self.u.evaluate(rep, given), self.u.evaluate(other, given)
            if digests(a[None], rep.type)[0] == digests(b[None], other.type)[0]:
                return True
        return False
