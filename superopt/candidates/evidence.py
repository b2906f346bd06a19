"""Evidence for a candidate as plain data: measured times, gains of rules, and differences from the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superopt.machine.speedup import UNTIMED, Speedup


@dataclass(frozen=True, slots=True)
class NumericCheck:
    """Largest differences over all outputs, each relative to the largest magnitude of that output.

    Attributes:
        max_rel_error: optimised against original, same dtype.
        original_vs_f64: original against a float64 evaluation, or None where it was not made.
        optimised_vs_f64: optimised against the same float64 evaluation.
        drawn: compared on random inputs, too, not on the example alone.
    """

    max_rel_error: float
    original_vs_f64: float | None = None
    optimised_vs_f64: float | None = None
    drawn: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Measured times of a program and its speed-up; by default there are none.

    Attributes:
        before_ms: the original's median.
        after_ms: the median of the returned program.
        speedup: original over returned program, paired by round.
        noise_floor: how far the original differs from itself, relative (0.02 = 2 %).
        samples_ms: program -> milliseconds per call, one value per round.
    """

    before_ms: float | None = None
    after_ms: float | None = None
    speedup: Speedup = UNTIMED
    noise_floor: float | None = None
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])


UNMEASURED = Measurement()


def of_original(
    ms: float | None, noise_floor: float | None = None, samples_s: Sequence[float] | None = None
) -> Measurement:
    """The measurement of a returned original, with its time if it has one: its speed-up over itself is 1."""
    samples_ms = {} if samples_s is None else {"original": tuple(1e3 * s for s in samples_s)}
    speedup = UNTIMED if ms is None else Speedup(1.0, 1.0, 1.0)
    return Measurement(before_ms=ms, after_ms=ms, speedup=speedup, noise_floor=noise_floor, samples_ms=samples_ms)


@dataclass(frozen=True, slots=True)
class JudgedFinalist:
    """A candidate that was built and measured, or the reason why it was not.

    Attributes:
        ratio: the baseline's time over the candidate's, paired by round.
        parts: what the candidate has and the original has not: keys of `superopt.report.steps.PARTS`.
    """

    name: str
    predicted_ms: float | None
    measured_ms: float | None
    ratio: Speedup | None
    failure: str = ""
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gain:
    """Milliseconds that a program gains by a rule, and its time without the rule over its time with it."""

    milliseconds: float
    ratio: Speedup
