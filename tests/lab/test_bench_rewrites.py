"""The rewrites suite: variants by hand equal their originals, also as imported graphs; verdicts on made-up timings."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
import pytest

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.interp import evaluate
from superopt.lab.bench import rewrites
from superopt.lab.bench.programs import rewrites_conv, rewrites_dense
from superopt.lab.bench.programs.rewrites_case import RewriteCase
from superopt.machine.speedup import Speedup
from tests.support.sampling import sampled

SMALL: dict[str, Callable[[], RewriteCase]] = {
    "depthwise": lambda: rewrites_conv.depthwise(7, 4),
    "grouped": lambda: rewrites_conv.grouped(6, 16, 8, 2),
    "depthwise_pointwise": lambda: rewrites_conv.depthwise_pointwise(6, 4),
    "pointwise": lambda: rewrites_conv.pointwise(5, 3, 4),
    "pointwise strided": lambda: rewrites_conv.pointwise(6, 3, 4, 2),
    "pointwise_norm": lambda: rewrites_conv.pointwise_norm(5, 3, 4),
    "square": lambda: rewrites_conv.square(7, 4),
    "square even": lambda: rewrites_conv.square(6, 4),
    "bottleneck": lambda: rewrites_conv.bottleneck(6, 8, 4),
    "stem": lambda: rewrites_conv.stem(16, 4),
    "three_pointwise": lambda: rewrites_conv.three_pointwise(5, 6, (4, 3, 2)),
    "two_square": lambda: rewrites_conv.two_square(6, 4),
    "fire_enlarged": lambda: rewrites_conv.fire_enlarged(6, 3, 4),
    "pool_max": lambda: rewrites_conv.pool_max(8, 3),
    "pool_average": lambda: rewrites_conv.pool_average(6, 3),
    "pool_global": lambda: rewrites_conv.pool_global(4, 5),
    "assoc": lambda: rewrites_dense.assoc(8),
    "low_rank": lambda: rewrites_dense.low_rank(8, 2, 4),
    "attention": lambda: rewrites_dense.attention(8, 4),
    "factored": lambda: rewrites_dense.factored(6),
    "qkv": lambda: rewrites_dense.qkv(4, 6),
    "eight": lambda: rewrites_dense.eight(1, 6),
    "qkv_live": lambda: rewrites_dense.qkv_live(4, 6),
    "swiglu": lambda: rewrites_dense.swiglu(1, 6, 8),
    "row_transposed": lambda: rewrites_dense.row_transposed(6, 8),
    "row_mlp": lambda: rewrites_dense.row_mlp(6, 8),
    "small_products": lambda: rewrites_dense.small_products(5, 3),
    "cumulative": lambda: rewrites_dense.cumulative(3, 16, 4),
    "concat_product": lambda: rewrites_dense.concat_product(5, 4, 3),
    "block_sum": lambda: rewrites_dense.block_sum(5, 4),
    "row_sums": lambda: rewrites_dense.row_sums(5, 20),
}


def _close(got: object, wanted: object) -> None:
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    for a, b in ((np.asarray(a), np.asarray(b)) for a, b in pairs):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("name", sampled(SMALL, lambda n, _: n % 2 == 0))
def test_variants_equal_the_original_and_its_graph(name: str) -> None:
    case = SMALL[name]()
    params, inputs = jax.device_put((case.params, case.inputs))
    wanted = jax.jit(case.fn)(params, *inputs)
    assert case.variants
    for variant in case.variants.values():
        _close(jax.jit(variant.fn)(jax.device_put(variant.prepare(case.params)), *inputs), wanted)
    imported = import_function(case.fn, (case.params, *case.inputs), frozen=0)
    values = dict(zip(imported.names, map(np.asarray, imported.examples), strict=True))
    _close(evaluate(imported.graph, {**imported.graph.constants, **values}), wanted)


def _verdict(ours: float, hand: float, noise: float = 0.02, used: str = "", losing: str = "") -> dict:
    ratios = {"only": Speedup(hand, hand * 0.99, hand * 1.01)}
    return rewrites.judged(Speedup(ours, ours, ours), ratios, noise, {used: 1} if used else {}, [losing])


def test_a_gain_is_reached_at_85_percent() -> None:
    assert _verdict(3.55, 4.0)["reached"]
    assert not _verdict(3.54, 4.0)["reached"]
    assert _verdict(4.0, 2.0)["share"] == pytest.approx(2.0)


def test_a_loss_is_declined() -> None:
    assert _verdict(1.0, 0.5)["kind"] == "loss"
    assert _verdict(1.0, 1.02)["share"] is None
    assert _verdict(0.97, 1.05, noise=0.1)["reached"] is False
    ratios = {"only": Speedup(0.5, 0.5, 0.5)}
    unsure = rewrites.judged(Speedup(0.97, 0.94, 1.0), ratios, 0.02, {}, [])
    assert (unsure["reached"], unsure["decided"]) == (False, False), "more rounds are needed"
    assert rewrites.judged(Speedup(0.99, 0.985, 1.0), ratios, 0.02, {}, [])["decided"]
    assert _verdict(1.0, 0.5, used="dot-merge", losing="dot-merge")["reached"] is False
    assert _verdict(1.0, 0.995, used="dot-merge", losing="dot-merge")["reached"], "not known to lose"


def test_cases_by_name() -> None:
    assert rewrites.chosen(["qkv-1", "qkv-128", "row"], ["qkv-1"]) == ["qkv-1"]
    assert rewrites.chosen(["qkv-1", "qkv-128", "row"], ["qkv"]) == ["qkv-1", "qkv-128"]
    assert rewrites.chosen(["a", "b"], []) == ["a", "b"]
    known = rewrites.names()
    assert len(set(known)) == len(known) >= 30


@pytest.mark.usefixtures("workers_quickly")
def test_a_row_and_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "build_case", lambda name: SMALL[name]())
    row = rewrites.measure_case("low_rank", "40steps", 0, rounds=3, most_rounds=6, sample_s=1e-4)
    assert row["hand"] == "from-the-left"
    assert row["kind"] in ("gain", "loss")
    assert row["rounds"] in (3, 6)
    assert row["decided"] or row["rounds"] == 6, "rounds are added until the ratio is decided"
    summary = rewrites.summarise([row, {"case": "other", "failure": "none"}])
    assert (summary["cases"], summary["failed"]) == (2, 1)
