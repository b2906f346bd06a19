"""Random kernels against the oracle: `python -m superopt.lab.fuzz.kernels --cases 700`.

A case is a random fused graph (movement, reductions, windows, prefixes, products, gathers, choices, conversions at
awkward sizes), a random schedule (a trace of primitives, or none) and random knobs.  Its code runs between guard bands
of NaN and is compared with `evaluate` of the graph's loop program before any schedule.  Half of the floating cases
without sums run under the strict licence and must have the same bits.

Errors are expected in the code generator, and a wrong kernel can end its process: each case is a job of a worker.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from superopt.arrays.folders import folder_in
from superopt.errors import InputError, SuperoptError
from superopt.ir.expr import subexpressions
from superopt.ir.index import Size
from superopt.ir.interp import Numbers
from superopt.ir.scalar import SCALARS, numpy_dtype
from superopt.ir.types import FLOATS
from superopt.kernels.emit.generate import generate
from superopt.kernels.emit.options import DEFAULT, STRICT
from superopt.kernels.llvm.cpu import host, restricted
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.lab.fuzz import kernel_graphs as fuzz_graphs
from superopt.lab.fuzz import kernel_schedules as fuzz_schedules
from superopt.workshop.job import Event, Failure, Job
from superopt.workshop.process import ProcessLimits
from superopt.workshop.scheduler import ONE_WORKER, Workers

_ENDLESS = 1 << 40  # cases
MOST_NODES = 3000
MOST_SECONDS = 60  # processor time of a case
_LIMITS = ProcessLimits(silence_s=2.0 * MOST_SECONDS, processor=True)
_HERE = "superopt.lab.fuzz.kernels"
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 8e-2}
EXACT = ("sqrt", "rsqrt")
_DRAWS = 16  # of random roundings: a sign that they may turn is turned by half of them
_HALF_ULPS = 8  # of an error at most: another order of a sum rounds partial sums, which are larger than its terms


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A loop program of a graph, the same one scheduled, and arrays for its inputs."""

    plain: LoopProgram
    scheduled: LoopProgram
    trace: tuple[str, ...]
    arrays: Mapping[str, np.ndarray[Any, Any]]


def case(seed: int) -> KernelCase | None:
    """The case of a number; None where the graph is an input or too large."""
    rng = np.random.default_rng([7, seed])
    root = fuzz_graphs.graph(rng)
    if root.op == "input":
        return None
    plain = from_graph([root], scratch=fuzz_graphs.kept(root, rng))
    if any(len(subexpressions(s.value)) > MOST_NODES for s in plain.stages):
        return None
    arrays = {b.name: fuzz_graphs.array(b, rng) for b in plain.buffers if b.scope in ("input", "frozen")}
    scheduled, trace = fuzz_schedules.scheduled(plain, rng)
    return KernelCase(plain, scheduled, trace, arrays)


def check(seed: int) -> str:
    """Run a case; return `ok` or a description of the error."""
    made = case(seed)
    if made is None:
        return "skipped"
    rng = np.random.default_rng([8, seed])
    widened = any("widen" in step for step in made.trace)  # it leaves roundings to 16 bits out
    strict = is_exact(made.plain) and rng.random() < 0.5 and not widened
    cpu = host() if rng.random() < 0.7 else restricted(host(), 256)
    try:
        code = generate(made.scheduled, cpu, STRICT if strict else DEFAULT)
    except InputError as error:
        return f"refused: {type(error).__name__} {str(error)[:120]}"
    kernel = build(code, pipeline="none" if rng.random() < 0.7 else "auto")
    found = kernel.run(made.arrays, guard=True)
    exact = evaluate(made.plain, made.arrays)
    wide = exact if strict else evaluate(made.plain, made.arrays, wide=True)
    for name, got in found.items():
        wrong = _difference(got, exact[name], wide[name], made.plain, strict)
        if wrong and not strict:
            spread = rounding_errors(made.plain, made.arrays, name, wide[name])
            wrong = _difference(got, exact[name], wide[name], made.plain, strict, spread)
        if wrong:
            return f"wrong: {name} {wrong}"
    return "ok"


def is_exact(program: LoopProgram) -> bool:
    """Whether the program lacks functions and sums that the strict licence leaves inexact."""
    for s in program.stages:
        for e in subexpressions(s.value):
            if e.kind == "reduce" and e.dtype in FLOATS and e.args[0] in ("sum", "prod"):
                return False
            if e.kind == "op" and SCALARS[e.args[0]].transcendental and e.args[0] not in EXACT:
                return False
    return True


class Rounding(Numbers):
    """The algebra in float64, in which each result and each term of a sum has a random error of some ulps."""

    def __init__(self, rank: int, size: int, wide: bool, rng: np.random.Generator) -> None:
        super().__init__(rank, size, wide)
        self._rng = rng

    def op(self, fn: str, dtype: str, *args: Any) -> Any:
        value = super().op(fn, dtype, *self._arrays(args))
        return value if SCALARS[fn].predicate else self._moved(value, dtype)

    def convert(self, value: Any, source: str, target: str) -> Any:
        return self._moved(super().convert(value, source, target), target)

    def reduce(self, monoid: str, extents: Sequence[Size], body: Callable[..., Any], dtype: str) -> Any:
        return super().reduce(monoid, extents, lambda *at: self._moved(body(*at), dtype), dtype)

    def _moved(self, value: Any, dtype: str) -> Any:
        if dtype not in FLOATS:
            return value
        (value,) = self._arrays((value,))
        most = 0.5 * _HALF_ULPS * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)
        return value * (1 + most * self._rng.uniform(-1, 1, np.shape(value)))


def rounding_errors(
    program: LoopProgram, arrays: Mapping[str, np.ndarray[Any, Any]], name: str, wide: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return by how much roundings change each element of an output; infinite where they decide whether it is NaN.

    Args:
        program: the loop program before its schedule.
        arrays: its inputs.
        name: name of the output.
        wide: the output in float64.
    """
    largest = np.zeros(wide.shape)
    for draw in range(_DRAWS):
        rng = np.random.default_rng([9, draw])
        moved = evaluate(program, arrays, wide=True, numbers=partial(Rounding, rng=rng))[name]
        with np.errstate(all="ignore"):
            far = np.abs(np.asarray(moved, np.float64) - np.asarray(wide, np.float64))
            apart = np.where((moved == wide) | ((moved != moved) & (wide != wide)), 0, far)
        largest = np.maximum(largest, np.where(apart == apart, apart, np.inf))
    return largest


def _difference(got: Any, exact: Any, wide: Any, program: LoopProgram, strict: bool, spread: Any = 0.0) -> str:
    if got.dtype.kind in "biu" or strict:
        same = (got == exact) | ((got != got) & (exact != exact)) | (np.asarray(spread) > 0)
        bad = int((~np.asarray(same)).sum())
        if not strict and not is_exact(program):  # near ties of rounded values, compared
            halves = any(e.dtype in ("float16", "bfloat16") for s in program.stages for e in subexpressions(s.value))
            bad = 0 if halves or bad <= 1 + got.size // 50 else bad
        return f"{bad} of {got.size} elements differ" if bad else ""
    dtypes = {e.dtype for s in program.stages for e in subexpressions(s.value) if e.dtype in TOLERANCE}
    tolerance = max(TOLERANCE[d] for d in dtypes | {str(got.dtype)})
    a, b = np.asarray(got, np.float64), np.asarray(wide, np.float64)
    scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
    limit = {"float64": np.inf, "float16": 65519.0}.get(str(got.dtype), float(np.finfo(np.float32).max))
    b = np.where(np.abs(b) > limit, np.copysign(np.inf, b), b)
    close = np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    close |= (a == exact) | ((a != a) & (exact != exact))  # of numbers that their type cannot tell apart, say
    close |= (np.abs(a - b) <= spread) | np.isposinf(spread)
    if close.all():
        return ""
    worst = np.nanmax(np.where(np.isfinite(a - b), np.abs(a - b), 0))
    return f"{int((~close).sum())} of {a.size} elements differ, by {worst:.3g} at a scale of {scale:.3g}"


# ---- workers


@dataclass(frozen=True, slots=True)
class FuzzFailure:
    """A case that is wrong, ends its process or does not end.

    Attributes:
        seed: number of the case.
        result: description of the error.
        reproducer: a command that runs it alone.
    """

    seed: int
    result: str
    reproducer: str


@dataclass(frozen=True, slots=True)
class FuzzCounts:
    """Counts of the results of random kernels.

    Attributes:
        kernels: number of kernels that were made and compared.
        refused: number of schedules for which there is no code.
        wrong, crashes, hangs: numbers of such kernels; a crash is an error of the generator or the end of the process.
        failures: one for each of these, in the order in which they were found.
    """

    kernels: int
    refused: int
    wrong: int
    crashes: int
    hangs: int
    failures: tuple[FuzzFailure, ...]


_KINDS = {"wrong": "wrong", "error": "crashes", "died": "crashes", "slow": "hangs"}


def run(seconds: float, seed: int = 0, count: int | None = None, workers: Workers = ONE_WORKER) -> FuzzCounts:
    """Run random kernels until the time is over.

    Args:
        seconds: wall time; the case that runs at its end is finished.
        seed: number of the first case; a run goes on where another one ended.
        count: largest number of cases.
        workers: workers that check cases.
    """
    end = time.monotonic() + seconds
    found, failures = collections.Counter[str](), list[FuzzFailure]()
    todo = _ENDLESS if count is None else count
    for number, result in results(seed, todo, workers):
        kind = result.split(":")[0]
        found[_KINDS.get(kind, kind)] += 1
        if kind in _KINDS:
            failures.append(FuzzFailure(number, result, f"python -m {_HERE} --describe {number}"))
        if time.monotonic() > end:
            break
    kernels = sum(found[k] for k in ("ok", "wrong", "crashes", "hangs"))
    return FuzzCounts(kernels, found["refused"], found["wrong"], found["crashes"], found["hangs"], tuple(failures))


def results(first: int, cases: int, workers: Workers = ONE_WORKER) -> Iterator[tuple[int, str]]:
    """Run cases in workers; a case that ends its process is reported as such."""
    jobs = (Job("make", f"{_HERE}:check_one", {"seed": n}, portable=True) for n in range(first, first + cases))
    with workers.workshop(_LIMITS, loads=f"{_HERE}:begin") as workshop:
        for number, result in workshop.each(jobs):
            died = isinstance(result, Failure)
            yield first + number, f"died: {result.cause} {result.detail}" if died else result[0]["result"]


_HELD = ExitStack()  # the cache of this process


def begin() -> None:
    """Give this process a cache of its own: its kernels are of no further use."""
    os.environ["XDG_CACHE_HOME"] = _HELD.enter_context(folder_in(Path(tempfile.gettempdir())))
    signal.signal(signal.SIGPROF, _late)


def check_one(request: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the result of a case; one that takes too much processor time is slow."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        result = check(request["seed"])
    except TimeoutError:
        result = f"slow: more than {MOST_SECONDS} s"
    except SuperoptError as error:
        result = f"error: {type(error).__name__} {str(error)[:300]}"
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError, RecursionError) as error:
        place = traceback.extract_tb(error.__traceback__)[-4:]
        result = f"error: {type(error).__name__} {error} at {' < '.join(f'{t.name}:{t.lineno}' for t in place)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    yield {"event": "checked", "result": result}


def _late(number: int, frame: object) -> None:
    raise TimeoutError


def main(argv: list[str] | None = None) -> int:
    """The command line: exit status 1 when a case is wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m {_HERE}", description="Random kernels.")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--describe", type=int, metavar="CASE", help="run one case in this process, and print it")
    args = parser.parse_args(argv)
    if args.describe is not None:
        print(described(args.describe))
        result = check(args.describe)
        print(result)
        return int(result.split(":")[0] in _KINDS)
    start, counts = time.monotonic(), collections.Counter[str]()
    for seed, result in results(args.seed, args.cases, Workers(args.workers)):
        counts[result.split(":")[0]] += 1
        if result not in ("ok", "skipped"):
            print(f"{seed}: {result}", flush=True)
    print(f"{dict(counts)} in {time.monotonic() - start:.0f} s")
    return int(any(counts[k] for k in ("wrong", "error", "died", "slow")))


def described(seed: int) -> str:
    """The graph's stages, the trace and the shapes of a case."""
    made = case(seed)
    if made is None:
        return "skipped"
    stages = [f"{s.buffer}{[a.extent for a in s.axes]} = {s.value!r}" for s in made.plain.stages]
    knobs: list[str] = []
    for s in made.scheduled.stages:
        axes = [(a.symbol.name, a.extent, a.kind) for a in s.axes]
        knobs.append(f"{s.buffer}: {dict(s.knobs)} {axes} at {s.at} combine {s.combine}")
    buffers = [f"{b.name} {b.dtype}{list(b.shape)} {b.scope}" for b in made.scheduled.buffers]
    return "\n".join([*buffers, *stages, *made.trace, *knobs])


if __name__ == "__main__":
    sys.exit(main())
