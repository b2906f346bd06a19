"""The pipeline, readable from top to bottom.

    import -> e-graph grown by proved rules -> search over selections -> finalists built, checked and measured -> winner
    -> kernels of our own in place of XLA's where they are faster

Where builds are slow, kernels come before the finalists, and these are built only if they promise more.

The winner is returned only when it measures faster than the original, beyond the noise floor, and computes the same
values; otherwise the original is.  Everything that was found, timed and left out goes into the report.

Every stage from the exploration on runs behind a barrier (`superopt.barrier`): when one fails, what was there before it
is returned, and the report says so.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer

from costmodel.load import load_objective
from costmodel.objective import Objective, Roofline
from costmodel.weights_file import uncalibrated
from rewrites.term import Rule
from superopt.backends.xla import XlaExecutable
from superopt.barrier import Barrier
from superopt.budget import ALL, EXPLORE, EXPLORE_ALONE, EXPLORE_FIRST, JUDGE, SearchBudget, parse_budget
from superopt.checks import Builds, run_original
from superopt.errors import ArgumentError, SuperoptError, UsageError, told
from superopt.explore import Exploration, explore
from superopt.frontends.jaxpr import Imported, import_function
from superopt.implement import implement
from superopt.ir.program import original_program
from superopt.judge import judge
from superopt.judgement import Judgement, faster_one, given_back, is_enough, presumed, settled
from superopt.library import ProvedLibrary, proved_library
from superopt.measure import Timing, Worker, compare
from superopt.measure.compare import serialisable
from superopt.optimized import Optimized
from superopt.plan import empty_plan
from superopt.remember import recall, remember, run_key
from superopt.result import Speedup, Stage, least_report
from superopt.store import Store
from superopt.summary import make_report
from superopt.trace import make_plan
from verifier.verdict import EXACTNESS

if TYPE_CHECKING:
    from superopt.frontends.onnx import OnnxModel

Progress = Callable[[str], None]

_UNHURRIED_S = 60.0  # budgets from here on leave time to calibrate a model that was fitted on another machine
_ADAPT_S = 30.0
_FIRST = (KeyboardInterrupt,)  # ends a call that has no program yet


def optimize(
    fn: Callable[..., Any] | str | Path | OnnxModel,
    *args: Any,
    frozen: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    budget: str | float = "60s",
    seed: int = 0,
    deterministic: bool = False,
    dims: Mapping[str, int] | None = None,
    store: bool | str | Path = True,
    rules: Sequence[Rule] | None = None,
    objective: Objective | None = None,
    max_prepared_bytes: int | None = None,
    numerics: str = "real",
    kernels: bool = True,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Optimise a JAX function on example arguments, or an ONNX model.

    Args:
        fn: a function that `jax.jit` accepts, the path of an ONNX model, or a loaded model.
        args: example arguments (any pytrees); for a model they may be left out and are then random.
        frozen: positions or names of arguments that do not change between calls (weights).
        kwargs: example keyword arguments of the function.
        budget: time for the call: seconds, "30s", "2min", or "5000steps" (same result anywhere).  What cannot be cut
            may take it beyond: proofs of rules that are in no store, one build of the original and of the winner.
        seed: of the search, of random inputs and of the timing order.
        deterministic: let the performance model alone decide; nothing is measured.
        dims: sizes of the symbolic dimensions of a model.
        store: whether to answer from and write to the store of earlier results, or the path of another store.
        rules: rewrite rules in place of the library; each must be proved.
        objective: performance model in place of the calibrated one.
        max_prepared_bytes: refuse programs whose prepared weights are larger.
        numerics: which rules may be used: `real` (equal over the reals), `exact` (results agree with the original's in
            every bit; NaN is NaN) or `range` (also rules that may overflow where the original does not).
        kernels: try kernels of our own in place of XLA's; not with numerics `exact`, since they round otherwise, and
            not with `deterministic`, since they are chosen by measuring.
        data_root: a folder inside which symbolic links to the external data of a model are followed.
        progress: called with one line per stage.

    Raises:
        UsageError: a budget that is not positive, options that do not go together.
        ArgumentError: arguments that are not arrays, or do not fit.
        ModelFileError: a model that cannot be read.
        VerificationError: a rule that is not proved.
    """
    if numerics not in EXACTNESS:
        raise UsageError(f"numerics {numerics!r} is none of {', '.join(EXACTNESS)}")
    kernels = kernels and not deterministic and numerics != "exact"
    limits = replace(parse_budget(budget), kernels=kernels)
    clock = _Clock(progress)
    with clock.stage("import"):
        imported, name = _import(fn, args, kwargs, frozen, dims, seed, data_root)
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in imported.examples):
        imported = _with_examples(imported, seed)
    barrier, worker = Barrier(), Worker()
    archive = barrier.around("the store", lambda: _open_store(store), None, let=_FIRST)
    try:
        return _optimize(
            imported, name, limits, seed, deterministic, archive, rules, objective, max_prepared_bytes, numerics,
            kernels, clock, worker, barrier,
        )  # fmt: skip
    finally:
        barrier.around("the end of the measuring process", worker.close, None)
        if archive is not None:
            barrier.around("the end of the store", archive.close, None)


def _optimize(
    imported: Imported,
    name: str,
    limits: SearchBudget,
    seed: int,
    deterministic: bool,
    archive: Store | None,
    rules: Sequence[Rule] | None,
    objective: Objective | None,
    max_prepared_bytes: int | None,
    numerics: str,
    kernels: bool,
    clock: _Clock,
    worker: Worker,
    barrier: Barrier,
) -> Optimized:
    ahead, builds = None, Builds()
    with clock.stage("rules"), ThreadPoolExecutor(2) as beside:
        if archive is None and not deterministic:  # proofs take seconds, in which the original can be built
            ahead = _build_ahead(imported, worker, builds, beside)
        library = barrier.around(
            "the library of rules",
            lambda: proved_library(archive, rules, numerics),
            ProvedLibrary((), {}),
            let=(SuperoptError, *_FIRST),
        )
    with clock.stage("model"):
        unhurried = not deterministic and (limits.seconds or 0.0) >= _UNHURRIED_S
        objective = objective or barrier.around(
            "the performance model",
            lambda: load_objective(archive, adapt_s=_ADAPT_S * unhurried, progress=clock.say),
            Roofline(uncalibrated(), "uncalibrated"),
            let=_FIRST,
        )
    whole = (imported, limits, seed, deterministic, library, objective, max_prepared_bytes, numerics, kernels)
    key = barrier.around("the key of the call in the store", lambda: run_key(*whole), "", let=_FIRST)
    known = barrier.around("an answer from the store", lambda: recall(archive, key, imported), None, let=_FIRST)
    if known is not None:
        clock.say("answered from the store")
        return known
    if ahead is None and not deterministic:  # not before: an answer from the store needs none
        with ThreadPoolExecutor(2) as beside:
            ahead = _build_ahead(imported, worker, builds, beside)
    limits, begin_s = limits.after(clock.elapsed_s), time.monotonic()
    build_s = 0.0 if ahead is None else barrier.around("the original built ahead", ahead.result, 0.0, let=_FIRST)
    first = limits.hurries(build_s)
    with clock.stage("explore"):
        found = barrier.around(
            "the search",
            lambda: explore(
                imported.graph,
                library.rules,
                objective,
                limits.until(begin_s, EXPLORE_FIRST if first else EXPLORE if kernels else EXPLORE_ALONE),
                seed,
                measure=not deterministic,
                max_prepared_bytes=max_prepared_bytes,
                numerics=numerics,
                progress=clock.say,
            ),
            None,
        )

    def judged(found: Exploration, share: float, later: bool) -> Judgement:
        with clock.stage("judge"):
            judgement = barrier.around(
                "the judgement",
                lambda: judge(
                    imported, found, limits.until(begin_s, share), seed, measure=not deterministic,
                    exact=numerics == "exact", worker=worker, builds=builds, later=later, progress=clock.say,
                ),
                None,
            )  # fmt: skip
        return judgement or given_back(imported, barrier)

    def implemented(found: Exploration, judgement: Judgement, limits: SearchBudget) -> Judgement:
        with clock.stage("kernels"):
            return barrier.around(
                "kernels of our own",
                lambda: implement(
                    imported, found, judgement, limits.until(begin_s, ALL), seed, store=archive, worker=worker,
                    max_prepared_bytes=max_prepared_bytes, builds=builds, progress=clock.say,
                ),
                judgement,
            )  # fmt: skip

    if found is None:
        judgement = given_back(imported, barrier)
    elif found.interrupted or not kernels:
        judgement = judged(found, JUDGE if kernels else ALL, kernels)
    elif first:
        judgement = implemented(found, presumed(imported, build_s), replace(limits, first=True))
        if not (judgement.interrupted or barrier.interrupted or is_enough(judgement, found.promised)):
            judgement = faster_one(judgement, judged(found, ALL, True))
    else:
        judgement = judged(found, JUDGE, True)
        if not (judgement.interrupted or barrier.interrupted):
            judgement = implemented(found, judgement, limits)
    with clock.stage("check"):
        checked = barrier.around("the check", lambda: settled(imported, judgement, seed, builds), None)
    return _finished(
        imported, name, found, checked or given_back(imported, barrier), library, objective, numerics, archive, key,
        builds, clock, barrier,
    )  # fmt: skip


def _finished(
    imported: Imported,
    name: str,
    found: Exploration | None,
    judgement: Judgement,
    library: ProvedLibrary,
    objective: Objective,
    numerics: str,
    archive: Store | None,
    key: str,
    builds: Builds,
    clock: _Clock,
    barrier: Barrier,
) -> Optimized:
    """The judgement's program, built, with its plan and its report; the original where it cannot be built."""

    def built(judgement: Judgement) -> XlaExecutable:
        return builds.candidate(judgement.program, imported.frozen_values, judgement.options, judgement.kernels)

    with clock.stage("build"):
        chosen = judgement
        executable = barrier.around("the chosen program", lambda: built(chosen), None)
        if executable is None:
            judgement = given_back(imported, barrier)
            executable = built(judgement)
    winner = judgement.winner
    with clock.stage("plan"):
        plan = barrier.around(
            "the plan",
            lambda: (
                empty_plan(imported.graph, numerics)
                if found is None or winner is None
                else make_plan(found, winner, library.rules, numerics)
            ),
            None,
        )
    with clock.stage("explain"):
        memory = {
            "frozen_bytes": executable.frozen_bytes,
            "prepared_bytes": executable.prepared_bytes,
            "added_bytes": executable.added_bytes,
        }
        speedup, original = judgement.speedup or Speedup(1.0, 1.0, 1.0), winner is None and not judgement.kernels
        report = barrier.around(
            "the report",
            lambda: make_report(name, imported, found, judgement, library, objective, memory, barrier, numerics),
            least_report(name, judgement.verdict, speedup, original),
        )
    report = replace(report, stages=tuple(clock.stages))
    result = Optimized(imported, judgement.program, executable, report, plan, judgement.kernels)
    if not (judgement.interrupted or barrier.lost):
        barrier.around("the entry in the store", lambda: remember(archive, key, result), None)
    result.report = replace(report, lost=dict(barrier.lost), notes=(*report.notes, *barrier.notes))
    return result


def _build_ahead(imported: Imported, worker: Worker, builds: Builds, beside: ThreadPoolExecutor) -> Future[float]:
    """Have the original built where it will be needed; the seconds that it takes the worker of the comparisons."""
    beside.submit(run_original, builds, imported.graph, imported.live_values, imported.frozen_values)
    return beside.submit(_built_in, worker, imported)


def _built_in(worker: Worker, imported: Imported) -> float:
    """Have the worker of the comparisons build the original, which it keeps if that is slow; seconds that it took."""
    original = original_program(imported.graph)
    if not serialisable(original):
        return 0.0
    live, frozen = imported.live_values, imported.frozen_values
    reference = compare(original, [], live, frozen, rounds=1, min_time_s=0.0, worker=worker).reference
    return reference.build_s if isinstance(reference, Timing) else 0.0


def _import(
    fn: Callable[..., Any] | str | Path | OnnxModel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    frozen: Any,
    dims: Mapping[str, int] | None,
    seed: int,
    data_root: str | Path | None = None,
) -> tuple[Imported, str]:
    if isinstance(fn, str | Path) or type(fn).__name__ == "OnnxModel":
        if kwargs or not _is_empty(frozen):
            raise UsageError(
                "an ONNX model takes neither keyword arguments nor frozen=",
                hint="pass its inputs in order; its initializers are frozen anyway",
            )
        from superopt.frontends.onnx import OnnxModel, import_model, import_onnx  # late: an optional dependency

        if isinstance(fn, OnnxModel):
            if dims or data_root is not None:
                raise UsageError("this model is loaded already", hint="give the option to load_model, or give its path")
            return import_model(fn, *args, seed=seed), fn.name
        assert isinstance(fn, str | Path)
        return import_onnx(fn, *args, dims=dims, seed=seed, data_root=data_root), Path(fn).name
    if not callable(fn):
        raise ArgumentError(f"a {type(fn).__name__} is neither a function nor a path", hint="pass f itself, not f(x)")
    if data_root is not None:
        raise UsageError("data_root is for ONNX models that are files")
    if dims:
        raise UsageError("dims is for ONNX models", hint="the shapes of a function are those of its example arguments")
    return import_function(fn, args, kwargs, frozen=frozen), getattr(fn, "__name__", type(fn).__name__)


def _is_empty(frozen: Any) -> bool:
    return isinstance(frozen, tuple | list | set | frozenset) and not frozen


def _with_examples(imported: Imported, seed: int) -> Imported:
    """Random values where only a type was given."""
    rng = np.random.default_rng(seed)

    def value(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if np.issubdtype(x.dtype, np.integer) or x.dtype == bool:
            return np.zeros(x.shape, x.dtype)
        return rng.standard_normal(x.shape).astype(x.dtype)

    return replace(imported, examples=tuple(map(value, imported.examples)))


def _open_store(store: bool | str | Path) -> Store | None:
    if store is False:
        return None
    return Store() if store is True else Store(store)


class _Clock:
    """Wall time per stage, and the lines that a terminal shows."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.stages: list[Stage] = []
        self.begin_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call."""
        return time.monotonic() - self.begin_s

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress(line)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.stages.append(Stage(name, seconds))
        self.say(f"{name}: {seconds:.1f} s")


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Like `jax.jit`: optimise on the first call for each structure, shape and dtype of the arguments.

    Options are those of `optimize`.  Calls under a JAX trace before the first concrete call run the original.  One
    thread optimises at a time, others wait for it.
    """
    if fn is None:
        return functools.partial(jit, **options)
    cache: dict[Any, Callable[..., Any]] = {}
    lock = threading.RLock()

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        key = (tree, tuple(map(_kind, leaves)))
        if key not in cache:
            if any(isinstance(x, Tracer) for x in leaves):
                return fn(*args, **kwargs)
            with lock:
                if key not in cache:
                    cache[key] = optimize(fn, *args, kwargs=kwargs, **options)
        return cache[key](*args, **kwargs)

    return call


def _kind(leaf: Any) -> Any:
    """Shape, dtype and weakness of an argument, all of which `jax.jit` tells apart; its class when it is no array."""
    try:
        kind: Any = jax.api_util.shaped_abstractify(leaf)
    except TypeError:  # `optimize` says what is wrong with it
        return type(leaf)
    return kind.shape, str(kind.dtype), kind.weak_type


def optimize_target(target: str, *, random_weights: bool = False, seed: int = 0, **options: Any) -> Optimized:
    """Optimise what the command line names: an ONNX file, or `FILE.py:NAME`, a maker of (function, arguments).

    `NAME()` returns a function and a tuple of example arguments, and may return the frozen positions as a third value.

    Raises:
        UsageError: the target is neither.
        ModelFileError: the model cannot be read.
    """
    path, colon, maker = target.rpartition(":")
    if target.endswith(".py"):
        raise UsageError(
            f"{target} names no function", hint=f"write {target}:NAME; NAME() returns (function, arguments)"
        )
    if colon and path.endswith(".py"):
        if random_weights:
            raise UsageError("random weights are for ONNX models", hint="NAME() can return random arguments")
        fn, args, frozen = _made_by(Path(path), maker)
        return optimize(fn, *args, frozen=frozen, seed=seed, **options)
    if random_weights:
        from superopt.frontends.onnx import load_model, randomize_weights  # late: onnx is an optional dependency

        loading = {name: options.pop(name, None) for name in ("dims", "data_root")}
        model = randomize_weights(load_model(target, **loading), seed)
        return optimize(model, seed=seed, **options)
    return optimize(target, seed=seed, **options)


def _made_by(path: Path, maker: str) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    import runpy  # late: only programs given as a file

    if not path.is_file():
        raise ArgumentError(f"there is no file {path}", hint="write FILE.py:NAME")
    hint = "NAME() returns (function, arguments)"
    try:
        names = runpy.run_path(str(path))
        if not callable(names.get(maker)):
            raise ArgumentError(f"{path} defines no function {maker!r}", hint=hint)
        made = names[maker]()
    except SuperoptError:
        raise
    except Exception as error:  # whatever the user's code raises is told in one line, with its place
        raise ArgumentError(f"{path} cannot be run: {told(error, str(path))}", hint=hint) from error
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise ArgumentError(f"{maker}() must return (function, arguments) or (function, arguments, frozen positions)")
    return made[0], tuple(made[1]), made[2] if len(made) == 3 else ()
