"""The checker of certificates: it adds up every record of the prover again, and refuses those that are forged."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import verifier.record.checker as checker
from rewrites.language.direction import directions
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from rewrites.library import by_name, load
from superopt.certify.rule_files import recheck_certificates
from superopt.lab.corpora import rollcall
from superopt.store import Store
from verifier.record.checker import Checked, check
from verifier.record.ledger import TABLE, Certificate, Ledger, _digest, _pressed, certify
from verifier.rules.prove import prove
from verifier.verdict import Verdict

SAMPLE = [r for r in load() if r.mode != "macro"][::4]


def certified(rule: Rule) -> tuple[Certificate, list[Any]]:
    verdict = prove(rule)
    return certify(rule, verdict), json.loads(verdict.sums)


def refused(certificate: Certificate, rows: Any) -> list[str]:
    done = Checked()
    check(certificate, rows, done)
    return done.refused


@pytest.mark.parametrize(
    "rules",
    [SAMPLE, pytest.param([*load(), *(r for rs in rollcall.load().values() for r in rs)], marks=pytest.mark.slow)],
)
def test_every_record_is_added_up_again(rules: list[Rule]) -> None:
    done = Checked()
    for rule in rules:
        check(*certified(rule), done)
    assert not done.refused
    assert done.points >= 2 * done.sums > 0
    assert done.for_all_sizes > done.sums * 0.7


def test_backward_directions_too() -> None:
    done = Checked()
    usable = [rule for rule in SAMPLE if directions(rule)[1].rule is not None]
    for rule in usable:
        if (verdict := prove(rule, "backward")).proved:
            check(certify(rule, verdict), json.loads(verdict.sums), done)
    assert not done.refused
    assert done.sums > 3


# ---- forgeries, under digests that were made again

MERGE = by_name("dot-merge")
APART = parse("t: A[*a n]  B[*a n2]\n  concat(A * 2, B * 2, n)  ==  concat(A, B, n) * 2")
"""A rule with a condition that neither premises nor ranges decide."""


def doubled(row: Any, side: str) -> None:
    row[side][0][0] = str(2 * int(row[side][0][0]))


def one_coefficient(rows: Any) -> None:
    doubled(rows[0], "left")


def both_coefficients(rows: Any) -> None:
    doubled(rows[0], "left")
    doubled(rows[0], "right")


def another_guard(rows: Any) -> None:
    for row in rows:
        for m in row["right"]:
            m[2] = []


def another_entry(rows: Any) -> None:
    for row in rows:
        for side in ("left", "right"):
            for m in row[side]:
                m[4][0][1] = [[*p, [1, []]] for p in m[4][0][1]]


def no_equation(rows: Any) -> None:
    del rows[0]


def nothing(rows: Any) -> None:
    rows.clear()


def other_rule(rows: Any) -> None:
    rows[:] = certified(by_name("dot-assoc"))[1]


FORGERIES: Mapping[str, tuple[Callable[[Any], None], str]] = {
    "one coefficient": (one_coefficient, "differ as sums"),
    "the same coefficient on both sides": (both_coefficients, "and the record"),
    "conditions left out": (another_guard, ""),
    "entries beside": (another_entry, ""),
    "an equation left out": (no_equation, "missing"),
    "nothing": (nothing, "missing"),
    "another rule's sides": (other_rule, ""),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_sums_are_refused(forgery: str) -> None:
    forge, why = FORGERIES[forgery]
    certificate, rows = certified(APART if forge is another_guard else MERGE)
    assert not refused(certificate, rows)
    forged = copy.deepcopy(rows)
    forge(forged)
    (told,) = refused(certificate, forged)
    assert why in told


def test_sides_of_a_rule_that_differs_by_one_number_are_refused() -> None:
    one, two = (parse(f"r: A[*a]  B[*a]\n  (A + B) * {k}  ==  A * {k} + B * {k}") for k in (2, 3))
    (certificate, rows), (_, others) = certified(one), certified(two)
    assert not refused(certificate, rows)
    (told,) = refused(certificate, others)
    assert "and the record" in told


def test_a_class_that_was_made_stronger_is_refused() -> None:
    certificate, rows = certified(parse("r: A[*a]\n  A + 0  ==  A"))
    assert not refused(certificate, rows)
    (told,) = refused(replace(certificate, exactness="exact"), rows)
    assert "uses more" in told
    assert refused(certificate, None)
    assert refused(certificate, [{"root": 0}])


def test_recheck_counts_and_refuses(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("one: A[*a]  B[*a]\n  (A + B) * 2  ==  A * 2 + B * 2\n")
    (rule,) = [parse(path.read_text())]
    store = Store(memory=True)
    told, text = recheck_certificates([str(path)], library=False, store=store)
    assert told["sound"]
    assert told["sums"]["sums"] == told["sums"]["for_all_sizes"] == 1
    assert "1 pairs of sums added up again, 1 for all sizes" in text
    kept = Ledger(store).get(rule)
    assert kept is not None
    rows = Ledger(store).sums(kept)
    assert rows
    doubled(rows[0], "left")  # and every digest made again
    pressed = _pressed(json.dumps(rows))
    forged = replace(kept, sums=_digest(pressed))
    row = store.get(TABLE, f"{kept.key}:asked")
    assert row is not None
    store.put(TABLE, f"{kept.key}:asked", {**row, "sums": pressed})
    store.put(TABLE, kept.key, {**dict(store.get(TABLE, kept.key) or {}), "sums": forged.sums})
    told, text = recheck_certificates([str(path)], library=False, store=store)
    assert not told["sound"]
    assert "REFUSED one:" in text
    assert told["solvers"]["z3"]["disagree"] == 0, "the solvers see nothing of it"


def test_the_checker_shares_no_code_with_the_search_for_proofs() -> None:
    folder = Path(checker.__file__).parent
    for name in ("checker", "points"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {module for module in used if module.startswith("verifier")}
        assert ours <= {"verifier.record.points"}
    assert len((folder / "checker.py").read_text().splitlines()) <= 330


def test_verdicts_carry_their_sums() -> None:
    verdict: Verdict = prove(MERGE)
    assert {row["root"] for row in json.loads(verdict.sums)} == {0, 1}
    assert prove(parse("w: A[*a]  B[*a]\n  A - B  ==  B - A")).sums == ""
