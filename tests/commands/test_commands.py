"""Commands are loaded when they are called: those of the product, and those that installed packages add."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import numpy
import pytest

from superopt.commands import main
from superopt.commands.main import GROUP, PRODUCT, cli, main_with

ROOT = Path(main.__file__).resolve().parents[2]
ENTRIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.mark.parametrize("name", [*PRODUCT, *ENTRIES[GROUP]])
def test_every_command_is_there(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    assert name in cli.list_commands(click.Context(cli))


def test_every_entry_point_is_of_the_lab() -> None:
    assert all(point.startswith("superopt.lab.commands.") for point in ENTRIES[GROUP].values())
    for point in (*ENTRIES[GROUP].values(), *(f"{module}:pytest_addoption" for module in ENTRIES["pytest11"].values())):
        module, _, name = point.partition(":")
        assert hasattr(importlib.import_module(module), name)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation without `superopt/lab`, whose metadata still names its commands."""
    folder = tmp_path_factory.mktemp("product")
    for name in ("superopt", "rewrites", "verifier", "costmodel"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("lab"))
    return folder


def superopt(product: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    packages = str(Path(numpy.__file__).parents[1])
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(product), packages)), "XDG_CACHE_HOME": str(product / "cache")
    }  # fmt: skip
    command = [sys.executable, "-S", "-m", "superopt", *arguments]  # -S: nothing leads back to this checkout
    return subprocess.run(command, cwd=product, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("arguments", [(), *((name,) for name in PRODUCT)], ids=" ".join)
def test_help_is_there_without_the_lab(product: Path, arguments: tuple[str, ...]) -> None:
    done = superopt(product, *arguments, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: superopt")


PROGRAM = "import numpy as np\ndef make(): return (lambda x: x + x), (np.ones(3, 'float32'),)\n"


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ("PROVED good", ("verify", "rules.txt")),
        ("program.py:make", ("optimize", "program.py:make", "--budget", "20steps", "--deterministic", "--no-store")),
        ("trace", ("kernels", "show", "dot f32 8x8x8")),
    ],
)
def test_the_product_works_without_the_lab(product: Path, told: str, arguments: tuple[str, ...]) -> None:
    (product / "rules.txt").write_text("good: A[*a]\n  A + A  ==  A * 2\n")
    (product / "program.py").write_text(PROGRAM)
    done = superopt(product, *arguments)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def test_a_command_of_a_package_that_is_gone(product: Path) -> None:
    done = superopt(product, "bench")
    assert done.returncode == 1
    assert done.stderr == "superopt: [SO100] the command bench is not installed: there is no superopt.lab\n"


def test_the_version_loads_nothing() -> None:
    code = (
        "import sys\nfrom superopt.commands.main import main_with\n"
        "try: main_with(['--version'])\nexcept SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'jax', 'z3', 'importlib_metadata', 'onnx'}),"
        " 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"


def test_a_command_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main_with(["tain"])
    assert done.value.code == 1
    assert "No such command 'tain'" in capsys.readouterr().err


def test_optimize_without_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main_with(["optimize", ""])
    assert done.value.code == 1
    assert capsys.readouterr().err.startswith("superopt: [SO100] no program is named")


def test_help_has_a_line_for_each_command_and_imports_none_of_them() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "superopt.commands.main", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    shown = done.stdout.partition("Commands of installed packages")[2]
    assert "Measure suites of benchmarks" in shown
    assert "superopt.lab.commands" not in shown
    assert "superopt.lab.bench" not in done.stderr
