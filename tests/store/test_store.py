"""The store: values come back, faults are misses, processes do not lose each other's writes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from superopt.store import SCHEMA_VERSION, TABLES, Store, StoreWarning, content_key, default_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "store.sqlite"


def test_values_come_back_in_another_store(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1, "nested": [1.5, None]})
        store.put_many("runs", {"b": {"x": 2}, "c": {"x": 3}})
        store.put("runs", "a", {"x": 4})
        store.delete("runs", "b")
        assert store.get("runs", "missing") is None
        assert store.get("certificates", "a") is None
    with Store(path) as store:
        assert store.get("runs", "a") == {"x": 4}
        assert dict(store.items("runs")) == {"a": {"x": 4}, "c": {"x": 3}}
        assert store.summary()["rows"] == {**dict.fromkeys(TABLES, 0), "runs": 2}
        assert store.notices == []


def test_keys_depend_on_content_only() -> None:
    assert content_key("a", {"x": 1, "y": [2]}) == content_key("a", {"y": [2], "x": 1})
    assert content_key("a", 1) != content_key("a", 2)


def test_unknown_table_is_an_error_of_the_caller(path: Path) -> None:
    with Store(path) as store, pytest.raises(ValueError, match="unknown table"):
        store.get("nonsense", "a")


@pytest.mark.parametrize("damage", ["truncated", "header", "schema"])
def test_damaged_file_is_moved_aside(path: Path, damage: str) -> None:
    with Store(path) as store:
        for i in range(200):
            store.put("runs", f"k{i}", {"text": "x" * 500})
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2 + 7])
    elif damage == "header":
        path.write_bytes(b"not a database!!" + content[16:])
    else:  # SQLite quotes it in its error
        path.write_bytes(content.replace(b"PRIMARY KEY", b"PRIMARY \xe9EY"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Store(path) as store:
            store.items("runs")  # reads every page
            store.put("runs", "new", {"x": 1})
            assert store.get("runs", "new") == {"x": 1}
    assert any("damaged" in str(w.message) and w.category is StoreWarning for w in caught)
    assert list(path.parent.glob("*.damaged-*"))
    with Store(path) as store:
        assert store.get("runs", "new") == {"x": 1}
        assert store.notices == []


@pytest.mark.parametrize("kind", ["text", "database", "bytes"])
def test_a_file_of_the_user_stays_as_it_is(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if kind == "database":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE songs (title TEXT)")
            other.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        other.close()
    else:
        path.write_bytes(b"1,2,3\n" * 500 if kind == "text" else os.urandom(8192))
    before = path.read_bytes()
    with pytest.warns(StoreWarning, match="is no store of superopt and stays as it is"):
        store = Store(path)
    store.put("runs", "new", {"x": 1})
    assert store.get("runs", "new") == {"x": 1}
    store.close()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_own_place_is_started_afresh_whatever_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    default_path().parent.mkdir(parents=True)
    default_path().write_bytes(b"not a database" * 500)
    with pytest.warns(StoreWarning, match="damaged"), Store() as store:
        store.put("runs", "new", {"x": 1})
    assert list(default_path().parent.glob("*.damaged-*"))


def test_rows_in_each_others_place_are_misses(path: Path) -> None:
    """The digest of a row covers its table and key as well as its value."""
    with Store(path) as store:
        store.put("runs", "a", {"program": "x @ a @ b"})
        store.put("runs", "b", {"program": "3 * (x @ a @ b)"})
        store.put("schedules", "a", {"trace": []})
    with sqlite3.connect(path) as other:
        rows = {key: (value, digest) for key, value, digest in other.execute("SELECT key, value, digest FROM runs")}
        for key, source in (("a", "b"), ("b", "a")):
            other.execute("UPDATE runs SET value = ?, digest = ? WHERE key = ?", (*rows[source], key))
        other.execute("INSERT INTO calibration SELECT * FROM schedules")
    other.close()
    with Store(path) as store:
        assert store.get("runs", "a") is None
        assert store.get("runs", "b") is None
        assert store.items("runs") == []
        assert store.get("calibration", "a") is None
        assert store.get("schedules", "a") == {"trace": []}


def test_files_that_would_run_something_are_no_stores(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
    with sqlite3.connect(path) as other:
        other.execute("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM certificates; END")
    other.close()
    with pytest.warns(StoreWarning, match="damaged"), Store(path) as store:
        assert store.get("runs", "a") is None
    assert list(path.parent.glob("*.damaged-*"))


def test_letters_that_are_none_are_a_miss_of_one_row(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
        store.put("runs", "b", {"x": 2})
    with sqlite3.connect(path) as other:
        other.execute("UPDATE runs SET value = CAST(x'ff7b7d' AS TEXT) WHERE key = 'a'")
    other.close()
    with Store(path) as store:
        assert store.get("runs", "a") is None
        assert store.get("runs", "b") == {"x": 2}
        assert store.notices == []


@pytest.mark.parametrize("value", [b"{}", 7, 0.5])
def test_values_that_are_no_text_are_misses(path: Path, value: object) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
        store.put("runs", "b", {"x": 2})
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE runs SET value = ? WHERE key = 'a'", (value,))
    with Store(path) as store:
        assert store.get("runs", "a") is None
        assert dict(store.items("runs")) == {"b": {"x": 2}}
        assert store.notices == []


@pytest.mark.parametrize("lost", ["DROP TABLE runs", "ALTER TABLE runs DROP COLUMN created"])
def test_a_store_that_lost_a_table_or_a_column_is_started_afresh_on_disk(path: Path, lost: str) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
    with sqlite3.connect(path) as conn:
        conn.execute(lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Store(path) as store:
            store.put("runs", "b", {"x": 2})
    with Store(path) as store:
        assert dict(store.items("runs")) == {"b": {"x": 2}}, "kept in the file, not in memory"
    assert [p.name for p in path.parent.iterdir() if ".damaged-" in p.name], "the old one is aside"


def test_what_another_process_has_put_in_the_place_of_a_damaged_file_stays(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
        store._set_aside("a fault that another process has met before")
        assert store.get("runs", "a") == {"x": 1}
        assert store.notices == []
    assert not [p.name for p in path.parent.iterdir() if ".damaged-" in p.name]


def test_flipped_bits_in_a_value_are_a_miss(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"text": "SENTINEL" * 20})
        store.put("runs", "b", {"x": 1})
        store._run(lambda c: c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    content = path.read_bytes()
    assert content.count(b"SENTINEL") == 20
    path.write_bytes(content.replace(b"SENTINEL", b"SENTIMEL", 1))
    with Store(path) as store:
        assert store.get("runs", "a") is None
        assert store.get("runs", "b") == {"x": 1}
        assert [key for key, _ in store.items("runs")] == ["b"]


def test_newer_schema_is_left_alone(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as conn:
        conn.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    conn.close()
    before = path.read_bytes()
    with pytest.warns(StoreWarning, match="newer"):
        store = Store(path)
    store.put("runs", "a", {"x": 1})
    assert store.get("runs", "a") == {"x": 1}
    assert store.path is None
    store.close()
    assert path.read_bytes() == before


def test_place_that_cannot_be_used_falls_back_to_memory(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where a folder should be")
    with pytest.warns(StoreWarning, match="kept in memory"):
        store = Store(blocker / "store.sqlite")
    store.put("runs", "a", {"x": 1})
    assert store.get("runs", "a") == {"x": 1}


def test_read_only_file_is_read_and_writes_stay_in_memory(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
    with Store(path) as store:
        assert store.get("runs", "a") == {"x": 1}
        store._run(lambda c: c.execute("PRAGMA query_only=ON"))
        with pytest.warns(StoreWarning, match="kept in memory"):
            store.put("runs", "b", {"x": 2})
        assert store.get("runs", "b") == {"x": 2}
    with Store(path) as store:
        assert store.get("runs", "b") is None


def test_full_disk_keeps_the_run_going(path: Path) -> None:
    with Store(path) as store:
        pages = store._run(lambda c: c.execute("PRAGMA page_count").fetchone())[0]
        store._run(lambda c: c.execute(f"PRAGMA max_page_count={pages}").fetchone())
        with pytest.warns(StoreWarning, match="full"):
            store.put_many("runs", {f"k{i}": {"text": "x" * 2000} for i in range(50)})
        assert store.get("runs", "k49") == {"text": "x" * 2000}


WRITER = """
import sys
from superopt.store import Store
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(path) as store:
    for i in range(count):
        store.put("measurements", f"{who}-{i}", {"who": who, "i": i})
    assert not store.notices, store.notices
"""


def test_many_processes_write_one_store(path: Path) -> None:
    writers, count = 8, 40
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"w{k}", str(count)]) for k in range(writers)]
    assert [process.wait(timeout=60) for process in running] == [0] * writers
    with Store(path) as store:
        assert len(store.items("measurements")) == writers * count


def test_killed_writer_leaves_the_store_intact(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "w", "100000"])
    with Store(path) as store:
        while len(store.items("measurements", limit=20)) < 20:
            assert process.poll() is None
        process.kill()
        process.wait()
        kept = store.items("measurements")
        assert {value["i"] for _, value in kept} == set(range(len(kept)))
        store.put("measurements", "after", {"x": 1})
        assert store.get("measurements", "after") == {"x": 1}
        assert store.notices == []


def test_forked_child_opens_its_own_connection(path: Path) -> None:
    with Store(path) as store:
        store.put("runs", "a", {"x": 1})
        code = (
            "import os, sys; from superopt.store import Store; s = Store(sys.argv[1]); pid = os.fork();"
            "s.put('runs', f'p{pid == 0}', {'ok': 1});"
            "os._exit(0) if pid == 0 else sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        )
        assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 0
        assert {key for key, _ in store.items("runs")} == {"a", "pTrue", "pFalse"}
