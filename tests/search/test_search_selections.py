"""Random selections with random layouts, lowered and compared with the program: every option of every class is used.

One run of this exercises matching of layouts, the emitter for every op, frozen leaves, prepare, and macros.
"""

from __future__ import annotations

import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rewrites import library
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph
from superopt.backends.xla import to_jax
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, literal, make_input, mk, topological
from superopt.ir.program import PREPARED, Program
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.moves import bit_moves
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.state import FORBID, Problem, State
from tests.support.search_cases import (
    BUILDERS,
    Case,
    case,
    fresh_cost,
    plain_macro,
    run_graph,
    run_program,
    worst_error,
)
from tests.support.search_table import TableObjective


def scramble(state: State, rng: random.Random) -> None:
    """Flip most classes in use to a random option, layout and override."""
    problem = state.problem
    for _ in range(3):
        for c in range(problem.snapshot.size):
            if state.readers[c] and rng.random() < 0.6:
                state.flip(
                    [(c, rng.randrange(len(state.options[c])))],
                    [(c, rng.choice(problem.candidates[c]))],
                    [(c, rng.choice((0, 0, 0, 1, 2)))],
                )


@pytest.mark.parametrize(("selections", "used_share"), [(8, 0.15), pytest.param(25, 0.3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rules", ["hand", "library"])
@pytest.mark.parametrize("name", BUILDERS)
def test_random_selections_compute_the_program(name: str, rules: str, selections: int, used_share: float) -> None:
    this = case(name, rules)
    expand = library_expander(library.load()) if rules == "library" else plain_macro
    problem = this.problem()
    lowering = Lowering(problem.wants)
    base, rng = problem.snapshot.original(), random.Random(11)
    used: set[tuple[int, int]] = set()
    for number in range(selections):
        state = State(problem, base)
        scramble(state, rng)
        used |= {(c, state.selection[c]) for c in state.active()}
        program = lowering.lower(state.choice(), this.graph, expand)
        error = worst_error(run_program(program, this.values), this.outputs)
        assert error < 1e-4, f"{name}, {rules}: selection {number} of seed 11 is off by {error:.1e}"
    reachable = {(c, i) for c, row in enumerate(problem.snapshot.options) for i in range(len(row))}
    assert len(used) > used_share * len(reachable)


def _original(this: Case) -> tuple[State, Lowering]:
    problem = this.problem()
    return State(problem), Lowering(problem.wants)


@pytest.mark.parametrize("name", BUILDERS)
def test_original_selection_is_the_program(name: str) -> None:
    this = case(name)
    state, lowering = _original(this)
    program = lowering.lower(state.choice(), this.graph)
    assert worst_error(run_program(program, this.values), this.outputs) < 1e-5
    assert [n.types for n in program.hot.outputs] == [n.types for n in this.graph.outputs]
    assert not any(node.op == "macro" for node in topological(program.hot.outputs))


def test_prepare_takes_all_frozen_work() -> None:
    this = case("convnet")
    state, lowering = _original(this)
    program = lowering.lower(state.choice(), this.graph)
    assert program.prepare is not None
    live = [n for n in this.graph.inputs if not n["frozen"]]
    assert list(program.hot.inputs[: len(live)]) == live
    prepared = program.hot.inputs[len(live) :]
    assert [n["name"] for n in prepared] == [f"{PREPARED}{i}" for i in range(len(prepared))]
    assert all(n["frozen"] for n in prepared)
    for node in topological(program.hot.outputs):
        if node.op not in ("input", "literal", "broadcast_in_dim", "reshape", "transpose"):
            assert any(_is_live(x) for x in node.inputs), f"{node} could be prepared"
    # batch norm's per-channel values stay vectors: nothing of the size of an image is prepared
    assert program.prepared_bytes < 1.5 * program.frozen_bytes
    assert program.prepared_bytes == lowering.prepared_bytes(state.choice())


def test_forbidden_values_are_computed_again_in_every_reader() -> None:
    """The override is real: XLA would merge the copies if lowering did not keep them apart."""
    x = make_input("x", (64, 64))
    y = mk("tanh", x)
    graph = Graph((x,), (mk("exp", y), mk("sin", y), mk("reduce_max", mk("abs", y), axes=(1,))))
    problem = _problem_of(graph)
    state, lowering = State(problem), Lowering(problem.wants)
    values = {"x": np.linspace(-2, 2, 64 * 64, dtype=np.float32).reshape(64, 64)}

    def compiled() -> tuple[Program, int]:
        program = lowering.lower(state.choice(), graph)
        text = jax.jit(to_jax(program.hot)).lower(values["x"]).compile().as_text()
        return program, len(re.findall(r"tanh\(", text))

    shared, once = compiled()
    shared_cost = state.cost
    (c,) = (c for c in state.active() if state.overridable(c))
    (move,) = bit_moves(state, c)
    assert move.apply(state) is not None
    state.settle()
    copied, thrice = compiled()
    assert once == 1
    assert thrice == 3
    assert not any(node.op == "barrier" for node in topological(shared.hot.outputs))
    assert len(state.kernels()) == 3
    assert state.cost != shared_cost
    for program in (shared, copied):
        assert worst_error(run_program(program, values), run_graph(graph, values)) < 1e-6
    (back,) = bit_moves(state, c)
    assert back.apply(state) is not None
    assert state.cost == shared_cost


def _is_live(node: object) -> bool:
    return any(n.op == "input" and not n["frozen"] for n in topological((node,)))  # type: ignore[arg-type]


def test_layout_reaches_frozen_weights_for_nothing() -> None:
    this = case("convnet")
    state, lowering = _original(this)
    problem = state.problem
    last = {c: problem.candidates[c][1] for c in state.active() if len(problem.candidates[c]) > 1}
    assert state.flip((), last.items()) is not None
    program = lowering.lower(state.choice(), this.graph)
    convs = [n for n in topological(program.hot.outputs) if n.op == "conv_general_dilated"]
    lasts = [n for n in convs if n["dimension_numbers"][2][1] == 3]
    assert len(lasts) > 0.7 * len(convs)
    for node in lasts:
        kernel = node.inputs[1]
        assert kernel.op == "input"  # HWIO comes out of prepare, no transpose in the hot part
        assert node["dimension_numbers"][1] == (3, 2, 0, 1)
    assert worst_error(run_program(program, this.values), this.outputs) < 1e-4


def _problem_of(graph: Graph) -> Problem:
    snapshot = Snapshot(import_graph(graph))
    return Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))


def _lowered(graph: Graph, flip: bool) -> tuple[Program, Lowering]:
    problem = _problem_of(graph)
    snapshot = problem.snapshot
    state = State(problem)
    if flip:
        state.flip((), [(c, problem.candidates[c][-1]) for c in range(snapshot.size)])
        state.settle()
        assert state.cost == fresh_cost(state)
    lowering = Lowering(problem.wants)
    return lowering.lower(state.choice(), graph), lowering


@pytest.mark.parametrize("flip", [False, True])
def test_outputs_that_are_inputs_frozen_or_repeated(flip: bool) -> None:
    x, w = make_input("x", (3, 4)), make_input("w", (4, 5), frozen=True)
    y = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    turned = mk("transpose", y, permutation=(1, 0))
    half = mk("mul", w, mk("broadcast_in_dim", literal(0.5), shape=(4, 5), broadcast_dimensions=()))
    seven = mk("broadcast_in_dim", literal(7.0), shape=(2, 2), broadcast_dimensions=())
    graph = Graph((x, w), (x, y, turned, y, w, half, seven, mk("transpose", x, permutation=(1, 0))))
    program, _ = _lowered(graph, flip)
    rng = np.random.default_rng(0)
    values = {n["name"]: rng.standard_normal(n.shape).astype(np.float32) for n in graph.inputs}
    assert worst_error(run_program(program, values), run_graph(graph, values)) < 1e-6


def test_program_without_frozen_inputs_has_no_prepare() -> None:
    x = make_input("x", (3, 4))
    program, _ = _lowered(Graph((x,), (mk("exp", x),)), False)
    assert program.prepare is None


def test_prepared_tensors_have_names_that_no_input_has() -> None:
    x, w = make_input(f"{PREPARED}0", (3, 4)), make_input("w", (4, 5), frozen=True)
    y = mk("dot_general", x, w, dimension_numbers=(((1,), (0,)), ((), ())))
    program, _ = _lowered(Graph((x, w), (y,)), False)
    names = [node["name"] for node in program.hot.inputs]
    assert len(set(names)) == len(names) == 2


def test_frozen_work_without_frozen_inputs_is_prepared() -> None:
    x = make_input("x", (4, 4))
    rows, columns = (mk("iota", dtype="int32", shape=(4, 4), dimension=d) for d in (0, 1))
    mask = mk("convert_element_type", mk("le", columns, rows), new_dtype="float32")
    graph = Graph((x,), (mk("mul", x, mask),))
    program, _ = _lowered(graph, False)
    value = {"x": np.ones((4, 4), np.float32)}
    assert (run_program(program, value)[0] == np.tril(np.ones((4, 4)))).all()
    assert program.prepare is not None
    assert [n.op for n in topological(program.hot.outputs) if n.op == "iota"] == []


@pytest.mark.parametrize("flip", [False, True])
def test_control_flow_reads_and_gives_natural_order(flip: bool) -> None:
    def fn(p: np.ndarray, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.tanh(x @ p)
        last, every = jax.lax.scan(lambda c, t: (c * 0.5 + t, jnp.sin(c)), y[0], y.T @ y)
        return last @ p.T, jnp.exp(every.T)

    rng = np.random.default_rng(1)
    p, x = (rng.standard_normal(s).astype(np.float32) for s in ((4, 4), (6, 4)))
    imported = import_function(fn, (p, x), frozen=0)
    values = {imported.names[0]: p, imported.names[1]: x} | dict(imported.graph.constants)
    program, _ = _lowered(imported.graph, flip)
    assert any(node.op == "scan" for node in topological(program.hot.outputs))
    assert worst_error(run_program(program, values), run_graph(imported.graph, values)) < 1e-5


def test_long_chains_need_no_recursion() -> None:
    node = x = make_input("x", (4,))
    for _ in range(3000):
        node = mk("sin", node)
    graph = Graph((x,), (node,))
    program, _ = _lowered(graph, False)
    value = {"x": np.ones(4, np.float32)}
    assert worst_error(run_program(program, value), run_graph(graph, value)) < 1e-6


def test_shared_subterms_of_one_kernel_stay_shared() -> None:
    node = x = make_input("x", (4,))
    for _ in range(60):  # as a tree this has 2**60 leaves
        node = mk("add", mk("sin", node), node)
    graph = Graph((x,), (node,))
    problem = _problem_of(graph)
    state = State(problem)
    bits = [(c, FORBID) for c in range(state.snapshot.size)]
    assert state.flip((), (), bits) is not None
    state.settle()
    assert len(state.kernels()) == 1
    assert len(topological([state.kernels()[0][1]])) == 121
