"""What every algebra owes: the free form folds back to the direct denotation; choices, unit folds, regrouping."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from superopt.ir.counters import Count, Counter
from superopt.ir.denote import common_groups, denote, regroup
from superopt.ir.expr import Loops, block, load, show, subexpressions
from superopt.ir.fold import fold
from superopt.ir.graph import Node, literal, make_input, mk, topological
from superopt.ir.index import Form, Symbol, concrete, iterator, of_atom, symbol
from superopt.ir.interp import Numbers, evaluate, grid, reader
from superopt.ir.ops.table import TABLE
from superopt.ir.scalar import SCALARS
from tests.support import ir_cases, ir_examples
from tests.support.oracles import evaluate_at

OPS = [name for name, op in TABLE.items() if op.at is not None and name not in ir_examples.WITHOUT_LOOPS]


def _grid_fold(root: Node, env: dict[str, np.ndarray]) -> np.ndarray:
    iterators, expr = block(root)
    arrays = {name: reader(x) for name, x in env.items()}
    algebra = Numbers(len(root.shape), max(1, prod(root.shape)))
    with np.errstate(all="ignore"):
        points = dict(zip(iterators, grid(root.shape), strict=True))
        found = fold(expr, algebra, lambda name, index: arrays[name](*index), points)
    return np.broadcast_to(np.asarray(found), root.shape)


@pytest.mark.parametrize("op", OPS)
def test_folding_the_free_form_is_the_denotation(op: str) -> None:
    rng = np.random.default_rng(zlib.crc32(op.encode()) + 1)
    for node in ir_cases.samples(op, rng, 5):
        if 0 in node.shape:
            continue
        env = ir_cases.values(node, rng)
        (direct,) = evaluate([node], env)
        folded = _grid_fold(node, env)
        assert folded.dtype == direct.dtype, node
        if TABLE[op].family == "contraction" or op == "macro":  # sums in another order
            np.testing.assert_allclose(folded.astype(float), direct.astype(float), rtol=1e-2, atol=1e-5)
        else:
            got, want = (x.astype(np.float64) for x in (folded, direct))
            np.testing.assert_array_equal(got, want, err_msg=show(block(node)[1]))


def _composed(rng: np.random.Generator) -> Node:
    while True:
        graph = ir_cases.random_graph(rng, 6)
        root = graph.outputs[-1]
        if prod(root.shape) <= 60 and not any(n.op in ("scan", "result") for n in topological([root])):
            return root


def test_composition_is_evaluation_node_by_node() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        root = _composed(rng)
        env = ir_cases.values(root, rng)
        (direct,) = evaluate([root], env)
        np.testing.assert_allclose(_grid_fold(root, env), direct, rtol=2e-5, atol=1e-5)
        index = tuple(int(rng.integers(n)) for n in root.shape)
        np.testing.assert_allclose(evaluate_at(root, env, index), direct[index], rtol=2e-5, atol=1e-5)


ALGEBRAS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (Numbers, float),
    (Loops, show),
    (Counter, lambda c: c),
]


@pytest.mark.parametrize(("make", "seen"), ALGEBRAS)
def test_known_guards_choose(make: Callable[[], Any], seen: Callable[[Any], Any]) -> None:
    k = make()
    one, two = k.const(1.0, "float32"), k.op("add", "float32", k.const(1.0, "float32"), k.const(1.0, "float32"))

    def never() -> Any:
        raise AssertionError("the branch that is not chosen was evaluated")

    if make is Counter:  # counts take both branches
        assert k.where(True, lambda: two, lambda: one) == Count(1)
        return
    assert seen(k.where(True, lambda: one, never)) == seen(one)
    assert seen(k.where(False, never, lambda: two)) == seen(two)
    assert k.all() is True
    assert k.all(True, False) in (False, np.False_)
    assert k.all(True, True) is True


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_a_fold_over_one_element_is_the_element(monoid: str) -> None:
    numbers, loops = Numbers(), Loops()
    assert numbers.reduce(monoid, [1, 1], lambda *r: numbers.const(2.5, "float32"), "float32") == 2.5
    body = loops.const(2.5, "float32")
    assert loops.reduce(monoid, [1, 1], lambda *r: body, "float32") is body
    assert Counter().reduce(monoid, [1, 1], lambda *r: Count(3), "float32") == Count(3)


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_a_fold_over_nothing_is_the_identity(monoid: str) -> None:
    want = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}[monoid]
    numbers, loops = Numbers(), Loops()
    assert numbers.reduce(monoid, [3, 0], lambda *r: numbers.const(2.5, "float32"), "float32") == want
    empty = loops.reduce(monoid, [3, 0], lambda *r: loops.const(2.5, "float32"), "float32")
    assert empty is loops.const(want, "float32")


@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_factors_stay_inside_sums(sign: int) -> None:
    """The sum of inf * a and inf * b is no number where the signs differ, whatever a + b is."""
    x, y = make_input("x", (1, 4)), make_input("y", (3, 1))
    wide = [mk("broadcast_in_dim", v, shape=(3, 4), broadcast_dimensions=(0, 1)) for v in (x, y)]
    total = mk("reduce_sum", mk("mul", *wide), axes=[0])
    env = {"x": sign * np.float32([[np.inf, 1, 0, 2]]), "y": np.float32([[1], [-2], [3]])}
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(evaluate([total], env)[0], (env["x"] * env["y"]).sum(0))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [((2, 3, 4), (6, 4)), ((12,), (3, 4)), ((6, 4), (4, 6)), ((1, 6), (2, 1, 3)), ((), (1, 1)), ((5, 6, 7), (30, 7))],
)
def test_regroup_there_and_back(outer: tuple[int, ...], inner: tuple[int, ...]) -> None:
    flat = np.arange(prod(outer)).reshape(outer)
    for index in np.ndindex(*outer):
        there = regroup(index, outer, inner)
        assert flat.reshape(inner)[tuple(there)] == flat[index]
        assert tuple(regroup(there, inner, outer)) == index
    symbols = [iterator(f"o{d}", n)[1] for d, n in enumerate(outer)]
    assert regroup(regroup(symbols, outer, inner), inner, outer) == symbols


def test_symbolic_axes_merge_and_split() -> None:
    n, m, k = (of_atom(Symbol(name, 1)) for name in "nmk")
    assert common_groups((n, m, k), (n * m, k)) == [(range(2), range(1)), (range(2, 3), range(1, 2))]
    index = [iterator("i", n)[1], iterator("j", m)[1], iterator("l", k)[1]]
    merged = regroup(index, (n, m, k), (n * m, k))
    assert merged == [index[0] * m + index[1], index[2]]
    assert regroup(merged, (n * m, k), (n, m, k)) == index


def test_loop_forms_print_as_mathematics() -> None:
    x = make_input("x", (2, 12, 128, 64))
    heads = mk("reshape", mk("transpose", x, permutation=(0, 2, 1, 3)), new_sizes=(2, 128, 768))
    back = mk("transpose", mk("reshape", heads, new_sizes=(2, 128, 12, 64)), permutation=(0, 2, 1, 3))
    assert show(block(back)[1]) == "x[o0,o1,o2,o3]"
    assert show(block(heads)[1]) == "x[o0,o2//64,o1,o2%64]"
    rows = make_input("x", (8, 4))
    top = mk("broadcast_in_dim", mk("reduce_max", rows, axes=(1,)), shape=(8, 4), broadcast_dimensions=(0,))
    e = mk("exp", mk("sub", rows, top))
    total = mk("broadcast_in_dim", mk("reduce_sum", e, axes=(1,)), shape=(8, 4), broadcast_dimensions=(0,))
    peak = "max_{r0<4} x[o0,r0]"
    softmax = f"div(exp(sub(x[o0,o1], {peak})), sum_{{r1<4}} exp(sub(x[o0,r1], {peak})))"
    assert show(block(mk("div", e, total))[1]) == softmax
    ids, table = make_input("ids", (5, 1), "int32"), make_input("t", (10, 6))
    taken = mk(
        "gather", table, ids, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 6)
    )
    assert show(block(taken)[1]) == "t[clip(value(ids[o0,0]), 0, 9),o1]"


def test_equal_reductions_are_one_expression() -> None:
    x = make_input("x", (8, 4))
    s = mk("reduce_sum", x, axes=(1,))
    first, second = block(mk("exp", s))[1], block(mk("add", s, mk("reduce_sum", mk("mul", x, x), axes=(1,))))[1]
    assert first.operands[0] is second.operands[0]


def test_substitution_renames_iterators_that_would_be_captured() -> None:
    x = make_input("x", (4, 4))
    (o0,), row = block(mk("reduce_sum", x, axes=(1,)))
    inner = row.args[1][0]
    moved = row.substitute({o0: of_atom(inner)})  # now free in the body under the same name
    assert inner in moved.symbols
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    at = fold(moved, Numbers(), lambda name, index: reader(value)(*index), {inner: 2})
    assert at == value[2].sum()


def test_deep_chains_need_no_deep_recursion() -> None:
    node = x = make_input("x", (3,))
    for _ in range(3000):
        node = mk("tanh", mk("add", node, x))
    _, expr = block(node)
    assert len(subexpressions(expr)) == 6001
    found = evaluate_at(node, {"x": np.zeros(3, np.float32)}, (1,))
    assert found == 0
    assert fold(expr, Numbers(), lambda name, index: np.float32(0), dict.fromkeys(expr.symbols, 1)) == 0


def test_denotation_reads_what_is_materialised() -> None:
    x = make_input("x", (4, 4))
    m = mk("exp", x)
    reads: list[Node] = []

    def read(node: Node, index: tuple[Any, ...]) -> np.float32:
        reads.append(node)
        return np.float32(2)

    value = denote(mk("mul", m, m), Numbers(), read, stop=frozenset([m]))(0, 0)
    assert value == 4
    assert set(reads) == {m}


def test_wide_evaluation_widens_reads_and_literals() -> None:
    x = make_input("x", (), "bfloat16")
    node = mk("sub", mk("add", x, literal(1e-3, "bfloat16")), x)
    env = {"x": np.asarray(256, ir_cases.DTYPE["bfloat16"])}
    (narrow,), (wide,) = evaluate([node], env), evaluate([node], env, wide=True)
    assert narrow == 0
    assert wide.dtype == np.float64
    assert abs(float(wide) - 1e-3) < 1e-5


SIZES = {"n": 4, "h": 6, "c": 3, "k": 5, "s": 2}


def _symbolic(size: Callable[[str], Any]) -> list[Node]:
    """Programs over named sizes: symbols, or the numbers that they stand for."""
    n, h, c, k, s = (size(name) for name in "nhcks")
    x, w = make_input("x", (n, h)), make_input("w", (h, k))
    image, kernel = make_input("image", (n, h, h, c)), make_input("kernel", (3, 3, c, k))
    stacked = make_input("stacked", (n, c * k, h))
    dot = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    conv = mk(
        "conv_general_dilated", image, kernel, window_strides=(s, 1), padding=((1, 1), (0, s)),
        rhs_dilation=(1, s), dimension_numbers=((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)),
    )  # fmt: skip
    heads = mk("reshape", stacked, new_sizes=(n, c, k, h))
    pool = mk(
        "reduce_window_max", image, window_dimensions=(1, 2, 2, 1), window_strides=(1, s, s, 1),
        padding=((0, 0), (1, 0), (0, 1), (0, 0)),
    )  # fmt: skip
    return [
        dot, conv, heads, pool,
        mk("reshape", mk("transpose", heads, permutation=(0, 2, 1, 3)), new_sizes=(n, k * c, h)),
        mk("regroup", stacked, groups=(((2,), (h,)), ((1,), (c, k)), ((0,), (n,)))),
        mk("slice", x, start_indices=(0, 1), limit_indices=(n, h), strides=(s, 1)),
        mk("pad", x, literal(7.0), padding_config=((s, 0, 0), (-1, 2, s))),
        mk("concatenate", x, dot, dimension=1),
        mk("rev", x, dimensions=(1,)),
        mk("cumsum", x, axis=0),
        mk("argmax", x, axes=(1,)),
        mk("broadcast_in_dim", mk("reduce_sum", x, axes=(0,)), shape=(k, h), broadcast_dimensions=(1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(13))
def test_symbolic_sizes_give_the_same_program(case: int) -> None:
    symbolic = _symbolic(lambda name: symbol(name, 1))[case]
    concrete_node = _symbolic(SIZES.__getitem__)[case]
    assert tuple(concrete(d, SIZES) for d in symbolic.shape) == concrete_node.shape
    rng = np.random.default_rng(case)
    env = ir_cases.values(concrete_node, rng)
    iterators, expr = block(symbolic)
    at: dict[Symbol, Any] = {Symbol(name, 1): value for name, value in SIZES.items()}
    at |= dict(zip(iterators, grid(concrete_node.shape), strict=True))
    arrays = {name: reader(x) for name, x in env.items()}
    algebra = Numbers(len(concrete_node.shape), prod(concrete_node.shape))
    found = fold(expr, algebra, lambda name, index: arrays[name](*index), at)
    (want,) = evaluate([concrete_node], env)
    np.testing.assert_allclose(np.broadcast_to(np.asarray(found), want.shape), want, rtol=1e-5, atol=1e-5)


def test_gather_within_bounds_does_not_depend_on_its_mode() -> None:
    table, ids = make_input("t", (5, 3)), make_input("ids", (4, 1), "int32")
    numbers = {"offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "slice_sizes": (1, 3)}
    env = {"t": np.arange(15, dtype=np.float32).reshape(5, 3), "ids": np.array([[4], [0], [2], [2]], np.int32)}
    for mode in ("clip", "fill", "promise_in_bounds"):
        (found,) = evaluate([mk("gather", table, ids, mode=mode, **numbers)], env)
        np.testing.assert_array_equal(found, env["t"][[4, 0, 2, 2]])


def test_a_matrix_whose_singularity_is_rounded_away_has_no_inverse() -> None:
    multiples, scaled = [[0.1, 0.3], [0.3, 0.9]], [[1e-9, 0.0], [0.0, 1e-8]]
    assert np.isfinite(np.linalg.inv(multiples)).all(), "the test needs a matrix whose elimination leaves a remainder"
    x = make_input("x", (2, 2, 2), "float64")
    (found,) = evaluate([mk("inverse", x)], {"x": np.array([multiples, scaled])}, wide=True)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], [[1e9, 0.0], [0.0, 1e8]])


def test_a_matrix_with_an_entry_that_is_no_number_has_no_inverse() -> None:
    """Elimination leaves numbers in some entries, and a proof that assumes finite values would be held against them."""
    given = np.array([[[np.nan, 1.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 2.0]]])
    x = make_input("x", (2, 2, 2), "float64")
    (found,) = evaluate([mk("inverse", x)], {"x": given}, wide=True)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], [[1.0, 0.0], [0.0, 0.5]])


@pytest.mark.parametrize("name", [name for name, f in SCALARS.items() if f.parity])
def test_odd_and_even_functions_are(name: str) -> None:
    f, x = SCALARS[name], np.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(f.numpy(-x), f.parity * f.numpy(x), rtol=1e-14)


def test_the_order_of_terms_does_not_depend_on_when_an_expression_was_made() -> None:
    """Else the code of a kernel would differ from run to run, and its object not be found again."""

    def shown(first: str, second: str) -> str:
        made = [load(name, (3,), "int32").as_index() for name in (first, second)]
        return str(of_atom(Form("%", (made[0] + made[1], 7))))

    one = shown("p", "q")
    gc.collect()  # expressions that nobody holds are made anew
    assert shown("q", "p") == one
