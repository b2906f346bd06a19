"""The report as text that fits on a screen: verdict, stages, rewrites that paid, proofs, what was checked.

No line is longer than `WIDTH`: what is too long goes on in further, indented lines.
"""

from __future__ import annotations

import textwrap

from superopt.result import Report

WIDTH = 110
_MOST = 8
_HANGING = " " * 9  # under the text that follows `  before ` and its like


def to_text(report: Report) -> str:
    """The report as lines of at most `WIDTH` characters."""
    lines = [f"{report.program}: {report.verdict}", _times_line(report)]
    stages = "  ".join(f"{s.name} {s.seconds:.1f}s" for s in report.stages)
    lines.append(f"  time   {report.seconds:.1f}s: {stages}")
    if report.growth:
        grown, searched = report.growth, report.search
        lines.append(
            f"  e-graph {grown.get('enodes', 0)} e-nodes in {grown.get('iterations', 0)} iterations"
            f" ({grown.get('stop', '')}); search {searched.get('proposals', 0)} proposals,"
            f" {searched.get('kernels', 0)} distinct kernels; objective {report.objective}"
        )
    lines += _rewrite_lines(report)
    lines.append(proof_line(report))
    if report.numerics is not None:
        n = report.numerics
        text = f"  checked max relative error against the original {n.max_rel_error:.1e}"
        if n.original_vs_f64 is not None and n.optimised_vs_f64 is not None:
            text += f"; against float64: original {n.original_vs_f64:.1e}, returned {n.optimised_vs_f64:.1e}"
        lines.append(text)
    if report.memory:
        frozen, prepared = report.memory.get("frozen_bytes", 0), report.memory.get("prepared_bytes", 0)
        lines.append(f"  weights {frozen / 1e6:.1f} MB given, {prepared / 1e6:.1f} MB kept after preparation")
    if report.opaque_ops:
        ops = ", ".join(f"{k} x{v}" for k, v in sorted(report.opaque_ops.items()))
        lines.append(f"  opaque  kept verbatim, never rewritten: {ops}")
    lines += [f"  note   {note}" for note in report.notes]
    return "\n".join(piece for line in lines for piece in _folded(line))


def proof_line(report: Report) -> str:
    """What was proved of the returned program."""
    if not report.rewrites:
        return f"  proof  nothing was rewritten; {report.rules_proved} proved rules were available"
    steps = sum(r.count for r in report.rewrites)
    exact = sum(1 for r in report.rewrites if r.exactness == "exact")
    return (
        f"  proof  {steps} rewrites by {len(report.rewrites)} rules, each PROVED by Z3 for all sizes"
        f" ({exact} bit-exact, {len(report.rewrites) - exact} over the reals)"
    )


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def _times_line(report: Report) -> str:
    floor = f"   noise floor {report.noise_floor:.1%}" if report.noise_floor is not None else ""
    return f"  before {_ms(report.before_ms)}   after {_ms(report.after_ms)}   speed-up {report.speedup}{floor}"


def _rewrite_lines(report: Report) -> list[str]:
    if not report.rewrites:
        return []
    lines = ["  rewrites in the returned program (predicted gain):"]
    for used in report.rewrites[:_MOST]:
        lines.append(
            f"    {used.count:4d} x {used.rule:28s} {used.predicted_gain_ms:9.3f} ms   {used.exactness:5s}"
            f"  certificate {used.certificate[:12]}"
        )
    if len(report.rewrites) > _MOST:
        lines.append(f"    and {len(report.rewrites) - _MOST} more rules")
    return lines


def _folded(line: str) -> list[str]:
    """The line in pieces of at most `WIDTH`; control characters would reach the terminal and are shown as `?`."""
    clean = "".join(c if c.isprintable() else "?" for c in line.replace("\n", " "))
    if len(clean) <= WIDTH:
        return [clean]
    indent = clean[: len(clean) - len(clean.lstrip())]
    wrapped = textwrap.wrap(clean.strip(), WIDTH, initial_indent=indent, subsequent_indent=_HANGING)
    return wrapped or [clean[:WIDTH]]
