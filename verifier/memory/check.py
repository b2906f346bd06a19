"""Check of a static plan: every read finds the value that it names, and nothing else is written.

The plan is plain data, as a file holds it, and may be damaged or hostile.  Nothing is taken over from what made it:
lifetimes are read off the steps alone.  A plan without faults satisfies, at every step of every trip:

- A value that is read is an argument, a weight, or was written by an earlier step.  A carry is what the trip before has
  written, and nothing has been written over it since.  The result of a choice is what one of its branches has
  written or was given.
- A value is written by one step.  It lies in the arena or is an output; all outputs are written.  Rows that trips write
  are all bytes of their stack.
- Values in the arena that the step uses, or that are written before and read behind it, share no byte.  What a loop
  uses of the values outside of it, or hands on from trip to trip, lives as long as the loop.
- They begin at multiples of 64 bytes and lie within the arena.  Views begin at an element and lie within their slot.
- They have as many bytes as the buffers of the kernel, which are those of the code that runs.

A step that reads another value than the program does is no fault here: the plan does not say what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from superopt.ir.types import ITEMSIZE_BYTES

KernelBuffers = Mapping[str, Sequence[tuple[str, int]]]
"""Digest of a kernel -> scope and bytes of its buffers, in the order of its pointers."""
_COPY = "copy"
_ALIGNED_BYTES = 64
_DEEPEST = 16  # loops in loops
_GIVEN, _WRITTEN, _MOVING = ("argument", "weight"), ("arena", "output"), "moving"
_ROLE = {"input": "reads", "frozen": "reads", "output": "writes", "scratch": "scratch"}
_PARTS = ("reads", "writes", "scratch")
_INDEX_BYTES = (1, 4)  # of a truth value, of an int32
_CHOICE = ("slots", "branches")
_KINDS = {"kernel": "call", "view": "view", "choice": "choice"}
_PlanStep = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _SlotBytes:
    """A slot: its kind, its position or offset, its bytes, and those of an element."""

    kind: str
    at: int
    size: int
    item: int

    def meets(self, other: _SlotBytes) -> bool:
        """Whether two slots share a byte of the arena."""
        inside = self.kind == other.kind == "arena"
        return inside and self.at < other.at + other.size and other.at < self.at + self.size


def faults(plan: Any, buffers: KernelBuffers) -> list[str]:
    """Return the faults of a plan, a sentence each; empty where it may run.

    Args:
        plan: the plan as plain data.
        buffers: those of the code of its kernels.
    """
    misshapen = list(_misshapen(plan))
    if misshapen:
        return misshapen
    slots = {
        i: _SlotBytes(s["kind"], s["at"], s["bytes"], ITEMSIZE_BYTES[s["dtype"]]) for i, s in enumerate(plan["slots"])
    }
    steps: list[_PlanStep] = plan["steps"]
    return [
        *_of_slots(slots, plan["arena_bytes"]),
        *(x for step in _every(steps) if _kind(step) == "call" for x in _of_kernel(step, slots, buffers)),
        *_WriteOrder(slots, steps).faults,
        *_of_overlaps(slots, steps),
    ]


# ---- the shape of the data


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
        if _get(slot, "kind") not in (*_GIVEN, *_WRITTEN, _MOVING) or not _is_count(_get(slot, "at")):
            yield f"slot {number} has no place"
        elif type(shape) is not list or not all(map(_is_count, shape)):
            yield f"slot {number} has no shape"
        elif not isinstance(dtype, str) or dtype not in ITEMSIZE_BYTES:
            yield f"slot {number} has no dtype"
        elif not _is_count(_get(slot, "bytes")) or slot["bytes"] != math.prod(shape) * ITEMSIZE_BYTES[dtype]:
            yield f"slot {number} has not the bytes of its shape"
    yield from _misshapen_steps(cast("list[Any]", plan["steps"]), len(slots), 0)


def _misshapen_steps(steps: Sequence[Any], count: int, depth: int) -> Iterator[str]:
    """Yield what is no step among those of a plan or of a loop in it; `count`: the number of slots."""
    for number, step in enumerate(steps):
        if _kind(step) == "call":
            lists = [_get(step, part) for part in _PARTS]
            yield from _misused(number, [i for x in lists if isinstance(x, list) for i in cast("list[Any]", x)], count)
            if not isinstance(_get(step, "kernel"), str) or not all(isinstance(x, list) for x in lists):
                yield f"step {number} is no call"
        elif _kind(step) == "view":
            yield from _misused(number, [_get(step, "view"), _get(step, "of")], count)
            if not all(type(_get(step, key)) is int for key in ("at", "stride")):
                yield f"step {number} is no view"
        elif _kind(step) == "choice":
            yield from _misshapen_choice(number, step, count, depth)
        else:
            bodies = [_get(step, key) for key in ("condition", "steps")]
            carries: Any = _get(step, "carries")
            listed = all(isinstance(x, list) for x in (*bodies, carries))
            if depth == _DEEPEST or not listed or not _is_count(_get(step, "trips")):
                yield f"step {number} is no call"
                continue
            used = [_get(step, "goes_on"), *(_get(c, key) for c in carries for key in ("slot", "first", "next"))]
            turns = [cast("list[Any]", x) for c in carries if isinstance(x := _get(c, "turns"), list)]
            yield from _misused(number, [*used, *(i for x in turns for i in x)], count)
            if len(turns) != len(carries) or not all(len(x) in (0, 2) for x in turns):
                yield f"step {number} has a carry without turns"
            for body in bodies:
                yield from _misshapen_steps(cast("list[Any]", body), count, depth + 1)


def _misshapen_choice(number: int, step: Any, count: int, depth: int) -> Iterator[str]:
    """Yield what is no choice, or no step in its branches."""
    slots, listed = [cast("list[Any]", x) if isinstance(x := _get(step, key), list) else None for key in _CHOICE]
    branches = listed or []
    lists = [_get(x, key) for x in branches for key in ("steps", "results")]
    if depth == _DEEPEST or slots is None or not branches or not all(isinstance(x, list) for x in lists):
        yield f"step {number} is no choice"
        return
    results = [cast("list[Any]", x["results"]) for x in branches]
    yield from _misused(number, [step["choice"], *slots, *(i for x in results for i in x)], count)
    if not all(len(x) == len(slots) for x in results):
        yield f"step {number} has branches of other results"
    for branch in branches:
        yield from _misshapen_steps(branch["steps"], count, depth + 1)


def _misused(number: int, slots: Sequence[Any], count: int) -> Iterator[str]:
    if not all(_is_count(i) and i < count for i in slots):
        yield f"step {number} uses slots that do not exist"


def _kind(step: Any) -> str:
    """Return what a step is: a call, which may be a copy, a view, a choice or a loop."""
    return next((kind for key, kind in _KINDS.items() if _has(step, key)), "loop")


def _has(data: Any, key: str) -> bool:
    return isinstance(data, dict) and key in data


def _get(data: Any, key: str) -> Any:
    return cast("dict[str, Any]", data).get(key) if isinstance(data, dict) else None


def _is_count(x: Any) -> bool:
    return type(x) is int and 0 <= x < 1 << 62


# ---- slots and kernels


def _of_slots(slots: Mapping[int, _SlotBytes], arena_bytes: int) -> Iterator[str]:
    """Yield slots outside of the arena, misaligned ones, and positions that are missing or taken twice."""
    for number, slot in slots.items():
        if slot.kind == "arena" and slot.at % _ALIGNED_BYTES:
            yield f"slot {number} begins at {slot.at}, which is no multiple of {_ALIGNED_BYTES}"
        if slot.kind == "arena" and slot.at + slot.size > arena_bytes:
            yield f"slot {number} ends at {slot.at + slot.size}, behind the arena of {arena_bytes} bytes"
    for kind in (*_GIVEN, "output"):
        positions = sorted([slot.at for slot in slots.values() if slot.kind == kind])
        if positions != list(range(len(positions))):
            yield f"the positions of {kind}s are {positions}"


def _every(steps: Sequence[_PlanStep]) -> Iterator[_PlanStep]:
    """Yield steps, and behind each loop and choice those in it."""
    for step in steps:
        yield step
        if _kind(step) == "loop":
            yield from _every([*step["condition"], *step["steps"]])
        for branch in step["branches"] if _kind(step) == "choice" else ():
            yield from _every(branch["steps"])


def _of_kernel(step: _PlanStep, slots: Mapping[int, _SlotBytes], buffers: KernelBuffers) -> Iterator[str]:
    """Yield how the slots of a call differ from the buffers of its kernel."""
    used, kernel = [(part, slots[i].size) for part in _PARTS for i in step[part]], step["kernel"]
    if kernel == _COPY:
        if [part for part, _ in used] != ["reads", "writes"] or used[0][1] != used[1][1]:
            yield "a step copies between slots of different sizes, or not from one to one"
    elif kernel not in buffers:
        yield "a step calls an unknown kernel"
    else:
        wanted = [(_ROLE.get(scope, scope), size) for scope, size in buffers[kernel]]
        if used != wanted:
            yield f"a step passes {used} to a kernel of {wanted}"


# ---- the order of reads and writes


def _meanings(steps: Sequence[_PlanStep]) -> dict[int, tuple[int, ...]]:
    """Return the slots that each moving slot may be."""
    meant: dict[int, tuple[int, ...]] = {}
    for step in _every(steps):
        if _kind(step) == "view":
            meant[step["view"]] = (step["of"],)
        for i, slot in enumerate(step["slots"] if _kind(step) == "choice" else ()):
            meant[slot] = tuple([branch["results"][i] for branch in step["branches"]])
        for c in step["carries"] if _kind(step) == "loop" else ():
            meant[c["slot"]] = (c["first"], c["next"])
            if c["turns"]:
                meant[c["next"]] = tuple(c["turns"])
    return meant


def _below(slot: int, meant: Mapping[int, tuple[int, ...]]) -> set[int]:
    """Return a slot and all that it may be."""
    seen, waiting = set[int](), [slot]
    while waiting:
        i = waiting.pop()
        if i not in seen:
            seen.add(i)
            waiting += meant.get(i, ())
    return seen


class _WriteOrder:
    """The steps followed once, each loop in a state that holds at the beginning of all of its trips.

    A token stands for bytes: a slot for its own, `~slot` for those that a carry has in a trip which writes elsewhere.

    Attributes:
        known: slot that may be read here -> tokens of the bytes that it may be.
        written: slots that a step or a loop has written.
        placed: moving slots that have a place somewhere.
        targets: moving slots that may be written here.
        scratch: slots that were scratch.
    """

    def __init__(self, slots: Mapping[int, _SlotBytes], steps: Sequence[_PlanStep]) -> None:
        self.slots, self.meant = slots, _meanings(steps)
        self.known = {i: {i} for i, x in slots.items() if x.kind in _GIVEN}
        self.written, self.placed, self.targets, self.scratch = set[int](), set[int](), set[int](), set[int]()
        self.faults: list[str] = []
        self.walk(steps, 0, "")
        missing = [x.at for i, x in slots.items() if x.kind == "output" and i not in self.known]
        self.faults += [f"output {at} is not written" for at in missing]

    def walk(self, steps: Sequence[_PlanStep], trips: int, around: str) -> None:
        """Follow steps; `trips`: of the loop around them, 0 where there is none or it has no number."""
        for number, step in enumerate(steps):
            name = f"step {around}{number}"
            if _kind(step) == "call":
                self._call(name, step)
            elif _kind(step) == "view":
                self._view(name, step, trips)
            elif _kind(step) == "choice":
                self._choice(name, step, f"{around}{number}.")
            else:
                self._loop(name, step, f"{around}{number}.")

    def _fault_if(self, wrong: bool, fault: str) -> None:
        if wrong:
            self.faults.append(fault)

    def _read(self, name: str, slot: int) -> set[int]:
        """Return the tokens of a slot that is read."""
        self._fault_if(slot not in self.known, f"{name} reads slot {slot}, which is not written")
        return self.known.get(slot, set())

    def _call(self, name: str, step: _PlanStep) -> None:
        reads = [(i, self._read(name, i)) for i in step["reads"]]
        fresh = [*step["writes"], *step["scratch"]]
        for position, i in enumerate(fresh):
            self._fault_if(i in fresh[:position], f"{name} writes slot {i} over slot {i}")
        for i in step["scratch"]:
            self._fault_if(self.slots[i].kind != "arena", f"{name} has slot {i} as scratch, which is not in the arena")
            self._fault_if(i in self.written, f"{name} writes slot {i}, which something else writes")
            self.scratch.add(i)
        for i in step["writes"]:
            over = self._write(name, i)
            for j, tokens in reads:
                self._fault_if(bool(tokens & over), f"{name} writes slot {i} over slot {j}")
            self._forget(over)
            self.known[i] = {i}

    def _write(self, name: str, slot: int) -> set[int]:
        """Mark a slot as written, which nothing else may write; return the tokens that are overwritten."""
        self._fault_if(not self._may_be_written(slot), f"{name} writes slot {slot}, which is given")
        again = slot in self.written or slot in self.scratch
        self._fault_if(again, f"{name} writes slot {slot}, which something else writes")
        self.written.add(slot)
        return _below(slot, self.meant)

    def _may_be_written(self, slot: int) -> bool:
        return self.slots[slot].kind in _WRITTEN or slot in self.targets

    def _forget(self, over: Set[int]) -> None:
        """Forget what lies in bytes that are overwritten."""
        self.known = {i: tokens for i, tokens in self.known.items() if not tokens & over}

    def _place(self, name: str, slot: int) -> None:
        """Give a moving slot its place."""
        fixed = self.slots[slot].kind != _MOVING or slot in self.placed
        self._fault_if(fixed, f"{name} moves slot {slot}, which has a place")
        self.placed.add(slot)

    def _view(self, name: str, step: _PlanStep, trips: int) -> None:
        slot, of, at, stride = step["view"], step["of"], step["at"], step["stride"]
        self._place(name, slot)
        size, whole, last = self.slots[slot].size, self.slots[of].size, at + stride * max(trips - 1, 0)
        outside = min(at, last) < 0 or max(at, last) + size > whole or bool(stride and not trips)
        self._fault_if(outside, f"{name} places slot {slot} outside of slot {of}")
        item = self.slots[slot].item
        between = item != self.slots[of].item or at % item or stride % item
        self._fault_if(bool(between), f"{name} places slot {slot} between elements of slot {of}")
        if of in self.known:
            self.known[slot] = self.known[of]
            return
        self._fault_if(
            abs(stride) != size or size * trips != whole,
            f"{name} places slot {slot} in slot {of}, which is not written",
        )
        self._write(name, of)
        self.targets.add(slot)

    def _loop(self, name: str, loop: _PlanStep, around: str) -> None:
        trips, condition, steps = loop["trips"], loop["condition"], loop["steps"]
        self._fault_if(bool(trips) == bool(condition), f"{name} has trips and a condition, or none of them")
        carried = {c["slot"]: self._begin(name, c) for c in loop["carries"]}
        over = {i for slot in _written_in(loop) for i in _below(slot, self.meant)}
        outside = {i: tokens for i, tokens in self.known.items() if not tokens & over}
        targets = set(self.targets)
        self.known = {**outside, **carried}
        self.walk(condition, 0, f"{around}if.")
        if condition:
            spoilt = not carried.keys() <= self.known.keys()
            self._fault_if(spoilt, f"{name} writes over a carry before it is asked whether there is a trip")
            self._read(name, loop["goes_on"])
            self._fault_if(self.slots[loop["goes_on"]].size != 1, f"{name} ends by what is no truth value")
        self.walk(steps, trips, around)
        rows = {x["view"]: x["of"] for x in steps if _kind(x) == "view" and x["view"] in self.targets - targets}
        finished = [of for row, of in rows.items() if trips and row in self.known]
        for row, of in rows.items():
            self._fault_if(row not in self.known, f"{name} does not write all of slot {of}")
        for c in loop["carries"]:
            following, turns = c["next"], c["turns"]
            handed = following in self.known and following not in outside
            own = bool(turns) or following in rows or ~c["slot"] not in carried[c["slot"]]
            self._fault_if(not (handed and own), f"{name} hands on slot {following}, which no trip writes")
            if trips and following not in rows:
                finished.append(turns[1 - trips % 2] if turns else following)
        self.targets = targets
        self.known = {**outside, **carried, **{i: {i} for i in finished}}

    def _choice(self, name: str, choice: _PlanStep, around: str) -> None:
        self._read(name, choice["choice"])
        self._fault_if(self.slots[choice["choice"]].size not in _INDEX_BYTES, f"{name} chooses by what is no number")
        before, tokens_of, targets = dict(self.known), [set[int]() for _ in choice["slots"]], set(self.targets)
        for number, branch in enumerate(choice["branches"]):
            self.known = dict(before)
            self.walk(branch["steps"], 0, f"{around}{number}.")
            for i, result, tokens in zip(choice["slots"], branch["results"], tokens_of, strict=True):
                tokens |= self._read(f"{name}, branch {number},", result)
                other = self.slots[i].size != self.slots[result].size
                self._fault_if(other, f"{name} gives slot {result} as slot {i} of another size")
        over = {i for slot in _written_in(choice) for i in _below(slot, self.meant)}
        self.targets, self.known = targets, {i: tokens for i, tokens in before.items() if not tokens & over}
        for i, tokens in zip(choice["slots"], tokens_of, strict=True):
            self._place(name, i)
            self.known[i] = tokens

    def _begin(self, name: str, carry: Mapping[str, Any]) -> set[int]:
        """Place a carry, and return the tokens of the bytes that it may be when a trip begins."""
        slot, following, turns = carry["slot"], carry["next"], carry["turns"]
        tokens, apart = self._read(name, carry["first"]), bool(turns) or not self._may_be_written(following)
        self._place(name, slot)
        if turns:
            self._place(name, following)
            for i in turns:
                self._write(name, i)
            self.targets.add(following)
        sizes = {self.slots[i].size for i in (slot, carry["first"], following, *turns)}
        self._fault_if(len(sizes) > 1, f"{name} carries slot {slot} through slots of different sizes")
        return tokens | {~slot if apart else following}


def _written_in(around: _PlanStep) -> Iterator[int]:
    """Yield the slots that a loop or a choice writes."""
    for step in _every((around,)):
        if _kind(step) == "call":
            yield from step["writes"]
        if _kind(step) == "loop":
            yield from (i for c in step["carries"] for i in c["turns"])


# ---- bytes that are shared


def _of_overlaps(slots: Mapping[int, _SlotBytes], steps: Sequence[_PlanStep]) -> Iterator[str]:
    """Yield values that share bytes while both are needed."""
    uses = _LoopUses(_meanings(steps))
    uses.collect(steps, ())
    lives = sorted([(*uses.extent(i), i) for i in uses.of if slots[i].kind == "arena"])
    live: list[tuple[int, int]] = []
    for begin, end, i in lives:
        live = [(until, j) for until, j in live if until >= begin]
        yield from (f"step {begin} of all writes slot {i} over slot {j}" for _, j in live if slots[i].meets(slots[j]))
        live.append((end, i))


@dataclass(slots=True)
class _LoopUses:
    """Where slots are used: all steps numbered as they stand, and the loops around each use.

    Attributes:
        meant: the slots that each moving slot may be.
        of: slot -> its uses.
        loops: the first and the last number of each loop.
    """

    meant: Mapping[int, tuple[int, ...]]
    of: dict[int, list[tuple[int, tuple[int, ...]]]] = field(
        default_factory=dict[int, "list[tuple[int, tuple[int, ...]]]"]
    )
    loops: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    number: int = 0

    def collect(self, steps: Sequence[_PlanStep], around: tuple[int, ...]) -> None:
        """Number steps that stand in these loops, and note what they use."""
        for step in steps:
            self.number += 1
            if _kind(step) == "call":
                self._note([i for part in _PARTS for i in step[part]], self.number, around)
            elif _kind(step) == "view":
                self._note([step["of"]], self.number, around)
            elif _kind(step) == "choice":
                self._note([step["choice"]], self.number, around)
                for branch in step["branches"]:
                    self.collect(branch["steps"], around)
                self.number += 1
                self._note(step["slots"], self.number, around)
            else:
                self._loop(step, around)

    def _loop(self, step: _PlanStep, around: tuple[int, ...]) -> None:
        begin, inside = self.number, (*around, len(self.loops))
        self.loops.append((begin, begin))
        self.collect(step["condition"], inside)
        self.collect(step["steps"], inside)
        self.number += 1
        self.loops[inside[-1]] = (begin, self.number)
        handed = [i for c in step["carries"] for i in (c["slot"], c["first"], c["next"], *c["turns"])]
        handed += [x["of"] for x in step["steps"] if _kind(x) == "view" and x["stride"]]  # other bytes in each trip
        for number in (begin, self.number):
            self._note([*handed, step["goes_on"]] if step["condition"] else handed, number, around)

    def _note(self, used: Sequence[int], number: int, around: tuple[int, ...]) -> None:
        for i in {i for slot in used for i in _below(slot, self.meant)}:
            self.of.setdefault(i, []).append((number, around))

    def extent(self, slot: int) -> tuple[int, int]:
        """Return from where to where a slot is needed: over the loops around some of its uses alone."""
        common = set[int].intersection(*[set(around) for _, around in self.of[slot]])
        ends: list[int] = []
        for number, around in self.of[slot]:
            apart = [self.loops[loop] for loop in around if loop not in common]
            ends += apart[0] if apart else (number, number)
        return min(ends), max(ends)
