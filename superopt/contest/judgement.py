"""Judgements: the candidate to be returned with the evidence for it, and the numerical check that was put off.

Candidates are not built in the user's process while another one may still replace them.  So the comparison with the
original on random inputs is made only for the candidate that is going to be returned.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from superopt.candidates.candidate import Candidate, original_candidate
from superopt.certify.kernels import ValidatedCode
from superopt.contest.attribution import Gain
from superopt.contest.checks import Builds, check
from superopt.contest.contest import Outcome
from superopt.contest.rounds import ORIGINAL
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.barrier import Barrier
from superopt.machine.speedup import predicted_speedup
from superopt.report.data import UNMEASURED, JudgedFinalist, Measurement, NumericCheck, of_original


@dataclass(frozen=True, slots=True)
class Judgement:
    """The candidate to be returned, and the evidence for it.

    Attributes:
        measured: measured times and speed-up; the predicted speed-up where the model alone chose.
        finalists: all candidates that were timed, for the report.
        listed: the candidate whose kernels the report lists: another one where the original is returned.
        code: validation of the machine code of its kernels; None where none was made.
        unchecked: the program was compared on the example inputs only; `settled` does the rest if it is returned.
        noisy: the rounds leave a doubt about which program is the fastest; the original is not kept then, and another
            program is marked, to be timed again when it is recalled.
        refused: a program gave other results than the original on these inputs; on others it may not, so that this is
            not kept.
        interrupted: the user ended the measuring; nothing more is to be begun, and the result is not kept.
    """

    candidate: Candidate
    verdict: str
    measured: Measurement = UNMEASURED
    _: KW_ONLY
    listed: Candidate | None = None
    numerics: NumericCheck | None = None
    code: ValidatedCode | None = None
    finalists: tuple[JudgedFinalist, ...] = ()
    notes: tuple[str, ...] = ()
    gains: dict[str, Gain] = field(default_factory=dict[str, Gain])
    tuning: dict[str, Any] = field(default_factory=dict[str, Any])
    unchecked: bool = False
    noisy: bool = False
    refused: bool = False
    interrupted: bool = False

    @property
    def returns_original(self) -> bool:
        """Whether the program is the original, perhaps with compiler options."""
        return self.candidate.is_original


IN_DOUBT = "the machine was too noisy to tell in the time how fast the programs are"


def original_returned(imported: Imported, cause: str, **found: Any) -> Judgement:
    """A judgement that returns the original, for this cause."""
    return Judgement(original_candidate(imported.graph), f"the original was returned: {cause}", **found)


def given_back(imported: Imported, barrier: Barrier) -> Judgement:
    """A judgement that returns the original because a stage failed that could have found a better program."""
    stage, cause = list(barrier.lost.items())[-1]
    return original_returned(imported, f"{stage} {cause}", interrupted=barrier.interrupted)


def returned(candidate: Candidate, verdict: str = "") -> Judgement:
    """The judgement of a candidate before anything is measured or checked."""
    ours = f", {len(candidate.kernels)} of its kernels are our own" if candidate.kernels else ""
    return Judgement(candidate, verdict or f"faster program returned{ours}", unchecked=True)


def settled(imported: Imported, judgement: Judgement, builds: Builds) -> Judgement:
    """The judgement after the check that was put off; returns the original if the program does not pass it."""
    if not judgement.unchecked:
        return judgement
    candidate = judgement.candidate
    numerics, cause = check(builds, candidate.program, candidate.options, candidate.kernels)
    if not cause:
        return replace(judgement, numerics=numerics, unchecked=False)
    return original_returned(
        imported, f"the program was refused: {cause}", listed=candidate,
        measured=of_original(judgement.measured.before_ms, judgement.measured.noise_floor),
        finalists=judgement.finalists, notes=judgement.notes, tuning=judgement.tuning,
        interrupted=judgement.interrupted, refused=True,
    )  # fmt: skip


def as_xla_computes(found: Exploration) -> list[Candidate]:
    """The programs of a search as XLA computes them, without our kernels."""
    return [
        Candidate(name=f.name, program=found.program(f), finalist=f.name, predicted_s=found.by_xla_s(f))
        for f in found.finalists
    ]


def decided(said: Outcome, number: int, judged: Judgement) -> Judgement:
    """The judgement of one entry completed with the results of the contest and of earlier trials."""
    candidate, ratio = said.entries[number], said.ratio(number)
    assert ratio is not None
    own = returned(candidate, "original returned with compiler options" if candidate.is_original else "")
    if candidate.kernels and not said.is_faster(number):
        count = len(candidate.kernels)
        verdict = f"{count} kernels of our own returned; not slower than the original, nor faster beyond the noise"
        own = replace(own, verdict=verdict)
    samples = {"original": said.samples_s(ORIGINAL, number), "returned": said.samples_s(number)}
    given = enumerate(said.entries[: said.given])
    others = {entry.name: s for i, entry in given if i != number and (s := said.samples_s(i))}
    measured = Measurement(
        before_ms=said.median_ms(ORIGINAL, number), after_ms=said.median_ms(number), speedup=ratio,
        noise_floor=said.noise_floor(number),
        samples_ms={name: tuple(1e3 * s for s in series) for name, series in (samples | others).items()},
    )  # fmt: skip
    return replace(
        own, measured=measured, notes=_notes(said, judged), finalists=(*judged.finalists, *said.rows()),
        tuning=said.tuning(number), noisy=not said.is_certain(number),
    )  # fmt: skip


def undecided(imported: Imported, said: Outcome, judged: Judgement) -> Judgement:
    """A judgement that returns the original since the contest found nothing faster; it records the trials."""
    cause = f"it could not be timed ({said.cause})" if said.cause else "no candidate measured faster"
    return original_returned(
        imported, cause if said.given or said.cause else "the search found nothing cheaper",
        measured=of_original(said.median_ms(ORIGINAL), said.noise_floor(ORIGINAL), said.samples_s(ORIGINAL)),
        finalists=(*judged.finalists, *said.rows()), notes=_notes(said, judged), tuning=said.tuning(None),
        listed=next(iter(said.entries), None), noisy=not said.settled,
    )  # fmt: skip


def _notes(said: Outcome, judged: Judgement) -> tuple[str, ...]:
    notes = (*judged.notes, *said.notes, *(() if said.settled else (IN_DOUBT,)))
    return tuple(dict.fromkeys(notes))


def by_prediction(found: Exploration) -> list[Judgement]:
    """Judgements of programs predicted to be faster than the original, the fastest first: the same on every machine."""
    original = found.result.original
    before_s = found.by_xla_s(original)
    rows = tuple(JudgedFinalist(f.name, 1e3 * found.by_xla_s(f), None, None) for f in found.finalists)
    verdict = "program chosen by the performance model; times are predictions, nothing was measured"
    chosen: list[Judgement] = []
    for candidate in sorted(as_xla_computes(found), key=lambda c: c.predicted_s or 0.0):
        predicted_s = candidate.predicted_s or 0.0
        if candidate.finalist == original.name or predicted_s < before_s:
            ratio = before_s / predicted_s if predicted_s > 0 else 1.0
            measured = Measurement(speedup=predicted_speedup(ratio))
            chosen.append(replace(returned(candidate, verdict), measured=measured, finalists=rows))
    return chosen
