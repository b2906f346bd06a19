"""Floats beside integers that wrap: their comparisons are truth values of which the prover's integers know nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from superopt.ir.graph import Graph, literal, make_input, mk
from tests.support.sampling import one_in, sampled
from verifier.equal.equality import Proof, Stop
from verifier.statements.prove import Pair, prove_pair
from verifier.statements.statement import make_statement, proved_alone

KINDS = {"x": "float32", "y": "float32", "h": "bfloat16", "i": "int32", "j": "int32", "k": "int8", "p": "bool"}
TRUE = [
    ("jnp.where(x > y, i * (j + 1), i)", "jnp.where(x > y, i * j + i, i)"),
    ("jnp.where(x > y, i * (j + 1), i)", "jnp.where(y < x, i + j * i, i)"),
    ("jnp.where(x >= y, i ^ i, i)", "jnp.where(y <= x, 0, i)"),
    ("jnp.where(~(x < y), i + j, i - j)", "jnp.where(x < y, i - j, j + i)"),
    ("i * jnp.where(x * y < x, j, 1)", "jnp.where(y * x < x, j * i, i)"),
    ("jnp.where((x < y) & (i > j), (i + j) * (i - j), 0)", "jnp.where((j < i) & (x < y), i * i - j * j, 0)"),
    ("jnp.where(x == y, i << 1, i & 7)", "jnp.where(y == x, i + i, i % 8)"),
    ("jnp.where(jnp.isfinite(x), k + k, k) * k", "jnp.where(jnp.isfinite(x), k * k * 2, k * k)"),
    ("jnp.round(x).astype('int32') * (i + 1)", "jnp.round(x).astype('int32') + jnp.round(x).astype('int32') * i"),
    ("(x < y) ^ ((i + j) * 2 == i)", "((j + i) + (i + j) == i) ^ (y > x)"),
    ("jnp.where(jnp.any(x > y), i * (j + 1), i)", "jnp.where(jnp.any(y < x), i * j + i, i)"),
    ("jnp.where(h * h < h, i * (j + 1), j)", "jnp.where(h * h < h, i * j + i, j)"),
]
FALSE = [
    ("jnp.where(~(y < x), i ^ i, i)", "jnp.where(y >= x, i ^ i, i)"),
    ("jnp.where(~(x < y), i * (j + 1), i)", "jnp.where(x >= y, i * j + i, i)"),
    ("jnp.where((x < y) | (x >= y), i * i, i + j)", "i * i + 0 * j"),
    ("jnp.where((x < y) & (y < x), i * j, i)", "jnp.where(x == y, i * j, i)"),
    ("jnp.where(x + y - y < x, i * (j + 1), i)", "i + 0 * j"),
    ("jnp.where(x < y, i * (j + 1), i)", "jnp.where(x <= y, i * j + i, i)"),
    ("jnp.where(x > y, i * (j + 1), i)", "jnp.where(y > x, i * j + i, i)"),
    ("jnp.where(x < y, i * i, i)", "jnp.where(x.astype('bfloat16') < y.astype('bfloat16'), i * i, i)"),
    ("jnp.where(x < y, i * i, i)", "jnp.where(x - y < 0, i * i, i)"),
    ("jnp.where(jnp.float32(n) / 2 == 1, i * j, i)",
     "jnp.where((jnp.float32(n) / 2 >= 1) & (jnp.float32(n) / 2 < 2), i * j, i)"),
    ("(x + y).astype('int32') * (i + 1)", "(x.astype('int32') + y.astype('int32')) * (i + 1)"),
    ("jnp.where((i & 1).astype('float32') < x, i * i, j)", "jnp.where(i.astype('float32') < x, i * i, j)"),
    ("x.astype('int8').astype('int32') * (i + 1)", "x.astype('int32') * (i + 1)"),
    ("jnp.where(x < y, k + k, k).astype('int32')", "jnp.where(x < y, 2 * k.astype('int32'), k.astype('int32'))"),
]  # fmt: skip
# what class real takes for granted, it takes for granted beside integers, too
REAL = [
    ("jnp.where(x == x, i * (j + 1), i)", "i * j + i"),
    ("jnp.where(h * h < h, i * i, i)", "jnp.where(h.astype('float32') * h.astype('float32') < h, i * i, i)"),
    ("jnp.where(i * i == j, 0.0, -0.0)", "jnp.where(i * i == j, 0.0, 0.0)"),
]


def _proved(left: str, right: str) -> Any:
    def function(text: str) -> Any:
        def of(x: Any, y: Any, h: Any, i: Any, j: Any, k: Any, p: Any) -> Any:
            given = {"x": x, "y": y, "h": h, "i": i, "j": j, "k": k, "p": p}
            return eval(text, {"jnp": jnp, "jax": jax, "n": x.shape[0], **given})

        return of

    specs = tuple(f"{kind}[n]" for kind in KINDS.values())
    return proved_alone(make_statement("beside", function(left), function(right), specs, {}, ("n >= 1",)))


@pytest.mark.parametrize(("left", "right"), sampled(TRUE, one_in(3)))
def test_integers_chosen_by_floats_are_proved_where_the_choice_is_the_same(left: str, right: str) -> None:
    found = _proved(left, right)
    assert found.domain is not None, found.cause
    assert found.domain.exactness == "exact"


@pytest.mark.parametrize(("left", "right"), REAL)
def test_what_holds_of_real_numbers_is_not_exact(left: str, right: str) -> None:
    found = _proved(left, right)
    assert found.domain is None or found.domain.exactness == "real"


@pytest.mark.parametrize(("left", "right"), sampled(FALSE, one_in(3)))
def test_nothing_is_known_of_two_comparisons_of_floats(left: str, right: str) -> None:
    assert _proved(left, right).domain is None


def test_what_is_made_of_floats_is_no_input_of_the_program() -> None:
    x, n = make_input("x", (), "float32"), make_input("of floats 0", (), "int32")
    more = mk("add", n, literal(1, "int32"))
    sides = [Graph((x, n), (mk("mul", y, more),)) for y in (mk("convert_element_type", x, new_dtype="int32"), n)]
    with pytest.raises(Stop):
        prove_pair(Pair(*sides, sizes=(), lowest=1), Proof())
