"""Stores with one bit flipped: every answer must be the stored value, or none."""

from __future__ import annotations

import functools
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

from superopt.store import TABLES, Store, StoreWarning

_ROWS = 4  # rows of each table


def corpus(folder: Path) -> None:
    """Write a store whose tables hold rows of several sizes."""
    with Store(folder / "store.sqlite") as store:
        for table in TABLES:
            store.put_many(table, {_key(table, n): _value(table, n) for n in range(_ROWS)})


def _key(table: str, number: int) -> str:
    return f"{table[:2]}{number:030x}"


def _value(table: str, number: int) -> dict[str, Any]:
    return {"hot": f"%0 = input {table}{number} : f32[2,3]\n" * (1 + 20 * number), "report": [number, table, None, 0.5]}


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """The file with one bit flipped."""
    del outside
    out = bytearray(data)
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


@functools.cache
def _expected() -> dict[tuple[str, str], dict[str, Any]]:
    return {(table, _key(table, n)): _value(table, n) for table in TABLES for n in range(_ROWS)}


def read(path: Path, good: Path) -> str:
    """Ask a store for all stored keys, and for one that was not stored."""
    del good
    place = Path("opened").absolute()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copyfile(path, place / "store.sqlite")
    with warnings.catch_warnings(action="ignore", category=StoreWarning), Store(place / "store.sqlite") as store:
        rows = {(table, key): value for table in TABLES for key, value in store.items(table)}
        for table, key in _expected():
            answer = store.get(table, key)
            if answer is not None and answer != _expected()[table, key]:
                return f"another answer for {key} of {table}"
        for table in TABLES:
            if store.get(table, "0" * 32) is not None:
                return f"an answer of {table} for what was never put"
    for where, value in rows.items():
        if _expected().get(where) != value:
            return f"another row {where}"
    return ""


__all__ = ["corpus", "mutated", "read"]
