"""tensorize as a step of a trace: the decisions of a register tile as pairs of a field and a value."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from superopt.errors import InputError
from superopt.kernels.loops.program import checked
from superopt.kernels.loops.ranges import decision_fault
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.schedule.edit import terms
from superopt.kernels.schedule.guards import inside

if TYPE_CHECKING:
    from superopt.kernels.schedule.register_tile import ContractionDecisions

Pairs = Sequence[Sequence[Any]]


def tensorize(program: LoopProgram, stage: str, decisions: Pairs = ()) -> LoopProgram:
    """Replace the inner loops of a contraction by a register tile, operands packed as the tile reads them.

    before
        for o0<8, o1<32
          out0[o0,o1] = sum_{r0<8} mul(x[o0,r0], w[r0,o1])
    tensorize out0 [["rows", [["o0", 4]]], ["pack_b", "none"]]
        for o0m<2, o0r<4 unroll, o1l<32 vector
          out0[4*o0m+o0r,o1l] = sum_{r0<8} mul(x[4*o0m+o0r,r0], w[r0,o1l])   # fma_f32 o0r:4 by 2 vectors of o1l over r0

    Args:
        program: a well-formed program.
        stage: with the contraction, not scheduled yet.
        decisions: fields of `superopt.kernels.schedule.register_tile.ContractionDecisions` and their values; truth
            values may be 0 and 1.

    Raises:
        InputError: the stage holds no contraction that the intrinsic fits, a decision does not fit it, or the
            coordinates of an operand reach further than the operand does.
    """
    from superopt.kernels.schedule import register_tile as contractions  # late: brings the emitters of intrinsics

    after = checked(contractions.tensorize(program, stage, decisions_of(decisions)))
    known = {s.buffer for s in program.stages}
    for s in after.stages:
        copy = s.buffer not in known and s.tile is None
        if copy and not inside(after, s.value, terms(s.guard)):
            raise InputError(f"tensorize {stage}: the copy {s.buffer} of an operand would read beyond its arrays")
    return after


def decisions_of(pairs: Pairs) -> ContractionDecisions:
    """Decisions from pairs; fields that are not named have their defaults.

    Raises:
        InputError: an unknown field, or a value that it cannot have.
    """
    from superopt.kernels.schedule.register_tile import ContractionDecisions

    hints = typing.get_type_hints(ContractionDecisions)
    given: dict[str, Any] = {}
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in hints:
            raise InputError(f"tensorize has no decision {list(pair)}", hint=f"decisions: {', '.join(hints)}")
        name, value = pair
        given[name] = _value(name, value, hints[name])
        fault = decision_fault(name, given[name])
        if fault:
            raise InputError(f"the decision {fault}")
    return ContractionDecisions(**given)


def pairs_of(decisions: ContractionDecisions) -> list[list[Any]]:
    """The decisions that differ from the defaults, as JSON can hold them."""
    plain = type(decisions)()
    found: list[list[Any]] = []
    for f in fields(decisions):
        value = getattr(decisions, f.name)
        if value != getattr(plain, f.name):
            found.append([f.name, int(value) if isinstance(value, bool) else _listed(value)])
    return found


def _listed(value: Any) -> Any:
    return [_listed(x) for x in value] if isinstance(value, tuple) else value


def _value(name: str, value: Any, hint: Any) -> Any:
    """A value of the type that the field has."""
    found = _converted(value, hint)
    if found is None:
        raise InputError(f"the decision {name!r} of tensorize cannot be {value!r}")
    return found


def _converted(value: Any, hint: Any) -> Any:
    """The value as a field of this type holds it; None where it is of another type."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return next((x for h in inside if (x := _converted(value, h)) is not None), None)
    if origin is typing.Literal:
        return value if value in inside else None
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return None
        kinds = [inside[0]] * len(value) if inside[1:] == (...,) else list(inside)
        if len(kinds) != len(value):
            return None
        items = [_converted(x, k) for x, k in zip(value, kinds, strict=True)]
        return None if None in items else tuple(items)
    if hint is bool:
        return bool(value) if value in (0, 1) else None
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return value if isinstance(value, hint) else None
