"""Rendering of reports: text for a terminal, one offline HTML page, JSON."""

from __future__ import annotations

import json
from pathlib import Path

from superopt.errors import UsageError
from superopt.report.text import to_text
from superopt.result import Report

__all__ = ["to_text", "write_report"]


def write_report(report: Report, path: str | Path) -> Path:
    """Write the report as `.json`, `.html` or `.txt`, chosen by the ending.

    Raises:
        UsageError: another ending.
    """
    target = Path(path)
    if target.suffix == ".json":
        text = json.dumps(report.to_json(), indent=1)
    elif target.suffix in (".html", ".htm"):
        from superopt.report.html import to_html  # late: jinja2 is only needed for the page

        text = to_html(report)
    elif target.suffix in (".txt", ""):
        text = to_text(report) + "\n"
    else:
        raise UsageError(f"cannot write a report as {target.suffix!r}", hint="use .html, .json or .txt")
    target.write_text(text, encoding="utf-8")
    return target
