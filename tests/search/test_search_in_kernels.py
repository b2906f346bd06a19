"""What a search for kernels of our own prices is what is made: the same regions, at every selection."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from costmodel.model.boundary import Boundary
from costmodel.model.joint import Joint
from rewrites import library
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph
from superopt.candidates.candidate import Candidate
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.counters import boundary_bytes
from superopt.ir.graph import Graph
from superopt.ir.text import print_graph
from superopt.make.plain import cut
from superopt.search.emit import transpose_node
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.pricing import Pricer, kernel_graph
from superopt.search.snapshot import Snapshot
from superopt.search.state import FORCE, RULE, Problem, State
from tests.support.search_cases import BUILDERS, case, fresh_cost, run_program, worst_error

EXPAND = library_expander(library.load())
SELECTIONS = 6


class Moved:
    """A kernel costs the bytes that it reads and writes."""

    version, boundary = "1", Boundary(0.0, 1.5, 1e-10)

    def __init__(self, name: str = "moved") -> None:
        self.name = name

    def can_run(self, region: Graph) -> bool:
        return True

    def price(self, kernels: Sequence[Graph]) -> np.ndarray:
        return np.array([1e-9 * sum(boundary_bytes(kernel)) for kernel in kernels], dtype=np.float64)


@pytest.mark.parametrize("name", BUILDERS)
def test_priced_regions_are_those_that_are_made(name: str) -> None:
    this = case(name, "library")
    model = Joint(Moved(), EXPAND, Moved("own"))
    assert model.own is not None
    snapshot = Snapshot(this.eg)
    problem = Problem(snapshot, Pricer(model), candidates(snapshot), in_kernels=True)
    lowering, rng = Lowering(problem.wants), random.Random(5)
    for number in range(SELECTIONS):
        state = State(problem)
        if number:
            scramble(state, rng)
        assert state.cost == fresh_cost(state)
        program, stored = lowering.lower_stored(state.choice(), this.graph, EXPAND)
        made = Counter(region.graph for region in cut(Candidate(name=name, program=program), program, stored).regions)
        priced = Counter[Graph]()
        turned = [
            transpose_node(snapshot, root.cls, state.layouts[root.cls], root.perm)
            for root in snapshot.roots
            if root.cls >= 0 and state.layouts[root.cls] != root.perm
        ]
        for node in (*(node for _, node in state.kernels()), *filter(None, turned)):
            priced.update(model.own.parts(kernel_graph(node)) or {})
        apart = _told(made - priced), _told(priced - made)  # a weight read twice is one operand of what is made
        assert len(made) == len(priced), f"{name}: selection {number} of seed 5: {apart}"
        ours = {region for region in made if model.is_own(region)}
        assert model.program_s(made, ours) == pytest.approx(state.seconds, rel=0.01), apart
        assert worst_error(run_program(program, this.values), this.outputs) < 1e-4


def _told(regions: Counter[Graph]) -> str:
    return "\n\n".join(f"{n} of\n{print_graph(region)}" for region, n in regions.items())


def scramble(state: State, rng: random.Random) -> None:
    """Flip most classes in use to a random option and layout, and cut at some."""
    for _ in range(3):
        for c in range(state.problem.snapshot.size):
            if state.readers[c] and rng.random() < 0.6:
                options = [(c, rng.randrange(len(state.options[c])))]
                layouts = [(c, rng.choice(state.problem.candidates[c]))]
                state.flip(options, layouts, [(c, rng.choice((RULE, RULE, RULE, FORCE)))])
    state.settle()


def test_rows_picked_of_picked_rows_are_one_kernel() -> None:
    def fn(table: jax.Array, source: jax.Array, kind: jax.Array) -> jax.Array:
        rows = jnp.swapaxes(table[:, source], 0, 1)
        return jnp.take_along_axis(rows, kind[:, None, None], axis=1)

    table, source, kind = np.ones((3, 5, 4), np.float32), np.zeros(6, np.int32), np.ones(6, np.int32)
    snapshot = Snapshot(import_graph(import_function(fn, (table, source, kind)).graph))
    model = Joint(Moved(), EXPAND, Moved("own"))
    state = State(Problem(snapshot, Pricer(model), candidates(snapshot), in_kernels=True))
    picks = [c for c in state.active() if state.chosen(c).form.op == "gather"]
    assert sorted(state.materialised[c] for c in picks) == [False, True]
