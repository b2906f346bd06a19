"""Checks of schedules: the lemmas behind them, right schedules, and wrong ones that must be refuted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from superopt.lab.corpora.schedules.examples import examples
from superopt.lab.corpora.schedules.lemmas import lemmas
from superopt.lab.corpora.schedules.planted import planted
from verifier.rules.process import Prover
from verifier.schedules.check import check_schedule
from verifier.schedules.verdict import CheckLimits
from verifier.verdict import PROVED, REFUTED


def rows_of(names: Sequence[str] = (), limits: CheckLimits | None = None) -> list[dict[str, Any]]:
    """Check lemmas and schedules; return a row for each, which is `ok` where it is proved, or refuted if wrong.

    Args:
        names: only lemmas and schedules whose name contains one of these.
        limits: limits of each check.
    """
    return [*_lemmas(names), *_schedules(names, limits), *_planted(names, limits)]


def _wanted(name: str, names: Sequence[str]) -> bool:
    return not names or any(n in name for n in names)


def _lemmas(names: Sequence[str]) -> list[dict[str, Any]]:
    wanted = [x.name for x in lemmas() if _wanted(x.name, names)]
    if not wanted:
        return []
    with Prover() as prover:
        proved = prover.call("superopt.lab.corpora.schedules.lemmas:prove_all", wanted)
    return [
        {"kind": "lemma", "name": r["name"], "status": r["status"], "ok": r["status"] == PROVED, "ms": r["ms"],
         "says": r["says"]}
        for r in proved
    ]  # fmt: skip


def _schedules(names: Sequence[str], limits: CheckLimits | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for e in examples():
        if _wanted(e.name, names):
            v = check_schedule(e.before, e.after, limits)
            obligations = ", ".join(f"{k} {n}" for k, n in v.count().items() if n)
            says = f"{v.exactness}: {obligations}" if v.proved else v.cause
            row = {"kind": "schedule", "name": e.name, "status": v.status, "ok": v.proved, "ms": v.seconds * 1e3}
            rows.append({**row, "says": says})
    return rows


def _planted(names: Sequence[str], limits: CheckLimits | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for p in planted():
        if _wanted(p.name, names):
            v = check_schedule(p.before, p.after, limits, p.aliases)
            finding = next((f for f in v.findings if f.status == REFUTED and f.obligation == p.obligation), None)
            ok = finding is not None and finding.witness is not None
            row = {"kind": "wrong schedule", "name": p.name, "status": v.status, "ok": ok, "ms": v.seconds * 1e3}
            rows.append({**row, "says": str(finding.witness) if finding is not None else v.cause})
    return rows
