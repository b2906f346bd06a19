"""The `superopt discover` command: settings from text, the run, its summary as JSON and as text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from rewrites.language.parse import parse
from rewrites.library import load
from superopt.errors import UsageError
from superopt.lab.discovery.algebra import BASE
from superopt.lab.discovery.bilinear import candidate_texts
from superopt.lab.discovery.discover import DiscoverySettings, Say, check_ops, discover
from superopt.lab.discovery.implied import equations
from superopt.lab.discovery.powers import discover_powers
from superopt.lab.discovery.taso import covered, substitutions
from superopt.machine.budget import parse_budget
from superopt.workshop.scheduler import Workers
from verifier.rules.check import check


def run(
    *,
    ops: str | None,
    size: int,
    workers: Workers,
    budget: str,
    library: bool,
    coverage: bool,
    folder: str | None,
    say: Say,
) -> tuple[dict[str, Any], str]:
    """Run a discovery; return its summary and text.

    Raises:
        UsageError: there is no such op, or the budget is not a time.
    """
    if ops == "bilinear":
        return _run_bilinear(say)
    if ops == "powers":
        return _run_powers(size, library, say)
    names = check_ops([name.strip() for name in ops.split(",")] if ops else BASE)
    seconds = parse_budget(budget).seconds
    if seconds is None:
        raise UsageError("the budget of a discovery is a time", hint='write "600s" or "10min"')
    settings = DiscoverySettings(names, size, seconds, library)
    outcome = discover(settings, Path(folder) if folder else None, say, workers)
    summary: dict[str, Any] = {
        **outcome.summary,
        "texts": [*outcome.rules, *outcome.merges],
        "exactness": outcome.exactness,
    }
    lines = [*outcome.rules, *outcome.merges, ""]
    if coverage:
        summary |= coverage_of(outcome.rules, library)
        lines.append(f"TASO: {summary['taso_implied']} of {summary['taso_substitutions']} substitutions implied")
    state = "all candidates judged" if outcome.done else "budget over, run again to go on"
    lines.append(
        f"{outcome.summary['rules']} rules, {len(outcome.merges)} merging ones"
        f"; {outcome.summary.get('terms', 0)} terms, {outcome.summary.get('pairs', 0)} pairs,"
        f" {outcome.summary['judged']} judged at {outcome.summary['discovery_pairs_per_s']:.0f}/s per core; {state}"
    )
    return summary, "\n".join(lines)


def coverage_of(texts: tuple[str, ...], library: bool) -> dict[str, Any]:
    """Number of substitutions of TASO's generator that these rules imply, with the library or without."""
    known = equations(parse(text, where="discovered") for text in texts)
    rules = (*equations(load() if library else ()), *known)
    listed = substitutions()
    missing = [s.text for s in listed if not covered(s, rules)]
    return {
        "taso_substitutions": len(listed),
        "taso_implied": len(listed) - len(missing),
        "taso_missing": missing,
    }


def _run_bilinear(say: Say) -> tuple[dict[str, Any], str]:
    """Search for convolutions with fewer products and prove their rules; return summary and text."""
    texts: list[str] = []
    rows: list[dict[str, Any]] = []
    for text in candidate_texts():
        verdict = check(parse(text, where="discovered"))
        name = text.partition(":")[0]
        rows.append({"rule": name, "status": verdict.status, "seconds": verdict.seconds})
        say(f"{name}: {verdict.status} in {verdict.seconds:.1f} s")
        if verdict.proved:
            texts.append(text)
    summary: dict[str, Any] = {"texts": texts, "rows": rows, "rules": len(texts)}
    return summary, "\n\n".join([*texts, f"{len(texts)} of {len(rows)} candidates proved"])


def _run_powers(size: int, library: bool, say: Say) -> tuple[dict[str, Any], str]:
    """Enumerate products and roots that are powers and prove their rules; return summary and text."""
    texts, verdicts, implied = discover_powers(size, library, say)
    fates = Counter(v.status for v in verdicts)
    told = ", ".join(f"{n} {status.lower()}" for status, n in sorted(fates.items()))
    summary: dict[str, Any] = {"texts": texts, "rules": len(texts), "implied": implied, **fates}
    return summary, "\n\n".join([*texts, f"{implied + len(verdicts)} candidates: {implied} implied, {told}"])
