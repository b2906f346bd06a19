"""Validation of returned programs: element labels, plans of rule instances, and what must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import superopt
from rewrites.egraph.convert import import_graph
from superopt.certify.library import ledger_of, proved_library
from superopt.certify.plan import Plan, empty_plan, read_plan
from superopt.certify.validate import validate, visited_elements
from superopt.commands.main import cli
from superopt.errors import InputError
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.trace import make_plan, whole
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from superopt.ir.program import Program
from superopt.ir.program import replace as substituted
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.state import Problem, State
from tests.search.test_search_selections import scramble
from tests.support.saved_files import edited
from tests.support.search_cases import BUILDERS, case
from tests.support.search_table import TableObjective
from tests.support.stages import steps
from verifier.programs.elements import ElementLabels
from verifier.programs.mixing import Merges
from verifier.programs.sweep import sweep, tasks

pytestmark = pytest.mark.usefixtures("keeps_plain")

LEDGER = ledger_of(None)
KEY = b"tests"


def labels(node: Node, **options: Any) -> np.ndarray:
    return ElementLabels(KEY, **options).of(node)


def same(a: Node, b: Node, **options: Any) -> bool:
    known = ElementLabels(KEY, **options)
    return np.array_equal(known.of(a), known.of(b))


# ---- element labels

X, Y = make_input("x", (3, 4)), make_input("y", (4, 5))
SQUARE = make_input("s", (3, 3))


def dot(a: Node, b: Node, i: int, j: int) -> Node:
    return mk("dot_general", a, b, dimension_numbers=(((i,), (j,)), ((), ())))


def turned(x: Node, *perm: int) -> Node:
    return mk("transpose", x, permutation=perm)


def scalar(value: Any, dtype: str = "float32") -> Node:
    return literal(value, dtype)


def filled(value: Any, shape: tuple[int, ...]) -> Node:
    return mk("broadcast_in_dim", scalar(value), shape=shape, broadcast_dimensions=())


EQUAL = {
    "a product of transposed operands": (dot(X, Y, 1, 0), turned(dot(turned(Y, 1, 0), X, 1, 1), 1, 0)),
    "a reshape of a reshape": (mk("reshape", mk("reshape", X, new_sizes=(2, 6)), new_sizes=(12,)),
                               mk("reshape", X, new_sizes=(12,))),
    "a slice of a concatenation": (
        mk("slice", mk("concatenate", X, X, dimension=0), start_indices=(3, 0), limit_indices=(6, 4)), X,
    ),
    "an op of a broadcast": (
        mk("exp", mk("broadcast_in_dim", X, shape=(2, 3, 4), broadcast_dimensions=(1, 2))),
        mk("broadcast_in_dim", mk("exp", X), shape=(2, 3, 4), broadcast_dimensions=(1, 2)),
    ),
    "double negation": (mk("neg", mk("neg", X)), X),
    "times one": (mk("mul", X, filled(1.0, (3, 4))), X),
    "folded constants": (mk("add", scalar(1.5), scalar(2.5)), scalar(4.0)),
    "a sum in two layouts": (mk("reduce_sum", X, axes=(0,)), mk("reduce_sum", turned(X, 1, 0), axes=(1,))),
    "operands of a sum": (mk("add", X, mk("exp", X)), mk("add", mk("exp", X), X)),
    "reversal twice": (mk("rev", mk("rev", X, dimensions=(0, 1)), dimensions=(0,)), mk("rev", X, dimensions=(1,))),
    "a 1x1 convolution as a product": (
        mk("conv_general_dilated", make_input("a", (1, 4, 2, 2)), make_input("b", (5, 4, 1, 1)), window_strides=(1, 1)),
        mk("reshape", turned(dot(make_input("b", (5, 4, 1, 1)), make_input("a", (1, 4, 2, 2)), 1, 1), 3, 0, 4, 5, 1, 2),
           new_sizes=(1, 5, 2, 2)),
    ),
}  # fmt: skip
DIFFERENT = {
    "a product the other way round": (dot(SQUARE, make_input("t", (3, 3)), 1, 0),
                                      dot(make_input("t", (3, 3)), SQUARE, 1, 0)),
    "a transpose of a square": (SQUARE, turned(SQUARE, 1, 0)),
    "subtraction swapped": (mk("sub", X, mk("exp", X)), mk("sub", mk("exp", X), X)),
    "a sum over another axis": (mk("reduce_sum", SQUARE, axes=(0,)),
                                mk("reduce_sum", SQUARE, axes=(1,))),
    "another reducer": (mk("reduce_max", X, axes=(0,)), mk("reduce_min", X, axes=(0,))),
    "another precision": (dot(X, Y, 1, 0), mk("dot_general", X, Y, dimension_numbers=(((1,), (0,)), ((), ())),
                                              precision="highest")),
    "another position of the largest": (mk("argmax", SQUARE, axes=(0,)),
                                        mk("argmax", mk("rev", SQUARE, dimensions=(0,)), axes=(0,))),
    "pairs of another pairing": (dot(X, Y, 1, 0), dot(mk("rev", X, dimensions=(1,)), Y, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_labels_are_equal(name: str) -> None:
    a, b = EQUAL[name]
    assert a is not b
    assert same(a, b)


@pytest.mark.parametrize("name", DIFFERENT)
def test_labels_differ(name: str) -> None:
    a, b = DIFFERENT[name]
    assert not np.array_equal(labels(a), labels(b))


def test_equal_columns_are_told_apart_by_their_pairing() -> None:
    """Where the contracted positions look alike on both sides, what stands together still counts."""
    a, b = make_input("a", (2,)), make_input("b", (2,))
    left = mk("concatenate", mk("reshape", a, new_sizes=(1, 2)), mk("rev", mk("reshape", a, new_sizes=(1, 2)),
                                                                      dimensions=(1,)), dimension=0)  # fmt: skip
    right = mk("concatenate", mk("reshape", b, new_sizes=(1, 2)), mk("rev", mk("reshape", b, new_sizes=(1, 2)),
                                                                       dimensions=(1,)), dimension=0)  # fmt: skip
    product = labels(dot(left, right, 1, 1))  # [[a0 b0 + a1 b1, a0 b1 + a1 b0], ...]
    assert product[0, 0] not in (product[0, 1], product[1, 0])
    assert product[1, 1] not in (product[0, 1], product[1, 0])


def test_laws_that_change_bits_are_left_out_of_exact_labels() -> None:
    plus, minus = (mk("add", X, filled(c, (3, 4))) for c in (0.0, -0.0))
    assert same(plus, X)
    assert not same(plus, X, exact=True)
    assert same(minus, X, exact=True)
    assert same(mk("sub", X, filled(0.0, (3, 4))), X, exact=True)
    assert not same(mk("sub", X, filled(-0.0, (3, 4))), X, exact=True)


@pytest.mark.parametrize("name", BUILDERS)
def test_any_layout_of_a_program_has_its_labels(name: str) -> None:
    import random

    this = case(name)
    snapshot = Snapshot(import_graph(this.graph))
    problem = Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))
    state, rng = State(problem), random.Random(5)
    lowering = Lowering(problem.wants)
    for _ in range(2):
        scramble(state, rng)
        outputs = whole(lowering.lower(state.choice(), this.graph))
        assert all(same(a, b) for a, b in zip(this.graph.outputs, outputs, strict=True))


def test_merges_are_an_equivalence() -> None:
    rng = np.random.default_rng(3)
    merges, n = Merges(), 60
    names = rng.integers(1, 2**62, n).astype(np.uint64) * np.uint64(2)
    lead = list(range(n))
    for _ in range(40):
        a, b = rng.integers(0, n, (2, 3))
        merges.unite(names[a], names[b])
        for x, y in zip(a, b, strict=True):
            old, new = lead[x], lead[y]
            lead = [new if k == old else k for k in lead]
        found = merges.find(names)
        assert (merges.find(found) == found).all()
        assert ((found[:, None] == found[None]) == (np.array(lead)[:, None] == np.array(lead)[None])).all()


# ---- sweeps


def swept(original: Node, steps: list[tuple[Node, Node]], returned: Node, rounds: int = 3, **options: Any) -> bool:
    """Are two programs equal by steps?"""
    known = ElementLabels(KEY, **options)
    order = tasks((original,), steps, (returned,))
    for _ in range(rounds):
        found = sweep(known, order)
    return np.array_equal(found[original][0], found[returned][0])


def test_a_sweep_labels_operands_first_and_lets_go_what_is_read() -> None:
    a, b = mk("exp", X), mk("tanh", X)
    y = dot(mk("add", a, b), Y, 1, 0)
    order = tasks((y,), [(a, mk("neg", b))], (mk("exp", y),))
    done: set[Node] = set()
    for at, task in enumerate(order):
        assert all(x in {t.node for t in order[:at]} for x in task.node.inputs)
        assert not done & {task.node, *task.node.inputs, *(side for pair in task.equal for side in pair)}
        done |= set(task.done)
    assert len({t.node for t in order}) == len(order)
    assert {t.node for t in order} - done == {y, mk("exp", y)}


def test_what_a_step_says_is_used_above_it_only() -> None:
    """A label that was given before the step was known stays true: nothing else becomes equal to it."""
    a, b, c = mk("exp", X), mk("tanh", X), mk("log", X)
    assert swept(mk("neg", a), [(a, b)], mk("neg", b))
    assert not swept(mk("neg", a), [(a, b)], mk("neg", c))
    assert not swept(mk("sub", a, c), [(a, b)], mk("sub", c, b))
    assert not swept(mk("sub", a, b), [(mk("sub", a, b), mk("sub", c, c))], mk("sub", b, a))
    assert not swept(a, [(mk("neg", a), mk("neg", b))], b)  # equal results do not make operands equal


def test_a_step_that_is_found_after_its_readers_counts_in_the_next_round() -> None:
    """Steps in any order, chained, and one that is over what another one gives: a stale label is renewed."""
    a, b, c, d = (mk(op, X) for op in ("exp", "tanh", "log", "sin"))
    steps = [(mk("add", c, X), d), (b, c), (a, b)]
    original, returned = mk("neg", mk("add", a, X)), mk("neg", d)
    assert swept(original, steps, returned)
    assert swept(original, steps[::-1], returned)
    assert all(not swept(original, steps[:at] + steps[at + 1 :], returned) for at in range(3))


def test_a_step_about_one_shape_says_nothing_of_another_arrangement() -> None:
    """A square and its transpose hold the same labels: what is said of one place does not reach the others."""
    flat = mk("transpose", SQUARE, permutation=(1, 0))
    other = make_input("t", (3, 3))
    assert not swept(SQUARE, [(flat, other)], other)
    assert swept(flat, [(SQUARE, turned(other, 1, 0))], other)
    up, down = (mk("broadcast_in_dim", make_input("v", (3,)), shape=(3, 3), broadcast_dimensions=(d,)) for d in (0, 1))
    assert not swept(mk("exp", up), [], mk("exp", down))
    assert swept(mk("exp", up), [(up, down)], mk("exp", down))


def test_a_sample_that_misses_an_equality_is_made_up_for() -> None:
    """Few elements of a large tensor are concerned: sampling overlooks them, and a full look finds them."""
    wide = make_input("wide", (40_000,))
    part = mk("slice", wide, start_indices=(7,), limit_indices=(9,))
    easy = mk("tanh", part)
    low = mk("slice", mk("exp", wide), start_indices=(7,), limit_indices=(9,))
    original = mk("add", mk("exp", wide), wide)
    replaced = mk("concatenate", mk("slice", mk("exp", wide), start_indices=(0,), limit_indices=(7,)), easy,
                  mk("slice", mk("exp", wide), start_indices=(9,), limit_indices=(40_000,)), dimension=0)  # fmt: skip
    returned = mk("add", replaced, wide)
    known = ElementLabels(KEY)
    order = tasks((original,), [(low, easy)], (returned,))
    for known.merges.sampling in (True, True, False, False):
        found = sweep(known, order)
    assert np.array_equal(found[original][0], found[returned][0])


def test_merged_labels_are_found_however_many_there_are() -> None:
    rng = np.random.default_rng(7)
    merges = Merges()
    names = rng.integers(1, 2**63, (6, 30_000)).astype(np.uint64)
    for at in (3, 1, 4, 2, 0):
        assert np.array_equal(merges.unite(names[at], names[at + 1]), merges.find(names[at + 1]))
    assert (merges.find(names) == merges.find(names[0])).all()
    assert len(np.unique(merges.find(names))) == 30_000
    new = rng.integers(1, 2**63, 30_000).astype(np.uint64)
    assert merges.find(new) is new
    assert merges.seldom(new) is new


# ---- plans


def explored(name: str) -> Exploration:
    net = BUILDERS[name]()
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    return explore(imported.graph, proved_library(None).rules, steps(300, TableObjective()))


@pytest.mark.parametrize("name", ["convnet", pytest.param("bert", marks=pytest.mark.slow), "lstm", "grouped"])
def test_finalists_are_validated_from_their_plans(name: str) -> None:
    found = explored(name)
    some = 0
    for finalist in found.result.finalists[:3]:
        plan = make_plan(found, finalist)
        told = validate(found.imported, found.program(finalist), read_plan(json.loads(json.dumps(plan.to_json()))),
                        LEDGER)  # fmt: skip
        assert told.valid, told.cause
        some += told.steps
    assert some > 0


def by_kronecker(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.kron(a, b) @ x


def between_diagonals(d: jax.Array, w: jax.Array, e: jax.Array) -> jax.Array:
    return jnp.diag(d) @ w @ jnp.diag(e)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [(by_kronecker, [(24, 24), (24, 24), (576, 4)]), (between_diagonals, [(80,), (80, 96), (96,)])],
)
def test_an_order_that_was_proved_for_the_program_is_validated_from_its_text(
    fn: Callable[..., jax.Array], shapes: list[tuple[int, ...]]
) -> None:
    imported = import_function(fn, [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes])
    found = explore(imported.graph, proved_library(None).rules, steps(200, TableObjective()))
    best = found.result.best
    assert any(name in found.instances.certificates for name in best.rules), best.rules
    assert best.predicted_s < found.result.original.predicted_s / 2
    plan = read_plan(json.loads(json.dumps(make_plan(found, best).to_json())))
    told = validate(found.imported, found.program(best), plan, LEDGER)
    assert told.valid, told.cause
    assert told.steps > 0


def test_a_product_with_one_hot_rows_is_validated() -> None:
    def fn(i: jax.Array, table: jax.Array) -> jax.Array:
        return jax.nn.one_hot(i, 512) @ table

    imported = import_function(
        fn, [jax.ShapeDtypeStruct((200,), jnp.int32), jax.ShapeDtypeStruct((512, 64), jnp.float32)]
    )
    found = explore(imported.graph, proved_library(None).rules, steps(200, TableObjective()))
    best = found.result.best
    assert "product-with-one-hot" in best.rules
    told = validate(found.imported, found.program(best), make_plan(found, best), LEDGER)
    assert told.valid, told.cause


def test_the_square_of_a_constant_is_a_product_of_constants() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x * jnp.square(jnp.float32(0.9))

    told = superopt.optimize(fn, np.ones((4, 5), np.float32), search=False, store=False).validate()
    assert told.valid, told.cause


def small() -> tuple[Graph, Program, Plan]:
    """A chain of products, associated the other way round."""

    def fn(u: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh((u @ v) @ x)

    shapes = [(64, 4), (4, 64), (64, 3)]
    imported = import_function(fn, [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes])
    library = proved_library(None)
    found = explore(imported.graph, library.rules, steps(200, TableObjective()))
    best = found.result.best
    assert "dot-assoc" in best.rules
    return imported.graph, found.program(best), make_plan(found, best)


def check(graph: Graph, program: Program, plan: Plan) -> str:
    return validate(graph, program, plan, LEDGER).cause


def test_tampered_plans_are_refused_with_the_step() -> None:
    graph, program, plan = small()
    assert check(graph, program, plan) == ""
    (number,) = [i for i, step in enumerate(plan.instances) if step.rule == "dot-assoc"]
    step = plan.instances[number]

    def tampered(**changes: Any) -> Plan:
        steps = list(plan.instances)
        steps[number] = replace(step, **changes)
        return replace(plan, instances=tuple(steps))

    (one, other, *_) = step.tensors
    swapped = {**step.tensors, one: step.tensors[other], other: step.tensors[one]}
    sizes = tuple((name, label, n + 1) for name, label, n in step.sizes)
    wrong: dict[str, Callable[[], Plan]] = {
        f"step {number} (dot-assoc): ": lambda: tampered(tensors=swapped),
        f"step {number} (dot-assoc):  ": lambda: tampered(sizes=sizes),
        f"step {number}: the plan has no rule": lambda: tampered(rule="dot-swap"),
        "steps that lead nowhere|no step gives|not those": lambda: replace(plan, instances=()),
        f"step {number} (dot-assoc): it names a term": lambda: tampered(
            tensors={name: (99, lay) for name, (_, lay) in step.tensors.items()}
        ),
    }
    for words, make in wrong.items():
        cause = check(graph, program, make())
        assert any(part.strip() in cause for part in words.split("|")), (words, cause)


def test_the_order_of_steps_is_of_no_account_and_none_can_be_left_out() -> None:
    graph, program, plan = small()
    steps = plan.instances
    assert check(graph, program, replace(plan, instances=steps[::-1])) == ""
    assert check(graph, program, replace(plan, instances=steps + steps)) == ""
    (needed,) = [step for step in steps if step.rule == "dot-assoc"]
    assert check(graph, program, replace(plan, instances=tuple(s for s in steps if s is not needed)))
    turned_terms = replace(plan.terms, outputs=plan.terms.outputs[::-1])
    assert check(graph, program, replace(plan, terms=turned_terms))


def test_a_returned_program_with_swapped_operands_or_another_weight_is_refused() -> None:
    graph, program, plan = small()
    u, v, x = graph.inputs
    (y,) = program.hot.outputs
    swapped = {u: turned(v, 1, 0), v: turned(u, 1, 0)}
    for change in ({x: mk("neg", x)}, {x: mk("rev", x, dimensions=(0,))}, {u: turned(v, 1, 0)}, swapped):
        assert check(graph, Program(None, Graph(program.hot.inputs, substituted((y,), change))), plan)


def test_a_rule_that_is_not_proved_or_too_weak_is_refused() -> None:
    graph, program, plan = small()
    text = plan.rules["dot-assoc"]
    false = (
        text.replace("dot(A, dot(B, C", "dot(B, dot(A, C")
        if "dot(A, dot(B, C" in text
        else text.replace("==", "== 2 *")
    )
    assert "dot-assoc" in check(graph, program, replace(plan, rules={**plan.rules, "dot-assoc": false}))
    assert "dot-assoc is real" in check(graph, program, replace(plan, numerics="exact"))
    assert "cannot be read" in check(graph, program, replace(plan, rules={**plan.rules, "dot-assoc": "nonsense"}))


def test_a_returned_program_that_was_changed_is_refused_at_the_operation() -> None:
    graph, program, plan = small()
    hot = program.hot
    wrong = Program(program.prepare, Graph(hot.inputs, tuple(mk("exp", y) for y in hot.outputs)))
    assert "exp" in check(graph, wrong, plan)
    other = make_input("z", (64, 64))
    assert "'z'" in check(graph, Program(None, Graph((*hot.inputs, other), (dot(other, hot.inputs[2], 1, 0),))), plan)
    assert "other types" in check(graph, Program(None, Graph(hot.inputs, hot.inputs)), plan)


def test_plans_and_programs_of_other_calls_are_refused() -> None:
    graph, program, plan = small()
    assert "numerics 'loose'" in check(graph, program, replace(plan, numerics="loose"))
    stranger = mk("exp", make_input("z", (64, 64)))
    terms = replace(plan.terms, outputs=(*plan.terms.outputs, stranger))
    assert "speaks of an input 'z'" in check(graph, program, replace(plan, terms=terms))
    (number,) = [i for i, step in enumerate(plan.instances) if step.rule == "dot-assoc"]
    behind = {name: (at - len(plan.terms.outputs), lay) for name, (at, lay) in plan.instances[number].tensors.items()}
    steps = [replace(s, tensors=behind) if i == number else s for i, s in enumerate(plan.instances)]
    assert "names a term that is not there" in check(graph, program, replace(plan, instances=tuple(steps)))
    renamed = {**plan.rules, "other": plan.rules["dot-assoc"]}
    assert "rule other of the plan is not proved" in check(graph, program, replace(plan, rules=renamed))


def test_programs_that_pass_other_arguments_are_refused() -> None:
    w, x, y = make_input("w", (4, 4), frozen=True), make_input("x", (4, 4)), make_input("y", (4, 4))
    graph = Graph((w, x, y), (mk("sub", mk("mul", mk("neg", w), x), y),))
    ready = make_input("ready", (4, 4), frozen=True)
    result = mk("sub", mk("mul", ready, x), y)
    plan = empty_plan(graph, "exact")
    prepare = Graph((w,), (mk("neg", w),))
    assert check(graph, Program(prepare, Graph((x, y, ready), (result,))), plan) == ""
    other = "takes other arguments"
    assert other in check(graph, Program(prepare, Graph((y, x, ready), (result,))), plan)
    known = Graph((w,), (mk("exp", mk("neg", w)),))  # of frozen arguments alone
    more, hot = Graph((w,), (mk("neg", w),) * 3), Graph((ready,), (mk("exp", ready),))
    assert check(known, Program(prepare, hot), empty_plan(known, "exact")) == ""
    assert "other tensors than are prepared" in check(known, Program(more, hot), empty_plan(known, "exact"))
    assert check(graph, Program(None, graph), plan) == ""
    assert other in check(graph, Program(None, Graph((w, y, x), graph.outputs)), plan)


def test_bodies_of_control_flow_have_plans_of_their_own() -> None:
    def fn(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh((w @ w.T) @ h[:, None])[:, 0] + x
            return h, h

        return jax.lax.scan(step, xs[0], xs)[1]

    rng = np.random.default_rng(0)
    arguments = (rng.standard_normal((256, 4)).astype(np.float32), rng.standard_normal((3, 256)).astype(np.float32))
    result = superopt.optimize(fn, *arguments, budget="100steps", deterministic=True, store=False)
    assert result.plan is not None
    assert len(result.plan.bodies) == 1
    told = result.validate()
    assert told.valid, told.cause
    assert told.steps > 0
    (body,) = result.plan.bodies
    broken = replace(body, plan=replace(body.plan, instances=()))
    cause = check(result.imported.graph, result.program, replace(result.plan, bodies=(broken,)))
    assert cause.startswith("body 0: ")
    looser = replace(body, plan=replace(body.plan, numerics="exact"))
    cause = check(result.imported.graph, result.program, replace(result.plan, bodies=(looser,)))
    assert cause.startswith("body 0: its plan says exact")


# ---- files and the command line


def scaled(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.maximum((x @ w) * jnp.arange(1.0, 9.0), 0.0) + 1.0


def other(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.maximum((x @ w) * jnp.arange(1.0, 9.0), 0.0) + 2.0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((8, 8)).astype(np.float32), rng.standard_normal((4, 8)).astype(np.float32)
    result = superopt.optimize(scaled, w, x, frozen=0, budget="100steps", deterministic=True, store=False)
    assert result.plan is not None
    assert result.plan.instances
    return result.save(tmp_path_factory.mktemp("saved") / "p.superopt")


def test_a_saved_program_is_validated_from_its_file(saved: Path) -> None:
    loaded = superopt.load(saved)
    told = superopt.verify(scaled, loaded)
    assert told.valid, told.cause
    assert told.notes
    assert not superopt.verify(other, loaded).valid
    assert superopt.verify(None, loaded).valid


def test_tampered_files_are_refused(saved: Path, tmp_path: Path) -> None:
    path = edited(saved, tmp_path / "hot.superopt", hot=lambda text: text.replace(b"max(", b"min("))
    told = superopt.load(path).validate()
    assert not told.valid
    assert "min" in told.cause
    path = edited(saved, tmp_path / "original.superopt", original=lambda text: text.replace(b"max(", b"min("))
    assert not superopt.load(path).validate().valid
    path = edited(saved, tmp_path / "none.superopt", plan=None)
    with pytest.raises(InputError, match="no plan"):
        superopt.load(path).validate()


def test_the_command_line_validates_a_file(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = CliRunner().invoke(cli, ["verify", "--program", str(saved), "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["valid"] is True
    path = edited(saved, tmp_path / "hot.superopt", hot=lambda text: text.replace(b"max(", b"min("))
    said = CliRunner().invoke(cli, ["verify", "--program", str(path)])
    assert said.exit_code == 3
    assert "NOT VALIDATED" in said.output


def test_windows_of_convolutions_are_counted_in_every_layout() -> None:
    def convolved(orders: tuple[str, str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Node:
        x, w = (np.ones(shape, np.float32) for shape in shapes)

        def fn(x: Any, w: Any) -> Any:
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=orders)

        (out,) = import_function(fn, (x, w)).graph.outputs
        return out

    first = convolved(("NCHW", "OIHW", "NCHW"), ((1, 8, 10, 10), (16, 8, 3, 3)))
    last = convolved(("NHWC", "HWIO", "NHWC"), ((1, 10, 10, 8), (3, 3, 8, 16)))
    assert visited_elements(first) == visited_elements(last) == 9 * (10 * 10 * (8 + 16) + 16 * 8 * 9)


def fire(path: Path) -> Path:
    """Write a fire module, the part of which SqueezeNet has eight."""
    import onnx

    from tests.support.onnx_models import info, model, node

    sizes = {"squeeze": (4, 8, 1, 1), "left": (8, 4, 1, 1), "right": (8, 4, 3, 3)}
    stored = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
    stored |= {f"{name}_bias": np.ones(shape[0], np.float32) for name, shape in sizes.items()}
    nodes = [
        node("Conv", "x squeeze squeeze_bias", "a"), node("Relu", "a", "b"),
        node("Conv", "b left left_bias", "c"), node("Relu", "c", "d"),
        node("Conv", "b right right_bias", "e", pads=[1, 1, 1, 1]), node("Relu", "e", "f"),
        node("Concat", "d f", "y", axis=1),
    ]  # fmt: skip
    onnx.save(model(nodes, [info("x", [1, 8, 12, 12])], [info("y", [1, 16, 12, 12])], stored), path)
    return path


def test_an_onnx_network_is_validated_from_its_file_and_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("superopt.frontends.onnx.frontend")
    path = fire(tmp_path / "fire.onnx")
    model = onnx.randomize_weights(onnx.load_model(path), 0)
    result = superopt.optimize(model, budget="5steps", deterministic=True, store=False)
    told = superopt.load(result.save(tmp_path / "fire.superopt")).validate()
    assert told.valid, told.cause
    assert told.steps >= 4
    assert told.rules
    refused = result.validate(path)  # the model in the file has other weights
    assert "other values" in refused.cause
