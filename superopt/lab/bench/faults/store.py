"""Entries of the store with faults, under right digests: whether answers made of them equal those of the original.

Each entry is changed, or takes parts of the entry of another program, and is stored where `optimize` would find it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

import superopt
from superopt.backends import native
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import specs_of
from superopt.lab.bench.faults.texts import mutated_json
from superopt.returned.remember import recall, remember
from superopt.store import Store

_KEY = "key"
_OPTIONS: dict[str, Any] = {"frozen": 0, "budget": "30steps", "deterministic": True, "store": False}


def _chain(w: Any, x: Any) -> Any:
    return (x @ w[0]) @ w[1]


def _thrice(w: Any, x: Any) -> Any:
    return 3 * ((x @ w[0]) @ w[1])


def _bent(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ (w[0] + w[0])) @ w[1]


def _loop(w: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y @ w[0]) + i, x) @ w[1]


_PROGRAMS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (_chain, _thrice, _bent, _loop)}


@functools.cache
def _arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    w = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2)]
    return w, rng.standard_normal((4, 8)).astype(np.float32)


@functools.cache
def _imported(name: str) -> Imported:
    return import_function(_PROGRAMS[name], _arguments(), frozen=0)


@functools.cache
def _results(name: str) -> np.ndarray:
    return np.asarray(_PROGRAMS[name](*_arguments()))


def corpus(folder: Path) -> None:
    """Write the entry of each program, beside those of the others; one program has our kernels."""
    entries: dict[str, Any] = {}
    for name, fn in _PROGRAMS.items():
        result = superopt.optimize(fn, *_arguments(), **_OPTIONS)
        if fn is _bent:
            regions = partition(result.program.hot)
            result.kernels = specs_of(result.program.hot, [(r, native.default_trace(r.graph)) for r in regions])
        with Store(memory=True) as store:
            remember(store, _KEY, result)
            entries[name] = store.get("runs", _KEY)
    for name in _PROGRAMS:
        others = [entry for other, entry in entries.items() if other != name]
        text = json.dumps({"program": name, "entry": entries[name], "others": others})
        (folder / f"{name}.entry").write_text(text, encoding="utf-8")


def mutated(data: bytes, rng: random.Random, outside: Path) -> bytes:
    """A changed entry for the same program."""
    held: dict[str, Any] = json.loads(data)
    entry, other = held["entry"], rng.choice(held["others"])
    match rng.randrange(6):
        case 0:
            entry = other
        case 1 | 2:
            field = rng.choice(list(entry))
            entry = {**entry, field: other[field]}
        case _:
            entry = json.loads(_readable(mutated_json(json.dumps(entry).encode(), rng, outside)))
    return json.dumps({"program": held["program"], "entry": entry}).encode()


def _readable(data: bytes) -> bytes:
    """The bytes of a plain object; the store never returns anything else, so other data become an empty object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return b"{}"
    return data if isinstance(value, dict) else b"{}"


def read(path: Path, good: Path) -> str:
    """Put an entry into a store, and let it answer a call."""
    held: dict[str, Any] = json.loads(path.read_bytes())
    program = held["program"]
    with Store(memory=True) as store:
        store.put("runs", _KEY, held["entry"])
        recalled = recall(store, _KEY, _imported(program))
    if recalled is None:
        if path == good and "others" in held:
            return "the entry is not found"
        raise InputError("the entry is a miss")
    str(recalled.report)
    got = np.asarray(recalled(*_arguments()))
    want = _results(program)
    if got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-3):
        return f"{program} answered by another program"
    return ""


__all__ = ["corpus", "mutated", "read"]
