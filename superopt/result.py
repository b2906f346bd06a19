"""What an optimisation reports: plain data, printable, serialisable to JSON, nothing computed here.

Times are in milliseconds (`_ms`) or seconds (`_s`); a `Speedup` is the ratio of paired timings, original over
optimised, with its 95 % interval, so 1.0 means equal and 2.0 twice as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Speedup:
    """Ratio of paired timings, original over optimised, with a 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class UsedRewrite:
    """One rule of the winning program: how often it was applied, its proof, what the model says it gains."""

    rule: str
    count: int
    certificate: str
    exactness: str
    predicted_gain_ms: float
    equation: str = ""


@dataclass(frozen=True, slots=True)
class NumericCheck:
    """Largest differences over all outputs, each relative to the largest magnitude of that output.

    Attributes:
        max_rel_error: optimised against original, same dtype.
        original_vs_f64: original against a float64 evaluation, or None where it was not made.
        optimised_vs_f64: optimised against the same float64 evaluation.
    """

    max_rel_error: float
    original_vs_f64: float | None = None
    optimised_vs_f64: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Wall time of one stage of the pipeline."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate that was built and measured, or the reason why it was not."""

    name: str
    predicted_ms: float
    measured_ms: float | None
    ratio: Speedup | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one optimisation knows about itself."""

    program: str
    verdict: str
    before_ms: float | None
    after_ms: float | None
    speedup: Speedup
    noise_floor: float | None
    rewrites: tuple[UsedRewrite, ...]
    numerics: NumericCheck | None
    opaque_ops: Mapping[str, int]
    stages: tuple[Stage, ...]
    finalists: tuple[Finalist, ...]
    growth: Mapping[str, Any]
    search: Mapping[str, Any]
    memory: Mapping[str, int]
    objective: str
    environment: Mapping[str, Any]
    rules_proved: int
    original_returned: bool
    notes: tuple[str, ...] = ()
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, Any])
    before_text: str = ""
    after_text: str = ""

    @property
    def seconds(self) -> float:
        """Wall time of the whole optimisation."""
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """One JSON-serialisable object; the flat keys first."""
        data = asdict(self)
        for text in ("before_text", "after_text"):
            data.pop(text)
        checks = data["numerics"] or {}
        head = {
            "program": self.program,
            "verdict": self.verdict,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "speedup": asdict(self.speedup),
            "rewrites": data["rewrites"],
            "max_rel_error": checks.get("max_rel_error"),
            "opaque_ops": sum(self.opaque_ops.values()),
            "seconds": round(self.seconds, 3),
        }
        data["opaque"] = data.pop("opaque_ops")
        return {**head, **{k: v for k, v in data.items() if k not in head}}

    def save(self, path: str) -> None:
        """Write the report as `.json`, `.html` or text, by the file's ending."""
        from superopt.report import write_report  # late: rendering is only needed when asked for

        write_report(self, path)

    def __str__(self) -> str:
        from superopt.report import to_text  # late: rendering is only needed when asked for

        return to_text(self)

    def __repr__(self) -> str:
        return f"<superopt report: {self.program}: {self.verdict}, {self.speedup}>"
