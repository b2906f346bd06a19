"""Golden checks of the middle: contests whose choice is on record, and programs that the model alone chooses.

    python -m tests.support.golden contests    # made-up contests, recorded with their outcomes
    python -m tests.support.golden timed       # contests of real programs, recorded with their timings
    python -m tests.support.golden programs    # texts of the programs that `deterministic=True` returns

A record is written anew only where a change of choices is meant.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import superopt
from superopt.backends.options import OptionChoice
from superopt.candidates.candidate import Candidate, original_candidate
from superopt.candidates.ledger import Made, RunLedger, Timed
from superopt.contest import contest as contests
from superopt.contest import rounds as module
from superopt.contest.contest import Outcome, contest
from superopt.contest.rounds import Rounds, Series, Subject
from superopt.explore.request import Request
from superopt.frontends.jax.jaxpr import import_function
from superopt.ir.program import Program, original_program
from superopt.ir.text import print_graph
from superopt.kernels.choose.specs import KernelSpec
from superopt.lab.bench.programs.programs import build_case
from superopt.machine.deadline import Deadline
from superopt.machine.speedup import Speedup
from superopt.measure import Comparison, Timing
from superopt.measure.stats import paired_ratio
from superopt.pipeline import contesting
from superopt.workshop.job import Failure
from superopt.workshop.process import Worker

HERE = Path(__file__).parent
CONTESTS, TIMED, PROGRAMS = (HERE / f"golden_{name}.json" for name in ("contests", "timed", "programs"))
COUNT = 240
CASES = (
    "small_encoder", "small_mobilenet", "small_resnet", "bert_layer", "inverted_residual", "linear_attention",
    "low_rank_chain", "lstm_step", "inception_block", "unet_block",
)  # fmt: skip
_TIMED = ("small_encoder", "small_mobilenet", "small_resnet", "inverted_residual", "low_rank_chain", "lstm_step")
_IMPORTED = import_function(jnp.tanh, (np.ones((4, 4), np.float32),))
_ORIGINAL = original_program(_IMPORTED.graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp(Candidate):
    """A program of which XLA computes these operations, whatever its kernels are."""

    operations: frozenset[str] = frozenset()

    @property
    def by_xla(self) -> frozenset[str]:
        """The operations."""
        return self.operations


def record_of(said: Outcome) -> dict[str, Any]:
    """A contest as plain data: its entries, all rounds, and what was decided."""
    base_of = said.chosen.base_of
    final = None if said.final is said.chosen else said.final
    batches = said.chosen._batches
    later = [] if final is None else final._batches
    if later[: len(batches)] == batches:
        later = later[len(batches) :]
    return {
        "seed": said.chosen.seed,
        "given": said.given,
        "entries": [
            {
                "name": e.name,
                "plain": e.plain,
                "kernels": bool(e.kernels),
                "options": dict(e.options),
                "base": base_of(i),
            }
            for i, e in enumerate(said.entries)
        ],
        "chosen": _rounds(batches, said.chosen),
        "final": None if final is None else _rounds(later, final),
        "order": list(said.order),
        "settled": said.is_decided,
        "ratios": [
            None if (r := said.ratio(i)) is None else [r.ratio, r.low, r.high] for i in range(len(said.entries))
        ],
        "notes": [note for note in said.notes if "did not hold" in note],
    }


def ledger_of(record: Mapping[str, Any]) -> tuple[RunLedger, list[Candidate]]:
    """The ledger of a recorded contest, and its candidates in order."""
    ledger, entries = RunLedger(record["seed"]), list[Candidate]()
    original = original_candidate(_IMPORTED.graph)
    for row in record["entries"]:
        kernels = (KernelSpec(0, ()),) if row["kernels"] else ()
        base = None if row["base"] is None else original if row["base"] < 0 else entries[row["base"]]
        entry = Candidate(
            name=row["name"], program=_ORIGINAL, kernels=kernels, options=row["options"], base=base, plain=row["plain"]
        )
        entries.append(entry)
        ledger.add(Made(entry))
    for final in (False, True):
        series = record["final" if final else "chosen"]
        for event in () if series is None else _events(series, entries, final):
            ledger.add(event)
    return ledger, entries


def _events(series: Mapping[str, Any], entries: Sequence[Candidate], final: bool) -> list[Timed]:
    """The batches of a recorded series; the reasons of failures come with the last of them."""
    failures = tuple((entries[int(i)], why) for i, why in series["failures"].items())
    if series["cause"]:
        return [Timed(final=final, cause=series["cause"], failures=failures)]
    found: list[Timed] = []
    for process, samples, again in series["batches"]:
        (base, first), *others = samples.items()
        found.append(
            Timed(
                final=final, process=process, baseline=None if int(base) < 0 else entries[int(base)],
                baseline_s=tuple(first), again_s=tuple(again),
                samples_s=tuple((entries[int(i)], tuple(seconds)) for i, seconds in others),
                failures=failures if len(found) == len(series["batches"]) - 1 else (),
            )
        )  # fmt: skip
    return found


def _rounds(batches: Sequence[Any], series: Series) -> dict[str, Any]:
    rows = [
        [process, {str(i): list(s) for i, s in samples.items()}, list(again)] for process, samples, again in batches
    ]
    return {"batches": rows, "failures": {str(i): why for i, why in series.failures.items()}, "cause": series.cause}


# ---- made-up contests


def made_up(seed: int) -> dict[str, Any]:
    """The record of a contest between programs of random speeds, noise and failures."""
    rng = random.Random(seed)
    noise, original_s = rng.choice((0.003, 0.05, 0.3)), rng.choice((1e-4, 4e-3, 1e-1))
    entries = [_entry(rng, number) for number in range(rng.randint(1, 5))]
    speeds = {
        id(e.program): rng.choice((0.5, 0.9, 1.0, 1.02, 1.1, 1.5, 3.0)) * rng.uniform(0.97, 1.03) for e in entries
    }
    swing, dies = rng.choice((0.0, 0.05)), rng.choice((0.0, 0.0, 0.1))
    known_s = 50.0 * original_s if rng.random() < 0.15 else 0.0
    deadline = Deadline() if rng.random() < 0.7 else Deadline(0.0)
    options = rng.random() < 0.4

    def one(what: Any, process: int, base: Sequence[float], reference: bool = False) -> Timing | Failure:
        program = what.program
        if not reference and rng.random() < dies:
            return Failure("crash", "SIGSEGV")
        own = speeds.get(id(program), 1.0) * (1.0 + swing * process)
        own *= 1.2 if "good" in what.options else 1.0
        samples = [original_s / own * (1.0 + noise * abs(rng.gauss(0.0, 1.0))) for _ in base]
        return Timing(tuple(samples), paired_ratio(base, samples), build_s=rng.choice((0.1, 3.0)))

    processes: list[Any] = []

    def compare(reference: Any, candidates: Any, live: Any, frozen: Any, settings: Any, worker: Any) -> Comparison:
        processes.extend([worker] if worker not in processes else [])
        process, rounds = processes.index(worker), [original_s] * settings.rounds
        if settings.known_s:
            base = (settings.known_s,) * settings.rounds
            first, again = Timing(base, Speedup(1.0, 0.0, float("inf"))), ()
        else:
            first = one(reference, process, rounds, reference=rng.random() > dies / 4.0)
            second = one(reference, process, rounds, reference=True)
            again = second.samples_s if isinstance(second, Timing) else ()
        if isinstance(first, Failure):
            return Comparison(first, tuple(Failure("run", "nothing to compare with") for _ in candidates))
        return Comparison(first, tuple(one(c, process, first.samples_s) for c in candidates), again_s=again)

    choices = [OptionChoice(name, "", ((name, True),)) for name in ("good", "bad")]
    request = Request(deadline, seed=seed)
    with (
        _instead(module, "compare", compare),
        _instead(contests, "choices_for", lambda ops: (choices, {})),
        Worker() as worker,
        Rounds(Subject.of(_IMPORTED), request, worker, known_s=known_s) as rounds,
    ):
        return record_of(contest(rounds, entries, options=options))


def _entry(rng: random.Random, number: int) -> Candidate:
    kernels = (KernelSpec(0, ()),) if rng.random() < 0.6 or not number else ()
    program = Program(_ORIGINAL.prepare, _ORIGINAL.hot)
    by_xla = frozenset({"add"}) if rng.random() < 0.5 else frozenset[str]()
    plain = number == 0 and rng.random() < 0.6
    return MadeUp(name=f"program {number}", program=program, kernels=kernels, operations=by_xla, plain=plain)


@contextmanager
def _instead(place: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, kept)


def decision(record: Mapping[str, Any]) -> dict[str, Any]:
    """The decision of a contest, without its rounds."""
    return {key: record[key] for key in ("order", "settled", "ratios", "notes")}


# ---- contests of real programs


def timed(case: str, budget: str) -> dict[str, Any]:
    """The record of the contest in a call of `optimize`."""
    found: list[dict[str, Any]] = []

    def recorded(*given: Any, **options: Any) -> Outcome:
        said = contest(*given, **options)
        found.append(record_of(said))
        return said

    net = build_case(case, 0)
    with _instead(contesting, "contest", recorded):
        superopt.optimize(net.fn, net.params, *net.inputs, frozen=0, budget=budget, store=False)
    (record,) = found
    return {"case": case, **record}


# ---- programs that the model chooses


def chosen_by_model(case: str) -> str:
    """The text of the program that the model alone chooses for a case."""
    net = build_case(case, 0)
    asked: dict[str, Any] = {"budget": "300steps", "deterministic": True, "store": False}
    found = superopt.optimize(net.fn, net.params, *net.inputs, frozen=0, **asked)
    prepare = found.program.prepare
    return print_graph(found.program.hot) + ("" if prepare is None else f"---\n{print_graph(prepare)}")


def main(what: str) -> None:
    """Write a record."""
    make: Mapping[str, Callable[[], tuple[Path, Any]]] = {
        "contests": lambda: (CONTESTS, [decision(made_up(seed)) for seed in range(COUNT)]),
        "timed": lambda: (TIMED, [timed(case, "15s") for case in _TIMED]),
        "programs": lambda: (PROGRAMS, {case: chosen_by_model(case) for case in CASES}),
    }
    path, data = make[what]()
    path.write_text(json.dumps(data, indent=0 if what == "programs" else None) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
