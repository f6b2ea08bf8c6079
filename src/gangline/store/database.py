"""Connections and transactions. The only file that knows SQLite from PostgreSQL.

SQLite runs in WAL: readers never wait for the writer. Writers take the lock at BEGIN (IMMEDIATE), so that a
transaction that reads first and writes later can't fail half-way with "database is locked"; inside one process they
queue at a mutex, which is fair, and against other processes at SQLite's own lock, for up to `BUSY_TIMEOUT_S`.

`durable` transactions are synced to the disk before they return; others survive a killed server, and a power cut may
take the newest of them back. Ingestion uses the latter: what it stored is read again from the run directory, because
its offsets go with it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext

from gangline.store.damage import says_damaged

__all__ = ["BUSY_TIMEOUT_S", "Database"]

BUSY_TIMEOUT_S = 60.0
_POOL_SIZE = 8
_MOST_CONNECTIONS = 64
_WAL_LIMIT_BYTES = 64 * 1024 * 1024


class Database:
    """One database; safe to use from any thread."""

    def __init__(self, target: Path | str) -> None:
        self.engine = _sqlite_engine(target) if isinstance(target, Path) else _create(target)
        self._writer = threading.Lock()
        self._counter = _CommitCounter(target) if isinstance(target, Path) else None

    def version(self) -> object:
        """Equal to an earlier answer only if nobody, in any process, has committed anything in between.

        Costs some microseconds with SQLite; elsewhere nothing tells, and no two answers are equal.
        """
        return object() if self._counter is None else self._counter.read()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of everything; writes nothing."""
        with self.engine.connect() as conn, conn.begin():
            yield conn

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that is committed at the end, or rolled back by an exception. Must not be nested."""
        with self._writer, self.engine.connect() as conn:
            conn = conn.execution_options(gangline_write=True, gangline_durable=durable)  # noqa: PLW2901 - the same one
            with conn.begin():
                yield conn

    def on_damaged(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever an error says that the file is damaged."""

        def listen(context: ExceptionContext) -> None:
            if says_damaged(context.original_exception):
                call()

        event.listen(self.engine, "handle_error", listen)

    def close(self) -> None:
        """Let go of all connections."""
        if self._counter is not None:
            self._counter.close()
        self.engine.dispose()


class _CommitCounter:
    """A connection that never writes: what SQLite calls `data_version` differs for it after every commit of others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._conn: sqlite3.Connection | None = None

    def read(self) -> int:
        with self._lock:
            if self._conn is None:
                self._conn = sqlite3.connect(
                    self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
            return int(self._conn.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None


def _create(url: str | URL, **connect_args: float) -> Engine:
    return create_engine(
        url, pool_size=_POOL_SIZE, max_overflow=_MOST_CONNECTIONS - _POOL_SIZE, connect_args=connect_args
    )


def _sqlite_engine(path: Path) -> Engine:
    engine = _create(URL.create("sqlite", database=str(path)), timeout=BUSY_TIMEOUT_S)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(dbapi: sqlite3.Connection, _record: object) -> None:
    dbapi.isolation_level = None  # BEGIN is ours to say
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", f"journal_size_limit={_WAL_LIMIT_BYTES}"):
        dbapi.execute(f"PRAGMA {pragma}")


def _begin(conn: Connection) -> None:
    options = conn.get_execution_options()
    if not options.get("gangline_write"):
        conn.exec_driver_sql("BEGIN")
        return
    conn.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('gangline_durable') else 'NORMAL'}")
    conn.exec_driver_sql("BEGIN IMMEDIATE")
