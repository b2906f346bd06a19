"""Replay of the solver queries behind certificates: by Z3 again, and by cvc5 where it is installed.

The replayed text is the recorded one, not that of the present prover.  An answer `unknown` is counted separately; two
different answers to one query are a disagreement, which must not happen.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from verifier.equal.solver import z3
from verifier.record.ledger import Certificate
from verifier.rules.process import LimitExceededError, shared
from verifier.verdict import Query

QUERY_SECONDS = 5.0
_ANSWERS = {"sat": "yes", "unsat": "no"}


def solvers() -> dict[str, str]:
    """The solvers that can replay, with their versions."""
    versions = {"z3": z3.get_version_string()}
    if importlib.util.find_spec("cvc5") is not None:
        versions["cvc5"] = str(importlib.import_module("cvc5").__version__)
    return versions


def replay(texts: Sequence[str], milliseconds: int) -> list[dict[str, str]]:
    """Answers (yes, no or unknown) to each query, by solver."""
    names = solvers()
    return [{name: _ASK[name](text, milliseconds) for name in names} for text in texts]


def recheck(
    proofs: Iterable[tuple[Certificate, Sequence[Query] | None]], seconds: float = QUERY_SECONDS
) -> dict[str, Any]:
    """Replay the queries of some certificates.

    Args:
        proofs: certificates with their queries, None where these are missing or damaged.
        seconds: time limit of one query and solver.

    Returns:
        Counts per solver (`agree`, `disagree`, `unknown`), every disagreement with its text, and the rules whose
        certificates have no queries.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in solvers()}
    disagreements: list[dict[str, str]] = []
    without: list[str] = []
    certificates = questions = 0
    for certificate, asked in proofs:
        certificates += 1
        if asked is None:
            without.append(certificate.rule)
            continue
        questions += len(asked)
        for query, answers in zip(asked, _replayed(asked, seconds), strict=True):
            for name, answer in answers.items():
                known = "unknown" not in (answer, query.answer)
                kind = "unknown" if not known else "agree" if answer == query.answer else "disagree"
                counts[name][kind] += 1
                if kind == "disagree":
                    row = {"rule": certificate.rule, "kept": query.answer, "solver": name, "says": answer}
                    disagreements.append({**row, "text": query.text})
    figures = {n: {k: c[k] for k in ("agree", "disagree", "unknown")} for n, c in counts.items()}
    return {
        "certificates": certificates,
        "queries": questions,
        "versions": solvers(),
        "solvers": figures,
        "disagreements": disagreements,
        "without_queries": without,
    }


def _replayed(asked: Sequence[Query], seconds: float) -> list[dict[str, str]]:
    """Answers from the prover's process, which is killed when a solver exceeds its own limit."""
    out: list[dict[str, str]] = []
    asking = partial(shared().call, "verifier.record.recheck:replay", seconds=2 * seconds * _BATCH)
    for start in range(0, len(asked), _BATCH):
        texts = [q.text for q in asked[start : start + _BATCH]]
        try:
            out += asking(texts, int(1e3 * seconds))
        except LimitExceededError:
            for text in texts:  # one of them hangs: ask each by itself
                try:
                    out += asking([text], int(1e3 * seconds))
                except LimitExceededError:
                    out.append(dict.fromkeys(solvers(), "unknown"))
    return out


_BATCH = 16


def _z3(text: str, milliseconds: int) -> str:
    solver = z3.Solver(ctx=z3.Context())
    solver.set("timeout", milliseconds)
    solver.from_string(text)
    return _ANSWERS.get(str(solver.check()), "unknown")


def _cvc5(text: str, milliseconds: int) -> str:
    cvc5: Any = importlib.import_module("cvc5")
    terms = cvc5.TermManager()
    solver, symbols = cvc5.Solver(terms), cvc5.SymbolManager(terms)
    solver.setOption("tlimit-per", str(milliseconds))
    parser = cvc5.InputParser(solver, symbols)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{text}", "query")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said = str(command.invoke(solver, symbols)).strip() or said
    return _ANSWERS.get(said, "unknown")


_ASK = {"z3": _z3, "cvc5": _cvc5}
