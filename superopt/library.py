"""The rules that the search may use: those of the library, or given ones, whose proofs are on record.

A proof is looked up by the digest of the rule's canonical text, the denotation, the prover and the solver; what is not
on record is proved now and kept.  A rule that is not PROVED is never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewrites.library import load
from rewrites.term import Rule
from superopt.store import Store
from verifier.ledger import Certificate, Ledger, require_proved


@dataclass(frozen=True, slots=True)
class ProvedLibrary:
    """Proved rules with their certificates by rule name."""

    rules: tuple[Rule, ...]
    certificates: Mapping[str, Certificate]


def proved_library(store: Store | None, rules: Sequence[Rule] | None = None) -> ProvedLibrary:
    """The library, or `rules`, with a certificate for each.

    Raises:
        VerificationError: one of the given rules is not proved.
    """
    ledger = Ledger(store)
    return ProvedLibrary(*require_proved(load() if rules is None else rules, ledger, strict=rules is not None))
