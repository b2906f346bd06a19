"""Building, checking and timing programs, as a stream of events.

The same generator runs inside the worker (events become JSON lines) and, for programs that cannot leave the process,
in the caller.  Events of `compare_events`:

    begin{index, stage}                   The candidate to blame from now on: it is built, checked or timed.
    ready{index, build_s, calls, errors}  The candidate can be timed.
    failed{index, cause, detail, errors}  The candidate is out, perhaps after rounds with it.
    round{seconds: {index: s}}            One round; index -1 is the reference, -2 the reference again (A/A).
    pruned{index}                         The candidate is too slow to be worth further rounds.

Events of `run_events`:

    ran{seconds, outputs}                 One call.
    failed{cause, detail}                 Class and message of the exception that the program raised.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from superopt.machine.deadline import HALF
from superopt.measure import loop
from superopt.measure.conditioning import Exact, Neighbours, differ_by_rounding
from superopt.measure.numerics import Tolerance, output_errors
from superopt.workshop.job import Event, OutputError

REFERENCE, AGAIN = -1, -2
PRUNE_ROUNDS = 3  # the best of which is compared: a disturbance of one or two of them ends no candidate
_LONGEST = 4000  # characters of an exception of a program
_NOT_APART = "a call of the original takes too long for rounds, and one call of each does not tell which is faster"
ProgramCall = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """Settings of a comparison.

    Attributes:
        rounds: interleaved rounds.
        min_time_s: shortest sample; short programs are called several times per sample.
        seed: seed of the order within rounds.
        prune: stop timing a candidate that stays slower than the reference by this factor after three rounds; 0 never.
        budget_s: stop after the round in which this time is over; 0 is no limit.
        builds_s: leave out candidates, but for the first, whose build would not end within this time of the start, if
            it takes as long as the longest candidate so far; 0 is no limit.
        min_rounds: rounds to complete whatever the budget, as the ratio of few rounds has no useful interval.
        check: compare the outputs first.
        tolerance: accepted errors of the outputs.
        kinds: the type whose rounding bounds the error of each output; that of the output where empty.
        isolate: False compares in the calling process, unprotected; so do opaque operations without a module.
        end_s: instant of `time.monotonic` at which programs are ended, or left behind where they run in this process.
            The result is then that of the rounds until the instant.
        known_s: seconds of a call of the reference, where the fewest rounds with it would take too long.  The reference
            is not called then, and candidates that take neither half nor twice as long as that are out.
    """

    rounds: int = 15
    min_time_s: float = 0.02
    seed: int = 0
    prune: float = 2.0
    budget_s: float = 0.0
    check: bool = True
    min_rounds: int = 1
    tolerance: Tolerance = field(default_factory=Tolerance)
    kinds: tuple[str, ...] = ()
    isolate: bool = True
    builds_s: float = 0.0
    end_s: float = math.inf
    known_s: float = 0.0


@dataclass(slots=True)
class Kept:
    """A built program that later comparisons may call again; `build_s` is the time that its build took."""

    call: ProgramCall
    build_s: float = 0.0


Make = Callable[[], ProgramCall | Kept]


def compare_events(
    make_reference: Make,
    make_candidates: Mapping[int, Make],
    inputs: Sequence[Any],
    settings: ComparisonSettings,
    exact: Exact = lambda change: None,
) -> Iterator[Event]:
    """Build all, check all, time all; an exception of a candidate becomes a `failed` event.

    Results beyond the tolerance are compared with `exact`, the reference over float64, which tells rounding from other
    numbers.  That may take long, so it follows the rounds: where the time is over, these have their timings.
    """
    start = time.monotonic()
    live = loop.on_device(inputs)
    yield {"event": "begin", "index": REFERENCE, "stage": "build"}
    thunks: dict[int, loop.Thunk] = {}
    calls: dict[int, int] = {}
    expected: list[np.ndarray] | None = None
    if settings.known_s:
        yield {"event": "ready", "index": REFERENCE, "build_s": 0.0, "calls": 1, "errors": []}
    else:
        try:
            reference, build_s, expected = _built(make_reference, live)
        except Exception as error:  # whatever the reference raises is the answer: data, with its cause
            yield _failed(REFERENCE, "build", error)
            return
        thunks = {REFERENCE: reference, AGAIN: reference}
        calls = {REFERENCE: loop.calls_for(reference, settings.min_time_s)}
        calls[AGAIN] = calls[REFERENCE]
        yield {"event": "ready", "index": REFERENCE, "build_s": build_s, "calls": calls[REFERENCE], "errors": []}
    doubtful: dict[int, tuple[list[np.ndarray], Event]] = {}
    longest_s, before = 0.0, len(thunks)
    for index, make in make_candidates.items():
        end_s = time.monotonic() - start + longest_s
        if settings.builds_s and len(thunks) > before and end_s > settings.builds_s:
            yield _out(index, "timeout", "not built: the time does not suffice")
            continue
        yield {"event": "begin", "index": index, "stage": "build"}
        try:
            thunk, build_s, outputs = _built(make, live)
            longest_s = max(longest_s, build_s)
            errors = output_errors(expected, outputs) if settings.check and expected is not None else ()
            if wrong := _wrong(errors, expected or (), settings):
                out = _out(index, "numerics", wrong) | {"errors": _plain(errors)}
                if not settings.tolerance.normwise:
                    yield out
                    continue
                doubtful[index] = outputs, out
            calls[index] = loop.calls_for(thunk, settings.min_time_s)
            if settings.known_s and not _is_apart(settings.known_s, loop.seconds_of(thunk, calls[index])):
                yield _out(index, "timeout", _NOT_APART)
                continue
        except Exception as error:  # a candidate may raise anything; it is reported with its cause
            yield _failed(index, "build", error)
            continue
        thunks[index] = thunk
        ready = {"event": "ready", "index": index, "build_s": build_s, "calls": calls[index], "errors": _plain(errors)}
        yield ready
    if not thunks:
        yield _out(REFERENCE, "timeout", _NOT_APART)
        return
    yield from _rounds(thunks, calls, settings)
    near = Neighbours(exact, settings.seed)
    for index, (outputs, out) in doubtful.items():
        if index in thunks and expected is not None:
            yield {"event": "begin", "index": index, "stage": "check"}
            if not differ_by_rounding(near, _kinds(expected, settings), expected, outputs):
                yield out


def run_events(make: Make, inputs: Sequence[Sequence[Any]]) -> Iterator[Event]:
    """Build a program and call it on each of these inputs; yields its results and seconds, or why it failed.

    The first call includes the build.
    """
    import jax  # late: only where programs run

    try:
        made = make()
        call = made.call if isinstance(made, Kept) else made
        for number, given in enumerate(inputs):
            start = time.perf_counter()
            outputs = jax.block_until_ready(call(*loop.on_device(given)))
            seconds = time.perf_counter() - start
            if isinstance(made, Kept) and not number:
                made.build_s = max(made.build_s, seconds)
            yield {"event": "ran", "seconds": seconds, "outputs": [np.asarray(x) for x in outputs]}
    except Exception as error:  # whatever the program raises is the answer
        yield {"event": "failed", "cause": type(error).__name__, "detail": str(error)[-_LONGEST:]}


def _rounds(thunks: dict[int, loop.Thunk], calls: dict[int, int], settings: ComparisonSettings) -> Iterator[Event]:
    """Time programs in interleaved rounds; yield a round's seconds, and drop programs that are hopeless."""
    index_of = sorted(thunks)
    active = set(range(len(index_of)))
    slowness: dict[int, list[float]] = {i: [] for i in active}
    ordered, counts = [thunks[i] for i in index_of], [calls[i] for i in index_of]
    start = time.monotonic()
    seconds: dict[int, float] = {}
    for k, i, sample_s in loop.interleaved(ordered, counts, settings.rounds, settings.seed, active):
        if sample_s is None:
            yield {"event": "begin", "index": max(index_of[i], REFERENCE), "stage": "time"}
            continue
        seconds[i] = sample_s
        if len(seconds) < len(active):
            continue
        told = {index_of[j]: s for j, s in seconds.items()}
        told.setdefault(REFERENCE, settings.known_s)
        yield {"event": "round", "seconds": {str(index): s for index, s in told.items()}}
        for j, s in seconds.items():
            slowness[j].append(s / told[REFERENCE])
        seconds = {}
        if settings.prune and k + 1 == PRUNE_ROUNDS:
            for j in [j for j in active if index_of[j] >= 0 and min(slowness[j]) > settings.prune]:
                active.discard(j)
                yield {"event": "pruned", "index": index_of[j]}
        over = settings.budget_s and time.monotonic() - start > settings.budget_s
        if over and k + 1 >= settings.min_rounds:
            return


def _is_apart(known_s: float, seconds: float) -> bool:
    """Whether one call of each of two programs suffices to tell which is the faster."""
    return not HALF < seconds / known_s < 1.0 / HALF


def _built(make: Make, live: Sequence[Any]) -> tuple[loop.Thunk, float, list[np.ndarray]]:
    import jax  # late: only where programs run

    start = time.perf_counter()
    made = make()
    call = made.call if isinstance(made, Kept) else made
    outputs = jax.block_until_ready(call(*live))
    build_s = time.perf_counter() - start
    if isinstance(made, Kept):
        made.build_s = build_s = max(made.build_s, build_s)

    def thunk() -> None:
        jax.block_until_ready(call(*live))

    return thunk, build_s, [np.asarray(x) for x in outputs]


def _wrong(errors: Sequence[OutputError], expected: Sequence[np.ndarray], settings: ComparisonSettings) -> str:
    kinds = _kinds(expected, settings)
    for k, error in enumerate(errors):
        if k >= len(expected) or not settings.tolerance.accepts(error, kinds[k]):
            sizes = f"normwise {error.normwise:.1e}, elementwise {error.elementwise:.1e}"
            return f"output {k}: {error.detail or sizes}"
    return ""


def _kinds(expected: Sequence[np.ndarray], settings: ComparisonSettings) -> Sequence[str]:
    return settings.kinds or [str(x.dtype) for x in expected]


def _plain(errors: Sequence[OutputError]) -> list[dict[str, Any]]:
    return [asdict(e) for e in errors]


def _failed(index: int, stage: str, error: Exception) -> Event:
    text = f"{type(error).__name__}: {error}"
    memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "Out of memory" in text
    return _out(index, "memory" if memory else stage, text[:500])


def _out(index: int, cause: str, detail: str) -> Event:
    return {"event": "failed", "index": index, "cause": cause, "detail": detail, "errors": []}
