"""The proved rules that the search may use: those of the library, or given ones, with proofs on record.

A proof is looked up by the digest of the rule's canonical text, the denotation, the prover and the solver: among those
that come with the package, and in the store.  A rule without a recorded proof is proved now, and the proof is kept: in
the store, or without one for as long as the process lives.  A rule that is not PROVED is never used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rewrites.language.term import Rule
from rewrites.library import load
from superopt.errors import UsageError, VerificationError
from superopt.machine.deadline import Deadline
from superopt.store import Store
from verifier.record.ledger import Certificate, Ledger, require_proved, unusable
from verifier.record.shipped import shipped
from verifier.verdict import EXACTNESS

_PROVING = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProvedLibrary:
    """Proved rules with certificates by rule name; `unproved` counts library rules not proved in the time."""

    rules: tuple[Rule, ...]
    certificates: Mapping[str, Certificate]
    unproved: int = 0

    def with_instances(self, other: ProvedLibrary) -> ProvedLibrary:
        """Return these rules and those made for a program."""
        return replace(
            self, rules=(*self.rules, *other.rules), certificates={**self.certificates, **other.certificates}
        )


def ledger_of(store: Store | None) -> Ledger:
    """Return the certificates in a store, or those of this process, backed by those that ship."""
    return _of_this_process() if store is None else Ledger(store, shipped())


@functools.cache
def _of_this_process() -> Ledger:
    return Ledger(known=shipped())


def count_unproved(store: Store | None) -> int:
    """Return the number of library rules without a proof on record."""
    ledger = ledger_of(store)
    return sum(ledger.get(rule) is None for rule in load())


def given_rules(rules: Sequence[Rule] | None) -> tuple[Rule, ...] | None:
    """Check the rules that a caller gives in place of the library; None for the library.

    Raises:
        UsageError: something else than rules is given.
    """
    for given in rules or ():
        if not isinstance(given, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]: callers may be untyped
            raise UsageError(
                f"rules holds {given!r}, which is no rule",
                hint="superopt.rule makes one of a text or of two functions, "
                "rewrites.library.by_name finds one of the library",
            )
    return None if rules is None else tuple(rules)


def proved_library(
    store: Store | None, rules: Sequence[Rule] | None = None, numerics: str = "real", deadline: Deadline | None = None
) -> ProvedLibrary:
    """Return the rules of the library, or of `rules`, whose class `numerics` allows, with a certificate for each.

    Args:
        store: store of certificates.
        rules: rules in place of the library.
        numerics: `exact` (only rules that keep every bit), `real`, or `range` (also rules that may overflow where the
            original does not).
        deadline: from then on no proof of a rule of the library is begun.

    Raises:
        VerificationError: one of the given rules is not proved, or not for floats of every rank.
    """
    ledger, wanted = ledger_of(store), load() if rules is None else rules
    strict = rules is not None
    deadline = Deadline() if strict or deadline is None else deadline
    # threads that ask for the same proofs wait for them, as long as they may
    wait_s = deadline.left_s if deadline.is_timed else -1.0
    mine = _PROVING.acquire(timeout=wait_s)
    try:
        proved, certificates = require_proved(wanted, ledger, strict=strict, end_s=deadline.end_s)
    finally:
        if mine:
            _PROVING.release()
    unproved = len(wanted) - len(certificates)
    for rule in proved:
        why = unusable(rule, certificates[rule.name])
        if why and strict:
            raise VerificationError(f"the rule {rule.name} cannot be used: {why}", hint="a site may be of any rank")
    return _usable(proved, certificates, numerics, unproved)


def prove_instances(rules: Sequence[Rule], numerics: str, deadline: Deadline) -> ProvedLibrary:
    """Prove rules that were made for one program; what is not proved in the time is left out."""
    return _usable(*require_proved(rules, _of_this_process(), end_s=deadline.end_s), numerics)


def _usable(
    rules: Sequence[Rule], certificates: Mapping[str, Certificate], numerics: str, unproved: int = 0
) -> ProvedLibrary:
    """Return the proved rules that hold at every rank and whose class `numerics` allows."""
    widest = EXACTNESS.index(numerics)
    kept = tuple(
        rule
        for rule in rules
        if not unusable(rule, certificates[rule.name]) and EXACTNESS.index(certificates[rule.name].exactness) <= widest
    )
    return ProvedLibrary(kept, {rule.name: certificates[rule.name] for rule in kept}, unproved)
