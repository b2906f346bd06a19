"""Labels of scalars as 64-bit integers, and which of them are known to be equal.

`mix` scrambles labels so that sums of scrambled labels identify multisets; two different scalars get the same label
with probability about 2**-64 per pair.  The scrambling is keyed: whoever writes a program cannot aim at a collision.
`Merges` holds equalities between labels as sorted tables (key -> representative) that are searched array by array.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = "npt.NDArray[np.uint64]"
_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_TIMES = 3  # a table is that many times as long as the next one: few tables, and no row is moved often


def mix(x: Any) -> Ids:
    """Scrambled labels (a bijection)."""
    out: Ids = np.array(x, np.uint64)
    with np.errstate(over="ignore"):
        out += _A
        out ^= out >> _30
        out *= _B
        out ^= out >> _27
        out *= _C
        out ^= out >> _31
    return out


def add(a: Any, b: Any) -> Ids:
    """Sum modulo 2**64."""
    with np.errstate(over="ignore"):
        return np.asarray(a + b)


def total(x: Ids, axes: tuple[int, ...]) -> Ids:
    """Sum over axes modulo 2**64."""
    return np.asarray(x.sum(axis=axes, dtype=np.uint64))


def ordered(tag: Any, *parts: Any) -> Ids:
    """Label of a tuple."""
    out = mix(tag)
    for part in parts:
        out = mix(add(mix(out), part))
    return out


class Tags:
    """Keyed labels of words."""

    def __init__(self, key: bytes) -> None:
        self._key, self._known = key, dict[str, np.uint64]()

    def __call__(self, *words: Any) -> np.uint64:
        """The label of some words (any values with a text)."""
        text = repr(words)
        found = self._known.get(text)
        if found is None:
            digest = hashlib.blake2b(text.encode(), digest_size=8, key=self._key[:64]).digest()
            found = self._known[text] = np.uint64(int.from_bytes(digest, "little"))
        return found


class Merges:
    """Equalities between labels; `find` gives the representative of each.

    Time is cut into rounds: `recent` is what the last finished round has merged.
    """

    def __init__(self) -> None:
        self._known: _Table | None = None
        self._recent: _Table | None = None
        self._now: list[_Table] = []

    def find(self, ids: Ids) -> Ids:
        """The labels with each replaced by its representative."""
        if self._known is not None:
            ids = self._known.replaced(ids)
        for table in self._now:
            ids = table.replaced(ids)
        return ids

    def recent(self, ids: Ids) -> Ids:
        """The same for labels that had been found during the last round; the same array where nothing changes."""
        return ids if self._recent is None else self._recent.replaced(ids)

    def unite(self, left: Ids, right: Ids) -> bool:
        """Make the labels of two arrays of one shape equal, place by place; True if any was not.

        Labels on the left stay where each on the right equals one of them: what was computed from them stays, too.
        """
        a, b = self.find(left).ravel(), self.find(right).ravel()
        apart = a != b
        if not apart.any():
            return False
        self._now.append(_Table(*_pairs(a[apart], b[apart])))
        while len(self._now) > 1 and len(self._now[-2].keys) < _TIMES * len(self._now[-1].keys):
            self._now[-2:] = [_joined(self._now[-2:])]
        return True

    def next_round(self) -> bool:
        """End a round; True if it has merged anything."""
        self._recent = _joined(self._now) if self._now else None
        if self._recent is not None:
            self._known = self._recent if self._known is None else _joined([self._known, self._recent])
        self._now = []
        return self._recent is not None


class _Table:
    """Labels in order with their representatives, found by their leading bits; more of these say what is not there."""

    def __init__(self, keys: Ids, values: Ids) -> None:
        self.keys, self.values = keys, values
        bits = max(4, len(keys).bit_length())
        self._shift, self._fine = np.uint64(64 - bits), np.uint64(62 - bits)
        counts = np.bincount((keys >> self._shift).view(np.int64), minlength=1 << bits)
        self._longest = int(counts.max())
        self._some = np.zeros(1 << (bits + 2), np.bool_)
        self._some[(keys >> self._fine).view(np.int64)] = True
        self._start = np.zeros((1 << bits) + 1, np.int64)
        np.cumsum(counts, out=self._start[1:])

    def replaced(self, ids: Ids) -> Ids:
        """The labels with those in the table replaced; the same array where there is none."""
        flat = ids.ravel()
        out: Ids | None = None
        at = np.flatnonzero(self._some[(flat >> self._fine).view(np.int64)])
        wanted = flat[at]
        bucket = (wanted >> self._shift).view(np.int64)
        place, end = self._start[bucket], self._start[bucket + 1]
        for _ in range(self._longest):
            if not len(at):
                break
            hit = self.keys[place] == wanted
            if hit.any():
                out = flat.copy() if out is None else out
                out[at[hit]] = self.values[place[hit]]
            place = place + 1
            more = ~hit & (place < end)
            at, place, end, wanted = at[more], place[more], end[more], wanted[more]
        return ids if out is None else out.reshape(ids.shape)


def _joined(tables: list[_Table]) -> _Table:
    """One table out of several; later ones map the values of earlier ones."""
    keys, values = tables[0].keys, tables[0].values
    for later in tables[1:]:
        values = later.replaced(values)
        keys, values = np.concatenate([keys, later.keys]), np.concatenate([values, later.values])
    order = np.argsort(keys, kind="stable")
    return _Table(keys[order], values[order])


def _pairs(a: Ids, b: Ids) -> tuple[Ids, Ids]:
    """Keys in order and their representatives, for pairs of different labels: where possible those on the left."""
    keys, first, back = np.unique(b, return_index=True, return_inverse=True)
    values = a[first]
    place = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    if (values[back] == a).all() and not (keys[place] == values).any():
        return keys, values
    low, high = np.minimum(a, b), np.maximum(a, b)
    names, at = np.unique(np.concatenate([low, high]), return_inverse=True)
    ends = at[: len(low)], at[len(low) :]
    lead = np.arange(len(names))
    while True:  # one label equals several: the least of each group, by rounds of pointer jumping
        best = np.minimum(lead[ends[0]], lead[ends[1]])
        new = lead.copy()
        for end in ends:
            np.minimum.at(new, end, best)
            np.minimum.at(new, lead[end], best)
        new = new[new]
        if (new == lead).all():
            break
        lead = new
    moved = lead != np.arange(len(names))
    return names[moved], names[lead[moved]]
