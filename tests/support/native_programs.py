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


CASES: dict[str, Callable[[], Net]] = {
    "mlp": lambda: Net(_mlp, {"first": _normal(24, 40), "second": _normal(40, 16)}, (_normal(7, 24),)),
    "convolutions and concat": lambda: fire(16, 8, 16, 14),
    "attention": lambda: bert(1, 32, 2, 9),
    "depthwise": lambda: inverted_residual(cin=8, cout=8, expand=2, size=9),
    "passed on": lambda: Net(_passed_on, {"w": _normal(8, 8)}, (_normal(8, 8), _normal(8, 8)[::-1].copy())),
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
