"""The report as one offline HTML page: verdict, both programs side by side, reasons, evidence, search, environment.

No network request and no script; everything escaped by the template engine; drawings are inline SVG.  Every figure
comes from the record of the JSON report, and carries its path in it (`data-of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from superopt.report import charts
from superopt.report.data import OUTSIDE, Report, accounts
from superopt.report.figures import NONE, ms, percent, ratio, value_at, written
from superopt.report.graph import CLASSES, DrawnBox, boxes_of, fold, svg
from superopt.report.text import (
    beyond,
    made_line,
    medians_line,
    model_line,
    native_line,
    near_misses,
    options_line,
    predicted_ms,
    proof_line,
    unmeasured_line,
)

_FIGURE = Markup('<data data-of="{}" value="{}">{}</data>')
_WORTH_FOLDING = 0.85  # folded drawings have at most this share of the boxes
_LARGEST_DRAWING = 1_200_000  # characters of the unfolded drawings; beyond that only the folded ones are kept


@dataclass(frozen=True, slots=True)
class Drawn:
    """Drawings of both sides, folded, and unfolded where that differs."""

    before: Markup
    after: Markup
    before_full: Markup
    after_full: Markup
    kernels: tuple[int, int]
    changed: int


def to_html(report: Report) -> str:
    """The report as a complete HTML document."""
    source = resources.files("superopt.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = _plain
    record = report.to_json()
    drawn = _drawn(report)

    def fig(path: str) -> Markup:
        """A figure of the record."""
        value = value_at(record, path)
        text = written(path, value)
        raw = value["ratio"] if isinstance(value, Mapping) else value
        return Markup(NONE) if text == NONE else _FIGURE.format(path, raw, text)

    return environment.from_string(source).render(
        report=report,
        record=record,
        fig=fig,
        made=made_line(report),
        times=[ms(x) for x in predicted_ms(report)],
        ratio=ratio(report.speedup.ratio),
        predicted=report.speedup.basis == "predicted",
        account=record["account"],
        beyond=[f"{side}: {why}" for side, one in accounts(report).items() if (why := beyond(one, report))],
        medians=medians_line(report),
        drawn=drawn,
        legend=CLASSES,
        largest_gain=max((abs(r.predicted_gain_ms) for r in report.rewrites), default=0.0) or 1.0,
        parts=_columns(record),
        outside=OUTSIDE,
        model=model_line(report),
        misses=near_misses(report),
        grown=sorted(report.growth.get("unions", {}).items(), key=lambda item: -item[1])[:12],
        options_line=_sentence(options_line(report)) if report.tuning else "",
        native=native_line(report),
        proof=proof_line(report),
        samples=charts.samples(report),
        stages=charts.stages(report),
        waterfall=charts.waterfall(report),
        predictions=charts.predictions(report),
        unmeasured=_sentence(unmeasured_line(report)),
    )


def _sentence(line: str) -> str:
    """A line of the text as a sentence under a heading."""
    return f"Options {line}." if line.startswith("of the compiler") else line[:1].upper() + line[1:]


def _drawn(report: Report) -> Drawn | None:
    """Drawings of the program before and after, or None where there is nothing to draw."""
    drawing = report.drawing
    if drawing is None:
        return None
    sides = {"before": boxes_of(drawing.before), "after": boxes_of(drawing.after)}
    kernels = tuple(sum(box.kernels for box in boxes) for boxes in sides.values())
    folded = {side: fold(boxes) for side, boxes in sides.items()}
    if sum(map(len, folded.values())) > _WORTH_FOLDING * sum(map(len, sides.values())):
        folded = sides
    parts = _pair(folded, "")
    shorter = folded is not sides
    full = _pair(sides, "-full") if shorter else ("", "")
    if sum(map(len, full)) > _LARGEST_DRAWING:
        full = ("", "")
    changed = sum(box.kernels for box in sides["after"] if box.changed)
    return Drawn(*map(Markup, (*parts, *full)), kernels=(kernels[0], kernels[1]), changed=changed)


def _pair(sides: Mapping[str, Sequence[DrawnBox]], suffix: str) -> tuple[str, str]:
    numbers = {side: {box.id for box in boxes} for side, boxes in sides.items()}
    return (
        svg(sides["before"], f"before{suffix}", numbers["after"], "the program before"),
        svg(sides["after"], f"after{suffix}", numbers["before"], "the program after"),
    )


def _plain(value: Any, name: str = "") -> str:
    """Nested plain data as words, not as Python; figures are formatted by the name of their entry."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        kind = name if name.endswith(("_ms", "seconds")) else ""  # the name of an entry applies to all values in it
        return ", ".join(f"{k} {_plain(v, kind or str(k))}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(v, name) for v in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and name.endswith(("_ms", "seconds", "share", "error")):
        return percent(value) if name.endswith("error") else written(name, value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _columns(record: Mapping[str, Any]) -> dict[str, set[str]]:
    """Table -> names of its columns that are not empty."""
    tables = {name: record[name] for name in ("rewrites", "native", "kernels", "finalists", "not_chosen")}
    return {
        name: {key for row in rows for key, value in row.items() if value not in (None, "", {}, [], ())}
        for name, rows in tables.items()
    }
