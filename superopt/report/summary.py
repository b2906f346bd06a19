"""The report in at most 15 lines: what was gained over which baseline, by what, how sure, how proved, what next."""

from __future__ import annotations

import math

from superopt.report.data import Report
from superopt.report.figures import ms, percent, ratio
from superopt.report.text import (
    checked_line,
    folded,
    made_line,
    medians_line,
    peer_line,
    predicted_ms,
    proof_line,
    step_line,
    unmeasured_line,
)
from superopt.report.verdicts import IN_DOUBT

MOST = 15
"""Most lines of a summary."""
_QUIET = 0.05  # noise floor above which another run on a quiet machine is advised
_STEPS = 3


def to_summary(report: Report, most: int = MOST) -> str:
    """Return the summary for a terminal, in at most so many lines."""
    lines = folded(f"{report.program}: {report.verdict}", 2)
    lines += folded(f"  gained  {gained_line(report)}", 2)
    lines += [piece for line in _by_what(report) for piece in folded(f"  by      {line}", 2)]
    lines += folded(f"  sure    {sure_line(report)}", 2)
    lines += folded(f"  proved  {proof_line(report)}", 2)
    if report.numerics is not None:
        lines += folded(f"  checked {checked_line(report)}", 1)
    lines += [piece for peer in report.peers[:1] for piece in folded(f"  beside  {peer_line(peer)}", 1)]
    if report.notes:
        first, *others = report.notes
        more = f"{len(others)} more with -v: " if others else ""
        lines += folded(f"  note    {more}{first}", 1)
    return "\n".join([*lines[: most - 1], *folded(f"  next    {next_line(report)}", 1)])


def gained_line(report: Report) -> str:
    """Return the line on the gain: the speed-up with its baseline, and the times."""
    if report.speedup.basis == "predicted":
        before, after = predicted_ms(report)
        return f"{ratio(report.speedup.ratio)} over {report.baseline}, predicted: {ms(before)} -> {ms(after)}"
    if report.speedup.basis != "measured":
        return f"nothing was timed against {report.baseline}"
    times = f"{ms(report.measured.before_ms)} -> {ms(report.measured.after_ms)}, medians of a call"
    return f"{report.speedup} over {report.baseline}{medians_line(report)}: {times}"


def _by_what(report: Report) -> list[str]:
    steps = report.steps
    if not steps:
        return [unmeasured_line(report)]
    lines = [step_line(step) for step in steps[:_STEPS]]
    return [*lines[:-1], f"{lines[-1]}, and {len(steps) - _STEPS} more steps"] if len(steps) > _STEPS else lines


def sure_line(report: Report) -> str:
    """Return the line on the certainty of the gain: rounds, interval, noise floor, machine and date."""
    rounds = len(report.measured.samples_ms.get("returned", ()))
    noise = report.measured.noise_floor
    parts = [
        f"95 % interval of {rounds} rounds" if rounds else "",
        "" if noise is None or not math.isfinite(noise) else f"noise floor {percent(noise)}",
        made_line(report, versions=False),
    ]
    return "; ".join(part for part in parts if part) or "nothing was timed"


def next_line(report: Report) -> str:
    """Return the line on what the reader may do next."""
    noise = report.measured.noise_floor
    if IN_DOUBT in report.notes or (noise is not None and _QUIET < noise < math.inf):
        return "run it again on a quiet machine: the noise hides smaller gains; -v shows the details"
    if report.lost:
        return "see the notes on what was lost with -v, and run it again"
    if report.original_returned:
        return "a longer --budget may find more; -v says what was tried and why it was not taken"
    return "--out FILE saves the program, --report FILE.html draws it, -v shows the details"
