"""The table of what each class of exactness forgets, in docs/trust.md, row by row against the prover alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import superopt
from tests.support.pasted import executed
from tests.support.sampling import one_in, sampled
from verifier.statements.statement import make_statement, proved_alone

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
ROWS = re.findall(r"^\| (.+) \| `(.+)` is `(.+)` \| (exact|real|range|no) \|$", PAGE.read_text(encoding="utf-8"), re.M)
KINDS = {"x": "float32", "y": "float32", "z": "float32", "h": "bfloat16", "k": "bfloat16", "i": "int32", "j": "int32",
         "p": "bool", "q": "bool"}  # fmt: skip


def function(text: str) -> Any:
    def of(**given: Any) -> Any:
        return eval(text, {"jnp": jnp, "jax": jax, "n": given["x"].shape[0], **given})

    return lambda x, y, z, h, k, i, j, p, q: of(x=x, y=y, z=z, h=h, k=k, i=i, j=j, p=p, q=q)


@pytest.mark.parametrize(
    ("law", "left", "right", "wanted"),
    sampled(ROWS, one_in(3, lambda row: [row[3]])),
    ids=[row[0][:40] for row in ROWS],
)
def test_the_table_of_classes_is_what_the_prover_does(law: str, left: str, right: str, wanted: str) -> None:
    specs = tuple(f"{kind}[n]" for kind in KINDS.values())
    found = proved_alone(make_statement(law, function(left), function(right), specs, {}, ("n >= 1",)))
    assert (found.domain.exactness if found.domain else "no") == wanted, found


def test_the_table_has_all_classes() -> None:
    assert len(ROWS) > 30
    assert {row[3] for row in ROWS} == {"exact", "real", "range", "no"}


@pytest.mark.parametrize("dtype", ["complex64", "int4", "uint4", "float8_e4m3fn"])
def test_types_that_jax_alone_evaluates_are_refuted_or_unsupported(dtype: str):
    kind = jax.ShapeDtypeStruct((2, 3), dtype)
    assert superopt.verify(lambda x: x[::-1], lambda x: x, kind).status == "REFUTED"
    assert superopt.verify(lambda x: x.astype("float32"), lambda x: x.astype("float32"), kind).status != "REFUTED"


def test_a_random_key_is_refused_in_one_line():
    with pytest.raises(superopt.SuperoptError, match="key"):
        superopt.verify(lambda k: jax.random.key_data(k), lambda k: jax.random.key_data(k), jax.random.key(0))


def test_unknown_never_lacks_a_cause():
    verdict = superopt.verify(lambda x: -jnp.max(-x), lambda x: jnp.min(x), jax.ShapeDtypeStruct((6,), "int32"))
    assert verdict.proved or not verdict.cause.startswith(";")


CONVERSIONS = [
    ("uint64", "uint32"), ("float64", "float32"), ("float32", "float16"), ("float64", "bfloat16"), ("int64", "float32"),
    ("int32", "float32"), ("uint32", "float32"), ("int16", "bfloat16"), ("int16", "float16"), ("int64", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("wide", "narrow"), CONVERSIONS)
def test_values_that_a_narrower_type_lacks_are_refuted(wide: str, narrow: str):
    found = superopt.verify(lambda x: x.astype(narrow).astype(wide), lambda x: x, f"{wide}[n]")
    assert found.status == "REFUTED"
    assert found.counterexample is not None
    code = found.counterexample.code
    with pytest.raises(AssertionError):
        executed("\n".join([code, *re.findall(r"test_\w+\(\)", code), ""]))


def test_what_is_rounded_alike_is_not_refuted():
    found = superopt.verify(lambda x: -(x.astype("bfloat16")), lambda x: (-x).astype("bfloat16"), "n")
    assert found.status == "UNKNOWN"
