"""The plan of a search: how its time and steps are shared out, and when a share and the whole are used up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.errors import InputError
from superopt.machine.deadline import Deadline
from superopt.search.meter import Meter

Share = tuple[float, int | None]
STEPS = st.integers(1, 10_000)
SHARES = st.tuples(st.floats(0.0, 1.0), st.none() | STEPS)


@given(STEPS, st.lists(SHARES, max_size=4), st.lists(st.integers(0, 500), max_size=20))
def test_steps_count_in_every_share_around(
    most: int, shares: list[tuple[float, int | None]], counts: list[int]
) -> None:
    meters = [Meter(Deadline(steps=most))]
    for fraction, steps in shares:
        meters.append(meters[-1].share(fraction, steps))
    for outer, inner, (_, steps) in zip(meters, meters[1:], shares, strict=False):
        assert inner.most is not None
        assert outer.most is not None
        assert 1 <= inner.most <= max(1, outer.most)
        assert steps is None or inner.most <= steps
    for count in counts:
        meters[-1].step(count)
    assert {meter.steps for meter in meters} == {sum(counts)}
    for number, meter in enumerate(meters):
        assert meter.exhausted() == any(sum(counts) >= (m.most or 0) for m in meters[: number + 1])


@given(STEPS, st.floats(0.0, 1.0))
def test_a_share_that_is_used_up_leaves_the_rest(most: int, fraction: float) -> None:
    whole = Meter(Deadline(steps=most))
    share = whole.share(fraction)
    while not share.exhausted():
        share.step()
    assert whole.steps == share.most == max(1, int(most * fraction))
    assert whole.exhausted() == (whole.steps >= most)


@given(st.floats(0.0, 1e4), st.floats(0.0, 1.0))
def test_parts_of_time_end_within_the_whole(seconds: float, fraction: float) -> None:
    meter = Meter(Deadline.within(seconds))
    assert meter.seconds is not None
    assert meter.part(fraction).left_s <= max(1e-3, fraction * meter.seconds)
    assert meter.rest.left_s <= meter.seconds
    assert meter.part(fraction, 5).steps == 5


@given(st.integers(-5, 0))
def test_a_search_without_an_end_is_refused(steps: int) -> None:
    with pytest.raises(InputError, match="positive number of steps"):
        Meter(Deadline(steps=steps))
    with pytest.raises(InputError, match="needs a deadline or a number of steps"):
        Meter(Deadline())


def test_time_that_is_over_ends_a_search() -> None:
    meter = Meter(Deadline.within(0.0))
    while not meter.is_late:  # a millisecond is left in any case
        assert meter.rest.left_s <= 1e-3
    assert meter.exhausted()
    assert meter.share(1.0).exhausted()
