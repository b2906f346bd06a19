"""The rules that the search may use: those of the library, or given ones, whose proofs are on record.

A proof is looked up by the digest of the rule's canonical text, the denotation, the prover and the solver; what is not
on record is proved now and kept: in the store, or without one for as long as the process lives.  A rule that is not
PROVED is never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewrites.library import load
from rewrites.term import Rule
from superopt.store import Store
from verifier.ledger import Certificate, Ledger, require_proved

_OF_THIS_PROCESS = Ledger()


@dataclass(frozen=True, slots=True)
class ProvedLibrary:
    """Proved rules with their certificates by rule name."""

    rules: tuple[Rule, ...]
    certificates: Mapping[str, Certificate]


def proved_library(store: Store | None, rules: Sequence[Rule] | None = None) -> ProvedLibrary:
    """The library, or `rules`, with a certificate for each.

    Library rules of class `range`, which may overflow where the original does not, are left out.

    Raises:
        VerificationError: one of the given rules is not proved.
    """
    ledger = _OF_THIS_PROCESS if store is None else Ledger(store)
    if rules is not None:
        return ProvedLibrary(*require_proved(rules, ledger, strict=True))
    proved, certificates = require_proved(load(), ledger)
    kept = tuple(rule for rule in proved if certificates[rule.name].exactness != "range")
    return ProvedLibrary(kept, {rule.name: certificates[rule.name] for rule in kept})
