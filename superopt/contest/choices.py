"""Choices: the candidate to be returned with the evidence for it, and the numerical check that was put off.

Candidates are not built in the user's process while another one may still replace them.  So the comparison with the
original on random inputs is made only for the candidate that is going to be returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.candidates.candidate import Candidate, original_candidate
from superopt.candidates.evidence import JudgedFinalist, Measurement, of_original
from superopt.candidates.ledger import ChoiceReason, Chosen, Compared, Why
from superopt.contest.checks import OriginalRuns, check
from superopt.contest.contest import Outcome
from superopt.contest.rounds import ORIGINAL
from superopt.explore.found import Exploration
from superopt.frontends.jax.jaxpr import Imported
from superopt.machine.fallback import Fallback
from superopt.machine.speedup import predicted_speedup
from superopt.report.verdicts import IN_DOUBT


def original_returned(imported: Imported, why: ChoiceReason | Why, **found: Any) -> Chosen:
    """The choice that returns the original, for this reason."""
    return Chosen(original_candidate(imported.graph), why=why if isinstance(why, Why) else Why(why), **found)


def original_after_failure(imported: Imported, fallback: Fallback) -> Chosen:
    """The choice that returns the original because a stage failed, by nothing that a stage calls, too."""
    stage, cause = list(fallback.lost.items())[-1]
    why = Why(ChoiceReason.STAGE_LOST, cause, stage=stage)
    return Chosen(original_candidate(imported.graph), why=why, interrupted=fallback.interrupted)


def compare_with_original(candidate: Candidate, runs: OriginalRuns) -> Compared:
    """The candidate compared with the original on the example and on random inputs."""
    return Compared(candidate, *check(runs, candidate.program, candidate.options, candidate.kernels))


def after_check(imported: Imported, choice: Chosen, found: Compared) -> Chosen:
    """The choice after the check that was put off; returns the original if the program does not pass it."""
    if not found.cause:
        return choice
    return original_returned(
        imported, Why(ChoiceReason.WRONG_RESULTS, found.cause), listed=choice.candidate,
        measured=of_original(choice.measured.before_ms, choice.measured.noise_floor),
        finalists=choice.finalists, notes=choice.notes, tuning=choice.tuning,
        interrupted=choice.interrupted,
    )  # fmt: skip


def as_xla_computes(found: Exploration) -> list[Candidate]:
    """The programs of a search as XLA computes them, without our kernels."""
    return [
        Candidate(
            name=f.name, program=found.program(f), finalist=f.name, loops=found.loops, predicted_s=found.by_xla_s(f)
        )
        for f in found.finalists
    ]


def decided(said: Outcome, number: int, judged: Chosen) -> Chosen:
    """The choice of one entry completed with the results of the contest and of earlier trials."""
    candidate, ratio = said.entries[number], said.ratio(number)
    assert ratio is not None
    why = ChoiceReason.FASTER_WITH_OPTIONS if candidate.is_original else ChoiceReason.FASTER
    if candidate.kernels and not said.is_faster(number):
        why = ChoiceReason.NOT_SLOWER
    samples = {"original": said.samples_s(ORIGINAL, number), "returned": said.samples_s(number)}
    given = enumerate(said.entries[: said.given])
    others = {entry.name: s for i, entry in given if i != number and (s := said.samples_s(i))}
    measured = Measurement(
        before_ms=said.median_ms(ORIGINAL, number), after_ms=said.median_ms(number), speedup=ratio,
        noise_floor=said.noise_floor(number),
        samples_ms={name: tuple(1e3 * s for s in series) for name, series in (samples | others).items()},
    )  # fmt: skip
    return Chosen(
        candidate, why=Why(why), measured=measured, notes=_notes(said, judged),
        finalists=(*judged.finalists, *said.rows()), tuning=said.tuning(number), noisy=not said.is_certain(number),
    )  # fmt: skip


def undecided(imported: Imported, said: Outcome, judged: Chosen) -> Chosen:
    """The choice that returns the original since the contest found nothing faster; it records the trials."""
    why = Why(ChoiceReason.NONE_FASTER if said.given else ChoiceReason.NOTHING_TO_TRY)
    return original_returned(
        imported, Why(ChoiceReason.ORIGINAL_UNTIMED, said.cause) if said.cause else why,
        measured=of_original(said.median_ms(ORIGINAL), said.noise_floor(ORIGINAL), said.samples_s(ORIGINAL)),
        finalists=(*judged.finalists, *said.rows()), notes=_notes(said, judged), tuning=said.tuning(None),
        listed=next(iter(said.entries), None), noisy=not said.is_decided,
    )  # fmt: skip


def _notes(said: Outcome, judged: Chosen) -> tuple[str, ...]:
    notes = (*judged.notes, *said.notes, *(() if said.is_decided else (IN_DOUBT,)))
    return tuple(dict.fromkeys(notes))


def by_prediction(found: Exploration, made: Sequence[Candidate]) -> list[Chosen]:
    """Choices of programs predicted to be faster than the original, the fastest first; nothing is timed.

    Args:
        made: programs in kernels, with their predictions.
    """
    original = found.result.original
    before_s = found.by_xla_s(original)
    candidates = [*(one for one in made if one.kernels and one.predicted_s is not None), *as_xla_computes(found)]
    rows = tuple(JudgedFinalist(one.name, 1e3 * (one.predicted_s or 0.0), None, None) for one in candidates)
    chosen: list[Chosen] = []
    for candidate in sorted(candidates, key=lambda c: c.predicted_s or 0.0):
        predicted_s = candidate.predicted_s or 0.0
        as_it_is = candidate.finalist == original.name and not candidate.kernels
        if as_it_is or predicted_s < before_s:
            ratio = before_s / predicted_s if predicted_s > 0 else 1.0
            measured = Measurement(speedup=predicted_speedup(ratio))
            chosen.append(Chosen(candidate, why=Why(ChoiceReason.PREDICTED), measured=measured, finalists=rows))
    return chosen
