"""The ablation suite: the value of an objective, by measuring the program that each objective picks.

The same e-graph is searched under each objective; picks and random selections are built and timed interleaved with the
original in fresh rounds.  On graphs small enough every selection with every layout is enumerated and timed, so that
the best possible time is known.

    random    The median of a few random selections with random layouts (what can go wrong).
    prior     The roofline alone.
    learned   The objective of `load_objective`, when that is not the roofline.
    regret    The time of a pick over the best time measured for the case, less 1.

    superopt bench --suite ablation [--case NAME ...] [--json]
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from costmodel.model.load import load_objective, load_roofline
from costmodel.model.measured import Measured
from costmodel.model.objective import Objective
from rewrites.build.expander import library_expander
from rewrites.egraph.convert import import_graph
from rewrites.grow.growth import grow
from superopt.certify.library import proved_library
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import Program, original_program
from superopt.ir.text import print_graph
from superopt.lab.bench import Result, Say, table_with_summary, wanted
from superopt.lab.bench.programs import nets
from superopt.lab.bench.programs.layers import Net, conv2d, relu, softmax
from superopt.machine.budget import parse_budget
from superopt.machine.deadline import Deadline
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.search.layout import candidates
from superopt.search.lower import Lowering
from superopt.search.moves import every_state, random_state
from superopt.search.pricing import Pricer
from superopt.search.search import SearchSettings, search
from superopt.search.snapshot import Snapshot
from superopt.search.state import Problem, State

_RANDOM = 3
_STATES, _PROGRAMS = 3_000, 150  # larger sets are not enumerated, and not timed
_ENODES = 400
_ROUNDS, _SAMPLE_S = 11, 0.01
_COLUMNS = (
    ("case", "case", ""),
    ("measured", "programs timed", "d"),
    ("exhaustive", "exhaustive", ""),
    ("original_ms", "original ms", ".4g"),
    ("best_ms", "best ms", ".4g"),
    ("regret_random", "random", ".0%"),
    ("regret_prior", "prior", ".1%"),
    ("regret_learned", "learned", ".1%"),
    ("noise_floor", "noise", ".1%"),
)


def _pointwise() -> Net:
    rng = np.random.default_rng(80)
    w = rng.standard_normal((48, 32, 1, 1)).astype(np.float32)
    return Net(lambda p, x: relu(conv2d(x, p["w"])), {"w": w}, (rng.standard_normal((1, 32, 20, 20), np.float32),))


def _depthwise() -> Net:
    rng = np.random.default_rng(81)
    w = rng.standard_normal((64, 1, 3, 3)).astype(np.float32)

    def fn(p: dict[str, Array], x: Array) -> Array:
        return relu(conv2d(x, p["w"], groups=64))

    return Net(fn, {"w": w}, (rng.standard_normal((1, 64, 20, 20), np.float32),))


def _attention() -> Net:
    rng = np.random.default_rng(82)
    shapes = ((96, 32), (96, 32), (96, 32))
    return Net(lambda p, q, k, v: softmax(q @ k.T) @ v, {}, tuple(rng.standard_normal(s, np.float32) for s in shapes))


def _three_products() -> Net:
    rng = np.random.default_rng(83)
    shapes = ((192, 24), (24, 192), (192, 8))
    return Net(lambda p, a, b, c: relu((a @ b) @ c), {}, tuple(rng.standard_normal(s, np.float32) for s in shapes))


CASES: dict[str, Callable[[], Net]] = {
    "three_products": _three_products,
    "pointwise": _pointwise,
    "depthwise": _depthwise,
    "attention": _attention,
    "inverted_residual": lambda: nets.inverted_residual(24, 24, 4, 1, 20),
    "bottleneck": lambda: nets.bottleneck(48, 48, 28),
    "fire": lambda: nets.fire(48, 24, 48, 28),
    "bert": lambda: nets.bert_layer(256, 4, 96),
    "linear_attention": lambda: nets.linear_attention(512, 48),
    "lstm": lambda: nets.lstm(1, 320),
}


def run(*, budget: str, cases: Sequence[str], seed: int, say: Say) -> Result:
    """Search each case under each objective, time the picks."""
    seconds = parse_budget(budget).seconds or 5.0
    objectives: dict[str, Objective] = {"prior": load_roofline()}
    given = load_objective()
    if given.name != objectives["prior"].name:
        objectives["learned"] = given
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted(case, cases):
            rows.append(measure_case(case, objectives, seconds, seed))
            picks = {k.removeprefix("regret_"): v for k, v in rows[-1].items() if k.startswith("regret_")}
            say(f"{case}: " + ", ".join(f"{k} {v:+.1%}" for k, v in picks.items() if v is not None))
    summary = summarise(rows)
    return rows, summary, table_with_summary(rows, _COLUMNS, summary)


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean and largest regret of each objective, over all cases and over those that were enumerated."""
    summary: dict[str, float] = {"cases": float(len(rows)), "exhaustive": float(sum(r["exhaustive"] for r in rows))}
    for name in ("random", "prior", "learned"):
        values = [r[f"regret_{name}"] for r in rows if r[f"regret_{name}"] is not None]
        known = [r[f"regret_{name}"] for r in rows if r["exhaustive"] and r[f"regret_{name}"] is not None]
        if values:
            summary[f"mean_regret_{name}"] = sum(values) / len(values)
            summary[f"max_regret_{name}"] = max(values)
        if known:
            summary[f"mean_regret_{name}_exhaustive"] = sum(known) / len(known)
    return summary


@dataclass(frozen=True, slots=True)
class _Programs:
    """Distinct programs to time, and the number of each pick among them."""

    programs: list[Program]
    number: dict[str, int]

    def add(self, program: Program) -> int:
        """Add a program and return its number."""
        text = print_graph(program.hot)
        if text not in self.number:
            self.number[text] = len(self.programs)
            self.programs.append(program)
        return self.number[text]


def measure_case(case: str, objectives: dict[str, Objective], seconds: float, seed: int) -> dict[str, Any]:
    """Regrets of one case."""
    net = CASES[case]()
    imported = import_function(net.fn, (net.params, *net.inputs), frozen=0)
    graph, rules = imported.graph, proved_library(None).rules
    expand = library_expander(rules)
    eg = import_graph(graph)
    grow(eg, [r for r in rules if r.mode in ("saturate", "macro")], deadline=Deadline.within(15.0))
    timed = _Programs([original_program(graph)], {})
    picks: dict[str, list[int]] = {}
    for name, objective in objectives.items():
        best = search(eg, Measured(objective, expand), SearchSettings(Deadline.within(seconds), seed))
        picks[name] = [timed.add(best.program(best.best, graph, expand))]
    snapshot = Snapshot(eg)
    problem = Problem(snapshot, Pricer(Measured(objectives["prior"], expand)), candidates(snapshot))
    lowering = Lowering(problem.wants)

    def add(state: State) -> int:
        return timed.add(lowering.lower(state.choice(), graph, expand))

    rng = random.Random(seed)
    picks["random"] = [add(random_state(State(problem), rng)) for _ in range(_RANDOM)]
    exhaustive = False
    if eg.enode_count <= _ENODES:
        states = every_state(State(problem), _STATES)
        exhaustive = states is not None
        for state in states or ():
            add(state)
            if len(timed.programs) > _PROGRAMS:
                exhaustive = False
                break
    result = compare(
        timed.programs[0], timed.programs, imported.live_values, imported.frozen_values,
        ComparisonSettings(_ROUNDS, _SAMPLE_S, seed, prune=0.0),
    )  # fmt: skip
    times = [c.median_s if isinstance(c, Timing) else math.inf for c in result.candidates]
    least = min(times)
    regrets = {name: sorted(times[i] for i in where)[len(where) // 2] / least - 1.0 for name, where in picks.items()}
    return {
        "case": case,
        "enodes": eg.enode_count,
        "measured": len(timed.programs),
        "exhaustive": exhaustive,
        "original_ms": 1e3 * times[0],
        "best_ms": 1e3 * least,
        "noise_floor": result.noise_floor,
        "times_ms": [1e3 * t for t in times],
        "picks": picks,
        "regret_learned": None,
        **{f"regret_{name}": value for name, value in regrets.items()},
    }
