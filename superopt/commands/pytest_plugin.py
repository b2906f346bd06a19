"""Rules as tests: `pytest --superopt rules/` collects files of rules, and each rule or statement is a test.

pytest loads this module wherever superopt is installed, so the module imports nothing that takes time.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from superopt.errors import SuperoptError

if TYPE_CHECKING:
    from superopt.certify.rule_files import Proposition
    from verifier.verdict import Verdict

FILES = "superopt_files"
"""Option of the configuration file: patterns of the names of files of rules."""


class NotProvedError(Exception):
    """Raised by the test of a rule that is not proved; `verdict` holds the counterexample or the cause."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.status} {verdict.rule}")
        self.verdict = verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--superopt`, and the option of the configuration file that names files of rules."""
    group = parser.getgroup("superopt", "rules of superopt")
    group.addoption("--superopt", action="store_true", help="Collect files of rules; each rule is a test.")
    parser.addini(FILES, "names of files of rules, as patterns", "args", ["*.rules", "*.txt", "*rules.py"])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> RuleFile | None:
    """Collect a file whose name is that of a file of rules."""
    patterns = parent.config.getini(FILES) if parent.config.getoption("superopt") else ()
    if any(fnmatch.fnmatch(file_path.name, pattern) for pattern in patterns):
        return RuleFile.from_parent(parent, path=file_path)
    return None


class RuleFile(pytest.File):
    """A file of rules and statements."""

    def collect(self) -> Iterator[RuleItem]:
        """Yield a test for each rule and statement.

        Raises:
            CollectError: the file cannot be read, or there is none in it.
        """
        from superopt.certify import rule_files  # late: pytest loads this module wherever it runs

        try:
            rules = rule_files.chosen_rules(rule_files.propositions(os.path.relpath(self.path)))
        except SuperoptError as error:
            raise self.CollectError(str(error)) from error
        for proposition in rules:
            yield RuleItem.from_parent(self, name=proposition.name, proposition=proposition)


class RuleItem(pytest.Item):
    """The test that a rule or statement is proved."""

    def __init__(self, *, proposition: Proposition, **given: Any) -> None:
        super().__init__(**given)
        self.proposition = proposition

    def runtest(self) -> None:
        """Judge the rule.

        Raises:
            NotProvedError: it is not proved.
        """
        verdict = self.proposition.judged()
        if not verdict.proved:
            raise NotProvedError(verdict)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the counterexample or the cause, in the names of the rule."""
        if isinstance(excinfo.value, NotProvedError):
            return excinfo.value.verdict.told()
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the file, the line from 0 on, and the name of the rule."""
        return self.path, int(self.proposition.where.rpartition(":")[2]) - 1, self.name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why XLA did not evaluate the rules that are proved, where it did not."""
    reports = terminalreporter.getreports("passed")
    if terminalreporter.config.getoption("superopt") and reports:
        from superopt.certify.rule_files import without_xla  # late: as above

        if why := without_xla():
            terminalreporter.write_line(f"XLA did not evaluate what is proved: {why}")
