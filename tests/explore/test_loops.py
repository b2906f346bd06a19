"""Work is taken out of loops by proved steps, and the results stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from superopt.backends.xla import to_jax
from superopt.certify.loops import LoopStepError, prove_step
from superopt.certify.plan import empty_plan, read_plan
from superopt.certify.validate import validate
from superopt.errors import InputError
from superopt.explore.loops import opened
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.interp import evaluate
from superopt.ir.loop_steps import LoopStep, read_step
from superopt.ir.loops import loops_of
from superopt.ir.program import Program
from superopt.machine.deadline import Deadline
from tests.support.jax_programs import rand

Fn = Callable[..., Any]


def recurrence(reverse: bool) -> Fn:
    def fn(xs: jax.Array, wx: jax.Array, wh: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x @ wx + h @ wh)
            return h, h * 2

        return lax.scan(step, jnp.zeros((xs.shape[1], wh.shape[0])), xs, reverse=reverse)

    return fn


def joined(xs: jax.Array, w: jax.Array, h: jax.Array) -> Any:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(jnp.concatenate([x, h, x], axis=-1) @ w), None

    return lax.scan(step, h, xs)


def counting(x: jax.Array, w: jax.Array) -> Any:
    def step(i: jax.Array, s: jax.Array) -> jax.Array:
        return s + jnp.sum(x[i] @ w) * i

    return lax.fori_loop(2, 7, step, jnp.float32(1.0))


def backwards(xs: jax.Array) -> Any:
    def step(c: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
        i, s = c
        return (i + 3, s * 0.5 + x), (i, s)

    return lax.scan(step, (jnp.int32(-5), xs[0]), xs, reverse=True)


def outer(xs: jax.Array, ys: jax.Array) -> Any:
    return lax.scan(lambda c, p: (c + jnp.outer(*p), None), jnp.ones((xs.shape[1], ys.shape[1])), (xs, ys))[0]


def layers(x: jax.Array, ws: jax.Array) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, ws)


def rows(xs: jax.Array, w: jax.Array) -> Any:
    return lax.map(lambda x: jnp.tanh(x @ w), xs)


def tree(v: jax.Array) -> Any:
    def back(_: int, v: jax.Array) -> jax.Array:
        return 0.99 * (0.6 * jnp.concatenate([v[:, 1:], v[:, -1:]], axis=1) + 0.4 * v)

    return lax.fori_loop(0, 20, back, v)


def diffusion(source: float) -> Fn:
    def step(_: int, u: jax.Array) -> jax.Array:
        inner = u[1:-1] + 0.2 * (u[2:] - 2 * u[1:-1] + u[:-2]) + source
        return jnp.pad(inner, ((1, 1), (0, 0)))

    return lambda u: lax.fori_loop(0, 30, step, u)


def transport(u: jax.Array) -> Any:
    return lax.fori_loop(0, 40, lambda _, u: u - 0.3 * (u - jnp.roll(u, 1)), u)


def invariant(a: jax.Array, x: jax.Array) -> Any:
    return lax.fori_loop(0, 5, lambda _, v: v / 2 + a.T @ (a @ v), x)


def squares(a: jax.Array, b: jax.Array, x: jax.Array) -> Any:
    return lax.fori_loop(0, 9, lambda _, x: x - 0.1 * (a.T @ (a @ x - b)), x)


def both_sides(p: jax.Array, f: jax.Array, g: jax.Array) -> Any:
    return lax.scan(lambda p, _: (jnp.tanh(f @ (g @ p)) + (f - (p @ f)) @ g, None), p, None, length=8)[0]


def chain(p: jax.Array, q: jax.Array, x: jax.Array) -> Any:
    def step(_: Any, state: Any) -> Any:
        return state[0] @ p, q @ state[1], jnp.tanh(state[2])

    return lax.fori_loop(0, 13, step, (p, q, x))


def solved(a: jax.Array, x: jax.Array) -> Any:
    return lax.fori_loop(0, 5, lambda _, x: jnp.linalg.inv(a) @ x + jnp.tanh(x), x)


def projected(xs: jax.Array, a: jax.Array, c: jax.Array) -> Any:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        h = jnp.tanh(a @ h + x)
        return h, (jnp.tanh(c @ h) + x, h)

    return lax.scan(step, jnp.zeros(xs.shape[1]), xs)


def read_before(xs: jax.Array, a: jax.Array) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h + x), h @ a), xs[0], xs, reverse=True)


def smoothed(reverse: bool, begin: float = 1.0) -> Fn:
    def fn(xs: jax.Array, ys: jax.Array) -> Any:
        def step(c: jax.Array, p: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return 0.75 * c + 0.25 * jnp.outer(*p), None

        return lax.scan(step, jnp.full((xs.shape[1], ys.shape[1]), begin), (xs, ys), reverse=reverse)[0]

    return fn


def growing(xs: jax.Array) -> Any:
    return lax.scan(lambda c, x: (2.0 * c + x, None), jnp.zeros(xs.shape[1]), xs)[0]


def damped(a: jax.Array, x: jax.Array) -> Any:
    return lax.fori_loop(0, 40, lambda _, x: 0.5 * x - (a @ x) / 4 + x / 8, x)


def damped_rows(a: jax.Array, x: jax.Array) -> Any:
    return lax.fori_loop(0, 40, lambda _, x: 0.25 * (x @ a) + 0.5 * x, x)


def impulses(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
    def step(power: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return a @ power, c @ power @ b

    return lax.scan(step, jnp.eye(a.shape[0]), None, length=5)[1]


def impulses_of_rows(a: jax.Array, c: jax.Array) -> Any:
    def step(power: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return power @ a, jnp.tanh(c @ power)

    return lax.scan(step, a, None, length=5)[1]


def impulses_and_power(a: jax.Array, b: jax.Array) -> Any:
    return lax.scan(lambda power, _: (a @ power, power @ b), a, None, length=5)


def jacobi(a: jax.Array, b: jax.Array) -> Any:
    d = jnp.diag(jnp.diag(a))
    return lax.fori_loop(0, 6, lambda _, x: jnp.linalg.inv(d) @ (b - (a - d) @ x), jnp.zeros_like(b))


def nothing(x: jax.Array, w: jax.Array) -> Any:
    return lax.fori_loop(0, 40, lambda _, v: jnp.tanh(v @ w), x)


CASES: dict[str, tuple[Fn, tuple[Any, ...], tuple[str, ...], int]] = {
    "recurrence": (recurrence(False), (rand(5, 2, 3), rand(3, 4), rand(4, 4)), ("hoisted",), 1),
    "reversed": (recurrence(True), (rand(5, 2, 3), rand(3, 4), rand(4, 4)), ("hoisted",), 1),
    "joined": (joined, (rand(4, 2, 3), rand(10, 4), rand(2, 4)), ("body", "hoisted"), 1),
    "counting": (counting, (rand(9, 3), rand(3, 3)), ("counted", "hoisted", "summed"), 0),
    "backwards": (backwards, (rand(6, 3),), ("counted",), 1),
    "outer": (outer, (rand(6, 3), rand(6, 2)), ("hoisted", "summed"), 0),
    "layers": (layers, (rand(2, 3), rand(4, 3, 3)), ("unrolled",), 0),
    "rows": (rows, (rand(6, 3), rand(3, 2)), ("hoisted",), 0),
    "invariant": (invariant, (rand(4, 3), rand(3)), ("counted", "body", "hoisted"), 1),
    "squares": (squares, (rand(9, 3), rand(9), rand(3)), ("counted", "body", "hoisted"), 1),
    "both sides": (both_sides, (rand(3, 3), rand(3, 9), rand(9, 3)), ("body", "body", "hoisted"), 1),
    "chain": (chain, (rand(4, 4) / 2, rand(3, 3) / 2, rand(3)), ("counted", "powered", "powered"), 1),
    "projected": (projected, (rand(5, 3), rand(3, 3), rand(3, 3)), ("sunk", "hoisted"), 1),
    "read before": (read_before, (rand(5, 3), rand(3, 2)), ("sunk", "hoisted"), 1),
    "smoothed": (smoothed(False), (rand(6, 3), rand(6, 2)), ("hoisted", "summed"), 0),
    "smoothed backwards": (smoothed(True), (rand(6, 3), rand(6, 2)), ("hoisted", "summed"), 0),
    "smoothed from zero": (smoothed(False, 0.0), (rand(6, 3), rand(6, 2)), ("hoisted", "summed"), 0),
    "growing": (growing, (rand(6, 3),), (), 1),
    "damped": (damped, (rand(4, 4), rand(4, 4)), ("counted", "body", "hoisted", "powered"), 0),
    "damped rows": (damped_rows, (rand(4, 4), rand(4, 4)), ("counted", "body", "hoisted", "powered"), 0),
    "impulses": (impulses, (rand(4, 4), rand(4, 2), rand(2, 4)), ("body", "projected", "sunk", "hoisted"), 1),
    "impulses of a vector": (impulses, (rand(4, 4), rand(4), rand(2, 4)), ("body", "projected", "sunk", "hoisted"), 1),
    "impulses of rows": (impulses_of_rows, (rand(4, 4), rand(4)), ("projected",), 1),
    "impulses and power": (impulses_and_power, (rand(4, 4), rand(4)), (), 1),
    "jacobi": (
        jacobi,
        (rand(3, 3) / 9 + 2 * np.eye(3, dtype=np.float32), rand(3)),
        ("counted", "entered", "body", "hoisted"),
        1,
    ),
    "tree": (tree, (rand(3, 7),), ("counted", "body", "powered"), 0),
    "diffusion": (diffusion(0.0), (rand(6, 2),), ("counted", "body", "powered"), 0),
    "diffusion with a source": (diffusion(1.0), (rand(6, 2),), ("counted",), 1),
    "transport": (transport, (rand(8),), ("counted", "body", "powered"), 0),
    "nothing": (nothing, (rand(2, 3), rand(3, 3)), ("counted",), 1),
}


def graph_of(name: str) -> tuple[Graph, list[Any]]:
    fn, args, _, _ = CASES[name]
    imported = import_function(fn, args)
    return imported.graph, imported.live_values


@pytest.mark.parametrize("name", CASES)
def test_steps_keep_the_results(name: str) -> None:
    graph, values = graph_of(name)
    after, steps = opened(graph, Deadline())
    assert tuple(step.kind for step in steps) == CASES[name][2]
    assert len(loops_of(after)) == CASES[name][3]
    given = dict(zip((x["name"] for x in graph.inputs), values, strict=False)) | dict(graph.constants)
    for a, b in zip(evaluate(graph, given), evaluate(after, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_what_begins_at_zero_decays_to_zero() -> None:
    scaled = {
        name: [x.op for n in opened(graph_of(name)[0], Deadline())[0].nodes() if n.op == "mul" for x in n.inputs]
        for name in ("smoothed", "smoothed from zero")
    }
    assert len(scaled["smoothed"]) == len(scaled["smoothed from zero"]) + 2


@pytest.mark.parametrize("name", CASES)
def test_steps_survive_as_text(name: str) -> None:
    for step in opened(graph_of(name)[0], Deadline())[1]:
        assert read_step(step.to_json()) == step


def steps_of(name: str) -> tuple[LoopStep, ...]:
    return opened(graph_of(name)[0], Deadline())[1]


def wrong(x: Node) -> Node:
    return mk("add", x, x)


def test_a_wrong_stack_is_refused() -> None:
    (step,) = steps_of("recurrence")
    prove_step(step)
    with pytest.raises(LoopStepError):
        prove_step(replace(step, instead=(wrong(step.instead[0]),)))


def test_rows_in_another_order_are_refused() -> None:
    (step,) = steps_of("recurrence")
    turned = mk("rev", step.instead[0], dimensions=(0,))
    with pytest.raises(LoopStepError):
        prove_step(replace(step, instead=(turned,)))


def test_a_wrong_body_is_refused() -> None:
    step = steps_of("joined")[0]
    with pytest.raises(LoopStepError):
        prove_step(replace(step, instead=(wrong(step.instead[0]),)))


def test_a_value_that_depends_on_a_carry_is_refused() -> None:
    (step,) = steps_of("recurrence")
    carried = step.loop["body"].outputs[0]
    with pytest.raises(LoopStepError, match="carry"):
        prove_step(replace(step, values=(carried,)))


def test_a_value_of_another_body_is_refused() -> None:
    (step,), (other, *_) = steps_of("recurrence"), steps_of("invariant")[2:]
    with pytest.raises(LoopStepError, match="body"):
        prove_step(replace(step, values=other.values))


@pytest.mark.parametrize("kind", ["counted", "entered", "summed", "powered", "projected", "sunk"])
def test_a_carry_of_another_kind_is_refused(kind: str) -> None:
    (step,) = steps_of("recurrence")
    with pytest.raises(LoopStepError):
        prove_step(replace(step, kind=kind, values=(), instead=(), number=step.loop["num_consts"]))


def test_sums_of_floats_are_not_exact() -> None:
    step = steps_of("outer")[-1]
    assert prove_step(step).exactness == "real"
    with pytest.raises(LoopStepError):
        prove_step(step, "exact")


def test_a_step_about_something_else_is_no_step() -> None:
    (step,) = steps_of("recurrence")
    text = step.to_json()
    with pytest.raises(InputError):
        read_step({**text, "kind": "other"})
    with pytest.raises(InputError):
        read_step({**text, "loop": text["instead"]})


def test_products_that_stay_the_same_wait_for_better_bodies() -> None:
    def fn(a: jax.Array, x: jax.Array) -> Any:
        return lax.fori_loop(0, 5, lambda _, v: v / 2 + (a.T @ a) @ v, x)

    graph = import_function(fn, (rand(4, 3), rand(3))).graph
    assert [s.kind for s in opened(graph, Deadline(), products=False)[1]] == ["counted"]
    assert [s.kind for s in opened(graph, Deadline())[1]] == ["counted", "hoisted"]


def test_no_step_begins_after_the_deadline() -> None:
    graph, _ = graph_of("recurrence")
    assert opened(graph, Deadline.within(0.0)) == (graph, ())


def test_a_refused_step_is_left_out() -> None:
    graph, _ = graph_of("counting")

    def prove(step: LoopStep) -> None:
        if step.kind != "counted":
            raise LoopStepError("not asked for")

    _, steps = opened(graph, Deadline(), prove=prove)
    assert [s.kind for s in steps] == ["counted"]


def test_what_would_not_fit_in_memory_stays() -> None:
    def fn(xs: jax.Array, w: jax.Array) -> Any:
        return lax.map(lambda x: jnp.sum(jnp.tanh(jnp.outer(x, x) @ w)), xs)

    wide = jax.ShapeDtypeStruct((4096, 512), jnp.float32), jax.ShapeDtypeStruct((512, 512), jnp.float32)
    graph = import_function(fn, wide).graph
    assert opened(graph, Deadline()) == (graph, ())


def test_a_plan_of_steps_is_validated_and_a_changed_one_refused() -> None:
    graph, _ = graph_of("joined")
    after, steps = opened(graph, Deadline())
    plan = replace(empty_plan(graph), loops=steps)
    found = validate(graph, Program(None, after), plan)
    assert (found.valid, found.exactness, found.steps) == (True, "real", 2)
    assert not validate(graph, Program(None, after), empty_plan(graph)).valid
    other = replace(steps[1], instead=(wrong(steps[1].instead[0]), *steps[1].instead[1:]))
    refused = validate(graph, Program(None, after), replace(plan, loops=(steps[0], other)))
    assert not refused.valid
    assert "step 1 of loops (hoisted) is not proved" in refused.cause


def test_a_plan_may_not_read_other_inputs() -> None:
    graph, _ = graph_of("layers")
    (step,) = steps_of("layers")
    other = Graph((graph.inputs[0],), (graph.inputs[0],))
    plan = replace(empty_plan(other), loops=(step,))
    assert "reads an input" in validate(other, Program(None, other), plan).cause


def test_plans_with_steps_survive_as_text() -> None:
    graph, _ = graph_of("outer")
    plan = replace(empty_plan(graph), loops=steps_of("outer"))
    assert read_plan(json.loads(json.dumps(plan.to_json()))).loops == plan.loops


def test_matrices_are_multiplied_ahead_only_where_the_trips_pay_for_it() -> None:
    def fn(a: jax.Array, x: jax.Array) -> Any:
        return lax.fori_loop(0, 2, lambda _, v: v + a.T @ (a @ v), x)

    graph = import_function(fn, (rand(9, 8), rand(8))).graph
    assert "body" not in [s.kind for s in opened(graph, Deadline())[1]]


def test_powers_of_a_matrix_itself_are_squares() -> None:
    graph = import_function(lambda p: lax.fori_loop(0, 15, lambda _, q: q @ p, p), (rand(9, 9),)).graph
    after = opened(graph, Deadline())[0]
    assert sum(n.op == "dot_general" for n in after.nodes()) == 4


def test_a_result_that_a_carry_needs_is_not_sunk() -> None:
    graph, _ = graph_of("recurrence")
    (loop,) = loops_of(opened(graph, Deadline())[0])
    for number in range(3):
        with pytest.raises(LoopStepError):
            prove_step(LoopStep("sunk", graph.inputs, loop, number=number))


def test_few_products_of_a_vector_are_no_power() -> None:
    graph = import_function(lambda p, x: lax.fori_loop(0, 4, lambda _, x: p @ x, x), (rand(9, 9), rand(9))).graph
    assert [s.kind for s in opened(graph, Deadline())[1]] == ["counted"]


def test_an_opaque_value_that_stays_the_same_is_computed_once() -> None:
    args = rand(4, 4), rand(4)
    graph = import_function(solved, args).graph
    after, steps = opened(graph, Deadline())
    assert [s.kind for s in steps] == ["counted", "hoisted"]
    (loop,) = loops_of(after)
    assert not any(n.op == "opaque" for n in loop["body"].nodes())
    (want,), (have,) = jax.jit(to_jax(graph))(*args), jax.jit(to_jax(after))(*args)
    np.testing.assert_allclose(want, have, rtol=1e-5)


def test_an_opaque_value_of_rows_stays() -> None:
    def fn(xs: jax.Array, y: jax.Array) -> Any:
        return lax.scan(lambda y, x: (jnp.linalg.cholesky(x) @ y, None), y, xs)[0]

    graph = import_function(fn, (rand(3, 4, 4), rand(4))).graph
    assert opened(graph, Deadline()) == (graph, ())


def test_a_file_cannot_have_a_long_loop_unrolled() -> None:
    (long,) = steps_of("nothing")
    with pytest.raises(LoopStepError, match="unrolled"):
        prove_step(replace(long, kind="unrolled"))


def test_an_inverse_that_stays_the_same_does_not_wait() -> None:
    """A body could solve with the matrix on every trip, which looks cheaper there."""

    def fn(a: jax.Array, x: jax.Array) -> Any:
        return lax.fori_loop(0, 5, lambda _, v: v / 2 + jnp.linalg.inv(a.T @ a + jnp.eye(3)) @ v, x)

    graph = import_function(fn, (rand(4, 3), rand(3))).graph
    done, steps = opened(graph, Deadline(), products=False)
    assert "hoisted" in [s.kind for s in steps]
    assert "inverse" in {n.op for n in done.nodes()}


def test_an_inverse_of_a_diagonal_waits_for_a_better_body() -> None:
    done, steps = opened(graph_of("jacobi")[0], Deadline(), products=False)
    (loop,) = loops_of(done)
    assert [s.kind for s in steps] == ["counted", "entered", "hoisted"]
    assert "inverse" in {n.op for n in loop["body"].nodes()}
    assert max(len(x.shape) for x in loop.inputs if x.op != "sub") == 1, "the diagonal alone is given"


def test_rows_are_not_made_in_the_body() -> None:
    def fn(x: jax.Array) -> Any:
        return lax.scan(lambda c, row: (jnp.tanh(c + row), None), x, jnp.broadcast_to(x, (4, 3)))[0]

    assert "entered" not in [s.kind for s in opened(import_function(fn, (rand(3),)).graph, Deadline())[1]]
