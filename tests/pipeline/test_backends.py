"""Who makes kernels: chosen by the device or by name, asked by name, and Pallas through the whole pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from costmodel.model.card import UNKNOWN, Card, CardRoofline, card_of
from costmodel.model.joint import Joint
from rewrites.build.expander import library_expander
from superopt.backends import mixed, xla
from superopt.backends.protocol import INTERPRETED, PALLAS, backend_of, default_trace, for_device
from superopt.contest import rounds
from superopt.errors import InputError, UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import Program
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.specs import NATIVE, read_spec, specs_of
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Timing
from superopt.measure.kernels import XLA
from superopt.pipeline import forming
from superopt.report.data import read_report
from tests.support.sampling import sampled

pytestmark = pytest.mark.usefixtures("keeps_plain")

RNG = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def dense(p: dict[str, Any], x: Any) -> Any:
    return jax.nn.gelu(x @ p["w"] + p["b"])


def softmax(scale: Any, x: Any) -> Any:
    return jax.nn.softmax(x * scale, -1)


def block(p: dict[str, Any], x: Any) -> Any:
    y = jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y + p["b"]) + x


PROGRAMS = {
    "dense": (dense, {"w": values(48, 32), "b": values(32)}, values(24, 48), 1),
    "softmax": (softmax, values(100), values(20, 100), 1),
    "block": (block, {"w": values(3, 3, 8, 8), "b": values(8)}, values(1, 8, 8, 8), 1),
}


def on_a_card(compare: Callable[..., Comparison]) -> Callable[..., Comparison]:
    """The same comparison, in which programs with kernels took a tenth of the original's time."""

    def fast(original: Any, candidates: Any, *args: Any, **named: Any) -> Comparison:
        found = compare(original, candidates, *args, **named)
        assert isinstance(found.reference, Timing)
        samples, ratio = tuple(0.1 * s for s in found.reference.samples_s), Speedup(10.0, 9.0, 11.0)
        scaled = tuple(
            replace(row, samples_s=samples[: len(row.samples_s)], ratio=ratio)
            if isinstance(row, Timing) and candidate.kernels
            else row
            for row, candidate in zip(found.candidates, candidates, strict=True)
        )
        return replace(found, candidates=scaled)

    return fast


@pytest.mark.usefixtures("workers_quickly")
@pytest.mark.parametrize("name", sampled(PROGRAMS, lambda _, name: name == "softmax"))
def test_the_whole_pipeline_with_pallas_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program; the code of the others' regions is run in `tests/kernels/test_kernels_pallas.py`."""
    forms_of = forming.forms_of
    monkeypatch.setattr(forming, "forms_of", lambda found: forms_of(found)[:1])  # each is compiled in three processes
    monkeypatch.setattr(rounds, "compare", on_a_card(rounds.compare))
    fn, weights, x, least = PROGRAMS[name]
    fast = superopt.optimize(fn, weights, x, frozen=0, kernels=INTERPRETED, budget="5steps", rules=(), store=False)
    assert not fast.report.lost
    assert not fast.report.original_returned
    assert len(fast.kernels) >= least
    assert {choice.backend for choice in fast.kernels} == {INTERPRETED}
    used = [row for row in fast.report.native if row.used]
    assert {row.backend for row in used} == {INTERPRETED}
    assert all(row.predicted_ms is not None and row.by_xla_ms is not None for row in used)
    assert any(kind.startswith(INTERPRETED) for kind in fast.report.search["model_factors"]), "kernels were timed"
    assert f"made by {INTERPRETED}" in str(fast.report)
    assert read_report(fast.report.to_json()).native == fast.report.native
    np.testing.assert_allclose(fast(weights, x), fn(weights, x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.vmap(fast, (None, 0))(weights, x[None]), fn(weights, x)[None], rtol=1e-4, atol=1e-4)


def test_a_saved_program_with_pallas_kernels_is_compared_and_proved_where_it_is_loaded(tmp_path: Any) -> None:
    fn, weights, x, _ = PROGRAMS["dense"]
    fast = superopt.optimize(fn, weights, x, frozen=0, kernels=INTERPRETED, search=False, store=False)
    loaded = superopt.load(fast.save(tmp_path / "dense.superopt"))
    assert loaded.kernels == fast.kernels != ()
    assert loaded.refused == {}
    np.testing.assert_allclose(loaded(weights, x), fn(weights, x), rtol=1e-4, atol=1e-4)
    checked = loaded.validate()
    assert (checked.valid, checked.kernels) == (True, len(loaded.kernels))


def test_the_device_decides_who_makes_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert for_device().name == NATIVE
    assert "graphics cards" in backend_of(PALLAS).unavailable()
    assert xla.card_model() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert for_device().name == PALLAS
    card = xla.card_model()
    assert card is not None
    assert card.card == UNKNOWN
    with pytest.raises(UsageError, match="no backend 'vulkan'"):
        superopt.optimize(jnp.tanh, values(4), kernels="vulkan")


def test_kernels_for_another_device_are_left_to_xla() -> None:
    x = make_input("x", (8, 16))
    program = Program(None, Graph((x,), (mk("exp", x),)))
    for name, why in ((PALLAS, "graphics cards"), ("vulkan", "no backend")):
        choices = specs_of(program.hot, [(r, None) for r in partition(program.hot)], name)
        assert [read_spec(choice.to_json()) for choice in choices] == list(choices)
        executable = mixed.build(program, kernels=choices)
        assert [why in cause for cause in executable.refused.values()] == [True]
        np.testing.assert_allclose(executable(np.ones((8, 16), np.float32))[0], np.e, rtol=1e-6)


@pytest.mark.parametrize("name", [XLA, NATIVE, INTERPRETED])
def test_a_backend_builds_runs_times_and_proves(name: str) -> None:
    backend = backend_of(name)
    graph = import_function(lambda x, w: jnp.tanh(x @ w), (values(12, 16), values(16, 20)), frozen=1).graph
    (region,) = [r.graph for r in partition(graph)]
    assert backend.can_run(region)
    assert backend.name == name
    trace = default_trace(backend, region)
    kernel = backend.build(region, trace)
    arrays = {n["name"]: values(*n.shape) for n in region.inputs}
    want = np.tanh(arrays["x0"] @ arrays["x1"])
    np.testing.assert_allclose(backend.run(kernel, arrays)[0], want, rtol=1e-4, atol=1e-5)
    call, operands, _ = backend.time(region, list(arrays.values()), {})
    np.testing.assert_allclose(call(*operands)[0], want, rtol=1e-4, atol=1e-5)
    assert backend.prove(region, trace).proved


@pytest.mark.parametrize(("precision", "made"), [(None, "tf32"), ("high", "tf32x3"), ("highest", "ieee")])
def test_products_have_the_precision_that_the_program_asks_for(precision: str | None, made: str) -> None:
    backend = backend_of(INTERPRETED)
    fn = functools.partial(jnp.matmul, precision=precision)
    graph = import_function(fn, (values(64, 48), values(48, 64)), frozen=1).graph
    (region,) = [r.graph for r in partition(graph)]
    for trace in backend.default_traces(region):
        knobs = {step[2]: step[3] for step in trace if step[0] == "set_knob"}
        assert knobs.get("precision", "ieee") == made
        assert backend.prove(region, trace).proved


def test_sums_without_a_product_are_exact() -> None:
    fn = lambda a, b: (a[:, :, None] * b[None]).sum(1)  # noqa: E731
    graph = import_function(fn, (values(64, 48), values(48, 64)), frozen=1).graph
    assert not any("precision" in step for step in default_trace(backend_of(INTERPRETED), graph))


def test_what_pallas_does_not_run_is_priced_and_computed_by_xla() -> None:
    backend = backend_of(INTERPRETED)
    x = make_input("x", (8, 16))
    prefix, wide = mk("cumsum", x, axis=1, reverse=False), mk("exp", make_input("y", (8,), "float64"))
    assert backend.can_run(Graph((x,), (mk("exp", x),)))
    assert not backend.can_run(Graph((x,), (prefix,)))
    assert not backend.can_run(Graph(wide.inputs, (wide,)))
    model = Joint(CardRoofline(UNKNOWN), library_expander(()), backend)
    assert not model.is_own(Graph((x,), (prefix,)))
    assert [job.backend for job in model.untimed([Graph((x,), (prefix,))])] == [XLA]
    with pytest.raises(InputError, match="graphics cards"):
        backend_of(PALLAS).build(Graph((x,), (mk("exp", x),)))


def test_a_card_is_priced_by_its_data_sheet() -> None:
    assert card_of("NVIDIA H100 80GB HBM3").name == "H100"
    assert card_of("NVIDIA A100-SXM4-40GB").name == "A100"
    assert card_of("NVIDIA L40S").name == "L40S"
    assert card_of("TPU v4") == UNKNOWN
    model = CardRoofline(Card("a card", bandwidth=1e9, flops=1e9, matrix_flops=1e12))
    a, b = make_input("a", (100, 100)), make_input("b", (100, 100))
    short = [make_input(n, (100, 100), "bfloat16") for n in "ab"]
    dot = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    exact = mk("dot_general", a, b, **dot, precision="highest")
    roots = [mk("neg", a), exact, mk("dot_general", *short, **dot), mk("dot_general", a, b, **dot)]
    copy, product, matrix, halved = model.price([Graph(root.inputs, (root,)) for root in roots])
    assert copy == pytest.approx(8e4 / 1e9, rel=0.1)  # bytes decide
    assert product == pytest.approx(2e6 / 1e9, rel=0.1)  # operations do
    assert matrix == pytest.approx(6e4 / 1e9, rel=0.1)  # matrix units leave it to bytes
    assert halved == pytest.approx(12e4 / 1e9, rel=0.1)  # as do those that round float32
