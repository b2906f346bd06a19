"""Fresh timings of an optimised function against `jax.jit` of the original, interleaved in one process.

Each round times the original with weights as arguments twice (its ratio to itself is the noise floor), the original
with weights baked in as constants, and the optimised function, in random order.

Thread pools of one process disturb each other.  After a call their threads poll for the next one, libgomp's (PyTorch)
for 9 ms, ONNX Runtime's for 45 ms, ours for 0.1 ms, and take the processors from the next call.  Where callees have
different pools (`settle`), a sample begins when the process uses no processor any more, and with untimed calls of the
same callee, which wake its threads.  Each library keeps its own settings.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from superopt.machine.speedup import Speedup
from superopt.measure.stats import paired_ratio

ROUNDS = 31
NOT_SLOWER = 0.98
"""Least ratio, original over optimised, at which a program counts as no slower."""
_SAMPLE_S = 0.05
_SLEEP_S, _IDLE = 0.012, 0.2  # at rest: fewer threads ran meanwhile, in three ticks of the kernel's accounting
_REST_S = 10.0  # longer than any pool polls


@dataclass(frozen=True, slots=True)
class FreshTiming:
    """Medians in milliseconds and paired ratios, original over optimised."""

    before_ms: float
    const_ms: float
    after_ms: float
    ratio: Speedup
    ratio_const: Speedup
    noise_floor: float


def time_against_jit(
    fn: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    optimised: Callable[..., Any],
    *,
    seed: int = 0,
    settle: bool = False,
) -> FreshTiming:
    """Time `fn(params, *inputs)` under `jax.jit`, the same with constant weights, and `optimised` (`interleaved`)."""
    device_params = jax.tree.map(jax.numpy.asarray, params)
    device_inputs = jax.tree.map(jax.numpy.asarray, tuple(inputs))
    jitted, baked = jax.jit(fn), jax.jit(lambda *xs: fn(device_params, *xs))
    calls: list[Callable[[], Any]] = [
        lambda: jitted(device_params, *device_inputs),
        lambda: jitted(device_params, *device_inputs),
        lambda: baked(*device_inputs),
        lambda: optimised(device_params, *device_inputs),
    ]
    samples = interleaved(calls, seed=seed, settle=settle)
    before, again, const, after = samples
    floor = paired_ratio(before, again, seed=seed)
    return FreshTiming(
        before_ms=median(before) * 1e3,
        const_ms=median(const) * 1e3,
        after_ms=median(after) * 1e3,
        ratio=paired_ratio(before, after, seed=seed),
        ratio_const=paired_ratio(const, after, seed=seed),
        noise_floor=floor.noise,
    )


def interleaved(
    calls: Sequence[Callable[[], Any]],
    *,
    rounds: int = ROUNDS,
    sample_s: float = _SAMPLE_S,
    seed: int = 0,
    settle: bool = False,
) -> list[list[float]]:
    """Seconds of each call in every round: all calls once per round, in random order.

    With `settle` all threads of the process come to rest before each sample, and half as many calls run first untimed.

    Raises:
        RuntimeError: some thread of the process does not come to rest.
    """

    def prepare(call: Callable[[], Any]) -> None:
        if settle:
            _rest()
            _warm(call, jax.block_until_ready, sample_s / 2)

    repeats: list[int] = []
    for call in calls:
        prepare(call)
        repeats.append(_repeats(call, jax.block_until_ready, sample_s))
    samples: list[list[float]] = [[] for _ in calls]
    rng = random.Random(seed)
    order = list(range(len(calls)))
    for _ in range(rounds):
        rng.shuffle(order)  # each call leaves its weights in the caches, so none may always follow the same one
        for i in order:
            prepare(calls[i])
            samples[i].append(_sample(calls[i], repeats[i], jax.block_until_ready))
    return samples


def until_decided(
    calls: Mapping[str, Callable[[], Any]],
    bars: Sequence[tuple[str, str, float]],
    *,
    rounds: int,
    most_rounds: int,
    sample_s: float,
    seed: int,
    most_s: float = math.inf,
) -> tuple[dict[str, list[float]], list[Speedup]]:
    """Time blocks of interleaved rounds, until no interval contains the ratio that decides.

    Args:
        calls: the calls to time, by name.
        bars: base, other, and the ratio of the two that decides.
        rounds: rounds of a block.
        most_rounds: largest number of rounds, decided or not.
        sample_s: see `interleaved`.
        seed: seed of the order and of the intervals.
        most_s: seconds after which no further block begins, decided or not.

    Returns:
        Seconds of every round by name, and the ratio of each bar.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    done, begin = 0, time.perf_counter()
    while True:
        block = interleaved(list(calls.values()), rounds=rounds, sample_s=sample_s, seed=seed + done)
        samples = {name: samples[name] + new for name, new in zip(calls, block, strict=True)}
        done += rounds
        ratios = [paired_ratio(samples[base], samples[other], seed=seed) for base, other, _ in bars]
        undecided = any(r.low < bar <= r.high for r, (_, _, bar) in zip(ratios, bars, strict=True))
        if not undecided or done >= most_rounds or time.perf_counter() - begin > most_s:
            return samples, ratios


def _rest() -> None:
    """Sleep until the threads of this process have stopped polling for work."""
    end = time.perf_counter() + _REST_S
    while time.perf_counter() < end:
        begin, used = time.perf_counter(), time.process_time()
        time.sleep(_SLEEP_S)
        if time.process_time() - used < _IDLE * (time.perf_counter() - begin):
            return
    raise RuntimeError(f"threads of this process are still running {_REST_S:g} s after the last call")


def _warm(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float) -> None:
    end = time.perf_counter() + seconds
    wait(call())
    while time.perf_counter() < end:
        wait(call())


def _sample(call: Callable[[], Any], repeats: int, wait: Callable[[Any], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        wait(call())
    return (time.perf_counter() - begin) / repeats


def _repeats(call: Callable[[], Any], wait: Callable[[Any], Any], sample_s: float) -> int:
    wait(call())
    if _sample(call, 1, wait) > sample_s:
        return 1
    fastest = _sample(call, 3, wait)
    if 3 * fastest < sample_s:  # these calls may have touched new memory, and too few repeats measure cold caches
        fastest = min(fastest, *[_sample(call, 3, wait) for _ in range(4)])
    return max(1, round(sample_s / max(fastest, 1e-7)))


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
