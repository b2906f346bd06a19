"""Certificates: what was proved, by what, under a key that changes with anything that the proof depends on.

    key = SHA-256 of (canonical rule text, direction, denotation version, prover version, Z3 version)

The denotation version is a digest of the sources that say what rules mean, the prover version a digest of this package,
so a certificate made by other code has another key and the rule is proved again.  A ledger is any table of JSON objects
(`superopt.store.Store`, or a dict); an entry is believed only when it is complete and carries the key it is kept under.
Only PROVED verdicts are kept: what is not proved is tried again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from rewrites import named
from rewrites.direction import reverse
from rewrites.show import equation, rule_key
from rewrites.term import Rule
from superopt.errors import VerificationError
from verifier.check import check
from verifier.solver import z3
from verifier.verdict import PROVED, REFUTED, UNKNOWN, UNSUPPORTED, Domain, Verdict

TABLE = "certificates"


class Table(Protocol):
    """Where certificates are kept: `superopt.store.Store` has this shape."""

    def get(self, table: str, key: str) -> Mapping[str, Any] | None:
        """The object under a key, or None."""
        ...

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep an object under a key."""
        ...


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof on record.

    Attributes:
        key: content key, see the module.
        rule, direction: what was proved.
        equation: the rule in index notation, for people.
        exactness: exact, real or range.
        ranks: many-axis role -> "any" or the highest rank proved.
        dtypes, assumptions, sizes: see `verifier.verdict.Domain`.
        tiers: by which tiers it was proved.
        obligations, queries: proof obligations, questions to the solver.
        milliseconds: of the proof.
        versions: denotation, prover and solver.
    """

    key: str
    rule: str
    direction: str
    equation: str
    exactness: str
    ranks: Mapping[str, str]
    dtypes: tuple[str, ...]
    assumptions: tuple[str, ...]
    sizes: Mapping[str, int]
    tiers: tuple[str, ...]
    obligations: int
    queries: int
    milliseconds: float
    versions: Mapping[str, str]


@functools.cache
def versions() -> Mapping[str, str]:
    """Digests of the denotation of rules and of the prover, and the solver's version."""
    here = Path(__file__).parent
    language = Path(named.__file__).parent
    texts = ("term", "names", "kinds", "parse", "parse_terms", "parse_roles", "direction", "named")
    meaning = (here / "sem.py", here / "terms.py", *(language / f"{name}.py" for name in texts))
    return {
        "denotation": _digest(meaning),
        "prover": _digest(sorted(here.glob("*.py"))),
        "z3": z3.get_version_string(),
    }


def _digest(files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def certificate_key(rule: Rule, direction: str = "forward") -> str:
    """The key of a rule's certificate under the present versions."""
    parts = [rule_key(rule), direction, *(f"{k}={v}" for k, v in sorted(versions().items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class Ledger:
    """Certificates in a table, or in memory when there is none."""

    def __init__(self, table: Table | None = None) -> None:
        self._table = table
        self._memory: dict[str, Certificate] = {}

    def get(self, rule: Rule, direction: str = "forward") -> Certificate | None:
        """The certificate of a rule, or None: absent, incomplete, or made for something else."""
        key = certificate_key(rule, direction)
        if key in self._memory:
            return self._memory[key]
        stored = self._table.get(TABLE, key) if self._table is not None else None
        made = None if stored is None else _decode(stored, key, direction)
        if made is not None:
            self._memory[key] = made
        return made

    def put(self, certificate: Certificate) -> None:
        """Keep a certificate."""
        self._memory[certificate.key] = certificate
        if self._table is not None:
            self._table.put(TABLE, certificate.key, json.loads(json.dumps(asdict(certificate))))


def _decode(stored: Mapping[str, Any], key: str, direction: str) -> Certificate | None:
    if set(stored) != {f.name for f in fields(Certificate)}:
        return None
    if stored["key"] != key or stored["direction"] != direction or stored["versions"] != dict(versions()):
        return None
    lists = {name: tuple(stored[name]) for name in ("dtypes", "assumptions", "tiers")}
    values: dict[str, Any] = {**stored, **lists}
    return Certificate(**values)


def certify(rule: Rule, verdict: Verdict) -> Certificate:
    """The certificate of a PROVED verdict.

    Raises:
        VerificationError: the verdict is another.
    """
    if verdict.domain is None or not verdict.proved:
        raise VerificationError(f"{rule.name} is {verdict.status}, it has no certificate")
    domain = verdict.domain
    return Certificate(
        key=certificate_key(rule, verdict.direction),
        rule=rule.name,
        direction=verdict.direction,
        equation=equation(rule),
        exactness=domain.exactness,
        ranks=dict(domain.ranks),
        dtypes=domain.dtypes,
        assumptions=domain.assumptions,
        sizes=dict(domain.sizes),
        tiers=verdict.tiers,
        obligations=verdict.obligations,
        queries=verdict.queries,
        milliseconds=round(verdict.seconds * 1e3, 3),
        versions=dict(versions()),
    )


def _from_certificate(rule: Rule, c: Certificate) -> Verdict:
    domain = Domain(c.exactness, tuple(c.ranks.items()), c.dtypes, c.assumptions, tuple(c.sizes.items()))
    return Verdict(
        rule=rule.name,
        key=rule_key(rule),
        where=rule.where,
        direction=c.direction,
        status=PROVED,
        domain=domain,
        tiers=c.tiers,
        obligations=c.obligations,
        queries=c.queries,
        seconds=c.milliseconds / 1e3,
        cached=True,
    )


def verify_rules(rules: Sequence[Rule], ledger: Ledger | None = None, direction: str = "forward") -> list[Verdict]:
    """The verdict of each rule in one direction; without a ledger, from scratch."""
    return [_verify(rule, ledger, direction) for rule in rules]


def _verify(rule: Rule, ledger: Ledger | None, direction: str) -> Verdict:
    known = ledger.get(rule, direction) if ledger is not None else None
    if known is not None:
        return _from_certificate(rule, known)
    verdict = check(rule, direction)
    if ledger is not None and verdict.proved:
        ledger.put(certify(rule, verdict))
    return verdict


def require_proved(
    rules: Sequence[Rule],
    ledger: Ledger | None = None,
    *,
    strict: bool = False,
    backward: bool = False,
) -> tuple[tuple[Rule, ...], dict[str, Certificate]]:
    """The rules that are proved, and their certificates by rule name.

    With `backward`, each usable backward reading that is proved follows as a rule of its own.

    Raises:
        VerificationError: `strict`, and a rule is not proved; the message holds its verdict.
    """
    kept: list[Rule] = []
    certificates: dict[str, Certificate] = {}
    ledger = ledger or Ledger()
    for rule in rules:
        verdict = _verify(rule, ledger, "forward")
        if not verdict.proved:
            if strict:
                raise VerificationError(str(verdict), hint="a rule is used only when it is proved for all sizes")
            continue
        readings = [(rule, "forward")]
        reversed_rule = reverse(rule) if backward else None
        if reversed_rule is not None and _verify(rule, ledger, "backward").proved:
            readings.append((reversed_rule, "backward"))
        for reading, direction in readings:
            found = ledger.get(rule, direction)
            if found is not None:
                kept.append(reading)
                certificates[reading.name] = found
    return tuple(kept), certificates


def summary(verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    """What `superopt verify --json` prints: totals and one row per rule."""
    count = {status: sum(v.status == status for v in verdicts) for status in (PROVED, REFUTED, UNKNOWN, UNSUPPORTED)}
    times = sorted(v.seconds for v in verdicts)
    return {
        "rules": len(verdicts),
        "proved": count[PROVED],
        "refuted": count[REFUTED],
        "unknown": count[UNKNOWN],
        "unsupported": count[UNSUPPORTED],
        "seconds": seconds,
        "median_ms": times[len(times) // 2] * 1e3 if times else 0.0,
        "versions": dict(versions()),
        "rows": [_row(v) for v in verdicts],
    }


def _row(v: Verdict) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": v.rule, "direction": v.direction, "status": v.status, "ms": v.seconds * 1e3}
    row |= {"obligations": v.obligations, "queries": v.queries, "tiers": list(v.tiers), "cached": v.cached}
    if v.domain is not None:
        row |= {"exactness": v.domain.exactness, "ranks": dict(v.domain.ranks), "dtypes": list(v.domain.dtypes)}
        row |= {"assumptions": list(v.domain.assumptions), "sizes": dict(v.domain.sizes)}
    if v.counterexample is not None:
        row["counterexample"] = asdict(v.counterexample)
    if v.cause:
        row["cause"] = v.cause
    return row
