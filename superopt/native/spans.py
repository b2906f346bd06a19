"""Lifetimes of the slots of a plan: the first and the last step that need their bytes.

Steps are numbered as they are written, those of a loop between its beginning and its end.  What only the steps of one
trip use lives from its first to its last use there.  Anything else that a loop uses lives as long as the loop: the next
trip needs it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from superopt.native.plan import AnyStep, PlanChoice, PlanLoop, PlanSlot, PlanStep, PlanView
from superopt.native.planner import Lifetime

_Extent = tuple[int, int]
"""The number of a step twice, or the first and the last number of a loop."""
_Use = tuple[_Extent, ...]
"""The loops around a use, and the step; the loop itself last where it uses a slot."""


def spans(slots: Sequence[PlanSlot], steps: Sequence[AnyStep]) -> dict[int, Lifetime]:
    """Return the lifetimes of the slots that steps use."""
    numbered = _Numbered()
    numbered.walk(steps, ())
    uses: dict[int, list[_Use]] = {}
    for slot, use in numbered.uses:
        for i in numbered.meant(slot):
            uses.setdefault(i, []).append(use)
    return {i: Lifetime(slots[i].size_bytes, *_extent(used)) for i, used in uses.items()}


def _extent(uses: Sequence[_Use]) -> _Extent:
    """Return the first and the last number of the outermost loops, or steps, in which uses differ."""
    depth = 0
    while all(len(use) > depth + 1 for use in uses) and len({use[depth] for use in uses}) == 1:
        depth += 1
    return min(use[depth][0] for use in uses), max(use[depth][1] for use in uses)


@dataclass(slots=True)
class _Numbered:
    """The uses of the slots of a plan while its steps are numbered.

    Attributes:
        uses: slots with the loops around a use, and the step.
        lies: moving slot -> the slots that it may be.
        count: the number of the next step.
    """

    uses: list[tuple[int, _Use]] = field(default_factory=list[tuple[int, "_Use"]])
    lies: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    count: int = 0

    def walk(self, steps: Sequence[AnyStep], around: _Use) -> None:
        """Number steps that stand in these loops."""
        for step in steps:
            here = (*around, (self.count, self.count))
            match step:
                case PlanStep():
                    self.uses += [(i, here) for i in step.slots]
                case PlanView():
                    self.lies[step.slot] = (step.of,)
                    self.uses.append((step.of, around if step.stride else here))
                case PlanLoop():
                    self._loop(step, around)
                case PlanChoice():
                    self._choice(step, around)
            self.count += 1

    def _loop(self, loop: PlanLoop, around: _Use) -> None:
        whole = (*around, (self.count, self.count + _length(loop.condition) + _length(loop.steps)))
        for c in loop.carries:
            self.lies[c.slot] = (c.first, c.next)
            if c.turns:
                self.lies[c.next] = c.turns
        self.uses += [(i, whole) for c in loop.carries for i in (c.slot, *c.turns)]
        self.walk(loop.condition, whole)
        self.uses += [(loop.goes_on, whole)] if loop.condition else []
        self.walk(loop.steps, whole)

    def _choice(self, choice: PlanChoice, around: _Use) -> None:
        self.uses.append((choice.index, (*around, (self.count, self.count))))
        for branch in choice.branches:
            self.walk(branch.steps, around)
        for number, slot in enumerate(choice.slots):
            self.lies[slot] = tuple([branch.results[number] for branch in choice.branches])
            self.uses.append((slot, (*around, (self.count, self.count))))

    def meant(self, slot: int) -> Iterator[int]:
        """Yield the slots in the arena, or from outside, that a slot may be."""
        if slot not in self.lies:
            yield slot
        for i in self.lies.get(slot, ()):
            yield from self.meant(i)


def _length(steps: Sequence[AnyStep]) -> int:
    """Return how many numbers steps take: a loop and a choice one for their end."""
    inner: list[AnyStep] = []
    for step in steps:
        match step:
            case PlanLoop():
                inner += (*step.condition, *step.steps)
            case PlanChoice():
                inner += [x for branch in step.branches for x in branch.steps]
            case _:
                pass
    return len(steps) + (_length(inner) if inner else 0)
