"""The static plan of a native program: its slots in memory, and the steps that read and write them.

A slot is an argument, a weight, an output, some bytes of the arena, or a place that moves.  A step is a call of a
kernel, a copy of the bytes of one slot to another, or a view.  A loop is one around steps, a choice around lists of
steps.  A reshaped value is the slot of the value itself.

A view places a moving slot in another slot, in a loop further on with each trip: so a body reads and writes the rows of
stacks where they lie.  A carry is a moving slot too.  In the first trip it is the value before the loop, then what the
trip before has written, and behind the loop the last of these.  A body that still reads a carry when it writes the next
one writes in turn to two slots.  The text form has a line a step:

    2 arguments, 1 weight, 3 outputs, arena of 2,048 bytes
    arena[0:1024] f32[8,32] = 9f3c2a71(argument0, weight0)
    output0 f32[8,32] = 77b01c2e(arena[0:1024], argument1) in arena[1024:2048]
    output1 f32[8,32] = copy(argument0)

Below is a loop.  It reads a carry, and writes it as a row of a result:

    8 trips, moving0 = argument1 then moving1:
        moving1 f32[32] = 128 bytes of output2 from 0 by 128
        moving1 f32[32] = 77b01c2e(moving0, weight0)

Behind a choice, a moving slot is the result of the branch that an index selected:

    moving2 is one by argument2:
        0: argument0
        1: arena[0:128] with
            arena[0:128] f32[32] = 9f3c2a71(argument0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.files.reading import typed
from superopt.ir.program import type_bytes
from superopt.ir.types import TensorType

ARGUMENT, WEIGHT, ARENA, OUTPUT, MOVING = "argument", "weight", "arena", "output", "moving"
COPY = "copy"
"""In place of a kernel's digest: the bytes of the slot that is read are copied to the one that is written."""
_SHOWN = 8  # digits of a digest


@dataclass(frozen=True, slots=True)
class PlanSlot:
    """A value in memory.

    Attributes:
        kind: argument, weight, arena, output or moving.
        at: the position among those of its kind; in the arena the offset in bytes.
        type: shape and dtype.
    """

    kind: str
    at: int
    type: TensorType

    @property
    def size_bytes(self) -> int:
        """The bytes of the value."""
        return type_bytes(self.type)

    def __str__(self) -> str:
        return f"arena[{self.at}:{self.at + self.size_bytes}]" if self.kind == ARENA else f"{self.kind}{self.at}"


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A call of a kernel, or a copy.

    Attributes:
        kernel: digest of the kernel, or `COPY`.
        reads, writes, scratch: slots by number; one after the other they are the pointers of the kernel.
    """

    kernel: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scratch: tuple[int, ...] = ()

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots in the order of the kernel's pointers."""
        return (*self.reads, *self.writes, *self.scratch)


@dataclass(frozen=True, slots=True)
class PlanView:
    """A moving slot placed in another slot.

    Attributes:
        slot: the moving slot.
        of: the other slot.
        at: the offset in bytes in the first trip.
        stride: the bytes that each trip of the loop around it adds to the offset.
    """

    slot: int
    of: int
    at: int
    stride: int = 0


@dataclass(frozen=True, slots=True)
class PlanCarry:
    """A value that trips hand on.

    Attributes:
        slot: the moving slot that holds it in a trip, and behind the loop.
        first: the slot of the value before the loop.
        next: the slot that a trip writes.
        turns: where that one is a moving slot, the slots in which it lies in even and in odd trips.
    """

    slot: int
    first: int
    next: int
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanLoop:
    """Steps that are repeated.

    Attributes:
        trips: their number; 0 where a condition ends the loop.
        carries: the values that trips hand on.
        steps: the steps of a trip.
        condition: steps before each trip.
        goes_on: the slot that says behind them whether there is a trip.
    """

    trips: int
    carries: tuple[PlanCarry, ...]
    steps: tuple[AnyStep, ...]
    condition: tuple[AnyStep, ...] = ()
    goes_on: int = 0


@dataclass(frozen=True, slots=True)
class PlanBranch:
    """Steps of a choice, and the slots of its results behind them."""

    steps: tuple[AnyStep, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Lists of steps of which one runs.

    Attributes:
        index: the slot with the number of the branch, which is moved into their range.
        slots: the moving slots that hold its results behind the choice.
        branches: the lists of steps.
    """

    index: int
    slots: tuple[int, ...]
    branches: tuple[PlanBranch, ...]


AnyStep = PlanStep | PlanView | PlanLoop | PlanChoice


@dataclass(frozen=True, slots=True)
class NativePlan:
    """The slots of a program, its steps in order, and the bytes of its arena."""

    slots: tuple[PlanSlot, ...]
    steps: tuple[AnyStep, ...]
    arena_bytes: int

    def of_kind(self, kind: str) -> tuple[PlanSlot, ...]:
        """Return the slots of a kind in the order of their positions."""
        return tuple(sorted([slot for slot in self.slots if slot.kind == kind], key=lambda slot: slot.at))

    def every_step(self) -> Iterator[PlanStep]:
        """Yield the calls and copies, those in loops and branches too."""
        waiting = list(reversed(self.steps))
        while waiting:
            step = waiting.pop()
            if isinstance(step, PlanLoop):
                waiting += reversed((*step.condition, *step.steps))
            elif isinstance(step, PlanChoice):
                waiting += reversed([inner for branch in step.branches for inner in branch.steps])
            elif isinstance(step, PlanStep):
                yield step

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        slots = [
            {"kind": s.kind, "at": s.at, "bytes": s.size_bytes, "shape": list(s.type.shape), "dtype": s.type.dtype}
            for s in self.slots
        ]
        return {"slots": slots, "steps": _data(self.steps), "arena_bytes": self.arena_bytes}

    def __str__(self) -> str:
        counts = Counter(slot.kind for slot in self.slots)
        told = ", ".join([_counted(counts[kind], kind) for kind in (ARGUMENT, WEIGHT, OUTPUT)])
        return "\n".join([f"{told}, arena of {self.arena_bytes:,} bytes", *self._lines(self.steps)])

    def _lines(self, steps: Sequence[AnyStep]) -> Iterator[str]:
        for step in steps:
            match step:
                case PlanStep():
                    written = ", ".join([f"{self.slots[i]} {self.slots[i].type}" for i in step.writes])
                    within = f" in {self._named(step.scratch)}" if step.scratch else ""
                    yield f"{written} = {step.kernel[:_SHOWN]}({self._named(step.reads)}){within}"
                case PlanView():
                    slot, moved = self.slots[step.slot], f" by {step.stride}" if step.stride else ""
                    yield f"{slot} {slot.type} = {slot.size_bytes} bytes of {self.slots[step.of]} from {step.at}{moved}"
                case PlanLoop():
                    carried = "".join([f", {self._carried(c)}" for c in step.carries])
                    yield (
                        f"{step.trips} trips{carried}:" if step.trips else f"while {self.slots[step.goes_on]}{carried}:"
                    )
                    yield from (f"    {line}" for line in self._lines(step.condition))
                    yield from ("    then:",) if step.condition else ()
                    yield from (f"    {line}" for line in self._lines(step.steps))
                case PlanChoice():
                    yield f"{self._named(step.slots)} is one by {self.slots[step.index]}:"
                    for number, branch in enumerate(step.branches):
                        yield f"    {number}: {self._named(branch.results)}{' with' if branch.steps else ''}"
                        yield from (f"        {line}" for line in self._lines(branch.steps))

    def _carried(self, carry: PlanCarry) -> str:
        turns = f" in turn {' and '.join([str(self.slots[i]) for i in carry.turns])}" if carry.turns else ""
        return f"{self.slots[carry.slot]} = {self.slots[carry.first]} then {self.slots[carry.next]}{turns}"

    def _named(self, slots: Sequence[int]) -> str:
        return ", ".join([str(self.slots[i]) for i in slots])


def _data(steps: Sequence[AnyStep]) -> list[dict[str, Any]]:
    """Return steps as plain data."""
    return [_step_data(step) for step in steps]


def _step_data(step: AnyStep) -> dict[str, Any]:
    match step:
        case PlanStep():
            parts = {"reads": step.reads, "writes": step.writes, "scratch": step.scratch}
            return {"kernel": step.kernel, **{part: list(slots) for part, slots in parts.items()}}
        case PlanView():
            return {"view": step.slot, "of": step.of, "at": step.at, "stride": step.stride}
        case PlanLoop():
            carries = [{"slot": c.slot, "first": c.first, "next": c.next, "turns": list(c.turns)} for c in step.carries]
            return {
                "trips": step.trips, "carries": carries, "steps": _data(step.steps),
                "condition": _data(step.condition), "goes_on": step.goes_on,
            }  # fmt: skip
        case PlanChoice():
            branches = [{"steps": _data(x.steps), "results": list(x.results)} for x in step.branches]
            return {"choice": step.index, "slots": list(step.slots), "branches": branches}


def from_json(data: Mapping[str, Any]) -> NativePlan:
    """Return the plan of this data, which `verifier.memory` has still to check.

    Raises:
        InputError: the data is not that of a plan.
    """
    with typed("the data is not a native plan"):
        slots = [PlanSlot(s["kind"], s["at"], TensorType(tuple(s["shape"]), s["dtype"])) for s in data["slots"]]
        return NativePlan(tuple(slots), _steps(data["steps"]), data["arena_bytes"])


def _steps(data: Sequence[Mapping[str, Any]]) -> tuple[AnyStep, ...]:
    """Return the steps of plain data."""
    return tuple([_step(x) for x in data])


def _step(data: Mapping[str, Any]) -> AnyStep:
    if "kernel" in data:
        return PlanStep(data["kernel"], *[tuple(data[part]) for part in ("reads", "writes", "scratch")])
    if "view" in data:
        return PlanView(data["view"], data["of"], data["at"], data["stride"])
    if "choice" in data:
        branches = [PlanBranch(_steps(x["steps"]), tuple(x["results"])) for x in data["branches"]]
        return PlanChoice(data["choice"], tuple(data["slots"]), tuple(branches))
    carries = [PlanCarry(c["slot"], c["first"], c["next"], tuple(c["turns"])) for c in data["carries"]]
    return PlanLoop(data["trips"], tuple(carries), _steps(data["steps"]), _steps(data["condition"]), data["goes_on"])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
