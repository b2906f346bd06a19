"""Kernels timed in earlier calls: kept with their text, recalled on the same machine, used by the models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from costmodel.model import kept
from costmodel.model.joint import Joint, KernelJob
from costmodel.model.kept import TimedKernel
from costmodel.model.measured import Correction, Line, deviation, fitted_line
from rewrites.build.expander import library_expander
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import type_bytes
from superopt.ir.text import print_graph
from superopt.machine import facts
from superopt.measure.kernels import XLA
from superopt.store import Store

EXPAND = library_expander(())


class Sized:
    """A nanosecond for every element that a kernel reads."""

    name, version = "sized", "sized 1"

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.array([1e-9 * sum(type_bytes(x.type) for x in kernel.inputs) / 4 for kernel in kernels])


def pointwise(size: int, op: str = "exp") -> Graph:
    x = make_input("x0", (size,))
    return Graph((x,), (mk(op, x),))


def learned(sizes: Sequence[int], store: Store | None = None) -> Joint:
    """A model that has timed kernels of these sizes at 5 us more than twice the prediction."""
    model = Joint(Sized(), EXPAND, earlier=kept.recall(store) if store else kept.NONE_EARLIER)
    jobs = [KernelJob(XLA, pointwise(size), pointwise(size)) for size in sizes]
    model.learn(jobs, [5e-6 + 2e-9 * size for size in sizes])
    return model


def test_a_later_call_prices_by_the_kernels_of_an_earlier_one() -> None:
    sizes = [1000 * 2**k + n for k in range(10) for n in range(4)]
    with Store(memory=True) as store:
        kept.keep(store, learned(sizes).labels())
        texts = {row["text"] for _, row in store.items("measurements")}
        assert texts == {print_graph(pointwise(size)) for size in sizes}, "labels hold what was timed"
        later = learned([], store)
    assert later.count == 0, "nothing was timed in this call"
    for size in (2000, 700_000):
        assert later.price([pointwise(size, "tanh")])[0] == pytest.approx(5e-6 + 2e-9 * size, rel=0.2)


def test_kernels_of_another_machine_another_model_or_a_damaged_row_are_not_recalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Store(memory=True) as store:
        kept.keep(store, learned([1000]).labels())
        ((key, row),) = store.items("measurements")
        ((label,),) = kept.recall(store).values()
        assert label.kind == "loop"
        assert (label.predicted_s, label.seconds) == pytest.approx((1e-6, 7e-6))
        for damage in (
            {"seconds": -1.0},
            {"seconds": "1"},
            {"predicted_s": float("1e9")},
            {"kind": None},
        ):
            store.put("measurements", key, row | damage)
            assert kept.recall(store) == {}
        store.put("measurements", key, row)
        monkeypatch.setattr(facts, "environment_key", lambda: "another")
        assert kept.recall(store) == {}


def test_a_kernel_timed_again_replaces_its_earlier_label() -> None:
    with Store(memory=True) as store:
        for _ in range(2):
            kept.keep(store, learned([1000, 2000]).labels())
        assert len(store.items("measurements")) == 2


def test_a_line_through_timed_kernels_keeps_what_every_call_costs_apart() -> None:
    predicted = np.geomspace(1e-6, 1e-3, 20)
    timed = [TimedKernel("loop", x, 4e-6 + 1.5 * x) for x in predicted]
    line = fitted_line(timed)
    assert line.fixed_s == pytest.approx(4e-6, rel=0.15)
    assert line.rate == pytest.approx(1.5, rel=0.1)
    disturbed = fitted_line([*timed, TimedKernel("loop", 1e-5, 1e-2)])
    assert disturbed.rate == pytest.approx(line.rate, rel=0.05), "one disturbed timing moves little"
    assert fitted_line([]) == Line(0.0, 1.0)
    few = fitted_line([TimedKernel("loop", 1e-4, 3e-4)])
    assert 1e-4 < few.seconds(np.array([1e-4]))[0] < 2e-4, "a single timing is believed by a third"
    assert fitted_line([TimedKernel("loop", x, 0.5 * x) for x in predicted]).fixed_s == pytest.approx(0.0, abs=2e-8)


def test_kinds_that_are_off_the_line_have_factors_of_their_own() -> None:
    timed = [TimedKernel("loop", 1e-5, 1e-5), TimedKernel("dot", 1e-5, 2e-5)] * 20
    correction = Correction(timed, ())
    seconds = correction.seconds(np.array([1e-5, 1e-5]), ["loop", "dot"])
    np.testing.assert_allclose(seconds, [1e-5, 2e-5], rtol=0.1)
    other = Correction((), timed)
    assert other.factor("dot") == other.factor("loop") == 1.0, "another program's kernels of a kind tell nothing here"


def test_intervals_hold_nine_in_ten_whatever_the_members_say() -> None:
    rng = np.random.default_rng(0)
    timed = [TimedKernel("loop", x, x * np.exp(0.3 * rng.normal())) for x in rng.uniform(2e-5, 1e-3, 400)]
    around = deviation(timed[:40])
    assert around is not None
    held = [abs(np.log(x.seconds / x.predicted_s)) <= 1.645 * around for x in timed[40:]]
    assert 0.85 <= np.mean(held) <= 0.97
    assert deviation(timed[:8]) is None, "nine in ten of eight say nothing"


def test_a_price_is_as_uncertain_as_kernels_of_this_machine_show() -> None:
    model = learned([1000 * k for k in range(1, 30)])
    other = pointwise(5500, "tanh")
    assert model.xla.uncertainty([other])[0] < 0.3, "the line through them is right, the model says 1"
    assert model.xla.uncertainty([pointwise(1000)])[0] == 0.0
    assert learned([1000]).xla.uncertainty([other])[0] == 1.0
