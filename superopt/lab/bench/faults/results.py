"""Faults put into every stage of an optimisation: whether a right program is returned, and the fault is reported.

A fault is one function of one stage that raises whenever it is called.  All functions and methods of the modules of a
stage are taken in turn; the small program that is optimised takes the path through that stage.  A result is lost when
`optimize` raises, when the returned program computes other results than the original, or when neither the report nor a
warning mentions that a stage failed.  Ctrl-C may end a call that has no program yet.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rewrites.library import load
from superopt.pipeline.optimizer import optimize  # with it every module that knows a function of a stage is loaded

_OURS = ("superopt", "rewrites", "costmodel", "verifier")
_ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: KeyError(-3),
    lambda: RuntimeError("a fault"),
    lambda: MemoryError(),
    lambda: RecursionError("maximum recursion depth exceeded"),
    lambda: OSError(28, "No space left on device"),
    lambda: AssertionError(),
)
_PROGRAMS = ("plain:", "explore:")  # lines of the stages that give a first program
_ARGUMENTS = ("superopt.certify.library:given_rules",)  # reads an argument before the import: its error is the caller's
_BEFORE = ("library", "model", "store", "processes")  # stages in which Ctrl-C ends the call: there is no program yet

MODEL_ALONE: Mapping[str, Any] = {"deterministic": True, "budget": "20steps"}
MEASURED: Mapping[str, Any] = {"budget": "50steps", "kernels": False}
WITH_KERNELS: Mapping[str, Any] = {"budget": "50steps"}

STAGES: tuple[tuple[str, tuple[str, ...], Mapping[str, Any]], ...] = (
    ("library", ("superopt.certify.library", "rewrites.language.show"), MODEL_ALONE),
    ("model", ("costmodel.model.load", "costmodel.model.measured"), MODEL_ALONE),
    ("store", ("superopt.store.sqlite", "superopt.returned.remember"), MODEL_ALONE),
    (
        "search",
        ("superopt.explore.exploration", "superopt.explore.found", "superopt.explore.bodies", "superopt.search"),
        MODEL_ALONE,
    ),
    (
        "growth",
        ("rewrites.grow.growth", "rewrites.egraph.graph", "rewrites.egraph.convert", "rewrites.build.expander"),
        MODEL_ALONE,
    ),
    ("plan", ("superopt.explore.trace", "superopt.certify.plan", "rewrites.grow.proof"), MODEL_ALONE),
    ("report", ("superopt.explain.summary", "superopt.explain.evidence", "superopt.explain.drawing"), MODEL_ALONE),
    (
        "judgement",
        (
            "superopt.contest.contest",
            "superopt.contest.choices",
            "superopt.contest.attribution",
        ),
        MEASURED,
    ),
    ("timing", ("superopt.measure", "superopt.explore.kernel_timer"), MEASURED),
    (
        "kernels",
        (
            "superopt.make.forms",
            "superopt.make.schedules",
            "superopt.certify.kernels",
            "superopt.make.trials",
            "superopt.kernels.choose.partition",
        ),
        WITH_KERNELS,
    ),
    ("plain", ("superopt.make.plain", "superopt.contest.rounds"), WITH_KERNELS),
    (
        "processes",
        ("superopt.workshop.scheduler", "superopt.workshop.process", "superopt.workshop.forks"),
        WITH_KERNELS,
    ),
)
"""(name, modules or packages, options of `optimize` with which they are used)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A function that fails: `module:name` or `module:class.name`, with the options of a call that reaches it."""

    stage: str
    target: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The outcome of a fault.

    Attributes:
        met: whether the call reached the function that fails.
        lost: how the result was lost; empty where it was not.
    """

    fault: Fault
    error: str
    met: bool
    lost: str = ""


def faults(stages: Sequence[str] = ()) -> list[Fault]:
    """Every function and method of the modules of these stages (default: of all)."""
    return [
        Fault(stage, f"{module.__name__}:{name}", options)
        for stage, names, options in STAGES
        if not stages or stage in stages
        for module in _modules(names)
        for name in _functions(module)
        if f"{module.__name__}:{name}" not in _ARGUMENTS
    ]


def inject(fault: Fault, error: Callable[[], BaseException]) -> FaultOutcome:
    """Optimise a product of three matrices while a function fails."""
    what = type(error()).__name__
    met: list[str] = []
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, failing(fault.target, error, met):
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                store = fault.stage in _BEFORE and Path(folder) / "store.sqlite"
                result = optimize(
                    _product, *_arguments(), store=store, rules=_rules(), progress=lines.append, **fault.options
                )
        except BaseException as lost:  # the interruption that was injected, too
            has_program = fault.options is MODEL_ALONE or any(line.startswith(_PROGRAMS) for line in lines)
            if isinstance(lost, KeyboardInterrupt) and not has_program:
                return FaultOutcome(fault, what, bool(met))
            return FaultOutcome(fault, what, bool(met), f"{type(lost).__name__}: {lost}")
    if not met:
        return FaultOutcome(fault, what, False)
    if not np.allclose(result(*_arguments()), _product(*_arguments()), rtol=1e-3, atol=1e-3):
        return FaultOutcome(fault, what, True, "the returned program computes something else")
    report = result.report
    said = report.lost or told or report.search.get("interrupted") or any(f.failure for f in report.finalists)
    words = " ".join((report.verdict, *report.notes))
    return FaultOutcome(
        fault, what, True, "" if said or any(w in words for w in ("fault", what, "interrupted")) else "nothing says so"
    )


def lost_results(
    stages: Sequence[str] = (), most: int | None = None, progress: Callable[[FaultOutcome], None] | None = None
) -> tuple[int, int]:
    """Put faults into the functions of these stages one after the other; return (reached by a call, results lost).

    Args:
        stages: names of `STAGES`; all of them by default.
        most: faults to try, spread evenly over the functions.
        progress: called with every outcome.
    """
    table = faults(stages)
    step = 1 if most is None else max(1, len(table) // most)
    injected = lost = 0
    for number, fault in enumerate(table[::step]):
        errors = _ERRORS if fault.stage in _BEFORE else (*_ERRORS, KeyboardInterrupt)
        outcome = inject(fault, errors[number % len(errors)])
        injected += outcome.met
        lost += bool(outcome.lost)
        if progress is not None:
            progress(outcome)
    return injected, lost


@contextmanager
def failing(target: str, error: Callable[[], BaseException], met: list[str]) -> Iterator[None]:
    """Make a function raise in the block, by whatever name our modules know it; each call is recorded in `met`."""
    module, _, name = target.partition(":")
    outer, _, inner = name.rpartition(".")
    home: Any = importlib.import_module(module)
    if outer:
        home = getattr(home, outer)
    kept = inspect.getattr_static(home, inner)
    plain: Any = kept.__func__ if isinstance(kept, staticmethod | classmethod) else kept
    plain = plain.fget if isinstance(plain, property) else plain

    @functools.wraps(plain)
    def fail(*args: Any, **kwargs: Any) -> Any:
        met.append(target)
        raise error()

    wrapped: Any = fail
    if isinstance(kept, property | staticmethod | classmethod):
        wrapped = type(kept)(fail)
    places = [(home, inner)] if outer else _places(kept)
    for place, known in places:
        setattr(place, known, wrapped)
    try:
        yield
    finally:
        for place, known in places:
            setattr(place, known, kept)


def _places(function: Any) -> list[tuple[Any, str]]:
    """Our modules, and the names by which they know a function."""
    ours = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in _OURS and m is not None]
    return [(m, name) for m in ours for name, value in list(vars(m).items()) if value is function]


def _modules(names: Sequence[str]) -> Iterator[types.ModuleType]:
    for name in names:
        module = importlib.import_module(name)
        yield module
        for module_info in pkgutil.iter_modules(getattr(module, "__path__", ())):
            yield importlib.import_module(f"{name}.{module_info.name}")


def _functions(module: types.ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        if getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            for inner, method in vars(value).items():
                plain = method.__func__ if isinstance(method, staticmethod | classmethod) else method
                plain = plain.fget if isinstance(plain, property) else plain
                made = inner.startswith("__") and dataclasses.is_dataclass(value)  # by the decorator
                if inspect.isfunction(plain) and plain.__module__ == module.__name__ and not made:
                    yield f"{name}.{inner}"


def _product(a: Any, b: Any, x: Any) -> Any:
    return (a @ b) @ x


@functools.cache
def _arguments() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((128, 128), (128, 128), (128, 1)))


@functools.cache
def _rules() -> list[Any]:
    return [rule for rule in load() if rule.name == "dot-assoc"]
