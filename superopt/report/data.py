"""The report of an optimisation: plain data, printable, serialisable to JSON, nothing computed here.

`Speedup.basis` distinguishes predictions from measurements, and times before and after are always measured, except
those of the search.  Times are in milliseconds (`_ms`) or seconds (`_s`).  A `Speedup` is the ratio of paired timings,
original over optimised, with its 95 % interval, so 1.0 means equal and 2.0 twice as fast.  `read_report` reads the
output of `to_json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from superopt.candidates.evidence import JudgedFinalist, Measurement, NumericCheck
from superopt.machine.speedup import Speedup, read_speedup
from superopt.report.steps import GainStep, steps_of


@dataclass(frozen=True, slots=True)
class UsedRewrite:
    """One rule of the returned program: the places where it was applied, its proof, and its gain.

    Gains are those of the whole rule: the loss of the program when every application of it is undone and the rest
    repaired.  Gains of rules that need each other overlap, so they do not add up.

    Attributes:
        predicted_gain_ms: gain by the performance model.
        equation: the proved equation in index notation.
        statement: the rule as it is written.
        sites: the operations that it was applied to, with their number.
        measured_gain_ms: gain by timing the program without the rule; None where that was not timed.
        measured: time without the rule over time with it.
    """

    rule: str
    count: int
    certificate: str
    exactness: str
    predicted_gain_ms: float
    equation: str = ""
    statement: str = ""
    sites: Mapping[str, int] = field(default_factory=dict[str, int])
    measured_gain_ms: float | None = None
    measured: Speedup | None = None


@dataclass(frozen=True, slots=True)
class NotChosen:
    """A rule that applies to the returned program and was not used there.

    Attributes:
        sites: number of places where it could be used.
        loss_ms: predicted loss of the program at the place where the rule would hurt least.
        loss: the same as a share of the predicted time.
        site: that place.
    """

    rule: str
    sites: int
    loss_ms: float
    loss: float
    site: str


OUTSIDE = "outside of all regions"
"""Name of the operations that belong to no region, in the table of kernels."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """A kernel of the returned program.

    Attributes:
        name: its heaviest op with the type of its result.
        count: number of runs.
        ms: time of all runs together.
        timed: whether `ms` is a timing of the kernel by itself, else a prediction.
        outside: whether the kernel is outside the training domain of the learned model; None without such a model.
    """

    name: str
    count: int
    ms: float
    timed: bool
    outside: bool | None = None


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A region of the program that was tried as one of our kernels.

    Attributes:
        name: its ops, with the operands of its product, and the type of its result.
        kind: contraction, window, rows, map or movement.
        count: number of occurrences.
        used: whether the returned program runs it as a kernel.
        xla_ms: XLA's version of the region alone, fastest sample.
        own_ms: the kernel alone, fastest sample.
        ratio: paired by round, with its interval; as rounds are few, the fastest samples are more reliable.
        flops: operations of one run.
        failure: the reason why there is no timing.
        schedule: origin of its schedule: default, or the best of so many searched.
        predicted_ms, by_xla_ms: predictions for one run as our kernel and by XLA; None where there are none.
        timed_ms, by_xla_timed_ms: the same as timed during the search, weights as cold as in the program; or None.
        backend: the backend that makes the kernel; XLA computes the region where it is not used.
        outside: whether it is outside the training domain of the model of our kernels; None where that is not known.
        key: name of the function of the region, by which drawings refer to it.
    """

    name: str
    kind: str
    count: int
    used: bool
    xla_ms: float | None = None
    own_ms: float | None = None
    ratio: Speedup | None = None
    flops: float = 0.0
    failure: str = ""
    schedule: str = ""
    predicted_ms: float | None = None
    timed_ms: float | None = None
    by_xla_ms: float | None = None
    by_xla_timed_ms: float | None = None
    backend: str = ""
    outside: bool | None = None
    key: str = ""

    @property
    def gain(self) -> float | None:
        """XLA's fastest sample over the kernel's."""
        return self.xla_ms / self.own_ms if self.xla_ms and self.own_ms else None

    @property
    def is_timed(self) -> bool:
        """Whether the region was timed during the search on the backend that runs it."""
        return (self.timed_ms if self.used else self.by_xla_timed_ms) is not None

    @property
    def takes_ms(self) -> float | None:
        """Milliseconds of a run on the backend in use: timed, else predicted; None where there is no prediction."""
        timed, told = (self.timed_ms, self.predicted_ms) if self.used else (self.by_xla_timed_ms, self.by_xla_ms)
        return told if timed is None else timed


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One operation of a drawn program.

    Attributes:
        id: number of the value; the same value has the same number before and after.
        op: the operation; `rule` is the rewrite that introduced it, empty for the program's own.
        type: type of the value; `layout` is its physical order of axes where that is not the natural one.
        reads: values that it reads; `frozen` are the operands that never change.
        kernel: number of the value that its kernel computes.
        us: microseconds of one run of the whole kernel, at that value only.
        timed: whether `us` is a timing of the kernel by itself, else a prediction.
        backend: the backend of its kernel; empty where that is not known.
        label: its name in the program: named scopes, or the node of the model; empty where it has none.
        change: `same`, `other` (computed in another way on the other side), `only` (absent on the other side) or
            `ahead` (computed ahead of time on the other side; such values have negative numbers).
    """

    id: int
    op: str
    type: str
    reads: tuple[int, ...]
    frozen: tuple[str, ...]
    kernel: int
    us: float | None
    change: str
    rule: str = ""
    layout: str = ""
    backend: str = ""
    timed: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The program before and after, operands before their readers."""

    before: tuple[DrawnNode, ...]
    after: tuple[DrawnNode, ...]


@dataclass(frozen=True, slots=True)
class StageTime:
    """Wall time of one stage of the pipeline."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTiming:
    """Times of the returned program and of another runtime on the same model, in short rounds after the contest.

    Attributes:
        name: name of the runtime; `version` and `threads` are those that it ran with.
        ms: its median; `returned_ms` is the returned program's in the same rounds.
        ratio: its time over the returned program's, paired by round: 2.0 is a program twice as fast as the runtime.
        failure: why there is no timing; empty where there is one.
    """

    name: str
    version: str = ""
    threads: int = 0
    ms: float | None = None
    returned_ms: float | None = None
    ratio: Speedup | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Record of one optimisation; items of later stages that failed are missing.

    Attributes:
        measured: measured times and speed-up of the program.
        model: error of predictions on the kernels that were timed, and the share of the program outside the training
            domain of the learned model (`outside_share`: None without a learned model).
        not_chosen: rules that apply to the returned program and were not used, cheapest loss first.
        predicted_ms: time of the returned program by the performance model; None where that has not priced it.
        compiler_options: compiler options that the returned program is built with.
        tuning: the choice of these options: `choices` by name, `gain` over the default options on fresh rounds, `tried`
            (program -> sets of choices with their ratios) and `not_tried` (choice -> reason).
        exactness: the class of rules that was allowed: `exact` (results agree in every bit), `real` or `range`.
        native: regions tried as our kernels.
        implementation: the `form` of the program that these kernels are in, its number of `regions`, and how many of
            them are `kernels`.  `code` counts distinct kernels whose machine code was `validated`, is `unknown` (reason
            -> number) or was `refuted` (these are not used).  Empty where no kernels were tried.
        lost: stages that failed or were interrupted, with the cause: the program was returned without them.
        baseline: the program against which `speedup` and the ratios of finalists are measured.
        peers: timings of the returned program beside other runtimes of the same model.
        made: instant of the report in UTC, as ISO 8601 writes it.
        command: the command or call that makes the report again.
        returned: name of the returned candidate.
        parts: what it has and the original has not: keys of `superopt.report.steps.PARTS`.
    """

    program: str
    verdict: str
    measured: Measurement
    original_returned: bool
    rewrites: tuple[UsedRewrite, ...] = ()
    numerics: NumericCheck | None = None
    opaque_ops: Mapping[str, int] = field(default_factory=dict[str, int])
    stages: tuple[StageTime, ...] = ()
    finalists: tuple[JudgedFinalist, ...] = ()
    growth: Mapping[str, Any] = field(default_factory=dict[str, Any])
    search: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory: Mapping[str, int] = field(default_factory=dict[str, int])
    objective: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rules_proved: int = 0
    loop_steps: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: tuple[str, ...] = ()
    before_text: str = ""
    after_text: str = ""
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    not_chosen: tuple[NotChosen, ...] = ()
    kernels: tuple[KernelUse, ...] = ()
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tuning: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drawing: Drawing | None = None
    exactness: str = "real"
    native: tuple[NativeKernel, ...] = ()
    implementation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lost: Mapping[str, str] = field(default_factory=dict[str, str])
    predicted_ms: float | None = None
    baseline: str = "jax.jit"
    peers: tuple[PeerTiming, ...] = ()
    made: str = ""
    command: str = ""
    returned: str = ""
    parts: tuple[str, ...] = ()

    @property
    def speedup(self) -> Speedup:
        """Ratio original over returned; its `basis` says whether it was measured."""
        return self.measured.speedup

    @property
    def steps(self) -> tuple[GainStep, ...]:
        """The waterfall from the original to the returned program; none where the original is returned."""
        return () if self.original_returned else steps_of(self.finalists, self.returned, self.parts, self.speedup)

    @property
    def seconds(self) -> float:
        """Wall time of the whole optimisation."""
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON-serialisable object; the flat keys come first."""
        data = asdict(self)
        data |= data.pop("measured")
        checks = data["numerics"] or {}
        head = {
            "program": self.program,
            "verdict": self.verdict,
            "before_ms": data["before_ms"],
            "after_ms": data["after_ms"],
            "speedup": self.speedup.to_json(),
            "baseline": self.baseline,
            "peers": data["peers"],
            "rewrites": data["rewrites"],
            "max_rel_error": checks.get("max_rel_error"),
            "opaque_ops": sum(self.opaque_ops.values()),
            "seconds": round(self.seconds, 3),
        }
        data["opaque"] = data.pop("opaque_ops")
        data["account"] = {side: asdict(sums) for side, sums in accounts(self).items()}
        data["steps"] = [{**asdict(step), "ratio": step.ratio.to_json()} for step in self.steps]
        whole_ms = sum(k.ms for k in self.kernels) or math.inf
        data["kernels"] = [
            {**row, "share": k.ms / whole_ms} for row, k in zip(data["kernels"], self.kernels, strict=True)
        ]
        for row, k in zip(data["native"], self.native, strict=True):
            row |= {"takes_ms": k.takes_ms, "is_timed": k.is_timed, "gain": k.gain}
            row["share"] = None if k.takes_ms is None else k.count * k.takes_ms / whole_ms
        return {**head, **{k: v for k, v in data.items() if k not in head}}

    def save(self, path: str) -> None:
        """Write the report as `.json`, `.html` or text, by the file's ending."""
        _rendering().write_report(self, path)

    def __str__(self) -> str:
        return _rendering().to_text(self)

    def _repr_html_(self) -> str:
        """The page of the report, in a notebook."""
        return _rendering().to_frame(self)

    def __repr__(self) -> str:
        return f"<superopt report: {self.program}: {self.verdict}, {self.speedup}>"


@dataclass(frozen=True, slots=True)
class Account:
    """Breakdown of a program's time in milliseconds; None where prediction or measurement is missing.

    Attributes:
        kernels: number of kernels; `kernels_ms` is the sum of their times, each alone.
        between_ms: the models' addition for a program of them: its call, hand-overs, operands in other caches.
        predicted_ms: both together.
        measured_ms: median of the program in the contest.
        beyond_ms: measured less predicted, below zero where the prediction was too high.
    """

    kernels: int
    kernels_ms: float | None
    between_ms: float | None
    predicted_ms: float | None
    measured_ms: float | None
    beyond_ms: float | None


def accounts(report: Report) -> dict[str, Account]:
    """Time breakdowns of the program before and after, where drawn or priced; the original alone where returned."""
    by_name: dict[str, Account] = {}
    if report.drawing is not None:
        drawn = [node for node in report.drawing.before if node.kernel == node.id and node.backend]
        priced = [node.us for node in drawn if node.us is not None]
        kernels_ms = 1e-3 * sum(priced) if priced else None
        by_name["before"] = _account(len(drawn), kernels_ms, None, report.measured.before_ms)
    if report.kernels and not report.original_returned:
        kernels_ms, count = sum(k.ms for k in report.kernels), sum(k.count for k in report.kernels)
        by_name["after"] = _account(count, kernels_ms, report.predicted_ms, report.measured.after_ms)
    return by_name


def _account(count: int, kernels_ms: float | None, predicted_ms: float | None, measured_ms: float | None) -> Account:
    def less(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a - b

    between_ms = less(predicted_ms, kernels_ms)
    predicted_ms = kernels_ms if predicted_ms is None else predicted_ms
    return Account(count, kernels_ms, between_ms, predicted_ms, measured_ms, less(measured_ms, predicted_ms))


def _rendering():
    from superopt import report  # late: it reads reports

    return report


_PLAIN = (
    *("program", "verdict", "growth", "search", "memory", "objective"),
    *(
        "environment",
        "rules_proved",
        "loop_steps",
        "original_returned",
        "before_text",
        "after_text",
        "model",
        "compiler_options",
    ),
    *("tuning", "exactness", "implementation", "baseline", "made", "command", "returned"),
)


def read_report(data: Mapping[str, Any]) -> Report:
    """The report that `to_json` wrote, also after a way through JSON.

    Raises:
        KeyError, TypeError: the data were written by another version.
    """

    def speedup(value: Mapping[str, Any] | None) -> Speedup | None:
        return None if value is None else read_speedup(value)

    def finalist(value: Mapping[str, Any]) -> JudgedFinalist:
        return JudgedFinalist(**{**value, "ratio": speedup(value["ratio"]), "parts": tuple(value["parts"])})

    def node(value: Mapping[str, Any]) -> DrawnNode:
        numbers = (value["id"], value["kernel"], *value["reads"])
        if any(type(n) is not int for n in numbers):  # they become names of elements on the page
            raise TypeError(f"the drawing has no numbers for {value['op']!r}")
        return DrawnNode(**{**value, "reads": tuple(value["reads"]), "frozen": tuple(value["frozen"])})

    drawing = data["drawing"]
    plain: dict[str, Any] = {name: data[name] for name in _PLAIN}
    return Report(
        **plain,
        measured=Measurement(
            before_ms=data["before_ms"],
            after_ms=data["after_ms"],
            speedup=read_speedup(data["speedup"]),
            noise_floor=data["noise_floor"],
            samples_ms={k: tuple(v) for k, v in data["samples_ms"].items()},
        ),
        rewrites=tuple(UsedRewrite(**{**r, "measured": speedup(r["measured"])}) for r in data["rewrites"]),
        numerics=NumericCheck(**data["numerics"]) if data["numerics"] else None,
        opaque_ops=data["opaque"],
        stages=tuple(StageTime(**s) for s in data["stages"]),
        finalists=tuple(
            JudgedFinalist(**{**f, "ratio": speedup(f["ratio"]), "parts": tuple(f["parts"])}) for f in data["finalists"]
        ),
        notes=tuple(data["notes"]),
        parts=tuple(data["parts"]),
        not_chosen=tuple(NotChosen(**x) for x in data["not_chosen"]),
        kernels=tuple(KernelUse(**_given(KernelUse, k)) for k in data["kernels"]),
        native=tuple(NativeKernel(**{**_given(NativeKernel, k), "ratio": speedup(k["ratio"])}) for k in data["native"]),
        drawing=None
        if drawing is None
        else Drawing(tuple(map(node, drawing["before"])), tuple(map(node, drawing["after"]))),
        lost=data.get("lost", {}),
        predicted_ms=data.get("predicted_ms"),
        peers=tuple(PeerTiming(**{**x, "ratio": speedup(x["ratio"])}) for x in data["peers"]),
    )


def _given(kind: type[KernelUse] | type[NativeKernel], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the record without its computed entries."""
    return {f.name: row[f.name] for f in fields(kind)}
