"""Candidates that misbehave, for the worker tests: entry points `measure_faults:NAME`, run in the worker only."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Call = Callable[..., tuple[Any, ...]]


def good(frozen: Mapping[str, Any]) -> Call:
    """Twice the input, plus the frozen `bias`."""
    return jax.jit(lambda x: (x * 2.0 + jnp.asarray(frozen["bias"]),))


def same(frozen: Mapping[str, Any]) -> Call:
    """The same function, written otherwise."""
    return jax.jit(lambda x: (x + x + jnp.asarray(frozen["bias"]),))


def slow(frozen: Mapping[str, Any]) -> Call:
    """Right, and ten milliseconds late."""
    call = good(frozen)

    def late(x: Any) -> tuple[Any, ...]:
        time.sleep(0.01)
        return call(x)

    return late


def wrong(frozen: Mapping[str, Any]) -> Call:
    """Off by one per cent."""
    return jax.jit(lambda x: (x * 2.02 + jnp.asarray(frozen["bias"]),))


def waits_for_pages(frozen: Mapping[str, Any]) -> Call:
    """Right where memory that was given back is kept: takes 48 MiB for each call, fails where the pages stay fresh."""
    call, fresh = good(frozen), list[int]()

    def allocating(x: Any) -> tuple[Any, ...]:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        bytearray(b"x") * (48 << 20)  # more than the C library ever keeps by itself
        fresh.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        if len(fresh) > 2 and fresh[-1] > 1000:  # the first calls may take it for the first time
            raise RuntimeError(f"{fresh[-1]} fresh pages")
        return call(x)

    return allocating


def raises(frozen: Mapping[str, Any]) -> Call:
    """An exception while building."""
    raise RuntimeError("cannot be built")


def segfault(frozen: Mapping[str, Any]) -> Call:
    """Read address zero."""
    ctypes.string_at(0)
    return good(frozen)


def aborts(frozen: Mapping[str, Any]) -> Call:
    """Abort as a failed assertion in C++ does."""
    os.abort()


def exits(frozen: Mapping[str, Any]) -> Call:
    """Leave without a word."""
    os._exit(7)


def hangs(frozen: Mapping[str, Any]) -> Call:
    """Never come back."""
    while True:
        time.sleep(1.0)


def eats_memory(frozen: Mapping[str, Any]) -> Call:
    """Ask for ever more memory."""
    kept = []
    while True:
        kept.append(bytearray(b"x") * (64 << 20))


def shouts(frozen: Mapping[str, Any]) -> Call:
    """Write 64 MB to standard output and error, then behave."""
    for _ in range(64):
        os.write(1, b"o" * (1 << 20))
        os.write(2, b"e" * (1 << 20))
    return good(frozen)


def forks(frozen: Mapping[str, Any]) -> Call:
    """Leave a child behind, say its number on the way, and never come back."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with open(str(frozen["pidfile"].tobytes().decode()), "w") as out:
        out.write(str(child.pid))
    return hangs(frozen)


def crashes_when_timed(frozen: Mapping[str, Any]) -> Call:
    """Behave for some calls, then segfault."""
    call, left = good(frozen), [40]

    def later(x: Any) -> tuple[Any, ...]:
        left[0] -= 1
        if left[0] < 0:
            ctypes.string_at(0)
        return call(x)

    return later
