"""The timing loop: interleaved rounds in random order, many calls per sample when a call is short.

Runs wherever the programs live, in the worker or in the calling process; it knows nothing about either.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Thunk = Callable[[], Any]
MAX_CALLS = 10_000  # of a sample: a millisecond of calls of 0.1 us, the shortest there are
SLOW_CALL_S = 2.0  # one such call is a sample; first calls of short programs took half a second at most


def seconds_of(thunk: Thunk, calls: int) -> float:
    """Mean seconds of one call over several back-to-back calls, each of which must wait for its result."""
    start = time.perf_counter()
    for _ in range(calls):
        thunk()
    return (time.perf_counter() - start) / calls


def on_device(arrays: Sequence[Any]) -> list[Any]:
    """Arrays on the device of the process, 64-bit numbers as such whatever JAX is set to."""
    import jax  # late: only where programs run

    with jax.enable_x64(True):
        return [jax.device_put(x) for x in arrays]


def calls_for(thunk: Thunk, min_time_s: float) -> int:
    """Number of calls for a sample of at least `min_time_s` (after a call to warm up).

    Counts grow until so many calls did take that long.  The first ones after another program are unlike the later ones
    (threads sleep, caches are cold), and too few calls in a sample time just those.
    """
    if seconds_of(thunk, 1) > SLOW_CALL_S:
        return 1
    calls = 1
    while (short := seconds_of(thunk, calls) * calls) < min_time_s and calls < MAX_CALLS:
        wanted = calls * min_time_s / max(short, 1e-7 * calls)
        calls = min(MAX_CALLS, max(calls + 1, min(4 * calls, int(wanted + 0.999))))
    return calls


def interleaved(
    thunks: Sequence[Thunk], calls: Sequence[int], rounds: int, seed: int, active: set[int]
) -> Iterator[tuple[int, int, float | None]]:
    """Yield `(round, index, None)` before and `(round, index, seconds per call)` after each sample.

    The caller may take indices out of `active` between rounds.
    """
    rng = random.Random(seed)
    for k in range(rounds):
        order = sorted(active)
        rng.shuffle(order)
        for i in order:
            yield k, i, None
            yield k, i, seconds_of(thunks[i], calls[i])


def samples(thunks: Sequence[Thunk], min_time_s: float, rounds: int, seed: int) -> list[list[float]]:
    """Seconds per call of each thunk in every round, in samples of at least `min_time_s`."""
    calls = [calls_for(thunk, min_time_s) for thunk in thunks]
    samples_s: list[list[float]] = [[] for _ in thunks]
    for _, i, seconds in interleaved(thunks, calls, rounds, seed, set(range(len(thunks)))):
        if seconds is not None:
            samples_s[i].append(seconds)
    return samples_s


def seconds_each(thunk: Thunk, calls: int) -> list[float]:
    """Seconds of each of several calls."""
    marks = [time.perf_counter()]
    for _ in range(calls):
        thunk()
        marks.append(time.perf_counter())
    return [b - a for a, b in itertools.pairwise(marks)]
