"""The status line of a running optimisation, and plain lines where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from superopt.candidates.candidate import original_candidate
from superopt.candidates.ledger import RunLedger, Timed
from superopt.ir.graph import Graph, make_input, mk
from superopt.machine.deadline import Deadline
from superopt.pipeline.session import Clock
from superopt.report import progress
from superopt.report.progress import StatusLine, best_line, watching

X = make_input("x", (4,))
ONE = original_candidate(Graph((X,), (mk("exp", X),)))


def test_the_best_so_far_is_read_off_the_ledger() -> None:
    ledger = RunLedger()
    assert best_line(ledger) == "nothing timed yet"
    ledger.add(Timed(baseline_s=(3.0, 3.0), samples_s=((ONE, (2.0, 2.0)), (ONE, ()))))
    ledger.add(Timed(baseline=ONE, baseline_s=(9.0,), samples_s=((ONE, (1.0,)),)))
    assert best_line(ledger) == "best so far 1.50x", "rounds beside another baseline say nothing of the original"
    ledger.add(Timed(baseline_s=(3.0,), samples_s=((ONE, (1.0,)),)))
    assert best_line(ledger) == "best so far 3.00x"


def test_the_status_line_has_stage_best_and_time_left() -> None:
    status = StatusLine()
    clock = Clock(status)
    clock.watched(RunLedger(), Deadline.within(90.0))
    with clock.stage("explore"):
        clock.say("round 2\x1b[31m")
        line = str(status)
    assert line.startswith("explore · nothing timed yet · ")
    left, _, last = line.removeprefix("explore · nothing timed yet · ").partition(" s left · ")
    assert 80.0 < float(left) <= 90.0
    assert last == "round 2?[31m", "no control character reaches the terminal"
    out = io.StringIO()
    Console(file=out, width=60).print(status)
    assert "explore" in out.getvalue()
    clock.watched(RunLedger(), Deadline())
    assert "left" not in str(status), "no clock ends the work"


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_plain_where_there_is_no_terminal(monkeypatch, terminal) -> None:
    lines: list[str] = []

    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr("sys.stderr", Stream())
    with watching(lines.append) as say:
        say("import: 0.1 s")
    assert isinstance(say, StatusLine) == terminal
    assert lines == ([] if terminal else ["import: 0.1 s"])
    with watching(lines.append, quiet=True) as say:
        assert not isinstance(say, progress.StatusLine)
