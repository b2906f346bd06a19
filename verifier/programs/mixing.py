"""Labels of scalars as 64-bit integers, and known equalities between labels.

`mix` scrambles labels so that sums of scrambled labels identify multisets; two different scalars get the same label
with probability about 2**-64 per pair.  The scrambling is keyed: the author of a program cannot construct a collision.
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
_PIECE = 1 << 14
_SAMPLE = 1 << 10


def mix(x: Any) -> Ids:
    """Scramble labels by a bijection."""
    out: Ids = np.array(x, np.uint64)
    _scramble(out)
    return out


def _scramble(out: Ids) -> None:
    """Scramble labels in place, piece by piece, so that each piece stays in the cache."""
    flat = out.ravel(order="K")
    assert flat.size < 2 or np.shares_memory(flat, out)
    with np.errstate(over="ignore"):
        if flat.size < 2:
            flat = out
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE] if flat.ndim else flat
            piece += _A
            piece ^= piece >> _30
            piece *= _B
            piece ^= piece >> _27
            piece *= _C
            piece ^= piece >> _31


def add(a: Any, b: Any) -> Ids:
    """Sum modulo 2**64."""
    with np.errstate(over="ignore"):
        return np.asarray(a + b)


def total(x: Ids, axes: tuple[int, ...]) -> Ids:
    """Sum over axes modulo 2**64."""
    return np.asarray(x.sum(axis=axes, dtype=np.uint64))


def ordered(tag: Any, *parts: Any) -> Ids:
    """Label of a tuple of labels."""
    out = mix(tag)
    for part in parts:
        out = add(mix(out), part)
        _scramble(out)
    return out


class Tags:
    """Keyed hash of words to labels, with a cache."""

    def __init__(self, key: bytes) -> None:
        self._key, self._known = key, dict[str, np.uint64]()

    def __call__(self, *words: Any) -> np.uint64:
        """The label of some words (any values with a text)."""
        text = repr(words)
        tag = self._known.get(text)
        if tag is None:
            digest = hashlib.blake2b(text.encode(), digest_size=8, key=self._key[:64]).digest()
            tag = self._known[text] = np.uint64(int.from_bytes(digest, "little"))
        return tag


class Merges:
    """Equalities between labels (a union-find over arrays); `find` gives the representative of each label.

    `seldom` tests a sample of a large array first and skips the array when the sample has nothing to replace.  It may
    therefore overlook equalities, but never invents one.
    """

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self.sampling = True
        self.united = 0

    def find(self, ids: Ids) -> Ids:
        """Replace labels by their representatives; returns the same array where nothing changes."""
        for table in self._tables:
            ids = table.replaced(ids)
        return ids

    def seldom(self, ids: Ids) -> Ids:
        """As `find`; with `sampling`, a large array is returned as it is when a sample of it has nothing to replace."""
        if self.sampling and ids.size > _SAMPLE * 8:
            flat = ids.reshape(-1)
            part = flat[:: flat.size // _SAMPLE | 1]
            if self.find(part) is part:
                return ids
        return self.find(ids)

    def unite(self, left: Ids, right: Ids) -> Ids:
        """Make the labels of two arrays of one shape equal, element by element; returns their common representatives.

        The labels on the left stay representatives where no label on the right equals several of them.  Labels that
        were computed from them then stay valid.
        """
        one, other = self.find(left), self.find(right)
        a, b = one.ravel(), other.ravel()
        apart = a != b
        if not apart.any():
            return one
        self.united += 1
        table, left_stay = _pairs(a[apart], b[apart])
        self._tables.append(table)
        while len(self._tables) > 1 and len(self._tables[-2].keys) <= len(self._tables[-1].keys):
            self._tables[-2:] = [_joined(*self._tables[-2:])]
        return one if left_stay else self.find(one)


class _Table:
    """A sorted table of labels and representatives, indexed by leading bits; two more bits filter out absent labels."""

    def __init__(self, keys: Ids, values: Ids) -> None:
        self.keys, self.values = keys, values
        bits = max(4, len(keys).bit_length())
        self._shift, self._fine = np.uint64(64 - bits), np.uint64(62 - bits)
        counts = np.bincount((keys >> self._shift).view(np.int64), minlength=1 << bits)
        self._longest = int(counts.max())
        self._some = np.zeros(1 << (bits + 2), np.bool_)
        self._some[(keys >> self._fine).view(np.int64)] = True
        self._start = np.zeros((1 << bits) + 1, np.uint32 if len(keys) < 1 << 32 else np.int64)
        np.cumsum(counts, out=self._start[1:])

    def replaced(self, ids: Ids) -> Ids:
        """Replace labels by the table until none is left in it; returns the same array where there is none."""
        flat = ids.ravel()
        out: Ids | None = None
        at = np.flatnonzero(self._some[(flat >> self._fine).view(np.int64)])
        wanted = flat[at]
        while len(at):
            place = self._places(wanted)
            hit = place >= 0
            at, place = at[hit], place[hit]
            if len(at):
                wanted = self.values[place]
                out = flat.copy() if out is None else out
                out[at] = wanted
        return ids if out is None else out.reshape(ids.shape)

    def holds_any(self, ids: Ids) -> bool:
        """Whether any of some labels is in the table."""
        wanted = ids[self._some[(ids >> self._fine).view(np.int64)]]
        return bool((self._places(wanted) >= 0).any())

    def _places(self, wanted: Ids) -> npt.NDArray[np.int64]:
        """Position of each label among the keys, or -1."""
        places = np.full(len(wanted), -1, np.int64)
        left = np.arange(len(wanted))
        bucket = (wanted >> self._shift).view(np.int64)
        place, end = self._start[bucket].astype(np.int64), self._start[bucket + 1].astype(np.int64)
        for _ in range(self._longest):
            more = place < end
            left, place, end = left[more], place[more], end[more]
            if not len(left):
                break
            hit = self.keys[place] == wanted[left]
            places[left[hit]] = place[hit]
            left, place, end = left[~hit], place[~hit] + 1, end[~hit]
        return places


def _joined(old: _Table, new: _Table) -> _Table:
    """Merge two tables; values of the earlier one may be keys of the later one."""
    place = np.searchsorted(old.keys, new.keys) + np.arange(len(new.keys))
    kept = np.ones(len(old.keys) + len(new.keys), np.bool_)
    kept[place] = False
    both = np.empty((2, len(kept)), np.uint64)
    for row, (mine, others) in zip(both, ((old.keys, new.keys), (old.values, new.values)), strict=True):
        row[kept], row[place] = mine, others
    return _Table(both[0], both[1])


def _pairs(a: Ids, b: Ids) -> tuple[_Table, bool]:
    """A table for pairs of different labels, and whether its representatives are the labels on the left.

    Where one label equals several, the representative is the least label of each group.
    """
    order = np.argsort(b)
    keys, values = b[order], a[order]
    again = keys[1:] == keys[:-1]
    if again.any():
        once = np.append(True, ~again)
        clear = bool((values[1:] == values[:-1])[again].all())
        keys, values = keys[once], values[once]
    else:
        clear = True
    if clear:
        table = _Table(keys, values)
        if not table.holds_any(values):
            return table, True
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
    return _Table(names[moved], names[lead[moved]]), False
