"""Certificates: what makes them void, the questions that they keep, replaying them, and the prover's hard limits."""

from __future__ import annotations

import ast
import gc
import importlib.util
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rewrites.language import entries, named, shapes
from rewrites.language.parse import parse
from rewrites.library import by_name, load
from superopt.certify.rule_files import recheck_certificates
from superopt.commands.main import cli
from superopt.ir.ops import contraction, movement
from superopt.store import Store
from verifier.equal import sem
from verifier.equal.solver import Context
from verifier.record import digests
from verifier.record.ledger import TABLE, Ledger, certificate_key, require_proved, verify_rules, versions
from verifier.record.recheck import recheck, replay, solvers
from verifier.record.shipped import shipped
from verifier.rules.check import check
from verifier.rules.process import LimitExceededError, Prover, check_all, shared
from verifier.verdict import Counterexample, Query, Verdict, decode, encode

FAULTS = str(Path(__file__).parents[1] / "support")
RULES = [by_name(name) for name in ("dot-assoc", "slice-concat-left", "softmax-shift")]
ASKING = RULES[2]
"""Its proof asks the solver something."""


def test_questions_of_a_proof_do_not_depend_on_when_garbage_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms of the solver that are freed give their numbers to others, which its texts have in names."""
    rule = by_name("grouped-dense")
    plain, real = check(rule).asked, Context.cond

    def cond(self: Context, f: Any) -> Any:
        if gc.isenabled():
            gc.collect()
        return real(self, f)

    monkeypatch.setattr(Context, "cond", cond)
    gc.freeze()
    try:
        assert check(rule).asked == plain
    finally:
        gc.unfreeze()
    assert plain
    assert gc.isenabled()


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Digests are computed anew, before and after."""
    caches = [f for f in vars(digests).values() if hasattr(f, "cache_clear")]
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def _edit(monkeypatch: pytest.MonkeyPatch, file: str | None, function: str) -> None:
    """As if one function of a module had another body."""
    assert file is not None
    edited = Path(file).read_text(encoding="utf-8")
    real = digests.parse_module

    def parsed(text: str) -> ast.Module:
        tree = real(text)
        if text == edited:
            (target,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function]
            target.body.insert(ast.get_docstring(target) is not None, ast.parse("edited = 1").body[0])
        return tree

    monkeypatch.setattr(digests, "parse_module", parsed)
    monkeypatch.setattr(digests, "state", lambda: "edited")


@pytest.mark.parametrize(
    ("file", "function", "ops"),
    [
        (entries.__file__, "_pad", {"pad"}),
        (movement.__file__, "_pad", {"pad"}),
        (sem.__file__, "_diag", {"diag"}),
        (entries.__file__, "_concat", {"concat"}),
        (entries.__file__, "_take", {"take"}),
        (shapes.__file__, "_broadcast_sizes", {"bcast"}),
        (movement.__file__, "_concatenate_rule", {"concat", "stack"}),
        (contraction.__file__, "_dot", {"dot", "conv"}),  # one without windows is a product
        (contraction.__file__, "_conv_rule", {"conv"}),
    ],
    ids=[
        "pad",
        "value of pad",
        "diag",
        "concat",
        "take",
        "sizes of broadcasts",
        "type of concatenate",
        "product",
        "type of convolution",
    ],
)
@pytest.mark.usefixtures("forgetful")
def test_an_edit_of_one_denotation_makes_void_the_rules_with_that_op(
    monkeypatch: pytest.MonkeyPatch, file: str, function: str, ops: set[str]
) -> None:
    rules = load()
    before = {r.name: certificate_key(r) for r in rules}
    with monkeypatch.context() as patch:
        for cached in vars(digests).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        _edit(patch, file, function)
        void = {r.name for r in rules if certificate_key(r) != before[r.name]}
        for cached in vars(digests).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
    assert void == {r.name for r in rules if ops & set(digests.denotations(r))}
    assert 0 < len(void) < len(rules)


@pytest.mark.usefixtures("forgetful")
def test_an_edit_of_what_all_rules_use_makes_all_void(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {r.name: certificate_key(r) for r in RULES}
    versions.cache_clear()
    with monkeypatch.context() as patch:
        for cached in vars(digests).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        _edit(patch, named.__file__, "derived_labels")
        after = {r.name: certificate_key(r) for r in RULES}
    versions.cache_clear()
    assert all(before[name] != after[name] for name in before)


def test_rules_with_one_op_in_common_share_its_digest() -> None:
    a, b = (digests.denotations(by_name(name)) for name in ("dot-assoc", "softmax-shift"))
    assert "dot" in a
    assert "dot" not in b
    assert a["var"] == b["var"]
    assert {"ew exp", "ew div", "ew add"} & set(b)


def test_comments_and_docstrings_are_no_part_of_a_denotation(tmp_path: Path) -> None:
    text = Path(entries.__file__).read_text(encoding="utf-8")
    plain, commented = tmp_path / "plain.py", tmp_path / "commented.py"
    plain.write_text(text, encoding="utf-8")
    commented.write_text(text.replace("def _pad(", "# a remark\ndef _pad("), encoding="utf-8")
    assert digests._closure(plain, ["_pad"], "pad") == digests._closure(commented, ["_pad"], "pad")


def test_the_questions_of_a_proof_are_kept_and_come_back() -> None:
    store = Store(memory=True)
    _, certificates = require_proved(RULES, Ledger(store))
    again = Ledger(store)
    for rule in RULES:
        certificate = again.get(rule)
        assert certificate == certificates[rule.name]
        assert certificate is not None
        asked = again.asked(certificate)
        assert asked is not None
        assert len(asked) == certificate.queries
        assert all("(check-sat)" in q.text for q in asked)


def test_proofs_of_sources_that_changed_meanwhile_are_not_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(memory=True)
    monkeypatch.setattr("superopt.ir._BEGAN_S", 0.0)  # every file is newer
    ledger = Ledger(store)
    _, certificates = require_proved([ASKING], ledger)
    certificate = certificates[ASKING.name]
    assert ledger.get(ASKING) == certificate
    assert ledger.asked(certificate)
    assert Ledger(store).get(ASKING) is None


def test_proofs_of_the_library_ship_as_they_are_made() -> None:
    known = shipped()
    missing = [rule.name for rule in load() if certificate_key(rule) not in known]
    assert not missing, "python -m verifier.record.shipped proves and writes them"
    assert set(known) == {certificate_key(rule) for rule in load()}, "and no others"
    _, made = require_proved(RULES, Ledger())
    for certificate in made.values():
        row = {**known[certificate.key], "milliseconds": certificate.milliseconds}
        assert row == json.loads(json.dumps(asdict(certificate)))


def test_digests_that_ship_are_those_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = json.loads(digests.SHIPPED.read_text(encoding="utf-8"))
    digests.write(load(), tmp_path / "digests.json")
    assert known == json.loads((tmp_path / "digests.json").read_text(encoding="utf-8")), (
        "python -m verifier.record.shipped writes them"
    )

    def read(text: str) -> str:
        (tmp_path / "digests.json").write_text(text, encoding="utf-8")
        for made in (digests._shipped, digests.denotation):
            made.cache_clear()
        return digests.denotation("dot")

    right = known["digests"]["dot"]
    monkeypatch.setattr(digests, "SHIPPED", tmp_path / "digests.json")
    assert read(json.dumps({"state": known["state"], "digests": {"dot": "as written"}})) == "as written"
    assert read(json.dumps({"state": "edited since", "digests": {"dot": "as written"}})) == right
    for text in ("", "[]", "{}", '{"state": 1}'):
        assert read(text) == right


def test_proofs_that_ship_are_used_under_their_key_alone(tmp_path: Path) -> None:
    rule, other = RULES[:2]
    known = shipped()
    assert Ledger(known=known).get(rule) is not None
    assert Ledger(known={certificate_key(rule): known[certificate_key(other)]}).get(rule) is None
    assert Ledger(known={certificate_key(rule): {"key": certificate_key(rule)}}).get(rule) is None
    for text in ("", "[{]", '{"key": 1}', "[1]", '[{"rule": "x"}]'):
        (tmp_path / "library.json").write_text(text, encoding="utf-8")
        shipped.cache_clear()
        assert not shipped(tmp_path / "library.json")


def test_questions_that_were_changed_are_not_believed() -> None:
    store = Store(memory=True)
    (verdict,) = verify_rules(RULES[:1], Ledger(store))
    ledger = Ledger(store)
    certificate = ledger.get(RULES[0])
    assert verdict.proved
    assert certificate is not None
    row = store.get(TABLE, f"{certificate.key}:asked")
    assert row is not None
    for wrong in ({**row, "asked": row["asked"][:-4] + "AAAA"}, {**row, "key": "another"}, {"key": row["key"]}):
        store.put(TABLE, f"{certificate.key}:asked", wrong)
        assert ledger.asked(certificate) is None
    assert recheck([(certificate, None)])["without_queries"] == ["dot-assoc"]


def test_all_solvers_agree_with_what_was_kept() -> None:
    ledger = Ledger()
    _, certificates = require_proved(RULES, ledger)
    told = recheck([(c, ledger.asked(c)) for c in certificates.values()])
    assert told["certificates"] == 3
    assert told["queries"] == sum(c.queries for c in certificates.values())
    assert told["solvers"]["z3"] == {"agree": told["queries"], "disagree": 0, "unknown": 0}
    assert set(told["solvers"]) == set(solvers())
    assert told["disagreements"] == []
    for counts in told["solvers"].values():
        assert counts["agree"] > 0


def test_a_wrong_answer_is_a_disagreement() -> None:
    ledger = Ledger()
    _, certificates = require_proved([ASKING], ledger)
    (certificate,) = certificates.values()
    asked = ledger.asked(certificate)
    assert asked
    lies = [Query(q.text, {"yes": "no", "no": "yes"}[q.answer]) for q in asked]
    told = recheck([(certificate, lies)])
    assert told["solvers"]["z3"]["disagree"] == len(lies)
    assert {row["rule"] for row in told["disagreements"]} == {ASKING.name}


def test_cvc5_takes_part_where_it_is_installed() -> None:
    text = "(declare-fun x () Int)\n(assert (< x x))\n(check-sat)"
    present = importlib.util.find_spec("cvc5") is not None
    assert replay([text], 1000) == [dict.fromkeys(("z3", "cvc5") if present else ("z3",), "no")]


def test_verdicts_survive_the_way_between_processes() -> None:
    wrong = parse("wrong: A[*a]  B[*a]\n  A - B  ==  B - A")
    with Prover() as prover:
        (there, here) = prover.check(wrong), prover.check(RULES[2], "backward")
    assert (there.status, here.direction) == ("REFUTED", "backward")
    assert isinstance(there.counterexample, Counterexample)
    values: list[Any] = [1, 2.5, float("-inf"), (1, [None, "a"]), {("k", 1): True}, there, here]
    assert decode(encode(values)) == values
    with pytest.raises(TypeError, match="object"):
        encode(object())


@pytest.mark.parametrize(("fault", "arguments"), [("stubborn", ()), ("deaf", (60.0,))])
def test_a_question_that_ignores_limits_is_ended(fault: str, arguments: tuple[Any, ...]) -> None:
    with Prover(seconds=0.4) as prover:
        assert prover.call("prover_faults:hungry", 1, path=FAULTS) == 1 << 20  # the process has started
        begin = time.monotonic()
        with pytest.raises(LimitExceededError, match=r"0\.4 s"):
            prover.call(f"prover_faults:{fault}", *arguments, path=FAULTS)
        assert time.monotonic() - begin < 30.0  # half of what the deaf one would take
        assert prover.call("prover_faults:hungry", 1, path=FAULTS) == 1 << 20  # a new process


def test_memory_is_bounded() -> None:
    with Prover(seconds=30.0, memory_bytes=1 << 30) as prover:
        with pytest.raises((LimitExceededError, RuntimeError), match=r"[Mm]emory"):
            prover.call("prover_faults:hungry", 4096, path=FAULTS)
        assert prover.check(RULES[0]).proved


def test_a_rule_beyond_the_limit_is_unknown_with_the_limit_as_cause() -> None:
    with Prover(seconds=0.001) as prover:
        begin = time.monotonic()
        verdict = prover.check(by_name("conv-winograd-square"))
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.proved) == ("UNKNOWN", False)
    assert "0.001 s" in verdict.cause
    assert time.monotonic() - begin < 60.0  # with the start of the process


def test_recheck_proves_what_has_no_certificate_and_replays_it(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("one: A[*a n]\n  rev(rev(A, n), n)  ==  A + 0\n\nwrong: A[*a]  B[*a]\n  A - B  ==  B - A\n")
    store = Store(memory=True)
    told, text = recheck_certificates([str(path)], library=False, names=["one"], store=store)
    assert told["sound"]
    assert (told["rules"], told["certificates"]) == (1, 1)
    assert told["solvers"]["z3"]["agree"] == told["queries"] > 0
    assert "sound" in text
    told, text = recheck_certificates([str(path)], library=False, store=store)
    assert not told["sound"]
    assert told["not_proved"] == ["wrong"]
    assert "NOT SOUND" in text


def test_the_command_line_rechecks_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = CliRunner().invoke(cli, ["verify", "--recheck", "--rule", "dot-assoc", "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert told["sound"]
    assert told["solvers"]["z3"]["disagree"] == 0


def test_several_provers_say_what_one_says_in_the_order_of_the_rules() -> None:
    wrong = parse("wrong: A[*a]  B[*a]\n  A - B  ==  B - A")
    rules = [*(by_name(name) for name in ("dot-assoc", "slice-concat-left", "softmax-shift", "dot-merge")), wrong] * 4
    verdicts = check_all(rules, provers=2)
    assert [v.rule for v in verdicts] == [rule.name for rule in rules]
    assert [v.status for v in verdicts] == [shared().check(rule).status for rule in rules]
