"""Kernels of loaded programs are compared with XLA's values once; those that differ are left to XLA."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from superopt.backends import made, native
from superopt.frontends.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.kernel_checks import disagreeing
from superopt.kernels.choice import Choice, choices_of
from superopt.kernels.cpu import supported
from superopt.kernels.partition import partition

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
    monkeypatch.setattr("superopt.kernel_checks._of_xla", lambda *_: pytest.fail("it is compared again"))
    assert disagreeing(graph, choices) == {}


def test_a_kernel_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, choices = chosen(2.0)
    other = partition(chosen(2.5)[0])[0].graph
    wrong = native.compiled(other)
    monkeypatch.setattr(native, "compiled", lambda graph, _: native.Compiled(wrong.hot, wrong.prepare, graph))
    found = disagreeing(graph, choices)
    assert list(found) == [0]
    assert "differs from XLA's values" in found[0]
