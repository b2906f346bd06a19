"""Case `strategies` of the suite search: mixtures of strategies at equal evaluations and at equal seconds.

The e-graph of each program is the one that its last round of the product's search had.  It is searched by every
mixture with seeds 0 to 4, with as many proposals for all, and with as many seconds of the processor for all, where
kernels that were priced before are known.  Each program runs in a process of its own whose deadlines count seconds of
the processor, so that other work on the machine changes nothing.

    median, worst   The predicted time of the best state over the best that any run has found, less 1, over all
                    programs and seeds.
    wins            Runs that came within 0.1 % of the best known.
    spread          The largest difference between two seeds of one program, over the best known.

`docs/decisions/29-strategies-of-the-search.md` has what other strategies brought that were tried.

    superopt bench --suite search --case strategies [--json]
    superopt bench --suite search --case strategies:bert_base      one program
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from costmodel.model.joint import Joint
from costmodel.model.load import load_objective
from rewrites.build.expander import library_expander
from rewrites.egraph.graph import EGraph
from superopt.backends.protocol import backend_of
from superopt.certify.library import proved_library
from superopt.explore.exploration import explore
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.graph import Graph
from superopt.ir.program import frozen_bytes
from superopt.kernels.choose.specs import NATIVE
from superopt.lab.bench import Say, in_own_process, table, wanted
from superopt.lab.bench.programs.programs import build_case
from superopt.lab.bench.timing import median
from superopt.lab.corpora import zoo
from superopt.machine import deadline as clocks
from superopt.machine.deadline import Deadline, process_s
from superopt.search.chains import Repairing
from superopt.search.descent import Descents
from superopt.search.layout import candidates
from superopt.search.meter import Meter
from superopt.search.pricing import UNIT_S, Pricer
from superopt.search.search import MIXTURE, SearchRun, SearchSettings
from superopt.search.snapshot import Forms, Snapshot
from superopt.search.starts import Starts
from superopt.search.state import Problem
from superopt.search.strategy import Mixture

NETWORKS = ("squeezenet", "mobilenet_v2", "resnet50", "bert_base")
SNIPPETS = (
    "open:attention:linear_attention", "open:layers:ensemble_of_heads", "open:graphs:relational_messages",
    "open:statistics:gaussian_mixture", "open:science:gaussian_splats",
)  # fmt: skip
NAME = "strategies"
CASES = tuple(f"{NAME}:{name}" for name in (*SNIPPETS, *NETWORKS))
MIXTURES: dict[str, Mixture] = {
    "starts": ((Starts, 1.0),),
    "descents": ((Starts, 1.0), (Descents, 1.0)),
    "descents, repair": ((Starts, 1.0), (Descents, 0.7), (Repairing, 1.0)),
    "descents, restarts, repair": MIXTURE,
}
SEEDS = range(5)
PER_CLASS, MOST_PROPOSALS = 40, 6_000  # of a run by evaluations: the descents of SqueezeNet end within 5,100
PER_CLASS_S, MOST_S = 0.02, 1.0  # of the processor, of a run by seconds
BY = ("evaluations", "seconds")
_FIRST = 900  # proposals of the three rounds that grow the e-graph
_WON = 1e-3
_TIMEOUT_S = 3_600.0
_COLUMNS = (
    ("mixture", "strategies", ""),
    *((f"{by}_{key}", f"{key} by {by}", spec) for by in BY for key, spec in
      (("median", ".1%"), ("worst", ".1%"), ("wins", "d"))),
)  # fmt: skip


def run(*, seed: int, cases: Sequence[str], say: Say) -> tuple[list[dict[str, Any]], str]:
    """Rows of all runs of the programs that `cases` names, and their table."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if wanted(case, cases):
            row = in_own_process(
                "superopt.lab.bench.searches.strategies", case, "", seed, _TIMEOUT_S,
                environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
            rows.append(row)
            say(f"{case}: {row.get('failure') or str(row['classes']) + ' classes'}")
    return rows, table(compared([row for row in rows if "failure" not in row]), _COLUMNS) if rows else ""


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures of each mixture over all programs and seeds."""
    out: list[dict[str, Any]] = []
    for mixture in MIXTURES:
        figures: dict[str, Any] = {"mixture": mixture}
        for by in BY:
            apart: list[float] = []
            spread = [0.0]
            for row in rows:
                least = min(one["ms"] for one in row["runs"])
                some = [one["ms"] / least - 1.0 for one in row["runs"] if (one["mixture"], one["by"]) == (mixture, by)]
                apart += some
                spread += [max(some) - min(some)] if some else []
            if apart:
                figures |= {
                    "runs": len(apart),
                    f"{by}_median": median(apart),
                    f"{by}_worst": max(apart),
                    f"{by}_wins": sum(x <= _WON for x in apart),
                    f"{by}_spread": max(spread),
                }
        out.append(figures)
    return out


def program(name: str, seed: int) -> Graph:
    """The graph of a network or a snippet."""
    if name in NETWORKS:
        net = build_case(name, seed)
        return import_function(net.fn, (net.params, *net.inputs), frozen=0).graph
    forms = zoo.load()[name].forms(seed)
    return import_function(forms.fn, forms.args).graph


def measure_case(case: str, seed: int) -> dict[str, Any]:
    """Every run of one program."""
    graph = program(case.removeprefix(f"{NAME}:"), seed)
    rules = proved_library(None).rules
    expand = library_expander(rules)
    request = Request(Deadline(steps=_FIRST), load_objective(), own=backend_of(NATIVE), seed=seed, deterministic=True)
    eg = explore(graph, rules, request).result.problem.snapshot.eg
    pricer, forms = Pricer(Joint(load_objective(), expand, backend_of(NATIVE), frozen_bytes(graph))), Forms()
    size = Snapshot(eg, forms).size
    runs: list[dict[str, Any]] = []
    for number in SEEDS:
        for by in BY:
            for mixture in MIXTURES:
                said = _searched(_problem(eg, pricer, forms), mixture, by, number)
                runs.append({"mixture": mixture, "by": by, "seed": number, **said})
    return {"case": case, "nodes": len(graph.nodes()), "classes": size, "runs": runs}


def _problem(eg: EGraph, pricer: Pricer, forms: Forms) -> Problem:
    snapshot = Snapshot(eg, forms)
    return Problem(snapshot, pricer, candidates(snapshot), in_kernels=True)


def _searched(problem: Problem, mixture: str, by: str, seed: int) -> dict[str, Any]:
    """Milliseconds of the best state of a run, its proposals and its seconds of the processor."""
    size = problem.snapshot.size
    if by == "seconds":
        limit = Deadline.within(min(MOST_S, PER_CLASS_S * size))
    else:
        limit = Deadline(steps=min(MOST_PROPOSALS, PER_CLASS * size))
    begin_s, meter = process_s(), Meter(limit)
    run = SearchRun(problem, SearchSettings(limit, seed, in_kernels=True, mixture=MIXTURES[mixture]), meter)
    run.explore()
    least = min(record[0] for record in run.ground.records.values())
    return {"ms": 1e3 * least * UNIT_S, "proposals": meter.steps, "seconds": process_s() - begin_s}


if __name__ == "__main__":
    clocks.now_s = process_s
    print(json.dumps(measure_case(sys.argv[1], int(sys.argv[3]))))
