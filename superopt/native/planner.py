"""Offsets in the arena: values that are never live together may lie at the same bytes.

The largest value is placed first.  Each one takes the smallest gap that holds it between those placed before that are
live together with it, or the bytes behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNED_BYTES = 64  # a line of the cache, and the widest vector register


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The bytes of a value, and the first and the last step that use it."""

    size_bytes: int
    first: int
    last: int

    @property
    def room_bytes(self) -> int:
        """The bytes up to where the next value may begin."""
        return max(-(-self.size_bytes // ALIGNED_BYTES), 1) * ALIGNED_BYTES

    def meets(self, other: Lifetime) -> bool:
        """Whether some step needs both."""
        return self.first <= other.last and other.first <= self.last


def offsets(lives: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each value in the arena, and the bytes of the arena."""
    placed: dict[int, int] = {}
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].room_bytes, lives[i].first)):
        life = lives[i]
        taken = sorted((at, at + lives[j].room_bytes) for j, at in placed.items() if lives[j].meets(life))
        gaps: list[tuple[int, int]] = []
        end = 0
        for begin, behind in taken:
            if begin - end >= life.room_bytes:
                gaps.append((begin - end, end))
            end = max(end, behind)
        placed[i] = min(gaps)[1] if gaps else end
    return [placed[i] for i in range(len(lives))], max(
        [at + lives[i].room_bytes for i, at in placed.items()], default=0
    )


def largest_live_bytes(lives: Sequence[Lifetime]) -> int:
    """Return the bytes of the values that the step with most of them needs: no arena is smaller."""
    steps = {life.first for life in lives}
    return max([sum([x.room_bytes for x in lives if x.first <= t <= x.last]) for t in steps], default=0)
