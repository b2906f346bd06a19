"""The static plan of a native program: its slots in memory, and the steps that read and write them.

A slot is an argument, a weight, an output, or some bytes of the arena.  A step is a call of a kernel, or a copy of the
bytes of one slot to another.  A reshaped value is the slot of the value itself.  The text form has a line a step:

    2 arguments, 1 weight, 2 outputs, arena of 2,048 bytes
    arena[0:1024] f32[8,32] = 9f3c2a71(argument0, weight0)
    output0 f32[8,32] = 77b01c2e(arena[0:1024], argument1) in arena[1024:2048]
    output1 f32[8,32] = copy(argument0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.files.reading import typed
from superopt.ir.program import type_bytes
from superopt.ir.types import TensorType

ARGUMENT, WEIGHT, ARENA, OUTPUT = "argument", "weight", "arena", "output"
COPY = "copy"
"""In place of a kernel's digest: the bytes of the slot that is read are copied to the one that is written."""
_SHOWN = 8  # digits of a digest


@dataclass(frozen=True, slots=True)
class PlanSlot:
    """A value in memory.

    Attributes:
        kind: argument, weight, arena or output.
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
class NativePlan:
    """The slots of a program, its steps in order, and the bytes of its arena."""

    slots: tuple[PlanSlot, ...]
    steps: tuple[PlanStep, ...]
    arena_bytes: int

    def of_kind(self, kind: str) -> tuple[PlanSlot, ...]:
        """Return the slots of a kind in the order of their positions."""
        return tuple(sorted([slot for slot in self.slots if slot.kind == kind], key=lambda slot: slot.at))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        slots = [
            {"kind": s.kind, "at": s.at, "bytes": s.size_bytes, "shape": list(s.type.shape), "dtype": s.type.dtype}
            for s in self.slots
        ]
        steps = [
            {"kernel": s.kernel, "reads": list(s.reads), "writes": list(s.writes), "scratch": list(s.scratch)}
            for s in self.steps
        ]
        return {"slots": slots, "steps": steps, "arena_bytes": self.arena_bytes}

    def __str__(self) -> str:
        counts = Counter(slot.kind for slot in self.slots)
        told = ", ".join([_counted(counts[kind], kind) for kind in (ARGUMENT, WEIGHT, OUTPUT)])
        return "\n".join([f"{told}, arena of {self.arena_bytes:,} bytes", *map(self._line, self.steps)])

    def _line(self, step: PlanStep) -> str:
        written = ", ".join([f"{self.slots[i]} {self.slots[i].type}" for i in step.writes])
        within = f" in {self._named(step.scratch)}" if step.scratch else ""
        return f"{written} = {step.kernel[:_SHOWN]}({self._named(step.reads)}){within}"

    def _named(self, slots: Sequence[int]) -> str:
        return ", ".join([str(self.slots[i]) for i in slots])


def from_json(data: Mapping[str, Any]) -> NativePlan:
    """Return the plan of this data, which `verifier.memory` has still to check.

    Raises:
        InputError: the data is not that of a plan.
    """
    with typed("the data is not a native plan"):
        slots = [PlanSlot(s["kind"], s["at"], TensorType(tuple(s["shape"]), s["dtype"])) for s in data["slots"]]
        steps = [
            PlanStep(s["kernel"], *[tuple(s[part]) for part in ("reads", "writes", "scratch")]) for s in data["steps"]
        ]
        return NativePlan(tuple(slots), tuple(steps), data["arena_bytes"])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
