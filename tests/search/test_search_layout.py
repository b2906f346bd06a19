"""Every op in every layout: the emitted value does not depend on how operands lie or what order is wanted."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rewrites.egraph import perm
from rewrites.egraph.convert import import_graph
from superopt.errors import SuperoptError
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.ops.reduction import CUMULATIVE
from superopt.ir.ops.table import REDUCTIONS, WINDOWS
from superopt.search.layout import backward, candidates, forward, same, wanted
from superopt.search.lower import Lowering
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.state import FORBID, Problem, State
from tests.support.search_cases import case, run_graph, run_program, worst_error
from tests.support.search_table import TableObjective

X = make_input("x", (2, 3, 4, 5))
U = make_input("u", (2, 3, 4, 5))
INDEX = make_input("i", (), "int32")


def conv(x: tuple[int, ...], w: tuple[int, ...], frozen: bool, **more: Any) -> Node:
    """A convolution with NCHW-like numbers unless given."""
    rank = len(x)
    attrs: dict[str, Any] = {
        "window_strides": (1,) * (rank - 2),
        "padding": ((1, 0),) * (rank - 2),
        "dimension_numbers": (tuple(range(rank)),) * 3,
        **more,
    }
    return mk("conv_general_dilated", make_input("x", x), make_input("w", w, frozen=frozen), **attrs)


def dot(x: tuple[int, ...], y: tuple[int, ...], numbers: Any, frozen: bool = False) -> Node:
    """A product."""
    return mk("dot_general", make_input("x", x), make_input("y", y, frozen=frozen), dimension_numbers=numbers)


def gather(x: Node) -> Node:
    """Rows of a table."""
    rows = make_input("rows", (6, 1), "int32")
    return mk(
        "gather", x, rows, offset_dims=(1, 2, 3), collapsed_slice_dims=(1,), start_index_map=(1,),
        slice_sizes=(2, 1, 4, 5), mode="clip",
    )  # fmt: skip


OPS: dict[str, Callable[[], Node]] = {
    "slice": lambda: mk("slice", X, start_indices=(0, 1, 0, 2), limit_indices=(2, 3, 4, 5), strides=(1, 1, 2, 1)),
    "pad": lambda: mk(
        "pad", X, literal(2.0), padding_config=((0, 1, 0), (-1, 0, 0), (0, 0, 1), (2, -1, 0))
    ),
    "rev": lambda: mk("rev", X, dimensions=(1, 3)),
    "concatenate": lambda: mk("concatenate", X, U, X, dimension=2),
    "reduce_sum": lambda: mk("reduce_sum", X, axes=(1, 3)),
    "reduce_max": lambda: mk("reduce_max", mk("exp", X), axes=(0,)),
    "argmax": lambda: mk("argmax", X, axes=(2,), index_dtype="int32"),
    "reduce_window_max": lambda: mk(
        "reduce_window_max", X, window_dimensions=(1, 2, 3, 1), window_strides=(1, 1, 2, 1),
        padding=((0, 0), (1, 0), (1, 1), (0, 0)),
    ),
    "reduce_window_sum": lambda: mk(
        "reduce_window_sum", X, window_dimensions=(2, 1, 1, 2), window_strides=(1, 1, 1, 3),
        padding=((0, 0), (0, 0), (0, 0), (0, 2)), window_dilation=(1, 1, 1, 2),
    ),
    "cumsum": lambda: mk("cumsum", X, axis=2, reverse=True),
    "broadcast": lambda: mk(
        "add", mk("broadcast_in_dim", make_input("v", (3, 5)), shape=(2, 3, 4, 5), broadcast_dimensions=(1, 3)), X
    ),
    "merge axes": lambda: mk("reshape", X, new_sizes=(2, 12, 5)),
    "split axes": lambda: mk("reshape", make_input("x", (4, 6, 5)), new_sizes=(4, 2, 3, 5)),
    "transpose": lambda: mk("exp", mk("transpose", X, permutation=(2, 0, 3, 1))),
    "select_n": lambda: mk("select_n", make_input("p", (2, 3, 4, 5), "bool"), X, U),
    "clamp": lambda: mk("clamp", make_input("low", ()), X, make_input("high", ())),
    "sub": lambda: mk("sub", X, mk("transpose", make_input("t", (5, 4, 3, 2)), permutation=(3, 2, 1, 0))),
    "dynamic_slice": lambda: mk("dynamic_slice", X, INDEX, INDEX, INDEX, INDEX, slice_sizes=(2, 2, 3, 1)),
    "dynamic_update_slice": lambda: mk(
        "dynamic_update_slice", X, make_input("u", (1, 2, 2, 3)), INDEX, INDEX, INDEX, INDEX
    ),
    "gather": lambda: gather(X),
    "matrix": lambda: dot((4, 6), (6, 5), (((1,), (0,)), ((), ()))),
    "matrix, frozen": lambda: dot((4, 6), (5, 6), (((1,), (1,)), ((), ())), True),
    "vector, frozen": lambda: dot((1, 6), (6, 5), (((1,), (0,)), ((), ())), True),
    "batched": lambda: dot((2, 3, 4, 5), (3, 2, 5, 6), (((3,), (2,)), ((0, 1), (1, 0)))),
    "two contracted": lambda: dot((2, 3, 4, 5), (5, 6, 3), (((1, 3), (2, 0)), ((), ()))),
    "two contracted, frozen": lambda: dot((2, 3, 4, 5), (5, 6, 3), (((1, 3), (2, 0)), ((), ())), True),
    "frozen first": lambda: mk(
        "dot_general", make_input("y", (5, 6, 7), frozen=True), X, dimension_numbers=(((0,), (3,)), ((), ()))
    ),
    "conv": lambda: conv((2, 3, 6, 5), (4, 3, 3, 2), True),
    "conv, live weights": lambda: conv((2, 3, 6, 5), (4, 3, 3, 2), False, window_strides=(2, 1)),
    "conv, channels last": lambda: conv(
        (2, 6, 5, 3), (3, 2, 3, 4), True, dimension_numbers=((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    ),
    "conv, mixed": lambda: conv(
        (2, 3, 6, 5), (3, 2, 3, 4), True, dimension_numbers=((0, 1, 2, 3), (3, 2, 0, 1), (1, 0, 3, 2))
    ),
    "conv, groups": lambda: conv((2, 4, 6, 5), (6, 2, 3, 2), True, feature_group_count=2, rhs_dilation=(2, 1)),
    "conv, batch groups": lambda: conv((4, 3, 6, 5), (4, 3, 3, 2), True, batch_group_count=2),
    "conv, one axis": lambda: conv((2, 3, 7), (4, 3, 3), True, lhs_dilation=(2,)),
    "conv, three axes": lambda: conv((1, 2, 4, 3, 3), (3, 2, 2, 2, 1), True),
}  # fmt: skip


def value_of(node: Node, rng: np.random.Generator) -> np.ndarray:
    """A random value for an input."""
    shape = tuple(int(n) for n in node.shape)  # pyright: ignore[reportArgumentType]
    if node.dtype == "bool":
        return rng.random(shape) < 0.5
    if node.dtype == "int32":
        return rng.integers(0, 3, shape).astype(np.int32)
    return rng.standard_normal(shape).astype(np.float32)


def problem_of(graph: Graph) -> Problem:
    """The search problem of a graph without rules."""
    snapshot = Snapshot(import_graph(graph))
    return Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))


@pytest.mark.parametrize("name", OPS)
def test_op_in_random_layouts(name: str) -> None:
    root = OPS[name]()
    graph = Graph(tuple(n for n in Graph((), (root,)).nodes() if n.op == "input"), (root,))
    rng = np.random.default_rng(3)
    values = {str(n["name"]): value_of(n, rng) for n in graph.inputs}
    want = run_graph(graph, values)
    problem = problem_of(graph)
    lowering, draw = Lowering(problem.wants), random.Random(5)
    for _ in range(20):
        layouts = [
            perm.intern(draw.sample(range(len(shape)), len(shape))) if draw.random() < 0.8 else 0
            for shape in problem.snapshot.shapes
        ]
        bits = [draw.choice((0, 0, 1, FORBID)) for _ in layouts]
        state = State(problem, problem.snapshot.original(), layouts, bits)
        program = lowering.lower(state.choice(), graph)
        have = run_program(program, values)
        if want[0].dtype == np.float32:
            assert worst_error(have, want) < 1e-5
        else:
            assert (have[0] == want[0]).all()


def test_a_selection_is_not_lowered_as_another_program() -> None:
    x = make_input("x", (4, 6))
    y = mk("tanh", mk("exp", x))
    graph = Graph((x,), (y,))
    problem = problem_of(graph)
    selection = State(problem, problem.snapshot.original(), [0] * problem.snapshot.size).choice()
    assert Lowering(problem.wants).lower(selection, graph).hot.outputs == (y,)
    for other in (mk("reshape", y, new_sizes=(6, 4)), mk("convert_element_type", y, new_dtype="int32")):
        with pytest.raises(SuperoptError, match="the lowered program returns"):
            Lowering(problem.wants).lower(selection, Graph((x,), (other,)))


def test_a_selection_with_a_cycle_is_not_lowered() -> None:
    """Where log(exp(x)) is x, the class of x may be computed by log(y), that of y by exp(x), but not both at once."""
    x = make_input("x", (4, 6))
    y = mk("exp", x)
    graph = Graph((x,), (mk("tanh", mk("log", y)), y))
    eg = import_graph(graph)
    refs = dict(zip(dict.fromkeys((*graph.inputs, *graph.nodes())), eg.imported, strict=True))
    eg.union(refs[x], refs[mk("log", y)])
    eg.rebuild()
    snapshot = Snapshot(eg)
    problem = Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))
    chosen = list(snapshot.original())
    selection = State(problem, chosen, [0] * snapshot.size).choice()
    assert Lowering(problem.wants).lower(selection, graph).hot.outputs
    (c,) = [i for i, row in enumerate(snapshot.options) if {o.form.op for o in row} == {"input", "log"}]
    chosen[c] = next(i for i, option in enumerate(snapshot.options[c]) if option.form.op == "log")
    with pytest.raises(SuperoptError, match="has a cycle"):
        Lowering(problem.wants).order(replace(selection, options=chosen))


def test_table_of_ops_is_covered() -> None:
    used = {n.op for build in OPS.values() for n in Graph((), (build(),)).nodes()}
    assert {"dot_general", "conv_general_dilated", "gather", "concatenate", "pad", "slice"} <= used
    assert used & REDUCTIONS
    assert used & WINDOWS
    assert used & CUMULATIVE.keys()


def test_channels_last_convolution_has_no_transposes() -> None:
    """A frozen kernel is prepared as HWIO and two convolutions in one layout meet without a transpose."""
    x = make_input("x", (1, 3, 8, 8))
    w, v = make_input("w", (4, 3, 3, 3), frozen=True), make_input("v", (5, 4, 3, 3), frozen=True)
    attrs: dict[str, Any] = {
        "window_strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dimension_numbers": ((0, 1, 2, 3),) * 3,
    }
    y = mk("conv_general_dilated", mk("tanh", mk("conv_general_dilated", x, w, **attrs)), v, **attrs)
    graph = Graph((x, w, v), (y,))
    problem = problem_of(graph)
    last = perm.intern((0, 2, 3, 1))
    layouts = [0 if row[0].form.op == "input" else last for row in problem.snapshot.options]
    state = State(problem, problem.snapshot.original(), layouts)
    program = Lowering(problem.wants).lower(state.choice(), graph)
    transposes = [n for n in program.hot.nodes() if n.op == "transpose"]
    assert len(transposes) == 2  # of the image on the way in, of the result on the way out
    numbers = {n["dimension_numbers"] for n in program.hot.nodes() if n.op == "conv_general_dilated"}
    assert numbers == {((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))}


def test_products_take_operands_as_they_lie() -> None:
    """x' W for x stored either way: dimension numbers change, nothing moves, and W is stored [inner, columns]."""
    x, w = make_input("x", (6, 4)), make_input("w", (5, 6), frozen=True)
    y = mk("dot_general", mk("exp", x), w, dimension_numbers=(((0,), (1,)), ((), ())))
    graph = Graph((x, w), (y,))
    problem = problem_of(graph)
    state = State(problem)
    program = Lowering(problem.wants).lower(state.choice(), graph)
    assert not any(n.op == "transpose" for n in program.hot.nodes())
    product = next(n for n in program.hot.nodes() if n.op == "dot_general")
    assert product.inputs[1].shape == (6, 5)
    assert product["dimension_numbers"] == (((0,), (0,)), ((), ()))


def test_candidates() -> None:
    problem = case("convnet").problem()
    snapshot = problem.snapshot
    for c, layouts in enumerate(problem.candidates):
        rank = len(snapshot.shapes[c])
        assert layouts[0] == problem.home[c]
        assert 1 <= len(layouts) <= 4
        for a, b in itertools.combinations(layouts, 2):
            assert not same(perm.perm_of(a, rank), perm.perm_of(b, rank), snapshot.shapes[c])
        if any(o.form.op == "conv_general_dilated" and o.out == 0 for o in snapshot.options[c]):
            assert perm.intern((0, 2, 3, 1)) in layouts or 1 in snapshot.shapes[c]
        if any(o.form.op == "input" for o in snapshot.options[c]):
            assert len(layouts) == 1


@pytest.mark.parametrize("name", ["conv", "frozen first", "vector, frozen", "merge axes", "cumsum", "slice"])
def test_forward_undoes_backward(name: str) -> None:
    root = OPS[name]()
    graph = Graph(tuple(n for n in Graph((), (root,)).nodes() if n.op == "input"), (root,))
    snapshot = problem_of(graph).snapshot
    for row in snapshot.options:
        form = row[0].form
        rank = len(form.shape)
        for d in itertools.permutations(range(rank)):
            for position, order in backward(form, d):
                result = forward(form, position, order)
                assert result is not None
                if form.op == "regroup":  # axes that one axis is split into stay together and in order
                    again = wanted(form, result, (None,) * len(form.shapes))
                    assert again[position] == order
                else:
                    assert result == d
