"""Bodies of control flow are explored within the time of the program that they belong to."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from costmodel.model.objective import Roofline
from costmodel.model.weights_file import uncalibrated
from superopt.explore import exploration as module
from superopt.explore.bodies import body_size, body_sizes
from superopt.explore.exploration import explore
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
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
