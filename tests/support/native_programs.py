"""Small programs of which every region is a kernel, as the rooms of native programs and of the verifier test them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from superopt.backends import mixed
from superopt.backends.mixed import MixedExecutable
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import frozen_cut, split
from superopt.kernels.choose.partition import partition_program
from superopt.kernels.choose.specs import specs_of
from superopt.lab.bench.programs.layers import Net
from superopt.lab.bench.programs.nets import bert, fire, inverted_residual
from superopt.native.running import NativeProgram


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _mlp(params: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ params["first"]) @ params["second"])


def _passed_on(params: Any, x: Any, y: Any) -> Any:
    """A value, an argument, a weight, the value reshaped, and a number."""
    w = params["w"]
    found = jnp.exp(x @ w) * y
    return found, y, w, found.reshape(-1), jnp.float32(3)


def _recurrent(p: Any, xs: Any) -> Any:
    """A carry that is a row as well, one with a result of its own, backwards, and rows of the first values."""

    def step(state: Any, x: Any) -> Any:
        h, total = state
        h = jnp.tanh(x @ p["in"] + h @ p["own"])
        return (h, total + h * x[0]), (h, jnp.max(x))

    (_, total), rows = jax.lax.scan(step, (jnp.zeros(8), xs[0]), xs[1:], reverse=True)
    return total, rows


def _handed_on(p: Any, x: Any, y: Any) -> Any:
    """Carries that change places, wait for a trip, and stay; rows that are carries, what is fixed, and a row twice."""

    def step(state: Any, row: Any) -> Any:
        a, b, before, fixed = state
        fresh = jnp.sin(a) + row
        return (b, a, fresh, fixed), (before, fixed, row, fresh, fresh, p["w"])

    return jax.lax.scan(step, (x[0], x[1] * 2, x[2], y), x)


def _nested(p: Any, x: Any) -> Any:
    """A loop in a loop, whose rows are results of the inner one."""

    def inner(state: Any, row: Any) -> Any:
        state = jnp.cos(state) @ p["w"] + row
        return state, jnp.exp(-state)

    def outer(state: Any, rows: Any) -> Any:
        last, seen = jax.lax.scan(inner, state, rows)
        return last * 0.5, (last, seen)

    return jax.lax.scan(outer, jnp.ones(8), x)


def _until(p: Any, x: Any, y: Any) -> Any:
    """Loops that end by a condition: after some trips, and before the first one; one of them in a loop."""

    def grown(x: Any) -> Any:
        return jax.lax.while_loop(
            lambda s: jnp.max(s[0] - p["most"]) < 0,
            lambda s: (s[0] * 1.5, s[0] @ p["w"] + s[1]),
            (x, jnp.broadcast_to(y, x.shape)),
        )

    return grown(x), grown(x * 1e6), jax.lax.scan(lambda _, row: (grown(row[None])[0], row), x[:1], x)


def _chosen(p: Any, x: Any, y: Any) -> Any:
    """A choice by a truth value, and in a loop by an index beyond its range: computed, a loop's, or what is given."""

    def step(state: Any, row: Any) -> Any:
        number = jnp.sum(row).astype(jnp.int32)
        branches = [lambda s, r: (s @ p["w"], r), lambda s, r: (r, s), lambda s, r: (jnp.sin(s), jnp.exp(r) @ p["w"])]
        state, seen = jax.lax.switch(number, branches, state, row)
        return state, (seen, state)

    last, rows = jax.lax.scan(step, y[0], x)
    first, second = jax.lax.cond(jnp.max(x) > 1, lambda: (x, y * 2), lambda: (jnp.cos(x), y))
    return last, rows, first, second


LOOPS: dict[str, Callable[[], Net]] = {
    "recurrent": lambda: Net(_recurrent, {"in": _normal(8, 8), "own": _normal(8, 8)[::-1].copy()}, (_normal(12, 8),)),
    "handed on": lambda: Net(_handed_on, {"w": _normal(3, 5)}, (_normal(7, 5), _normal(2, 2))),
    "nested": lambda: Net(_nested, {"w": _normal(8, 8) / 4}, (_normal(6, 5, 8),)),
    "chosen": lambda: Net(_chosen, {"w": _normal(8, 8) / 4}, (_normal(9, 8), _normal(2, 8))),
    "until": lambda: Net(
        _until, {"w": _normal(8, 8), "most": np.full(8, 40, np.float32)}, (np.abs(_normal(4, 8)), _normal(1, 8))
    ),
}
CASES: dict[str, Callable[[], Net]] = {
    "mlp": lambda: Net(_mlp, {"first": _normal(24, 40), "second": _normal(40, 16)}, (_normal(7, 24),)),
    "convolutions and concat": lambda: fire(16, 8, 16, 14),
    "attention": lambda: bert(1, 32, 2, 9),
    "depthwise": lambda: inverted_residual(cin=8, cout=8, expand=2, size=9),
    "passed on": lambda: Net(_passed_on, {"w": _normal(8, 8)}, (_normal(8, 8), _normal(8, 8)[::-1].copy())),
    **LOOPS,
}


def built(fn: Callable[..., Any], params: Any, *inputs: Any) -> MixedExecutable:
    """A program whose every region is a kernel with its default schedule."""
    imported = import_function(fn, (params, *inputs), frozen=0)
    program = split(imported.graph, frozen_cut(imported.graph))
    chosen = specs_of(program.hot, [(r, None) for r in partition_program(program.hot)])
    executable = mixed.build(program, imported.frozen_values, kernels=chosen)
    assert isinstance(executable, MixedExecutable)
    return executable


def native(executable: MixedExecutable) -> NativeProgram:
    """The program without XLA."""
    assert isinstance(executable.native, NativeProgram), executable.native
    return executable.native


@functools.cache
def case(name: str) -> tuple[MixedExecutable, NativeProgram, tuple[np.ndarray, ...]]:
    """A case as it is called inside XLA, without XLA, and its arguments."""
    net = CASES[name]()
    executable = built(net.fn, net.params, *net.inputs)
    return executable, native(executable), tuple(np.asarray(x) for x in jax.tree.leaves(net.inputs))
