"""Kernels on floats: what a field cannot see is seen against float64; rounding in any order is not taken for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.nn import softmax

from superopt.backends.native import Native, parts_of
from superopt.frontends.jax.jaxpr import import_function
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram
from superopt.lab.corpora.kernels import edits
from verifier.floats.bounds import parts
from verifier.floats.check import DRAWS, drawn, farther, values
from verifier.floats.machine import KernelPart, MachineCode
from verifier.kernels.check import validate
from verifier.kernels.scalars import known
from verifier.verdict import PROVED, UNKNOWN

Array = Any


def of(
    fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32"
) -> tuple[LoopProgram, list[KernelPart]]:
    """The loop program of a function, and the parts of its kernel."""
    arrays = [jnp.ones(shape, dtype) for shape in shapes]
    graph = import_function(fn, arrays, frozen=()).graph
    return from_graph(graph.outputs), parts_of(graph)


@functools.cache
def row(name: str, program: str) -> dict[str, Any]:
    edit = next(e for e in edits.EDITS if e.name == name)
    return edits.tried(edit, program)


SAMPLE = [
    ("a large constant comes and goes in products", "layer norm"),
    ("one comes and goes in differences", "reversal"),
    ("multiply-adds are rounded to float16", "convolution"),
    ("multiply-adds are rounded to bfloat16", "product of rows"),
    ("multiply-adds lose small terms", "product"),
    ("multiply-adds overflow", "chain"),
    ("products are flushed", "transpose"),
    ("differences overflow", "reversal"),
    ("sums are accumulated in float16", "softmax"),
    ("sums of lanes are rounded to bfloat16", "softmax"),
    ("operands are rounded to bfloat16", "pool"),
    ("differences by way of a quotient", "reversal"),
    ("comparisons of rounded operands", "conditions"),
    ("extrema of rounded operands", "pool"),
]


@pytest.mark.parametrize(("name", "program"), SAMPLE)
def test_edits_of_the_generator_are_seen_on_floats_alone(name: str, program: str) -> None:
    found = row(name, program)
    assert found["status"] == UNKNOWN
    assert found["wrong"]
    assert "farther from float64" in found["cause"]


@pytest.mark.slow
def test_all_edits_of_the_generator() -> None:
    rows = list(edits.rows())
    assert not [r for r in rows if r["missed"]]
    assert len({r["edit"] for r in rows if r["wrong"]}) >= 30


def test_a_variance_of_one_pass_is_not_that_of_two() -> None:
    """Both are one rational function; on values far from zero one of them is lost in rounding."""

    def two(x: Array) -> Array:
        d = x - x.mean(1, keepdims=True)
        return (d * d).mean(1)

    def one(x: Array) -> Array:
        m = x.mean(1)
        return (x * x).mean(1) - m * m

    before, right = of(two, (9, 64))
    _, wrong = of(one, (9, 64))
    assert validate(before, right, known()).status == PROVED
    found = validate(before, wrong, known())
    assert found.status == UNKNOWN
    assert "far from zero" in found.cause


def test_what_the_program_itself_loses_is_no_fault_of_its_kernel() -> None:
    """The bound is that of the program: a constant that comes and goes there is licensed."""
    before, right = of(lambda x: (x + 1e8) - 1e8, (9, 64))
    assert validate(before, right, known()).status == PROVED
    plain, _ = of(lambda x: x * 1.0 + 0.0 * x, (9, 64))
    assert validate(plain, right, known()).status != PROVED


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x: jnp.cumsum(x, axis=1), [(7, 300)]),
        (lambda x, y: softmax(x @ y * 0.125, -1) @ y.T, [(33, 40), (40, 70)]),
        (lambda x: jnp.where(x > 0, jnp.sqrt(x), jnp.exp(x)) / (1 + jnp.abs(x)), [(9, 64)]),
        (lambda x: lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6) * x, [(9, 640)]),
        (lambda x: jnp.prod(x, -1), [(7, 37)]),
        (lambda x, w: x @ w, [(5, 3000), (3000, 40)]),
    ],
)
def test_rounding_in_another_order_is_within_the_bounds(fn: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    before, made = of(fn, *shapes)
    assert validate(before, made, known()).status == PROVED


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.name)
def test_each_draw_compares_something(draw: Any) -> None:
    """Were bounds infinite everywhere, nothing would be compared."""
    before, _ = of(lambda x, w: jnp.maximum(x @ w, 0.0) + 1.0, (9, 64), (64, 33))
    with np.errstate(all="ignore"):
        for _, _, near in values(before, drawn(before, draw, 0)):
            value, bound = parts(near)
            assert np.isfinite(value).all()
            assert (bound < 1e-3 * (1.0 + np.abs(value)) * 10.0**24).all()
            assert np.isfinite(bound).all()


def test_bounds_hold_for_the_kernel_and_not_for_one_that_is_off_by_a_ten_thousandth() -> None:
    before, made = of(lambda x, w: x @ w, (9, 64), (64, 33))
    with MachineCode(made) as run:
        assert farther(before, run, 0) == ""
        assert "inputs positive" in farther(before, lambda x: {"out0": run(x)["out0"] * np.float32(1.0001)}, 0)

        def last(x: Any) -> Any:
            found = run(x)["out0"].copy()
            found[-1, -1] = np.nan
            return {"out0": found}

        assert "1 elements" in farther(before, last, 0)


def test_the_objects_that_run_are_compared_and_not_their_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = import_function(lambda x: x * 2.0 + 1.0, [jnp.ones((9, 64))], frozen=()).graph
    native = Native()
    run = native.machine(graph)
    monkeypatch.setattr(Native, "machine", lambda *_: lambda x: {name: y + np.float32(1) for name, y in run(x).items()})
    assert native.validate(graph).status == UNKNOWN


def test_one_number_of_more_terms_than_a_sample_has() -> None:
    program, code = of(lambda x: jnp.sum(x * x), (1 << 19,))
    assert validate(program, code, known(), 0, 1).cause == ""
