"""Kernels in bodies of control flow: values, numbers of regions and their runs, files, transformations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import superopt
from superopt.backends import mixed
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.program import frozen_cut, original_program, split
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.choose.partition import partition_bodies
from superopt.kernels.choose.regions import region_of
from superopt.kernels.choose.specs import read_spec, regions_of, specs_of
from superopt.kernels.llvm.cpu import supported

pytestmark = pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512")
X, W = [np.random.default_rng(n).standard_normal((4, 16) if n else (16, 16)).astype(np.float32) / 4 for n in (1, 0)]
ROWS = np.random.default_rng(2).standard_normal((5, 4, 16)).astype(np.float32)


def step(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) + 0.1


def scanned(x: Any, w: Any, rows: Any) -> Any:
    return lax.scan(lambda h, row: (step(h, w) + row, jnp.sum(h * row, -1)), x, rows)


def nested(x: Any, w: Any, rows: Any) -> Any:
    def outer(h: Any, row: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, y: step(y, w) - row, h), None

    return lax.scan(outer, x, rows)[0]


def backwards(x: Any, w: Any, rows: Any) -> Any:
    return lax.scan(lambda h, row: (step(h, w), h * row), x, rows, reverse=True)


def until(x: Any, w: Any, rows: Any) -> Any:
    def far(state: Any) -> Any:
        return (jnp.sum(state[1] ** 2) > 1e-2) & (state[2] < 50)

    def closer(state: Any) -> Any:
        return step(state[0], w), state[1] * 0.5 + rows[0] * 0.01, state[2] + 1

    return lax.while_loop(far, closer, (x, x, 0))


def branches(x: Any, w: Any, rows: Any) -> Any:
    pick = [lambda y: step(y, w), lambda y: jnp.exp(-y), lambda y: jax.nn.softmax(y, -1)]
    return [lax.switch(lax.convert_element_type(rows[0, 0, 0], np.int32) + n, pick, x) for n in range(3)]


def twice(x: Any, w: Any, rows: Any) -> Any:
    """Two loops with one body, whose value is one of the program around them as well."""

    def body(h: Any, row: Any) -> Any:
        return step(h, w), row

    one, _ = lax.scan(body, x, rows)
    two, _ = lax.scan(body, one + 1.0, rows)
    return one, two, step(x, w)


PROGRAMS = (scanned, nested, backwards, until, branches, twice)


def kernels_of(fn: Any) -> tuple[Any, Any]:
    """The original program of a function and specs of all regions in its bodies."""
    program = original_program(import_function(fn, (X, W, ROWS)).graph)
    regions = [region for region in partition_bodies(program.hot) if not region.is_free]
    return program, specs_of(program.hot, [(region, None) for region in regions])


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values_are_those_of_the_original(fn: Any) -> None:
    program, specs = kernels_of(fn)
    assert specs
    executable = mixed.build(program, (), kernels=specs)
    assert not executable.refused
    want = jax.tree_util.tree_leaves(jax.jit(fn)(X, W, ROWS))
    for got, wanted in zip(executable(X, W, ROWS), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_numbers_of_regions_are_those_of_the_text(fn: Any) -> None:
    program, specs = kernels_of(fn)
    again = parse_graph(print_graph(program.hot))
    read = [read_spec(spec.to_json()) for spec in specs]
    assert [r.graph for r in regions_of(again, read)] == [r.graph for r in regions_of(program.hot, specs)]


def test_a_region_runs_as_often_as_the_loops_around_it() -> None:
    graph = import_function(nested, (X, W, ROWS)).graph
    assert {region.runs for region in partition_bodies(graph)} == {15}


def test_what_is_computed_of_scalars_stays_with_xla() -> None:
    graph = import_function(lambda n: lax.while_loop(lambda i: i < n, lambda i: i * 2 + 1, 0), (np.int32(9),)).graph
    assert not partition_bodies(graph)


V = np.random.default_rng(3).standard_normal((128, 128)).astype(np.float32) / 12
H = np.random.default_rng(4).standard_normal((128, 128)).astype(np.float32)


def in_scan(h: Any, v: Any) -> Any:
    return lax.scan(lambda h, _: (jnp.tanh(h @ v.T) + v, None), h, None, length=3)[0]


def in_two_loops(h: Any, v: Any) -> Any:
    def outer(_: Any, h: Any) -> Any:
        return lax.while_loop(lambda h: jnp.sum(h @ v.T) > 1e9, lambda h: h, jnp.tanh(h @ v.T)) - in_scan(h, v)

    return lax.fori_loop(0, 2, outer, h)


def in_branches(h: Any, v: Any) -> Any:
    return [lax.cond(h[0, 0] > n, lambda h: h @ v.T, lambda h: h - 1.0, h) for n in (-9.0, 9.0)]


@pytest.mark.parametrize("fn", [in_scan, in_two_loops, in_branches])
def test_weights_of_bodies_are_packed_ahead(fn: Any) -> None:
    imported = import_function(fn, (H, V), frozen=1)
    program = split(imported.graph, frozen_cut(imported.graph))
    regions = [region for region in partition_bodies(program.hot) if not region.is_free]
    specs = specs_of(program.hot, [(region, None) for region in regions])
    executable = mixed.build(program, imported.frozen_values, kernels=specs)
    assert executable.packed
    assert not executable.refused
    for values in (V, -V):
        given = executable.run(H, *executable.prepare([values]))
        for got, wanted in zip(given, jax.tree.leaves(jax.jit(fn)(H, values)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_not_known_ahead_is_left_to_xla() -> None:
    x, w = make_input("x", (128, 128)), make_input("w", (128, 128), frozen=True)
    product = mk("dot_general", x, w, dimension_numbers=(((1,), (1,)), ((), ())))
    loop = mk(
        "scan", make_input("v", (128, 128)), make_input("h", (128, 128)), body=Graph((w, x), (product,)), num_consts=1,
        num_carry=1, length=3, reverse=False, unroll=1,
    )  # fmt: skip
    program = original_program(Graph(loop.inputs, (loop,)))
    executable = mixed.build(program, (), kernels=specs_of(program.hot, [(region_of(product, (x, w)), None)]))
    assert [*executable.refused.values()] == ["it packs what is not known ahead"]
    np.testing.assert_allclose(executable(V, H)[0], ((H @ V.T) @ V.T) @ V.T, rtol=1e-3, atol=1e-3)


def test_loops_are_optimised_saved_and_transformed(tmp_path: Path) -> None:
    fast = superopt.optimize(scanned, X, W, ROWS, frozen=1, search=False, deterministic=True)
    assert fast.kernels
    want = scanned(X, W, ROWS)
    fast.save(tmp_path / "loop.superopt")
    for made in (fast, superopt.load(tmp_path / "loop.superopt"), jax.jit(fast)):
        for got, wanted in zip(jax.tree.leaves(made(X, W, ROWS)), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    several = jax.vmap(fast, (0, None, None))(np.stack([X, 2 * X]), W, ROWS)
    np.testing.assert_allclose(several[0][0], want[0], rtol=2e-5, atol=2e-5)
    given = [jax.grad(lambda x, f=f: jnp.sum(f(x, W, ROWS)[0]))(X) for f in (fast, scanned)]
    np.testing.assert_allclose(*given, rtol=2e-4, atol=2e-5)


def test_the_report_draws_a_loop_as_one_box() -> None:
    fast = superopt.optimize(nested, X, W, ROWS, search=False, deterministic=True)
    assert fast.kernels
    assert fast.report.drawing is not None
    assert not fast.report.lost


def test_specs_of_bodies_that_do_not_fit_are_refused() -> None:
    program, specs = kernels_of(scanned)
    with pytest.raises(InputError, match="does not fit the program"):
        regions_of(program.hot, [replace(specs[0], reads=specs[0].reads[:1])])


def test_products_behind_loops_are_saved_and_valid(tmp_path: Path) -> None:
    def filters(x: Any, w: Any, rows: Any) -> Any:
        def run(rate: float) -> Any:
            def step(h: Any, row: Any) -> tuple[Any, Any]:
                h = jnp.tanh(rate * h + row)
                return h, h @ w

            return lax.scan(step, x, rows)[1]

        return run(0.5), run(0.9)

    fast = superopt.optimize(filters, X, W, ROWS, search=False, deterministic=True)
    assert fast.report.loop_steps == {"sunk": 2, "hoisted": 2}
    fast.save(tmp_path / "loops.superopt")
    assert superopt.load(tmp_path / "loops.superopt").validate().valid
    for have, want in zip(fast(X, W, ROWS), filters(X, W, ROWS), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-5)


def test_without_a_search_work_leaves_loops_by_proved_steps(tmp_path: Path) -> None:
    def recurrent(x: Any, w: Any, rows: Any) -> Any:
        return lax.scan(lambda h, row: (jnp.tanh(h + row @ w), None), x, rows)[0]

    fast = superopt.optimize(recurrent, X, W, ROWS, search=False, deterministic=True)
    assert fast.report.loop_steps == {"hoisted": 1}
    assert len(fast.plan.loops) == 1
    fast.save(tmp_path / "loop.superopt")
    assert superopt.load(tmp_path / "loop.superopt").validate().valid
    np.testing.assert_allclose(fast(X, W, ROWS), recurrent(X, W, ROWS), rtol=2e-5, atol=2e-5)
    exact = superopt.optimize(recurrent, X, W, ROWS, search=False, deterministic=True, numerics="exact")
    assert not exact.report.loop_steps
