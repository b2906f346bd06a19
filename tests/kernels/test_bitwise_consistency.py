"""Values computed in two places and found equal: argmax, argmin and masks of the largest, in however many stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superopt.errors import UnsupportedKernel
from superopt.ir.expr import load
from superopt.ir.graph import Node, literal, make_input, mk
from superopt.ir.index import Size, iterator
from superopt.kernels import schedule
from superopt.kernels.choose.frozen import hoisted
from superopt.kernels.emit.bitwise_consistency import _walked, agreements
from superopt.kernels.emit.generate import generate
from superopt.kernels.llvm import cpu
from superopt.kernels.loops.evaluate import evaluate
from superopt.kernels.loops.program import from_graph
from superopt.kernels.loops.stage import LoopProgram, Tile
from superopt.kernels.runtime.kernel import build
from tests.support.sampling import one_in, sampled

pytestmark = pytest.mark.skipif(not cpu.supported(), reason="no code is generated for this processor")
ROWS, TERMS, COLUMNS = 37, 13, 50


@pytest.fixture(autouse=True)
def _objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def array(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) + 0.5).astype(np.dtype(dtype))


def run(program: LoopProgram) -> np.ndarray:
    inputs = [b for b in program.buffers if b.scope in ("input", "frozen")]
    values = {b.name: array(b.shape, b.dtype, j) for j, b in enumerate(inputs)}
    prepare, hot = hoisted(program)
    if prepare is not None:
        values |= build(generate(prepare), pipeline="none").run(values)
    return build(generate(hot), pipeline="none").run(values, guard=True)["out0"]


def along(v: Node, x: Node) -> Node:
    """A value per row, at every element."""
    return mk("broadcast_in_dim", v, shape=x.shape, broadcast_dimensions=(0,))


def inputs(dtype: str = "float32") -> tuple[Node, Node, Node]:
    return tuple([make_input(n, (ROWS, COLUMNS), dtype) for n in "xyz"])  # type: ignore[return-value]


def quotient(dtype: str = "float32") -> Node:
    x, y, _ = inputs(dtype)
    return mk("div", x, along(mk("reduce_sum", y, axes=[1]), x))


def softmax(dtype: str = "float32") -> Node:
    x, _, _ = inputs(dtype)
    e = mk("exp", mk("sub", x, along(mk("reduce_max", x, axes=[1]), x)))
    return mk("div", e, along(mk("reduce_sum", e, axes=[1]), e))


def combination(dtype: str = "float32") -> Node:
    x, y, z = inputs(dtype)
    return mk("add", mk("mul", x, y), z)


def product() -> Node:
    x, w = make_input("x", (ROWS, TERMS)), make_input("w", (TERMS, COLUMNS))
    shape = (ROWS, TERMS, COLUMNS)
    left = mk("broadcast_in_dim", x, shape=shape, broadcast_dimensions=(0, 1))
    right = mk("broadcast_in_dim", w, shape=shape, broadcast_dimensions=(1, 2))
    return mk("reduce_sum", mk("mul", left, right), axes=[1])


def running() -> Node:
    x, _, _ = inputs()
    return mk("cumsum", x, axis=1, reverse=True)


VALUES: dict[str, Callable[[], Node]] = {
    "quotient": quotient, "softmax": softmax, "combination": combination, "product": product, "running": running,
    "bfloat16 combination": lambda: combination("bfloat16"), "bfloat16 softmax": lambda: softmax("bfloat16"),
}  # fmt: skip


def masked(value: Node, extreme: str = "max", compare: str = "eq") -> LoopProgram:
    """The elements of a row that equal its extreme, which is a stage of its own."""
    best = mk(f"reduce_{extreme}", value, axes=[1])
    return from_graph([mk(compare, value, along(best, value))], scratch={best})


def largest(value: Node, extreme: str = "max") -> LoopProgram:
    return from_graph([mk(f"arg{extreme}", value, axes=[1])])


BOTH = [(name, extreme) for name in VALUES for extreme in ("max", "min")]


@pytest.mark.parametrize(("name", "extreme"), sampled(BOTH, lambda n, _: n % 4 in (0, 3)))
def test_elements_equal_an_extreme_of_another_stage(name: str, extreme: str) -> None:
    """Every row has an element that equals its extreme."""
    found = run(masked(VALUES[name](), extreme))
    assert found.any(axis=1).all()


@pytest.mark.parametrize("name", VALUES)
def test_no_element_is_beyond_an_extreme_of_another_stage(name: str) -> None:
    """Comparisons by order see rounding as well."""
    assert run(masked(VALUES[name](), "max", "ge")).any(axis=1).all()


PARTS = (None, 0, 1, 2, "reduce:0", "reduce:1")
STAGED = [
    (name, part, extreme)
    for i, name in enumerate(VALUES)
    for j, part in enumerate(PARTS)
    for extreme in (("max", "min"), ("min", "max"))[(i + j) % 2]
]


@pytest.mark.parametrize(("name", "part", "extreme"), sampled(STAGED, one_in(11, lambda case: [case[0], case[1]])))
def test_an_argmax_in_several_stages(name: str, part: int | str | None, extreme: str) -> None:
    """Its position is one of a row, or the program is refused."""
    program = largest(VALUES[name](), extreme)
    if part is not None:
        program = schedule.materialize(program, "out0", part)
    try:
        found = run(program)
    except UnsupportedKernel:
        assert part is not None
        return
    assert ((found >= 0) & (found < COLUMNS)).all()


def test_a_rounded_copy_of_what_is_compared() -> None:
    """The maximum is taken of elements stored in 16 bits, the elements compared are computed again."""
    program = schedule.materialize(masked(combination("bfloat16")), "s0", 0)
    assert len(program.stages) == 3
    assert run(program).any(axis=1).all()


def test_a_difference_compared_with_zero() -> None:
    """The comparison of an element and the maximum in another form."""
    value = softmax()
    best = mk("reduce_max", value, axes=[1])
    zero = mk("broadcast_in_dim", literal(0.0, "float32"), shape=value.shape, broadcast_dimensions=())
    left = mk("eq", mk("sub", value, along(best, value)), zero)
    assert agreements(from_graph([left], scratch={best})) != []
    assert run(from_graph([left], scratch={best})).any(axis=1).all()


def test_sums_in_another_order_are_refused() -> None:
    """Partial results of one of two sums that are compared."""
    program = schedule.split_reduction(masked(product()), "s0", 1, 0, [4])
    for made in (program, schedule.rfactor(program, "s0", 1, [1])):
        with pytest.raises(UnsupportedKernel, match="same order"):
            generate(made)


def test_a_register_tile_on_one_side_is_refused() -> None:
    """A tile adds as it adds: another stage that computes the same elements cannot be made to agree."""
    program = schedule.materialize(masked(product()), "s0", "reduce:1")
    tile = Tile("fma", (), "c0", 1, ("r0",))
    stages = [replace(s, tile=tile) if s.buffer == "s0_part" else s for s in program.stages]
    with pytest.raises(UnsupportedKernel, match="tile"):
        generate(replace(program, stages=tuple(stages)))


def test_one_buffer_needs_nothing() -> None:
    """What both sides read from one buffer may be computed in any way, and sums of values that are loaded too."""
    value = product()
    assert agreements(from_graph([mk("argmax", value, axes=[1])], scratch={value})) == []
    x, y, z = inputs()
    assert agreements(largest(mk("add", mk("max", x, y), z))) == []
    assert agreements(largest(mk("exp", x))) == []
    assert agreements(from_graph([softmax()])) == []
    assert agreements(from_graph([mk("gt", quotient(), mk("neg", z))])) == []
    (found,) = agreements(largest(softmax()))
    assert found.off == {"reciprocal"}  # the sum is one value


def test_frozen_parts_that_must_agree_stay() -> None:
    """An extreme of frozen values is not taken beforehand where the values are computed again."""
    program = masked(quotient())
    inputs = {b.name for b in program.buffers if b.scope == "input"}
    frozen = replace(program, buffers=tuple([replace(b, scope="frozen") if b.name in inputs else b
                                             for b in program.buffers]))  # fmt: skip
    assert hoisted(frozen)[0] is None
    assert run(frozen).any(axis=1).all()


def test_the_position_is_the_oracles() -> None:
    """Values far apart: the same positions as the interpreter's."""
    program = schedule.materialize(largest(softmax()), "out0", 1)
    values = {"x": np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)}
    found = build(generate(program), pipeline="none").run(values)["out0"]
    np.testing.assert_array_equal(found, evaluate(largest(softmax()), values, wide=True)["out0"])


S, I = iterator("s", 8)
T, J = iterator("t", 8)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ((I,), (J,), True),
        ((2 * I, I), (2 * J, J), True),
        ((2 * I,), (J,), False),
        ((7 - I,), (J,), False),
        ((I, I), (J,), False),
        ((I, 2 * I), (J, J), False),
        ((I // 2,), (J // 2,), False),
    ],
)
def test_sums_go_through_a_buffer_alike_where_their_iterators_move_it_alike(
    one: tuple[Size, ...], other: tuple[Size, ...], alike: bool
) -> None:
    """The places that a step of a quotient moves are not known."""
    assert _walked(load("x", one, "float32"), load("x", other, "float32"), ((S, T),)) == alike
