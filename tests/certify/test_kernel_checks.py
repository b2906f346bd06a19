"""Kernels of loaded programs are compared with XLA's values once; those that differ are left to XLA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.backends import made, mixed, native
from superopt.backends.protocol import CompiledRegion
from superopt.certify import kernels
from superopt.certify.kernels import disagreeing, too_large
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import original_program
from superopt.kernels.choose.choice import Choice, choices_of
from superopt.kernels.choose.partition import partition
from superopt.kernels.llvm.cpu import supported
from superopt.machine.speedup import Speedup
from superopt.report.data import Measurement, Report
from superopt.returned.optimized import Optimized

pytestmark = pytest.mark.skipif(not supported(), reason="no kernels are made for this processor")


def chosen(factor: float) -> tuple[Graph, tuple[Choice, ...]]:
    x, w = jnp.zeros((9, 40)), jnp.zeros((40, 33))
    graph = import_function(lambda x, w: jax.nn.relu(x @ w) * factor, (x, w), frozen=(1,)).graph
    return graph, choices_of(graph, [(r, None) for r in partition(graph)])


def test_a_kernel_that_agrees_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    assert disagreeing(graph, choices) == {}
    (region,) = partition(graph)
    assert made.agrees(made.key_of(region.graph, native.default_trace(region.graph)))
    monkeypatch.setattr("superopt.certify.kernels._of_xla", lambda *_: pytest.fail("it is compared again"))
    assert disagreeing(graph, choices) == {}


def test_a_kernel_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    other = partition(chosen(2.5)[0])[0].graph
    wrong = native.compiled(other)
    monkeypatch.setattr(native, "compiled", lambda graph, _: CompiledRegion(wrong.hot, wrong.prepare, graph))
    found = disagreeing(graph, choices)
    assert list(found) == [0]
    assert "differs from XLA's values" in found[0]


def scaled(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2.0 + jnp.exp(x)


def test_what_takes_long_to_compare_waits_for_a_call_with_arrays(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x = jnp.linspace(0.0, 1.0, 40).reshape(4, 10)
    imported = import_function(scaled, (x,))
    program = original_program(imported.graph)
    choices = choices_of(program.hot, [(r, None) for r in partition(program.hot)])
    measured = Measurement(speedup=Speedup(1.0, 1.0, 1.0))
    report = Report(program="scaled", verdict="made by a test", measured=measured, original_returned=False)
    executable = mixed.build(program, (), kernels=choices)
    path = Optimized(imported, program, executable, report, None, choices).save(tmp_path / "p.superopt")
    asked: list[object] = []
    compare = kernels._difference
    monkeypatch.setattr(kernels, "_difference", lambda *case: asked.append(case) or compare(*case))
    monkeypatch.setattr(kernels, "MOST_ELEMENTS", 40)
    loaded = superopt.load(path)
    assert not asked
    assert not loaded.kernels
    (why,) = loaded.refused.values()
    assert "at the first call: it works on 120 elements" in why
    jax.eval_shape(loaded, x)
    assert not asked
    np.testing.assert_allclose(loaded(x), scaled(x), rtol=1e-5)
    assert len(asked) == len(loaded.kernels) == 1
    assert loaded.refused == {}
    np.testing.assert_allclose(loaded(x), scaled(x), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(lambda x: loaded(x).sum())(x), jax.grad(lambda x: scaled(x).sum())(x), rtol=1e-5
    )
    assert len(asked) == 1
    assert superopt.load(path).kernels  # it is known to agree


def test_shapes_that_a_small_file_states_do_not_make_loading_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(rows: int, live: int = 1) -> bool:
        graph = import_function(scaled, (jax.ShapeDtypeStruct((rows, 1000), "float32"),)).graph
        (choice,) = choices_of(graph, [(r, None) for r in partition(graph)])
        return list(too_large(graph, [choice], live)) == [0]

    assert late(200_000)
    assert not late(1000)
    monkeypatch.setattr(kernels, "MOST_SECONDS", 0.19)
    assert late(1000)
    assert not late(1000, live=0)  # the file holds as many elements
