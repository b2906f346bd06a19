"""Attention as it is written: every form is one region and one kernel, right against float64, and proved."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from superopt.errors import InputError, UsageError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.expr import const, convert, op
from superopt.kernels.choose.chains import chain
from superopt.kernels.choose.defaults import default
from superopt.kernels.choose.partition import partition
from superopt.kernels.choose.regions import is_chained
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import host, supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.show import digest
from superopt.kernels.loops.stage import Buffer, Loop, LoopProgram, Stage
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.trace import apply
from superopt.schedules.features import features
from superopt.schedules.space import space_of
from superopt.schedules.workload import workload
from tests.support.sampling import one_in, sampled
from verifier.schedules import check_schedule

B, T, N, D = 2, 24, 3, 16
_RNG = np.random.default_rng(0)


def _array(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


_SEEN = _RNG.random((B, N, T, T)) > 0.3
_SEEN[..., 0] = True
_SOME_ROWS = _SEEN.copy()
_SOME_ROWS[0, 1, 3:7] = False
LAST = (_array(B, T, N, D), _array(B, T, N, D), _array(B, T, N, D))
HEADS = (_array(B, N, T, D), _array(B, N, T, D), _array(B, N, T, D))
FEW_KEYS = (_array(B, T, 4, D), _array(B, T, 2, D), _array(B, T, 2, D))
ONE_KEY = (_array(B, T, 4, D), _array(B, T, 1, D), _array(B, T, 1, D))
Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]


def _of_scores(change: Callable[..., Any], *more: np.ndarray, out: str = "bhts,bhsd->bhtd") -> Case:
    """Softmax of changed scores."""

    def fn(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import jax
        from jax import numpy as jnp

        s = jnp.einsum("bhtd,bhsd->bhts", q, k) * 0.25
        return jnp.einsum(out, jax.nn.softmax(change(s, *rest), -1), v)

    return fn, (*HEADS, *more)


def _lax(arrays: tuple[np.ndarray, ...], *more: np.ndarray, names: tuple[str, ...] = (), **options: Any) -> Case:
    """`jax.nn.dot_product_attention`."""

    def fn(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        import jax

        return jax.nn.dot_product_attention(q, k, v, **dict(zip(names, rest, strict=True)), **options)

    return fn, (*arrays, *more)


def _masked(least: float, seen: np.ndarray = _SEEN) -> Case:
    def change(s: Any, m: Any) -> Any:
        from jax import numpy as jnp

        return jnp.where(m, s, least)

    return _of_scores(change, seen)


def _causal(least: float, out: str = "bhts,bhsd->bhtd") -> Case:
    def change(s: Any) -> Any:
        from jax import numpy as jnp

        return jnp.where(jnp.arange(T)[:, None] >= jnp.arange(T)[None, :], s, least)

    return _of_scores(change, out=out)


def _added(scale: float) -> Case:
    def change(s: Any) -> Any:
        from jax import numpy as jnp

        return s + (1 - jnp.tril(jnp.ones((T, T)))) * scale

    return _of_scores(change)


def _written(fn: Callable[..., Any], arrays: tuple[np.ndarray, ...] = HEADS) -> Case:
    return fn, arrays


def _scaled_queries(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax import numpy as jnp

    return jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", q * 0.25, k), -1), v)


def _last_layout(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax import numpy as jnp

    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) * 0.25, -1), v)


def _values_transposed(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax import numpy as jnp

    scores = jnp.einsum("bthd,bhds->bhts", q, k) * 0.25
    return jnp.einsum("bhts,bhds->bthd", jax.nn.softmax(scores, -1), v).reshape(B, T, N * D)


def _own_softmax(q: Any, k: Any, v: Any) -> Any:
    from jax import numpy as jnp

    s = q @ k.swapaxes(-1, -2) * 0.25
    p = jnp.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def _divided_after(q: Any, k: Any, v: Any) -> Any:
    from jax import numpy as jnp

    s = q @ k.swapaxes(-1, -2) * 0.25
    p = jnp.exp(s - s.max(-1, keepdims=True))
    return (p @ v) / p.sum(-1, keepdims=True)


def _rotated(q: Any, k: Any, v: Any, c: Any, s: Any) -> Any:
    import jax
    from jax import numpy as jnp

    def turn(x: Any) -> Any:
        return x * c + jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1) * s

    return jax.nn.softmax(turn(q) @ turn(k).swapaxes(-1, -2) * 0.25, -1) @ v


def _sigmoid(q: Any, k: Any, v: Any) -> Any:
    import jax

    return jax.nn.sigmoid(q @ k.swapaxes(-1, -2) * 0.25) @ v


def _mapped(q: Any, k: Any, v: Any) -> Any:
    import jax

    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T * 0.25, -1) @ v

    return jax.vmap(jax.vmap(one))(q, k, v)


def _softmax_where(q: Any, k: Any, v: Any, m: Any) -> Any:
    import jax

    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.25, -1, where=m) @ v


def _capped(s: Any) -> Any:
    from jax import numpy as jnp

    return 30.0 * jnp.tanh(s / 30.0)


_LEAST = float(np.finfo(np.float32).min)
FORMS: dict[str, Case] = {
    "jax.nn": _lax(LAST),
    "jax.nn, causal": _lax(LAST, is_causal=True),
    "jax.nn, bias": _lax(LAST, _array(B, N, T, T), names=("bias",)),
    "jax.nn, mask": _lax(LAST, _SEEN, names=("mask",)),
    "jax.nn, mask of whole rows": _lax(LAST, _SOME_ROWS, names=("mask",)),
    "jax.nn, bias, mask, causal": _lax(LAST, _array(B, N, T, T), _SEEN, names=("bias", "mask"), is_causal=True),
    "jax.nn, heads that share keys": _lax(FEW_KEYS),
    "jax.nn, heads that share keys, causal": _lax(FEW_KEYS, is_causal=True),
    "jax.nn, one head of keys": _lax(ONE_KEY),
    "jax.nn, window": _lax(LAST, local_window_size=(4, 0)),
    "jax.nn, lengths": _lax(LAST, np.array([20, 24], np.int32), names=("key_value_seq_lengths",)),
    "jax.nn, fewer queries than keys, causal": _lax((_array(B, 13, N, D), *LAST[1:]), is_causal=True),
    "queries scaled": _written(_scaled_queries),
    "scores scaled": _of_scores(lambda s: s),
    "heads last": _written(_last_layout, LAST),
    "result transposed": _of_scores(lambda s: s, out="bhts,bhsd->bhdt"),
    "result transposed, causal": _causal(-np.inf, out="bhts,bhsd->bhdt"),
    "bias": _of_scores(lambda s, b: s + b, _array(B, N, T, T)),
    "mask -inf": _masked(-np.inf),
    "mask -inf, whole rows": _masked(-np.inf, _SOME_ROWS),
    "mask -1e9": _masked(-1e9),
    "mask -1e9, whole rows": _masked(-1e9, _SOME_ROWS),
    "mask finfo.min": _masked(_LEAST),
    "softmax(where=)": _written(_softmax_where, (*HEADS, _SEEN)),
    "causal -inf": _causal(-np.inf),
    "causal -1e9": _causal(-1e9),
    "causal added": _added(-1e9),
    "padding added": _of_scores(lambda s, p: s + (1 - p[:, None, None, :]) * -1e9, _SEEN[:, 0, 0].astype(np.float32)),
    "scores capped": _of_scores(_capped),
    "keys and values transposed": _written(_values_transposed, (LAST[0], _array(B, N, D, T), _array(B, N, D, T))),
    "own softmax": _written(_own_softmax),
    "divided after": _written(_divided_after),
    "rotated": _written(_rotated, (*HEADS, _array(T, D), _array(T, D))),
    "sigmoid": _written(_sigmoid, (_array(1, 2, 80, D), _array(1, 2, 80, D), _array(1, 2, 80, D))),
    "vmap": _written(_mapped),
}


def _program(fn: Callable[..., Any], arrays: tuple[Any, ...]) -> tuple[LoopProgram, dict[str, np.ndarray]]:
    """The function as one stage, and its inputs by name; asserts that it is one region."""
    import jax

    with jax.enable_x64(any(x.dtype == np.float64 for x in arrays)):
        imported = import_function(fn, list(arrays), {})
    (region,) = partition(imported.graph)
    assert is_chained(region)
    program = from_graph(imported.graph.outputs)
    given = [b.name for b in program.buffers if b.scope == "input"]
    assert len(imported.names) == len(arrays)
    named = {**dict(zip(imported.names, arrays, strict=True)), **imported.graph.constants}
    constants = [b.name for b in program.buffers if b.scope == "frozen"]
    return program, {name: np.asarray(named[name]) for name in (*given, *constants)}


def _error(program: LoopProgram, inputs: dict[str, np.ndarray]) -> float:
    """The largest error against float64, of the largest value; NaN in the same places, schedule proved."""
    found = chain(program, "out0", host())
    made = None if found is None else found.default()
    assert made is not None
    wide = {n: x if x.dtype in (np.bool_, np.int32) else x.astype(np.float64) for n, x in inputs.items()}
    expected = evaluate(program, wide, wide=True)["out0"]
    got = build(generate(made[0])).run(inputs, threads=2, guard=True)["out0"].astype(np.float64)
    assert (np.isnan(got) == np.isnan(expected)).all()
    assert check_schedule(program, made[0]).proved
    return float(np.nanmax(np.abs(got - expected)) / max(1.0, np.nanmax(np.abs(expected))))


needs_code = pytest.mark.skipif(not supported(), reason="no code is made for this processor")


@needs_code
@pytest.mark.parametrize("name", sampled(FORMS, one_in(3)))
def test_a_form_of_attention_is_one_kernel(name: str) -> None:
    assert _error(*_program(*FORMS[name])) < 3e-6


def _half_softmax(q: Any, k: Any, v: Any) -> Any:
    import jax

    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.25, -1) @ v


def _wide_softmax(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax import numpy as jnp

    s = (q @ k.swapaxes(-1, -2)).astype(jnp.float32) * 0.25
    return jax.nn.softmax(s, -1).astype(q.dtype) @ v


def _wide_scores(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax import numpy as jnp

    s = jnp.einsum("bhtd,bhsd->bhts", q, k, preferred_element_type=jnp.float32) * 0.25
    return jax.nn.softmax(s, -1).astype(q.dtype) @ v


def _all_wide(q: Any, k: Any, v: Any) -> Any:
    from jax import numpy as jnp

    return _half_softmax(*[x.astype(jnp.float32) for x in (q, k, v)]).astype(q.dtype)


HALVES: dict[str, Case] = {
    "softmax in 16 bits": (_half_softmax, HEADS),
    "softmax in float32": (_wide_softmax, HEADS),
    "scores in float32": (_wide_scores, HEADS),
    "all in float32": (_all_wide, HEADS),
    "jax.nn": _lax(LAST),
    "jax.nn, causal": _lax(LAST, is_causal=True),
    "jax.nn, heads that share keys": _lax(FEW_KEYS),
}


@needs_code
@pytest.mark.parametrize("name", HALVES)
def test_attention_of_16_bit_floats_is_rounded_once(name: str) -> None:
    fn, arrays = HALVES[name]
    program, inputs = _program(fn, tuple([_half(x) for x in arrays]))
    found = chain(program, "out0", host())
    made = None if found is None else found.default()
    assert made is not None
    assert all(b.dtype == "float32" for b in made[0].buffers if b.scope in ("local", "scratch"))
    half_an_ulp = 2.0**-8 * 2.0  # of results below 4
    assert _error(program, inputs) < half_an_ulp


def _half(x: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)


@needs_code
@pytest.mark.parametrize("name", ["heads last", "bias", "causal -inf", "result transposed"])
def test_attention_of_64_bit_floats(name: str) -> None:
    fn, arrays = FORMS[name]
    assert _error(*_program(fn, tuple([x.astype(np.float64) for x in arrays]))) < 1e-14


def test_what_else_is_read_of_scores_keeps_them_in_memory() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        import jax

        p = jax.nn.sigmoid(q @ k.swapaxes(-1, -2))
        return p @ v, p.sum(0)

    regions = partition(import_function(fn, list(HEADS), {}).graph)
    assert not [r for r in regions if is_chained(r)]


def test_products_whose_middle_is_small_are_two_regions() -> None:
    def fn(x: Any, a: Any, b: Any) -> Any:
        return (x @ a) @ b

    regions = partition(import_function(fn, [_array(64, 96), _array(96, 8), _array(8, 96)], {}).graph)
    assert len(regions) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_between_products_is_proved(dtype: str, causal: bool) -> None:
    import ml_dtypes

    def fn(x: Any, w: Any, out: Any) -> Any:
        import jax

        q, k, v = [(x @ w[j]).reshape(1, 80, 2, 16) for j in range(3)]
        return x + jax.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(80, 32) @ out

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    arrays = [_array(*shape).astype(kind) for shape in ((80, 32), (3, 32, 32), (32, 32))]
    regions = partition(import_function(fn, arrays, {}, frozen=(1, 2)).graph)
    (joined,) = [r for r in regions if is_chained(r)]
    assert all(r.kind == "contraction" for r in regions)
    program = from_graph(joined.graph.outputs)
    for threads in (1, 4):
        assert check_schedule(program, default(program, threads=threads)).proved


# ---- roundings


def _rounding(stored: str, narrow: str) -> LoopProgram:
    """A sum of values that are rounded to another dtype on the way."""
    from superopt.ir.expr import load, reduce
    from superopt.ir.index import Symbol, of_atom

    row, it = Symbol("o0", 0, 5), Symbol("r0", 0, 4)
    x = op("mul", "float32", load("x", (of_atom(row), of_atom(it)), "float32"), const(0.75, "float32"))
    value = reduce("sum", (it,), convert(convert(x, "float32", narrow), narrow, "float32"))
    buffers = (Buffer("x", (6, 5), "float32", "input"), Buffer("out0", (6,), stored, "output"))
    if stored != "float32":
        value = convert(value, "float32", stored)
    return LoopProgram("kernel", buffers, (Stage("out0", (Loop(row),), (of_atom(row),), value),))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_without_roundings_to_16_bits_a_value_is_the_same_over_the_reals(stored: str) -> None:
    program = _rounding(stored, "bfloat16")
    after = apply(program, [["widen", "out0"]])
    verdict = check_schedule(program, after)
    assert verdict.proved
    assert verdict.exactness == "real"


def test_roundings_to_integers_stay() -> None:
    program, other = _rounding("float32", "int32"), _rounding("float32", "bfloat16")
    assert check_schedule(program, apply(other, [["widen", "out0"]])).status == "REFUTED"


def test_what_compares_rounded_values_is_not_widened() -> None:
    def fn(x: Any) -> Any:
        return ((x * x) > x).astype(x.dtype) * x

    program = from_graph(import_function(fn, [_half(_array(4, 5))], {}).graph.outputs)
    with pytest.raises(InputError, match="sees how its operand was rounded"):
        apply(program, [["widen", "out0"]])


@pytest.mark.parametrize(("preset", "dtype", "op_name"), [
    ("BF16_BF16_F32", "bfloat16", "dot_general"), ("F16_F16_F32", "float16", "dot_general"),
    ("F32_F32_F32", "float32", "opaque"),
])  # fmt: skip
def test_an_algorithm_that_says_what_the_dtypes_do_is_a_product(preset: str, dtype: str, op_name: str) -> None:
    from jax import lax
    from jax import numpy as jnp

    def fn(x: Any, y: Any) -> Any:
        return jnp.matmul(x, y, precision=lax.DotAlgorithmPreset[preset], preferred_element_type=jnp.float32)

    graph = import_function(fn, [jnp.ones((4, 5), dtype), jnp.ones((5, 3), dtype)], {}).graph
    (node,) = graph.outputs
    assert node.op == op_name


# ---- the space of schedules


@needs_code
@pytest.mark.parametrize("name", ["attention f32 3x70x16 causal", "attention bf16 2x50x32 keys 90"])
def test_attention_has_a_space_of_schedules_with_the_default_in_it(name: str) -> None:
    program = from_graph(workload(name).outputs)
    space = space_of(program)
    assert space.size > 500
    assert apply(program, space.trace(space.start)) == default(program)
    rng = random.Random(1)
    inputs = {b.name: _RNG.standard_normal(b.shape).astype(b.dtype) for b in program.buffers if b.scope == "input"}
    wide = {n: x.astype(np.float64) for n, x in inputs.items()}
    expected = evaluate(program, wide, wide=True)["out0"]
    seen: set[str] = set()
    for _ in range(5):
        point = space.mutate(space.sample(rng), rng)
        after = apply(program, space.trace(point))
        seen.add(digest(after))
        assert np.isfinite(features(after)).all()
        got = build(generate(after)).run(inputs, threads=2, guard=True)["out0"].astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=1e-2 if "bf16" in name else 2e-5, atol=1e-5)
        assert check_schedule(program, after).proved
    assert len(seen) > 3


def test_a_chain_among_other_stages_keeps_its_default() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        return _half_softmax(q, k, v), q.sum(-1)

    program = from_graph(import_function(fn, list(HEADS), {}).graph.outputs)
    space = space_of(program, host())
    assert space.size == 1
    assert apply(program, space.trace(space.start)) == default(program)


@pytest.mark.parametrize("text", ["attention f32 3x70", "attention f32 3x70x16 wide", "attention s8 3x70x16"])
def test_operators_that_are_no_attention_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        workload(text)
