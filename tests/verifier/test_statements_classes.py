"""The table of what each class of exactness forgets, in docs/trust.md, row by row against the prover alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from verifier.statements.statement import make_statement, proved_alone

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
ROWS = re.findall(r"^\| (.+) \| `(.+)` is `(.+)` \| (exact|real|range|no) \|$", PAGE.read_text(encoding="utf-8"), re.M)
KINDS = {"x": "float32", "y": "float32", "z": "float32", "h": "bfloat16", "k": "bfloat16", "i": "int32", "j": "int32",
         "p": "bool", "q": "bool"}  # fmt: skip


def function(text: str) -> Any:
    def of(**given: Any) -> Any:
        return eval(text, {"jnp": jnp, "jax": jax, "n": given["x"].shape[0], **given})

    return lambda x, y, z, h, k, i, j, p, q: of(x=x, y=y, z=z, h=h, k=k, i=i, j=j, p=p, q=q)


@pytest.mark.parametrize(("law", "left", "right", "wanted"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_the_table_of_classes_is_what_the_prover_does(law: str, left: str, right: str, wanted: str) -> None:
    specs = tuple(f"{kind}[n]" for kind in KINDS.values())
    found = proved_alone(make_statement(law, function(left), function(right), specs, {}, ("n >= 1",)))
    assert (found.domain.exactness if found.domain else "no") == wanted, found


def test_the_table_has_all_classes() -> None:
    assert len(ROWS) > 30
    assert {row[3] for row in ROWS} == {"exact", "real", "range", "no"}
