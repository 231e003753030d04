"""The SQL of receipts: table and statements, rendered once for each driver.

Text, not expressions: a claim is worth little more than one round trip, and building or caching
expressions would cost as much again.
"""

# ruff: noqa: S608 - the parts are constants of this module; values are always parameters.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
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
from sqlalchemy.exc import DBAPIError

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


NOW = "{now}"
"""In the source of a statement: the injected time or else the database's."""


class Result(NamedTuple):
    """What a statement gave."""

    rows: Sequence[Any]
    rowcount: int
    lastrowid: int


class Statement:
    """One statement as its driver wants it, with and without an injected time.

    `direct` statements go to the driver's cursor: for short transactions in autocommit mode, where
    SQLAlchemy's result handling would cost as much as the round trip. The others are seen by
    SQLAlchemy's events, as everything in the caller's transaction should be.
    """

    __slots__ = ("_clocked", "_direct", "_plain", "_returns")

    def __init__(self, source: str, dialect: Dialect, *, direct: bool = False) -> None:
        family = "mysql" if dialect.name == "mariadb" else dialect.name
        given = "CAST(:now AS BIGINT)" if family == "postgresql" else ":now"
        self._plain = _render(source.replace(NOW, CLOCKS[family]), dialect)
        self._clocked = _render(source.replace(NOW, given), dialect)
        self._direct = direct
        self._returns = source.startswith(("SELECT", "WITH")) or "RETURNING" in source

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> Result:
        """Execute with `parameters`, of which there may be more than the statement needs."""
        clocked = parameters.get("now") is not None
        sql, order = self._clocked if clocked else self._plain
        given: Any = parameters if order is None else tuple([parameters[name] for name in order])
        if self._direct:
            return _run_directly(connection, sql, given, returns=self._returns)
        result = connection.exec_driver_sql(sql, given)
        mysql_id = result.lastrowid if connection.dialect.name in {"mysql", "mariadb"} else 0
        return Result(result.fetchall() if self._returns else (), result.rowcount, mysql_id)


def _render(source: str, dialect: Dialect) -> tuple[str, tuple[str, ...] | None]:
    """The driver's text and the order of its parameters, None for drivers that take names."""
    compiled = text(source).compile(dialect=dialect)
    order = getattr(compiled, "positiontup", None)
    return str(compiled), None if order is None else tuple(order)


def _run_directly(
    connection: Connection,
    sql: str,
    parameters: Any,
    *,
    returns: bool,
) -> Result:
    pooled = connection.connection
    cursor = pooled.cursor()
    try:
        cursor.execute(sql, parameters)
        rows = cursor.fetchall() if returns else ()
        return Result(rows, cursor.rowcount, 0)
    except Exception as error:
        dialect = connection.dialect
        database_error = dialect.loaded_dbapi.Error
        if not isinstance(error, database_error):
            raise
        lost = dialect.is_disconnect(error, pooled, cursor)
        if lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            sql, None, error, database_error, connection_invalidated=lost, dialect=dialect
        ) from error
    finally:
        cursor.close()


class Statements(NamedTuple):
    """Everything the store says to a database of one kind."""

    claim: Statement
    """Insert, or else read what is there: one row. Only where one statement can do it."""
    insert: Statement
    fail: Statement
    """Insert a failure under a key that nobody has claimed."""
    read: Statement
    swap: Statement
    complete: Statement
    release: Statement
    extend: Statement
    parked: Statement
    revive: Statement
    purge: Statement
    family: str


def statements_for(dialect: Dialect, family: str, *, joined: bool) -> Statements:
    """The statements for a database of `family`, `joined` to the caller's transaction or not."""
    state, lease = ("'done'", "0") if joined else ("'claimed'", ":lease")
    sources = {
        **_claim(family, _insert(family, state, lease, "NULL")),
        "fail": _insert(family, ":state", "0", ":error"),
        **_reads(family),
        **_changes(NOW),
        **_chores(family),
    }
    # MySQL's transactions have more than one statement, and SQLAlchemy must know of them.
    direct = {"read"} if joined else (set() if family == "mysql" else set(sources))
    rendered = {
        name: Statement(source, dialect, direct=name in direct) for name, source in sources.items()
    }
    return Statements(family=family, **rendered)


def _insert(family: str, state: str, lease: str, error: str) -> str:
    insert = (
        "INSERT INTO surehook_receipts (message_key, state, token, fingerprint, attempts, since, "
        f"leased_until, expires_at, error) VALUES (:key, {state}, :token, :fingerprint, 1, {NOW}, "
        f"{NOW} + {lease}, {NOW} + {lease} + :ttl, {error})"
    )
    if family != "mysql":
        return insert + " ON CONFLICT (message_key) DO NOTHING"
    # Changes nothing, but locks the row at once exclusively (INSERT IGNORE would share the lock,
    # and two takeovers deadlock) and reports through the last insert id, 0 for a new row, that
    # there was one.
    return insert + (
        " ON DUPLICATE KEY UPDATE attempts = LAST_INSERT_ID(surehook_receipts.attempts + 1) - 1"
    )


def _claim(family: str, insert: str) -> dict[str, str]:
    if family != "postgresql":
        return {"insert": insert, "claim": "SELECT 1"}
    return {
        "insert": insert,
        "claim": f"WITH won AS ({insert} RETURNING 1) "
        f"SELECT {_COLUMNS}, {NOW} FROM surehook_receipts "
        "WHERE message_key = :key AND NOT EXISTS (SELECT 1 FROM won) "
        "UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM won",
    }


def _reads(family: str) -> dict[str, str]:
    # A plain read would show the snapshot of a transaction that began before the winner's commit.
    lock = " FOR UPDATE" if family == "mysql" else ""
    return {
        "read": f"SELECT {_COLUMNS}, {NOW} FROM surehook_receipts WHERE message_key = :key{lock}",
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
    over = f"state <> 'parked' AND expires_at <= {NOW}"
    if family == "mysql":
        return {"purge": f"DELETE FROM surehook_receipts WHERE {over} LIMIT :limit"}
    return {
        "purge": "DELETE FROM surehook_receipts WHERE message_key IN "
        f"(SELECT message_key FROM surehook_receipts WHERE {over} LIMIT :limit) AND {over}"
    }
