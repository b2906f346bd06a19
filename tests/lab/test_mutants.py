"""Mutants: one operator each, of decisions only; what tests notice is told from what they do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from superopt.errors import UsageError
from superopt.lab import mutants
from superopt.lab.mutants import BROKEN, OperatorMutant, drawn, mutants_of, tried

SOURCE = '''\
"""A room: 1 < 2."""
LIMIT: int | None = 3 + 4

def kept(n: int | None, most: int = 5 - 1) -> list[int] | None:
    assert n is not None and n > 0, f"{n - 1} is not {most}"
    if n > most or not n:
        raise ValueError("too many: " + str(n))
    while n not in (1, 2) and -n < 0:
        n = (n - 1) * 2
    return [x for x, _ in zip(range(n), range(n), strict=True) if x != 3]
'''


def test_a_mutant_is_one_operator_of_a_decision() -> None:
    found = mutants_of("room.py", SOURCE)
    assert [(m.begin[0], m.old) for m in found] == [
        (6, "n > most or not n"),
        (2, "+"),
        (6, ">"),
        (6, "or"),
        (6, "not"),
        (8, "not in"),
        (8, "and"),
        (8, "<"),
        (9, "-"),
        (9, "*"),
        (10, "!="),
    ]
    assert [m.is_guard for m in found] == [True, *[False] * 10]
    for mutant in found:
        text = mutant.text(SOURCE)
        ast.parse(text)
        changed = [i for i, (a, b) in enumerate(zip(SOURCE.split("\n"), text.split("\n"), strict=True), 1) if a != b]
        assert changed == [mutant.begin[0]]
    assert "while n in (1, 2) and" in found[5].text(SOURCE)
    assert "    if (False):\n" in found[0].text(SOURCE)
    assert str(found[2]) == "room.py:6:10: > -> >="
    wide = SOURCE.replace("n > most or not n", "(\n        n > most\n        or not n\n    )")
    assert "if (\n        (False)\n    ):" in mutants_of("room.py", wide)[0].text(wide), "of several lines"


TESTED = """\
import pytest
from superopt.room.a import checked

def test_a():
    assert checked(1) == 1

def test_b():
    with pytest.raises(ValueError):
        checked(-1)
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "superopt/__init__.py": "",
        "superopt/room/__init__.py": "",
        "superopt/room/a.py": "def checked(n):\n    if n < 0:\n        raise ValueError\n"
        "    if n == 9:\n        return 0\n    return n\n",
        "tests/room/test_a.py": "from pathlib import Path\nfrom superopt.room.a import checked\n\ndef test_a():\n"
        "    assert checked(1) == 1\n    assert checked(0) == 0\n"
        "    root = Path(__file__).parents[2]\n"
        "    assert (root / 'docs' / 'page.md').exists() and (root / 'superopt' / 'build' / 'b.py').exists()\n"
        "    assert not (root / 'build').exists() and not (root / '.git').exists()\n",
        **dict.fromkeys(("docs/page.md", "superopt/build/b.py", "build/site.html", ".git/config"), ""),
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--disable-plugin-autoload -p xdist.plugin"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def test_what_no_test_notices_survives_and_the_files_stay(repository: Path) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    every = drawn(["superopt/room"], 10, 0, guards=True)
    assert every == drawn(["superopt/room"], 10, 0, guards=True), "the same for the same seed"
    said: list[str] = []
    fates = {f.mutant.old: f.noticed for f in tried(every, 60.0, said.append)}
    assert fates == {"n < 0": "", "n == 9": ""}
    (repository / "tests/room/test_a.py").write_text(TESTED)
    fates = {f.mutant.old: f.noticed for f in tried(every, 60.0, said.append)}
    assert fates == {"n < 0": "tests/room/test_a.py::test_b", "n == 9": ""}
    assert sum(line.startswith("SURVIVED") for line in said) == 3
    now = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    assert {p: b for p, b in now.items() if p.suffix == ".py" and "tests" not in p.parts} == {
        p: b for p, b in before.items() if p.suffix == ".py" and "tests" not in p.parts
    }


def test_tests_that_fail_after_any_edit_are_left_out(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for test in mutants.OF_SOURCES:
        path, name = test.split("::")
        assert f"def {name}(" in (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    (repository / "tests/room/test_a.py").write_text(TESTED)
    monkeypatch.setattr(mutants, "OF_SOURCES", ("tests/room/test_a.py::test_b",))
    fates = tried(drawn(["superopt/room"], 10, 0, guards=True), 60.0, lambda line: None)
    assert [fate.noticed for fate in fates] == ["", ""]


ENDED = """\
import signal
from superopt.room.a import checked

def test_a():
    if checked(9) == 9:
        signal.raise_signal(signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "files",
    [
        {"tests/room/test_a.py": ENDED},
        {"tests/conftest.py": "from superopt.room.a import checked\n\nassert checked(9) == 0\n"},
    ],
)
def test_a_mutant_by_which_the_tests_break_off_is_noticed(files: dict[str, str], repository: Path) -> None:
    for name, text in files.items():
        (repository / name).write_text(text)
    every = drawn(["superopt/room"], 10, 0, guards=True)
    fates = {f.mutant.old: f.noticed for f in tried(every, 60.0, lambda line: None)}
    assert fates == {"n < 0": "", "n == 9": BROKEN}


def test_tests_that_fail_anyway_say_nothing_of_a_mutant(repository: Path) -> None:
    (repository / "tests/room/test_a.py").write_text("import superopt.room.a\n\ndef test_a():\n    assert False\n")
    with pytest.raises(UsageError, match="fail without any mutant"):
        tried([OperatorMutant("superopt/room/a.py", (2, 9), (2, 10), "<", ">")], 60.0, lambda line: None)
