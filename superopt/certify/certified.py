"""Certificates of rules, looked at again: every question to the solver that a proof rests on is replayed.

Rules without a certificate under the present denotations, prover and solver are proved first, and kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rewrites.library import load
from superopt.certify.rule_files import chosen_rules, rules_of_files
from superopt.store import Store as Opened

if TYPE_CHECKING:
    from superopt.store import Store


def recheck_certificates(
    files: Sequence[str] = (), *, library: bool = True, names: Sequence[str] = (), store: Store | None = None
) -> tuple[dict[str, Any], str]:
    """Replay the questions behind the certificates of the library or of some files of rules: summary and text.

    `sound` in the summary says that every rule has a certificate with its questions and that no solver contradicts one.

    Raises:
        InputError: no rule has such a name, or a file cannot be read.
    """
    from verifier.record.ledger import Ledger, require_proved  # late: the prover takes a while to load
    from verifier.record.recheck import recheck  # late: as above

    rules = chosen_rules([*(load() if library else ()), *rules_of_files(files)], names)
    begin = time.perf_counter()
    opened = Opened() if store is None else store
    try:
        ledger = Ledger(opened)
        kept, certificates = require_proved(rules, ledger)
        told = recheck([(c, ledger.asked(c)) for c in certificates.values()])
    finally:
        if store is None:
            opened.close()
    open_rules = sorted({r.name for r in rules} - {r.name for r in kept})
    sound = not open_rules and not told["disagreements"] and not told["without_queries"]
    data = {**told, "rules": len(rules), "not_proved": open_rules, "sound": sound}
    data["seconds"] = time.perf_counter() - begin
    return data, _text(data)


def _text(data: dict[str, Any]) -> str:
    lines = [f"{data['certificates']} certificates of {data['rules']} rules, {data['queries']} questions"]
    for name, counts in data["solvers"].items():
        figures = ", ".join(f"{counts[k]} {k}" for k in ("agree", "disagree", "unknown"))
        lines.append(f"  {name} {data['versions'][name]}: {figures}")
    if "cvc5" not in data["solvers"]:
        lines.append("  cvc5 is not installed: pip install 'superopt[cvc5]'")
    lines += [
        f"  DISAGREE {d['rule']}: kept {d['kept']}, {d['solver']} says {d['says']}" for d in data["disagreements"]
    ]
    lines += [f"  no questions on record: {name}" for name in data["without_queries"]]
    lines += [f"  not proved: {name}" for name in data["not_proved"]]
    lines.append(f"{'sound' if data['sound'] else 'NOT SOUND'}, {data['seconds']:.1f} s")
    return "\n".join(lines)
