"""Verdicts on rules for continuous integration: JUnit XML, and annotations of GitHub.

A rule is proved (the test passes), refuted (a failure, with its counterexample), or without a verdict (an error, with
the cause).  Places are the file and line of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from superopt.errors import printable
from verifier.verdict import PROVED, REFUTED

if TYPE_CHECKING:
    from superopt.certify.rule_files import Verified
    from verifier.verdict import Verdict


def junit(found: Verified) -> str:
    """Return the verdicts as JUnit XML: a suite for each file, a test case for each rule."""
    root = ElementTree.Element("testsuites", _totals(found.verdicts), name="superopt verify")
    for file, verdicts in groupby(found.verdicts, key=lambda verdict: _place(verdict)[0]):
        members = list(verdicts)
        suite = ElementTree.SubElement(root, "testsuite", _totals(members), name=file)
        for v in members:
            line = _place(v)[1]
            case = ElementTree.SubElement(
                suite, "testcase", name=printable(v.rule), classname=file, file=file, line=line, time=f"{v.seconds:.3f}"
            )
            if v.status != PROVED:
                kind = "failure" if v.status == REFUTED else "error"
                told = ElementTree.SubElement(case, kind, type=v.status, message=_headline(v))
                told.text = printable(v.told())
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True).decode() + "\n"


def github(found: Verified) -> str:
    """Return a line for each rule that is not proved: an error where it is refuted, else a warning."""
    lines: list[str] = []
    for v in found.verdicts:
        if v.status != PROVED:
            file, line = _place(v)
            kind = "error" if v.status == REFUTED else "warning"
            place = f"file={_escaped(file, ':,')},line={line},title={_escaped(_headline(v), ':,')}"
            lines.append(f"::{kind} {place}::{_escaped(str(v))}")
    return "\n".join(lines)


def _totals(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Return the attributes of a suite that count its cases."""
    all_of = list(verdicts)
    refuted, proved = (sum(v.status == status for v in all_of) for status in (REFUTED, PROVED))
    return {
        "tests": str(len(all_of)), "failures": str(refuted), "errors": str(len(all_of) - refuted - proved),
        "time": f"{sum(v.seconds for v in all_of):.3f}",
    }  # fmt: skip


def _place(verdict: Verdict) -> tuple[str, str]:
    """Return the file and the line of a rule."""
    file, _, line = verdict.where.rpartition(":")
    return printable(file), line


def _headline(verdict: Verdict) -> str:
    """Return the status and the name of a rule."""
    return printable(f"{verdict.status} {verdict.rule}")


def _escaped(text: str, also: str = "") -> str:
    """Return a text as workflow commands of GitHub hold it; `also` are further characters that end a property."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{also}" else c for c in printable(text))
