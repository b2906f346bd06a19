"""Rule texts: reading, printing, errors, directions, keys."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewrites.language.direction import directions, reverse
from rewrites.language.kinds import agree, compares_positions
from rewrites.language.parse import parse, parse_many
from rewrites.language.show import equation, rule_key, show
from rewrites.language.term import Rule, Term, term
from rewrites.language.texts import distinct
from rewrites.library import by_name, load
from rewrites.lift.lifting import lift
from superopt.errors import RuleError
from superopt.ir.graph import Graph, make_input, mk
from superopt.ir.index import symbol
from tests.support.rules_texts import MORE, WRONG

TEXTS = parse_many(MORE, "texts:1") + parse_many(WRONG, "wrong:1")
ALL = load() + TEXTS


def test_operands_of_the_library_have_the_dtypes_that_their_functions_take() -> None:
    for rule in load():
        agree(rule)


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_printed_text_parses_back(rule: Rule) -> None:
    again = parse(show(rule), rule.where)
    assert (again.lhs, again.rhs, again.cond, again.prefer) == (rule.lhs, rule.rhs, rule.cond, rule.prefer)
    assert (again.vars, again.metas, again.params, again.mode) == (rule.vars, rule.metas, rule.params, rule.mode)
    assert (again.source, again.kinds, again.derived) == (rule.source, rule.kinds, rule.derived)
    assert show(again) == show(rule)
    assert rule_key(again) == rule_key(rule)


def test_library_rules_have_places_and_heads() -> None:
    assert len(load()) >= 40
    for rule in load():
        path, line = rule.where.rsplit(":", 1)
        assert path.startswith("rewrites/library/")
        with open(path, encoding="utf-8") as f:
            assert f.read().split("\n")[int(line) - 1].startswith(f"{rule.name}:")
        assert rule.heads, rule.name


def test_key_ignores_what_proofs_ignore() -> None:
    text = "scale: A[*a]  S[*a]\n  A * S  ==  S * A"
    base = rule_key(parse(text))
    assert rule_key(parse(text.replace("scale", "other") + "\n  prefer frozen(S)\n  mode near\n  source here")) == base
    assert rule_key(parse(text.replace("S * A", "A * S * 1"))) != base
    assert rule_key(parse(text.replace("A[*a]", "A[a]").replace("S[*a]", "S[a]"))) != base


def test_index_notation() -> None:
    rule = by_name("dot-scale-out")
    assert equation(rule) == "Σ_k (A[b,c,m,p,k] · S[b,m])·B[b,c,k,n]   =   (Σ_k A[b,c,m,p,k]·B[b,c,k,n] · S[b,m])"
    pointwise = equation(by_name("conv-pointwise"))
    assert pointwise == "Σ_c,s' X[b,g,c,t·s+s']·W[g,o,c]   =   Σ_c X[b,g,c,t·s]·W[g,o,c]", (
        "nothing is said of a dilation"
    )
    shifts = equation(by_name("depthwise-shifts"))
    assert shifts == "Σ_s' X[b,g,t·s+d·s'-p]·W[g,s']   =   Σ_r<s2 (pad_s:p/q(X[b,g,t·s+r * d]) · W[g,r])"


def test_rules_survive_pickling() -> None:
    rule = by_name("dot-merge")
    again = pickle.loads(pickle.dumps(rule))
    assert again.lhs == rule.lhs  # terms are interned: equality is identity
    assert rule_key(again) == rule_key(rule)


BROKEN = {
    "holds a role twice": "r: A[m m2]\n  exp(A) == exp(A)",
    "C is not bound on the left side": "r: A[*a]  C[*a]\n  exp(A) == A + C",
    "z is not bound on the left side": "r: A[*a n]\n  slice(A, n(s, e)) == slice(A, n(s, z))",
    "bare variable": "r: A[*a]\n  A == A + 0",
    "sigma cannot be matched": "r: A[*a k]\n  sigma(r < k, at(A, k(r))) == sum(A, k)",
    "different roles": "r: A[*a *k]\n  sum(A, k) == exp(A)",
    "dot over k": "r: A[*a *k]  B[*a]\n  dot(A, B, k) == sum(A * B, k)",
    "unknown op": "r: A[*a]\n  foo(A) == A",
    "unknown name": "r: A[*a]\n  exp(Z) == exp(A)",
    "cannot read the declaration": "r: A[*a] !\n  exp(A) == exp(A)",
    "both with and without": "r: A[*a]  B[a]\n  A + B == B + A",
    "not one of": "r: A[*a]\n  exp(A) == exp(A)\n  mode often",
    "one op over distinct": "r: A[*a]\n  exp(exp(A)) == exp(exp(A))\n  mode macro",
    "concat takes": "r: A[*n]  B[*n]\n  concat(A, B, n) == concat(A, B, n)",
    "one equation": "r: A[*a]\n  exp(A)",
    "integer expression": "r: A[*a n]\n  slice(A, n(s, e)) == slice(A, n(s, e / 2))",
    "no condition": "r: A[*a]\n  exp(A) == exp(A)\n  if frozen(A)",
    "mixes the axes": "r: A[*a *n *m]\n  slice(A, n(s), m(p)) == slice(A, m(p), n(s))\n  if s <= p",
    "declare it as extra": "r: A[*a n o i]\n  cumsum(A, n) == merge(split(A, n, o, i(2)), o, i, n)",
    "first line must be": "7r: A[*a]\n  exp(A) == exp(A)",
    "dtype 'half' is not int": "r: A[*a]\n  exp(A) == exp(A)\n  dtype half",
    "empty rule text": "# nothing but a comment\n",
    "premises about values": "r: A[*a]\n  exp(A) == exp(A)\n  given gt(A, 0)",
    "integer_pow takes a tensor": "r: A[*a]\n  integer_pow(A) == A",
    "split is written": "r: A[*a n]  extra o i\n  sum(A, n) == sum(split(A, n, o, i()), o)",
    "count takes one size token": "r: A[*a]\n  exp(A) == exp(A) * count()",
    "iota takes one size token": "r: A[n]\n  exp(A) == exp(A) + iota()",
    "sigma is written": "r: A[*a]\n  exp(A) == exp(A) + sigma()",
    "one term expected, got 2": "r: A[*a]\n  exp(A) == exp(T)\n  with T = A, A",
    "expected int, reducers": "r: q in \u00b2|3  A[*a]\n  exp(A) == exp(A)",
    "unmatched parentheses": "r: A[*a]\n  exp(A) * A) * exp(A == exp(A)",
    "free parameter": "r: q in 2|4  A[*a n]\n  slice(A, n(q, e)) == slice(A, n(q, e))",
}


@pytest.mark.parametrize("message", BROKEN, ids=lambda m: m.replace(" ", "-"))
def test_broken_texts_are_refused_with_reason(message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse(BROKEN[message], "file:7")


# texts of rules by chance: parts of real ones, exchanged, left out and doubled
PARTS = sorted({part for rule in ALL for part in re.findall(r"[A-Za-z_0-9]+|\n *|\S| ", show(rule))})


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_rule_that_prints_back_or_refused_with_its_place(data: st.DataObject) -> None:
    parts = re.findall(r"[A-Za-z_0-9]+|\n *|\S| ", show(data.draw(st.sampled_from(ALL))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(parts) - 1))
        parts[at : at + data.draw(st.integers(0, 2))] = data.draw(st.lists(st.sampled_from(PARTS), max_size=2))
    text = "".join(parts)
    refused = ""
    try:
        rule = parse(text, "file:7")
    except RuleError as error:
        refused = str(error)
    else:
        assert rule_key(parse(show(rule))) == rule_key(rule)
    assert not refused or "file:" in refused


def test_names_of_rules_are_their_own() -> None:
    a, b = parse("a: A[*a]\n  exp(A) == exp(A)"), parse("b: A[*a]\n  exp(A) == exp(A)")
    distinct([a, b], "rules")
    with pytest.raises(RuleError, match="rules defined twice: b"):
        distinct([b, a, b], "rules")


def test_errors_name_file_line_and_rule() -> None:
    text = "fine: A[*a]\n  exp(A) * 1 == exp(A)\n\nbad: A[*a]\n  exp(A) == exp(A)\n  if z > 1"
    with pytest.raises(RuleError, match=r"lib\.py:15: rule bad: z is not bound"):
        parse_many(text, "lib.py:10")
    with pytest.raises(RuleError, match=r"lib\.py:13: rule fine is already defined at lib\.py:10"):
        parse_many(text.replace("bad", "fine").replace("  if z > 1", ""), "lib.py:10")


def test_directions_are_computed_with_reasons() -> None:
    reasons = {r.name: directions(r)[1].reason for r in ALL}
    assert reasons["slice-concat-left"] == "B is not bound on the left side"
    assert reasons["conv-pad"] == "h, l, p, q not bound on the left side"
    assert reasons["wmax-shifts"] == "maxi cannot be matched"
    assert reasons["cumsum-blocked"] == "merge cannot be matched"
    assert reasons["softmax-shift"] == "C is not bound on the left side"
    assert "says that it is square" in reasons["solution-with-inverse"]
    assert reasons["conv-nhwc"] == "lay cannot be matched"
    backward = reverse(by_name("dot-assoc"))
    assert backward is not None
    assert (backward.lhs, backward.rhs) == (by_name("dot-assoc").rhs, by_name("dot-assoc").lhs)
    assert reverse(by_name("wmax-shifts")) is None


NUMBER, POSITION = term("lit", value=("n", 3)), term("iota", over=("i",))
INDEX, VALUE = term("var", name="I"), term("var", name="X")


@pytest.mark.parametrize(
    ("function", "left", "right", "wanted"),
    [
        ("lt", POSITION, NUMBER, True), ("lt", POSITION, POSITION, True), ("eq", INDEX, POSITION, True),
        ("ge", INDEX, NUMBER, True), ("lt", term("bcast", POSITION), NUMBER, True), ("lt", POSITION, VALUE, False),
        ("lt", VALUE, NUMBER, False), ("lt", NUMBER, NUMBER, False), ("add", POSITION, NUMBER, False),
    ],
)  # fmt: skip
def test_positions_are_compared_with_each_other_and_with_numbers(
    function: str, left: Term, right: Term, wanted: bool
) -> None:
    kinds = {"I": "int", "X": "float"}
    assert compares_positions(kinds, term("ew", left, right, f=function, params=())) == wanted
    assert compares_positions(kinds, term("ew", right, left, f=function, params=())) == wanted


@pytest.mark.parametrize(("op", "text"), [("neg", "(-X)"), ("exp", "exp(X)")])
def test_functions_of_graphs_have_their_texts(op: str, text: str) -> None:
    x = make_input("x", (symbol("n"),))
    graph = Graph((x,), (mk(op, x),))
    assert f"  {text}  ==  {text}" in lift("r", graph, graph, ("n",)).text()
