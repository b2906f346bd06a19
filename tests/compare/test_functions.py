"""Two JAX functions of pytrees compared leaf by leaf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

from superopt.commands.main import cli
from superopt.compare.functions import compare_functions
from superopt.errors import InputError
from verifier.verdict import PROVED, REFUTED

PARAMS = {
    "w": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32),
    "scale": np.array([0.3, 1.7, -2.1, 0.9], np.float32),
}
FOLDED = {"w": PARAMS["w"] * PARAMS["scale"]}
X = np.ones((2, 3), np.float32)


def plain(params: dict[str, Any], x: Any) -> dict[str, Any]:
    y = (x @ params["w"]) * params["scale"]
    return {"y": y, "parts": (jnp.tanh(y), y.T)}


def test_weights_folded_into_a_closure() -> None:
    def folded(params: dict[str, Any], x: Any) -> dict[str, Any]:
        y = (FOLDED["w"].T @ x.T).T
        return {"y": y, "parts": (jnp.tanh(y), y.T)}

    found = compare_functions(plain, folded, PARAMS, X, frozen=0)
    assert found.status == PROVED, str(found)
    assert [o.name for o in found.outputs] == ["result['parts'][0]", "result['parts'][1]", "result['y']"]
    assert found.apart > 0


def test_one_leaf_differs_and_the_first_operation_is_named() -> None:
    def wrong(params: dict[str, Any], x: Any) -> dict[str, Any]:
        y = (x @ params["w"]) * params["scale"]
        return {"y": y, "parts": (jnp.sinh(y), y.T)}

    found = compare_functions(plain, wrong, PARAMS, X)
    assert [o.status for o in found.outputs] == [REFUTED, PROVED, PROVED]
    assert found.differs.startswith("sinh f32[2,4]")


def test_the_command_compares_what_makers_give(tmp_path: Path) -> None:
    text = "import numpy as np\ndef make():\n    return (lambda a, b: {0}), (np.ones((2, 3)), np.ones((2, 3)))\n"
    for name, body in (("a", "a * b + a"), ("b", "a + b * a"), ("c", "b - a")):
        (tmp_path / f"{name}.py").write_text(text.format(body), encoding="utf-8")
    a, b, c = (f"{tmp_path}/{name}.py:make" for name in "abc")
    assert CliRunner().invoke(cli, ["verify", a, b]).exit_code == 0
    found = CliRunner().invoke(cli, ["verify", a, c, "--json"])
    assert found.exit_code == 3
    assert json.loads(found.stdout)["status"] == REFUTED
    assert CliRunner().invoke(cli, ["verify", a]).exit_code == 1


def test_results_of_two_structures() -> None:
    with pytest.raises(InputError, match="structures"):
        compare_functions(plain, lambda p, x: x, PARAMS, X)
