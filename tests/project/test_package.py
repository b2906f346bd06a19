"""What the package is to those who install it: its files, its extras, and who else may be in their folder."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import superopt
from costmodel.model.analytical import _descended, _huber
from superopt.commands.main import main_with
from superopt.errors import MissingExtraError, UsageError
from superopt.lab import house
from superopt.machine.extras import EXTRA_OF, need

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_licence_that_is_named_is_there():
    named = PROJECT["project"]
    assert named["license"] == "Apache-2.0"
    assert named["license-files"] == ["LICENSE"]
    words = (ROOT / "LICENSE").read_text().split()
    assert words[:4] == ["Apache", "License", "Version", "2.0,"]


def test_every_package_is_typed_for_its_users():
    packages = [pattern.removesuffix("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]]
    for package in packages:
        assert (ROOT / package / "py.typed").is_file(), package
        assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"][package], package


EXTRA = "hint: pip install 'superopt[onnx]'"


@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "model.onnx"),
        ("optimize", "model.onnx", "--random-weights"),
        ("demo",),
        ("bench",),
        ("bench", "--suite", "onnx-nodes"),
        ("bench", "--suite", "faults", "--case", "onnx", "--count", "1"),
    ],
    ids=" ".join,
)
def test_a_command_without_its_extra_is_one_line_that_names_it(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in [
        name for name in sys.modules if name.startswith(("superopt.frontends.onnx", "superopt.lab.bench.onnx"))
    ]:
        monkeypatch.delitem(sys.modules, name)  # what was imported before the package went away
    with pytest.raises(SystemExit) as ended:
        main_with(command)
    assert ended.value.code == UsageError.exit_status
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 2, told
    assert "onnx, which is not installed" in told[0]
    assert told[1].strip() == EXTRA


def test_training_without_its_extra_is_one_line_that_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optax", None)
    rooms = ("superopt.lab.training", "superopt.lab.commands")  # the latter hold functions of the former
    for name in [name for name in sys.modules if name.startswith(rooms)]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main_with(("train", "fit"))
    assert ended.value.code == UsageError.exit_status
    told = capsys.readouterr().err.strip().splitlines()
    assert told[0].endswith("this command needs the package optax, which is not installed")
    assert told[1:] == ["  hint: pip install 'superopt[lab]'"]


def test_the_call_says_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"needs the package onnx") as raised:
        superopt.optimize("model.onnx")
    assert raised.value.hint == "pip install 'superopt[onnx]'"


def test_a_package_that_is_there_and_broken_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "cvc5.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cvc5", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        need("cvc5", "a replay")


def test_every_extra_is_one_of_the_project():
    extras = PROJECT["project"]["optional-dependencies"]
    for module, extra in EXTRA_OF.items():
        assert any(line.startswith(module) for line in extras[extra]), module
        assert any(line.startswith(module) for line in extras["dev"]), module


WITHOUT_TRAINING = """
import importlib, pkgutil, sys
sys.modules["optax"] = None
import costmodel, superopt.commands.main, superopt.returned.optimized, superopt.pipeline.optimizer
for info in pkgutil.walk_packages(costmodel.__path__, "costmodel."):
    importlib.import_module(info.name)
import numpy as np
from costmodel.model import analytical
from costmodel.model.analytical import COUNT, FeatureTable
ones = np.arange(6, dtype=np.int32)
counts = np.random.default_rng(0).uniform(0, 1e6, (6, COUNT))
table = FeatureTable(counts, np.ones(6), np.ones(6), ones, 6)
fitted = analytical.fit(table, counts.sum(1) * 1e-10, steps=20)
print(np.isfinite(fitted.theta).all())
"""


def test_nothing_but_training_needs_what_only_training_needs():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRAINING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
    users = {
        name for name, path in house.modules().items() if re.search(r"^ *(import|from) optax", path.read_text(), re.M)
    }
    training = "superopt.lab.training"
    assert users == {f"{training}.fit", f"{training}.schedule_prior", f"{training}.staged"}


def test_the_descent_is_that_of_optax():
    import jax
    import jax.numpy as jnp
    import optax

    start = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5), "nearly flat": jnp.asarray(1.0)}

    def height(p):
        return (p["a"] ** 4).sum() + _huber(p["b"] - 3.0, 0.3) + (p["a"][0] - p["b"]) ** 2 + 1e-8 * p["nearly flat"]

    slope = jax.jit(jax.grad(height))

    adam = optax.adam(optax.cosine_decay_schedule(0.03, 40))
    expected, state = start, adam.init(start)
    for _ in range(40):
        updates, state = adam.update(slope(expected), state)
        expected = optax.apply_updates(expected, updates)
    found = _descended(start, slope, 0.03, 40)
    for name in start:
        assert jnp.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6), name


RULE = """
add-swap: A[*m]  B[*m]
  A + B  ==  B + A
"""


def test_folders_of_the_user_are_not_taken_for_packages(tmp_path):
    for name in ("rewrites", "verifier", "costmodel", "superopt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a folder of the user was imported')\n")
    (tmp_path / "rules.txt").write_text(RULE)
    command = [Path(sys.executable).parent / "superopt", "verify", "rules.txt"]  # proves in a process of its own
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "PROVED" in done.stdout) == (0, True), done.stdout + done.stderr


def test_every_process_that_is_started_leaves_the_folder_it_is_started_in_off_its_path():
    found = 0
    for package in ("superopt", "rewrites", "verifier", "costmodel"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text()
            for node in ast.walk(ast.parse(text)) if "sys.executable" in text else ():
                if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                    found += 1
                    assert ast.unparse(node.elts[1]) == "'-P'", f"{file}:{node.lineno}"
    assert found
