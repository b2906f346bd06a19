"""Which elements a stage writes, and at which of its axes."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.errors import InputError
from superopt.ir.index import Size, Symbol, decide, of_atom, substitute_guard
from superopt.kernels.loops.stage import Buffer, Stage
from superopt.kernels.schedule.bijection import element_of, solve
from superopt.kernels.schedule.edit import terms


def inverse(
    stage: Stage, element: Sequence[Size], shape: Sequence[int], shared: Sequence[Symbol] = ()
) -> dict[Symbol, Size]:
    """The axes at which a stage writes an element; axes shared with the reader stay.

    Raises:
        InputError: the index map of the stage has no inverse of a known form.
    """
    axes = [a.symbol for a in stage.axes if a.symbol not in shared]
    found = None if stage.combine is not None else solve(stage.index, axes, element, shape)
    if found is None:
        text = ",".join(map(str, stage.index))
        raise InputError(
            f"the axes of stage {stage.buffer} do not follow from the element {stage.buffer}[{text}] that is written",
            hint="this step needs an index map made of axes by splitting, fusing and permuting",
        )
    return found | {s: of_atom(s) for s in shared}


def total(stage: Stage, buffer: Buffer, primitive: str) -> None:
    """Raise unless the stage writes every element of its buffer."""
    _, _, exists = written(stage, buffer)
    if exists and 0 not in buffer.shape:
        raise InputError(
            f"{primitive}: stage {stage.buffer} does not write every element of {buffer.name}{list(buffer.shape)}: "
            f"only where {', '.join(f'{x} >= 0' for x in exists)}"
        )


def written(stage: Stage, buffer: Buffer) -> tuple[list[Symbol], list[Size], list[Size]]:
    """Iterators over a buffer, the element at which they stand, and what must be >= 0 for the stage to write it."""
    shared = [a.symbol for a in stage.axes[: stage.at[1]]] if stage.at is not None else []
    its, element = element_of(buffer.shape, [s.name for s in shared])
    if stage.combine is not None:  # from the identity
        return its, element, []
    axes = inverse(stage, element, buffer.shape, shared)
    exists = [x for s, value in axes.items() if s not in shared for x in (value, last(s) - value)]
    exists += terms(substitute_guard(stage.guard, axes))
    return its, element, [x for x in exists if decide(x) is not True]


def last(s: Symbol) -> int:
    """The greatest value of an iterator."""
    assert isinstance(s.high, int)
    return s.high
