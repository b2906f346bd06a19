"""Certificates: records of proofs, under a key that changes with everything on which the proof depends.

    key = SHA-256 of (canonical rule text with its premises, direction, denotations of the rule's ops, prover, Z3).

Denotations are digests of the sources that define the ops of the rule, and of no others; the prover is a digest of its
own sources (`verifier.record.digests`).  An edit of a rule, of one op's denotation or of the prover, or another version
of the solver, invalidates exactly the certificates that depend on it, and their rules are proved again.

A ledger is any table of JSON objects (`superopt.store.Store`, or a dict).  An entry is trusted only when it is complete
and contains the key under which it is stored.  A second entry holds, compressed, the solver queries of the proof as
SMT-LIB text, for `verifier.record.recheck`, and both sides of its normal forms, for `verifier.record.checker`.  Only
PROVED verdicts are kept: other rules are tried again.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from typing import Any, Protocol

from rewrites.language.direction import reverse
from rewrites.language.show import equation, proved_text, rule_key
from rewrites.language.term import Rule
from superopt.errors import VerificationError
from superopt.ir import as_loaded
from verifier.equal.ranks import ANY
from verifier.record import digests
from verifier.rules.process import check_all, shared
from verifier.verdict import PROVED, REFUTED, UNKNOWN, UNSUPPORTED, Query, ValidityDomain, Verdict

TABLE = "certificates"


class Table(Protocol):
    """Interface of the storage for certificates; `superopt.store.Store` implements it."""

    def get(self, table: str, key: str) -> Mapping[str, Any] | None:
        """The object under a key, or None."""
        ...

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        """Store an object under a key."""
        ...


@dataclass(frozen=True, slots=True)
class Certificate:
    """The record of a proof.

    Attributes:
        key: content key, see the module.
        rule, direction: name of the rule, and the direction that was proved.
        equation: the rule in index notation, for people.
        exactness: exact, real or range.
        ranks: many-axis role -> "any" or the highest rank proved.
        dtypes, assumptions, sizes: see `verifier.verdict.ValidityDomain`.
        tiers: tiers of the prover that were used.
        obligations, queries: numbers of proof obligations and of solver queries.
        milliseconds: time of the proof.
        versions: digest of the prover, and version of the solver.
        text: text of the proved statement, `rewrites.language.show.proved_text`.
        denotations: op -> digest of its denotation.
        asked: digest of the solver queries.
        sums: digest of both sides as the normal forms that were proved equal.
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
    text: str
    denotations: Mapping[str, str]
    asked: str
    sums: str


@functools.cache
def versions() -> Mapping[str, str]:
    """Digest of the prover, and the solver's version."""
    solver = metadata.version("z3-solver").split(".")[:3]  # as `z3.get_version_string`, without the import of Z3
    return {"prover": digests.prover(), "z3": ".".join(solver)}


def certificate_key(rule: Rule, direction: str = "forward") -> str:
    """The key of a rule's certificate under the present denotations, prover and solver."""
    parts = [rule_key(rule), direction]
    parts += [f"{k}={v}" for table in (digests.denotations(rule), versions()) for k, v in sorted(table.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _packed(asked: Sequence[Query]) -> str:
    return _pressed(json.dumps([[q.answer, q.text] for q in asked]))


def _pressed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _digest(packed: str) -> str:
    return hashlib.sha256(packed.encode()).hexdigest()[:32]


class Ledger:
    """Certificates in a table, or in memory when there is none.

    Args:
        table: the storage.
        known: further certificates by key, which are only read.
    """

    def __init__(self, table: Table | None = None, known: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._table, self._known = table, known or {}
        self._memory: dict[str, Certificate] = {}
        self._questions = _Memory()

    def get(self, rule: Rule, direction: str = "forward") -> Certificate | None:
        """The certificate of a rule, or None where it is absent, incomplete, or made for something else."""
        key = certificate_key(rule, direction)
        if key in self._memory:
            return self._memory[key]
        stored = self._table.get(TABLE, key) if self._table is not None else None
        stored = stored or self._known.get(key)
        made = None if stored is None else _decode(stored, key, rule, direction)
        if made is not None:
            self._memory[key] = made
        return made

    def put(self, certificate: Certificate, asked: Sequence[Query] = (), sums: str = "") -> None:
        """Store a certificate, the solver queries of its proof and the normal forms of both sides.

        Where sources have changed since the process began, they are kept in memory only.
        """
        self._memory[certificate.key] = certificate
        stored = self._table if as_loaded(digests.sources()) else None
        table = stored if stored is not None else self._questions
        row = {"key": certificate.key, "asked": _packed(asked), "sums": _pressed(sums)}
        table.put(TABLE, f"{certificate.key}:asked", row)
        if stored is not None:
            stored.put(TABLE, certificate.key, json.loads(json.dumps(asdict(certificate))))

    def asked(self, certificate: Certificate) -> tuple[Query, ...] | None:
        """The solver queries of a proof, or None where they are absent, damaged, or those of another proof."""
        pairs = self._beside(certificate, "asked", certificate.asked)
        return None if pairs is None else tuple(Query(text, answer) for answer, text in pairs)

    def sums(self, certificate: Certificate) -> Sequence[Any] | None:
        """The normal forms of both sides (`verifier.equal.written`), or None: absent, damaged, or of another proof."""
        return self._beside(certificate, "sums", certificate.sums)

    def _beside(self, certificate: Certificate, what: str, digest: str) -> Any:
        row = self._questions.get(TABLE, f"{certificate.key}:asked")
        if row is None and self._table is not None:
            row = self._table.get(TABLE, f"{certificate.key}:asked")
        if row is None or row.get("key") != certificate.key or _digest(str(row.get(what))) != digest:
            return None
        try:
            return json.loads(zlib.decompress(base64.b64decode(row[what])))
        except (binascii.Error, zlib.error, ValueError):
            return None


class _Memory(dict[str, Mapping[str, Any]]):
    """A table in memory."""

    def get(self, table: str, key: str) -> Mapping[str, Any] | None:  # type: ignore[override]
        return super().get(f"{table}/{key}")

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        self[f"{table}/{key}"] = value


def _decode(stored: Mapping[str, Any], key: str, rule: Rule, direction: str) -> Certificate | None:
    if set(stored) != {f.name for f in fields(Certificate)}:
        return None
    if stored["key"] != key or stored["direction"] != direction or stored["versions"] != dict(versions()):
        return None
    if stored["denotations"] != digests.denotations(rule) or stored["text"] != proved_text(rule):
        return None
    lists = {name: tuple(stored[name]) for name in ("dtypes", "assumptions", "tiers")}
    values: dict[str, Any] = {**stored, **lists}
    return Certificate(**values)


def certify(rule: Rule, verdict: Verdict) -> Certificate:
    """The certificate of a PROVED verdict.

    Raises:
        VerificationError: the verdict is not PROVED.
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
        text=proved_text(rule),
        denotations=digests.denotations(rule),
        asked=_digest(_packed(verdict.asked)),
        sums=_digest(_pressed(verdict.sums)),
    )


def _from_certificate(rule: Rule, c: Certificate) -> Verdict:
    domain = ValidityDomain(c.exactness, tuple(c.ranks.items()), c.dtypes, c.assumptions, tuple(c.sizes.items()))
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
    """The verdict on each rule in one direction, by the prover in its own process; without a ledger, from scratch."""
    return [_verify(rule, ledger, direction) for rule in rules]


def _verify(rule: Rule, ledger: Ledger | None, direction: str) -> Verdict:
    known = ledger.get(rule, direction) if ledger is not None else None
    if known is not None:
        return _from_certificate(rule, known)
    return _kept(rule, shared().check(rule, direction), ledger)


def _kept(rule: Rule, verdict: Verdict, ledger: Ledger | None) -> Verdict:
    if ledger is not None and verdict.proved:
        ledger.put(certify(rule, verdict), verdict.asked, verdict.sums)
    return verdict


def _verify_all(rules: Sequence[Rule], ledger: Ledger, end_s: float) -> list[Verdict]:
    """The forward verdict on each rule; rules without a certificate are proved by several provers at once."""
    fresh = [rule for rule in rules if ledger.get(rule) is None]
    made = dict(zip(map(rule_key, fresh), check_all(fresh, end_s=end_s), strict=True))
    for rule in fresh:
        _kept(rule, made[rule_key(rule)], ledger)
    return [made.get(rule_key(rule)) or _verify(rule, ledger, "forward") for rule in rules]


def require_proved(
    rules: Sequence[Rule],
    ledger: Ledger | None = None,
    *,
    strict: bool = False,
    backward: bool = False,
    end_s: float = math.inf,
) -> tuple[tuple[Rule, ...], dict[str, Certificate]]:
    """The rules that are proved, and their certificates by rule name.

    With `backward`, each usable backward reading that is proved follows as a rule of its own.  From `end_s` on, an
    instant of a deadline, no proof is begun; rules without a certificate then count as not proved.

    Raises:
        VerificationError: `strict` is set and a rule is not proved; the message contains its verdict.
    """
    kept: list[Rule] = []
    certificates: dict[str, Certificate] = {}
    ledger = ledger or Ledger()
    for rule, verdict in zip(rules, _verify_all(rules, ledger, end_s), strict=True):
        if not verdict.proved:
            if strict:
                raise VerificationError(str(verdict), hint="a rule is used only when it is proved for all sizes")
            continue
        readings = [(rule, "forward")]
        reversed_rule = reverse(rule) if backward else None
        if reversed_rule is not None and _verify(rule, ledger, "backward").proved:
            readings.append((reversed_rule, "backward"))
        for reading, direction in readings:
            certificate = ledger.get(rule, direction)
            if certificate is not None:
                kept.append(reading)
                certificates[reading.name] = certificate
    return tuple(kept), certificates


def unusable(rule: Rule, certificate: Certificate) -> str:
    """The reason why a proved rule may not be applied at float sites of every rank; empty where it may."""
    if rule.dtype:
        return f"it is proved for {rule.dtype} alone"
    low = [f"{role} up to {ranks} axes" for role, ranks in certificate.ranks.items() if ranks != ANY]
    return f"it is proved for {', '.join(low)} only" if low else ""


def summary(verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    """The output of `superopt verify --json`: totals and one row per rule."""
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
    if v.proved_when:
        row["proved_when"] = v.proved_when
    if v.cause:
        row["cause"] = v.cause
    return row
