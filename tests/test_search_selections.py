"""Random selections with random layouts, lowered and compared with the program: every option of every class is used.

One run of this exercises matching of layouts, the emitter for every op, frozen leaves, prepare, and macros.
"""

from __future__ import annotations

import random

import pytest
from search_cases import BUILDERS, Case, case, plain_macro, run_program, selection_of, worst_error

from rewrites import library
from superopt.ir.graph import topological
from superopt.ir.program import PREPARED
from superopt.search.graphs import original_selection
from superopt.search.lower import Lowering, library_expander
from superopt.search.state import State

SELECTIONS = 25


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


@pytest.mark.parametrize("rules", ["hand", "library"])
@pytest.mark.parametrize("name", BUILDERS)
def test_random_selections_compute_the_program(name: str, rules: str) -> None:
    this = case(name, rules)
    expand = library_expander(library.load()) if rules == "library" else plain_macro
    problem = this.problem()
    lowering = Lowering(problem.snapshot, problem.wants)
    base, rng = original_selection(problem.snapshot), random.Random(11)
    used: set[tuple[int, int]] = set()
    for number in range(SELECTIONS):
        state = State(problem, base)
        scramble(state, rng)
        used |= {(c, state.selection[c]) for c in state.active()}
        program = lowering.lower(selection_of(state), this.graph, expand)
        error = worst_error(run_program(program, this.values), this.outputs)
        assert error < 1e-4, f"{name}, {rules}: selection {number} of seed 11 is off by {error:.1e}"
    reachable = {(c, i) for c, row in enumerate(problem.snapshot.options) for i in range(len(row))}
    assert len(used) > 0.3 * len(reachable)


def _original(this: Case) -> tuple[State, Lowering]:
    problem = this.problem()
    return State(problem, original_selection(problem.snapshot)), Lowering(problem.snapshot, problem.wants)


@pytest.mark.parametrize("name", BUILDERS)
def test_original_selection_is_the_program(name: str) -> None:
    this = case(name)
    state, lowering = _original(this)
    program = lowering.lower(selection_of(state), this.graph)
    assert worst_error(run_program(program, this.values), this.outputs) < 1e-5
    assert [n.types for n in program.hot.outputs] == [n.types for n in this.graph.outputs]
    assert not any(node.op == "macro" for node in topological(program.hot.outputs))


def test_prepare_takes_all_frozen_work() -> None:
    this = case("convnet")
    state, lowering = _original(this)
    program = lowering.lower(selection_of(state), this.graph)
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
    assert program.prepared_bytes == lowering.prepared_bytes(selection_of(state))


def _is_live(node: object) -> bool:
    return any(n.op == "input" and not n["frozen"] for n in topological((node,)))  # type: ignore[arg-type]


def test_layout_reaches_frozen_weights_for_nothing() -> None:
    this = case("convnet")
    state, lowering = _original(this)
    problem = state.problem
    last = {c: problem.candidates[c][1] for c in state.active() if len(problem.candidates[c]) > 1}
    assert state.flip((), last.items()) is not None
    program = lowering.lower(selection_of(state), this.graph)
    convs = [n for n in topological(program.hot.outputs) if n.op == "conv_general_dilated"]
    lasts = [n for n in convs if n["dimension_numbers"][2][1] == 3]
    assert len(lasts) > 0.7 * len(convs)
    for node in lasts:
        kernel = node.inputs[1]
        assert kernel.op == "input"  # HWIO comes out of prepare, no transpose in the hot part
        assert node["dimension_numbers"][1] == (3, 2, 0, 1)
    assert worst_error(run_program(program, this.values), this.outputs) < 1e-4
