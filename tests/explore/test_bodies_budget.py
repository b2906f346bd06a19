"""Bodies of control flow are explored within the time of the program that they belong to."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from costmodel.model.objective import Roofline
from costmodel.model.weights_file import uncalibrated
from superopt.explore import exploration as module
from superopt.explore.bodies import body_size, body_sizes, improve_bodies
from superopt.explore.exploration import _Bodies, explore
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, mk
from superopt.ir.program import Program
from superopt.machine.deadline import Deadline
from tests.support.jax_programs import rand


def descent(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    def step(i: Any, w: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 2, lambda j, v: v - 0.1 * jax.grad(loss)(v), w) * 1.0

    return lax.fori_loop(0, 100, step, w)


@pytest.fixture
def graph() -> Graph:
    return import_function(descent, (rand(8, 4), rand(16, 8), rand(16, 4))).graph


@pytest.fixture
def objective() -> Any:
    return Roofline(uncalibrated(), "uncalibrated")


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """What growth and search of every program may take, and when that was said."""
    allowed: list[tuple[float, float]] = []
    grow, search = module.grow, module.search

    def growing(eg: Any, rules: Any, limits: Any, near: Any, deadline: Deadline) -> Any:
        allowed.append((deadline.left_s, time.monotonic()))
        return grow(eg, rules, limits, near, deadline)

    def searching(eg: Any, objective: Any, settings: Any, **options: Any) -> Any:
        allowed.append((settings.deadline.left_s, time.monotonic()))
        return search(eg, objective, settings, **options)

    monkeypatch.setattr(module, "grow", growing)
    monkeypatch.setattr(module, "search", searching)
    return allowed


def test_a_limit_of_time_binds_bodies(monkeypatch: pytest.MonkeyPatch, graph: Graph, objective: Any) -> None:
    allowed = watch(monkeypatch)
    begin_s = time.monotonic()
    explore(graph, [], Request(Deadline(begin_s + 60.0), objective, deterministic=True))
    assert len(allowed) > 6, "the program and the loops in it were explored"
    assert all(seconds <= begin_s + 60.1 - when for seconds, when in allowed)
    assert sum(seconds <= 30.0 for seconds, _ in allowed) > 3, "bodies have half of the time"


def test_bodies_without_time_stay_as_they_are(graph: Graph, objective: Any) -> None:
    found = explore(graph, [], Request(Deadline.within(0.0), objective, deterministic=True))
    assert found.graph is graph
    assert any("left as they are for lack of time" in note for note in found.notes)


def test_steps_bind_bodies_alike_on_every_machine(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, objective: Any
) -> None:
    allowed = watch(monkeypatch)
    explore(graph, [], Request(Deadline(steps=100), objective, deterministic=True))
    assert {seconds for seconds, _ in allowed} == {math.inf}


def test_sizes_count_bodies_within_bodies(graph: Graph) -> None:
    sizes = body_sizes(graph)
    assert len(sizes) >= 1
    bodies = [v for node in graph.nodes() for _, v in node.attrs if isinstance(v, Graph)]
    assert max(sizes) == max(map(body_size, bodies)) > max(len(b.nodes()) for b in bodies)


# ---- which form of a body is taken


BODY = import_function(lambda x: jnp.exp(x) * 2, (rand(4),)).graph
OTHER = import_function(lambda x: jnp.exp(x) + jnp.exp(x), (rand(4),)).graph


def taken(
    monkeypatch: pytest.MonkeyPatch, part: float, original: bool = False, prepare: Graph | None = None
) -> tuple[Graph, int]:
    """What a body becomes where the best form takes a part of its own time, and how many plans there are."""
    best = SimpleNamespace(original=original, predicted_s=part)
    result = SimpleNamespace(best=best, original=SimpleNamespace(predicted_s=1.0))
    found = SimpleNamespace(result=result, interrupted=False, program=lambda _: Program(prepare, OTHER))
    monkeypatch.setattr(module, "explore", lambda *_: found)
    monkeypatch.setattr(module, "make_plan", lambda *_: None)
    bodies = _Bodies([], Request(Deadline(steps=100), None), [body_size(BODY)])  # type: ignore[arg-type]
    return bodies.improved(BODY), len(bodies.plans)


def test_a_body_changes_only_for_a_form_that_is_clearly_cheaper_and_prepares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clearly = 0.99 / module.WORTH
    assert taken(monkeypatch, clearly) == (OTHER, 1)
    assert taken(monkeypatch, 1.01 / module.WORTH) == (BODY, 0)
    assert taken(monkeypatch, clearly, original=True) == (BODY, 0)
    assert taken(monkeypatch, clearly, prepare=BODY) == (BODY, 0)


def test_bodies_that_wait_when_the_user_interrupts_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "explore", lambda *_: pytest.fail("it is explored"))
    bodies = _Bodies([], Request(Deadline(steps=100), None), [body_size(BODY)], interrupted=True)  # type: ignore[arg-type]
    assert bodies.improved(BODY) is BODY
    assert bodies.left_out == 1


def test_all_branches_of_a_choice_are_bodies() -> None:
    chosen = import_function(lambda p, x: lax.cond(p, jnp.exp, lambda x: jnp.sin(x) * 2, x), (True, rand(4))).graph
    seen: list[Graph] = []

    def improve(body: Graph) -> Graph:
        seen.append(body)
        return body if len(seen) > 1 else Graph(body.inputs, tuple(mk("neg", x) for x in body.outputs))

    changed = improve_bodies(chosen, improve)
    assert len(seen) == len(body_sizes(chosen)) == 2
    assert changed != chosen
    assert improve_bodies(chosen, lambda body: body) is chosen


def test_without_a_clock_matches_bound_growth(monkeypatch: pytest.MonkeyPatch, objective: Any) -> None:
    limits: list[Any] = []
    grow = module.grow

    def growing(eg: Any, rules: Any, given: Any, near: Any, deadline: Deadline) -> Any:
        limits.append(given.matches)
        return grow(eg, rules, given, near, deadline)

    monkeypatch.setattr(module, "grow", growing)
    explore(BODY, [], Request(Deadline(steps=50), objective, deterministic=True))
    bounded, limits[:] = list(limits), []
    explore(BODY, [], Request(Deadline.within(1.0), objective, deterministic=True))
    assert limits
    assert set(bounded) != set(limits)
