"""Statements about JAX functions: verdicts, counterexamples, domains, obligations, lifting, files."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import superopt
from rewrites.language.show import show
from rewrites.language.term import Rule
from rewrites.lift.lifting import Unliftable, lift
from superopt.certify.rule_files import verify_files
from superopt.errors import InputError, RuleError, UsageError, VerificationError
from superopt.frontends.symbolic.graphs import parameters_of, trace_symbolic
from superopt.frontends.symbolic.specs import read_specs, read_type
from tests.support.sampling import one_in, sampled
from tests.support.statement_cases import CASES
from verifier.equal.equality import Proof
from verifier.rules.shrink import simplest
from verifier.statements.refute import tiny_sizes
from verifier.statements.statement import Statement, check_statement, make_statement, proved_alone
from verifier.verdict import PROVED, REFUTED, UNKNOWN, UNSUPPORTED, Verdict


@functools.cache
def statement(name: str) -> Statement:
    _, left, right, specs, constraints, _ = next(case for case in CASES if case[0] == name)
    return make_statement(name, left, right, specs, {}, constraints)


@functools.cache
def verdict(name: str) -> Verdict:
    return check_statement(statement(name))


@pytest.mark.parametrize(
    ("name", "wanted"),
    sampled(((c[0], c[5]) for c in CASES), one_in(9, lambda case: [case[1]])),
)
def test_ordinary_statements_are_decided(name: str, wanted: str) -> None:
    found = verdict(name)
    assert (found.status, found.cause) == (wanted, "")
    assert (found.domain is not None) == (wanted == PROVED)
    assert (found.counterexample is not None) == (wanted == REFUTED)


@pytest.mark.parametrize("name", sampled([case[0] for case in CASES if case[5] == PROVED], one_in(3)))
def test_true_statements_are_proved_by_the_prover_alone(name: str) -> None:
    found = proved_alone(statement(name))
    assert (found.status, found.cause) == (PROVED, "")
    assert found.domain is not None


def test_there_are_enough_statements() -> None:
    assert len(CASES) >= 100
    assert sum(case[5] == REFUTED for case in CASES) >= 25


@pytest.mark.parametrize("name", [case[0] for case in CASES if case[5] == REFUTED and "block-with" not in case[0]])
def test_the_prover_alone_proves_nothing_false(name: str) -> None:
    from verifier.statements.statement import _proved, traced_pair  # the proof without the search for a counterexample

    pair, problem = traced_pair(statement(name))
    alone = _proved(pair, Verdict(name, "", "", "statement", UNKNOWN), Proof(), problem)
    assert alone.status != PROVED


@pytest.mark.parametrize("name", ["matmul-commutes", "softmax-shift-along-axis", "halves", "dynamic-slices-compose"])
def test_counterexample_is_a_test_that_fails(name: str) -> None:
    found = verdict(name).counterexample
    assert found is not None
    assert found.elements <= 20
    scope: dict[str, Any] = {}
    exec(found.code, scope)
    test = scope["test_" + name.replace("-", "_")]
    with pytest.raises(AssertionError):
        test()


def test_counterexample_without_a_right_side() -> None:
    found = superopt.verify(lambda a, b: a @ b, lambda a, b: b @ a, "m k", "k n")
    assert found.status == REFUTED
    wrong = superopt.verify(lambda x: x, lambda x: x.reshape(3), "n")
    assert wrong.status == REFUTED
    assert "cannot be traced" in wrong.counterexample.right
    assert "raise ValueError" in wrong.counterexample.code


def whole(x: Any) -> Any:
    return x


def only_of_three(x: Any) -> Any:
    return x.reshape(3)


def never(x: Any) -> Any:
    return x.absent


@pytest.mark.parametrize(("fails", "how"), [(only_of_three, "cannot be traced: "), (never, "raises AttributeError: ")])
def test_both_sides_that_fail_are_told_alike(fails: Callable[..., Any], how: str) -> None:
    for side, pair in (("left", (fails, whole)), ("right", (whole, fails))):
        found = superopt.verify(*pair, "n")
        assert found.status == REFUTED
        shown = found.counterexample
        assert shown is not None
        assert shown.failed == side
        assert str(found).splitlines()[-1].startswith(f"  the {side} side {how}")
        assert f"# the {side} side {how}" in shown.code
        scope: dict[str, Any] = {}
        exec(shown.code, scope)
        with pytest.raises(ValueError, match=how):
            next(run for name, run in scope.items() if name.startswith("test_"))()
        assert "the function" not in str(found)


def test_a_side_that_refuses_empty_arrays_restricts_the_sizes() -> None:
    def not_empty(x: Any) -> Any:
        return x.reshape(1 if x.shape[0] == 0 else x.shape[0])

    for pair in ((not_empty, whole), (whole, not_empty)):
        found = superopt.verify(*pair, "n")
        assert found.status == PROVED
        assert found.domain is not None
        assert "every size is at least 1" in found.domain.assumptions


def test_two_sides_that_fail_have_no_verdict() -> None:
    found = superopt.verify(never, never, "n")
    assert found.status == UNSUPPORTED
    assert found.cause.startswith("at symbolic sizes, the left side raises AttributeError: ")


# ---- domains


def test_domain_says_sizes_ranks_and_types() -> None:
    domain = verdict("lora-fold").domain
    assert domain is not None
    assert dict(domain.ranks) == {"m": "any", "k": "any", "n": "any", "r": "any"}
    assert domain.exactness == "real"
    assert domain.dtypes == ("float32",)
    assert domain.assumptions == ("inputs and intermediate values are finite",)
    assert dict(domain.sizes) == {"m": 1, "k": 1, "n": 1, "r": 1}


def test_ranks_as_given_where_nothing_lifts() -> None:
    domain = verdict("triangles-partition").domain
    assert domain is not None
    assert domain.ranks == (("n", "1"),)


def test_exactness_is_computed() -> None:
    for wanted, names in {
        "exact": ("where-commutes-with-exp", "reverse-twice", "half-precision-sum"),
        "real": ("matmul-associates", "clip-idempotent"),
        "range": ("tanh-by-sigmoid", "exp-of-sum"),
    }.items():
        assert {getattr(verdict(name).domain, "exactness", "") for name in names} == {wanted}


def test_sizes_from_one_where_jax_needs_it() -> None:
    assert "every size is at least 1" in verdict("reverse-by-index").domain.assumptions  # type: ignore[union-attr]
    assert "every size is at least 1" not in verdict("transpose-twice").domain.assumptions  # type: ignore[union-attr]


def test_false_only_for_empty_arrays() -> None:
    found = superopt.verify(lambda x: jnp.where(x.shape[0] > 0, 0.0, 1.0), lambda x: 0.0 * jnp.float32(1), "n")
    assert found.status in (REFUTED, UNKNOWN, PROVED)
    emptied = superopt.verify(lambda x: (x - x).sum() + (1.0 if x.size == 0 else 0.0), lambda x: 0.0 * x.sum(), "n")
    assert emptied.status != PROVED  # its code takes another branch at size 0


def test_code_that_depends_on_sizes_is_noticed() -> None:
    def shy(x: jax.Array) -> jax.Array:
        return x * 2 if x.shape[0] == 1 else x

    found = superopt.verify(shy, lambda x: x, "n")
    assert found.status == REFUTED  # at n = 1
    agreed = superopt.verify(shy, shy, "n")
    assert agreed.status == UNKNOWN
    assert "depends on sizes" in agreed.cause


def test_condition_under_which_it_holds() -> None:
    assert verdict("transposed-product-unswapped").proved_when == "n == 1"
    found = superopt.verify(lambda a, b: a.mean() + b.mean(), lambda a, b: (a.sum() + b.sum()) / a.size, "m", "n")
    assert found.proved_when == "m == n"


# ---- constraints and specifications


def test_constraints_bound_what_is_claimed() -> None:
    f, g = lambda x: x[1:] + x[:-1], lambda x: x[:-1] + x[1:]
    assert superopt.verify(f, g, "n", constraints=("n >= 1",)).status == PROVED
    halves = superopt.verify(
        lambda x: x.reshape(2, x.shape[0] // 2).sum(0), lambda x: x[: x.shape[0] // 2] + x[x.shape[0] // 2 :],
        x="n", constraints="n % 2 == 0",
    )  # fmt: skip
    assert halves.status == PROVED
    assert superopt.verify(
        lambda a, b: a @ b, lambda a, b: b @ a, "m n", "n m", constraints=("m == n", "n == 1")
    ).proved


@pytest.mark.parametrize(("width", "status"), [(3, PROVED), (2, REFUTED)])
def test_constraints_say_that_a_window_fits(width: int, status: str) -> None:
    found = superopt.verify(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "VALID"),
        lambda x: functools.reduce(jnp.maximum, [x[i : x.shape[0] - 2 + i] for i in range(width)]),
        "n", constraints=("n >= 2",),
    )  # fmt: skip
    assert found.status == status, str(found)


def test_contradicting_constraints_are_refused() -> None:
    with pytest.raises(InputError, match="contradict"):
        superopt.verify(lambda x: x, lambda x: x, "n", constraints=("n == 2", "n >= 3"))
    vacuous = superopt.verify(lambda x: x, lambda x: x + 1, "n m", constraints=("n >= m + 1", "m >= n"))
    assert vacuous.status == UNKNOWN
    assert "no sizes" in vacuous.cause


def test_specifications() -> None:
    assert str(read_type("4*n, 3")) == "f32[4*n,3]"
    assert str(read_type("int32[b t]")) == "i32[b,t]"
    assert str(read_type(("m k", "bfloat16"))) == "bf16[m,k]"
    assert str(read_type("[n]")) == "f32[n]"
    assert str(read_type("")) == "f32[]"
    assert str(read_type(jax.ShapeDtypeStruct((2, 3), jnp.int8))) == "i8[2,3]"
    specs = read_specs(["p", "x"], ({"w": "k n", "b": "n"},), {"x": "m k"}, ("k % 4 == 0",))
    assert specs.names == ("p_b", "p_w", "x")
    assert specs.solved == (("k", "4*k_"),)
    assert next(tiny_sizes(specs, 1)) == dict.fromkeys(specs.sizes, 2)
    assert specs.shapes({"m": 5, "k_": 2, "n": 3}) == [(3,), (8, 3), (5, 8)]


@pytest.mark.parametrize("bad", ["n$", "float99[n]", "m k]", 3, None])
def test_bad_specifications(bad: Any) -> None:
    with pytest.raises(InputError):
        superopt.verify(lambda x: x, lambda x: x, bad)


@pytest.mark.parametrize("bad", ["n", "n !! 2", "n != 2", "n >= q$"])
def test_bad_constraints(bad: str) -> None:
    with pytest.raises(InputError):
        superopt.verify(lambda x: x, lambda x: x, "n", constraints=(bad,))


# ---- what is outside


def ordered(x: jax.Array) -> jax.Array:
    """A sort by two keys, of which the prover knows nothing."""
    return lax.sort((x, x), num_keys=2)[0]


def test_unsupported_names_the_operation() -> None:
    found = superopt.verify(lambda x: ordered(x)[::-1], lambda x: -ordered(-x), "n")
    assert found.status == UNSUPPORTED
    assert "sort" in found.cause


def test_unsupported_operations_can_be_refuted_all_the_same() -> None:
    assert superopt.verify(lambda x: jnp.sort(x), lambda x: x, "n").status == REFUTED


TIES = {
    "halves": (jnp.round, lambda x: jnp.floor(x + 0.5), "n"),
    "between two neighbours of a type": (lambda x: x, lambda x: x + ((x > 256) & (x < 258)), "int32[n]"),
}


@pytest.mark.parametrize("name", TIES)
def test_ties_are_among_what_the_refuter_draws(name: str) -> None:
    left, right, shape = TIES[name]
    assert superopt.verify(left, right, shape).status == REFUTED


def tripled(x):
    return jax.lax.mul(x, jnp.full_like(x, 3.1, "bfloat16"))


def narrow(x):
    return x.astype("bfloat16")


HALVES = ("bfloat16[n+1]", "bfloat16[n+1]")
SORTED = {
    "roundings of few bits": (lambda x, y: ordered(x * y)[0], lambda x, y: (x * y).min(), HALVES),
    "roundings that a cancellation shows": (lambda x: ordered(x / 3 + 1e5 - 1e5), lambda x: ordered(x / 3), ("n",)),
    "a conversion": (
        lambda x: ordered(narrow(x))[0].astype("float32"),
        lambda x: narrow(x).min().astype("float32"),
        ("n+1",),
    ),
    "types that float64 does not fit": (lambda x: ordered(tripled(x))[0], lambda x: tripled(x).min(), HALVES[:1]),
    "precision": (lambda x: jax.lax.reduce_precision(x, 8, 7), lambda x: narrow(x).astype("float32"), ("n",)),
}
UNSORTED = {
    "few bits": (lambda x: ordered(x)[0], lambda x: x.min() * 1.03, HALVES[:1]),
    "types that float64 does not fit": (lambda x: ordered(tripled(x))[0], lambda x: tripled(x).max(), HALVES[:1]),
    "a conversion": (lambda x: ordered(narrow(x)).astype("float32"), lambda x: ordered(x), ("n",)),
}


@pytest.mark.parametrize("name", SORTED)
def test_what_jax_rounds_refutes_nothing(name: str) -> None:
    """Where one side holds an operation of JAX's alone, the other is not computed without roundings."""
    f, g, shapes = SORTED[name]
    assert superopt.verify(f, g, *shapes).status == UNSUPPORTED


@pytest.mark.parametrize("name", UNSORTED)
def test_what_jax_computes_otherwise_is_refuted(name: str) -> None:
    f, g, shapes = UNSORTED[name]
    assert superopt.verify(f, g, *shapes).status == REFUTED


def test_functions_that_cannot_be_traced() -> None:
    def asks(x: Any) -> Any:
        return x.sum() if float(x.sum()) else x

    for side, pair in (("left", (asks, jnp.sum)), ("right", (jnp.sum, asks))):
        found = superopt.verify(*pair, "n")
        assert found.status == UNSUPPORTED
        assert found.cause.startswith(f"at symbolic sizes, the {side} side cannot be traced: ")


def test_loops_of_known_length_are_written_out() -> None:
    def looped(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (c * x, None), jnp.ones_like(x), None, length=3)[0]

    assert superopt.verify(looped, lambda x: x * x * x, "n").status == PROVED
    assert superopt.verify(looped, lambda x: x * x, "n").status == REFUTED
    chosen = superopt.verify(
        lambda p, x, y: lax.cond(p, lambda: x, lambda: y), lambda p, x, y: jnp.where(p, x, y), "bool[]", "n", "n"
    )
    assert chosen.status == PROVED


def test_closed_over_arrays() -> None:
    w = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    big = np.arange(200.0, dtype=np.float32)
    assert superopt.verify(lambda x: x @ w, lambda x: (w.T @ x.T).T, "n 2").status == PROVED
    assert superopt.verify(lambda x: x @ w[:1], lambda x: x * w[0], "n 1").status == PROVED
    assert superopt.verify(lambda x: x + big, lambda x: big.copy() + x, "200").status == PROVED
    assert superopt.verify(lambda x: x @ w, lambda x: x @ (w + 1), "n 2").status == REFUTED


# ---- lifting


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("transposed-product", "transposed-product: A[*m *k]  B[*k *n]\n  dot(A, B, k)  ==  dot(B, A, k)"),
        ("concat-of-products", "concat-of-products: X[m *k]  Y[m2 *k]  W[*k *p]\n"
         "  concat(dot(X, W, k), dot(Y, W, k), m)  ==  dot(concat(X, Y, m), W, k)"),
        ("scale-across-scores", "scale-across-scores: Q[*s *d]  K[*t *d]  S[*d]\n"
         "  dot(Q * S, K, d)  ==  dot(Q, K * S, d)"),
    ],
)  # fmt: skip
def test_lifted_text(name: str, text: str) -> None:
    case = next(c for c in CASES if c[0] == name)
    made = superopt.rule(case[1], case[2], *case[3], name=name)
    assert isinstance(made, Rule)
    assert show(made) == text


def test_two_outputs_lift_to_two_equations() -> None:
    case = next(c for c in CASES if c[0] == "block-columns")
    made = superopt.rule(case[1], case[2], *case[3], name="merge")
    assert len(made.lhs) == len(made.rhs) == 2
    assert made.many == {"m", "k"}  # the axis of the slices and of the concatenation stays one axis


def test_decorated_functions() -> None:
    @superopt.rule(x="m k", w="k n", a="k r", b="r n")
    def lora_fold(x, w, a, b):  # type: ignore[no-untyped-def]
        return x @ w + (x @ a) @ b, x @ (w + a @ b)

    assert lora_fold.name == "lora-fold"
    assert lora_fold.many == {"m", "k", "n", "r"}

    @superopt.statement("m k", "m", constraints="k >= 1")
    def softmax_shift(x, c):  # type: ignore[no-untyped-def]
        return jax.nn.softmax(x + c[:, None]), jax.nn.softmax(x)

    assert softmax_shift.name == "softmax-shift"
    assert superopt.verify(softmax_shift).status == PROVED


def test_rules_that_are_none() -> None:
    with pytest.raises(VerificationError, match="REFUTED") as wrong:
        superopt.rule(lambda a, b: a @ b, lambda a, b: b @ a, "n n", "n n")
    assert "they differ at" in str(wrong.value)
    with pytest.raises(RuleError, match="no rule over named axes"):
        superopt.rule(lambda x: jnp.tril(x) + jnp.triu(x, 1), lambda x: x, "n n")
    with pytest.raises(UsageError):
        superopt.rule(lambda x: x, "n")


def test_one_label_on_two_axes_is_refused() -> None:
    specs = read_specs(["a", "b"], ("n n", "n n"), {}, ())
    sides = [trace_symbolic(f, specs, 0).graph for f in (lambda a, b: a @ b, lambda a, b: b @ a)]
    with pytest.raises(Unliftable):
        lift("diagonal", *sides, specs.sizes)


def test_names_of_parameters() -> None:
    assert parameters_of(lambda x, *rest, w=1: x) == ["x"]
    found = superopt.verify(lambda x, w: x @ w, lambda x, w: (w.T @ x.T).T, w="k n", x="m k")
    assert found.status == PROVED


# ---- files


def test_file_of_statements(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        '''
import superopt

RULES = """
dot-assoc: A[*m *k]  B[*k *l]  C[*l *n]
  dot(dot(A, B, k), C, l)  ==  dot(A, dot(B, C, l), k)
"""

@superopt.rule(x="m k", s="m", w="k n")
def scale_moves(x, s, w):
    return (x * s[:, None]) @ w, (x @ w) * s[:, None]

commutes = superopt.statement(lambda a, b: a @ b, lambda a, b: b @ a, "n n", "n n", name="commutes")
superopt.rule(lambda a, b: a - b, lambda a, b: b - a, "n", "n", name="swapped")

if __name__ == "__main__":
    raise SystemExit("not run as a program")
'''
    )
    found = verify_files([str(file)])
    data, text = found.to_json(), str(found)
    assert [(row["rule"], row["status"]) for row in data["rows"]] == [
        ("dot-assoc", PROVED),
        ("scale-moves", PROVED),
        ("commutes", REFUTED),
        ("swapped", REFUTED),
    ]
    assert all({"ms", "status", "rule"} <= set(row) for row in data["rows"])
    assert data["rows"][1]["exactness"] == "real"
    assert "4 rules: 2 proved, 2 refuted" in text
    tests = [part.split("REFUTED")[0] for part in text.split("  as a test to paste:\n")[1:]]
    pasted: dict[str, Any] = {}
    exec(textwrap.dedent(tests[0]), pasted)
    with pytest.raises(AssertionError):
        pasted["test_commutes"]()
    chosen = verify_files([str(file)], ["comm"]).to_json()
    assert [row["rule"] for row in chosen["rows"]] == ["commutes"]


def test_file_that_cannot_be_run(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import superopt\nsuperopt.statement(1 / 0)\n")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        verify_files([str(file)])
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(InputError, match="makes no statement"):
        verify_files([str(empty)])


def test_causes_are_said_in_the_names_of_the_program() -> None:
    found = superopt.verify(
        lambda scores: jnp.sqrt(jnp.max(scores, -1) ** 2) / jnp.sum(jnp.exp(scores), -1),
        lambda scores: jnp.abs(jnp.max(scores, -1)) / jnp.sum(jnp.exp(scores), -1),
        "n m",
    )
    assert found.status == UNKNOWN
    assert "max(scores)" in found.cause
    for hidden in ("rmax", "value(", "#", "size^"):
        assert hidden not in found.cause, found.cause


def test_usage() -> None:
    for given in ((lambda x: x,), (3,), (lambda x: x, 3)):
        with pytest.raises(UsageError):
            superopt.verify(*given)


def test_a_scalar_integer_of_a_counterexample_is_made_simpler() -> None:
    def once(x: Any, i: Any, j: Any) -> Any:
        return lax.dynamic_slice(x, (jnp.clip(i, 0, x.shape[0] - 5) + jnp.clip(j, 0, 3),), (2,))

    def twice(x: Any, i: Any, j: Any) -> Any:
        return lax.dynamic_slice(lax.dynamic_slice(x, (i,), (5,)), (j,), (2,))

    found = superopt.verify(twice, once, "n", "int32[]", "int32[]", constraints=("n >= 5",))
    assert found.status == REFUTED  # JAX adds the size to an index below 0


def test_a_number_without_axes_is_made_simpler() -> None:
    start = {"i": np.asarray(np.int32(70_000))[()]}
    assert simplest(start, lambda given: given, lambda given: given if given["i"] > 1 else None)["i"] == 2
