"""Every op against `jax.lax`, over random attributes: type rule, values over the grid, values at one index.

Interpreter, prover and kernels read the same denotations, so this comparison is what the trust in them rests on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from superopt.ir.graph import Node, mk, topological
from superopt.ir.interp import evaluate
from superopt.ir.ops.table import TABLE
from superopt.ir.types import FLOATS
from superopt.machine.jitting import jit_quickly
from tests.support import ir_cases
from tests.support.oracles import evaluate_at

OPS = [name for name, op in TABLE.items() if op.at is not None and name != "macro"]
EPSILON = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-9}
# XLA computes these by approximations that are coarser than one rounding
LOOSE = {
    "erf_inv": 20,
    "lgamma": 20,
    "logistic": 2,
    "digamma": 60,
    "tan": 30,
    "pow": 30,
    "sinh": 10,
    "cosh": 10,
    "exp2": 30,
}
LOOSE |= {"reduce_sum": 30, "reduce_prod": 30, "cumsum": 30, "cumprod": 100, "dot_general": 30}
LOOSE |= {
    "inverse": 60,
    "solve": 60,
    "conv_general_dilated": 60,
    "reduce_window_sum": 30,
    "integer_pow": 20,
    "exp": 10,
    "expm1": 10,
}
ROUNDED_ONCE = {"asinh", "log1p"}
"""Functions whose steps XLA's quick code rounds to halves one by one."""
_FUNCTION = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def _reference(node: Node) -> Callable[..., Any]:
    """The op in `jax.lax`, written from the attributes of the node and independent of the backend's lowering."""
    a = dict(node.attrs)
    if TABLE[node.op].family == "elementwise" and not a:
        return getattr(lax, _FUNCTION.get(node.op, node.op))
    match node.op:
        case "round":
            return lambda x: lax.round(x, lax.RoundingMethod(a["rounding_method"]))
        case "convert_element_type":
            return lambda x: lax.convert_element_type(x, jnp.dtype(a["new_dtype"]))
        case "regroup":
            order = [axis for ins, _ in a["groups"] for axis in ins]
            return lambda x: lax.reshape(lax.transpose(x, order), [n for _, outs in a["groups"] for n in outs])
        case "barrier":
            return lax.optimization_barrier
        case "concatenate":
            return lambda *xs: lax.concatenate(xs, a["dimension"])
        case "iota":
            return lambda: lax.broadcasted_iota(jnp.dtype(a["dtype"]), a["shape"], a["dimension"])
        case "argmax" | "argmin":
            return lambda x: getattr(lax, node.op)(x, a["axes"][0], jnp.dtype(a["index_dtype"]))
        case "reduce_window_sum" | "reduce_window_max" | "reduce_window_min":
            return lambda x: getattr(lax, f"{node.op}_p").bind(x, **a)
        case "dynamic_slice":
            return lambda x, *starts: lax.dynamic_slice_p.bind(x, *starts, **a)
        case "dynamic_update_slice":
            return lambda x, update, *starts: lax.dynamic_update_slice_p.bind(x, update, *starts)
        case "gather":
            sizes, mode = a.pop("slice_sizes"), a.pop("mode")
            return lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers(**a), sizes, mode=mode)
        case "inverse" | "solve":
            return {"inverse": jnp.linalg.inv, "solve": jnp.linalg.solve}[node.op]
        case "segment_sum":
            count = a["segments"]
            return lambda x, i: (
                jnp.zeros((count + 1, *x.shape[i.ndim :]), x.dtype).at[jnp.where(i < 0, count, i)].add(x)[:count]
            )
        case "dot_general" | "conv_general_dilated":
            if node.op != "dot_general":
                a["dimension_numbers"] = lax.ConvDimensionNumbers(*a["dimension_numbers"])
            return lambda x, y: getattr(lax, node.op)(x, y, **a)
        case _:
            return lambda *xs: getattr(lax, node.op)(*xs, **a)


def _rng(op: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(op.encode()))


def _operands(node: Node, env: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [env[x["name"]] if x.op == "input" else np.asarray(x["value"], jnp.dtype(x.dtype)) for x in node.inputs]


def _close(op: str, got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    if dtype not in FLOATS or (TABLE[op].family in ("movement", "indexing") and op != "segment_sum"):
        np.testing.assert_array_equal(got, want)
        return
    eps = EPSILON[dtype] * LOOSE.get(op, 1)
    tiny = {"float16": 1e-6, "bfloat16": 1e-6}.get(dtype, eps / 30)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=eps, atol=tiny, equal_nan=True)


@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("op", OPS)
def test_op_is_lax(op: str, count: int) -> None:
    rng = _rng(op)
    nodes = ir_cases.samples(op, rng, count)
    cases = [(node, ir_cases.values(node, rng)) for node in nodes]
    functions = [_reference(node) for node in nodes]
    with jax.enable_x64(True):
        arguments = [_operands(node, env) for node, env in cases]
        shapes = jax.eval_shape(lambda args: [f(*xs) for f, xs in zip(functions, args, strict=True)], arguments)
        compiled = (jax.jit if op in ROUNDED_ONCE else jit_quickly)(
            lambda args: [f(*xs) for f, xs in zip(functions, args, strict=True)]
        )
        results = compiled(arguments)
    for (node, env), aval, result in zip(cases, shapes, results, strict=True):
        assert (aval.shape, str(aval.dtype)) == (node.shape, node.dtype), node
        want = np.asarray(result)
        (got,) = evaluate([node], env)
        assert (got.shape, str(got.dtype)) == (want.shape, str(want.dtype)), node
        try:
            _close(op, got, want, node.dtype)
        except AssertionError as error:
            raise AssertionError(f"{node} on {[str(x.type) for x in node.inputs]}: {error}") from None
        _one_index(node, env, got, rng)


def _one_index(node: Node, env: dict[str, np.ndarray], whole: np.ndarray, rng: np.random.Generator) -> None:
    if not whole.size:
        return
    index = tuple(int(rng.integers(n)) for n in whole.shape)
    one = evaluate_at(node, env, index)
    assert one.dtype == whole.dtype
    _close(node.op, np.asarray(one), np.asarray(whole[index]), node.dtype)


@pytest.mark.parametrize("op", ["scan", "while", "cond"])
def test_control_flow_is_lax(op: str) -> None:
    rng = _rng(op)
    for node in ir_cases.samples(op, rng, 4):
        env = ir_cases.values(node, rng)
        got = evaluate([_result(node, j) for j in range(len(node.types))], env)
        for x, want in zip(got, _run_control(node, _operands(node, env)), strict=True):
            np.testing.assert_allclose(x, np.asarray(want), rtol=1e-6, atol=1e-6)


def _result(node: Node, index: int) -> Node:
    return mk("result", node, index=index)


def _run_control(node: Node, xs: list[Any]) -> tuple[Any, ...]:
    def call(body: Any, *args: Any) -> tuple[Any, ...]:
        names = {n["name"]: x for n, x in zip(body.inputs, args, strict=True)}
        done: dict[Node, Any] = {}
        for n in topological(body.outputs):
            done[n] = (
                names[n["name"]]
                if n.op == "input"
                else jnp.asarray(n["value"], n.dtype)
                if n.op == "literal"
                else _reference(n)(*[done[x] for x in n.inputs])
            )
        return tuple(done[n] for n in body.outputs)

    if node.op == "scan":
        c, s, x = xs
        carry, ys = lax.scan(lambda k, r: call(node["body"], c, k, r), jnp.asarray(s), x, reverse=node["reverse"])
        return carry, ys
    if node.op == "while":
        limit, step, *state = xs
        return lax.while_loop(
            lambda v: call(node["cond"], limit, *v)[0],
            lambda v: call(node["body"], step, *v),
            tuple(map(jnp.asarray, state)),
        )
    return lax.switch(xs[0], [lambda *v, b=b: call(b, *v) for b in node["branches"]], *xs[1:])
