"""Chains of contractions in one kernel: attention in its forms, its schedule's proof, and wrong schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.expr import const, op, reduce, subexpressions, where
from superopt.ir.graph import Graph
from superopt.ir.index import Guard, Symbol, all_of, nonnegative
from superopt.kernels.choose.chains import chain, is_chain
from superopt.kernels.choose.partition import cost_of, partition
from superopt.kernels.choose.regions import is_chained
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm.cpu import Cpu, host, supported
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.kernels.runtime.kernel import build
from superopt.kernels.schedule.edit import rewritten
from superopt.kernels.schedule.trace import apply
from tests.support.sampling import one_in, sampled
from verifier.schedules import check_schedule

WIDE = Cpu("skylake-avx512", (), 512, 32, False, False, 32 << 10, 1 << 20, 0)


def attention(kind: str, scale: float = 0.25) -> Callable[..., Any]:
    """One head for each element of the first axis; b is added to the scores where the kind says so."""

    def fn(q: Any, k: Any, v: Any, b: Any) -> Any:
        import jax
        from jax import numpy as jnp

        s = jnp.einsum("bqd,bkd->bqk", q, k) * scale
        rows, keys = s.shape[1:]
        if kind == "causal":
            s = jnp.where(jnp.tril(jnp.ones((rows, keys), bool), keys - rows), s, -jnp.inf)
        if kind == "window":
            far = jnp.arange(rows)[:, None] - jnp.arange(keys)[None, :]
            s = jnp.where((far >= 0) & (far < 3), s, -jnp.inf)
        if kind == "finite":
            s = jnp.where(jnp.arange(rows)[:, None] >= jnp.arange(keys)[None, :], s, -1e30)
        if kind == "added":
            s = s + b
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(s, -1), v)

    return fn


def graph_of(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    """The graph of a function of float32 arrays."""
    return import_function(fn, [np.zeros(s, np.float32) for s in shapes], {}).graph


def case(kind: str, batch: int, rows: int, keys: int, depth: int, width: int) -> LoopProgram:
    """Attention as one stage."""
    shapes = ((batch, rows, depth), (batch, keys, depth), (batch, keys, width), (rows, keys))
    return from_graph(graph_of(attention(kind), *shapes).outputs)


def values(program: LoopProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Standard normal inputs."""
    rng = np.random.default_rng(seed)
    found = [b for b in program.buffers if b.scope == "input"]
    return {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in found}


def scheduled(program: LoopProgram, cpu: Cpu = WIDE) -> LoopProgram:
    """With the schedule of a chain."""
    with mock.patch("superopt.kernels.schedule.tensorizing.host", return_value=cpu):
        found = chain(program, "out0", cpu)
        made = None if found is None else found.default()
    assert made is not None
    return made[0]


SIZES = st.tuples(
    st.sampled_from(["plain", "causal", "window", "finite", "added"]), st.integers(1, 3),
    st.sampled_from([8, 13, 16, 31, 50]),
    st.sampled_from([2, 7, 16, 37]), st.sampled_from([2, 5, 16]), st.sampled_from([2, 8, 17, 33]),
)  # fmt: skip


@settings(max_examples=16, deadline=None, derandomize=True)
@given(SIZES)
def test_a_chain_computes_what_its_stage_did_and_is_proved(size: tuple[str, int, int, int, int, int]) -> None:
    kind, batch, rows, keys, depth, width = size
    keys = max(keys, rows) if kind in ("causal", "window", "finite") else keys
    program = case(kind, batch, rows, keys, depth, width)
    after = scheduled(program)
    inputs = values(program)
    expected = evaluate(program, inputs, wide=True)["out0"]
    np.testing.assert_allclose(evaluate(after, inputs, wide=True)["out0"], expected, rtol=1e-9, atol=1e-11)
    assert check_schedule(program, after).proved


CHAINS = [
    (kind, size)
    for kind in ("plain", "causal", "window", "finite", "added")
    for size in ((2, 8, 8, 2, 2), (1, 37, 41, 5, 19), (3, 70, 70, 16, 33), (12, 96, 96, 64, 64))
]


@pytest.mark.skipif(not supported(), reason="no code is made for this processor")
@pytest.mark.parametrize(("kind", "size"), sampled(CHAINS, one_in(5, list)))
def test_the_kernel_of_a_chain(kind: str, size: tuple[int, int, int, int, int]) -> None:
    program = case(kind, *size)
    inputs = values(program)
    expected = evaluate(program, {n: x.astype(np.float64) for n, x in inputs.items()}, wide=True)["out0"]
    found = build(generate(scheduled(program, host()))).run(inputs, threads=2, guard=True)["out0"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.skipif(not supported(), reason="no code is made for this processor")
@pytest.mark.parametrize("kind", ["plain", "causal"])
def test_long_rows_lie_on_the_heap(kind: str) -> None:
    program = case(kind, 1, 37, 9001, 3, 5)
    inputs = values(program)
    cpu = replace(host(), l2=1 << 18, l3=1 << 24)
    assert chain(program, "out0", replace(cpu, l3=0)) is None
    with mock.patch("superopt.kernels.schedule.tensorizing.host", return_value=cpu):
        found = chain(program, "out0", cpu, threads=2)
        made = None if found is None else found.default()
    assert made is not None
    code = generate(made[0])
    text = code.module.text()
    assert text.count("call ptr @aligned_alloc(") == text.count("call void @free(") >= 1, "each function returns once"
    expected = evaluate(program, {n: x.astype(np.float64) for n, x in inputs.items()}, wide=True)["out0"]
    np.testing.assert_allclose(build(code).run(inputs, threads=2, guard=True)["out0"], expected, rtol=2e-5, atol=2e-6)


def test_every_choice_is_a_schedule() -> None:
    program = case("causal", 2, 70, 70, 16, 33)
    inputs = values(program)
    expected = evaluate(program, inputs, wide=True)["out0"]
    with mock.patch("superopt.kernels.schedule.tensorizing.host", return_value=WIDE):
        found = chain(program, "out0", WIDE)
        assert found is not None
        named = {d.name: d.options for d in found.decisions.decisions}
        blocks = {block: (block, rows) for block, rows in named["queries"]}
        picked = [(q, c) for q in blocks.values() for c in (named["columns"][0], named["columns"][-1])]
        points = [{"queries": q, "columns": c, "keys": 0, "unroll": 1} for q, c in picked]
        assert len(points) >= 4
        for point in points:
            after = apply(found.program, found.decisions.steps(point))
            np.testing.assert_allclose(evaluate(after, inputs, wide=True)["out0"], expected, rtol=1e-9)


@pytest.mark.skipif(not supported(), reason="no code is made for this processor")
@pytest.mark.parametrize("kind", ["causal", "window", "plain"])
@pytest.mark.parametrize("keys", [64, 128])
def test_blocks_of_keys_behind_the_last_one_that_counts(kind: str, keys: int) -> None:
    program = case(kind, 1, 9, 200, 7, 31)
    if kind != "plain":
        program = from_graph(graph_of(_first_rows(kind), (1, 9, 7), (1, 200, 7), (1, 200, 31)).outputs)
    inputs = values(program)
    expected = evaluate(program, {n: x.astype(np.float64) for n, x in inputs.items()}, wide=True)["out0"]
    for unroll in (1, 2, 4):
        found = chain(program, "out0", host())
        assert found is not None
        point = {"queries": (host().lanes("float32"), 2), "columns": (1, 2), "keys": keys, "unroll": unroll}
        after = apply(found.program, found.decisions.steps(point))
        got = build(generate(after)).run(inputs, guard=True)["out0"]
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def _first_rows(kind: str) -> Callable[..., Any]:
    """Masks that begin at the first key: the last keys count for no row."""

    def fn(q: Any, k: Any, v: Any) -> Any:
        import jax
        from jax import numpy as jnp

        s = jnp.einsum("bqd,bkd->bqk", q, k)
        far = jnp.arange(s.shape[1])[:, None] - jnp.arange(s.shape[2])[None, :]
        s = jnp.where((far >= 0) & (far < (3 if kind == "window" else 1000)), s, -jnp.inf)
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(s, -1), v)

    return fn


def test_the_scores_are_local_and_tiles_are_inside_the_task() -> None:
    after = scheduled(case("plain", 2, 80, 80, 16, 32))
    assert not [b for b in after.buffers if b.scope == "scratch"]
    assert sum(s.tile is not None for s in after.stages) == 2
    assert [s.buffer for s in after.phases()] == ["out0"]


def test_what_is_no_chain_or_too_large_for_the_cache_is_left_alone() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    program = from_graph(graph_of(product, (16, 16), (16, 16)).outputs)
    assert not is_chain(program.stage("out0"))
    assert chain(program, "out0", WIDE) is None
    small = replace(WIDE, l2=1 << 12)
    assert chain(case("plain", 1, 64, 64, 16, 16), "out0", small) is None
    assert chain(case("plain", 1, 1, 64, 16, 16), "out0", WIDE) is None


# ---- wrong schedules


def _without_rescale(program: LoopProgram) -> LoopProgram:
    """The result is not divided by the sum of the row."""
    host_stage = program.stage("out0")
    new = replace(host_stage, value=host_stage.value.operands[0])
    return replace(program, stages=tuple([new if s is host_stage else s for s in program.stages]))


def _other_mask(program: LoopProgram) -> LoopProgram:
    """Each row sees one key too few."""
    stage = next(s for s in program.stages if s.value.kind == "where")
    first = stage.value.args[0].ordered[0]
    guard = nonnegative(first - 1)
    assert isinstance(guard, Guard)
    value = where(guard, lambda: stage.value.args[1], lambda: stage.value.args[2])
    return replace(program, stages=tuple([replace(s, value=value) if s is stage else s for s in program.stages]))


def _sum_of_fewer(program: LoopProgram) -> LoopProgram:
    """The row sum misses its last term."""
    stage = next(s for s in program.stages if s.value.kind == "reduce" and s.value.args[0] == "sum")
    _, (it,), body = stage.value.args
    value = reduce("sum", (Symbol(it.name, 0, it.high - 1),), body)
    return replace(program, stages=tuple([replace(s, value=value) if s is stage else s for s in program.stages]))


def _not_shifted(program: LoopProgram) -> LoopProgram:
    """Half of the shift by the row's maximum is forgotten: sums and products are not of the same exponentials."""
    stage = next(s for s in program.stages if s.buffer == "out0")

    def change(e: Any) -> Any:
        return op("mul", e.dtype, e, const(0.5, e.dtype)) if e.kind == "load" and e.args[0] == last else None

    last = next(e.args[0] for e in subexpressions(stage.value.operands[1]) if e.kind == "load")
    new = rewritten(stage, change)
    return replace(program, stages=tuple([new if s is stage else s for s in program.stages]))


def _skips_too_much(program: LoopProgram) -> LoopProgram:
    """The last block of keys that a block of rows sees is left out too."""

    def fewer(guard: Any) -> Any:
        ends = [p - 4 if p in limits else p for p in guard.ordered]
        return all_of(*map(nonnegative, ends))

    stage = program.stage("out0")
    (total,) = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    limits = set(total.args[2].args[0].ordered)

    def change(e: Any) -> Any:
        if e.kind == "reduce" and e.args[2].kind == "where":
            guard, then, orelse = e.args[2].args
            return reduce(e.args[0], e.args[1], where(fewer(guard), lambda: then, lambda: orelse))
        return None

    return replace(program, stages=tuple([rewritten(s, change) for s in program.stages]))


@pytest.mark.parametrize(("kind", "skips"), [("causal", True), ("finite", True), ("plain", False)])
def test_blocks_that_a_causal_mask_excludes_are_skipped(kind: str, skips: bool) -> None:
    stage = scheduled(case(kind, 2, 70, 70, 4, 16)).stage("out0")
    (total,) = [e for e in subexpressions(stage.value) if e.kind == "reduce"]
    assert (total.args[2].kind == "where") == skips


@pytest.mark.parametrize("wrong", [_skips_too_much, _without_rescale, _other_mask, _sum_of_fewer, _not_shifted])
def test_wrong_chains_are_refuted(wrong: Callable[[LoopProgram], LoopProgram]) -> None:
    program = case("causal", 2, 24, 24, 2, 4)
    after = scheduled(program, replace(WIDE, vector_bits=128))
    assert check_schedule(program, after).proved
    bad = wrong(after)
    assert bad != after
    verdict = check_schedule(program, bad)
    assert not verdict.proved
    assert verdict.status == "REFUTED"


@pytest.mark.parametrize(("least", "proved"), [(-np.inf, True), (-1e30, False), (-1e3, False)])
def test_rows_that_may_be_masked_as_a_whole(least: float, proved: bool) -> None:
    """Leaving out what is masked is right with minus infinity, and wrong with a number that such a row counts."""
    from jax import lax
    from jax import numpy as jnp

    def fn(x: Any) -> Any:
        i, j = lax.broadcasted_iota("int32", (6, 5), 0), lax.broadcasted_iota("int32", (6, 5), 1)
        s = jnp.where(i >= j + 2, x, least)
        return jnp.sum(jnp.exp(s - jnp.max(s, 1, keepdims=True)), 1)

    before = from_graph(graph_of(fn, (6, 5)).outputs)
    stage = apply(before, [["choose", "out0"]]).stage("out0")

    def change(e: Any) -> Any:
        if e.kind != "reduce" or e.args[0] != "sum":
            return None
        body = e.args[2]
        guard = next(x for x in subexpressions(body.operands[0].operands[0]) if x.kind == "where").args[0]
        return reduce("sum", e.args[1], where(guard, lambda: body, lambda: const(0, body.dtype)))

    after = replace(before, stages=(rewritten(stage, change),))
    assert check_schedule(before, after).proved == proved


@pytest.mark.parametrize(("compare", "proved"), [("ge", True), ("gt", False)])
def test_choices_by_positions_are_guards(compare: str, proved: bool) -> None:
    from jax import lax
    from jax import numpy as jnp

    def fn(x: Any) -> Any:
        i, j = lax.broadcasted_iota("int32", (6, 5), 0), lax.broadcasted_iota("int32", (6, 5), 1)
        return jnp.where(i >= j, x, 0.0)

    def other(x: Any) -> Any:
        i, j = lax.broadcasted_iota("int32", (6, 5), 0), lax.broadcasted_iota("int32", (6, 5), 1)
        return jnp.where(getattr(lax, compare)(i, j), x, 0.0)

    before, after = (from_graph(graph_of(f, (6, 5)).outputs) for f in (fn, other))
    verdict = check_schedule(before, apply(after, [["choose", "out0"]]))
    assert verdict.proved == proved
    assert proved or verdict.status == "REFUTED"


# ---- in programs


def heads(q: Any, k: Any, v: Any) -> Any:
    """Heads split by index maps, scores masked with a finite number, heads merged again."""
    import jax
    from jax import numpy as jnp

    def split(x: Any) -> Any:
        return x.reshape(2, -1, 3, 16)

    return jax.nn.dot_product_attention(split(q), split(k), split(v), is_causal=True).reshape(2, -1, 48) + jnp.sin(q)


def test_attention_is_one_region_with_the_work_of_its_parts() -> None:
    regions = partition(graph_of(heads, (2, 40, 48), (2, 40, 48), (2, 40, 48)))
    (joined,) = [r for r in regions if is_chained(r)]
    assert cost_of(joined).flops < 8 * 2 * 3 * 40 * 40 * 16
    assert all(r.kind != "rows" for r in regions)


def test_scores_that_are_read_elsewhere_stay_in_memory() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        import jax
        from jax import numpy as jnp

        p = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k), -1)
        return jnp.einsum("bqk,bkd->bqd", p, v), p

    regions = partition(graph_of(fn, (2, 40, 16), (2, 40, 16), (2, 40, 16)))
    assert not [r for r in regions if is_chained(r)]


def test_a_sum_of_all_quadratic_forms_is_no_chain() -> None:
    """Its last product has one element, so nothing goes along a vector."""

    def fn(x: Any, w: Any) -> Any:
        from jax import numpy as jnp

        return jnp.sum(x * (x @ w), 1) @ jnp.ones(x.shape[0], x.dtype)

    program = from_graph(graph_of(fn, (40, 8), (8, 8)).outputs)
    assert chain(program, program.stages[-1].buffer, WIDE) is None
