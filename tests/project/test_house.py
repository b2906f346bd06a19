"""The rooms of the code: layers are written where they are read, figures only go down, and each room says its idea."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from superopt.lab import house, picture


def test_the_layers_stand_where_they_are_read() -> None:
    for path, text in house.written().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m superopt.lab.house --write"


def test_no_limit_is_above_its_decision_record() -> None:
    allowed = house.recorded()
    assert {name: most for name, most in house.LIMITS.items() if most > allowed[name]} == {}


def test_the_last_record_of_a_limit_counts(tmp_path: Path) -> None:
    records = tmp_path / "docs" / "decisions"
    records.mkdir(parents=True)
    (records / "01-first.md").write_text("| `late` | 3 |\n| `below` | 1,500 |\n", encoding="utf-8")
    (records / "02-second.md").write_text("| `late` | 2 |\n", encoding="utf-8")
    (records / "README.md").write_text("| `late` | 9 |\n", encoding="utf-8")
    assert house.recorded(tmp_path) == {"late": 2, "below": 1_500}


def test_every_room_says_its_idea() -> None:
    rooms = [name for name, path in house.modules().items() if path.name == "__init__.py"]
    assert [room for room in rooms if not (import_module(room).__doc__ or "").strip()] == []


def test_every_room_of_the_product_is_in_a_layer() -> None:
    layered = {room for layer in house.LAYERS for room in layer}
    tops = {".".join(name.split(".")[:2]) if name.startswith("superopt.") else name for name in house.modules()}
    assert tops - layered <= {"superopt", "superopt.__main__", *(t for t in tops if t.split(".")[0] in layered)}


def test_the_picture_shows_rooms_of_the_layers() -> None:
    layered = {room for layer in house.LAYERS for room in layer}
    assert {room for _, _, rooms in picture.FLOW for room in rooms} <= layered


def test_circles_and_late_imports_are_seen(tmp_path: Path) -> None:
    for name, text in (
        ("superopt/__init__.py", ""),
        ("superopt/a/__init__.py", ""),
        ("superopt/b/__init__.py", ""),
        ("superopt/a/one.py", "from superopt.b import two\n"),
        ("superopt/b/two.py", "def f():\n    from superopt.a import one\n    return one\n"),
        ("superopt/b/three.py", "from superopt.b import four\nclass Case: ...\nclass _Row: ...\nALL = 1\n"),
        ("superopt/b/four.py", "import superopt.b.three\nclass Case: ...\nclass Row: ...\nALL = 2\nReader = int\n"),
        ("superopt/b/five.py", "class _Row: ...\n_Key = int\nReader = str\n_Other: type = int\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = house.figures(tmp_path)
    assert (found["late"], found["file_circles"], found["room_circles"], found["repeated"]) == (1, 1, 1, 3)
    assert (found["loose"], found["largest_room"]) == (1, 5)


def test_locals_without_a_name_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "superopt" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "found = 1\ndef f(found): return found\ndef g():\n    def h():\n        found = 2\n"
        "def k(x):\n    return [found for found in x]\n",
        encoding="utf-8",
    )
    assert house.figures(tmp_path)["unnamed"] == 2


def test_tuned_numbers_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "superopt" / "contest" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "A = 3\n_B, C = 0.5, 2\nD = ('word',)\nE = A * 2\nORIGINAL = -1\n_F: float = -1e-3\n_MADE: list = []\n",
        encoding="utf-8",
    )
    assert house.figures(tmp_path)["constants"] == 4


def test_a_reason_stands_on_the_line_of_a_number_or_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "superopt" / "search" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text('A = 3  # steps\nB = 4\n"""Rounds."""\n# tries\nC, D = 5, 6\n', encoding="utf-8")
    assert house.unexplained(path) == ["C", "D"]
    assert house.figures(tmp_path)["unexplained"] == 2


def test_reads_of_clocks_are_counted(tmp_path: Path) -> None:
    for room, count in (("contest", 3), ("machine", 0)):
        path = tmp_path / "superopt" / room / "one.py"
        path.parent.mkdir(parents=True)
        path.write_text(
            "import time\nfrom time import perf_counter_ns\nA = time.monotonic()\ndate = time.time()\n"
            "wait = time.sleep\nB = time.thread_time\n",
            encoding="utf-8",
        )
        assert house.figures(tmp_path)["clocks"] == count
        path.unlink()


@pytest.mark.parametrize("top", house.TOPS)
def test_rooms_are_packages(top: str) -> None:
    for path in (house.ROOT / top).rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), path


def test_tests_stand_in_rooms() -> None:
    """A folder of tests is named as a room, or as what is no room: the project as a whole, what tests share."""
    rooms = {part for name in house.modules() for part in name.split(".")[:2]}
    folders = {path.name for path in (house.ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - rooms == {"project", "support", "upstream"}
