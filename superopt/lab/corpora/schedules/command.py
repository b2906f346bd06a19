"""`superopt verify --kernels`: the lemmas behind schedules, right schedules, and wrong ones that must be refuted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from superopt.lab.corpora.schedules.examples import examples
from superopt.lab.corpora.schedules.lemmas import lemmas
from superopt.lab.corpora.schedules.planted import planted
from verifier.rules.process import Prover
from verifier.schedules.check import check_schedule
from verifier.schedules.verdict import CheckLimits
from verifier.verdict import PROVED, REFUTED


def verify_kernels(names: Sequence[str] = (), limits: CheckLimits | None = None) -> tuple[dict[str, Any], str]:
    """Check lemmas and schedules; return summary and text.

    Args:
        names: only lemmas and schedules whose name contains one of these.
        limits: limits of each check.
    """
    start = time.perf_counter()
    rows = [*_lemmas(names), *_schedules(names, limits), *_planted(names, limits)]
    kinds = ("lemma", "schedule", "wrong schedule")
    counts = {
        kind: [sum(r["kind"] == kind and r["ok"] for r in rows), sum(r["kind"] == kind for r in rows)] for kind in kinds
    }
    times = sorted(r["ms"] for r in rows if r["kind"] == "schedule")
    summary: dict[str, Any] = {
        "lemmas": counts["lemma"],
        "schedules": counts["schedule"],
        "wrong": counts["wrong schedule"],
        "ok": bool(rows) and all(r["ok"] for r in rows),
        "median_ms": times[len(times) // 2] if times else 0.0,
        "seconds": time.perf_counter() - start,
        "rows": rows,
    }
    return summary, _text(summary)


def _wanted(name: str, names: Sequence[str]) -> bool:
    return not names or any(n in name for n in names)


def _lemmas(names: Sequence[str]) -> list[dict[str, Any]]:
    wanted = [x.name for x in lemmas() if _wanted(x.name, names)]
    if not wanted:
        return []
    with Prover() as prover:
        found = prover.call("superopt.lab.corpora.schedules.lemmas:prove_all", wanted)
    return [
        {"kind": "lemma", "name": r["name"], "status": r["status"], "ok": r["status"] == PROVED, "ms": r["ms"],
         "says": r["says"]}
        for r in found
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
            found = next((f for f in v.findings if f.status == REFUTED and f.obligation == p.obligation), None)
            ok = found is not None and found.witness is not None
            row = {"kind": "wrong schedule", "name": p.name, "status": v.status, "ok": ok, "ms": v.seconds * 1e3}
            rows.append({**row, "says": str(found.witness) if found is not None else v.cause})
    return rows


def _text(summary: dict[str, Any]) -> str:
    lines: list[str] = []
    for r in summary["rows"]:
        mark = " " if r["ok"] else "!"
        lines.append(f"{mark} {r['status']:8s} {r['ms']:7.1f} ms  {r['kind']} {r['name']}: {r['says']}")
    said = (("lemmas", "lemmas proved"), ("schedules", "schedules proved"), ("wrong", "wrong schedules refuted"))
    parts = [", ".join(f"{summary[k][0]} of {summary[k][1]} {what}" for k, what in said)]
    parts.append(f"{summary['median_ms']:.1f} ms a schedule (median), {summary['seconds']:.1f} s in all")
    return "\n".join([*lines, "; ".join(parts)])
