"""Operations: bulk work that is done in batches, by whichever process holds its lease.

What a batch did and how far it came are written in the transaction of the batch itself, which
names the lease's token: a process that is killed has done a batch wholly or not at all, and one
that comes back late does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from sender.fingerprints import fingerprint
from sender.publish import MAX_KEY_LENGTH, check_text
from sender.tables import operations
from sender.types import later, moment
from wire.ids import OPERATION, new_id

Status = Literal["queued", "running", "done", "cancelled", "failed"]
QUEUED = "queued"
RUNNING = "running"
DONE = "done"
CANCELLED = "cancelled"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Added:
    """An operation that was queued: ``is_new``, or the one that holds the idempotency key, and then
    ``is_same`` tells whether it is what was asked for."""

    id: str
    is_new: bool = True
    is_same: bool = True


def add(
    connection: Connection,
    kind: str,
    where: Mapping[str, Any],
    data: bytes | None = None,
    now: datetime | None = None,
    *,
    idempotency_key: str | None = None,
) -> Added:
    """Queue an operation of ``kind`` with its filter, and a broadcast's data.

    Of several at once with the same ``idempotency_key``, one does and the others wait for it.
    Raises `sender.PublishError` for a key that can't be one.
    """
    check_text("idempotency_key", idempotency_key, MAX_KEY_LENGTH)
    operation_id = new_id(OPERATION, now=now)
    filter_ = dict(where)
    row = {
        "id": operation_id,
        "kind": kind,
        "filter": filter_,
        "data": data,
        "passed_over": {},
        "created_at": moment(now),
        "updated_at": moment(now),
    }
    if idempotency_key is None:
        connection.execute(operations.insert().values(row))
        return Added(operation_id)
    content = [kind.encode(), json.dumps(filter_, sort_keys=True).encode(), data or b""]
    row |= {"idempotency_key": idempotency_key, "fingerprint": fingerprint(content)}
    return _add_keyed(connection, row)


def _add_keyed(connection: Connection, row: dict[str, Any]) -> Added:
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    key = operations.c.idempotency_key
    insertion = (
        insert(operations)
        .values(row)
        .on_conflict_do_nothing(index_elements=[key], index_where=key.is_not(None))
        .returning(operations.c.id)
    )
    holder = select(operations.c.id, operations.c.fingerprint).where(key == row["idempotency_key"])
    while connection.scalars(insertion).one_or_none() is None:
        # Not found if the key was forgotten between the two statements: then it is free now.
        earlier = connection.execute(holder).one_or_none()
        if earlier is not None:
            is_same = earlier.fingerprint == row["fingerprint"]
            return Added(earlier.id, is_new=False, is_same=is_same)
    return Added(row["id"])


def get(connection: Connection, operation_id: str) -> dict[str, Any] | None:
    """Return an operation, or None."""
    row = connection.execute(
        select(operations).where(operations.c.id == operation_id)
    ).one_or_none()
    return None if row is None else row._asdict()


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    kind: str | None = None,
    status: str | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` operations without their data, newest first."""
    columns = [column for column in operations.c if column.name != "data"]
    query = select(*columns).order_by(operations.c.id.desc()).limit(limit)
    for column, value in {"kind": kind, "status": status}.items():
        if value is not None:
            query = query.where(operations.c[column] == value)
    if before is not None:
        query = query.where(operations.c.id < before)
    return [row._asdict() for row in connection.execute(query)]


def _is_free(now: datetime | None) -> ColumnElement[bool]:
    return and_(
        operations.c.ended_at.is_(None),
        or_(operations.c.status == QUEUED, operations.c.lease_until <= moment(now)),
    )


def next_free(
    connection: Connection, now: datetime | None = None, only: str | None = None
) -> str | None:
    """Return the oldest operation that nobody works on, or ``only`` if that is one."""
    query = select(operations.c.id).where(_is_free(now)).order_by(operations.c.id).limit(1)
    if only is not None:
        query = query.where(operations.c.id == only)
    return connection.scalars(query).one_or_none()


def unfinished(
    connection: Connection, now: datetime | None = None
) -> tuple[dict[str, int], timedelta]:
    """Return the number of operations by status that have not ended, and for how long the one that
    stands still longest has made no progress: of those that run, or if none does, of the queue.

    While one runs, those behind it have to wait.
    """
    found = connection.execute(
        select(
            operations.c.status,
            func.count().label("number"),
            func.min(operations.c.updated_at).label("oldest"),
            moment(now).label("now"),
        )
        .where(operations.c.ended_at.is_(None))
        .group_by(operations.c.status)
    )
    rows = {row.status: row for row in found}
    first = rows.get(RUNNING) or rows.get(QUEUED)
    idle = timedelta() if first is None else max(timedelta(), first.now - first.oldest)
    return {status: row.number for status, row in rows.items()}, idle


def claim(
    connection: Connection,
    operation_id: str,
    token: str,
    lease: timedelta,
    now: datetime | None = None,
) -> bool:
    """Take a free operation for ``lease`` under ``token``; False when another was first.

    That is no progress, so ``updated_at`` stays: processes may take turns at one that kills them.
    """
    taken = connection.execute(
        update(operations)
        .where(operations.c.id == operation_id, _is_free(now))
        .values(
            status=RUNNING,
            lease_token=token,
            lease_until=later(lease.total_seconds(), now),
        )
    )
    return taken.rowcount > 0


def renew(
    connection: Connection,
    operation_id: str,
    token: str,
    lease: timedelta,
    now: datetime | None = None,
) -> dict[str, Any] | None:
    """Renew a lease and return the operation, locked until the commit.

    None when it was cancelled, or the lease had ended and another process has it.
    """
    row = connection.execute(
        update(operations)
        .where(*_held(operation_id, token))
        .values(lease_until=later(lease.total_seconds(), now))
        .returning(*operations.c)
    ).one_or_none()
    return None if row is None else row._asdict()


def advance(
    connection: Connection,
    operation_id: str,
    values: Mapping[str, Any],
    now: datetime | None = None,
    *,
    is_end: bool,
) -> None:
    """Write how far a batch came, in its transaction, of an operation that `renew` has locked."""
    ending = {"status": DONE, "ended_at": moment(now), "lease_token": None} if is_end else {}
    connection.execute(
        update(operations)
        .where(operations.c.id == operation_id)
        .values(updated_at=moment(now), **values, **ending)
    )


def release(connection: Connection, operation_id: str, token: str) -> None:
    """Give back a lease, for another process to go on at once."""
    connection.execute(
        update(operations)
        .where(*_held(operation_id, token))
        .values(status=QUEUED, lease_token=None, lease_until=None)
    )


def fail(
    connection: Connection,
    operation_id: str,
    token: str,
    error: str,
    now: datetime | None = None,
) -> None:
    """End an operation that can't go on. What its batches did stays."""
    connection.execute(
        update(operations)
        .where(*_held(operation_id, token))
        .values(
            status=FAILED,
            error=error,
            lease_token=None,
            updated_at=moment(now),
            ended_at=moment(now),
        )
    )


def cancel(connection: Connection, operation_id: str, now: datetime | None = None) -> bool:
    """End an operation after the batch that is under way; False when it has ended already.

    What its batches did stays.
    """
    ended = connection.execute(
        update(operations)
        .where(operations.c.id == operation_id, operations.c.ended_at.is_(None))
        .values(status=CANCELLED, lease_token=None, updated_at=moment(now), ended_at=moment(now))
    )
    return ended.rowcount > 0


def _held(operation_id: str, token: str) -> tuple[ColumnElement[bool], ...]:
    return (
        operations.c.id == operation_id,
        operations.c.lease_token == token,
        operations.c.ended_at.is_(None),
    )
