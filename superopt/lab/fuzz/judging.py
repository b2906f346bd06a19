"""Jobs of the fuzzer: each runs a program and judges its results.

One process runs many programs, so that libraries, proofs, the prover and the measuring worker stay warm.  A program
may end this process; the parent counts that and starts another.

A result is wrong where it is farther from a float64 evaluation than `jax.jit` of the original is, by more than rounding
explains.  Integers and truth values must be the same, unless rounding may decide them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

import superopt
from superopt.arrays.folders import folder_in
from superopt.errors import SuperoptError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate
from superopt.lab.fuzz.case import FuzzCase, from_dict
from superopt.lab.fuzz.jax_programs import SCOPE
from superopt.lab.fuzz.onnx_programs import original as onnx_original
from superopt.lab.fuzz.onnx_programs import widened
from superopt.make.trials import TrialPool
from superopt.pipeline import optimizer
from superopt.workshop.job import Event, Job
from superopt.workshop.process import Worker

BUDGETS = {"jit": 0.3}
STEPS = "40steps"
TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}
WORSE = 8.0  # a result may be so many times as far from float64 as the original
FLIPPED = 0.2  # share of elements that rounding may flip where it decides


def run(case: FuzzCase, store: str) -> dict[str, Any]:
    """Run a program; return its verdict: `status` ok, wrong, crash, refused or invalid, with `cause` and `seconds`."""
    try:
        fn, reference = onnx_original(case) if case.kind == "onnx" else _jax(case)
        draws = [case.arrays(0), case.arrays(1)]
        for i in case.frozen:
            draws[1][i] = draws[0][i]
        wanted = [reference(*args) for args in draws]
    except Exception as error:  # the program itself has no value: nothing of ours
        return {"status": "invalid", "cause": _told(error), "seconds": 0.0}
    begin = time.monotonic()
    try:
        compiled = _optimised(case, fn, draws[0], store)
        seconds = 0.0
        for args, want in zip(draws, wanted, strict=True):
            got = compiled(*args)
            seconds = seconds or time.monotonic() - begin
            cause = _difference(case, fn, args, list(got), want)
            if cause:
                return {"status": "wrong", "cause": cause, "seconds": seconds}
    except SuperoptError as error:
        return {"status": "refused", "cause": _told(error), "seconds": time.monotonic() - begin}
    except Exception as error:  # a failure that the fuzzer looks for
        return {"status": "crash", "cause": _told(error), "seconds": time.monotonic() - begin}
    return {"status": "ok", "cause": "", "seconds": seconds, "budget": BUDGETS.get(case.mode)}


def _jax(case: FuzzCase) -> tuple[Callable[..., Any], Callable[..., list[np.ndarray]]]:
    names: dict[str, Any] = dict(SCOPE)
    exec(case.source, names)
    fn = names["f"]
    compiled = jax.jit(fn)
    return fn, lambda *args: [np.asarray(x) for x in compiled(*args)]


def _optimised(case: FuzzCase, fn: Any, args: Sequence[Any], store: str) -> Callable[..., Any]:
    options: dict[str, Any] = {"frozen": case.frozen, "seed": case.seed, "store": store}
    if case.mode in BUDGETS:
        options["budget"] = BUDGETS[case.mode]
    elif case.mode == "kernels":
        options["search"] = False
    else:
        options |= {"budget": STEPS, "deterministic": True}
    if case.kind == "onnx":
        options.pop("frozen")
    if case.mode == "exact":
        options |= {"numerics": "exact"}
    if case.mode == "jit" and case.kind == "jax":
        return superopt.jit(fn, budget=BUDGETS["jit"], store=store)
    result = superopt.optimize(fn, *args, **options)
    if case.mode == "recall":
        result = superopt.optimize(fn, *args, **options)
    if result.report.lost:  # the program was returned, but a lost stage is a fault all the same
        raise RuntimeError("; ".join(f"{stage} {cause}" for stage, cause in result.report.lost.items()))
    if case.mode == "save":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "p.superopt"
            result.save(path)
            return superopt.load(path)
    str(result.report)
    return result


def _difference(case: FuzzCase, fn: Any, args: Sequence[Any], got: Sequence[Any], wanted: Sequence[np.ndarray]) -> str:
    if len(got) != len(wanted):
        return f"{len(got)} results in place of {len(wanted)}"
    loose = {x.name for x in case.lines if x.loose} & {*case.outputs}
    for n, (x, y) in enumerate(zip(got, wanted, strict=True)):
        a, b = np.asarray(x), np.asarray(y)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"output {n} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        bad = _bad(a, b, case, fn, args, n)
        allowed = max(1, int(FLIPPED * a.size)) if loose else 0
        if bad.sum() > allowed:
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"output {n} at {list(at)}: {a[at]} in place of {b[at]} ({int(bad.sum())} of {a.size} differ)"
    return ""


def _bad(a: np.ndarray, b: np.ndarray, case: FuzzCase, fn: Any, args: Sequence[Any], n: int) -> np.ndarray:
    """Mask of the elements that are wrong."""
    if a.dtype.kind in "biu":
        return a != b
    kinds = [str(x.dtype) for x in (*case.inputs, *case.lines)]
    tolerance = max((TOLERANCE[k] for k in (*kinds, str(a.dtype)) if k in TOLERANCE), default=1e-4)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(y[np.isfinite(y)])
        scale = 1.0 + (float(finite.max()) if finite.size else 0.0)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * scale)
        same |= ~np.isfinite(y)  # the laws of class real speak of finite numbers
        if case.mode == "exact":
            same &= (x == y) | (np.isnan(x) & np.isnan(y))
        elif not same.all():
            exact = _wide(case, fn, args, n)
            if exact is not None and exact.shape == x.shape:
                same |= np.abs(x - exact) <= WORSE * np.abs(y - exact) + tolerance * scale
                same |= ~np.isfinite(exact) | (np.abs(exact) > 1e4 if "float16" in kinds else np.abs(exact) > 1e30)
    return ~same


def _wide(case: FuzzCase, fn: Any, args: Sequence[Any], n: int) -> np.ndarray | None:
    """An output with wider floats; None where it cannot be evaluated so.

    Programs of JAX are evaluated in float64 by the reference interpreter, models of half types in float32 by ONNX's.
    """
    try:
        if case.kind == "onnx":
            run = widened(case)
            return None if run is None else np.asarray(run(*args)[n], np.float64)
        imported = import_function(fn, tuple(args))
        values = dict(zip((x["name"] for x in imported.graph.inputs), args, strict=False))
        return np.asarray(evaluate(imported.graph, values, wide=True)[n], np.float64)
    except Exception:  # opaque operations have no value there
        return None


def _told(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0][:300]
    place = ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "superopt" in name or "rewrites" in name or "verifier" in name or "costmodel" in name:
            place = f"{Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {first} ({place})"


class _KeptWorker:
    """A worker whose process stays for the next call, unless one ends while a request of it is not answered."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self._asks = worker, False

    @property
    def started(self) -> int:
        """Number of processes that were started so far."""
        return self.worker.started

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.worker.alive

    def request(self, job: Job, end_s: float = math.inf) -> Iterator[Event]:
        """Do a job and yield its events."""
        self._asks = True
        try:
            yield from self.worker.request(job, end_s)
        finally:
            self._asks = False

    def ready(self) -> None:
        """Start the process and wait until it has started."""
        self.worker.ready()

    def close(self) -> None:
        """End the process where a request waits for it."""
        if self._asks:
            self.worker.close()

    end = close

    def __enter__(self) -> _KeptWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def warm() -> Any:
    """Share one worker for programs, one for kernels, and one pool of kernel makers among all calls in the block."""

    class KeptPool(TrialPool):
        def close(self) -> None:
            """Do nothing, so that the pool stays for the next call."""

    own, pool = (optimizer.sole_worker, optimizer.TrialPool), KeptPool(processes=1)
    kept = {inline: _KeptWorker(Worker(inline=inline)) for inline in (False, True)}
    optimizer.sole_worker = lambda *_, inline=False: kept[inline]  # type: ignore[assignment, misc]
    optimizer.TrialPool = lambda **_: pool  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        optimizer.sole_worker, optimizer.TrialPool = own
        for worker in kept.values():
            worker.worker.close()
        TrialPool.close(pool)


_HELD = ExitStack()  # of this process: its folder, and workers that stay
_FOLDER: list[Path] = []
_JUDGED = itertools.count()  # programs of this process; the first one waits for what is loaded on first use


def begin() -> None:
    """Keep a folder, and workers of programs, until this process ends."""
    warnings.simplefilter("ignore")
    _FOLDER[:] = [Path(_HELD.enter_context(folder_in(Path(tempfile.gettempdir()))))]
    _HELD.enter_context(warm())


def judge(request: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the verdict on a program; proofs are kept in a store of this process where none is named."""
    store = request["store"] or str(_FOLDER[0] / "store.db")
    yield {"event": "verdict", "first": next(_JUDGED) == 0, **run(from_dict(request["case"]), store)}
