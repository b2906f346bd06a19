"""`superopt verify` without JAX, its files for continuous integration, and requests that exclude each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rewrites.library import load
from superopt.certify.rule_files import Proposition, Verified, propositions
from superopt.commands import ci
from superopt.commands.main import main_with
from superopt.lab import house
from verifier.verdict import PROVED, REFUTED, UNKNOWN, Verdict

RULES = """# by hand

good: A[*a]
  A + A  ==  A * 2

# not true
bad: A[*m *k]  B[*k *n]
  dot(A, B + B, k)  ==  dot(A, B, k)

broken: A[*a]
  A + ) == A
"""
LINES = {"good": 3, "bad": 7, "broken": 10}
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"jax", "jaxlib", "llvmlite", "scipy"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
OF_JAX = ("verifier.statements", "verifier.rules.referee", "verifier.kernels.scalars")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("rules.txt").write_text(RULES)
    return "rules.txt"


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment whose processes have neither JAX nor LLVM nor SciPy."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKED)
    path = os.pathsep.join((str(folder), str(house.ROOT)))
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as done:
        main_with(["verify", *arguments])
    out = capsys.readouterr()
    return int(done.value.code or 0), out.out, out.err


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("sample", [["--rule", "dot-"], pytest.param([], marks=pytest.mark.slow)], ids=len)
def test_rules_and_the_library_are_verified_without_jax(rules: str, alone: dict[str, str], sample: list[str]) -> None:
    done = python(alone, "-m", "superopt", "verify", rules, "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 3, done.stderr
    assert [row["status"] for row in data["rows"]] == [PROVED, REFUTED, UNKNOWN]
    assert data["without_xla"] == "jax is blocked"
    done = python(alone, "-m", "superopt", "verify", "--library", "--json", *sample)
    data = json.loads(done.stdout)
    assert [row["rule"] for row in data["rows"] if row["status"] != PROVED] == []
    assert data["proved"] == sum("dot-" in rule.name or not sample for rule in load()) > 10


def test_special_functions_without_scipy(tmp_path: Path, alone: dict[str, str]) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("\n".join(f"{f}: A[*a]\n  {f}(A) * 2 == {f}(A) + {f}(A)\n" for f in ("erf", "logistic", "lgamma")))
    done = python(alone, "-m", "superopt", "verify", str(file), "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["rule"], row["status"]) for row in rows] == [
        ("erf", PROVED),
        ("logistic", PROVED),
        ("lgamma", UNKNOWN),
    ]
    assert rows[-1]["cause"].startswith("a package that its evaluation needs is not there: scipy")


@pytest.mark.parametrize("command", [("verify", "a.mlir", "b.mlir"), ("optimize", "a.py:make"), ("demo",)], ids=str)
def test_a_command_that_needs_jax_says_so(alone: dict[str, str], command: tuple[str, ...]) -> None:
    done = python(alone, "-m", "superopt", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "superopt: [SO110] this command needs the package jax, which is not installed\n  hint: pip install superopt\n"
    )


def test_packages_of_rules_load_without_jax(alone: dict[str, str]) -> None:
    names = [n for n in house.modules() if n.split(".")[0] in ("rewrites", "verifier") and not n.startswith(OF_JAX)]
    done = python(alone, "-c", f"import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


FRESH = """
from superopt.workshop import forks
from verifier.rules.process import Prover
def begun():
    with Prover() as prover:
        prover.call("time:gmtime", 0)
        return prover._worker.forked
if __name__ == "__main__":
    print(begun(), forks.at_work())
    forks.load()
    print(begun(), forks.at_work())
"""


def test_a_prover_starts_no_process_that_loads_jax() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FRESH], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["False", "False", *(["True", "True"] if sys.platform == "linux" else ["False"] * 2)]


def test_junit_has_a_case_for_each_rule(capsys: pytest.CaptureFixture[str], rules: str, tmp_path: Path) -> None:
    status, text, _ = run(capsys, rules, "--junit", "found.xml")
    root = ElementTree.parse(tmp_path / "found.xml").getroot()
    (suite,) = root
    assert status == 3
    for told in (root.attrib, suite.attrib):
        assert (told["tests"], told["failures"], told["errors"]) == ("3", "1", "1")
    assert suite.attrib["name"] == rules
    good, bad, broken = suite
    for case in suite:
        name = case.attrib["name"]
        assert (case.attrib["file"], int(case.attrib["line"])) == (rules, LINES[name])
    assert list(good) == []
    (refuted,), (open_one,) = bad, broken
    assert (refuted.tag, refuted.attrib["type"]) == ("failure", REFUTED)
    assert refuted.text in text
    assert "they differ at []: 2.0 and 1.0" in refuted.text
    assert (open_one.tag, open_one.attrib["type"]) == ("error", UNKNOWN)
    assert "unmatched ')'" in open_one.text


def test_junit_holds_whatever_a_text_holds() -> None:
    odd = Verdict("a<b>\x01", "", "r&.txt:2", "forward", UNKNOWN, cause='"]]>\x00\u00e9\ud800')
    case = ElementTree.fromstring(ci.junit(Verified((odd,), 0.0, "")))[0][0]
    assert (case.attrib["name"], case.attrib["file"], case.attrib["line"]) == ("a<b>\\x01", "r&.txt", "2")


def test_annotations_are_lines_at_the_rules(capsys: pytest.CaptureFixture[str], rules: str) -> None:
    status, text, _ = run(capsys, rules, "--annotations", "github")
    told = [line for line in text.splitlines() if line.startswith("::")]
    assert status == 3
    assert len(told) == 2
    assert told[0].startswith(
        "::error file=rules.txt,line=7,title=REFUTED bad::REFUTED bad (forward) at rules.txt:7%0A"
    )
    assert told[1].startswith("::warning file=rules.txt,line=10,title=UNKNOWN broken::")


def test_annotations_escape_what_ends_them() -> None:
    odd = Verdict("50%, or: so", "", "a,b:c.txt:2", "forward", UNKNOWN, cause="x\ny")
    (line,) = ci.github(Verified((odd,), 0.0, "")).splitlines()
    assert line.startswith("::warning file=a%2Cb%3Ac.txt,line=2,title=UNKNOWN 50%25%2C or%3A so::")
    assert line.endswith("x%0Ay")


ONE = "one: A[*a]\n  A + A == A * 2\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"x = 1\nRULES = '''\n{ONE}\n{ONE.replace('one', 'two')}'''\n", [3, 6]),
        (f'RULES = """\\\n{ONE}\n{ONE.replace("one", "two")}"""\n', [2, 5]),
        (f'RULES = r"""{ONE}\n{ONE.replace("one", "two")}"""\n', [1, 4]),
        (f"\nRULES = {f'{ONE}{chr(10)}{ONE}'!r}\n", [2, 2]),
        ('RULES = (\n    "one: A[*a]\\n"\n    "  A + A == A * 2\\n"\n)\n', [2]),
    ],
)
def test_lines_of_rules_in_python(tmp_path: Path, text: str, lines: list[int]) -> None:
    file = tmp_path / "rules.py"
    file.write_text(text)
    assert [int(proposition.where.rpartition(":")[2]) for proposition in propositions(str(file))] == lines


def test_lines_of_statements(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text(
        "import superopt\n\nsuperopt.statement(lambda x: x, lambda x: x, 'n', name='one')\n\n\n"
        "@superopt.statement('n')\ndef two(x):\n    return x, x\n"
    )
    assert [(c.name, c.where) for c in propositions(str(file))] == [("one", f"{file}:3"), ("two", f"{file}:6")]


def test_a_claim_that_raises_is_open() -> None:
    class Odd:
        name, where, specs = "odd", "f:1", ()

    assert Proposition(Odd()).judged().status == UNKNOWN


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--program", "a", "b"], "--program names the file to validate, and b is another"),
        (["--program", "a", "--library"], "--library is not for --program"),
        (["--recheck", "--fuzz", "3"], "--recheck and --fuzz are two requests"),
        (["a.onnx", "b.onnx", "--fuzz", "3"], "--fuzz and two programs are two requests"),
        (["a.onnx", "b.onnx", "--junit", "x.xml"], "--junit is not for two programs"),
        (["rules.txt", "--recheck", "--annotations", "github"], "--annotations is not for --recheck"),
        (["rules.txt", "--original", "a.onnx"], "--original is not for rules"),
        (["rules.txt", "--junit", "no/such/folder/x.xml"], "there is no folder no/such/folder"),
        (["rules.txt", "--dims", "n=1"], "--dims gives sizes of two programs, and none are named"),
        (["a.onnx", "b.onnx", "--dims", "n=1", "--dims", "n=2"], "--dims gives n twice: 1 and 2"),
    ],
)
def test_requests_that_exclude_each_other(
    capsys: pytest.CaptureFixture[str], rules: str, arguments: list[str], told: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith(f"superopt: [SO100] {told}"), err


def test_one_format_on_the_standard_output(capsys: pytest.CaptureFixture[str], rules: str) -> None:
    status, out, _ = run(capsys, rules, "--json", "--annotations", "github")
    assert status == 1
    assert json.loads(out)["error"]["message"] == "--json and --annotations both print to the standard output"


def test_a_saved_program_that_is_not_there(capsys: pytest.CaptureFixture[str], rules: str) -> None:
    status, _, err = run(capsys, "--program", "absent.superopt")
    assert (status, err) == (2, "superopt: [SO200] there is no file absent.superopt\n")
