"""What a judgement says, and the numerical check of a program that the judgement left for later.

Where builds are slow and kernels of our own are still to be tried, the judgement's program may be replaced within
seconds; building it once more in the process of the user, to compare it with the original on random inputs, then waits
until it is known to be the one that is returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from superopt.attribution import Gain
from superopt.barrier import Barrier
from superopt.checks import Builds, check
from superopt.frontends.jaxpr import Imported
from superopt.ir.program import Program, original_program
from superopt.kernels.choice import Choice
from superopt.result import Finalist, NativeKernel, NumericCheck, Speedup
from superopt.search.search import Finalist as Candidate

_AS_PROMISED = 0.9


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which program is returned, and on what evidence; kernels of our own are filled in by `superopt.implement`.

    Attributes:
        build_s: what building a program took at most: an estimate for those that follow.
        unchecked: the program was compared on the example inputs only; `settled` does the rest if it is returned.
        presumed: nothing was measured; the original stands for what a judgement would have chosen.
        interrupted: the user ended the measuring; nothing more is to be begun, and the result is not kept.
    """

    program: Program
    winner: Candidate | None
    verdict: str
    before_ms: float | None = None
    after_ms: float | None = None
    speedup: Speedup | None = None
    noise_floor: float | None = None
    numerics: NumericCheck | None = None
    finalists: tuple[Finalist, ...] = ()
    notes: tuple[str, ...] = ()
    samples_ms: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    after_text: str = ""
    gains: dict[str, Gain] = field(default_factory=dict[str, Gain])
    options: dict[str, bool | str] = field(default_factory=dict[str, bool | str])
    tuning: dict[str, Any] = field(default_factory=dict[str, Any])
    kernels: tuple[Choice, ...] = ()
    native: tuple[NativeKernel, ...] = ()
    implementation: dict[str, Any] = field(default_factory=dict[str, Any])
    build_s: float = 0.0
    unchecked: bool = False
    presumed: bool = False
    interrupted: bool = False


def presumed(imported: Imported, build_s: float) -> Judgement:
    """The original, where kernels are tried before finalists are built."""
    return Judgement(original_program(imported.graph), None, "nothing was measured", build_s=build_s, presumed=True)


def given_back(imported: Imported, barrier: Barrier) -> Judgement:
    """The original, after a stage was lost that would have found something better."""
    stage, cause = list(barrier.lost.items())[-1]
    verdict = f"the original was returned: {stage} {cause}"
    return Judgement(original_program(imported.graph), None, verdict, interrupted=barrier.interrupted)


def is_enough(judgement: Judgement, promised: float) -> bool:
    """Is the program with kernels as fast, next to the original, as the search promises without them?"""
    return judgement.speedup is not None and judgement.speedup.ratio > _AS_PROMISED * promised


def faster_one(first: Judgement, second: Judgement) -> Judgement:
    """The faster of a judgement with kernels tried first and of one on the finalists after it, with what both tried."""
    ratios = [1.0 if j.speedup is None else j.speedup.ratio for j in (first, second)]
    if first.kernels and ratios[0] >= ratios[1]:
        notes, interrupted = (*first.notes, *second.notes), second.interrupted
        return replace(
            first, finalists=second.finalists, notes=notes, tuning=second.tuning, interrupted=interrupted
        )  # fmt: skip
    notes = first.notes
    if first.kernels:
        notes = (*notes, f"the program with kernels was {ratios[0]:.2f} times as fast as the original")
    native = tuple(replace(row, used=False) for row in first.native)
    figures = {**first.implementation, "form": None, "gain": None, "kernels": 0} if first.implementation else {}
    return replace(second, notes=(*notes, *second.notes), native=native, implementation=figures)


def settled(imported: Imported, judgement: Judgement, seed: int, builds: Builds) -> Judgement:
    """The judgement with the check that it was short of time for; the original, if the program does not pass it."""
    if not judgement.unchecked:
        return judgement
    live, frozen = imported.live_values, imported.frozen_values
    numerics, cause = check(imported.graph, judgement.program, live, frozen, seed, judgement.options, builds=builds)
    if not cause:
        return replace(judgement, numerics=numerics, unchecked=False)
    return Judgement(
        original_program(imported.graph), None, f"the original was returned: the program was refused: {cause}",
        judgement.before_ms, judgement.before_ms, noise_floor=judgement.noise_floor, finalists=judgement.finalists,
        notes=judgement.notes, tuning=judgement.tuning, native=judgement.native,
        implementation=judgement.implementation, interrupted=judgement.interrupted,
    )  # fmt: skip
