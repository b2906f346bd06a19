"""Charts of the page as inline SVG: the waterfall of the gain, predictions, timing samples, stages."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from superopt.report.data import Report
from superopt.report.figures import ms, percent, seconds

_WIDTH = 640
_ROW = 22
_NAMES = 160  # pixels of the names before a chart
_VALUES = 80  # pixels of the figures behind it
_SIDE = 300  # of the chart of predictions
_LETTERS = 26


def waterfall(report: Report) -> Markup:
    """The original's time as a bar, what each step saves of it, and the returned program's time."""
    steps = report.steps
    if not steps:
        return Markup("")
    most = max(1.0, *(step.takes_share for step in steps))
    scale = (_WIDTH - _NAMES - _VALUES) / most
    bars = [("the original", "whole", 0.0, 1.0, ms(report.measured.before_ms), "before_ms")]
    before = 1.0
    for i, step in enumerate(steps):
        low, high = sorted((before, step.takes_share))
        kind = "gain" if step.takes_share <= before else "loss"
        bars.append((step.words, kind, low, high, percent(step.gain_share), f"steps/{i}/gain_share"))
        before = step.takes_share
    bars.append(("returned", "whole", 0.0, before, ms(report.measured.after_ms), "after_ms"))
    out: list[str] = []
    for i, (name, kind, low, high, text, path) in enumerate(bars):
        y, x, end = _ROW * i, _NAMES + low * scale, _NAMES + high * scale
        out.append(_name(name, y))
        out.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y + 4}" width="{max(1.0, end - x):.1f}" height="14"/>'
            f'<text class="small" x="{end + 6:.1f}" y="{y + 15}" data-of="{path}">{text}</text>'
        )
    return _chart("what each step saves", _ROW * len(bars), out)


def predictions(report: Report) -> Markup:
    """Predicted against measured times of the candidates that have both, on logarithmic axes."""
    rows = [
        (f.name, f.predicted_ms, f.measured_ms)
        for f in report.finalists
        if f.predicted_ms and f.measured_ms and min(f.predicted_ms, f.measured_ms) > 0.0
    ]
    if not rows:
        return Markup("")
    times = [x for _, *both in rows for x in both]
    low, high = math.log(min(times) / 1.1), math.log(1.1 * max(times))

    def at(x: float) -> float:
        return (_SIDE - 20) * (math.log(x) - low) / (high - low)

    left, base = _NAMES, _SIDE - 20
    out = [
        f'<line class="axis" x1="{left}" x2="{left + base}" y1="{base}" y2="{base}"/>',
        f'<line class="axis" x1="{left}" x2="{left}" y1="0" y2="{base}"/>',
        f'<line class="axis" x1="{left}" x2="{left + base}" y1="{base}" y2="0"/>',
        f'<text class="small" x="{left + base}" y="{base + 16}" text-anchor="end">predicted</text>',
        f'<text class="small" x="{left - 8}" y="12" text-anchor="end">measured</text>',
    ]
    for name, predicted_ms, measured_ms in rows:
        x, y = left + at(predicted_ms), base - at(measured_ms)
        told = f"{name}: predicted {ms(predicted_ms)}, measured {ms(measured_ms)}"
        out.append(f'<g><title>{escape(told)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>')
        near = f'x="{x - 9:.1f}" text-anchor="end"' if x > left + base / 2 else f'x="{x + 9:.1f}"'
        out.append(f'<text class="small" {near} y="{y + 4:.1f}">{escape(_cut(name))}</text>')
    return _chart("predicted against measured", _SIDE, out)


def samples(report: Report) -> Markup:
    """Every timing sample as a dot on one line per program."""
    rows = [(name, values) for name, values in report.measured.samples_ms.items() if values]
    if not rows:
        return Markup("")
    low, high = min(min(v) for _, v in rows), max(max(v) for _, v in rows)
    scale = (_WIDTH - _NAMES - 20) / max(high - low, 1e-12)
    out: list[str] = []
    for i, (name, values) in enumerate(rows):
        y = _ROW * i + 16
        out.append(_name(name, y - 11))
        out.append(f'<line x1="{_NAMES}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}" class="axis"/>')
        out += [f'<circle cx="{_NAMES + (v - low) * scale:.1f}" cy="{y}" r="3"/>' for v in values]
    y = _ROW * len(rows) + 18
    out.append(f'<text x="{_NAMES}" y="{y}" class="small">{ms(low)}</text>')
    out.append(f'<text x="{_WIDTH - 10}" y="{y}" text-anchor="end" class="small">{ms(high)}</text>')
    return _chart("timing samples", y + 8, out)


def stages(report: Report) -> Markup:
    """The stages of the optimisation, each where the one before ends."""
    scale = (_WIDTH - _NAMES - _VALUES) / max(report.seconds, 1e-9)
    out: list[str] = []
    start = float(_NAMES)
    for i, stage in enumerate(report.stages):
        y, width = _ROW * i, max(stage.seconds * scale, 1.0)
        out.append(_name(stage.name, y))
        out.append(f'<rect x="{start:.1f}" y="{y + 4}" width="{width:.1f}" height="14"/>')
        out.append(
            f'<text x="{start + 6 + width:.1f}" y="{y + 15}" class="small" data-of="stages/{i}/seconds">'
            f"{seconds(stage.seconds)}</text>"
        )
        start += stage.seconds * scale
    return _chart("stages", _ROW * len(report.stages), out)


def _chart(label: str, height: float, parts: list[str]) -> Markup:
    """A drawing of these parts, in which names are escaped and all else is numbers and labels of this module."""
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
    return Markup(f"{head}{''.join(parts)}</svg>")


def _name(name: str, y: float) -> str:
    """The name of a row, cut where it is too long, with the whole as its title."""
    return f'<text x="0" y="{y + 15}"><title>{escape(name)}</title>{escape(_cut(name))}</text>'


def _cut(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
