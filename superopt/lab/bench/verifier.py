"""The verifier suite: proofs, refutations, their speed, and whether mutants find a hole in the prover.

    library    Every rule of the library, in every usable direction, from scratch.
    rollcall   XLA's algebraic simplifier, rules that TensorRight cannot express, identities of whole kernels.
    wrong      Rewrites that must be refuted with arrays: texts and pairs of functions.
    hostile    False statements by kinds and seeds, given to the prover alone: none may be proved.
    guarded    False equalities behind guards that hardly any input meets: none may be proved, and the watch sees them.
    loops      False pairs of loops: all must be refuted.
    alone      Folds, conversions and names of arguments, given to the prover alone and judged by NumPy.
    integers   True statements of machine integers, quantised products and masks.
    engineer   True statements that compiler engineers would ask about.
    mutants    Mutants of all proved rules: none may be proved and numerically false.
    discovery  Candidate pairs judged per second of one core.
    recheck    The solver queries of all proofs, given again to all solvers, and their sums added up by the checker.
    sweeps     False pairs of programs over symbolic sizes, given to the node-by-node proof alone: none may be proved.
    schedules  Lemmas behind schedules and right schedules, to be proved; wrong schedules, to be refuted with a witness.
    pairs      ONNX models and their versions from the installed optimisers, and the same with seeded faults.
    kernels-ir Machine code of all programs of the native suite against their loop programs, and of changed kernels.

Mutants run on all cores that the process may use, all else on one.  `--case` selects parts.  `--budget 500steps` is the
number of mutants, and faults of `pairs` are one for every fifty; with fewer steps than the default, `alone` has that
many claims of each family.  `--no-watch` gives rules and statements to the prover alone: nothing is evaluated beside
it, so that the proofs are its own.

    superopt bench --verifier [--json]
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from rewrites.language.direction import directions
from rewrites.language.term import Rule
from rewrites.library import load
from superopt.errors import UsageError
from superopt.lab.bench import Say, table, wanted
from superopt.lab.bench.core import CASES, SMALL
from superopt.lab.corpora import rollcall, wrong
from superopt.lab.corpora.kernels import edits, mutants
from superopt.lab.corpora.kernels.suite import kernels_of
from superopt.lab.corpora.schedules.suite import rows_of
from superopt.lab.corpora.statements import alone, engineer, integers
from superopt.lab.corpora.statements.guarded import guarded
from superopt.lab.corpora.statements.hostile import hostile
from superopt.lab.corpora.statements.loops import loops
from superopt.lab.corpora.statements.wrong import STATEMENTS
from superopt.lab.discovery.discover import DiscoverySettings, discover
from superopt.machine.budget import parse_budget
from superopt.machine.extras import need
from verifier.equal.ranks import ANY
from verifier.record.checker import Checked, check
from verifier.record.ledger import certify
from verifier.record.recheck import recheck
from verifier.rules.fuzz import Fuzzed, cores, draw, try_all
from verifier.rules.process import shared
from verifier.rules.refute import different_bits
from verifier.statements.statement import Statement, check_statement, proved_alone, seen_wrong
from verifier.verdict import PROVED, REFUTED, UNSUPPORTED, Verdict

MUTANTS = 5000
STEPS_OF_FAULT = 50  # mutants per fault of the budget: a pair of models takes a second, a mutant 20 ms
HOSTILE, GUARDED, LOOPS = 300, 200, 50
SWEEPS = 240
KERNEL_MUTANTS, KERNEL_S = 1000, 1.0  # wrong mutants to draw; processor time within which a kernel should be validated
GRAPHS = 8  # graphs on which exact rules are compared bit by bit
DISCOVERY_S, DISCOVERY_SIZE = 120.0, 2
_COLUMNS = (("figure", "figure", ""), ("value", "value", ""), ("bar", "bar", ""))
_BARS = {
    "rollcall_proved": ">= 145", "rollcall_all_ranks": ">= 118", "median_ms": "<= 50", "total_s": "< 120",
    "hostile_false_proofs": "0", "alone_false_proofs": "0", "guarded_false_proofs": "0", "guarded_seen": ">= 0.95",
    "loops_proved": "0", "loops_refuted": ">= 0.9", "sweep_false_proofs": "0", "int_proved": ">= 0.9",
    "engineer_proved": ">= 0.9", "unknown_fraction": "< 0.01",
    "must_refute_missed": "0", "refute_median_s": "< 0.3", "exact_with_other_bits": "0", "false_proofs": "0",
    "pair_outputs_proved": ">= 0.8", "pair_faults_proved": "0", "pair_faults_refuted": ">= 0.95",
    "lemmas_missed": "0", "schedules_missed": "0", "wrong_schedules_missed": "0",
    "discovery_pairs_per_s": ">= 20", "solver_disagreements": "0", "sums_refused": "0",
    "kernels_validated": ">= 0.95", "kernel_mutants_wrong": ">= 1000", "kernel_mutants_missed": "0",
    "kernel_edits_wrong": ">= 14", "kernel_edits_missed": "0", "kernel_knobs_accepted": "0",
}  # fmt: skip


@dataclass
class _ProverRun:
    """Results of the parts so far."""

    say: Say
    mutants: int
    seed: int
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    summary: dict[str, Any] = field(default_factory=dict[str, Any])
    proved: list[tuple[Rule, Verdict]] = field(default_factory=list[tuple[Rule, Verdict]])
    milliseconds: list[float] = field(default_factory=list[float])
    seconds: float = 0.0
    jobs: int = 1
    watch: bool = True


def run(
    *, budget: str, cases: Sequence[str], seed: int, say: Say, watch: bool = True
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Rows per rule, case, open mutant and part, the summary, and the table.

    Without `watch`, rules and statements are given to the prover alone.

    Raises:
        UsageError: no part has such a name.
    """
    chosen = [name for name in _PARTS if wanted(name, cases)]
    if not chosen:
        raise UsageError(f"no part is called {', '.join(cases)}", hint=", ".join(_PARTS))
    made = _ProverRun(say, parse_budget(budget).steps or MUTANTS, seed, jobs=cores(), watch=watch)
    for name in chosen:
        with nullcontext() if name == "mutants" else _one_core():
            if name != "mutants":
                list(shared().call("time:gmtime", 0))  # imports are no rule's time
            start = time.perf_counter()
            _PARTS[name](made)
        made.summary[f"{name}_s"] = round(time.perf_counter() - start, 2)
        say(f"{name}: {made.summary[f'{name}_s']} s")
    if made.milliseconds:
        made.summary |= {"median_ms": round(median(made.milliseconds), 2), "total_s": round(made.seconds, 2)}
    figures = [{"figure": k, "value": _plain(v), "bar": _BARS.get(k)} for k, v in made.summary.items()]
    return made.rows, made.summary, table(figures, _COLUMNS)


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def _one_core() -> Iterator[None]:
    """Pin this process, and the processes that it starts, to one core where the system supports that."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if before:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)


# -- proofs


def _library(made: _ProverRun) -> None:
    rules = load()
    forward = [_prove(made, "library", rule, "forward") for rule in rules]
    usable = [rule for rule in rules if directions(rule)[1].rule is not None]
    backward = [_prove(made, "library", rule, "backward") for rule in usable]
    made.summary |= {
        "library_rules": len(rules),
        "library_proved": sum(v.proved for v in forward),
        "library_backward": len(usable),
        "library_backward_proved": sum(v.proved for v in backward),
    }


def _rollcall(made: _ProverRun) -> None:
    listed: dict[str, list[Verdict]] = {}
    others: dict[str, list[Verdict]] = {"XLA beyond": [], "kernel": []}
    for rules in rollcall.load().values():
        for rule in rules:
            place = rule.source.partition(":")[0]
            verdict = _prove(made, "rollcall", rule, "forward")
            if place in others:
                others[place].append(verdict)
            else:
                listed.setdefault(place, []).append(verdict)
    whole = [[v] for v in others["XLA beyond"]]
    groups = [*listed.values(), *whole]
    made.summary |= {
        "rollcall_listed": sum(rollcall.FAMILIES.values()),
        "rollcall_listed_proved": sum(all(v.proved for v in vs) for vs in listed.values()),
        "rollcall_beyond_proved": sum(v.proved for v in others["XLA beyond"]),
        "rollcall_proved": sum(all(v.proved for v in vs) for vs in groups),
        "rollcall_all_ranks": sum(all(map(_any_rank, vs)) for vs in groups),
        "kernels_proved": sum(v.proved for v in others["kernel"]),
        "kernels": len(others["kernel"]),
    }


def _any_rank(verdict: Verdict) -> bool:
    return verdict.domain is not None and all(ranks == ANY for _, ranks in verdict.domain.ranks)


def _prove(made: _ProverRun, part: str, rule: Rule, direction: str) -> Verdict:
    start = time.perf_counter()
    verdict = shared().check(rule, direction) if made.watch else shared().prove(rule, direction)
    seconds = time.perf_counter() - start
    made.seconds += seconds
    if direction == "forward":
        made.milliseconds.append(1e3 * seconds)
    row = {"part": part, "name": rule.name, "direction": direction, "status": verdict.status, "ms": 1e3 * seconds}
    if verdict.domain is not None:
        row |= {"exactness": verdict.domain.exactness, "ranks": dict(verdict.domain.ranks)}
        made.proved.append((rule, verdict))
        if verdict.domain.exactness == "exact" and direction == "forward" and not rule.dtype:
            row["other_bits"] = different_bits(rule, GRAPHS) is not None
            made.summary["exact_with_other_bits"] = made.summary.get("exact_with_other_bits", 0) + row["other_bits"]
    elif verdict.cause:
        row["cause"] = verdict.cause
    made.rows.append(row)
    return verdict


# -- refutations


def _wrong(made: _ProverRun) -> None:
    seconds: list[float] = []
    missed: list[str] = []

    for case in (*wrong.load(), *rollcall.wrong(), *STATEMENTS):
        start = time.perf_counter()
        verdict = shared().check(case) if isinstance(case, Rule) else _check_statement(case)
        seconds.append(time.perf_counter() - start)
        example = verdict.counterexample
        row = {"part": "wrong", "name": case.name, "status": verdict.status, "ms": 1e3 * seconds[-1]}
        if verdict.status != REFUTED or example is None:
            missed.append(case.name)
        else:
            row |= {"elements": example.elements, "left": example.left, "right": example.right}
        made.rows.append(row)
    made.summary |= {
        "must_refute": len(seconds),
        "must_refute_missed": len(missed),
        "refute_median_s": round(median(seconds), 4),
        "refute_max_s": round(max(seconds), 3),
    }


def _check_statement(statement: Any) -> Verdict:
    return check_statement(statement)


# -- statements


def _hostile(made: _ProverRun) -> None:
    proved: list[str] = []
    for case in hostile(made.seed, HOSTILE):
        verdict = proved_alone(case.statement)
        wrong = verdict.proved and not (case.in_bits and verdict.domain and verdict.domain.exactness != "exact")
        proved += [case.statement.name] if wrong else []
        row = {"part": "hostile", "name": case.statement.name, "status": verdict.status, "ms": 1e3 * verdict.seconds}
        made.rows.append(row | {"cause": verdict.cause})
    made.summary |= {"hostile": HOSTILE, "hostile_false_proofs": len(proved)}


def _guarded(made: _ProverRun) -> None:
    seen, statuses = 0, Counter[str]()
    for statement in guarded(made.seed, GUARDED):
        verdict = check_statement(statement)
        statuses[verdict.status] += 1
        told = "refuted" if verdict.status == REFUTED else seen_wrong(statement)
        seen += bool(told)
        row = {"part": "guarded", "name": statement.name, "status": verdict.status, "ms": 1e3 * verdict.seconds}
        made.rows.append(row | {"cause": verdict.cause, "seen": told})
    made.summary |= {
        "guarded": GUARDED,
        "guarded_false_proofs": statuses[PROVED],
        "guarded_refuted": statuses[REFUTED],
        "guarded_seen": round(seen / GUARDED, 3),
    }


def _loops(made: _ProverRun) -> None:
    statuses = Counter[str]()
    for statement in loops(made.seed, LOOPS):
        verdict = check_statement(statement)
        statuses[verdict.status] += 1
        row = {"part": "loops", "name": statement.name, "status": verdict.status, "ms": 1e3 * verdict.seconds}
        made.rows.append(row | ({"cause": verdict.cause} if verdict.cause else {}))
    made.summary |= {"loops": LOOPS, "loops_proved": statuses[PROVED], "loops_refuted": statuses[REFUTED] / LOOPS}


def _alone(made: _ProverRun) -> None:
    each = made.mutants if made.mutants < MUTANTS else None
    rows = [alone.judged(claim, proved_alone) for claim in alone.claims(made.seed, each)]
    asked = [row for row in rows if row["true"] and row["status"] != UNSUPPORTED]
    made.rows += [{"part": "alone", **row} for row in rows]
    made.summary |= {
        "alone": len(rows),
        "alone_false_proofs": sum(row["false_proof"] for row in rows),
        "alone_true": len(asked),
        "alone_true_proved": sum(row["status"] == PROVED for row in asked),
    }


def _true(made: _ProverRun, part: str, name: str, statements: Sequence[Statement]) -> None:
    """Ask about statements that hold: count the proved ones, and check that none is refuted."""
    verdicts = [_check_statement(statement) if made.watch else proved_alone(statement) for statement in statements]
    for verdict in verdicts:
        row = {"part": part, "name": verdict.rule, "status": verdict.status, "ms": 1e3 * verdict.seconds}
        made.rows.append(row | ({"cause": verdict.cause} if verdict.cause else {}))
    made.summary |= {
        f"{name}_proved": sum(verdict.proved for verdict in verdicts) / len(verdicts),
        f"{name}_refuted": sum(verdict.status == REFUTED for verdict in verdicts),
        f"{name}_median_s": round(median(verdict.seconds for verdict in verdicts), 3),
    }


def _integers(made: _ProverRun) -> None:
    _true(made, "integers", "int", integers.STATEMENTS)


def _engineer(made: _ProverRun) -> None:
    _true(made, "engineer", "engineer", engineer.STATEMENTS)


# -- mutants


def _mutants(made: _ProverRun) -> None:
    rules = [*load(), *(rule for rules in rollcall.load().values() for rule in rules)]
    fuzzed = Fuzzed()
    for _, outcome in try_all(draw(rules, made.mutants, made.seed), made.jobs):
        fuzzed.outcomes.append(outcome)
        if len(fuzzed.outcomes) % 250 == 0:
            made.say(f"{len(fuzzed.outcomes)} mutants: {dict(fuzzed.counts)}")
    told = fuzzed.summary()
    made.rows += [{"part": "mutants", **row} for row in told.pop("rows")]
    statuses = told.pop("statuses")
    made.summary |= told | {f"mutants_{status.lower().replace(' ', '_')}": n for status, n in statuses.items()}


# -- discovery and solvers


def _discovery(made: _ProverRun) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = DiscoverySettings(size=DISCOVERY_SIZE, seconds=DISCOVERY_S, library=False)
        discovered = discover(settings, Path(folder), made.say)
    judged = discovered.summary["judged"]
    rate = round(discovered.summary["discovery_pairs_per_s"], 2)
    made.summary |= {"discovery_pairs": judged, "discovery_pairs_per_s": rate}
    made.rows.append({"part": "discovery", **discovered.summary})


def _kernels_ir(made: _ProverRun) -> None:
    need("onnx", "the part kernels-ir")
    rows = [{"part": "kernels-ir", "case": case, **row} for case in (*CASES, *SMALL) for row in kernels_of(case)]
    good = [row for row in rows if row["status"] == PROVED and row["seconds"] <= KERNEL_S]
    tried = [{"part": "kernels-ir", **row} for row in mutants.draw(min(made.mutants, KERNEL_MUTANTS), made.seed)]
    edited = [{"part": "kernels-ir", **row} for row in edits.rows()]
    made.rows += [*rows, *tried, *edited]
    made.summary |= {
        "kernel_edits_wrong": sum(row["wrong"] for row in edited),
        "kernel_edits_missed": sum(row["missed"] for row in edited),
        "kernels": len(rows),
        "kernels_validated": round(len(good) / max(len(rows), 1), 3),
        "kernels_proved": sum(row["status"] == PROVED for row in rows),
        "kernel_median_s": round(median(row["seconds"] for row in rows), 3),
        "kernel_max_s": max(row["seconds"] for row in rows),
        "kernel_mutants": len(tried),
        "kernel_mutants_wrong": sum(row["wrong"] for row in tried),
        "kernel_mutants_missed": sum(row["missed"] for row in tried),
        "kernel_knobs_accepted": mutants.knobs_accepted(),
    }


def _recheck(made: _ProverRun) -> None:
    if not made.proved:  # only this part was selected
        quiet = _ProverRun(made.say, made.mutants, made.seed)
        _library(quiet)
        _rollcall(quiet)
        made.proved = quiet.proved
    told = recheck((certify(rule, verdict), verdict.asked) for rule, verdict in made.proved if not verdict.cached)
    made.summary |= {"queries": told["queries"], "solver_disagreements": len(told["disagreements"])}
    made.rows.append({"part": "recheck", "queries": told["queries"]})  # a part without rows is no case
    for name, counts in told["solvers"].items():
        made.summary |= {f"{name}_agree": counts["agree"], f"{name}_unknown": counts["unknown"]}
    added = Checked()
    for rule, verdict in made.proved:
        if not verdict.cached:
            check(certify(rule, verdict), json.loads(verdict.sums or "[]"), added)
    made.summary |= {"sums": added.sums, "sums_for_all_sizes": added.for_all_sizes, "sums_refused": len(added.refused)}
    made.rows += [{"part": "recheck", **row} for row in told["disagreements"]]
    made.rows += [{"part": "recheck", "refused": why} for why in added.refused]


def _schedules(made: _ProverRun) -> None:
    rows = rows_of()
    made.rows += [{"part": "schedules", **row} for row in rows]
    for kind in ("lemma", "schedule", "wrong schedule"):
        missed = [row["name"] for row in rows if row["kind"] == kind and not row["ok"]]
        made.summary[f"{kind.replace(' ', '_')}s_missed"] = len(missed)
    made.summary["schedule_median_ms"] = round(median(r["ms"] for r in rows if r["kind"] == "schedule"), 2)


def _sweeps(made: _ProverRun) -> None:
    need("onnx", "the part sweeps")
    rows, summary = import_module("superopt.lab.bench.sweeps").compared(SWEEPS, made.seed, made.say)
    made.rows += rows
    made.summary |= summary


def _pairs(made: _ProverRun) -> None:
    need("onnx", "the part pairs")
    count = made.mutants // STEPS_OF_FAULT
    rows, summary = import_module("superopt.lab.bench.pairs").compared(count, made.seed, made.say)
    made.rows += rows
    made.summary |= summary


_PARTS: dict[str, Callable[[_ProverRun], None]] = {
    "library": _library,
    "rollcall": _rollcall,
    "wrong": _wrong,
    "hostile": _hostile,
    "guarded": _guarded,
    "loops": _loops,
    "alone": _alone,
    "integers": _integers,
    "engineer": _engineer,
    "mutants": _mutants,
    "discovery": _discovery,
    "recheck": _recheck,
    "schedules": _schedules,
    "sweeps": _sweeps,
    "pairs": _pairs,
    "kernels-ir": _kernels_ir,
}
