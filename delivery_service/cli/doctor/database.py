"""The database: version and settings, revision, clock, and what holds its clean-up back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from delivery_service.cli.doctor.findings import Finding, failure, ok, warning
from delivery_service.cli.lengths import spoken
from delivery_service.settings import Settings
from delivery_service.store import workers

OLDEST_POSTGRESQL = 150_000
"""``server_version_num`` of the oldest version that its project maintains at the end of 2026
(postgresql.org/support/versioning)."""

MOST_CHECKED = 2**30
"""Bytes of an SQLite file that are checked for damage: some seconds."""

LONG_TRANSACTION = 60
"""Seconds after which an open transaction is told: the queue's dead rows can't be removed as
long as it lasts (one idle snapshot took a queue from 7,400 to 581 transactions/s in 20 s)."""

CLOCK_WARNING = timedelta(seconds=2)

_SETTINGS = (
    "server_version", "server_version_num", "fsync",
    "synchronous_commit", "autovacuum", "max_connections", "transaction_read_only",
    "statement_timeout",
)  # fmt: skip


def check_database(connection: Connection, settings: Settings) -> list[Finding]:
    """Look at the database that the settings name."""
    kind = _postgresql if connection.dialect.name == "postgresql" else _sqlite
    return [*kind(connection, settings), _clock(connection, settings)]


def _clock(connection: Connection, settings: Settings) -> Finding:
    before = datetime.now(UTC)
    there = workers.time(connection)
    after = datetime.now(UTC)
    apart = max(before - there, there - after, timedelta())
    said = f"{apart.total_seconds():.1f} s apart from the database's"
    if apart >= settings.tolerance:
        return failure(
            "clock",
            f"this machine's clock is {said}. Deliveries are signed by the database's time: if that"
            " one is wrong, receivers refuse every signature",
        )
    if apart >= CLOCK_WARNING:
        return warning("clock", f"this machine's clock is {said}; run NTP on both")
    return ok("clock", f"this machine's is less than {CLOCK_WARNING.seconds} s apart")


def _sqlite(connection: Connection, _settings: Settings) -> Iterator[Finding]:
    version = connection.scalar(text("SELECT sqlite_version()"))
    yield ok("version", f"SQLite {version}")
    mode = connection.scalar(text("PRAGMA journal_mode"))
    if mode == "wal":
        yield ok("journal_mode", "wal")
    else:
        yield warning("journal_mode", f"{mode}, not wal: readers and the writer block each other")
    pages = connection.scalar(text("PRAGMA page_count")) or 0
    if pages * (connection.scalar(text("PRAGMA page_size")) or 0) > MOST_CHECKED:
        return
    damage = connection.scalar(text("PRAGMA quick_check(1)"))
    if damage != "ok":
        yield failure("integrity", f"the file is damaged: {damage}; restore it from a backup")


def _postgresql(connection: Connection, settings: Settings) -> Iterator[Finding]:
    names = ", ".join(f"current_setting('{name}', true) AS {name}" for name in _SETTINGS)
    # The names are constants of this module.
    found = connection.execute(text(f"SELECT {names}")).mappings().one()
    version = f"PostgreSQL {found['server_version']}"
    if int(found["server_version_num"]) < OLDEST_POSTGRESQL:
        yield failure(
            "version", f"{version}: 12 is the oldest that works, a supported one is wiser"
        )
    else:
        yield ok("version", version)
    if connection.scalar(text("SELECT pg_is_in_recovery()")):
        yield failure("database_url", "this is a read-only replica: name the primary")
    yield from _idle(connection)
    yield from _durable(found)
    if found["autovacuum"] == "off":
        yield failure("autovacuum", "off: the queue's dead rows pile up; turn it on")
    pool = settings.database_pool_size
    if int(found["max_connections"]) < 2 * pool:
        yield warning(
            "max_connections",
            f"{found['max_connections']}, and each process of surehook takes up to {pool}"
            " (database_pool_size)",
        )
    yield from _long_transactions(connection)


def _idle(connection: Connection) -> Iterator[Finding]:
    # Our own sessions have a limit in any case; what counts is everybody else's.
    name = "idle_in_transaction_session_timeout"
    value = connection.scalar(
        text(
            "SELECT split_part(entry, '=', 2) FROM pg_db_role_setting, unnest(setconfig) AS entry"
            " WHERE setdatabase IN (0, (SELECT oid FROM pg_database"
            " WHERE datname = current_database())) AND split_part(entry, '=', 1) = :name"
            " ORDER BY setrole, setdatabase DESC LIMIT 1"
        ),
        {"name": name},
    )
    if value is None or value == "0":
        yield warning(
            name,
            "not set for this database: one transaction that is forgotten open, anywhere in it,"
            f" slows the queue down more and more. ALTER DATABASE … SET {name} = '60s' (a value in"
            " postgresql.conf can't be seen from here)",
        )
    else:
        yield ok(name, value)


def _durable(found: Any) -> Iterator[Finding]:
    if found["fsync"] == "off":
        yield failure("fsync", "off: a crash of the machine can lose or damage everything")
    if found["synchronous_commit"] == "off":
        yield warning(
            "synchronous_commit",
            "off: what was published within the last moments before a crash is lost",
        )


def _long_transactions(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(
        text(
            "SELECT pid, coalesce(application_name, '') AS name, coalesce(state, '') AS state,"
            " extract(epoch FROM clock_timestamp() - xact_start)::float AS age"
            " FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend' AND datname = current_database()"
            " AND xact_start < clock_timestamp() - make_interval(secs => :least)"
            " ORDER BY xact_start LIMIT 5"
        ),
        {"least": LONG_TRANSACTION},
    )
    for row in rows:
        yield warning(
            "long transaction",
            f"pid {row.pid} ({row.name or 'unnamed'}, {row.state}) has been open for"
            f" {spoken(row.age)}; while it is, dead rows of the queue can't be removed. SELECT"
            f" pg_terminate_backend({row.pid}) ends it",
        )
