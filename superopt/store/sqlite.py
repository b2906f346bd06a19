"""One SQLite file behind `get` and `put`.

A row carries a digest of its table, key and value; a damaged row, or one that was copied to another key, is a miss.
Nothing in a file is run: one with views or triggers is not a store.

A connection belongs to one process (a forked child opens its own) and is guarded by a lock between threads.  Moving a
damaged file aside happens under a file lock after a second look, or two processes that meet the damage together
would move each other's fresh file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from superopt.errors import InputError
from superopt.files.reading import digest, json_of, shown
from superopt.machine.fallback import warned

SCHEMA_VERSION = 3
TABLES = ("certificates", "measurements", "runs", "calibration", "schedules")
BUSY_TIMEOUT_S = 30.0
_CLOCKS_APART_S = 86_400.0  # between two machines
_MEMORY = ":memory:"
_SCHEMA_BYTES = 1 << 16  # the first page, of any size, holds the tables


class StoreWarning(UserWarning):
    """The store cannot be used as it should be; the run goes on without it."""


def default_path() -> Path:
    """Path of the store unless another is given: in the user's cache directory."""
    import platformdirs  # late: not needed when a path is given

    return Path(platformdirs.user_cache_dir("superopt", appauthor=False)) / f"store-v{SCHEMA_VERSION}.sqlite"


def content_key(*parts: Any) -> str:
    """Digest of JSON-like parts (32 hex digits): equal content, equal key."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Store:
    """Content-keyed tables of JSON objects.

    Attributes:
        path: the file, or None when values live in memory.
        notices: faults so far, one line each (also issued as `StoreWarning`).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, memory: bool = False) -> None:
        """Open the store at a path (default: the user's cache directory), or in memory. Never raises."""
        self.notices: list[str] = []
        self.path: Path | None = None if memory else Path(path) if path is not None else default_path()
        self._given = path is not None  # by the user, who may have meant another file
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._conn: sqlite3.Connection | None = self._open()

    def get(self, table: str, key: str) -> dict[str, Any] | None:
        """The value stored under a key; None where it is absent, damaged or unreadable."""
        _check_table(table)
        row = self._run(lambda c: c.execute(f"SELECT value, digest FROM {table} WHERE key = ?", (key,)).fetchone())
        return _decode(table, key, row) if row else None

    def put(self, table: str, key: str, value: Mapping[str, Any]) -> None:
        """Store a JSON object under a key, replacing an earlier one."""
        self.put_many(table, {key: value})

    def put_many(self, table: str, items: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects in one transaction."""
        _check_table(table)
        now = time.time()
        texts = {key: json.dumps(value, sort_keys=True) for key, value in items.items()}
        rows = [(key, text, _digest(table, key, text), now) for key, text in texts.items()]

        def write(conn: sqlite3.Connection) -> None:
            with _immediate(conn):
                conn.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)", rows)

        self._run(write)

    def items(self, table: str, *, limit: int = 1_000_000) -> list[tuple[str, dict[str, Any]]]:
        """Keys and values, newest first; damaged rows are left out."""
        _check_table(table)
        query = f"SELECT value, digest, key FROM {table} ORDER BY created DESC, rowid DESC LIMIT ?"
        rows = self._run(lambda c: c.execute(query, (limit,)).fetchall()) or []
        return [(row[2], value) for row in rows if (value := _decode(table, row[2], row)) is not None]

    def delete(self, table: str, key: str) -> None:
        """Delete one key."""
        _check_table(table)

        def drop(conn: sqlite3.Connection) -> None:
            with _immediate(conn):
                conn.execute(f"DELETE FROM {table} WHERE key = ?", (key,))

        self._run(drop)

    def take(self, other: Store) -> dict[str, int]:
        """Take over the rows of another store that are absent or older here; return their number per table.

        Damaged rows are left out.  A key names its machine and versions, so rows of several machines live side by side.
        """
        taken: dict[str, int] = {}
        for table in TABLES:
            query = f"SELECT value, digest, key, created FROM {table}"
            rows = other._run(lambda c, query=query: c.execute(query).fetchall()) or []
            whole = [(k, v, d, t) for v, d, k, t in rows if _decode(table, k, (v, d)) is not None and _is_time(t)]
            insert = (
                f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value,"
                f" digest = excluded.digest, created = excluded.created WHERE excluded.created > {table}.created"
            )

            def write(conn: sqlite3.Connection, insert: str = insert, whole: list[Any] = whole) -> int:
                before = conn.total_changes
                with _immediate(conn):
                    conn.executemany(insert, whole)
                return conn.total_changes - before

            taken[table] = self._run(write) or 0
        return taken

    def collect(self, oldest: float) -> dict[str, int]:
        """Delete damaged rows and those written before an instant of `time.time`; return their number per table.

        The file gives the space back.
        """
        deleted: dict[str, int] = {}
        for table in TABLES:
            rows = self._run(
                lambda c, table=table: c.execute(f"SELECT value, digest, key, created, rowid FROM {table}").fetchall()
            )
            gone = [
                (row[4],)
                for row in rows or []
                if _decode(table, row[2], row) is None or not _is_time(row[3]) or row[3] < oldest
            ]

            def drop(conn: sqlite3.Connection, table: str = table, gone: list[tuple[Any]] = gone) -> None:
                with _immediate(conn):
                    conn.executemany(f"DELETE FROM {table} WHERE rowid = ?", gone)

            self._run(drop)
            deleted[table] = len(gone)
        self._run(lambda c: c.execute("VACUUM"))
        return deleted

    def summary(self) -> dict[str, Any]:
        """Path, rows per table and notices, for `doctor`."""

        def count(conn: sqlite3.Connection) -> dict[str, int]:
            return {t: conn.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in TABLES}

        return {"path": str(self.path or _MEMORY), "rows": self._run(count) or {}, "notices": list(self.notices)}

    def close(self) -> None:
        """Close the file; later calls open it again."""
        with self._lock:
            if self._conn is not None and self._pid == os.getpid():
                self._conn.close()
            self._conn = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- opening, and recovery when the file is not usable

    def _run(self, action: Any) -> Any:
        with self._lock:
            for attempt in (1, 2):
                if self._conn is None or self._pid != os.getpid():
                    self._conn, self._pid = self._open(), os.getpid()
                try:
                    return action(self._conn)
                except sqlite3.OperationalError as error:
                    if _is_busy(error):
                        self._notice(f"store busy for {BUSY_TIMEOUT_S:.0f} s, entry skipped: {error}")
                        return None
                    self._to_memory(str(error))
                except sqlite3.DatabaseError as error:
                    self._set_aside(str(error))
                except Exception as error:  # a store is a cache: whatever fails in it is a miss
                    self._notice(f"store failed, entry skipped: {type(error).__name__}: {error}")
                    return None
                if attempt == 2:
                    self._to_memory("it failed again after a new start")
            return action(self._conn) if self._conn is not None else None

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return _prepare(_MEMORY)
        if self._given and not _may_be_store(self.path):
            self._notice(f"{self.path} is no store of superopt and stays as it is: kept in memory")
            self.path = None
            return _prepare(_MEMORY)
        for _ in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return _prepare(str(self.path))
            except _NewerSchemaError as error:
                self._notice(
                    f"store {self.path} has schema {error.version}, newer than {SCHEMA_VERSION}: kept in memory"
                )
                break
            except (OSError, sqlite3.OperationalError) as error:
                self._notice(f"store {self.path} cannot be used ({error}): kept in memory")
                break
            except sqlite3.DatabaseError as error:
                self._move_aside(str(error))
        self.path = None
        return _prepare(_MEMORY)

    def _to_memory(self, cause: str) -> None:
        self._notice(f"store {self.path} cannot be used ({cause}): kept in memory")
        self.close()
        self.path = None
        self._conn = _prepare(_MEMORY)

    def _set_aside(self, cause: str) -> None:
        self.close()
        if self.path is not None:
            self._move_aside(cause)

    def _move_aside(self, cause: str) -> None:
        assert self.path is not None
        try:
            with _file_lock(self.path.with_name(self.path.name + ".lock")):
                if not _is_damaged(self.path):
                    return  # another process has put a fresh file here already
                aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
                os.replace(self.path, aside)
                for suffix in ("-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(f"{self.path}{suffix}")
        except OSError as error:
            self._notice(f"damaged store {self.path} cannot be moved ({error}): kept in memory")
            self.path = None
            return
        self._notice(f"store was damaged ({cause}): moved to {aside}, started afresh")

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)
            warned(text, StoreWarning, stacklevel=5)


class _NewerSchemaError(Exception):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def _may_be_store(path: Path) -> bool:
    """Whether a file may be a store: it is absent or empty, or names most of the tables at the place where SQLite does.

    While a database is being written, its tables may still be in the file beside it.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_SCHEMA_BYTES)
    except OSError:
        return True  # the error is reported where the file is opened
    if not head or sum(name.encode() in head for name in TABLES) > len(TABLES) // 2:
        return True
    return head.startswith(b"SQLite format 3\0") and _tables(path) <= set(TABLES)


def _tables(path: Path) -> set[str]:
    conn = sqlite3.connect(str(path), timeout=BUSY_TIMEOUT_S)
    try:
        return {str(name) for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except (sqlite3.Error, UnicodeDecodeError):
        return set()  # the error is reported where the file is opened
    finally:
        conn.close()


def _prepare(path: str) -> sqlite3.Connection:
    """Open a database, with its tables made or made anew where their version is older."""
    conn = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    conn.text_factory = _text  # else one damaged letter is an error of the whole file
    try:
        conn.execute("PRAGMA trusted_schema=OFF")
        conn.execute("PRAGMA cell_size_check=ON")
        if path != _MEMORY:
            conn.execute("PRAGMA journal_mode=WAL")
            conn.execute("PRAGMA synchronous=NORMAL")
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise _NewerSchemaError(version)
        if version < SCHEMA_VERSION:
            with _immediate(conn):
                for table in TABLES:
                    columns = "key TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT NOT NULL, created REAL NOT NULL"
                    conn.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                conn.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        for kind, name in conn.execute("SELECT type, name FROM sqlite_master"):
            if kind not in ("table", "index"):
                raise sqlite3.DatabaseError(f"not a superopt store: it has a {shown(kind)} {shown(name)}")
        _read_each(conn)
    except sqlite3.OperationalError as error:
        conn.close()
        if "no such table" in str(error) or "no such column" in str(error):
            raise sqlite3.DatabaseError(f"not a superopt store: {error}") from error
        raise
    except UnicodeDecodeError as error:  # of a message in which SQLite quotes the damaged text
        conn.close()
        raise sqlite3.DatabaseError("its schema is no text") from error
    except BaseException:
        conn.close()
        raise
    return conn


def _read_each(conn: sqlite3.Connection) -> None:
    """Read from every table; an error of SQLite, where one or a column of one is missing."""
    for table in TABLES:
        conn.execute(f"SELECT key, value, digest, created FROM {table} LIMIT 1").fetchone()


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


@contextlib.contextmanager
def _immediate(conn: sqlite3.Connection) -> Iterator[None]:
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            conn.execute("ROLLBACK")
        raise
    conn.execute("COMMIT")


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    try:
        import fcntl  # late: absent on Windows, where the rename below is refused while the file is open anyway
    except ImportError:
        yield
        return
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _is_damaged(path: Path) -> bool:
    if not path.exists():
        return False
    conn = sqlite3.connect(str(path), timeout=BUSY_TIMEOUT_S)
    try:
        if conn.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            return True
        _read_each(conn)
        kinds = {kind for (kind,) in conn.execute("SELECT type FROM sqlite_master")}
        return not kinds <= {"table", "index"}
    except sqlite3.OperationalError as error:
        return not _is_busy(error)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return True
    finally:
        conn.close()


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _check_table(table: str) -> None:
    if table not in TABLES:
        raise ValueError(f"unknown table {table!r}; the store has {', '.join(TABLES)}")


def _is_time(created: Any) -> bool:
    """Whether the time of a row is one, and not in the future, where no later row would replace it."""
    return isinstance(created, float) and 0 <= created <= time.time() + _CLOCKS_APART_S


def _digest(table: str, key: str, text: str) -> str:
    return digest(f"{table}/{key}", text.encode())[:32]


def _decode(table: str, key: Any, row: tuple[Any, ...]) -> dict[str, Any] | None:
    """The value of a row; None where it is not the one stored under this key of this table."""
    value, stated = row[0], row[1]
    if not isinstance(key, str) or not isinstance(value, str) or _digest(table, key, value) != stated:
        return None
    try:
        decoded = json_of(value)
    except InputError:
        return None
    return decoded if isinstance(decoded, dict) else None  # pyright: ignore[reportUnknownVariableType]
