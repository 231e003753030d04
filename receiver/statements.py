"""The SQL of receipts: table and statements, rendered once for each driver.

Executed through ``exec_driver_sql``: a claim is worth little more than one round trip, and
building or caching expressions would cost as much again.
"""

# ruff: noqa: S608 - the parts are constants of this module; values are always parameters.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    CursorResult,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql

from receiver.database import CLOCKS

metadata = MetaData()
"""The tables of the receiver kit, for your own migrations (``metadata.create_all(engine)``)."""

# Bytes on MySQL, whose text compares without regard to case or trailing blanks; C on PostgreSQL.
KEY = (
    String(255)
    .with_variant(String(255, collation="C"), "postgresql")
    .with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
)
ANSWER = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
WORDS = Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")

# No index but the primary key: an update of an indexed column is never HOT on PostgreSQL, and a
# receipt is updated once for each message. Times are milliseconds since the epoch, UTC.
receipts = Table(
    "surehook_receipts",
    metadata,
    Column("message_key", KEY, primary_key=True),
    Column("state", String(8), nullable=False),
    Column("token", String(32), nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("leased_until", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("response", ANSWER),
    Column("error", WORDS),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

_COLUMNS = "state, token, fingerprint, attempts, leased_until, expires_at, response, error"


class Statement:
    """One statement as its driver wants it, with the order of its parameters."""

    __slots__ = ("_order", "sql")

    def __init__(self, source: str, dialect: Dialect) -> None:
        compiled = text(source).compile(dialect=dialect)
        self.sql = str(compiled)
        # None for drivers that take names.
        self._order = getattr(compiled, "positiontup", None)

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> CursorResult[Any]:
        """Execute with `parameters`, of which there may be more than the statement needs."""
        if self._order is None:
            return connection.exec_driver_sql(self.sql, dict(parameters))
        return connection.exec_driver_sql(self.sql, tuple([parameters[n] for n in self._order]))


class Statements(NamedTuple):
    """Everything the store says to a database of one kind."""

    claim: Statement
    """Insert, or else read what is there: one row. Only where one statement can do it."""
    insert: Statement
    read: Statement
    swap: Statement
    complete: Statement
    release: Statement
    extend: Statement
    parked: Statement
    revive: Statement
    purge: Statement
    family: str


def statements_for(dialect: Dialect) -> Statements:
    """The statements for PostgreSQL, SQLite, MySQL or MariaDB."""
    family = "mysql" if dialect.name in {"mysql", "mariadb"} else dialect.name
    given = "CAST(:now AS BIGINT)" if family == "postgresql" else ":now"
    now = f"COALESCE({given}, {CLOCKS[family]})"
    sources = {**_insert(family, now), **_reads(family, now), **_changes(now), **_chores(family)}
    rendered = {name: Statement(source, dialect) for name, source in sources.items()}
    return Statements(family=family, **rendered)


def _insert(family: str, now: str) -> dict[str, str]:
    insert = (
        "INSERT INTO surehook_receipts (message_key, state, token, fingerprint, attempts, since, "
        "leased_until, expires_at, error) "
        f"SELECT :key, :state, :token, :fingerprint, 1, t.now, t.now + :lease, "
        f"t.now + :lease + :ttl, :error FROM (SELECT {now} AS now) AS t"
    )
    if family == "postgresql":
        insert = (
            "INSERT INTO surehook_receipts (message_key, state, token, fingerprint, attempts, "
            "since, leased_until, expires_at, error) "
            f"VALUES (:key, :state, :token, :fingerprint, 1, {now}, {now} + :lease, "
            f"{now} + :lease + :ttl, :error)"
        )
    if family == "mysql":
        # Changes nothing, but locks the row at once exclusively (INSERT IGNORE would share the
        # lock, and two takeovers deadlock) and reports through the last insert id, 0 for a new
        # row, that there was one.
        insert += " ON DUPLICATE KEY UPDATE attempts = LAST_INSERT_ID(surehook_receipts.attempts"
        insert += " + 1) - 1"
    elif family == "sqlite":
        # Without WHERE the parser takes ON CONFLICT for a join.
        insert += " WHERE true ON CONFLICT (message_key) DO NOTHING"
    else:
        insert += " ON CONFLICT (message_key) DO NOTHING"
    both = "SELECT 1"
    if family == "postgresql":
        both = (
            f"WITH won AS ({insert} RETURNING 1) "
            "SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM won UNION ALL "
            f"SELECT {_COLUMNS}, {now} FROM surehook_receipts "
            "WHERE message_key = :key AND NOT EXISTS (SELECT 1 FROM won)"
        )
    return {"insert": insert, "claim": both}


def _reads(family: str, now: str) -> dict[str, str]:
    # A plain read would show the snapshot of a transaction that began before the winner's commit.
    lock = " FOR UPDATE" if family == "mysql" else ""
    return {
        "read": f"SELECT {_COLUMNS}, {now} FROM surehook_receipts WHERE message_key = :key{lock}",
        "parked": "SELECT message_key, attempts, error, since FROM surehook_receipts "
        "WHERE state = 'parked' ORDER BY since, message_key LIMIT :limit",
    }


def _changes(now: str) -> dict[str, str]:
    held = "WHERE message_key = :key AND token = :token AND state"
    return {
        "swap": "UPDATE surehook_receipts SET state = :state, token = :token, "
        "fingerprint = :fingerprint, attempts = :attempts, since = :since, "
        "leased_until = :leased_until, expires_at = :expires_at, response = NULL, error = :error "
        "WHERE message_key = :key AND token = :old_token AND state = :old_state "
        "AND attempts = :old_attempts AND leased_until = :old_leased_until",
        "complete": "UPDATE surehook_receipts SET state = 'done', response = :response, "
        f"error = NULL, expires_at = {now} + :ttl {held} IN ('claimed', 'done')",
        # MySQL assigns from left to right: the state has to be judged before the attempts change.
        "release": "UPDATE surehook_receipts SET state = CASE WHEN attempts >= :max_failures "
        "THEN 'parked' ELSE 'free' END, attempts = attempts - :given_back, "
        f"error = COALESCE(:error, error), since = {now}, expires_at = {now} + :ttl "
        f"{held} = 'claimed'",
        "extend": f"UPDATE surehook_receipts SET leased_until = {now} + :lease, "
        f"expires_at = {now} + :lease + :ttl {held} = 'claimed'",
        "revive": "DELETE FROM surehook_receipts WHERE message_key = :key AND state = 'parked'",
    }


def _chores(family: str) -> dict[str, str]:
    given = "CAST(:now AS BIGINT)" if family == "postgresql" else ":now"
    over = f"state <> 'parked' AND expires_at <= COALESCE({given}, {CLOCKS[family]})"
    if family == "mysql":
        return {"purge": f"DELETE FROM surehook_receipts WHERE {over} LIMIT :limit"}
    return {
        "purge": "DELETE FROM surehook_receipts WHERE message_key IN "
        f"(SELECT message_key FROM surehook_receipts WHERE {over} LIMIT :limit) AND {over}"
    }
