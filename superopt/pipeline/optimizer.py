"""The pipeline, readable from top to bottom.

    import -> plain candidate: every region of the program is one of our kernels, nothing searched.
    -> e-graph grown by proved rules -> search over selections, priced by XLA and by our kernels.
    -> its best programs in kernels, and schedules searched for the best of all.
    -> contest of all of these and the original -> winner, checked.

Without kernels, the search's programs compete as XLA computes them.  Without the search, the plain candidate is
returned, checked against the original as a compiler would.  With it, the fastest program in rounds with the original
is returned, and never one that is slower than the plain candidate or the original.  The report has everything that was
found, timed and left out.  The stages are data (`superopt.pipeline.stages`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax
import numpy as np

from costmodel.model import kept
from costmodel.model.joint import Joint, Priced, PricedBy
from costmodel.model.load import load_objective
from costmodel.model.objective import Objective
from rewrites.language.term import Rule
from superopt.backends.protocol import Backend, backend_of, for_device
from superopt.backends.xla import card_model
from superopt.candidates.ledger import ChoiceReason, RunLedger, Why
from superopt.certify.library import given_rules
from superopt.contest.checks import OriginalRuns
from superopt.contest.choices import original_returned
from superopt.errors import ArgumentError, InputError, SuperoptError, UsageError
from superopt.explore.request import Request
from superopt.files.reading import shown
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.program import frozen_bytes
from superopt.machine.background import BackgroundCall
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import Deadline
from superopt.machine.extras import need
from superopt.machine.fallback import Fallback, StageWarning, in_one_line, warned
from superopt.machine.interrupts import heard
from superopt.machine.switches import keeps_plain
from superopt.make.plain import KernelMaker
from superopt.make.trials import TrialPool
from superopt.measure.kernels import XLA
from superopt.pipeline.again import timed_again
from superopt.pipeline.beside import kept_for_peers
from superopt.pipeline.finishing import finished, original_alone
from superopt.pipeline.session import FIRST, Clock, Progress, Session
from superopt.pipeline.stages import chosen
from superopt.pipeline.state import RunState
from superopt.pipeline.weights import Shelf
from superopt.returned.optimized import Optimized
from superopt.returned.remember import is_in_doubt, recall, run_key
from superopt.store import Store
from superopt.workshop import forks
from superopt.workshop.cluster import executor_at
from superopt.workshop.job import JobWorker
from superopt.workshop.process import ONE_KERNEL
from superopt.workshop.scheduler import Executor, sole_worker
from verifier.verdict import EXACTNESS

if TYPE_CHECKING:
    from superopt.frontends.onnx.frontend import OnnxModel

P = ParamSpec("P")
R = TypeVar("R")


class OptimizeOptions(TypedDict, total=False):
    """Options of `optimize` that `superopt.jit` takes, too."""

    frozen: int | str | Iterable[int | str] | None
    budget: str | float
    seed: int
    deterministic: bool
    store: bool | str | Path
    rules: Sequence[Rule] | None
    objective: Objective | None
    max_prepared_bytes: int | None
    numerics: str
    kernels: bool | str
    search: bool
    progress: Progress | None


class CallOptions(OptimizeOptions, total=False):
    """Options of `optimize`."""

    kwargs: Mapping[str, Any] | None
    dims: Mapping[str, int] | None
    data_root: str | Path | None
    workers: str | None


@overload
def optimize(
    fn: str | Path | OnnxModel, *args: Any, **options: Unpack[CallOptions]
) -> Optimized[..., tuple[jax.Array, ...]]: ...
@overload
def optimize(fn: Callable[P, R], *args: Any, **options: Unpack[CallOptions]) -> Optimized[P, R]: ...
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
    kernels: bool | str = True,
    search: bool = True,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
    workers: str | None = None,
) -> Optimized:
    """Optimise a JAX function on example arguments, or an ONNX model.

    Args:
        fn: a function that `jax.jit` accepts, the path of an ONNX model, or a loaded model.
        args: example arguments (any pytrees); for a model they may be left out and are then random.
        frozen: positions or names of arguments that do not change between calls (weights).
        kwargs: example keyword arguments of the function.
        budget: time for the call: seconds, "30s", "2min", or "5000steps" (with `deterministic`, one result on machines
            of a kind).  Under five seconds, work that cannot be cut may exceed it: builds, and proofs of rules that are
            in no store.  The original's calls are part of it: where they do not end in the time, it is returned.
        seed: seed of the search, of random inputs and of the timing order.
        deterministic: let the performance model alone decide; nothing is measured.
        dims: sizes of the symbolic dimensions of a model, where example arguments do not determine them.
        store: whether to answer from and write to the store of earlier results, or the path of another store.
        rules: rewrite rules in place of the library; each must be proved.
        objective: performance model in place of the calibrated ones, that of our kernels included.
        max_prepared_bytes: refuse programs whose prepared weights are larger.
        numerics: which rules may be used: `real` (equal over the reals), `exact` (results agree with the original's in
            every bit; NaN is NaN) or `range` (also rules that may overflow where the original does not).
        kernels: try our kernels in place of XLA's, made by the backend for the default device of JAX or by the one of
            this name.  They are not used with numerics `exact`, since they round otherwise.
        search: False returns the plain candidate as soon as it is ready: the program's own form, every region a kernel
            with its default schedule.  It is compared with the original, and timed with it for a second at most; where
            the original is faster beyond doubt, that is returned.  With `deterministic` nothing is timed.
        data_root: a folder inside which symbolic links to the external data of a model are followed.
        progress: called with one line per stage.
        workers: address of a Ray cluster whose hosts make, validate and time programs, as far as they have the
            processor and the versions of this machine: `ray://HOST:10001`, `HOST:6379` or `auto`.

    Raises:
        InputError: no host of the cluster is like this machine.
        UsageError: the budget is not positive, options do not go together, or no cluster is at the address.
        ArgumentError: arguments are not arrays, or do not fit.
        ModelFileError: the model cannot be read.
        VerificationError: a rule is not proved.
    """
    if numerics not in EXACTNESS:
        raise UsageError(f"numerics {numerics!r} is none of {', '.join(EXACTNESS)}")
    backend = _backend(kernels)
    backend = backend if numerics != "exact" else None
    limits = parse_budget(budget)
    _check_options(seed, objective, store, kwargs, max_prepared_bytes, progress, workers)
    given = given_rules(rules)
    clock = Clock(progress)
    deadline = limits.deadline(clock.begin_s)
    fallback, ledger = Fallback(), RunLedger(seed)
    clock.watched(ledger, deadline)
    if backend is not None or not (deterministic and search):  # while this process imports the program
        fallback.around("the process that forks workers", forks.load, None, let=FIRST)
    with heard(), jax.transfer_guard("allow"), ExitStack() as stack:  # transfers here are none of the user's
        shelf = stack.enter_context(Shelf())
        with clock.stage("import"):
            asked, name = _import(fn, args, kwargs, frozen, dims, seed, shelf, data_root)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in asked.examples):
            asked = _with_examples(asked, seed)
        command = _command(
            name, frozen=frozen, dims=dims, budget=budget, seed=seed, deterministic=deterministic, numerics=numerics,
            kernels=kernels, search=search,
        )  # fmt: skip
        with fallback.kept("the optimisation", let=(SuperoptError, *FIRST)):
            archive = fallback.around("the store", lambda: _open_store(store), None, let=FIRST)
            if archive is not None:
                stack.callback(fallback.around, "the end of the store", archive.close, None)
            with clock.stage("model"):
                request = Request(
                    deadline, seed=seed, numerics=numerics, deterministic=deterministic, searches=search, rules=given,
                    max_prepared_bytes=max_prepared_bytes, kernels_by="" if backend is None else backend.name,
                    keeps_plain=keeps_plain(),
                )  # fmt: skip
                own = None
                if backend is not None and limits.suffices_for_kernels:
                    own = fallback.around(
                        "the model of kernels of our own", lambda: _priced(backend, objective), None, let=FIRST
                    )
                objective = objective or fallback.around(
                    "the performance model", lambda: card_model() or load_objective(archive, progress=clock.say),
                    request.objective,
                    let=FIRST,
                )  # fmt: skip
                request = replace(request, objective=objective, own=own, earlier=_earlier(archive, request, fallback))
            key = fallback.around(
                "the key of the call in the store", lambda: run_key(asked, request, limits), "", let=FIRST
            )
            known = fallback.around(
                "an answer from the store", lambda: _recalled(archive, key, asked, deadline), None, let=FIRST
            )
            in_doubt = known is not None and fallback.around(
                "the mark of an answer", lambda: is_in_doubt(archive, key), False, let=FIRST
            )
            if known is not None and not in_doubt:
                clock.say("answered from the store")
                return _told(known, program=name, command=command)
            imported = fallback.around("the file of the weights", lambda: shelf.imported(asked), asked)
            executor = stack.enter_context(executor_at(workers))
            processes = fallback.around("the processes", lambda: _processes(executor, backend), None, let=(InputError,))
            if processes is None or fallback.interrupted:
                return _told(original_alone(asked, fallback, clock, name), command=command)
            worker, second, kernels_alone, pool = processes
            for process in (worker, second, kernels_alone):
                stack.callback(fallback.around, "the end of processes", process.end, None)
            stack.callback(fallback.around, "the end of processes", pool.close, None)
            maker = fallback.around(
                "the maker of kernels",
                lambda: KernelMaker(
                    pool, archive, max_prepared_bytes, clock.say, _prices(request, imported), executor
                ),
                None,
                let=FIRST,
            )  # fmt: skip
            model = Path(fn) if isinstance(fn, str | Path) else None
            limits = kept_for_peers(model, limits)
            request = request.within(limits.deadline(clock.begin_s))
            session = Session(
                imported=imported, request=request, worker=worker,
                second=second, runs=OriginalRuns.of(imported, seed, request.exact, worker), store=archive,
                pool=pool, alone=kernels_alone, maker=maker, clock=clock, fallback=fallback,
                ledger=ledger, budget=limits, whole=deadline, model=model,
            )  # fmt: skip
            if known is not None:
                again = fallback.around(
                    "rounds of an answer in doubt", lambda: timed_again(session, known, key), known, let=FIRST
                )
                if again is not None:
                    clock.say("answered from the store, and timed again")
                    return _told(again, command=command)
            if imported.whole:  # there is nothing to choose, and its effects are not to be had before it is called
                state = RunState(choice=original_returned(imported, Why(ChoiceReason.KEPT_WHOLE, imported.whole)))
            else:
                state = chosen(session)
            return _told(finished(session, state, name, key), command=command)
        return _told(original_alone(asked, fallback, clock, name), command=command)


def _told(result: Optimized, **facts: str) -> Optimized:
    """The result with these facts in its report."""
    result.report = replace(result.report, **facts)
    return result


_DEFAULTS = {"budget": "60s", "seed": 0, "deterministic": False, "numerics": "real", "kernels": True, "search": True}


def _command(name: str, **options: Any) -> str:
    """The call that optimises the program again, with its options that are plain and not the default ones."""
    plain = str | int | float | dict | list | tuple
    given = {key: value for key, value in options.items() if isinstance(value, plain)}
    told = [f"{key}={value!r}" for key, value in given.items() if value not in (_DEFAULTS.get(key), ())]
    return f"superopt.optimize({', '.join([name, '...', *told])})"


def _recalled(archive: Store | None, key: str, imported: Imported, deadline: Deadline) -> Optimized | None:
    """The store's answer, if its proof, a run beside the original, ends in the time."""
    return BackgroundCall(lambda: recall(archive, key, imported)).by(deadline.end_s)


def _backend(kernels: bool | str) -> Backend | None:
    """The backend that makes kernels, if any are wanted.

    Raises:
        UsageError: no backend has this name.
    """
    if not isinstance(kernels, str):
        return for_device() if kernels else None
    try:
        if kernels == XLA:
            raise InputError("XLA computes what is no kernel of ours")
        return backend_of(kernels)
    except InputError as error:
        raise UsageError(str(error.args[0]), hint="kernels is True, False or the name of a backend") from error


def _processes(executor: Executor, backend: Backend | None) -> tuple[JobWorker, JobWorker, JobWorker, TrialPool]:
    """Two processes that compare programs, one that times kernels, and those that make them; none has started.

    Raises:
        InputError: no host is like this machine.
    """
    alone = sole_worker(executor, ONE_KERNEL, inline=True)
    return sole_worker(executor), sole_worker(executor), alone, TrialPool(backend=backend, executor=executor)


def _priced(backend: Backend, objective: Objective | None) -> Priced | None:
    """The backend, if this process can run its kernels and the search can price them; else None.

    Args:
        objective: what prices them in place of the shipped model.
    """
    if backend.unavailable():
        return None
    if objective is not None:
        return PricedBy(objective, backend)
    return backend if backend.version else None


def _prices(request: Request, imported: Imported) -> Joint | None:
    """The shipped models' prices of regions, before anything is timed; None where our kernels are not priced."""
    if request.own is None:
        return None
    return Joint(request.objective, lambda node: node, request.own, frozen_bytes(imported.graph), request.earlier)


def _earlier(archive: Store | None, request: Request, fallback: Fallback) -> kept.EarlierKernels:
    """Kernels that earlier calls timed on this machine; none where the models alone decide."""
    if archive is None or request.deterministic:
        return kept.NONE_EARLIER
    return fallback.around("kernels timed before", lambda: kept.recall(archive), kept.NONE_EARLIER, let=FIRST)


def _import(
    fn: Callable[..., Any] | str | Path | OnnxModel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    frozen: Any,
    dims: Mapping[str, int] | None,
    seed: int,
    shelf: Shelf,
    data_root: str | Path | None = None,
) -> tuple[Imported, str]:
    if isinstance(fn, str | Path) or type(fn).__name__ == "OnnxModel":
        if kwargs or not _is_empty(frozen):
            raise UsageError(
                "an ONNX model takes neither keyword arguments nor frozen=",
                hint="pass its inputs in order; its initializers are frozen anyway",
            )
        onnx = import_onnx()
        if isinstance(fn, onnx.OnnxModel):
            if dims or data_root is not None:
                raise UsageError("this model is loaded already", hint="give the option to load_model, or give its path")
            return onnx.import_model(shelf.model(fn), *args, seed=seed), fn.name
        assert isinstance(fn, str | Path)
        placed = shelf.model(onnx.load_model(fn, dims=dims, data_root=data_root, own=False, like=args, singles=True))
        return onnx.import_model(placed, *args, seed=seed), Path(fn).name
    if not callable(fn):
        raise ArgumentError(f"a {type(fn).__name__} is neither a function nor a path", hint="pass f itself, not f(x)")
    if data_root is not None:
        raise UsageError("data_root is for ONNX models that are files")
    if dims:
        raise UsageError("dims is for ONNX models", hint="the shapes of a function are those of its example arguments")
    return _of_function(fn, args, kwargs, frozen), _name_of(fn)


def _of_function(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, frozen: Any
) -> Imported:
    """The graph of a function; one operation, to be returned as it is, where its operations cannot be read.

    Raises:
        ArgumentError: arguments are not arrays, or do not fit.
    """
    try:
        return import_function(fn, args, kwargs, frozen=frozen)
    except InputError:
        raise
    except Exception as error:  # whatever it is: the function must not be lost with it
        cause = f"its import failed: {in_one_line(error)}"
        warned(f"the function is kept whole, since {cause}", StageWarning, stacklevel=4)
        return import_function(fn, args, kwargs, frozen=frozen, whole=cause)


def _name_of(fn: Callable[..., Any]) -> str:
    """Qualified name of a function; for one without a name, where its code is."""
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    parts = [part for part in getattr(inner, "__qualname__", type(inner).__name__).split(".") if part != "<locals>"]
    code = getattr(inner, "__code__", None)
    if parts[-1] == "<lambda>" and code is not None:
        parts[-1] = f"lambda at {Path(code.co_filename).name}:{code.co_firstlineno}"
    return ".".join(parts)


def import_onnx():
    need("onnx", "an ONNX model")
    from superopt.frontends.onnx import frontend  # late: an optional dependency

    return frontend


def _is_empty(frozen: Any) -> bool:
    return isinstance(frozen, tuple | list | set | frozenset) and not frozen


def _with_examples(imported: Imported, seed: int) -> Imported:
    """The import with random values in place of arguments of which only the type was given."""
    rng = np.random.default_rng(seed)

    def value(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if np.issubdtype(x.dtype, np.integer) or x.dtype == bool:
            return np.zeros(x.shape, x.dtype)
        return rng.standard_normal(x.shape).astype(x.dtype)

    try:
        return replace(imported, examples=tuple(map(value, imported.examples)))
    except MemoryError as error:
        raise ArgumentError(f"example values for the arguments do not fit into memory: {error}") from error


def _check_options(
    seed: Any, objective: Any, store: Any, kwargs: Any, max_prepared_bytes: Any, progress: Any, workers: Any
) -> None:
    """Reject options of types other than `optimize` states, before anything depends on them.

    Raises:
        UsageError: an option has another type.
    """
    whole = "a whole number of at least 0"
    wrong = {
        "seed": (seed, _is_count(seed), whole),
        "objective": (objective, objective is None or callable(getattr(objective, "price", None)), "an Objective"),
        "store": (store, isinstance(store, bool | str | Path), "True, False or the path of a file"),
        "kwargs": (kwargs, kwargs is None or isinstance(kwargs, Mapping), "a mapping of keyword arguments"),
        "max_prepared_bytes": (max_prepared_bytes, max_prepared_bytes is None or _is_count(max_prepared_bytes), whole),
        "progress": (progress, progress is None or callable(progress), "a function of a line"),
        "workers": (workers, workers is None or isinstance(workers, str), "the address of a Ray cluster"),
    }
    for name, (value, right, what) in wrong.items():
        if not right:
            raise UsageError(f"{name} is {shown(value)}", hint=f"it has to be {what}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


def _open_store(store: bool | str | Path) -> Store | None:
    if store is False:
        return None
    return Store() if store is True else Store(store)
