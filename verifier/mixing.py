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
_SAMPLE, _TABLES = 1024, 6


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
    """Equalities between labels; `find` gives the representative of each."""

    def __init__(self) -> None:
        self._tables: list[tuple[Ids, Ids]] = []

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._tables)

    def find(self, ids: Ids, *, probe: bool = False) -> Ids:
        """The labels with each replaced by its representative; `probe`: none, where none of a large sample has one."""
        for keys, values in self._tables:
            ids = _replaced(ids, keys, values, probe)
        return ids

    def unite(self, left: Ids, right: Ids) -> bool:
        """Make the labels of two arrays of one shape equal, place by place; True if any was not."""
        a, b = self.find(left).ravel(), self.find(right).ravel()
        apart = a != b
        if not apart.any():
            return False
        keys, values = _table(a[apart], b[apart])
        self._tables.append((keys, values))
        if len(self._tables) > _TABLES:
            self._compact()
        return True

    def _compact(self) -> None:
        """One table out of all; later tables map the values of earlier ones."""
        keys, values = self._tables[0]
        for later_keys, later_values in self._tables[1:]:
            values = _replaced(values, later_keys, later_values, False)
            keys, values = np.concatenate([keys, later_keys]), np.concatenate([values, later_values])
        order = np.argsort(keys, kind="stable")
        self._tables = [(keys[order], values[order])]


def _replaced(ids: Ids, keys: Ids, values: Ids, probing: bool) -> Ids:
    flat = ids.ravel()
    if probing and flat.size > 4 * _SAMPLE:  # a tensor is in a table with most of its elements, or not at all
        probe = flat[:: flat.size // _SAMPLE]
        if not (keys[np.searchsorted(keys, probe).clip(max=len(keys) - 1)] == probe).any():
            return ids
    at = np.searchsorted(keys, flat).clip(max=len(keys) - 1)
    hit = keys[at] == flat
    if not hit.any():
        return ids
    return np.where(hit, values[at], flat).reshape(ids.shape)


def _table(a: Ids, b: Ids) -> tuple[Ids, Ids]:
    """Keys in order and their representatives, for pairs of different labels."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    keys, first, back = np.unique(high, return_index=True, return_inverse=True)
    values = low[first]
    if (values[back] == low).all() and not np.isin(values, keys).any():
        return keys, values
    from scipy.sparse import coo_array  # late: only where one label equals several
    from scipy.sparse.csgraph import connected_components

    names, at = np.unique(np.concatenate([low, high]), return_inverse=True)
    n = len(names)
    edges = coo_array((np.ones(len(low), np.int8), (at[: len(low)], at[len(low) :])), shape=(n, n))
    _, part = connected_components(edges, directed=False)
    least = np.full(int(part.max()) + 1, n)
    np.minimum.at(least, part, np.arange(n))
    leads = names[least[part]]
    moved = leads != names
    return names[moved], leads[moved]
