"""Rules from pairs of functions: the lemmas of a pair, their lifting and proof, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

from rewrites.language.parse import parse
from superopt.commands.main import cli
from superopt.errors import ArgumentError
from superopt.lab.discovery.judge import NEW, Judged, judge
from superopt.lab.discovery.pairs import PairLemma, lemmas, pair
from verifier.rules.check import check
from verifier.verdict import PROVED, REFUTED

X, W, Y = (
    np.random.default_rng(k).standard_normal(shape, np.float32) for k, shape in enumerate([(6, 5), (5, 7), (7, 3)])
)
IMAGES = np.random.default_rng(3).standard_normal((2, 4, 5), np.float32)


def of(written: Callable[..., Any], wanted: Callable[..., Any], *args: np.ndarray) -> list[PairLemma]:
    return lemmas(pair("p", written, wanted, args))


def judged(lemma: PairLemma) -> Judged:
    said = [judge(d.text(), d, "found", (), library=False) for d in lemma.drafts]
    return next((x for x in said if x.status == NEW), said[-1])


def test_another_order_of_products_is_a_rule_for_all_ranks() -> None:
    (lemma,) = of(lambda a, b, c: (a @ b) @ c, lambda a, b, c: a @ (b @ c), X, W, Y)
    said = judged(lemma)
    assert said.status == NEW
    rule = parse(said.text, where="test")
    assert check(rule).status == PROVED
    assert "*m" in said.text


def test_the_equations_of_a_pair_are_between_values_that_both_programs_have() -> None:
    def written(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.exp((x @ w) @ v) * 2.0)

    def wanted(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.exp(x @ (w @ v)) * 2.0)

    (lemma,) = of(written, wanted, X, W, Y)
    assert not any(f in judged(lemma).text for f in ("tanh", "exp", "2"))


def test_a_mean_after_a_linear_layer_needs_an_element() -> None:
    w, b = W[:, :4], Y[:4, 0]
    (lemma,) = of(lambda x, w, b: jnp.mean(x @ w + b, 1), lambda x, w, b: jnp.mean(x, 1) @ w + b, IMAGES, w, b)
    said = judged(lemma)
    assert said.status == NEW
    assert "count(" in said.text
    assert ">= 1" in said.text


def test_terms_that_cancel_are_a_class_of_their_own() -> None:
    def wanted(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(x * x, -1)[:, None] + jnp.sum(y * y, -1)[None] - 2 * (x @ y.T)

    (lemma,) = of(lambda x, y: jnp.sum((x[:, None] - y[None]) ** 2, -1), wanted, X, W.T)
    said = judged(lemma)
    assert said.status == NEW
    assert "numerics range" in said.text


def test_a_number_of_both_forms_is_any_number() -> None:
    (lemma,) = of(lambda x, w: (x @ w) * 3.25, lambda x, w: x @ (w * 3.25), X, W)
    assert judged(lemma).status == NEW
    assert "3.25" not in judged(lemma).text


def test_what_is_equal_on_the_example_alone_is_no_rule() -> None:
    (lemma,) = of(lambda x: jnp.abs(x), lambda x: x * 1.0, np.abs(X))
    assert {judge(d.text(), d, "found", (), library=False).status for d in lemma.drafts} == {REFUTED}


def test_equal_functions_have_no_lemma() -> None:
    assert of(lambda x: jnp.exp(x) @ W, lambda x: jnp.exp(x) @ W, X) == []


@pytest.mark.parametrize("other", [W + 1, None])
def test_forms_that_close_over_other_arrays_are_refused(other: np.ndarray | None) -> None:
    with pytest.raises(ArgumentError, match="close over"):
        of(lambda x: x @ W, lambda x: x if other is None else x @ other, X)


@pytest.mark.parametrize(
    ("written", "wanted", "reason"),
    [
        (lambda x: jnp.diag(x[0]) @ W, lambda x: x[0][:, None] * W, "would be one"),
        (lambda x: (x * 2.0).reshape(-1), lambda x: (x + x).reshape(15, 2).reshape(-1), ""),
        (lambda x: jnp.cumsum(x, 0)[-1], lambda x: jnp.sum(x, 0), "the operation"),
    ],
)
def test_what_the_language_does_not_say_is_told(written: Any, wanted: Any, reason: str) -> None:
    told = of(written, wanted, X)
    assert told
    assert reason in " ".join(x.reason for x in told)


def test_values_around_a_loop_are_compared() -> None:
    def written(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return lax.scan(lambda c, row: (c + row, c), jnp.zeros(3), (x @ w) @ v)[1]

    def wanted(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return lax.scan(lambda c, row: (c + row, c), jnp.zeros(3), x @ (w @ v))[1]

    (lemma,) = [x for x in of(written, wanted, X, W, Y) if x.drafts]
    assert judged(lemma).status == NEW


FILE = """
import numpy as np
from jax.numpy import exp

def pairs():
    x = np.ones((64, 32), np.float32)
    x[0] = 2
    return {
        "two exponentials": (lambda a, b: exp(a) * exp(b), lambda a, b: exp(a + b), (x, x + 1)),
        "too few arguments": (lambda a, b: a, lambda a: a, (x,)),
    }
"""


def test_the_command_says_on_which_pair_a_rule_pays(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    ran = CliRunner().invoke(cli, ["discover", "--bare", "--from", f"{tmp_path / 'own.py'}:pairs", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.output[ran.output.index("{") :])
    assert told["rules"] == told["paid"] == 1
    (text,) = told["texts"]
    assert text.startswith("# pays on two exponentials\n")
    good, bad = told["rows"]
    assert good["ratio"] > 1.0
    assert bad["failure"]


@pytest.mark.parametrize("text", ["def pairs(): return {}", "def pairs(): return {'a': 3}", "def other(): pass"])
def test_a_file_without_pairs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text(text)
    ran = CliRunner().invoke(cli, ["discover", "--from", f"{tmp_path / 'own.py'}:pairs"])
    assert ran.exit_code in (1, 2), ran.output
    assert "Traceback" not in ran.output
