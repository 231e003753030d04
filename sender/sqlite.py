"""SQLite set up so that a platform and the service can write to one file."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

BUSY_TIMEOUT_MS = 20_000
READ_ONLY = "surehook_read_only"
"""Execution option of connections that only read: they don't wait for the writer's turn."""


def configure_sqlite(engine: Engine | AsyncEngine) -> None:
    """Set an SQLite engine up for several writers; call once, before it is first used.

    Write-ahead log, a busy time-out of 20 s, every commit synced to disk, and ``BEGIN
    IMMEDIATE``: a transaction that reads before it writes would otherwise fail at once with
    "database is locked", whatever the time-out, when another has written in between
    (sqlite.org/isolation.html). Does nothing for other databases.
    """
    sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if sync.dialect.name != "sqlite":
        return

    @event.listens_for(sync, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # The driver must not begin transactions of its own accord: `_begin` does.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        _write_ahead(cursor)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA temp_store = MEMORY")
        cursor.close()

    @event.listens_for(sync, "begin")
    def _begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _write_ahead(cursor: Any) -> None:
    """Switch the file to a write-ahead log, unless it has one.

    Of several that switch a new file at once, SQLite refuses one, whatever the time-out: they
    would wait for each other.
    """
    until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
        else:
            return
        # Holding nothing itself, this waits for the others.
        cursor.execute("BEGIN EXCLUSIVE")
        cursor.execute("ROLLBACK")
