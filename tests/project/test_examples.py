"""The programs of the examples folder run as they stand, and so does every rule that the documentation shows."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import superopt

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py"))


def rule_blocks(page: str) -> list[str]:
    """The code blocks marked `rule` of a page."""
    return re.findall(r"```rule\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / name))["main"]()
    assert "proof" in capsys.readouterr().out, "each prints a report"


def test_there_are_examples_and_rules_to_run() -> None:
    assert {"optimize_jax.py", "optimize_onnx.py", "own_rule.py"} <= set(EXAMPLES)
    assert len(rule_blocks("rules.md")) >= 10


@pytest.mark.parametrize("text", rule_blocks("rules.md"), ids=lambda text: text.partition(":")[0])
def test_rules_of_the_documentation_are_proved(text: str) -> None:
    verdict = superopt.verify(text)
    assert verdict.status == "PROVED", str(verdict)
