"""The e-graph: references, canonical forms, congruence, and that every e-node has the value of its class."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rewrites.egraph import perm
from rewrites.egraph.convert import import_graph, node_of
from rewrites.egraph.graph import EGraph, LimitReachedError, Origin
from rewrites.egraph.perm import PERM_BITS
from superopt.errors import ShapeError
from superopt.ir.graph import Graph, literal, make_input, mk
from superopt.ir.interp import evaluate
from superopt.machine.deadline import Deadline
from tests.support.egraph_checks import check_invariants, every_enode, import_over, natural, variant
from tests.support.egraph_random import MAKERS, Builder, arrays
from tests.support.oracles import extract_any


def _input(eg: EGraph, name: str, *shape: int, frozen: bool = False) -> int:
    return eg.add("input", name=name, shape=shape, dtype="float32", frozen=frozen)


def _close(got: np.ndarray, want: np.ndarray, context: str = "") -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, equal_nan=True, err_msg=context)


# ---- permutations


def test_permutations_act_as_numpy_transposes() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    for a, b in itertools.product(itertools.permutations(range(3)), repeat=2):
        first, second = perm.intern(a), perm.intern(b)
        both = perm.perm_of(perm.compose(first, second), 3)
        assert np.array_equal(x.transpose(a).transpose(b), x.transpose(both))
        back = perm.perm_of(perm.compose(first, perm.inverse(first)), 3)
        assert back == (0, 1, 2)


def test_the_identity_of_every_rank_is_zero() -> None:
    assert all(perm.intern(tuple(range(rank))) == 0 for rank in range(9))


def test_what_is_no_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="not a permutation"):
        perm.intern((0, 0, 1))


# ---- references and types


def test_transposes_are_no_enodes() -> None:
    eg = EGraph()
    x = _input(eg, "x", 2, 3, 4)
    y = eg.add("transpose", x, permutation=(2, 0, 1))
    assert eg.enode_count == 1
    assert eg.shape(y) == (4, 2, 3)
    assert eg.add("transpose", y, permutation=(1, 2, 0)) == x


@pytest.mark.parametrize("seed", range(12))
def test_one_enode_for_every_layout_of_an_elementwise_op(seed: int) -> None:
    rng = random.Random(seed)
    eg = EGraph()
    x, y = _input(eg, "x", 2, 3, 4), _input(eg, "y", 2, 3, 4)
    z = eg.add("atan2", x, y)
    p = rng.sample(range(3), 3)
    moved = eg.add("atan2", eg.transpose(x, p), eg.transpose(y, p))
    assert moved == eg.transpose(z, p)
    assert eg.add("mul", eg.transpose(y, p), eg.transpose(x, p)) == eg.transpose(eg.add("mul", x, y), p)


@pytest.mark.parametrize("seed", range(20))
def test_one_enode_for_every_layout_of_a_product(seed: int) -> None:
    rng = random.Random(seed)
    eg = EGraph()
    x, y = _input(eg, "x", 2, 3, 4, 5), _input(eg, "y", 5, 2, 4, 6)
    numbers = (((2, 3), (2, 0)), ((0,), (1,)))
    z = eg.add("dot_general", x, y, dimension_numbers=numbers)  # batch 2, then 3, then 6
    p, q = rng.sample(range(4), 4), rng.sample(range(4), 4)
    where = [(p.index(a), q.index(b)) for a, b in ((2, 2), (3, 0))]
    rng.shuffle(where)
    batch = ((p.index(0),), (q.index(1),))
    contracted = (tuple(a for a, _ in where), tuple(b for _, b in where))
    xp, yq = eg.transpose(x, p), eg.transpose(y, q)
    assert eg.add("dot_general", xp, yq, dimension_numbers=(contracted, batch)) == z
    swapped = eg.add("dot_general", yq, xp, dimension_numbers=(contracted[::-1], batch[::-1]))
    assert swapped == eg.transpose(z, (0, 2, 1))


@pytest.mark.parametrize("seed", range(20))
def test_one_enode_for_every_layout_of_a_convolution(seed: int) -> None:
    rng = random.Random(seed)
    eg = EGraph()
    x, w = _input(eg, "x", 1, 4, 7, 8), _input(eg, "w", 6, 2, 3, 2)

    def conv(x: int, w: int, specs: tuple[tuple[int, ...], ...], order: tuple[int, int]) -> int:
        per_axis = {
            "window_strides": (1, 2),
            "padding": ((0, 1), (2, 0)),
            "lhs_dilation": (1, 2),
            "rhs_dilation": (2, 1),
        }
        return eg.add(
            "conv_general_dilated", x, w, dimension_numbers=specs, feature_group_count=2,
            **{name: tuple(value[k] for k in order) for name, value in per_axis.items()},
        )  # fmt: skip

    plain = (0, 1, 2, 3)
    z = conv(x, w, (plain, plain, plain), (0, 1))
    p, q, r = (tuple(rng.sample(range(4), 4)) for _ in range(3))
    order = rng.choice(((0, 1), (1, 0)))
    roles = (0, 1, *[2 + k for k in order])  # naming the spatial axes in another order changes nothing
    specs = tuple(tuple(s.index(role) for role in roles) for s in (p, q, r))
    assert conv(eg.transpose(x, p), eg.transpose(w, q), specs, order) == eg.transpose(z, r)


def test_an_ill_typed_enode_is_refused() -> None:
    eg = EGraph()
    x, y = _input(eg, "x", 2, 3), _input(eg, "y", 3, 2)
    for make in (
        lambda: eg.add("add", x, y),
        lambda: eg.add("dot_general", x, y, dimension_numbers=(((0,), (0,)), ((), ()))),
        lambda: eg.add("reshape", x, new_sizes=(5,)),
        lambda: eg.add("slice", x, start_indices=(0, 0), limit_indices=(2, 4)),
        lambda: eg.add("broadcast_in_dim", x, shape=(2, 4), broadcast_dimensions=(0, 1)),
        lambda: eg.add("transpose", x, permutation=(0, 0)),
        lambda: eg.add("regroup", x, groups=(((0,), (2,)),)),
    ):
        before = eg.enode_count
        with pytest.raises(ShapeError):
            make()
        assert eg.enode_count == before
    with pytest.raises(ShapeError, match="by broken"):
        eg.union(x, y, Origin("broken", 0, (x, y)))


# ---- analyses


def test_frozen_is_what_frozen_inputs_determine() -> None:
    eg = EGraph()
    x, w = _input(eg, "x", 2, 3), _input(eg, "w", 2, 3, frozen=True)
    assert eg.frozen(eg.add("exp", w))
    assert eg.frozen(eg.add("iota", dtype="float32", shape=(3,), dimension=0))
    assert not eg.frozen(eg.add("mul", w, x))
    opaque = eg.add("opaque", w, primitive="sort", params_key="sort#0", result_types=(eg.type(w),))
    assert not eg.frozen(opaque)


def test_a_class_that_turns_frozen_tells_its_parents() -> None:
    eg = EGraph()
    x, w = _input(eg, "x", 2, 3), _input(eg, "w", 2, 3, frozen=True)
    y = eg.add("tanh", eg.add("mul", x, w))
    eg.dirty.clear()
    eg.union(eg.add("exp", w), x)
    eg.rebuild()
    assert eg.frozen(y)
    assert eg.find_class(y) in eg.dirty
    check_invariants(eg)


def test_scalars_are_seen_through_broadcasts_and_unions() -> None:
    eg = EGraph()
    half = eg.add("literal", value=0.5, dtype="float32")
    full = eg.add("broadcast_in_dim", half, shape=(2, 3), broadcast_dimensions=())
    assert eg.scalar(full) == 0.5
    x = _input(eg, "x", 2, 3)
    assert eg.scalar(x) is None
    eg.union(x, full)
    assert eg.scalar(x) == 0.5


def test_equal_literals_of_different_types_are_different_classes() -> None:
    eg = EGraph()
    made = [
        eg.add("literal", value=value, dtype=dtype)
        for value, dtype in ((1.0, "float32"), (1, "int32"), (True, "bool"), (-0.0, "float32"), (0.0, "float32"))
    ]
    assert len(set(made)) == len(made)
    third = eg.add("literal", value=0.1, dtype="float32")
    assert third == eg.add("literal", value=float(np.float32(0.1)), dtype="float32")


# ---- unions


def test_congruence_after_a_union_under_a_permutation() -> None:
    eg = EGraph()
    x, y, z = _input(eg, "x", 2, 3), _input(eg, "y", 3, 2), _input(eg, "z", 2, 3)
    a = eg.add("exp", eg.add("atan2", x, z))
    b = eg.add("exp", eg.add("atan2", eg.transpose(y, (1, 0)), z))
    assert eg.find(a) != eg.find(b)
    assert eg.union(x, eg.transpose(y, (1, 0)))
    eg.rebuild()
    assert eg.find(a) == eg.find(b)
    check_invariants(eg)


def test_a_chain_of_unions_composes_permutations() -> None:
    eg = EGraph()
    rng = random.Random(1)
    refs = [_input(eg, "x0", 2, 3, 4)]
    total = [(0, 1, 2)]  # refs[i] = transpose(refs[0], total[i])
    shape = (2, 3, 4)
    for i in range(1, 30):
        p = tuple(rng.sample(range(3), 3))
        total.append(tuple(total[-1][a] for a in p))
        refs.append(_input(eg, f"x{i}", *[shape[a] for a in total[-1]]))
        eg.union(refs[i], eg.transpose(refs[i - 1], p))
    eg.rebuild()
    for ref, p in zip(refs, total, strict=True):
        assert eg.find(ref) == eg.find(eg.transpose(refs[0], p))


def test_a_symmetric_tensor_is_counted_and_left_alone() -> None:
    eg = EGraph()
    x = _input(eg, "x", 3, 3)
    assert not eg.union(x, eg.transpose(x, (1, 0)))
    assert eg.symmetric_unions == 1
    assert eg.find(x) != eg.find(eg.transpose(x, (1, 0)))


def test_an_enode_of_its_own_class_is_not_listed_but_found() -> None:
    eg = EGraph()
    x = _input(eg, "x", 2, 3)
    y = eg.insert("max", (), (x, x))
    eg.union(x, y)
    eg.rebuild()
    check_invariants(eg)
    assert [eg.op_of(node) for node in eg.enodes(eg.find_class(x))] == ["input"]
    assert eg.find(eg.insert("max", (), (x, x))) == eg.find(x)


def test_the_program_owns_the_enodes_that_it_has_in_common_with_a_rule() -> None:
    eg = EGraph()
    x, y = _input(eg, "x", 2, 3), _input(eg, "y", 2, 3)
    mine = eg.add("exp", x)
    eg.current_origin = Origin("rule", 1, (x,))
    theirs = eg.add("exp", y)
    node = eg.enodes(eg.find_class(theirs))[0]
    assert eg.origin[node].rule == "rule"
    eg.current_origin = None
    eg.union(x, y)
    eg.rebuild()
    assert eg.find(mine) == eg.find(theirs)
    assert not eg.origin


def test_limits_stop_insertion_and_leave_the_graph_consistent() -> None:
    eg = EGraph(max_enodes=3)
    x = eg.add("cos", eg.add("sin", _input(eg, "x", 2)))
    with pytest.raises(LimitReachedError) as full:
        eg.add("exp", x)
    assert full.value.reason == "enodes"
    assert eg.enode_count == 3
    check_invariants(eg)
    late = EGraph(deadline=Deadline(0.0))
    with pytest.raises(LimitReachedError, match="seconds"):
        _input(late, "x", 2)


# ---- random programs


@pytest.mark.parametrize("seed", range(40))
def test_import_keeps_the_value(seed: int) -> None:
    graph = Builder(seed).graph(12)
    eg = import_graph(graph)
    check_invariants(eg)
    assert [eg.type(root) for root in eg.roots] == [node.type for node in graph.outputs]
    roots = [extract_any(eg, root, lambda cls: eg.enodes(cls)[0]) for root in eg.roots]
    values = arrays(graph, seed)
    for got, want in zip(evaluate(roots, values), evaluate(graph, values), strict=True):
        _close(got, want)


def test_the_random_programs_use_every_kind_of_op() -> None:
    made = set[str]()
    for seed in range(40):
        builder = Builder(seed)
        builder.graph(12)
        made.update(builder.made)
    assert made == set(MAKERS)


@pytest.mark.parametrize("seed", range(24))
def test_equal_inputs_make_equal_programs(seed: int) -> None:
    """Uniting each input with another term for it, in another axis order, makes all that was built on it congruent."""
    rng = random.Random(seed)
    graph = Builder(seed).graph(8)
    eg = import_graph(graph)
    others = {name: variant(eg, ref, rng) for name, ref in eg.inputs.items()}
    first, second = import_over(eg, graph, eg.inputs), import_over(eg, graph, others)
    pairs = [(eg.inputs[name], others[name]) for name in others]
    rng.shuffle(pairs)
    while pairs:
        for _ in range(min(len(pairs), rng.randint(1, 3))):
            eg.union(*pairs.pop()[:: rng.choice((1, -1))])
        eg.rebuild()
        check_invariants(eg)
    for node in graph.nodes():
        assert eg.find(first[node]) == eg.find(second[node]), f"not congruent: {node!r}"


@pytest.mark.parametrize("seed", range(24))
def test_every_enode_has_the_value_of_its_class(seed: int) -> None:
    """Random unions of provably equal references, then all e-nodes evaluated."""
    rng = random.Random(seed)
    graph = Builder(seed).graph(9)
    eg = import_graph(graph)
    others = {name: variant(eg, ref, rng) for name, ref in eg.inputs.items()}
    first, second = import_over(eg, graph, eg.inputs), import_over(eg, graph, others)
    for node in graph.nodes():
        if node.op != "input" and rng.random() < 0.7:
            eg.union(*(first[node], second[node])[:: rng.choice((1, -1))])
            if rng.random() < 0.3:
                eg.rebuild()
    eg.rebuild()
    check_invariants(eg)
    items = every_enode(eg, rng)
    values = evaluate([node for _, _, *both in items for node in both], arrays(graph, seed))
    for (cls, enode, _, _), want, got in zip(items, values[::2], values[1::2], strict=True):
        _close(got, want, f"class {cls}, {eg.op_of(enode)} {eg.attrs_of(enode)}")


def test_enodes_are_compared_at_all() -> None:
    """Guards the test above: unions leave classes with several e-nodes in other axis orders."""
    eg = EGraph()
    x = _input(eg, "x", 2, 3)
    y = variant(eg, x, random.Random(3))
    a, b = eg.add("exp", x), eg.add("exp", y)
    eg.union(a, b)
    eg.rebuild()
    items = every_enode(eg, random.Random(0))
    assert [eg.op_of(node) for _, node, _, _ in items] == ["exp"]
    assert any(eg.ref_of(node) != natural(eg.ref_of(node)) for _, node, _, _ in items)


# ---- conversion


def test_nodes_with_several_results() -> None:
    x = make_input("x", (3,))
    split = mk(
        "opaque", x, primitive="split", params_key="split#0", result_types=(x.type, mk("reduce_sum", x, axes=(0,)).type)
    )
    parts = [mk("result", split, index=i) for i in range(2)]
    graph = Graph((x,), (mk("exp", parts[0]), parts[1]))
    eg = import_graph(graph)
    check_invariants(eg)
    assert [eg.shape(root) for root in eg.roots] == [(3,), ()]
    roots = tuple(extract_any(eg, root, lambda cls: eg.enodes(cls)[0]) for root in eg.roots)
    assert roots == graph.outputs


def test_scalars_under_elementwise_ops_become_broadcasts() -> None:
    x = make_input("x", (2, 3))
    half = mk("broadcast_in_dim", literal(0.5), shape=(2, 3), broadcast_dimensions=())
    graph = Graph((x,), (mk("mul", x, half),))
    eg = import_graph(graph)
    (node,) = [n for n in eg.enodes(eg.find_class(eg.roots[0])) if eg.op_of(n) == "mul"]
    assert [eg.shape(child) for child in node[1:]] == [(2, 3), ()]
    assert node_of(eg, node, [x, literal(0.5)]) is graph.outputs[0]


def test_a_cyclic_choice_is_refused() -> None:
    eg = EGraph()
    x, y = _input(eg, "x", 2), _input(eg, "y", 2)
    a, b = eg.add("sin", x), eg.add("cos", y)
    eg.union(a, y)
    eg.union(b, x)
    eg.rebuild()
    choose = {cls: next(n for n in eg.enodes(cls) if len(n) > 1) for cls in eg.classes()}
    with pytest.raises(ValueError, match="cycle"):
        extract_any(eg, x, choose.__getitem__)


def test_unused_inputs_are_imported() -> None:
    x, y = make_input("x", (2,)), make_input("y", (3,))
    eg = import_graph(Graph((x, y), (mk("exp", x),)))
    assert set(eg.inputs) == {"x", "y"}
    assert eg.shape(eg.inputs["y"]) == (3,)
    assert eg.roots[0] >> PERM_BITS != eg.inputs["x"] >> PERM_BITS
