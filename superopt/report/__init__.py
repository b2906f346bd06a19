"""Rendering of reports: text for a terminal, one offline HTML page, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from superopt.errors import UsageError
from superopt.report.data import Report
from superopt.report.summary import to_summary
from superopt.report.text import to_text

__all__ = ["check_report_path", "json_text", "to_frame", "to_summary", "to_text", "write_report"]

ENDINGS = (".html", ".htm", ".json", ".txt", "")


def check_report_path(path: str | Path) -> Path:
    """Return the path if a report can be written there; called before the work that the report is about.

    Raises:
        UsageError: the ending is not known, or the folder does not exist.
    """
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise UsageError(f"cannot write a report as {target.suffix!r}", hint="use .html, .json or .txt")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", hint="create it first")
    return target


def write_report(report: Report, path: str | Path) -> Path:
    """Write the report as `.json`, `.html` or `.txt`, chosen by the ending.

    Raises:
        UsageError: another ending, or a folder that does not exist.
    """
    target = check_report_path(path)
    if target.suffix == ".json":
        text = json_text(report.to_json(), indent=1) + "\n"
    elif target.suffix in (".html", ".htm"):
        text = _page(report)
    else:
        text = to_text(report) + "\n"
    target.write_text(text, encoding="utf-8")
    return target


def to_frame(report: Report) -> str:
    """The HTML page of the report, embedded in a frame."""
    return f'<iframe srcdoc="{escape(_page(report))}" style="width: 100%; height: 40em; border: 0"></iframe>'


def _page(report: Report) -> str:
    from superopt.report.html import to_html  # late: jinja2 is only needed for the page

    return to_html(report)


def json_text(data: Mapping[str, Any], *, indent: int | None = None) -> str:
    """Data as strict JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_strict(data), indent=indent, default=str, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    return value
