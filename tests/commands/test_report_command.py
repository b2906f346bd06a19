"""`superopt report`: the report of a saved program, made again from its file alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import superopt
from superopt.commands.main import main_with
from superopt.files.reading import Archive, ArchiveWriter
from superopt.report import to_summary, to_text
from superopt.report.html import to_html


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[superopt.Optimized, Path]:
    """An optimised program, and its file."""

    def layer(w, x):
        return jnp.tanh(x @ jnp.exp(w))

    given = np.ones((16, 16), np.float32), np.ones((4, 16), np.float32)
    fast = superopt.optimize(layer, *given, frozen=0, search=False, store=False)
    return fast, fast.save(tmp_path_factory.mktemp("saved") / "layer.superopt")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main_with(args)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_report_is_that_of_the_run(capsys, made, monkeypatch) -> None:
    fast, file = made
    monkeypatch.setattr("superopt.returned.loaded.Loaded", None)  # nothing is built to read a report
    status, text, _ = run(capsys, "report", str(file))
    assert (status, text) == (0, f"{to_summary(fast.report)}\n  report  {file.with_suffix('.html')}\n")
    assert file.with_suffix(".html").read_text() == to_html(fast.report)
    status, text, _ = run(capsys, "report", str(file), "-v", "--out", str(file.with_name("r.json")))
    assert text.startswith(to_text(fast.report))
    assert "command superopt.optimize(made.layer, ..., frozen=0, search=False)" in text
    status, text, _ = run(capsys, "report", str(file), "--json")
    assert json.loads(text) == json.loads(file.with_name("r.json").read_text())


@pytest.mark.parametrize(
    "wrong",
    [
        {"drawing": {"before": [{"id": "<b>", "kernel": 0, "reads": [], "frozen": [], "op": "add"}], "after": []}},
        {"stages": 7},
        {"speedup": {}},
        {"samples_ms": {"original": ["<b>"]}},
    ],
)
def test_a_wrong_report_is_one_line(capsys, made, tmp_path, wrong) -> None:
    other = tmp_path / "other.superopt"
    with open(made[1], "rb") as handle:
        meta = Archive(handle, lambda _: True).json("meta.json")
    meta["report"] |= wrong
    with ArchiveWriter(other) as out:
        out.json("meta.json", meta)
    status, text, err = run(capsys, "report", str(other))
    assert (status, text) == (2, "")
    assert re.fullmatch(r"superopt: \[SO200\] the report in .* cannot be read.*\n  hint: .*\n", err), err
    assert not other.with_suffix(".html").exists()
