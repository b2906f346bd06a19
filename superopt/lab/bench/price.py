"""The value of discovered rules on the programs of the suites: predicted times with them and without.

Every program is explored twice from the same seed, by the library and by the library with the candidates, each for the
same number of steps and without any timing.  A candidate that does not state how it is steered is tried in every
direction that binds, without preferences, in mode `near`: it is the equation that is priced.  Candidates that the
library has are left out of the first search.  Where the second search ends cheaper, every candidate that changed the
e-graph is tried alone.  (The rules that a program names are not enough: an e-node names the rule that made it, and not
the rules that made the e-nodes which this one matched.)

    superopt discover --price RULES.txt [--case NAME ...] [--measure] [--json]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.model.load import load_objective
from rewrites.language.direction import reverse
from rewrites.language.parse import parse_many
from rewrites.language.show import rule_key
from rewrites.language.term import Rule
from superopt.certify.library import proved_library
from superopt.explore.exploration import explore
from superopt.explore.found import Exploration
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import Imported, import_function
from superopt.ir.program import Program, original_program
from superopt.lab.bench import Result, Say, ablation, alternatives, core, geomean, options, rewrites, table, wanted
from superopt.lab.bench.programs import nets
from superopt.lab.bench.programs.layers import Net
from superopt.lab.bench.programs.programs import build_case
from superopt.machine.deadline import Deadline
from superopt.measure import ComparisonSettings, Timing, compare
from superopt.measure.stats import paired_ratio
from superopt.workshop.job import Event, Failure, Job, WorkerDiedError
from superopt.workshop.process import ProcessLimits, Worker
from superopt.workshop.scheduler import ONE_WORKER, Workers

STEPS = 2_000
_LIMITS = ProcessLimits(silence_s=3600.0, jobs=1)
_LEAST = 1e-3  # a smaller predicted gain counts as none
_ROUNDS, _SAMPLE_S = 15, 0.02
_COLUMNS = (
    ("case", "program", ""),
    ("library_ms", "predicted ms", ".4g"),
    ("ratio", "gain", ".3f"),
    ("used", "candidates that gain alone", ""),
    ("measured", "measured", ".3f"),
    ("low", "low", ".3f"),
    ("high", "high", ".3f"),
)


def programs() -> dict[str, Callable[[], Any]]:
    """The programs of the suites by name; each maker returns an object with `fn`, `params` and `inputs`."""
    made: dict[str, Callable[[], Any]] = {}
    for name in (*core.CASES, "mobilenet_v2", "transformer_block"):
        made[f"core/{name}"] = lambda name=name: build_case(name, 0)
    for name in ("inception", "fire", "bottleneck"):
        made[f"nets/{name}"] = nets.NETS[name]
    for name in rewrites.names():
        made[f"rewrites/{name}"] = lambda name=name: rewrites.build_case(name)
    made |= {f"ablation/{name}": make for name, make in ablation.CASES.items()}
    made |= {f"alternatives/{name}": make for name, make in alternatives.CASES.items()}
    made |= {f"options/{name}": lambda name=name: _of_shapes(*options.PROGRAMS[name]) for name in options.PROGRAMS}
    return made


def _of_shapes(fn: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Net:
    rng = np.random.default_rng(0)
    inputs = tuple(rng.standard_normal(shape, np.float32) for shape in shapes)
    return Net(lambda _, *args: fn(*args), {}, inputs)


def tried(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The candidates in the form in which they are tried: with the steering that they state, else `near`, both ways."""
    out: list[Rule] = []
    for rule in rules:
        if rule.prefer or rule.mode != "saturate":
            out.append(rule)
            continue
        out.append(replace(rule, mode="near", cache={}))
        backward = reverse(rule)
        if backward is not None:
            out.append(replace(backward, mode="near", cache={}))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class PricedProgram:
    """The data of a job: one program to price, and the candidate rules as text."""

    case: str
    texts: str
    steps: int
    seed: int
    measure: bool


def run(
    files: Sequence[str],
    *,
    cases: Sequence[str],
    measure: bool,
    say: Say,
    steps: int = STEPS,
    seed: int = 0,
    workers: Workers = ONE_WORKER,
) -> Result:
    """Price the rules of some files over the programs whose name contains one of `cases`, or over all of them."""
    texts = "\n\n".join(Path(file).read_text(encoding="utf-8") for file in files)
    parse_many(texts, "candidates")
    chosen = [name for name in programs() if wanted(name, cases)]
    call = f"{__name__}:price_job"
    todo = [
        Job("time" if measure else "make", call, asdict(PricedProgram(name, texts, steps, seed, measure)))
        for name in chosen
    ]
    figures: dict[int, dict[str, Any]] = {}
    with workers.workshop(_LIMITS) as workshop:
        for number, result in workshop.each(todo):
            if isinstance(result, Failure):
                raise WorkerDiedError(result)
            row = figures[number] = result[0]["row"]
            say(f"{row['case']}: {row['library_ms']:.4g} ms, gain {row['ratio']:.3f} {row['used']}")
    rows = [figures[number] for number in sorted(figures)]
    ratios = [row["ratio"] for row in rows]
    summary = {
        "programs": float(len(rows)),
        "paid": float(sum(row["paid"] for row in rows)),
        "geomean": geomean(ratios),
        "most": max(ratios, default=0.0),
    }
    return rows, summary, table([row for row in rows if row["gains"]], _COLUMNS)


def price_job(request: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the row of one program."""
    yield {"event": "row", "row": price_case(PricedProgram(**request))}


def price_case(task: PricedProgram) -> dict[str, Any]:
    """Predicted times of one program without and with the candidates, and measured ones where these gain."""
    made = programs()[task.case]()
    imported = import_function(made.fn, (made.params, *made.inputs), frozen=0)
    row, before, after = price(imported, parse_many(task.texts, "candidates"), task.steps, task.seed)
    if task.measure and row["paid"]:
        pair = before.program(before.result.best), after.program(after.result.best)
        row |= _measured(original_program(imported.graph), pair, imported, task.seed)
    return {"case": task.case, **row}


def price(
    imported: Imported, candidates: Sequence[Rule], steps: int, seed: int
) -> tuple[dict[str, Any], Exploration, Exploration]:
    """The predicted times of a program without and with candidates, and both searches."""
    given = {rule_key(rule) for rule in candidates} | {rule.name for rule in candidates}
    base = tuple(r for r in proved_library(None).rules if not given & {rule_key(r), r.name})
    asked = Request(Deadline(steps=steps), load_objective(), seed=seed, deterministic=True)

    def search(new: Sequence[Rule]) -> Exploration:
        return explore(imported.graph, (*base, *new), asked)

    before, after = search(()), search(tried(candidates))
    old, best = before.result.best, after.result.best
    ratio = old.predicted_s / best.predicted_s if best.predicted_s else math.nan
    applied = [rule for rule in candidates if _applied(rule, after.growth["unions"])]
    alone: dict[str, float] = {}
    if ratio > 1.0 + _LEAST and len(applied) == 1:
        alone = {applied[0].name: ratio}
    elif ratio > 1.0 + _LEAST:
        for rule in applied:
            alone[rule.name] = old.predicted_s / search(tried([rule])).result.best.predicted_s
    gains = {rule: gain for rule, gain in alone.items() if gain > 1.0 + _LEAST}
    row: dict[str, Any] = {
        "original_ms": 1e3 * before.result.original.predicted_s,
        "library_ms": 1e3 * old.predicted_s,
        "found_ms": 1e3 * best.predicted_s,
        "ratio": ratio,
        "applied": [rule.name for rule in applied],
        "gains": gains,
        "used": ", ".join(f"{name} {gain:.3f}" for name, gain in gains.items()),
        "paid": int(bool(applied) and ratio > 1.0 + _LEAST),
        "growth_seconds": [before.growth["seconds"], after.growth["seconds"]],
        "enodes": [before.growth["enodes"], after.growth["enodes"]],
    }
    return row, before, after


def _applied(rule: Rule, unions: Mapping[str, int]) -> bool:
    """Whether the rule changed the e-graph in either direction."""
    return bool(unions.get(rule.name) or unions.get(f"{rule.name}-backward"))


def _measured(original: Program, pair: tuple[Program, Program], imported: Imported, seed: int) -> dict[str, Any]:
    """Time of the first program over that of the second, interleaved."""
    with Worker() as worker:
        timed = compare(
            original, pair, imported.live_values, imported.frozen_values,
            ComparisonSettings(_ROUNDS, _SAMPLE_S, seed, prune=0.0), worker=worker,
        )  # fmt: skip
    one, other = timed.candidates
    if not (isinstance(one, Timing) and isinstance(other, Timing)):
        return {"failure": f"{one}; {other}"}
    ratio = paired_ratio(one.samples_s, other.samples_s, seed=seed)
    return {"measured": ratio.ratio, "low": ratio.low, "high": ratio.high}
