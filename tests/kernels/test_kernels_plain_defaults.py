"""Default schedules go from the best estimate down to a plain loop nest: one of them always has code, and is proved."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from superopt.backends import native
from superopt.errors import InputError, UnsupportedKernel
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Node, make_input, mk
from superopt.kernels.choose.defaults import default_trace, traces
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import Region
from superopt.kernels.emit import generate as generator
from superopt.kernels.emit.generate import generate
from superopt.kernels.emit.plan import plan
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.trace import apply
from superopt.machine.facts import taken
from tests.support import contraction_cases as cases
from tests.support.machines import AVX512
from verifier.schedules import check_schedule

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def region(fn: Callable[..., object], *shapes: tuple[int, ...]) -> Region:
    """The only region of a function of arrays of these shapes."""
    (found,) = partition(import_function(fn, [jnp.zeros(s, jnp.float32) for s in shapes]).graph)
    return found


def depthwise(x: jax.Array, w: jax.Array) -> jax.Array:
    """A convolution of each channel, from channels last to channels first."""
    edge = w.shape[-1] // 2
    return lax.conv_general_dilated(
        x, w, (1, 1), [(edge, edge)] * 2, dimension_numbers=("NHWC", "OIHW", "NCHW"), feature_group_count=x.shape[-1]
    )


def softmax() -> Node:
    x = make_input("x", (7, 33))
    e = mk("exp", mk("sub", x, cases.over(mk("reduce_max", x, axes=(1,)), x, 0)))
    return mk("div", e, cases.over(mk("reduce_sum", e, axes=(1,)), x, 0))


def patches(x: jax.Array) -> jax.Array:
    """Patches of 2 x 2: those of one row of an image are one address."""
    return jnp.concatenate([x[:, i::2, j::2] for i in range(2) for j in range(2)], 3)


def mirrored(x: jax.Array) -> jax.Array:
    return jnp.pad(x, 2, mode="reflect").cumsum(1)


def repeated(x: jax.Array, w: jax.Array) -> jax.Array:
    """A convolution of pixels repeated two by two."""
    return lax.conv(jnp.repeat(jnp.repeat(x, 2, 2), 2, 3), w, (1, 1), "SAME")


def shuffled(x: jax.Array, w: jax.Array) -> jax.Array:
    """A convolution of channels moved into pixels."""
    b, c, h, v = x.shape
    pixels = x.reshape(b, c // 4, 2, 2, h, v).transpose(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * v)
    return lax.conv(pixels, w, (1, 1), "SAME")


def arrays_of(program: LoopProgram) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {b.name: rng.standard_normal(b.shape, np.float32) for b in program.buffers if b.scope in ("input", "frozen")}


ZOO = {
    "softmax": lambda: from_graph([softmax()]),
    "product": lambda: from_graph([cases.finished(cases.matmul(30, 33, 40))]),
    "depthwise": lambda: from_graph(region(depthwise, (1, 8, 20, 20), (20, 1, 3, 3)).graph.outputs),
    "repeated": lambda: from_graph(region(repeated, (1, 5, 6, 7), (20, 5, 3, 3)).graph.outputs),
    "shuffled": lambda: from_graph(region(shuffled, (1, 20, 6, 7), (20, 5, 3, 3)).graph.outputs),
    "patches": lambda: from_graph(region(patches, (1, 6, 8, 20)).graph.outputs),
    "mirrored": lambda: from_graph(region(mirrored, (5, 9)).graph.outputs),
    "attention": lambda: from_graph(region(jax.nn.dot_product_attention, *[(1, 32, 2, 16)] * 3).graph.outputs),
}


@pytest.mark.parametrize("name", ZOO)
def test_every_default_down_to_the_plainest_is_right_and_proved(name: str) -> None:
    program = ZOO[name]()
    arrays = arrays_of(program)
    exact = evaluate(program, arrays, wide=True)["out0"]
    found = list(traces(program, host(), 2))
    assert len(found) > 2
    for steps in found:
        scheduled = apply(program, steps)
        got = build(generate(scheduled), pipeline="none").run(arrays, guard=True)["out0"]
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4, err_msg=str(steps))
        verdict = check_schedule(program, scheduled)
        assert verdict.proved, (steps, verdict)


@pytest.mark.parametrize("name", ["repeated", "shuffled"])
def test_what_is_read_through_quotients_is_copied_for_a_tile(name: str) -> None:
    """Without a tile such a convolution took 116 ms in place of 3."""
    scheduled = apply(ZOO[name](), default_trace(ZOO[name](), host(), 2))
    assert any(stage.tile is not None for stage in scheduled.stages)


def test_the_plainest_default_is_one_element_after_the_other() -> None:
    *_, last = traces(ZOO["product"](), host(), 2)
    text = generate(apply(ZOO["product"](), last)).module.text()
    assert "x float>" not in text


def test_a_depthwise_convolution_between_layouts_has_a_default() -> None:
    """Vectors of rows transposed in registers for each of 49 taps were more code than is compiled."""
    found = region(depthwise, (1, 20, 20, 32), (32, 1, 7, 7))
    with taken(AVX512):
        with pytest.raises(UnsupportedKernel):
            generate(from_graph(found.graph.outputs))
        assert native.default_trace(found.graph)[0][0] == "cache_read"
    assert native.default_trace(found.graph)


def test_what_a_tile_refuses_falls_back_to_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise InputError("a tile reads at (o0%12), which is not linear")

    program = ZOO["product"]()
    assert any(step[0] == "tensorize" for step in default_trace(program))
    generator._generated.cache_clear()
    monkeypatch.setattr(generator, "write_tiled", refuse)
    steps = default_trace(program)
    assert not any(step[0] == "tensorize" for step in steps)
    arrays = arrays_of(program)
    got = build(generate(apply(program, steps)), pipeline="none").run(arrays)["out0"]
    np.testing.assert_allclose(got, evaluate(program, arrays, wide=True)["out0"], rtol=1e-4, atol=1e-4)
    generator._generated.cache_clear()


def test_where_nothing_has_code_the_refusal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    generator._generated.cache_clear()
    monkeypatch.setattr(generator, "MOST_NODES", 1)
    with pytest.raises(UnsupportedKernel, match="nodes"):
        default_trace(ZOO["softmax"]())
    generator._generated.cache_clear()


def test_the_parts_of_a_concatenation_are_loops_of_their_own() -> None:
    """A map over 25 concatenated tensors chose among 25 masked loads at every element."""

    def normalised(s: jax.Array, b: jax.Array, *parts: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.concatenate(parts, -1) * s + b, 0)

    found = region(normalised, (1024,), (1024,), (49, 256), *[(49, 32)] * 24)
    program = from_graph(found.graph.outputs)
    text = generate(apply(program, default_trace(program))).module.text()
    assert "masked" not in text
    arrays = arrays_of(program)
    got = build(generate(apply(program, default_trace(program))), pipeline="none").run(arrays)["out0"]
    np.testing.assert_allclose(got, evaluate(program, arrays)["out0"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("last", "parts"), [(False, 24), (True, 24), (True, 60)])
def test_tasks_of_a_concatenation_do_not_lie_across_its_parts(last: bool, parts: int) -> None:
    """Blocks of channels that do not end where parts do chose among all of them at every element: 2,683 us for 466."""

    def normalised(s: jax.Array, b: jax.Array, *given: jax.Array) -> jax.Array:
        y = jnp.maximum(jnp.concatenate(given, -1) * s + b, 0)
        return y if last else y.T

    width = 128 + 32 * parts
    found = region(normalised, (width,), (width,), (196, 128), *[(196, 32)] * parts)
    program = from_graph(found.graph.outputs)
    scheduled = apply(program, default_trace(program, threads=2))
    (stage,) = scheduled.stages
    nest = plan(scheduled, stage, host())
    assert width in [loop.extent for loop in nest.loops]
    assert prod(loop.extent for loop in nest.tasks) >= 4
    assert "masked" not in generate(scheduled).module.text()
    arrays = arrays_of(program)
    got = build(generate(scheduled), pipeline="none").run(arrays)["out0"]
    np.testing.assert_allclose(got, evaluate(program, arrays)["out0"], rtol=1e-5, atol=1e-5)


def test_a_concatenation_into_another_order_is_priced_above_one_in_the_order_of_its_parts() -> None:
    parts = [jnp.zeros((196, 32), jnp.float32)] * 24

    def last(*xs: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.concatenate(xs, -1), 0)

    graphs = [import_function(fn, parts).graph for fn in (last, lambda *xs: last(*xs).T)]
    same, turned = native.Native().price([region.graph for graph in graphs for region in partition(graph)])
    assert turned > 1.2 * same


def test_the_code_of_a_default_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What says that a default has code is asked for that code next."""
    written: list[str] = []
    write = generator.write_phase
    monkeypatch.setattr(generator, "write_phase", lambda *args: written.append(args[1]) or write(*args))
    generator._generated.cache_clear()
    program = ZOO["softmax"]()
    generate(apply(program, default_trace(program)))
    assert len(written) == len(set(written))


def test_many_sums_in_branches_stay_in_their_stage() -> None:
    """Each sum that leaves goes through the whole value once: hundreds of them would take minutes."""
    products = [cases.dot(make_input(f"a{k}", (16, 64)), make_input(f"b{k}", (64, 64))) for k in range(20)]
    moved = []
    for count in (4, 20):
        steps = default_trace(from_graph([mk("concatenate", *products[:count], dimension=0)]), host())
        moved.append(sum(step[0] == "materialize" for step in steps))
    assert moved == [3, 0]
