"""Deadlines: parts of one never end after it, whatever is shared, reserved and bounded in which order."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from superopt.machine.deadline import Deadline, now_s

SECONDS, PARTS = st.floats(0.0, 1e4), st.floats(0.0, 1.0)
NARROWER: st.SearchStrategy[Callable[[Deadline], Deadline]] = st.one_of(
    st.builds(lambda part, s: lambda d: d.share(part, s), PARTS, SECONDS),
    st.builds(lambda s: lambda d: d.reserve(s), SECONDS),
    st.builds(lambda s: lambda d: d.at_most(s), SECONDS),
)


@given(SECONDS, st.lists(NARROWER, max_size=6))
def test_parts_end_within_the_whole(seconds: float, steps: list[Callable[[Deadline], Deadline]]) -> None:
    whole = part = Deadline.within(seconds, steps=7)
    for step in steps:
        part = step(part)
        # what is over is given a moment, so that a stage can say so
        assert part.end_s <= max(whole.end_s + 1e-6, now_s() + part.floor_s)
    assert part.steps == 7
    assert 0.0 <= part.left_s <= max(seconds, part.floor_s)


@given(SECONDS, PARTS, SECONDS)
def test_a_share_leaves_what_is_reserved(seconds: float, part: float, reserve_s: float) -> None:
    begin_s = now_s()
    share = Deadline(begin_s + seconds).share(part, reserve_s)
    took_s = now_s() - begin_s
    assert share.end_s - begin_s <= part * max(0.0, seconds - reserve_s) + took_s + 1e-6
    assert share.end_s >= begin_s


@given(SECONDS, SECONDS)
def test_bounds_are_on_their_side(seconds: float, bound_s: float) -> None:
    deadline, begin_s = Deadline.within(seconds), now_s()
    assert deadline.at_least(bound_s).end_s >= max(deadline.end_s, begin_s + bound_s)
    assert deadline.at_most(bound_s).end_s <= deadline.end_s
    assert deadline.at_most(bound_s).end_s <= now_s() + bound_s
    assert deadline.or_within(bound_s) == deadline


@given(SECONDS, PARTS)
def test_without_a_clock_only_bounds_end_the_work(seconds: float, part: float) -> None:
    free = Deadline(steps=3)
    assert not free.is_timed
    assert not free.is_over
    assert free.left_s == math.inf
    assert free.share(part, seconds) == free.reserve(seconds) == free
    assert free.or_within(seconds).is_timed
    assert Deadline.within(0.0).is_over
