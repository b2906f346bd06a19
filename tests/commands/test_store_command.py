"""`superopt store`: results move between machines, and damaged or old ones go."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from superopt.commands.store import store as command
from superopt.errors import InputError, UsageError
from superopt.store import TABLES, Store, StoreWarning


def ran(*arguments: Any) -> dict[str, Any]:
    result = CliRunner().invoke(
        command, [*map(str, arguments), "--json"], catch_exceptions=False, standalone_mode=False
    )
    return json.loads(result.output)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    with Store(tmp_path / "one.sqlite") as found:
        found.put("measurements", "a", {"seconds": 1})
        found.put("runs", "r", {"gain": 2})
    return tmp_path / "one.sqlite"


def test_rows_move_to_another_store_and_the_latest_wins(one: Path, tmp_path: Path) -> None:
    two = tmp_path / "two.sqlite"
    with Store(two) as found:
        found.put("measurements", "b", {"seconds": 3})
        found.put("runs", "r", {"gain": 4})
    out = tmp_path / "out.sqlite"
    assert ran("export", out, "--store", one)["rows"]["measurements"] == 1
    rows = ran("import", out, "--store", two)["rows"]
    assert rows == dict.fromkeys(TABLES, 0) | {"measurements": 1}
    with Store(two) as found:
        assert found.get("measurements", "a") == {"seconds": 1}
        assert found.get("measurements", "b") == {"seconds": 3}
        assert found.get("runs", "r") == {"gain": 4}, "it was written later than the imported one"
    assert ran("import", two, "--store", one)["rows"]["runs"] == 1
    with Store(one) as found:
        assert found.get("runs", "r") == {"gain": 4}


def test_files_merge_into_a_new_one(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.sqlite"
    assert ran("merge", out, one, one)["rows"]["runs"] == 1
    assert ran("status", "--store", out)["rows"]["measurements"] == 1
    with pytest.raises(UsageError, match="exists"):
        ran("merge", out, one)


def test_damaged_rows_stay_behind_and_are_collected(one: Path, tmp_path: Path) -> None:
    conn = sqlite3.connect(one)
    with conn:
        conn.execute("UPDATE measurements SET value = '{\"seconds\": 9}'")
    conn.close()
    assert ran("export", tmp_path / "out.sqlite", "--store", one)["rows"]["measurements"] == 0
    assert ran("gc", "--store", one)["rows"] == dict.fromkeys(TABLES, 0) | {"measurements": 1}
    assert ran("status", "--store", one)["rows"]["measurements"] == 0


def test_a_row_of_the_future_would_never_be_replaced(one: Path, tmp_path: Path) -> None:
    conn = sqlite3.connect(one)
    with conn:
        conn.execute("UPDATE measurements SET created = ?", (time.time() + 1e7,))
    conn.close()
    assert ran("export", tmp_path / "out.sqlite", "--store", one)["rows"]["measurements"] == 0
    assert ran("gc", "--store", one)["rows"]["measurements"] == 1


def test_old_rows_are_collected(one: Path) -> None:
    conn = sqlite3.connect(one)
    with conn:
        conn.execute("UPDATE runs SET created = created - 10 * 86400")
    conn.close()
    assert ran("gc", "--days", 11, "--store", one)["rows"]["runs"] == 0
    assert ran("gc", "--days", 9, "--store", one)["rows"] == dict.fromkeys(TABLES, 0) | {"runs": 1}


def test_a_file_that_is_no_store_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no store")
    with pytest.warns(StoreWarning), pytest.raises(InputError, match="cannot be used"):
        ran("import", path, "--store", tmp_path / "mine.sqlite")
    assert path.read_text() == "no store"
    with pytest.raises(UsageError, match="there is no store"):
        ran("status", "--store", tmp_path / "none.sqlite")
