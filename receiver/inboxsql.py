"""The SQL of the inbox: one table, and functions that take a connection.

Work still to do has a ``due_at``; finished and parked rows have none. The index holds what is
due, so neither history nor large bodies slow the search. The lease is the schedule: a claim moves
``due_at`` to the lease's end, and the rows of a dead worker are simply due again.
"""

# ruff: noqa: S608 - the parts are constants of this module; values are always parameters.

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Index,
    Integer,
    String,
    Table,
)

from receiver.receipt import DeadLetter
from receiver.statements import ANSWER, KEY, NOW, WORDS, Statement, metadata

inbox_table = Table(
    "surehook_inbox",
    metadata,
    Column("message_key", KEY, primary_key=True),
    Column("state", String(8), nullable=False),
    Column("token", String(32), nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("event_type", WORDS, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("due_at", BigInteger),
    Column("since", BigInteger, nullable=False),
    Column("body", ANSWER, nullable=False),
    Column("error", WORDS),
    Index("surehook_inbox_due", "due_at"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class Row(NamedTuple):
    """A claimed row."""

    key: str
    event_type: str
    attempts: int
    received_at: int
    body: bytes
    error: str | None


class InboxSql:
    """The inbox's statements for one kind of database. Times are milliseconds since the epoch."""

    def __init__(self, dialect: Dialect, family: str) -> None:
        self._family = family
        held = "WHERE message_key = :key AND token = :token AND state = 'pending'"
        due = (
            f"SELECT message_key FROM surehook_inbox WHERE due_at <= {NOW} "
            "ORDER BY due_at LIMIT :limit"
        )
        taken = f"SET token = :token, attempts = attempts + 1, due_at = {NOW} + :lease"
        columns = "message_key, event_type, attempts, received_at, body, error"

        def make(source: str) -> Statement:
            return Statement(source, dialect)

        self._insert = make(_insert(family))
        self._known = make("SELECT fingerprint FROM surehook_inbox WHERE message_key = :key")
        # SQLite: one UPDATE takes the write lock before it reads, as BEGIN IMMEDIATE would.
        skip = "" if family == "sqlite" else " FOR UPDATE SKIP LOCKED"
        self._claim = make(
            f"UPDATE surehook_inbox {taken} WHERE message_key IN ({due}{skip}) RETURNING {columns}"
        )
        # MariaDB has no UPDATE … RETURNING, and MySQL no LIMIT inside IN: look, take and read.
        self._due = make(f"{due}{skip}")
        self._take = make(f"UPDATE surehook_inbox {taken} WHERE message_key = :key")
        self._taken = make(f"SELECT {columns} FROM surehook_inbox WHERE token = :token")
        self._complete = make(
            f"UPDATE surehook_inbox SET state = 'done', due_at = NULL, since = {NOW}, "
            f"error = NULL {held}"
        )
        self._retry = make(
            f"UPDATE surehook_inbox SET token = '', due_at = {NOW} + :delay, "
            f"attempts = attempts - :given_back, error = COALESCE(:error, error) {held}"
        )
        self._park = make(
            f"UPDATE surehook_inbox SET state = 'parked', due_at = NULL, since = {NOW}, "
            f"error = COALESCE(:error, error) {held}"
        )
        self._extend = make(f"UPDATE surehook_inbox SET due_at = {NOW} + :lease {held}")
        self._parked = make(
            "SELECT message_key, attempts, error, since FROM surehook_inbox "
            "WHERE state = 'parked' ORDER BY since, message_key LIMIT :limit"
        )
        self._revive = make(
            f"UPDATE surehook_inbox SET state = 'pending', token = '', attempts = 0, "
            f"due_at = {NOW} WHERE message_key = :key AND state = 'parked'"
        )
        self._pending = make(
            f"SELECT count(*), {NOW} - min(received_at) FROM surehook_inbox "
            "WHERE due_at IS NOT NULL"
        )
        self._purge = make(_purge(family))

    def insert(self, connection: Connection, values: dict[str, Any]) -> str:
        """Store one message: ``new``, ``duplicate`` or ``mismatch`` (known with another body)."""
        values = {**values, "key": self.key(values["key"])}
        result = self._insert.run(connection, values)
        new = result.lastrowid == 0 if self._family == "mysql" else result.rowcount == 1
        if new:
            return "new"
        known = self._known.run(connection, values).rows
        same = not known or known[0][0] == values["fingerprint"]
        return "duplicate" if same else "mismatch"

    def claim(
        self, connection: Connection, token: str, limit: int, lease: int, now: int | None
    ) -> list[Row]:
        """Take up to `limit` due rows for `lease`, the longest due first."""
        values: dict[str, Any] = {"token": token, "limit": limit, "lease": lease, "now": now}
        if self._family != "mysql":
            rows = self._claim.run(connection, values).rows
        else:
            keys = [row[0] for row in self._due.run(connection, values).rows]
            if not keys:
                return []
            for key in keys:
                self._take.run(connection, {**values, "key": key})
            rows = self._taken.run(connection, values).rows
        claimed = [_row(row) for row in rows]
        return sorted(claimed, key=lambda row: row.received_at)

    def change(self, connection: Connection, name: str, values: dict[str, Any]) -> bool:
        """``complete``, ``retry``, ``park``, ``extend`` or ``revive``; False if not held."""
        statement: Statement = getattr(self, f"_{name}")
        values = {**values, "key": self.key(values["key"])}
        return statement.run(connection, values).rowcount == 1

    def parked(self, connection: Connection, limit: int) -> list[DeadLetter]:
        """The parked messages, oldest first."""
        return [
            DeadLetter(_text(key), attempts, error, datetime.fromtimestamp(since / 1000, UTC))
            for key, attempts, error, since in self._parked.run(connection, {"limit": limit}).rows
        ]

    def pending(self, connection: Connection, now: int | None) -> tuple[int, float]:
        """How many messages wait or are being handled, and the age of the oldest in seconds."""
        ((count, age),) = self._pending.run(connection, {"now": now}).rows
        return int(count), max(0.0, float(age or 0) / 1000)

    def purge(self, connection: Connection, ttl: int, limit: int, now: int | None) -> int:
        """Delete up to `limit` messages that were finished more than `ttl` ago."""
        return self._purge.run(connection, {"ttl": ttl, "limit": limit, "now": now}).rowcount

    def key(self, key: str) -> str | bytes:
        """`key` as the driver wants it."""
        return key.encode() if self._family == "mysql" else key


def _insert(family: str) -> str:
    insert = (
        "INSERT INTO surehook_inbox (message_key, state, token, fingerprint, event_type, "
        "attempts, received_at, due_at, since, body) "
        f"VALUES (:key, 'pending', '', :fingerprint, :event_type, 0, {NOW}, {NOW}, {NOW}, :body)"
    )
    if family == "mysql":
        # As for receipts: the last insert id is 0 for a new row only.
        return insert + (
            " ON DUPLICATE KEY UPDATE attempts = LAST_INSERT_ID(surehook_inbox.attempts + 1) - 1"
        )
    return insert + " ON CONFLICT (message_key) DO NOTHING"


def _purge(family: str) -> str:
    over = f"state = 'done' AND since <= {NOW} - :ttl"
    if family == "mysql":
        return f"DELETE FROM surehook_inbox WHERE {over} LIMIT :limit"
    return (
        "DELETE FROM surehook_inbox WHERE message_key IN "
        f"(SELECT message_key FROM surehook_inbox WHERE {over} LIMIT :limit) AND {over}"
    )


def _row(row: Any) -> Row:
    key, event_type, attempts, received_at, body, error = row
    return Row(_text(key), event_type, attempts, received_at, bytes(body), error)


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key
