"""Two JAX functions of pytrees compared leaf by leaf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from jax import lax

from superopt.commands.main import cli
from superopt.equivalence.functions import LOAD, compare_functions
from superopt.equivalence.refute import plain_integers
from superopt.errors import InputError
from superopt.frontends.jax.jaxpr import import_function
from tests.support.pasted import executed
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


def test_all_sizes_leaf_by_leaf(tmp_path: Path) -> None:
    text = "import jax.numpy as jnp\ndef make():\n    return (lambda p, x: {0}), ({{'w': 'k n'}}, 'm k')\n"
    bodies = {
        "a": "{'y': jnp.tanh(x @ p['w']).T, 's': x.sum() + 1}",
        "b": "{'y': jnp.tanh(p['w'].T @ x.T), 's': 1 + x.sum(1).sum()}",
        "c": "{'y': jnp.tanh(p['w'].T @ x.T), 's': x.sum()}",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(text.replace("{0}", body).replace("{{", "{").replace("}}", "}"))
    a, b, c = (f"{tmp_path}/{name}.py:make" for name in "abc")
    found = CliRunner().invoke(cli, ["verify", a, b])
    assert found.exit_code == 0, found.output
    assert "2 of 2 outputs proved" in found.output
    assert "for all sizes" in found.output.splitlines()[0]
    wrong = json.loads(CliRunner().invoke(cli, ["verify", a, c, "--json"]).stdout)
    assert {o["name"]: o["status"] for o in wrong["outputs"]} == {"result['s']": REFUTED, "result['y']": PROVED}
    assert "array" in wrong["code"]


def test_what_is_open_for_all_sizes_is_compared_at_given_ones() -> None:
    def one(x: Any) -> Any:
        return jnp.sort(x) * 2, x + 1

    def two(x: Any) -> Any:
        return 2 * jnp.sort(x), 1 + x

    found = compare_functions(one, two, "n", sizes={"n": 5})
    assert found.status == PROVED, str(found)
    assert "result[0] at n = 5 alone" in str(found).splitlines()[0] or "alone" not in str(found)
    with pytest.raises(InputError, match="frozen"):
        compare_functions(one, two, "n", frozen=0)


MAKERS = """
import jax
import jax.numpy as jnp
P, S = {"w": "n 4", "b": "4"}, %s
def one(p, x):
    return {"y": x @ p["w"] + p["b"], "total": x.sum()}
def two(p, x):
    return {"y": p["b"] - x @ p["w"], "total": x.sum()}
def a(): return one, (P, S)
def b(): return two, (P, S)
"""


def test_two_files_are_refuted_with_a_text_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "makers.py"
    path.write_text(MAKERS % '"m n"')
    told = CliRunner().invoke(cli, ["verify", f"{path}:a", f"{path}:b", "--json"])
    found = json.loads(told.output)
    assert found["status"] == REFUTED
    assert [o["status"] for o in found["outputs"]] == [PROVED, REFUTED]
    names = executed(found["code"])
    assert not np.allclose(names["x"], names["y"], rtol=1e-6)


INTEGERS: list[tuple[str, Any, Any]] = [
    ("int32", lambda i: i * i, lambda i: i),
    ("int32", lambda i: i // 2, lambda i: lax.div(i, 2)),
    ("int8", lambda i: jnp.maximum(i, 0), lambda i: i),
]


@pytest.mark.parametrize(("dtype", "f", "g"), INTEGERS)
def test_integers_tell_programs_apart_that_agree_on_0_and_1(dtype: str, f: Any, g: Any) -> None:
    found = compare_functions(f, g, np.ones(16, dtype))
    assert found.status == REFUTED, str(found)
    names: dict[str, Any] = {"f": f, "g": g}
    exec(found.code.replace(LOAD, "a, b = (lambda i, h=h: [h(i)] for h in (f, g))"), names)
    assert (names["x"] != names["y"]).any()


def test_integers_that_choose_or_count_stay_0_and_1() -> None:
    def chosen(i: Any, n: Any, j: Any, x: Any) -> Any:
        return x[i + 1] * lax.fori_loop(0, n, lambda _, y: y * x, x) + j

    args = np.int32(1), np.int32(3), np.int32(2), np.ones(4, np.int32)
    assert plain_integers([import_function(chosen, args).graph]) == (2,)


def test_masks_of_0_and_1_tell_programs_apart_that_have_no_numbers_elsewhere() -> None:
    def masked(x: Any, m: Any) -> Any:
        return jax.nn.softmax(x + (1 - m) * jnp.finfo("float32").min)

    x, m = np.ones((4, 16), np.float32), np.ones((4, 16), np.int32)
    found = compare_functions(masked, lambda x, m: masked(2 * x, m), x, m)
    assert found.status == REFUTED, str(found)
