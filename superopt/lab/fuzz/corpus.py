"""Programs that were once wrong, lost or crashed: they come first in every run of the fuzzer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from superopt.lab.fuzz.case import FuzzCase, FuzzValue

_W, _X = FuzzValue("x0", (64, 64), "float32"), FuzzValue("x1", (8, 64), "float32")


def _jax(code: str, *inputs: FuzzValue, frozen: tuple[int, ...] = (), mode: str = "deterministic") -> FuzzCase:
    """A program of one line."""
    line = FuzzValue("v0", (), "float32", code)
    return FuzzCase(0, inputs, (line,), ("v0",), frozen, mode)


def _onnx(op: str, attributes: dict[str, Any], result: tuple[tuple[int, ...], str], *inputs: FuzzValue) -> FuzzCase:
    """A model of one node."""
    names = ", ".join(x.name for x in inputs)
    line = FuzzValue("v0", *result, f"{op}({names}) {json.dumps(attributes)}")
    return FuzzCase(0, inputs, (line,), ("v0",), (), "deterministic", "onnx")


def _mean_of_signs(x: FuzzValue) -> FuzzCase:
    """A mean of integers, rounded towards zero; where the sum overflows there is no value to compare with."""
    signs, mean = (
        FuzzValue("v0", x.shape, x.dtype, f"Sign({x.name}) {{}}"),
        FuzzValue("v1", (1, 1), x.dtype, "ReduceMean(v0) {}"),
    )
    return FuzzCase(0, (x,), (signs, mean), ("v1",), (), "deterministic", "onnx")


def corpus() -> list[FuzzCase]:
    """The programs that once failed."""
    neutral = ("jnp.exp(x0) * 1.0", "jnp.exp(x0) + 0.0", "jnp.tanh(x0) / 1.0", "jax.nn.softmax(x0) * 1.0")
    shapes = ((2, 8, 16), (2, 32, 33))
    integers = FuzzValue("x0", (3, 4), "int32")
    return [
        *(_jax(f"x1 @ ({code})", _W, _X, frozen=(0,)) for code in neutral),
        *(_jax("jnp.pad(x0, 1, mode='reflect')", FuzzValue("x0", s, "float32"), mode="kernels") for s in shapes),
        _jax("(x1 @ x0) @ x0", _W, _X, frozen=(0,), mode="recall"),
        _jax("jax.vmap(lambda a: lax.while_loop(lambda s: s < 50, lambda s: s * 2 + 1, a))(x0)",
             FuzzValue("x0", (5,), "uint32")),
        _jax("lax.dot_general(x0, x1, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)",
             FuzzValue("x0", (3, 4), "int32"), FuzzValue("x1", (4, 2), "float32")),
        _jax("jnp.zeros((4, 2)).at[x0].add(x1)",
             FuzzValue("x0", (3,), "int32"), FuzzValue("x1", (3, 2), "float32"), mode="save"),
        _jax("(jax.debug.print('{}', x0.sum()), x0 * 2)[1]", FuzzValue("x0", (3,), "float32")),
        _jax("lax.fori_loop(0, 20, lambda i, t: t - 0.1 * jax.grad(lambda u: jnp.sum(jnp.sin(u) ** 2))(t), x0)",
             FuzzValue("x0", (16,), "float32")),
        _mean_of_signs(integers),
        _onnx("Shrink", {"bias": 0.5, "lambd": 0.5}, ((3, 4), "int32"), integers),
        _onnx("Gemm", {"alpha": 0.5, "transB": 1}, ((3, 3), "int32"), integers, replace(integers, name="x1")),
    ]  # fmt: skip
