"""Finds the fastest schedule of a stage on this GPU, by timing.

Every candidate of `space.candidates` is compiled, several at a time: Triton takes a second or more for each.  One that
does not compile, or disagrees with the default, drops out.
All others are timed in interleaved rounds, and half of them stay after each.  The last few are timed afresh, since the
best of many noisy figures looks better than it is.

One timing runs a kernel over several sets of arguments one after another inside one call, so that neither the launch of
a call nor the cache decides.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from superopt.errors import InputError, SuperoptError
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.pallas import space
from superopt.kernels.pallas.lower import lower
from superopt.kernels.schedule.trace import Trace, apply
from superopt.machine.facts import usable_cores
from superopt.measure.loop import Thunk

CaseArrays = Sequence[Any]
RoundTimer = Callable[[Sequence[Thunk], int], list[list[float]]]
FAULTS = (InputError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError)  # of lowering, Pallas and Triton
TOLERANCE = 0.02  # relative norm: schedules may round differently, but must compute the same function


@dataclass(frozen=True, slots=True)
class PallasTrial:
    """A schedule that was tried.

    Attributes:
        trace: the schedule.
        seconds: per run, the median of its last rounds; None if it dropped out.
        failure: the reason why it dropped out.
    """

    trace: Trace
    seconds: float | None
    failure: str = ""


def chained(fn: Callable[..., Any]) -> Callable[[Sequence[CaseArrays]], Any]:
    """A jitted function that runs `fn` on each of several sets of arguments, one after another."""
    fn = jax.jit(fn)  # traced once, not for each set

    def call(sets: Sequence[CaseArrays]) -> Any:
        results: list[Any] = []
        for arrays in sets:
            if results:
                arrays, results[-1] = lax.optimization_barrier((arrays, results[-1]))
            results.append(fn(*arrays))
        return results

    return jax.jit(call)


def all_built(makes: Sequence[Callable[[], Callable[..., Any]]], *arguments: Any) -> list[Callable[..., Any] | str]:
    """Functions compiled for these arguments, each beside the next; the reason in place of one that has no code."""
    waiting: list[Future[Any] | str] = []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for make in makes:
            try:
                waiting.append(pool.submit(jax.jit(make()).lower(*arguments).compile))
            except FAULTS as reason:
                waiting.append(failure_line(reason))
    return [x if isinstance(x, str) else attempt(x.result) for x in waiting]


def attempt(call: Thunk) -> Any:
    """The result of a call, or the reason why it failed."""
    try:
        return jax.block_until_ready(call())
    except FAULTS as reason:
        return failure_line(reason)


def failure_line(reason: Exception) -> str:
    """A failure in a line."""
    return f"{type(reason).__name__}: {reason}"[:500]


def interleaved(calls: Sequence[Thunk], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round; the order alternates from round to round."""
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        jax.block_until_ready(call())
    for r in range(rounds):
        for j in range(len(calls)):
            i = (j + r) % len(calls)
            begin = time.perf_counter()
            jax.block_until_ready(calls[i]())
            samples[i].append(time.perf_counter() - begin)
    return samples


def tune(
    program: LoopProgram,
    sets: Sequence[CaseArrays],
    *,
    precision: str = "ieee",
    rounds: int = 5,
    most: int | None = None,
    interpret: bool | None = None,
    clock: RoundTimer = interleaved,
) -> tuple[Trace, list[PallasTrial]]:
    """Tune a program; return the fastest trace that was found, and all trials.

    Args:
        program: not scheduled; its stages are tuned one after another, the others under their defaults.
        sets: arguments to run over, several for kernels whose data fits the cache.
        precision: precision of float32 products: `ieee`, `tf32x3` or `tf32`.
        rounds: timings of each candidate before half of them go.
        most: largest number of candidates of a stage.
        interpret: see `lower`.
        clock: seconds of calls in rounds.

    Raises:
        SuperoptError: no candidate of a stage runs.
    """
    chosen = {s.buffer: space.candidates(program, s.buffer, precision)[0] for s in program.stages}
    trials: list[PallasTrial] = []
    for stage in program.stages:
        options = space.candidates(program, stage.buffer, precision)[:most]

        def whole(option: Trace, name: str = stage.buffer) -> Trace:
            return tuple(step for n, t in chosen.items() for step in (option if n == name else t))

        times = _race([(whole(o), o) for o in options], program, sets, rounds, interpret, clock)
        trials += [trial for trial, _ in times]
        alive = [(trial.seconds, option) for trial, option in times if trial.seconds is not None]
        if not alive:
            raise SuperoptError(f"no schedule of {stage.buffer} runs: {times[0][0].failure}")
        chosen[stage.buffer] = min(alive, key=lambda x: x[0])[1]
    return tuple(step for t in chosen.values() for step in t), trials


def _race(
    options: Sequence[tuple[Trace, Trace]],
    program: LoopProgram,
    sets: Sequence[CaseArrays],
    rounds: int,
    interpret: bool | None,
    clock: RoundTimer,
) -> list[tuple[PallasTrial, Trace]]:
    def make(trace: Trace) -> Callable[..., Any]:
        return chained(lower(apply(program, trace), interpret))

    dropped: list[tuple[PallasTrial, Trace]] = []
    running: list[tuple[Trace, Trace, Thunk]] = []
    wanted: Any = None
    codes = all_built([functools.partial(make, trace) for trace, _ in options], sets)
    for (trace, option), code in zip(options, codes, strict=True):
        results = code if isinstance(code, str) else attempt(lambda code=code: code(sets)[0])
        if not isinstance(results, str):
            wanted = results if wanted is None else wanted
            results = results if _close(results, wanted) else "results differ from those of the default schedule"
        if isinstance(results, str) or isinstance(code, str):
            dropped.append((PallasTrial(trace, None, results), option))
        else:
            running.append((trace, option, functools.partial(code, sets)))
    times: list[float] = [0.0] * len(running)
    while running:
        last = len(running) <= 3
        samples = clock([call for *_, call in running], 3 * rounds if last else rounds)
        times = [median(s) / len(sets) for s in samples]
        if last:
            break
        order = sorted(range(len(running)), key=times.__getitem__)
        keep = sorted(order[: max(3, len(order) // 2)])
        dropped += [(PallasTrial(running[i][0], times[i]), running[i][1]) for i in order if i not in keep]
        running = [running[i] for i in keep]
    return [(PallasTrial(t, s), o) for (t, o, _), s in zip(running, times, strict=True)] + dropped


@jax.jit
def _close(found: Sequence[jax.Array], wanted: Sequence[jax.Array]) -> jax.Array:
    """Whether results agree: NaN in the same places, and a difference of a small norm elsewhere."""
    agree = jnp.bool_(True)
    for x, y in zip(found, wanted, strict=True):
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        near = jnp.linalg.norm(jnp.nan_to_num(x - y).ravel())
        most = TOLERANCE * jnp.linalg.norm(jnp.nan_to_num(y).ravel()) + 1e-30
        agree &= (jnp.isnan(x) == jnp.isnan(y)).all() & (near <= most)
    return agree
