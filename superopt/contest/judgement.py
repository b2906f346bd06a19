"""Judgements: the program to be returned with the evidence for it, and the numerical check that was put off.

Candidates are not built in the user's process while another one may still replace them.  So the comparison with the
original on random inputs is made only for the program that is going to be returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from superopt.contest.attribution import Gain
from superopt.contest.checks import Builds, check
from superopt.contest.contest import Outcome
from superopt.contest.rounds import ORIGINAL, Entry
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.program import Program, original_program
from superopt.ir.text import print_graph
from superopt.kernels.choose.choice import Choice
from superopt.kernels.choose.regions import Region
from superopt.machine.barrier import Barrier
from superopt.machine.speedup import predicted_speedup
from superopt.report.data import UNMEASURED, JudgedFinalist, Measurement, NativeKernel, NumericCheck, of_original
from superopt.search.search import Finalist


@dataclass(frozen=True, slots=True)
class Judgement:
    """The program to be returned, and the evidence for it.

    Attributes:
        measured: measured times and speed-up; the predicted speed-up where the model alone chose.
        predicted_s: predicted seconds of the program; None where there is no prediction.
        build_s: longest time that building a program took: an estimate for those that follow.
        unchecked: the program was compared on the example inputs only; `settled` does the rest if it is returned.
        regions: regions of the program, where some of them are our kernels; `native` has their report rows.
        own_form: the program is the original's own form, not one that the search found.
        noisy: the rounds leave a doubt about which program is the fastest; the original is not kept then, and another
            program is marked, to be timed again when it is recalled.
        refused: a program gave other results than the original on these inputs; on others it may not, so that this is
            not kept.
        interrupted: the user ended the measuring; nothing more is to be begun, and the result is not kept.
    """

    program: Program
    winner: Finalist | None
    verdict: str
    measured: Measurement = UNMEASURED
    _: KW_ONLY
    predicted_s: float | None = None
    numerics: NumericCheck | None = None
    finalists: tuple[JudgedFinalist, ...] = ()
    notes: tuple[str, ...] = ()
    after_text: str = ""
    gains: dict[str, Gain] = field(default_factory=dict[str, Gain])
    options: dict[str, bool | str] = field(default_factory=dict[str, bool | str])
    tuning: dict[str, Any] = field(default_factory=dict[str, Any])
    kernels: tuple[Choice, ...] = ()
    native: tuple[NativeKernel, ...] = ()
    regions: tuple[Region, ...] = ()
    implementation: dict[str, Any] = field(default_factory=dict[str, Any])
    build_s: float = 0.0
    unchecked: bool = False
    own_form: bool = False
    noisy: bool = False
    refused: bool = False
    interrupted: bool = False

    @property
    def returns_original(self) -> bool:
        """Whether the program is the original, perhaps with compiler options."""
        return self.winner is None and not self.own_form and not self.kernels


IN_DOUBT = "the machine was too noisy to tell in the time how fast the programs are"
Candidate = tuple[Entry, Judgement]
"""A program that may be returned, and its judgement if it is."""


def original_returned(imported: Imported, cause: str, **found: Any) -> Judgement:
    """A judgement that returns the original, for this cause."""
    return Judgement(original_program(imported.graph), None, f"the original was returned: {cause}", **found)


def given_back(imported: Imported, barrier: Barrier) -> Judgement:
    """A judgement that returns the original because a stage failed that could have found a better program."""
    stage, cause = list(barrier.lost.items())[-1]
    return original_returned(imported, f"{stage} {cause}", interrupted=barrier.interrupted)


def settled(imported: Imported, judgement: Judgement, builds: Builds) -> Judgement:
    """The judgement after the check that was put off; returns the original if the program does not pass it."""
    if not judgement.unchecked:
        return judgement
    numerics, cause = check(builds, judgement.program, judgement.options, judgement.kernels)
    if not cause:
        return replace(judgement, numerics=numerics, unchecked=False)
    return original_returned(
        imported, f"the program was refused: {cause}",
        measured=of_original(judgement.measured.before_ms, judgement.measured.noise_floor),
        finalists=judgement.finalists, notes=judgement.notes,
        tuning=judgement.tuning, native=tuple(replace(row, used=False) for row in judgement.native),
        interrupted=judgement.interrupted, refused=True,
    )  # fmt: skip


def as_xla_computes(found: Exploration) -> list[Candidate]:
    """The programs of a search as XLA computes them, without our kernels."""
    made = [(f, found.program(f)) for f in found.finalists]
    return [(Entry(name=f.name, program=p, predicted_s=found.by_xla_s(f)), _of_search(p, f)) for f, p in made]


def _of_search(program: Program, winner: Finalist) -> Judgement:
    text = print_graph(program.hot)
    return Judgement(program, winner, "faster program returned", after_text=text, unchecked=True)


def decided(said: Outcome, number: int, candidates: Sequence[Candidate], judged: Judgement) -> Judgement:
    """The judgement of one entry completed with the results of the contest and of earlier trials."""
    entry, ratio = said.entries[number], said.ratio(number)
    assert ratio is not None
    if entry.base == ORIGINAL:
        own = Judgement(entry.program, None, "original returned with compiler options", unchecked=True)
    else:
        own = candidates[number if entry.base is None else entry.base][1]
    verdict = own.verdict
    if own.kernels and not said.is_faster(number):
        verdict = (
            f"{len(own.kernels)} kernels of our own returned; not slower than the original, nor faster beyond the noise"
        )
    samples = {"original": said.samples_s(ORIGINAL, number), "returned": said.samples_s(number)}
    others = {e.name: s for i, (e, _) in enumerate(candidates) if i != number and (s := said.samples_s(i))}
    measured = Measurement(
        before_ms=said.median_ms(ORIGINAL, number), after_ms=said.median_ms(number), speedup=ratio,
        noise_floor=said.noise_floor(number),
        samples_ms={name: tuple(1e3 * s for s in series) for name, series in (samples | others).items()},
    )  # fmt: skip
    return replace(
        own, verdict=verdict, measured=measured, notes=_notes(said, judged, own), predicted_s=entry.predicted_s,
        finalists=(*judged.finalists, *said.rows()), options=dict(entry.options), tuning=said.tuning(number),
        build_s=max(own.build_s, said.build_s), noisy=not said.is_certain(number),
    )  # fmt: skip


def undecided(imported: Imported, said: Outcome, candidates: Sequence[Candidate], judged: Judgement) -> Judgement:
    """A judgement that returns the original since the contest found nothing faster; it records the trials."""
    cause = f"it could not be timed ({said.cause})" if said.cause else "no candidate measured faster"
    native = judged.native or (candidates[0][1].native if candidates else ())
    return original_returned(
        imported, cause if said.given or said.cause else "the search found nothing cheaper",
        measured=of_original(said.median_ms(ORIGINAL), said.noise_floor(ORIGINAL), said.samples_s(ORIGINAL)),
        finalists=(*judged.finalists, *said.rows()), notes=_notes(said, judged), tuning=said.tuning(None),
        native=tuple(replace(row, used=False) for row in native), build_s=said.build_s, noisy=not said.settled,
    )  # fmt: skip


def _notes(said: Outcome, *judged: Judgement) -> tuple[str, ...]:
    notes = (*(note for one in judged for note in one.notes), *said.notes, *(() if said.settled else (IN_DOUBT,)))
    return tuple(dict.fromkeys(notes))


def by_prediction(found: Exploration) -> list[Judgement]:
    """Judgements of programs predicted to be faster than the original, the fastest first: the same on every machine."""
    before_s = found.by_xla_s(found.result.original)
    rows = tuple(JudgedFinalist(f.name, 1e3 * found.by_xla_s(f), None, None) for f in found.finalists)
    verdict = "program chosen by the performance model; times are predictions, nothing was measured"
    chosen: list[Judgement] = []
    for _, own in sorted(as_xla_computes(found), key=lambda c: c[0].predicted_s or 0.0):
        assert own.winner is not None
        predicted_s = found.by_xla_s(own.winner)
        if own.winner.original or predicted_s < before_s:
            ratio = before_s / predicted_s if predicted_s > 0 else 1.0
            measured = Measurement(speedup=predicted_speedup(ratio))
            chosen.append(replace(own, verdict=verdict, measured=measured, finalists=rows))
    return chosen
