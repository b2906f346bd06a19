"""Small programs and their grown e-graphs for tests of the search, and how to run a program on arrays."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array

from rewrites import library
from rewrites.egraph.convert import import_graph
from rewrites.egraph.graph import EGraph
from rewrites.grow.growth import GrowthLimits, grow
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph, Node, mk
from superopt.ir.interp import evaluate
from superopt.ir.program import Program
from superopt.lab.bench.programs import nets
from superopt.search.layout import candidates
from superopt.search.moves import Groups, Move, bit_moves, region, single_moves
from superopt.search.pricing import Pricer
from superopt.search.snapshot import Snapshot
from superopt.search.state import Problem, State
from tests.support.search_growth import grow_by_hand
from tests.support.search_table import TableObjective


class Case(NamedTuple):
    """A program, its e-graph, input values and the values of its outputs."""

    graph: Graph
    eg: EGraph
    values: dict[str, np.ndarray]
    outputs: tuple[np.ndarray, ...]

    def problem(self) -> Problem:
        """A fresh search problem under the table objective."""
        snapshot = Snapshot(self.eg)
        return Problem(snapshot, Pricer(TableObjective()), candidates(snapshot))


def grouped_block() -> nets.Net:
    """A block whose middle convolution has groups, wide enough for merging them and for Winograd."""
    rng = np.random.default_rng(3)
    shapes = {"a": (32, 16, 1, 1), "b": (32, 4, 3, 3), "c": (16, 32, 1, 1), "d": (16, 16, 3, 3)}
    params = {k: (0.2 * rng.standard_normal(shape)).astype(np.float32) for k, shape in shapes.items()}

    def fn(p: Mapping[str, Array], x: Array) -> Array:
        y = nets.relu(nets.conv2d(nets.relu(nets.conv2d(x, p["a"])), p["b"], groups=8))
        return nets.relu(x + nets.conv2d(nets.conv2d(y, p["c"]), p["d"]))

    return nets.Net(fn, params, (rng.standard_normal((1, 16, 6, 6)).astype(np.float32),))


BUILDERS = {
    "convnet": lambda: nets.resnet((1,), 4, 16, 5),
    "inverted": lambda: nets.inverted_residual(4, 4, 2, 1, 6),
    "inception": lambda: nets.fire(6, 3, 4, 5),
    "bert": lambda: nets.bert_layer(8, 2, 4),
    "swiglu": lambda: nets.transformer_block(8, 2, 4),
    "linear": lambda: nets.linear_attention(6, 4),
    "chain": lambda: nets.low_rank_chain(6, 2, 3),
    "lstm": lambda: nets.lstm(2, 5),
    "grouped": grouped_block,
}


@functools.cache
def case(name: str, rules: str = "hand") -> Case:
    """One of the small programs, grown by hand-made equalities, or by the library (dangerous rules included)."""
    net = BUILDERS[name]()
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    eg = import_graph(imported.graph)
    if rules == "hand":
        grow_by_hand(eg)
    else:
        tame = [rule for rule in library.load() if rule.mode != "near"]
        wild = [rule for rule in library.load() if rule.mode == "near"]
        grow(eg, tame, GrowthLimits(enodes=2000, iterations=8))
        grow(eg, wild, GrowthLimits(enodes=2000, iterations=1), near=eg.classes())
        grow(eg, tame, GrowthLimits(enodes=3000, iterations=2))
    values = {imported.names[i]: np.asarray(imported.examples[i]) for i in (*imported.live, *imported.frozen)}
    values.update({k: np.asarray(v) for k, v in imported.graph.constants.items()})
    return Case(imported.graph, eg, values, run_graph(imported.graph, values))


def run_graph(graph: Graph, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of a graph by the reference interpreter."""
    return tuple(evaluate(graph, {str(node["name"]): values[str(node["name"])] for node in graph.inputs}))


def run_program(program: Program, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Outputs of a program: prepare once, then the hot part."""
    known = dict(values)
    if program.prepare is not None:
        prepared = run_graph(program.prepare, known)
        known |= {str(node["name"]): x for node, x in zip(program.prepared_inputs, prepared, strict=True)}
    return run_graph(program.hot, known)


def fresh_cost(state: State) -> int:
    """Cost of the same selection evaluated from nothing."""
    return State.at(state.problem, state.choice()).cost


def plain_macro(node: Node) -> Node:
    """A macro replaced by the op whose value it has."""
    return mk(node["op"], *node.inputs, **dict(node["attrs"]))


def worst_error(have: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> float:
    """Largest difference relative to the largest value of each output."""
    assert [x.shape for x in have] == [x.shape for x in want]
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-12)) for a, b in zip(have, want, strict=True))


def random_move(state: State, groups: Groups, rng: random.Random, fusion: float) -> Move:
    """A random move of any kind; `fusion` is the share of flips of fusion overrides.  It may change nothing."""
    problem, kind = state.problem, rng.random()
    if kind < fusion:
        moves = bit_moves(state, c) if (c := _drawn(state, problem.fusible, rng)) >= 0 else ()
    elif kind < fusion + 0.05 and groups.groups:
        moves = (groups.move(state, rng.randrange(len(groups.groups))),)
    elif kind < fusion + 0.1 and (c := _drawn(state, problem.movable, rng)) >= 0:
        moves = (region(state, c, rng.choice(problem.candidates[c]), rng, 0.1),)
    else:
        moves = single_moves(state, _drawn(state, range(len(state.selection)), rng))
    return rng.choice(moves) if moves else Move()


def _drawn(state: State, classes: Sequence[int], rng: random.Random) -> int:
    """A random one of these classes that is in use, or -1."""
    used = [c for c in classes if state.readers[c]]
    return rng.choice(used) if used else -1
