"""JAX programs as users write them: arguments of every kind, batched loops, numbers that become arrays."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from superopt.backends.xla import build
from superopt.errors import ArgumentError
from superopt.frontends.jax.boundary import outside
from superopt.frontends.jax.call import calls_of_import
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import original_program
from tests.support.jax_programs import rand


class Program:
    """A function imported and built as it stands, called like an optimised one."""

    def __init__(self, fn: Any, *args: Any, **options: Any) -> None:
        self.imported = import_function(fn, args, **options)
        executable = build(original_program(self.imported.graph), self.imported.frozen_values)
        self.call = outside(self.imported.fn, calls_of_import(self.imported, executable)[1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def same(fn: Any, *args: Any) -> Program:
    """Program and original agree in structure, types and values."""
    fast = Program(fn, *args)
    want, got = jax.jit(fn)(*args), fast(*args)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(np.asarray(a).astype(wide), np.asarray(b).astype(wide), rtol=1e-5, atol=1e-5)
    return fast


# ---- loops under vmap


def halve(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda s: s[0] > 1.0, lambda s: (s[0] / 2, s[1] + 1), (x, 0))[1]


def test_loops_whose_end_depends_on_the_element() -> None:
    x = jnp.array([0.5, 3.0, 100.0, 7.0])
    same(jax.vmap(halve), x)
    same(jax.vmap(jax.vmap(halve)), x.reshape(2, 2))
    same(jax.vmap(lambda n: lax.fori_loop(0, n, lambda i, c: c * 2 + i, 1)), jnp.arange(5))


def test_batched_loops_read_what_they_close_over() -> None:
    def f(x: jax.Array, limit: jax.Array, w: jax.Array) -> jax.Array:
        return lax.while_loop(lambda s: jnp.sum(s) < limit, lambda s: jnp.abs(w @ s) + 1.0, x)

    fast = same(jax.vmap(f, (0, 0, None)), rand(3, 4), jnp.array([10.0, 0.0, 50.0]), rand(4, 4))
    assert not fast.imported.opaque_ops


def test_batched_loops_over_keys_and_complex_state() -> None:
    def draws(key: Any, limit: jax.Array) -> Any:
        def step(s: Any) -> Any:
            key, total, count = s
            key, sub = jax.random.split(key)
            return key, total + jax.random.uniform(sub), count + 1j

        return lax.while_loop(lambda s: s[1] < limit, step, (key, 0.0, 0j))

    same(jax.vmap(draws), jax.random.split(jax.random.key(1), 3), jnp.array([0.0, 1.0, 3.0]))
    keys = jax.random.split(jax.random.key(0), 3)
    same(jax.vmap(lambda k, r: jax.random.poisson(k, r)), keys, jnp.array([1.0, 4.0, 9.0]))


# ---- arguments


def test_typed_keys() -> None:
    key = jax.random.key(3)
    fast = same(lambda k, x: x + jax.random.normal(k, x.shape), key, rand(4, 3))
    other = jax.random.key(4)
    np.testing.assert_allclose(fast(other, rand(4, 3)), rand(4, 3) + jax.random.normal(other, (4, 3)), 1e-6)
    same(lambda k: jax.random.split(k, 3), key)
    same(lambda k: {"key": k[0], "n": jax.random.uniform(k[1])}, jax.random.split(key))
    same(lambda n: jax.random.key(n), np.int32(3))
    same(lambda k: jax.random.fold_in(k, 3), jax.random.key(0, impl="rbg"))
    for wrong in (jax.random.key_data(key), jax.random.key(0, impl="rbg")):
        with pytest.raises(ArgumentError, match="the program was made for"):
            fast(wrong, rand(4, 3))


def test_typed_keys_under_transformations() -> None:
    fast = Program(lambda k, x: jnp.sum(x**2 * jax.random.uniform(k, x.shape)), jax.random.key(3), rand(4))
    keys = jax.random.split(jax.random.key(0), 3)

    def slow(k: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(x**2 * jax.random.uniform(k, x.shape))

    np.testing.assert_allclose(jax.vmap(fast, (0, None))(keys, rand(4)), jax.vmap(slow, (0, None))(keys, rand(4)), 1e-6)
    np.testing.assert_allclose(jax.grad(fast, 1)(keys[0], rand(4)), jax.grad(slow, 1)(keys[0], rand(4)), 1e-6)
    np.testing.assert_allclose(jax.jit(fast)(keys[0], rand(4)), slow(keys[0], rand(4)), 1e-6)


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_dtypes_outside_of_the_op_table(dtype: str) -> None:
    x = jnp.asarray([[1, 2, 3], [4, 5, 6]]).astype(dtype)
    wide = "complex64" if dtype[0] == "c" else "float32"
    fast = same(lambda x, y: (x, jnp.abs(x.astype(wide) @ y)), x, rand(3, 2))
    with pytest.raises(ArgumentError, match="the program was made for"):
        fast.imported.flatten((rand(2, 3), rand(3, 2)))
    with jax.enable_x64(True):
        same(lambda z: z * jnp.conj(z), jnp.asarray([1 + 2j, 3j], "complex128"))


def test_frozen_and_closed_over_arrays_outside_of_the_op_table() -> None:
    w, key = jnp.asarray([1 + 1j, 2j], "complex64"), jax.random.key(5)
    half = jnp.asarray([1, 2], "float8_e5m2")
    same(lambda x: jnp.real(x * w) + jax.random.normal(key, (2,)) + half.astype("float32"), rand(2))
    fast = Program(lambda w, k, x: jnp.real(w * x) + jax.random.normal(k, (2,)), w, key, rand(2), frozen=(0, 1))
    want = jnp.real(w * rand(2)) + jax.random.normal(key, (2,))
    np.testing.assert_allclose(fast(w, key, rand(2)), want, rtol=1e-6)
    np.testing.assert_allclose(fast(2 * w, key, rand(2)), want + jnp.real(w * rand(2)), rtol=1e-6)


def test_functions_and_names_within_arguments() -> None:
    def apply(model: dict[str, Any], x: jax.Array) -> Any:
        y = model["act"](x @ model["w"])
        return y.sum(0) if model["reduce"] == "sum" else y

    model = {"w": rand(3, 2), "act": jax.nn.relu, "reduce": "sum", "kind": jnp.float32}
    fast = Program(apply, model, rand(4, 3), frozen=0)
    np.testing.assert_allclose(fast(model, rand(4, 3)), apply(model, rand(4, 3)), rtol=1e-6)
    with pytest.raises(ArgumentError, match="structure"):
        fast({**model, "act": jnp.tanh}, rand(4, 3))
    step = Program(lambda m, x: {**m, "w": m["w"] * x}, model, 2.0)
    got = step(model, 2.0)
    assert (got["act"], got["reduce"]) == (jax.nn.relu, "sum")
    np.testing.assert_allclose(got["w"], 2 * model["w"])
    np.testing.assert_allclose(jax.grad(lambda x: fast(model, x).sum())(rand(4, 3)),
                               jax.grad(lambda x: apply(model, x).sum())(rand(4, 3)), rtol=1e-6)  # fmt: skip


# ---- numbers that become arrays

State = namedtuple("State", "step params")


def test_a_counter_that_begins_as_a_number() -> None:
    def update(state: State, x: jax.Array) -> State:
        return State(state.step + 1, state.params - 0.1 * x / (state.step + 1))

    fast, state, slow = Program(update, State(0, rand(3)), rand(3)), State(0, rand(3)), State(0, rand(3))
    for _ in range(3):
        state, slow = fast(state, rand(3)), update(slow, rand(3))
    assert state.step == 3
    np.testing.assert_allclose(state.params, slow.params, rtol=1e-6)


def test_a_number_whose_type_decides_another_is_not_an_array() -> None:
    fast = Program(lambda x, s: x * s, jnp.ones(3, "bfloat16"), 2.0)
    assert fast(jnp.ones(3, "bfloat16"), 3.0).dtype == "bfloat16"
    for _ in range(2):
        with pytest.raises(ArgumentError, match="argument s is an array"):
            fast(jnp.ones(3, "bfloat16"), np.float32(2.0))


# ---- what user code raises


def test_the_line_that_raised_is_shown() -> None:
    def broken(x: jax.Array) -> Any:
        y = x + 1
        return y["name"]

    with pytest.raises(ArgumentError, match=r'TypeError in test_jax_programs\w+.py:\d+ \(`return y\["name"\]`\)'):
        import_function(broken, (rand(3),))


# ---- products of mixed types


def test_products_of_integers_and_floats_are_no_opaque_operations() -> None:
    mask = jnp.arange(12).reshape(3, 4) % 2
    fast = same(lambda m, x: jnp.einsum("hk,kd->hd", m, x), mask, rand(4, 5))
    assert not fast.imported.opaque_ops
    assert not same(lambda m, x: m @ x, mask.astype(bool), rand(4, 5)).imported.opaque_ops
    dot = lambda a, b: lax.dot(a, b, preferred_element_type=jnp.float32)  # noqa: E731
    same(dot, mask.astype("int8"), rand(4, 5))
    same(dot, rand(4, 5).astype("bfloat16"), rand(5, 2))
