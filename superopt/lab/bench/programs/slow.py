"""Originals whose calls take as long as is asked: by callbacks, loops, products and slow operators."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.experimental import io_callback
from onnx import TensorProto, helper, numpy_helper

from superopt.frontends.onnx.frontend import load_model

SIZE = 64
_TRIED_S = 0.1  # of a call by which a program is scaled
_TURNS = 8  # of a callback in a loop

SlowProgram = tuple[Any, tuple[Any, ...]]
"""A function or the path of a model, and example arguments."""


def _asleep(seconds: float) -> Callable[[Any], Any]:
    def slow(x: Any) -> Any:
        time.sleep(seconds)
        return np.asarray(x)

    return slow


def _by_callback(call: Callable[..., Any], turns: int, seconds: float) -> SlowProgram:
    slow = _asleep(seconds / turns)

    def fn(x: jax.Array) -> jax.Array:
        def turn(_: Any, x: jax.Array) -> jax.Array:
            return jnp.tanh(call(slow, jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32), x))

        y = turn(0, x) if turns == 1 else jax.lax.fori_loop(0, turns, turn, x)
        return jnp.tanh(y @ y.T) * 2

    return fn, (_values(SIZE),)


def _values(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((size, size)).astype(np.float32) / np.float32(size**0.5)


def _scaled(make: Callable[[int], SlowProgram], first: int, seconds: float) -> SlowProgram:
    """The original of so many steps that a call takes as long, by calls of fewer steps."""
    steps = first
    while True:
        fn, args = make(steps)
        call = _called(fn)
        jax.block_until_ready(call(*args))
        begin_s = time.perf_counter()
        jax.block_until_ready(call(*args))
        took_s = time.perf_counter() - begin_s
        if took_s >= _TRIED_S:
            return make(max(1, round(steps * seconds / took_s)))
        steps *= 4


def _called(fn: Any) -> Callable[..., Any]:
    if not isinstance(fn, Path):
        return jax.jit(fn)
    model = load_model(fn)
    return functools.partial(jax.jit(model.fn), dict(model.params))


def _fori(steps: int) -> SlowProgram:
    def fn(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda i, x: jnp.sin(x) + 1.0 / (i + 1.0), x) @ x

    return fn, (_values(SIZE),)


def _while(steps: int) -> SlowProgram:
    def fn(x: jax.Array) -> jax.Array:
        def turn(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            count, x = state
            return count + 1, jnp.cos(x)

        return jax.lax.while_loop(lambda state: state[0] < steps, turn, (jnp.int32(0), x))[1] @ x

    return fn, (_values(SIZE),)


def _scan(steps: int) -> SlowProgram:
    def fn(x: jax.Array) -> jax.Array:
        def turn(x: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jnp.tanh(x * row)
            return x, x.sum()

        x, sums = jax.lax.scan(turn, x, jnp.ones((steps, SIZE), jnp.float32))
        return x @ x + sums.mean()

    return fn, (_values(SIZE),)


def _products(steps: int) -> SlowProgram:
    def fn(x: jax.Array) -> jax.Array:
        y = x
        for _ in range(steps):
            y = y @ x
        return jnp.tanh(y)

    return fn, (_values(2048),)


def _file(nodes: Sequence[Any], x: np.ndarray, stored: Mapping[str, np.ndarray]) -> SlowProgram:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "slow", ends[:1], ends[1:], tensors)
    path = Path(mkdtemp()) / "slow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path, (x,)


def _lrn(steps: int) -> SlowProgram:
    nodes = [helper.make_node("LRN", ["x"], ["z"], size=2 * steps + 1), helper.make_node("Relu", ["z"], ["y"])]
    return _file(nodes, _values(SIZE).reshape(1, 16, 16, 16), {})


def _onnx_loop(steps: int) -> SlowProgram:
    kept, again, before, after = "kept", "again", "before", "after"
    inputs = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info(kept, TensorProto.BOOL, []),
        helper.make_tensor_value_info(before, TensorProto.FLOAT, [SIZE, SIZE]),
    ]
    outputs = [
        helper.make_tensor_value_info(again, TensorProto.BOOL, []),
        helper.make_tensor_value_info(after, TensorProto.FLOAT, [SIZE, SIZE]),
    ]
    turn = [helper.make_node("Identity", [kept], [again]), helper.make_node("Sin", [before], [after])]
    body = helper.make_graph(turn, "turn", inputs, outputs)
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    return _file(nodes, _values(SIZE), {"count": np.array(steps, np.int64)})


def _onnx_products(steps: int) -> SlowProgram:
    nodes = [helper.make_node("MatMul", [f"y{i}", "w"], [f"y{i + 1}"]) for i in range(steps)]
    nodes = [
        helper.make_node("Relu", ["x"], ["y0"]), *nodes, helper.make_node("Relu", [f"y{steps}"], ["y"])
    ]  # fmt: skip
    return _file(nodes, _values(2048), {"w": _values(2048)})


_BY_CALLBACK: dict[str, tuple[Callable[..., Any], int]] = {
    "callback": (jax.pure_callback, 1),
    "callback-loop": (jax.pure_callback, _TURNS),
    "io-callback": (lambda slow, kind, x: io_callback(slow, kind, x, ordered=True), 1),
}
_BY_STEPS: dict[str, tuple[Callable[[int], SlowProgram], int]] = {
    "fori": (_fori, 4096),
    "while": (_while, 4096),
    "scan": (_scan, 4096),
    "products": (_products, 1),
    "onnx-lrn": (_lrn, 256),
    "onnx-loop": (_onnx_loop, 4096),
    "onnx-products": (_onnx_products, 1),
}
KINDS = (*_BY_CALLBACK, *_BY_STEPS)


def original(kind: str, seconds: float) -> SlowProgram:
    """An original of this kind whose calls take so long."""
    if kind in _BY_CALLBACK:
        return _by_callback(*_BY_CALLBACK[kind], seconds)
    return _scaled(*_BY_STEPS[kind], seconds)
