"""`superopt build`: from a program in a file to a library, or the ops that stand in the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from superopt.certify.kernels import ValidatedCode
from superopt.certify.taking import TakenKernels
from superopt.commands import build
from superopt.commands.main import main_with
from superopt.commands.optimize import searched
from superopt.kernels.llvm.cpu import supported
from tests.support.onnx_models import info, model, node

pytestmark = [
    pytest.mark.skipif(not supported(), reason="kernels need AVX2 or AVX-512"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
def net(w, x):
    return {"logits": jnp.tanh(jnp.tanh(x @ w) @ w), "same": x}
def made():
    return net, (np.eye(16, dtype="float32") / 2, np.ones((3, 16), "float32")), 0
def sorts():
    return lambda x: jnp.sort(jnp.tanh(x)), (np.ones(9, "float32"),)
"""
FLAGS = ("--no-search", "--no-store")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main_with(arguments)
    said = capsys.readouterr()
    return int(done.value.code or 0), said.out, said.err


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_function_becomes_a_library(capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny-net"
    status, said, wrong = run(capsys, "build", f"{program}:made", "-o", str(out), *FLAGS, "--json")
    assert status == 0, wrong
    told = json.loads(said)
    assert set(told["bytes"]) == {"libtiny_net.so", "tiny_net.weights"}
    facts = json.loads((out / "tiny_net.json").read_text())
    assert [x["name"] for x in facts["inputs"]] == ["x"]
    assert [x["name"] for x in facts["outputs"]] == ["logits", "same"]
    assert facts["record"]["implementation"]["kernels"] >= 1
    assert (facts["record"]["code"]["validated"], facts["record"]["code"]["unknown"]) == (len(facts["kernels"]), {})
    status, said, _ = run(capsys, "verify", str(out))
    assert (status, "signed by this store, which made it: the code of" in said) == (0, True)
    code = "import tiny_net, numpy as np; a, b = tiny_net.load()(x=np.ones((3, 16), 'f4')); print(a[2, 3], b.sum())"
    done = subprocess.run([sys.executable, "-c", code], cwd=out, capture_output=True, text=True, check=True)
    assert [float(x) for x in done.stdout.split()] == pytest.approx([np.tanh(np.tanh(0.5) / 2), 48.0])


def test_where_xla_wins_the_program_without_a_search_is_packaged(
    capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def won_by_xla(*arguments: Any, **options: Any) -> Any:
        result = searched(*arguments, **{**options, "search": False})
        asked.append(options["search"])
        return SimpleNamespace(report=SimpleNamespace(original_returned=True)) if options["search"] else result

    asked = list[bool]()
    monkeypatch.setattr(build, "searched", won_by_xla)
    status, _, wrong = run(capsys, "build", f"{program}:made", "-o", str(tmp_path / "net"), "--no-store")
    assert (status, asked) == (0, [True, False]), wrong
    assert "XLA's program was not slower" in wrong


def test_a_kernel_in_doubt_is_in_no_package(
    capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubt = TakenKernels((), ValidatedCode(), {"kernel of value 1": "its code is wrong"}, False)
    monkeypatch.setattr("superopt.returned.optimized.take_kernels", lambda *_, **__: doubt)
    status, _, wrong = run(capsys, "build", f"{program}:made", "-o", str(tmp_path / "out"), *FLAGS)
    assert (status, "kernel of value 1: its code is wrong" in wrong) == (2, True), wrong
    assert not (tmp_path / "out").exists()


def test_results_of_a_model_have_the_names_of_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nodes = [node("Tanh", "x", "net/h"), node("Exp", "net/h", "net/scores"), node("Neg", "net/h", "pooled")]
    made = model(nodes, [info("x", [4, 16])], [info("pooled", [4, 16]), info("net/scores", [4, 16])])
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    out = tmp_path / "net"
    flags = (*FLAGS, "--deterministic")  # by the clock XLA may be ahead on 64 elements
    status, _, wrong = run(capsys, "build", str(tmp_path / "net.onnx"), "-o", str(out), *flags)
    assert status == 0, wrong
    facts = json.loads((out / "net.json").read_text())
    assert [x["name"] for x in facts["outputs"]] == ["pooled", "net/scores"]
    assert "output 1: f32[4,16]  net/scores" in (out / "net.h").read_text()
    assert "program = net.load()" in (out / "net.py").read_text()


def test_the_library_is_named(capsys: pytest.CaptureFixture[str], program: Path, tmp_path: Path) -> None:
    status, said, wrong = run(capsys, "build", f"{program}:made", "-o", str(tmp_path), "--name", "net", *FLAGS)
    assert status == 0, wrong
    first, second = said.splitlines()[-2:]
    assert first.startswith("program.py:made: ")
    assert second.startswith(f"  package {tmp_path}: libnet.so ")
    assert program.exists()  # what else is in the folder stays


@pytest.mark.parametrize(
    ("target", "told", "status"),
    [
        (("{program}:sorts", "-o", "{out}"), "leaves ops to XLA, which no package holds: 1 x opaque sort", 2),
        (("{program}:made", "-o", "{out}", "--name", "a b"), "'a b' cannot be the name of a library", 1),
        (("{program}:made", "-o", "{out}/further/on"), "there is no folder", 1),
        (("", "-o", "{out}"), "superopt build MODEL.onnx or FILE.py:NAME", 1),
    ],
)
def test_what_is_refused(
    target: tuple[str, ...],
    told: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    program: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    words = [word.format(program=program, out=out) for word in target]
    code, _, wrong = run(capsys, "build", *words, *FLAGS)
    assert (code, told in wrong) == (status, True), wrong
    assert not out.exists()
