"""Targets of the command line: a model file, or the function that a maker in a Python file returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from superopt.errors import ArgumentError, SuperoptError, UsageError, one_line
from superopt.pipeline.optimizer import import_onnx, optimize
from superopt.returned.optimized import Optimized


def optimize_target(target: str, *, random_weights: bool = False, seed: int = 0, **options: Any) -> Optimized:
    """Optimise the program that the command line names: an ONNX file, or a maker `FILE.py:NAME`.

    `NAME()` returns a function and a tuple of example arguments, and may return the frozen positions as a third value.

    Raises:
        UsageError: the target is neither.
        ModelFileError: the model cannot be read.
    """
    path, colon, _ = target.rpartition(":")
    if target.endswith(".py"):
        raise UsageError(
            f"{target} names no function", hint=f"write {target}:NAME; NAME() returns (function, arguments)"
        )
    if colon and path.endswith(".py"):
        if random_weights:
            raise UsageError("random weights are for ONNX models", hint="NAME() can return random arguments")
        fn, args, frozen = made_by(target)
        result = optimize(fn, *args, frozen=frozen, seed=seed, **options)
        result.report = replace(result.report, program=f"{Path(path).name}:{target.rpartition(':')[2]}")
        return result
    if random_weights:
        onnx = import_onnx()
        loading = {name: options.pop(name, None) for name in ("dims", "data_root")}
        model = onnx.randomize_weights(onnx.load_model(target, **loading, singles=True), seed)
        return optimize(model, seed=seed, **options)
    return optimize(target, seed=seed, **options)


def made_by(target: str) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """The function, the arguments and the frozen positions that a maker `FILE.py:NAME` returns.

    Raises:
        ArgumentError: there is no such maker, or it returns something else.
    """
    made = called(target, "NAME() returns (function, arguments)")
    if (
        not isinstance(made, tuple)
        or len(made) not in (2, 3)
        or not callable(made[0])
        or not isinstance(made[1], tuple | list)
    ):
        raise ArgumentError(
            f"{target.rpartition(':')[2]}() gives something else than (function, arguments) or (function, arguments, "
            "frozen positions)",
            hint="arguments is a tuple of example arguments",
        )
    return made[0], tuple(made[1]), made[2] if len(made) == 3 else ()


def called(target: str, hint: str) -> Any:
    """Call `NAME` of a target `FILE.py:NAME`; return its result.

    Raises:
        ArgumentError: there is nothing of this name to call, or the file or the call fails; it has the hint.
    """
    import runpy  # late: only programs given as a file

    place, _, maker = target.rpartition(":")
    path = Path(place)
    if not path.is_file():
        raise ArgumentError(f"there is no file {path}", hint="write FILE.py:NAME")
    try:
        names = runpy.run_path(str(path))
        if not callable(names.get(maker)):
            raise ArgumentError(f"{path} defines nothing to call as {maker!r}", hint=hint)
        return names[maker]()
    except SuperoptError:
        raise
    except (Exception, SystemExit) as error:  # any exception of the user's code is reported in one line, with its place
        raise ArgumentError(f"{path} cannot be run: {one_line(error, str(path))}", hint=hint) from error
