"""Two StableHLO modules compared by the command."""

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

from superopt.commands.main import cli
from tests.support.pasted import executed
from verifier.verdict import PROVED, REFUTED

X, W = np.ones((2, 3), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4) / 7


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def made(name: str, fn: Any, *args: Any) -> str:
        path = tmp_path / name
        if path.suffix == ".mlirbc":
            path.write_bytes(jax.export.export(jax.jit(fn))(*args).mlir_module_serialized)
        else:
            path.write_text(jax.jit(fn).lower(*args).as_text(), encoding="utf-8")
        return str(path)

    return made


def plain(x: Any) -> dict[str, Any]:
    return {"y": jnp.tanh(x @ W) * 2, "z": (x @ W).T}


def other(x: Any) -> dict[str, Any]:
    y = (W.T @ x.T).T
    return {"y": 2 * jnp.tanh(y), "z": W.T @ x.T}


def test_two_modules_are_equal(write: Callable[..., str]) -> None:
    found = CliRunner().invoke(cli, ["verify", write("a.mlir", plain, X), write("b.mlirbc", other, X), "--json"])
    assert found.exit_code == 0, found.output
    pair = json.loads(found.stdout)
    assert [(o["name"], o["status"]) for o in pair["outputs"]] == [("result['y']", PROVED), ("result['z']", PROVED)]
    assert "f32[2,3]" in pair["sizes"]


def test_a_difference_comes_with_code_that_runs(write: Callable[..., str], capsys: Any) -> None:
    wrong = write("b.stablehlo", lambda x: {"y": jnp.sinh(x @ W) * 2, "z": (x @ W).T}, X)
    found = CliRunner().invoke(cli, ["verify", write("a.mlir", plain, X), wrong, "--json"])
    assert found.exit_code == 3
    pair = json.loads(found.stdout)
    assert [o["status"] for o in pair["outputs"]] == [REFUTED, PROVED]
    assert pair["differs"].startswith("sinh f32[2,4]")
    executed(pair["code"])
    one, two = capsys.readouterr().out.split()
    assert [float(one), float(two)] == pytest.approx(pair["outputs"][0]["difference"]["values"], rel=1e-5)


def test_what_cannot_be_compared(write: Callable[..., str], tmp_path: Path) -> None:
    a, b = write("a.mlir", plain, X), write("b.mlir", plain, np.ones((5, 3), np.float32))
    (tmp_path / "c.mlir").write_text("module {", encoding="utf-8")
    for files, why in (
        ([a, b], "different arguments"), ([a], "two at a time"), ([a, "c.onnx"], "of one kind"),
        ([a, str(tmp_path / "c.mlir")], "line 1"), ([a, str(tmp_path / "none.mlir")], "none.mlir"),
        ([a, a, "--dims", "n=2"], "--dims"),
    ):  # fmt: skip
        found = CliRunner().invoke(cli, ["verify", *files])
        assert found.exit_code in (1, 2), found.output
        assert why in found.output
