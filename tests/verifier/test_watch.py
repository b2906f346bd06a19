"""The watch over the prover: who says PROVED of what is false is found out, loudly, for every kind of entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import superopt.equivalence.verdict as pair_verdict
import verifier.rules.check as rules_check
import verifier.rules.watch as rules_watch
import verifier.statements.statement as statements
import verifier.statements.watch as statement_watch
from rewrites.language.named import Env
from rewrites.language.parse import parse
from rewrites.language.term import Rule
from superopt.certify.rule_files import verify_files
from superopt.certify.xla_rules import by_xla
from superopt.equivalence.cuts import PairProof
from superopt.errors import DEFECT, ProverDefectError
from superopt.ir.graph import Graph, Node, literal, make_input, mk
from verifier.equal.equality import Proof
from verifier.rules.check import check
from verifier.rules.prove import FINITE, prove
from verifier.rules.refute import extremes, special
from verifier.statements.refute import Pairing, differ_on
from verifier.statements.statement import check_statement, make_statement
from verifier.verdict import PROVED, REFUTED, UNKNOWN, ValidityDomain, Verdict

FLOAT, INT = ("float",), ("float", "int")


def domain(exactness: str, dtypes: tuple[str, ...] = FLOAT, assumptions: tuple[str, ...] = ()) -> ValidityDomain:
    return ValidityDomain(exactness, (), dtypes, assumptions, ())


# ---- rules

RULES = [
    ("float64", "real", FLOAT, "A[*a]  B[*a]\n  A - B  ==  B - A"),
    ("in every bit: signs of zeros", "exact", FLOAT, "A[*a]\n  A + 0  ==  A"),
    ("in every bit: the largest", "exact", FLOAT, "A[*a]\n  (A * 4) * 0.25  ==  A"),
    ("in every bit: the least", "exact", FLOAT, "A[*a]\n  (A * 0.5) * 2  ==  A"),
    ("in every bit: NaN", "exact", FLOAT, "A[*a]  B[*a]\n  where(lt(A, B), A, B)  ==  where(invert(ge(A, B)), A, B)"),
    ("integers that wrap", "real", INT, "A[*a]  B[*a]  C[*a]\n  maximum(A + B, A + C)  ==  A + maximum(B, C)"),
]


@pytest.mark.parametrize(("exactness", "dtypes", "text"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_a_false_proof_of_a_rule_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, exactness: str, dtypes: tuple[str, ...], text: str
) -> None:
    def lying(rule: Rule, direction: str, _: list[Env]) -> Verdict:
        return Verdict(rule.name, "", "", direction, PROVED, domain=domain(exactness, dtypes))

    rule = parse(f"planted: {text}")
    honest = check(rule)
    assert honest.domain is None or honest.domain.exactness != "exact"
    monkeypatch.setattr(rules_check, "prove", lying)
    with pytest.raises(ProverDefectError, match=DEFECT):
        check(rule, before=0)


def test_finite_values_are_searched_for_beyond_the_first_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def seen(_: Env, seed: int, *, empty: bool) -> Any:
        assert not empty
        seeds.append(seed)
        return SimpleNamespace(tried=1, left={0} if len(seeds) <= rules_watch.LOOKS else set(), unlike=lambda _: False)

    monkeypatch.setattr(rules_watch, "seen_at", seen)
    assert rules_watch.vacuous(parse("r: A[n]\n  A + 0  ==  A"), domain("real"), 1) == ""
    assert len(seeds) == rules_watch.LOOKS + 1


def test_conditions_that_change_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = parse("r: A[n]  B[n2]\n  slice(concat(A, B, n), n(0, n))  ==  A")
    changes: list[Env] = []
    assert prove(rule, suspects=changes).proved
    assert changes
    assert all(env.tok for env in changes)
    seen: list[Env] = []
    plain = rules_check.contradicted

    def looked(one: Rule, certified: ValidityDomain, given: list[Env], first: int) -> Any:
        seen.extend(given)
        return plain(one, certified, given, first)

    monkeypatch.setattr(rules_check, "contradicted", looked)
    assert check(rule).proved
    assert [e.tok for e in seen] == [e.tok for e in changes]


def test_a_defect_is_said_by_whoever_verifies_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import superopt.certify.rule_files as files

    def defective(*_: Any) -> Any:
        raise ProverDefectError("planted is proved and yet refuted at seed 1")

    file = tmp_path / "rules.txt"
    file.write_text("planted: A[*a]\n  A + 0  ==  A\n")
    monkeypatch.setattr(files, "shared", lambda: SimpleNamespace(check=defective))
    found = verify_files([str(file)])
    data, text = found.to_json(), str(found)
    assert data["defects"] == ["planted"]
    assert text.splitlines()[-1].startswith(DEFECT)
    assert data["rows"][0]["status"] == UNKNOWN


def test_special_numbers_of_types() -> None:
    assert extremes("float32") == (3.4028234663852886e38, 1.1754943508222875e-38, 1.401298464324817e-45)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        numbers = special(dtype)
        assert {np.signbit(x) for x in numbers if x == 0} == {True, False}
        assert sum(np.isinf(x) for x in numbers) == 2
        assert any(np.isnan(x) for x in numbers)
    assert {-128, 127} <= set(special("int8"))
    assert {0, 255} <= set(special("uint8"))


# ---- statements

Function = Callable[..., Any]
STATEMENTS: list[tuple[str, str, Function, Function, tuple[Any, ...]]] = [
    ("signs of zeros", "exact", lambda x: x + 0, lambda x: x, ("n",)),
    ("the largest", "exact", lambda x: (x * 2) * 0.5, lambda x: x, ("n",)),
    ("the least", "exact", lambda x: (x * 0.5) * 2, lambda x: x, ("n",)),
    ("NaN", "exact", lambda x, y: jnp.where(x < y, x, y), lambda x, y: jnp.where(~(x >= y), x, y), ("n", "n")),
    ("integers that wrap", "exact", lambda i: i + 1 > i, lambda i: i == i, ("int8[n]",)),
    ("integers that wrap, claimed real", "real", lambda i: (i * 2) // 2, lambda i: i, ("int32[n]",)),
    ("a conversion", "real", lambda x: x.astype("bfloat16").astype("float32"), lambda x: x, ("n",)),
    ("half precision", "exact", lambda h: (h * 3) / 3, lambda h: h, (("n", "bfloat16"),)),
]


def lying_prover(
    exactness: str, changes: tuple[dict[str, int], ...] = (), assumptions: tuple[str, ...] = ()
) -> Callable[..., Any]:
    def prove_elsewhere(pair: Any, done: Proof) -> Any:
        done.changes = list(changes)
        return domain(exactness, tuple(x.dtype for x in pair.left.inputs), assumptions), ()

    return prove_elsewhere


@pytest.mark.parametrize(("exactness", "f", "g", "specs"), [s[1:] for s in STATEMENTS], ids=[s[0] for s in STATEMENTS])
def test_a_false_proof_of_a_statement_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, exactness: str, f: Function, g: Function, specs: tuple[Any, ...]
) -> None:
    made = make_statement("planted", f, g, specs, {})
    honest = statements.proved_alone(made)
    assert honest.domain is None or honest.domain.exactness != "exact"
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover(exactness))
    monkeypatch.setattr(statements, "clearest", lambda _: None)  # what refutes before the proof sees it in float64
    with pytest.raises(ProverDefectError, match=DEFECT):
        check_statement(made)


def test_xla_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_statement("planted", lambda i: i * 2, lambda i: i * 3, ("int32[n]",), {})
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover("exact"))
    monkeypatch.setattr(statements, "clearest", lambda _: None)
    monkeypatch.setattr(statement_watch._Look, "by_interpreter", lambda *_: None)  # an interpreter that is wrong, too
    with pytest.raises(ProverDefectError, match="by XLA"):
        check_statement(made)


def test_sizes_at_which_a_condition_changes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return jnp.where(lax.iota("int32", x.shape[0]) * 3 < 61, x, 0.0)

    pair, _ = statements.traced_pair(make_statement("s", f, f, ("n",), {}))
    done = Proof()
    assert statements._proved(pair, Verdict("s", "", "", "statement", UNKNOWN), done, "").proved
    other = make_statement("s", f, lambda x: jnp.where(lax.iota("int32", x.shape[0]) * 6 < 122, x, 0), ("n",), {})
    pair, _ = statements.traced_pair(other)
    assert statements._proved(pair, Verdict("s", "", "", "statement", UNKNOWN), done, "").proved
    assert any(at["n"] > 20 for at in done.changes), "the first entry that is left out is the 21st"
    wrong = make_statement("wrong", f, lambda x: x, ("n",), {})
    monkeypatch.setattr(statements, "telling_sizes", lambda *_: iter(()))
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover("exact", tuple(done.changes)))
    with pytest.raises(ProverDefectError, match=r"n = 2\d"):
        check_statement(wrong)


def test_a_difference_of_numbers_is_looked_for_beside_one_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover("real", assumptions=(FINITE,)))
    made = make_statement("s", lambda x: jnp.log(x) + x, lambda x: jnp.log(x) + 2 * x, ("float32[16]",), {})
    found = check_statement(made)
    assert found.status == REFUTED, str(found)
    assert found.counterexample is not None
    assert (np.asarray(found.counterexample.inputs["x"]) > 0).all()


def test_what_differs_behind_infinities_where_a_condition_changes_is_kept_in_mind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shift(x: Any) -> Any:
        return jnp.where((lax.iota("int32", x.shape[0]) > 20) & (x != jnp.rint(x)), 1 / (x * 0), 0.0)

    made = make_statement("s", lambda x: jnp.tanh(x + shift(x)), lambda x: jnp.tanh(x - shift(x)), ("n",), {})
    monkeypatch.setattr(statements, "telling_sizes", lambda *_: iter(()))
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover("real", ({"n": 22},), (FINITE,)))
    found = check_statement(made)
    assert found.status == REFUTED, str(found)


def test_another_order_of_summation_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_statement("s", lambda x: jnp.sum(x * 0.1), lambda x: jnp.sum(x[::-1] * 0.1), ("n",), {})
    monkeypatch.setattr(statements, "prove_elsewhere", lying_prover("exact"))
    found = check_statement(made)
    assert found.domain is not None
    assert found.domain.exactness == "real"


def test_the_solvers_inputs_refute() -> None:
    key = 0x5DEECE66  # no value that is drawn
    made = make_statement("s", lambda i: jnp.where(i * 5 + 1 == key, 1, 0) + 0 * i, lambda i: 0 * i, ("int32[n]",), {})
    found = check_statement(made)
    assert found.status == REFUTED
    assert found.counterexample is not None


def test_entries_of_a_model_are_inputs() -> None:
    made = make_statement("s", lambda i: i, lambda i: jnp.where(i == -7, 0, i), ("int8[n]",), {})
    pair, _ = statements.traced_pair(made)
    found = differ_on(pair, {"n": 2}, {"i": (3, 249)})
    assert found is not None
    assert found.index == (1,)
    assert differ_on(pair, {"n": 2}, {"i": (3, 9)}) is None
    assert differ_on(Pairing(made.left, made.right, made.specs), {"n": 2}, {"i": (3, 249, 1)}) is None, (
        "they do not fit"
    )


# ---- rules by XLA, and pairs of models


@pytest.mark.parametrize(("exactness", "dtypes", "text"), [RULES[0][1:], RULES[4][1:], RULES[5][1:]])
def test_rules_are_evaluated_by_xla(exactness: str, dtypes: tuple[str, ...], text: str) -> None:
    assert by_xla(parse(f"planted: {text}"), domain(exactness, dtypes)).endswith("by XLA")
    assert not by_xla(parse("r: A[*a]  B[*a]\n  A - B  ==  A + (-B)"), domain("real", INT))


def filled(x: Node, value: float) -> Node:
    return mk("broadcast_in_dim", literal(value, x.dtype), shape=x.shape, broadcast_dimensions=())


PAIRS = [
    ("numbers", "real", "float32", lambda x: mk("sub", x, x), lambda x: x),
    ("NaN", "exact", "float32", lambda x: x, lambda x: mk("select_n", mk("eq", x, x), filled(x, 0.0), x)),
    ("integers", "exact", "int32", lambda x: mk("div", mk("mul", x, x), x), lambda x: x),
]


@pytest.mark.parametrize(("exactness", "dtype", "f", "g"), [p[1:] for p in PAIRS], ids=[p[0] for p in PAIRS])
def test_a_false_proof_of_a_pair_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, exactness: str, dtype: str, f: Function, g: Function
) -> None:
    x = make_input("x", (2, 3), dtype)
    one, two = Graph((x,), (f(x),)), Graph((x,), (g(x),))

    def lying(first: Graph, *_: Any) -> PairProof:
        return PairProof(outputs=first.outputs, image={}, exactness=exactness)

    monkeypatch.setattr(pair_verdict, "prove_by_steps", lying)
    with pytest.raises(ProverDefectError, match=DEFECT):
        pair_verdict.compare_graphs(one, two)
