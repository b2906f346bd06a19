"""Results kept between runs: the same call on the same machine and versions is answered from the store.

A key covers the graph as text, the values of its constants, budget, seed, rules and the code that proves them,
objective, machine, versions and flags of XLA.  The values of arguments, frozen ones too, are not part of it.  No
rewrite reads them, so the program is right for any; the figures of the report are those of the arrays that it was
measured with.  Structures of arguments and results come from the call, and so do the functions of callbacks into
Python: the program takes them for unknown functions at their places in the graph.  Two kinds of results are not kept:
functions with effects of their own that were left whole, and runs that were cut short.  A run without some rules, for
whose proofs its time did not suffice, is kept until more of them are proved.

An entry that cannot be read is a miss, and so is one whose program fails its test.  Before it is returned the program
runs once on the arguments of the call, beside the original, and must give the same results; the original itself need
not run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rewrites.language.show import show
from rewrites.library import load
from superopt.arrays.placing import pieces
from superopt.backends import mixed
from superopt.backends.options import own
from superopt.certify.kernels import MOST_ELEMENTS, MOST_SECONDS, validate_code
from superopt.certify.library import count_unproved
from superopt.certify.plan import Plan, read_plan
from superopt.contest.checks import differs_from_original
from superopt.errors import InputError
from superopt.explore.request import Request
from superopt.files.reading import Allowance, typed
from superopt.foreign.modules import carried, local_to_process, require_modules, restore
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.graph import Graph
from superopt.ir.program import Program, original_program
from superopt.ir.text import parse_graph, print_graph
from superopt.kernels.choose.specs import KernelSpec, read_spec
from superopt.machine import facts as machine
from superopt.machine.budget import Budget
from superopt.report.data import Report, read_report
from superopt.report.verdicts import ANSWERED
from superopt.returned.optimized import Optimized
from superopt.store import Store, content_key
from verifier.record import digests

_TABLE = "runs"
_FORMAT = 11  # version of stored entries; another number makes every older entry a miss


def run_key(imported: Imported, request: Request, budget: Budget) -> str:
    """Digest of everything that the result depends on."""
    chosen = load() if request.rules is None else request.rules
    objective = request.objective
    asked = [request.seed, request.deterministic, request.max_prepared_bytes, request.numerics]
    digest = hashlib.sha256()
    for name, value in sorted(imported.graph.constants.items()):
        digest.update(name.encode())
        for piece in pieces(value):
            digest.update(piece)
    return content_key(
        _FORMAT,
        print_graph(imported.graph),
        digest.hexdigest(),
        [budget.seconds, budget.steps, *asked, request.kernels_by, request.searches, request.keeps_plain],
        digests.state(),
        [rule.fact(show) for rule in chosen],
        [objective.name, objective.version, "" if request.own is None else request.own.version],
        machine.environment_key(),
        os.environ.get("XLA_FLAGS", ""),
    )


def remember(store: Store | None, key: str, result: Optimized, unproved: int = 0, *, in_doubt: bool = False) -> None:
    """Keep a result, unless another run of the same call would be more complete; it lacked `unproved` rules.

    A result in doubt is marked: the rounds left open how fast it is, and the next call times it again.
    """
    program = result.program
    if store is None or _cut_short(result.report) or result.imported.whole:
        return
    modules = carried(program.graphs, local_to_process(result.imported.graph))
    if modules is None:
        return
    graph = program.prepare
    prepare = None if graph is None else print_graph(graph)
    plan = None if result.plan is None else result.plan.to_json()
    store.put(
        _TABLE,
        key,
        {
            "prepare": prepare,
            "hot": print_graph(program.hot),
            "modules": modules,
            "report": result.report.to_json(),
            "plan": plan,
            "kernels": [c.to_json() for c in result.kernels],
            "unproved": unproved,
            "in_doubt": in_doubt,
        },
    )


def is_in_doubt(store: Store | None, key: str) -> bool:
    """Whether the result under a key is marked to be timed again."""
    kept = None if store is None else store.get(_TABLE, key)
    return kept is not None and kept.get("in_doubt") is True


def _cut_short(report: Report) -> bool:
    """Whether the run was interrupted, or did not time the original although there were candidates to compare."""
    return bool(report.search.get("interrupted")) or (
        report.speedup.basis == "measured" and bool(report.finalists) and report.measured.before_ms is None
    )


def recall(store: Store | None, key: str, imported: Imported) -> Optimized | None:
    """The result kept under a key, built anew for the frozen values of this call; None on a miss."""
    kept = None if store is None else store.get(_TABLE, key)
    if kept is None:
        return None
    try:
        with typed("the entry of the store"):
            if kept["unproved"] and count_unproved(store) < kept["unproved"]:
                return None
            program, report, plan, kernels = _read(kept, imported)
            code = validate_code(program.hot, kernels, MOST_SECONDS, MOST_ELEMENTS)
            if code.refuted:
                return None  # the program is then optimised anew
            executable = mixed.build(program, imported.frozen_values, options=report.compiler_options, kernels=kernels)
            str(report)  # a report that cannot be shown is none
            itself = not (kernels or executable.options) and _is_original(program, imported.graph)
            if not itself and differs_from_original(imported, executable, exact=report.exactness == "exact"):
                return None
    except InputError:
        return None  # written by other code than this: as good as absent
    if kernels:
        report = replace(report, implementation={**report.implementation, "code": code.figures()})
    notes = (*report.notes, ANSWERED, *(f"built without it: {why}" for why in executable.refused.values()))
    return Optimized(
        imported, program, executable, replace(report, notes=notes, compiler_options=dict(executable.options)), plan,
        kernels,
    )  # fmt: skip


def _is_original(program: Program, graph: Graph) -> bool:
    """Whether the program is the original graph itself, which needs no comparison with itself."""
    mine, original = (
        [part and print_graph(part) for part in (p.prepare, p.hot)] for p in (program, original_program(graph))
    )
    return mine == original


def _read(kept: Mapping[str, Any], imported: Imported) -> tuple[Program, Report, Plan | None, tuple[KernelSpec, ...]]:
    """The program, report, plan and kernels of an entry, with the constants of this call."""
    allowance = Allowance("the entry of the store", sum(len(x) for x in (kept["hot"], kept["prepare"] or "")))
    restore(kept["modules"])
    prepare = None
    if kept["prepare"] is not None:
        parsed = parse_graph(kept["prepare"], allowance=allowance)
        prepare = Graph(parsed.inputs, parsed.outputs, imported.graph.constants)
    report = read_report(kept["report"])
    options, foreign = own(report.compiler_options)
    notes = (*report.notes, *(f"built without {name}: {why}" for name, why in foreign.items()))
    plan = None if kept["plan"] is None else read_plan(kept["plan"], allowance)
    program = Program(prepare, parse_graph(kept["hot"], allowance=allowance))
    callbacks = local_to_process(imported.graph)
    for graph in program.graphs:
        require_modules(graph, callbacks)
    return (
        program,
        replace(report, compiler_options=options, notes=notes),
        plan,
        tuple(map(read_spec, kept["kernels"])),
    )
