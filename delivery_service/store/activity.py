"""What happens now, for people: how much waits, what the last minutes brought, who is unwell.

Nothing here reads a table from end to end that grows with the traffic: each look is a bounded
piece of an index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Table, func, or_, select

from sender.tables import attempts, endpoints, events, queue
from sender.types import moment
from wire.ids import ATTEMPT, EVENT, first_id

MOST_READ = 20_000
"""Newest rows read for a rate: some 10 ms. Where more came in, the rate is that of these."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Queue rows that are not due: those ``in_flight`` and those ``scheduled`` for later. With
    ``more`` there are at least that many."""

    in_flight: int
    scheduled: int
    more: bool


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` things in ``seconds``."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """How many a second; 0 where nothing happened."""
        return self.count / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Attempted:
    """Attempts of one endpoint that ended in one way."""

    endpoint_id: str
    kind: str
    status_code: int | None
    count: int


def ahead(connection: Connection, most: int, now: datetime | None = None) -> Ahead:
    """Count rows that are not due, up to ``most``.

    A lease is a due time in the near future, so leases come first in the index.
    """
    rows = (
        select(queue.c.lease_token)
        .where(queue.c.due_at > moment(now))
        .order_by(queue.c.due_at)
        .limit(most)
        .subquery()
    )
    counted = select(func.count().label("rows"), func.count(rows.c.lease_token).label("leased"))
    row = connection.execute(counted.select_from(rows)).one()
    return Ahead(row.leased, row.rows - row.leased, row.rows >= most)


def published(connection: Connection, window: timedelta, now: datetime) -> Rate:
    """Events published within ``window`` before ``now``, the database's time."""
    newest = _newest(events, EVENT, now - window)
    row = connection.execute(select(func.count(), func.min(newest.c.created_at))).one()
    return _rate(row[0], row[1], window, now)


def attempted(
    connection: Connection, window: timedelta, now: datetime
) -> tuple[Rate, list[Attempted]]:
    """Attempts started within ``window`` before ``now``: all, and by endpoint and outcome."""
    newest = _newest(attempts, ATTEMPT, now - window)
    by = (newest.c.endpoint_id, newest.c.kind, newest.c.status_code)
    rows = connection.execute(
        select(*by, func.count().label("made"), func.min(newest.c.started_at).label("first"))
        .select_from(newest)
        .group_by(*by)
    ).all()
    first = min((row.first for row in rows), default=None)
    rate = _rate(sum(row.made for row in rows), first, window, now)
    return rate, [Attempted(r.endpoint_id, r.kind, r.status_code, r.made) for r in rows]


def _newest(table: Table, prefix: str, since: datetime) -> Any:
    # Ids begin with the time, so the primary key is an index on it.
    return (
        select(table)
        .where(table.c.id >= first_id(prefix, since))
        .order_by(table.c.id.desc())
        .limit(MOST_READ)
        .subquery()
    )


def _rate(count: int, first: datetime | None, window: timedelta, now: datetime) -> Rate:
    if count < MOST_READ or first is None:
        return Rate(count, window.total_seconds())
    return Rate(count, max((now - first).total_seconds(), 0.001))


def unwell(connection: Connection, limit: int) -> list[str]:
    """Return ids of enabled endpoints that are failing, open circuits first, then those that have
    failed for longest."""
    found = connection.scalars(
        select(endpoints.c.id)
        .where(
            endpoints.c.deleted_at.is_(None),
            endpoints.c.status == "enabled",
            or_(endpoints.c.circuit != "closed", endpoints.c.failing_since.is_not(None)),
        )
        .order_by(endpoints.c.circuit.desc(), endpoints.c.failing_since, endpoints.c.id)
        .limit(limit)
    )
    return list(found)


def waiting(connection: Connection, endpoint_ids: Iterable[str], most: int) -> dict[str, int]:
    """Count the queue rows of endpoints, up to ``most`` each."""
    counted = {}
    for endpoint_id in endpoint_ids:
        rows = select(queue.c.lane).where(queue.c.endpoint_id == endpoint_id).limit(most)
        counted[endpoint_id] = connection.execute(
            select(func.count()).select_from(rows.subquery())
        ).scalar_one()
    return counted
