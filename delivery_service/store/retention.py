"""Removing what is old: in small batches, each a transaction of its own that nobody waits for.

Ids begin with the time, so age is a range of the primary key. Rows that another transaction holds
are passed over: any number of processes may do this at once. The rows of a batch are found first
and removed by their ids, which no planner can turn into a scan of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    delete,
    literal_column,
    or_,
    select,
    update,
)

from sender.tables import attempts, deliveries, events, operations, queue, secrets
from sender.types import moment
from wire.ids import ATTEMPT, EVENT, OPERATION, first_id

MOST_DELIVERIES = 1000
"""Deliveries removed in one transaction, so that an event with many takes several."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a batch did: ``removed`` rows (of any kind); ``after`` is where the next one goes on,
    None when nothing is left."""

    removed: int
    after: str | None


def remove_events(
    connection: Connection, age: timedelta, limit: int, after: str = "", now: datetime | None = None
) -> Swept:
    """Remove up to ``limit`` events older than ``age`` with their deliveries and attempts.

    An event stays whole while any of its deliveries is pending or ended less than ``age`` ago.
    """
    before = _time(connection, now) - age
    ids = list(connection.scalars(_old_events(before, limit, after)))
    if not ids:
        return Swept(0, None)
    # Checked again: since the events were found, a delivery may have been taken back to pending.
    doomed = connection.scalars(
        select(deliveries.c.id)
        .where(deliveries.c.event_id.in_(ids), deliveries.c.ended_at < before)
        .limit(MOST_DELIVERIES)
        .with_for_update(skip_locked=True)
    ).all()
    removed = _remove_deliveries(connection, doomed)
    if len(doomed) == MOST_DELIVERIES:
        return Swept(removed, after)
    removed += connection.execute(
        delete(events).where(
            events.c.id.in_(ids), _any(deliveries.c.event_id == events.c.id).is_(None)
        )
    ).rowcount
    return Swept(removed, _next(ids, limit))


def _old_events(before: datetime, limit: int, after: str) -> Select[Any]:
    kept = _any(
        deliveries.c.event_id == events.c.id,
        or_(deliveries.c.ended_at.is_(None), deliveries.c.ended_at >= before),
    )
    # Locked, so that a new delivery of an old event (which locks it too) is not orphaned.
    return _oldest(events, EVENT, before, limit, after, kept.is_(None))


def _oldest(
    table: Table,
    prefix: str,
    before: datetime,
    limit: int,
    after: str,
    condition: ColumnElement[bool],
) -> Select[Any]:
    """The ids of the oldest rows from ``after`` on that were made before a time, locked; those
    that somebody else holds are for the next sweep."""
    return (
        select(table.c.id)
        .where(table.c.id > after, table.c.id < first_id(prefix, before), condition)
        .order_by(table.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


def _any(*conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    """1 if there is a row, else null. One look at an index for each row that asks; NOT EXISTS
    becomes a join, and with statistics that are out of date one with the whole table."""
    return (
        select(literal_column("1")).where(*conditions).limit(literal_column("1")).scalar_subquery()
    )


def _remove_deliveries(connection: Connection, ids: Sequence[str]) -> int:
    if not ids:
        return 0
    of_attempts = connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(ids)))
    of_deliveries = connection.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))
    return of_attempts.rowcount + of_deliveries.rowcount


def remove_attempts(
    connection: Connection, age: timedelta, limit: int, after: str = "", now: datetime | None = None
) -> Swept:
    """Remove up to ``limit`` attempts older than ``age``, of ended deliveries only."""
    before = _time(connection, now) - age
    ended = _any(queue.c.delivery_id == attempts.c.delivery_id).is_(None)
    ids = connection.scalars(_oldest(attempts, ATTEMPT, before, limit, after, ended)).all()
    if ids:
        connection.execute(delete(attempts).where(attempts.c.id.in_(ids)))
    return Swept(len(ids), _next(ids, limit))


def remove_operations(
    connection: Connection, age: timedelta, limit: int, after: str = "", now: datetime | None = None
) -> Swept:
    """Remove up to ``limit`` operations that ended more than ``age`` ago."""
    before = _time(connection, now) - age
    ended = operations.c.ended_at < before
    ids = connection.scalars(_oldest(operations, OPERATION, before, limit, after, ended)).all()
    if ids:
        connection.execute(delete(operations).where(operations.c.id.in_(ids)))
    return Swept(len(ids), _next(ids, limit))


def forget_keys(
    connection: Connection, age: timedelta, limit: int, after: str = "", now: datetime | None = None
) -> Swept:
    """Forget the idempotency keys of up to ``limit`` events older than ``age``."""
    return _forget_keys(connection, events, EVENT, _time(connection, now) - age, limit, after)


def forget_operation_keys(
    connection: Connection, age: timedelta, limit: int, after: str = "", now: datetime | None = None
) -> Swept:
    """Forget the idempotency keys of up to ``limit`` operations older than ``age``."""
    before = _time(connection, now) - age
    return _forget_keys(connection, operations, OPERATION, before, limit, after)


def _forget_keys(
    connection: Connection, table: Table, prefix: str, before: datetime, limit: int, after: str
) -> Swept:
    keyed = table.c.idempotency_key.is_not(None)
    ids = connection.scalars(_oldest(table, prefix, before, limit, after, keyed)).all()
    if ids:
        connection.execute(
            update(table).where(table.c.id.in_(ids)).values(idempotency_key=None, fingerprint=None)
        )
    return Swept(len(ids), _next(ids, limit))


def remove_expired_secrets(connection: Connection, now: datetime | None = None) -> int:
    """Remove the secrets that were rotated out and have stopped signing; return how many."""
    return connection.execute(delete(secrets).where(secrets.c.expires_at <= moment(now))).rowcount


def _time(connection: Connection, now: datetime | None) -> datetime:
    # The database's time even here: a machine whose clock is years ahead must not empty the tables.
    return now or connection.execute(select(moment(None))).scalar_one()


def _next(ids: Sequence[str], limit: int) -> str | None:
    return ids[-1] if len(ids) == limit else None
