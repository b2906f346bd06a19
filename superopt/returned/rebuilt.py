"""Programs of a file built on this machine: with the kernels that pass here, by XLA alone, and the original."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from superopt.backends import mixed
from superopt.backends.xla import XlaExecutable, build, to_jax
from superopt.certify.kernels import ValidatedCode
from superopt.certify.taking import TakenKernels, left_out, take_kernels
from superopt.errors import InputError
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.report.data import read_report
from superopt.returned.saved import Saved, read


def with_kernels(saved: Saved, *, called: bool) -> tuple[TakenKernels, XlaExecutable]:
    """Build a program with those of its kernels that pass validation here.

    Args:
        saved: the contents of the file.
        called: whether this is the first call, when no kernel waits any longer.

    Raises:
        InputError: the kernels do not fit the program.
    """
    taken = TakenKernels((), ValidatedCode(), {}, False)
    if saved.kernels:
        taken = take_kernels(saved.hot, saved.kernels, len(saved.live), called=called)
    program = original_program(saved.hot)
    try:
        return taken, mixed.build(program, saved.prepared, options=saved.options, kernels=taken.kernels)
    except InputError:
        raise
    except Exception as error:  # whatever it is: XLA computes the program without kernels
        taken = replace(taken, kernels=(), left={**taken.left, **left_out(taken.kernels, error)})
        return taken, build(program, saved.prepared, options=saved.options)


def plain(saved: Saved) -> XlaExecutable:
    """Build a program without kernels."""
    with jax.ensure_compile_time_eval():  # also where it is first needed inside of a trace
        return build(original_program(saved.hot), saved.prepared)


def of_all_arguments(saved: Saved) -> tuple[Graph, Callable[..., Sequence[Any]]]:
    """Read the original program of a file; return it and a callable that runs it on all of its arguments."""
    assert saved.original is not None
    graph = saved.original()
    run, constants = (
        to_jax(graph),
        [graph.constants[node["name"]] for node in graph.inputs if node["name"] in graph.constants],
    )
    return graph, lambda *arguments: run(*arguments, *constants)


def verdicts(figures: Mapping[str, Any]) -> ValidatedCode:
    """Return the verdicts whose figures a file holds."""
    return ValidatedCode(figures["validated"], figures["unknown"])


__all__ = ["Saved", "of_all_arguments", "plain", "read", "read_report", "verdicts", "with_kernels"]
