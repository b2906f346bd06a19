"""Certificates: kept under a key of everything that they depend on, believed only when they fit it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rewrites.language.parse import parse
from rewrites.library import by_name
from superopt.errors import VerificationError
from superopt.store import Store
from verifier.record import ledger as module
from verifier.record.digests import denotations
from verifier.record.ledger import TABLE, Ledger, certificate_key, certify, require_proved, summary, verify_rules
from verifier.rules.prove import prove

RULES = [by_name(name) for name in ("dot-assoc", "slice-concat-left", "softmax-shift")]
WRONG = parse("wrong: A[*a]  B[*a]\n  A - B  ==  B - A")
OPEN = parse("open: A[*a]\n  sin(A) * sin(A) + cos(A) * cos(A)  ==  A * 0 + 1")


class Table(dict[str, Mapping[str, Any]]):
    """A table of JSON objects that counts reads."""

    def get(self, table: str, key: str) -> Mapping[str, Any] | None:  # type: ignore[override]
        assert table == TABLE
        return super().get(key)

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        assert table == TABLE
        self[key] = json.loads(json.dumps(value))


@pytest.mark.parametrize("table", [Table, lambda: Store(memory=True)], ids=["dict", "store"])
def test_certificates_come_back_as_they_went_in(table: Any) -> None:
    kept = table()
    first = verify_rules(RULES, Ledger(kept))
    again = verify_rules(RULES, Ledger(kept))
    assert first == again
    assert [v.cached for v in first] == [False] * 3
    assert [v.cached for v in again] == [True] * 3


def test_only_proofs_are_kept() -> None:
    kept = Table()
    verdicts = verify_rules([*RULES, WRONG, OPEN], Ledger(kept))
    assert [v.status for v in verdicts] == ["PROVED"] * 3 + ["REFUTED", "UNKNOWN"]
    assert {key for key in kept if ":" not in key} == {certificate_key(r) for r in RULES}


def test_an_entry_that_does_not_fit_its_key_is_proved_again() -> None:
    kept = Table()
    verify_rules(RULES, Ledger(kept))
    key, other = certificate_key(RULES[0]), certificate_key(RULES[1])
    for broken in ({**kept[other]}, {**kept[key], "versions": {"z3": "0"}}, {"key": key}, {**kept[key], "extra": 1}):
        spoiled = Table({key: broken})
        (verdict,) = verify_rules(RULES[:1], Ledger(spoiled))
        assert not verdict.cached
        assert verdict.proved
        assert spoiled[key]["key"] == key


def test_a_certificate_with_the_text_of_another_rule_is_not_believed() -> None:
    """Whoever recomputes all digests of a certificate must still say what was proved."""
    wrong = parse("wrong: A[*a]  B[*a]\n  A - B  ==  B - A")
    right = parse("right: A[*a]  B[*a]\n  A - B  ==  A + (-B)")
    kept = Table()
    verify_rules([right], Ledger(kept))
    key = certificate_key(wrong)
    forged = {**kept[certificate_key(right)], "key": key, "rule": "wrong", "denotations": denotations(wrong)}
    assert Ledger(Table({key: forged})).get(wrong) is None
    assert [v.status for v in verify_rules([wrong], Ledger(Table({key: forged})))] == ["REFUTED"]


def test_the_key_changes_with_the_rule_the_direction_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES[0]
    keys = {certificate_key(rule), certificate_key(rule, "backward"), certificate_key(RULES[1])}
    for name in module.versions():
        changed = {**module.versions(), name: "another"}
        monkeypatch.setattr(module, "versions", lambda changed=changed: changed)
        keys.add(certificate_key(rule))
        monkeypatch.undo()
    assert len(keys) == 5


def test_names_preferences_and_modes_are_no_part_of_the_key() -> None:
    a = parse("one: A[*a]  B[*a]\n  A - B  ==  A + (-B)\n  prefer frozen(B)")
    b = parse("two: A[*a]  B[*a]\n  A - B  ==  A + (-B)\n  mode near")
    assert certificate_key(a) == certificate_key(b)


def test_require_proved_leaves_out_what_is_not() -> None:
    rules, certificates = require_proved([*RULES, WRONG, OPEN])
    assert rules == tuple(RULES)
    assert set(certificates) == {r.name for r in RULES}
    assert certificates["softmax-shift"].exactness == "range"
    assert "Σ" in certificates["dot-assoc"].equation
    with pytest.raises(VerificationError, match="REFUTED wrong"):
        require_proved([WRONG], strict=True)


def test_require_proved_adds_backward_readings() -> None:
    rules, certificates = require_proved([by_name("dot-assoc"), by_name("conv-pointwise")], backward=True)
    assert [r.name for r in rules] == ["dot-assoc", "dot-assoc-backward", "conv-pointwise"]
    assert certificates["dot-assoc-backward"].direction == "backward"


def test_only_a_proof_has_a_certificate() -> None:
    with pytest.raises(VerificationError, match="UNKNOWN"):
        certify(OPEN, prove(OPEN))


def test_summary_is_json_with_totals_and_rows() -> None:
    verdicts = verify_rules([*RULES, WRONG, OPEN])
    told = json.loads(json.dumps(summary(verdicts, 1.5)))
    assert (told["rules"], told["proved"], told["refuted"], told["unknown"]) == (5, 3, 1, 1)
    assert told["seconds"] == 1.5
    rows = {row["rule"]: row for row in told["rows"]}
    assert rows["dot-assoc"]["ranks"] == {"b": "any", "m": "any", "k": "any", "l": "any", "n": "any"}
    assert rows["wrong"]["counterexample"]["inputs"].keys() == {"A", "B"}
    assert rows["open"]["cause"]
