"""Schedule primitives: functions from loop program to loop program that change no output.

The docstring of each states its premises, which raise `InputError`, and shows the loops before and after.  Primitives
know no op: they work on axes, index maps and expressions.  The tests compare them with
`superopt.kernels.loops.evaluate`.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.chaining import choose, factor_out, share
from superopt.kernels.schedule.compose import cache_write, inline, materialize, reverse_compute_at
from superopt.kernels.schedule.layout import transform_layout
from superopt.kernels.schedule.loops import fuse, pad, parallel, reorder, set_knob, split, unroll, vectorize
from superopt.kernels.schedule.packing import cache_read
from superopt.kernels.schedule.place import blockize, compute_at
from superopt.kernels.schedule.prefixes import split_prefix
from superopt.kernels.schedule.reducing import (
    decompose_reduction,
    pad_reduction,
    reorder_reduction,
    rfactor,
    split_reduction,
)
from superopt.kernels.schedule.skipping import skip
from superopt.kernels.schedule.tensorizing import tensorize
from superopt.kernels.schedule.widening import widen


@dataclass(frozen=True, slots=True)
class Primitive:
    """A schedule primitive under its name in traces."""

    run: Callable[..., LoopProgram]
    parameters: tuple[inspect.Parameter, ...]
    hints: dict[str, Any]

    def misfit(self, arguments: Sequence[Any]) -> str:
        """Return the fault in the number or types of arguments; empty when they fit."""
        least = sum(p.default is p.empty for p in self.parameters)
        if not least <= len(arguments) <= len(self.parameters):
            names = ", ".join(p.name for p in self.parameters)
            return f"takes {least} to {len(self.parameters)} arguments ({names}), got {len(arguments)}"
        for p, x in zip(self.parameters, arguments, strict=False):
            if not _fits(x, self.hints[p.name]):
                return f"{p.name} cannot be {x!r}"
        return ""


def _fits(x: Any, hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(x, h) for h in inside)
    if origin is typing.Literal:
        return x in inside
    if origin is not None and issubclass(origin, Sequence):
        return isinstance(x, list | tuple) and all(_fits(y, inside[0]) for y in x)
    if hint is type(None):
        return x is None
    return isinstance(x, hint) and not (hint is int and isinstance(x, bool))


def _primitive(run: Callable[..., LoopProgram]) -> Primitive:
    parameters = tuple(inspect.signature(run).parameters.values())[1:]
    return Primitive(run, parameters, typing.get_type_hints(run))


PRIMITIVES: dict[str, Primitive] = {
    run.__name__: _primitive(run)
    for run in (
        split, fuse, reorder, parallel, vectorize, unroll, pad, set_knob,
        inline, materialize, cache_read, cache_write, compute_at, reverse_compute_at, blockize,
        split_reduction, pad_reduction, reorder_reduction, rfactor, decompose_reduction, transform_layout,
        tensorize, choose, share, factor_out, skip, widen,
        split_prefix,
    )
}  # fmt: skip
