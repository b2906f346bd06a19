"""Check of a static plan: every read finds the value that it names, and nothing else is written.

The plan is plain data, as a file holds it, and may be damaged or hostile.  Nothing is taken over from what made it:
lifetimes are read off the steps alone.  A plan without faults satisfies, at every step:

- A value that is read is an argument, a weight, or was written by an earlier step.
- A value is written by one step.  It lies in the arena or is an output; all outputs are written.
- Values in the arena that the step uses, or that are written before and read behind it, share no byte.
- They begin at multiples of 64 bytes and lie within the arena.
- They have as many bytes as the buffers of the kernel, which are those of the code that runs.

A step that reads another value than the program does is no fault here: the plan does not say what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from superopt.ir.types import ITEMSIZE_BYTES

KernelBuffers = Mapping[str, Sequence[tuple[str, int]]]
"""Digest of a kernel -> scope and bytes of its buffers, in the order of its pointers."""
_COPY = "copy"
_ALIGNED_BYTES = 64
_GIVEN, _WRITTEN = ("argument", "weight"), ("arena", "output")
_ROLE = {"input": "reads", "frozen": "reads", "output": "writes", "scratch": "scratch"}
_PARTS = ("reads", "writes", "scratch")


@dataclass(frozen=True, slots=True)
class _SlotBytes:
    """A slot: its kind, its position or offset, and its bytes."""

    kind: str
    at: int
    size: int

    def meets(self, other: _SlotBytes) -> bool:
        """Whether two slots share a byte of the arena."""
        inside = self.kind == other.kind == "arena"
        return inside and self.at < other.at + other.size and other.at < self.at + self.size


_Uses = Mapping[str, Sequence[int]]


def faults(plan: Any, buffers: KernelBuffers) -> list[str]:
    """Return the faults of a plan, a sentence each; empty where it may run.

    Args:
        plan: the plan as plain data.
        buffers: those of the code of its kernels.
    """
    misshapen = list(_misshapen(plan))
    if misshapen:
        return misshapen
    slots = [_SlotBytes(s["kind"], s["at"], s["bytes"]) for s in plan["slots"]]
    steps: list[Mapping[str, Any]] = plan["steps"]
    return [
        *_of_slots(slots, plan["arena_bytes"]),
        *(x for number, step in enumerate(steps) for x in _of_kernel(number, step["kernel"], step, slots, buffers)),
        *_of_order(slots, steps),
        *_of_overlaps(slots, steps),
    ]


def _misshapen(plan: Any) -> Iterator[str]:
    """Yield what is no plan at all."""
    if not isinstance(plan, dict) or not all(isinstance(_get(plan, key), list) for key in ("slots", "steps")):
        yield "the plan has no lists of slots and steps"
        return
    if not _is_count(_get(plan, "arena_bytes")):
        yield "the bytes of the arena are no count"
    slots = cast("list[Any]", plan["slots"])
    for number, slot in enumerate(slots):
        shape, dtype = cast("list[Any]", _get(slot, "shape")), _get(slot, "dtype")
        if _get(slot, "kind") not in (*_GIVEN, *_WRITTEN) or not _is_count(_get(slot, "at")):
            yield f"slot {number} has no place"
        elif type(shape) is not list or not all(map(_is_count, shape)):
            yield f"slot {number} has no shape"
        elif not isinstance(dtype, str) or dtype not in ITEMSIZE_BYTES:
            yield f"slot {number} has no dtype"
        elif not _is_count(_get(slot, "bytes")) or slot["bytes"] != math.prod(shape) * ITEMSIZE_BYTES[dtype]:
            yield f"slot {number} has not the bytes of its shape"
    for number, step in enumerate(cast("list[Any]", plan["steps"])):
        lists = [_get(step, part) for part in _PARTS]
        if not isinstance(_get(step, "kernel"), str) or not all(isinstance(x, list) for x in lists):
            yield f"step {number} is no call"
        elif not all(_is_count(i) and i < len(slots) for x in lists for i in cast("list[Any]", x)):
            yield f"step {number} uses slots that do not exist"


def _get(data: Any, key: str) -> Any:
    return cast("dict[str, Any]", data).get(key) if isinstance(data, dict) else None


def _is_count(x: Any) -> bool:
    return type(x) is int and 0 <= x < 1 << 62


def _of_slots(slots: Sequence[_SlotBytes], arena_bytes: int) -> Iterator[str]:
    """Yield slots outside of the arena, misaligned ones, and positions that are missing or taken twice."""
    for number, slot in enumerate(slots):
        if slot.kind == "arena" and slot.at % _ALIGNED_BYTES:
            yield f"slot {number} begins at {slot.at}, which is no multiple of {_ALIGNED_BYTES}"
        if slot.kind == "arena" and slot.at + slot.size > arena_bytes:
            yield f"slot {number} ends at {slot.at + slot.size}, behind the arena of {arena_bytes} bytes"
    for kind in (*_GIVEN, "output"):
        positions = sorted([slot.at for slot in slots if slot.kind == kind])
        if positions != list(range(len(positions))):
            yield f"the positions of {kind}s are {positions}"


def _of_kernel(
    number: int, kernel: str, uses: _Uses, slots: Sequence[_SlotBytes], buffers: KernelBuffers
) -> Iterator[str]:
    """Yield how the slots of a step differ from the buffers of its kernel."""
    used = [(part, slots[i].size) for part in _PARTS for i in uses[part]]
    if kernel == _COPY:
        if [part for part, _ in used] != ["reads", "writes"] or used[0][1] != used[1][1]:
            yield f"step {number} copies between slots of different sizes, or not from one to one"
    elif kernel not in buffers:
        yield f"step {number} calls an unknown kernel"
    else:
        wanted = [(_ROLE.get(scope, scope), size) for scope, size in buffers[kernel]]
        if used != wanted:
            yield f"step {number} passes {used} to a kernel of {wanted}"


def _of_order(slots: Sequence[_SlotBytes], steps: Sequence[_Uses]) -> Iterator[str]:
    """Yield reads of what is not written yet, second writes, writes to what is given, and outputs without a write."""
    written: set[int] = set()
    scratch = {i for step in steps for i in step["scratch"]}
    for number, step in enumerate(steps):
        for i in step["reads"]:
            if slots[i].kind not in _GIVEN and i not in written:
                yield f"step {number} reads slot {i}, which is not written"
        for i in step["writes"]:
            if slots[i].kind not in _WRITTEN:
                yield f"step {number} writes slot {i}, which is given"
            if i in written or i in scratch:
                yield f"step {number} writes slot {i}, which something else writes"
            written.add(i)
        for i in step["scratch"]:
            if slots[i].kind != "arena":
                yield f"step {number} has slot {i} as scratch, which is not in the arena"
    yield from (f"output {x.at} is not written" for i, x in enumerate(slots) if x.kind == "output" and i not in written)


def _of_overlaps(slots: Sequence[_SlotBytes], steps: Sequence[_Uses]) -> Iterator[str]:
    """Yield values that share bytes while both are needed: each is from its write to its last read."""
    last = {i: number for number, step in enumerate(steps) for part in _PARTS for i in step[part]}
    live: set[int] = set()
    for number, step in enumerate(steps):
        fresh = [*step["writes"], *step["scratch"]]
        held = {*live, *step["reads"]}
        for position, i in enumerate(fresh):
            for j in (*held, *fresh[:position]):
                if i == j or slots[i].meets(slots[j]):
                    yield f"step {number} writes slot {i} over slot {j}"
        live = {i for i in (*held, *step["writes"]) if last[i] > number and slots[i].kind == "arena"}
