"""The report as one offline page: verdict strip, timings, rewrites, numeric check, both programs.

No network request, everything escaped by the template engine; drawings are inline SVG made from plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from superopt.report.text import proof_line
from superopt.result import Report

_WIDTH = 640
_ROW = 22


def to_html(report: Report) -> str:
    """The report as a complete HTML document."""
    source = resources.files("superopt.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = _plain
    return environment.from_string(source).render(
        report=report,
        proof=proof_line(report).strip().removeprefix("proof").strip(),
        samples=Markup(_samples_svg(report)),  # numbers and our own labels only; names are escaped below
        stages=Markup(_stages_svg(report)),
    )


def _plain(value: Any) -> str:
    """Nested plain data as words, not as Python."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _escape(text: str) -> str:
    return str(Markup.escape(text))


def _samples_svg(report: Report) -> str:
    """Every timing sample as a dot on one line per program."""
    rows = [(name, values) for name, values in report.samples_ms.items() if values]
    if not rows:
        return ""
    low = min(min(v) for _, v in rows) * 0.95
    high = max(max(v) for _, v in rows) * 1.05 or 1.0
    scale = (_WIDTH - 180) / max(high - low, 1e-12)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(rows) + 26}" role="img" aria-label="timing samples">']
    for i, (name, values) in enumerate(rows):
        y = _ROW * i + 16
        parts.append(f'<text x="0" y="{y + 4}">{_escape(name)}</text>')
        parts.append(f'<line x1="160" x2="{_WIDTH - 10}" y1="{y}" y2="{y}" class="axis"/>')
        parts += [f'<circle cx="{160 + (v - low) * scale:.1f}" cy="{y}" r="3"/>' for v in values]
    y = _ROW * len(rows) + 18
    parts.append(f'<text x="160" y="{y}" class="small">{low:.3g} ms</text>')
    parts.append(f'<text x="{_WIDTH - 10}" y="{y}" text-anchor="end" class="small">{high:.3g} ms</text></svg>')
    return "".join(parts)


def _stages_svg(report: Report) -> str:
    """A waterfall of the stages."""
    total = max(report.seconds, 1e-9)
    scale = (_WIDTH - 240) / total
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(report.stages)}" role="img" aria-label="stages">']
    start = 0.0
    for i, stage in enumerate(report.stages):
        y = _ROW * i
        parts.append(f'<text x="0" y="{y + 15}">{_escape(stage.name)}</text>')
        width = max(stage.seconds * scale, 1.0)
        parts.append(f'<rect x="{160 + start * scale:.1f}" y="{y + 4}" width="{width:.1f}" height="14"/>')
        parts.append(
            f'<text x="{166 + start * scale + width:.1f}" y="{y + 15}" class="small">{stage.seconds:.2f} s</text>'
        )
        start += stage.seconds
    return "".join(parts) + "</svg>"
