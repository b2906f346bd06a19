"""The command line: help, exit codes, one-line errors, JSON."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from superopt.commands import main as cli


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as done:
        cli.cli.main(list(args), standalone_mode=False)
    out = capsys.readouterr()
    return int(done.value.code or 0), out.out, out.err


PROGRAM = """
import numpy as np
import jax.numpy as jnp

def make():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype("float32") for _ in range(2))
    return (lambda a, b, x: (a @ b) @ x), (a, b, np.ones((128, 1), "float32")), (0,)

def broken():
    return 3

def raises():
    raise RuntimeError("not today")

def number():
    return (lambda x: x * 2), 3

def leaves():
    raise SystemExit(0)

def untraceable():
    return (lambda x: x.nothing), (np.ones(3),)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_optimize_prints_one_json_object(capsys, program, tmp_path) -> None:
    report, out = tmp_path / "r.html", tmp_path / "p.superopt"
    status, text, _ = run(
        capsys, "optimize", f"{program}:make", "--budget", "200steps", "--deterministic", "--no-store", "--json",
        "--report", str(report), "--out", str(out),
    )  # fmt: skip
    data = json.loads(text)
    assert status == 0
    assert {"before_ms", "after_ms", "speedup", "rewrites", "max_rel_error", "opaque_ops", "seconds"} <= set(data)
    assert set(data["speedup"]) == {"ratio", "low", "high", "basis"}
    assert data["speedup"]["basis"] != "measured"
    assert all({"rule", "count", "certificate"} <= set(r) for r in data["rewrites"])
    page = report.read_text()
    assert page.startswith("<!doctype html>")
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert out.stat().st_size > 0


@pytest.mark.parametrize(
    ("args", "status", "code"),
    [
        (("optimize", "no/such/model.onnx"), 2, "SO21"),
        (("optimize", "{program}:broken"), 2, "SO220"),
        (("optimize", "{program}:absent"), 2, "SO220"),
        (("optimize", "{program}:number"), 2, "SO220"),
        (("optimize", "{program}:leaves"), 2, "SO220"),
        (("optimize", "{program}:make", "--dims", "batch=\u00b2"), 1, "SO100"),
        (("optimize", "{program}"), 1, "SO100"),
        (("optimize", "{program}:make", "--random-weights"), 1, "SO100"),
        (("optimize", "{program}:make", "--budget", "0"), 1, "SO100"),
        (("optimize", "{program}:make", "--dims", "batch=-1"), 1, "SO100"),
        (("verify",), 1, "SO100"),
        (("verify", "no-such-file"), 2, "SO200"),
        (("bench", "--suite", "nothing"), 1, "SO100"),
    ],
)
def test_bad_input_is_one_line_with_a_code(capsys, program, tmp_path, monkeypatch, args, status, code) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    got, out, err = run(capsys, *[a.format(program=program) for a in args])
    assert got == status, err
    assert f"[{code}" in err
    assert "Traceback" not in err
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before, "a refused command writes nothing"


@pytest.mark.parametrize(
    ("maker", "said"),
    [
        ("raises", "cannot be run: RuntimeError in line 14: not today"),
        ("untraceable", "the function fails on these arguments: AttributeError in program.py:23 ("),
    ],
)
def test_errors_of_the_program_are_told_with_their_place(capsys, program, maker, said) -> None:
    status, out, err = run(capsys, "optimize", f"{program}:{maker}", "--budget", "1s")
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_program_that_is_no_python_is_told_so(capsys, tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text("def (:")
    status, _, err = run(capsys, "optimize", f"{path}:make")
    assert status == 2
    assert "SyntaxError: invalid syntax (program.py, line 1)" in err


full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="a file that cannot be written is a device of Linux"
)


@full_device
@pytest.mark.parametrize(
    ("option", "ending", "cause"),
    [("--report", "html", "No space left on device"), ("--out", "superopt", "not a regular file")],
)
def test_a_file_that_cannot_be_written_is_told_so(capsys, program, tmp_path, option, ending, cause) -> None:
    full = tmp_path / f"full.{ending}"
    full.symlink_to("/dev/full")
    args = ("--budget", "20steps", "--deterministic", "--no-store", "--json", option, str(full))
    status, out, err = run(capsys, "optimize", f"{program}:make", *args)
    assert status == 1
    assert f"cannot write {full}: {cause}" in err
    assert full.is_symlink()
    assert json.loads(out)["error"]["code"] == "SO100"


@full_device
@pytest.mark.parametrize("kinds", [("report.json", "out.superopt"), ("out.superopt", "report.json")])
def test_a_file_that_cannot_be_written_loses_no_other_one(capsys, program, tmp_path, kinds) -> None:
    lost, written = (tmp_path / name for name in kinds)
    lost.symlink_to("/dev/full")
    files = [word for path in (lost, written) for word in (f"--{path.stem}", str(path))]
    options = ("--budget", "20steps", "--deterministic", "--no-store", *files)
    status, _, err = run(capsys, "optimize", f"{program}:make", *options)
    assert status == 1
    assert f"cannot write {lost}" in err
    assert written.stat().st_size > 0


def test_warnings_are_one_line(capsys, program, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "program.py"))  # a file, where a folder must be
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status, _, err = run(capsys, "optimize", f"{program}:make", "--budget", "20steps", "--deterministic")
    assert status == 0
    (line,) = [x for x in err.splitlines() if "kept in memory" in x]
    assert line.startswith("superopt: warning: store ")
    assert "optimizer.py" not in err


def test_truncated_and_foreign_models(capsys, tmp_path) -> None:
    files = {"a.onnx": b"", "b.onnx": b"\x08\x07\x12", "c.onnx": b"not a model at all", "d.pt": b"PK"}
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        status, _, err = run(capsys, "optimize", str(path))
        assert status == 2, (name, err)
        assert "hint" in err, (name, err)


def test_verify_a_file(capsys, tmp_path) -> None:
    rules = tmp_path / "rules.txt"
    good = "good: A[*a]\n  A + A  ==  A * 2\n"
    rules.write_text(good + "\nbad: A[*m *k]  B[*k *n]\n  dot(A, B + B, k)  ==  dot(A, B, k)\n")
    status, text, _ = run(capsys, "verify", str(rules), "--json")
    data = json.loads(text)
    assert status == 3
    assert (data["rules"], data["proved"], data["refuted"], data["unknown"]) == (2, 1, 1, 0)
    assert {"seconds", "rows"} <= set(data)
    status, text, _ = run(capsys, "verify", str(rules), "--rule", "good")
    assert status == 0
    assert "PROVED" in text
    rules.write_text("broken: A[*a]\n  A + ) == A\n\n" + good + "\n" + good)  # each by itself
    status, text, _ = run(capsys, "verify", str(rules), "--json")
    rows = json.loads(text)["rows"]
    assert status == 3
    assert [row["status"] for row in rows] == ["UNKNOWN", "PROVED", "UNKNOWN"]
    assert "unmatched ')'" in rows[0]["cause"]
    assert "already defined" in rows[2]["cause"]
    rules.write_text("bad: A[*m\n  A == A\n")
    status, _, err = run(capsys, "verify", str(rules))
    assert status == 1
    assert "rules.txt" in err


def test_a_file_that_ends_itself_hides_nothing(capsys, tmp_path) -> None:
    path = tmp_path / "statements.py"
    false = 'import sys, superopt\nsuperopt.statement(lambda x: x + 1, lambda x: x, "n", name="false")\n'
    path.write_text(false + "sys.exit(0)\n")
    status, text, _ = run(capsys, "verify", str(path), "--json")
    assert (status, json.loads(text)["refuted"]) == (3, 1)
    path.write_text(false + 'superopt.statement(lambda x: sys.exit(0), lambda x: x, "n", name="leaves")\n')
    status, text, _ = run(capsys, "verify", str(path), "--json")
    assert (status, json.loads(text)["refuted"], json.loads(text)["unknown"]) == (3, 1, 1)
    path.write_text(false + "sys.exit(7)\n")
    status, _, err = run(capsys, "verify", str(path))
    assert status == 2
    assert "ends itself: exit status 7" in err


def test_texts_that_no_reader_can_follow_are_refused(capsys, tmp_path) -> None:
    deep, half = tmp_path / "deep.txt", tmp_path / "half.py"
    for levels in (150, 800, 5000):
        deep.write_text("r: A[*a]\n  " + "-" * levels + "A == A\n")
        status, _, err = run(capsys, "verify", str(deep))
        assert status == 1
        assert "deep" in err
    half.write_text('RULES = "r: A[*a]\\n A\\ud800 == A"\n')
    status, _, err = run(capsys, "verify", str(half))
    assert status == 1
    assert "no text" in err


def test_doctor(capsys) -> None:
    status, text, _ = run(capsys, "doctor", "--json")
    data = json.loads(text)
    assert status == 0, data
    assert data["ok"]


def test_usage_errors_exit_1(capsys) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main_with(["optimize"])
    assert done.value.code == 1
    assert "Missing argument" in capsys.readouterr().err
