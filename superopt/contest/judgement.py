"""What a judgement says of the program that is returned, and the numerical check that was left for last.

A program that another may still replace is not built in the process of the user: comparing it with the original on
random inputs there waits until it is known to be the one that is returned.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from superopt.contest.attribution import Gain
from superopt.contest.checks import Builds, check
from superopt.frontends.jax.jaxpr import Imported
from superopt.ir.program import Program, original_program
from superopt.kernels.choose.choice import Choice
from superopt.machine.barrier import Barrier
from superopt.report.data import UNMEASURED, JudgedFinalist, Measurement, NativeKernel, NumericCheck, of_original
from superopt.search.search import Finalist as Candidate


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which program is returned, and on what evidence.

    Attributes:
        measured: how fast it is; of what a prediction chose, its word.
        predicted_s: what the program takes by the models; None where they were not asked.
        build_s: what building a program took at most: an estimate for those that follow.
        unchecked: the program was compared on the example inputs only; `settled` does the rest if it is returned.
        own_form: the program is the original's own form, not one that the search found.
        noisy: the rounds leave a doubt about which program is the fastest; the result is not kept.
        interrupted: the user ended the measuring; nothing more is to be begun, and the result is not kept.
    """

    program: Program
    winner: Candidate | None
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
    implementation: dict[str, Any] = field(default_factory=dict[str, Any])
    build_s: float = 0.0
    unchecked: bool = False
    own_form: bool = False
    noisy: bool = False
    interrupted: bool = False

    @property
    def returns_original(self) -> bool:
        """Is the program the original, perhaps with options of the compiler?"""
        return self.winner is None and not self.own_form and not self.kernels


def original_returned(imported: Imported, cause: str, **found: Any) -> Judgement:
    """The original, and why."""
    return Judgement(original_program(imported.graph), None, f"the original was returned: {cause}", **found)


def given_back(imported: Imported, barrier: Barrier) -> Judgement:
    """The original, after a stage was lost that would have found something better."""
    stage, cause = list(barrier.lost.items())[-1]
    return original_returned(imported, f"{stage} {cause}", interrupted=barrier.interrupted)


def settled(imported: Imported, judgement: Judgement, builds: Builds) -> Judgement:
    """The judgement with the check that was left for last; the original, if the program does not pass it."""
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
        interrupted=judgement.interrupted,
    )  # fmt: skip
