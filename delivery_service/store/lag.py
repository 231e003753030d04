"""How far behind the service is: the measure that health checks and alerts go by."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from sender.tables import endpoints, queue
from sender.types import moment

PEEK = 1000
"""Oldest due rows looked at; where there are more, endpoints are looked at one by one."""


def due_since(connection: Connection, now: datetime | None = None) -> datetime | None:
    """Return since when the longest waiting delivery could have been sent, or None.

    That is when it fell due, or when its endpoint's pause or rate limit last let it: an endpoint
    that holds itself back does not make the service late.
    """
    at: datetime = connection.execute(select(moment(now))).scalar_one()
    oldest = connection.execute(_peek(now)).all()
    since = _earliest(oldest, at)
    if sum(row.rows for row in oldest) < PEEK:
        return since
    return _earliest(connection.execute(_by_endpoint()), at)


def _earliest(rows: Iterable[Row[Any]], at: datetime) -> datetime | None:
    sendable = (
        max(moment for moment in (row.due_at, row.paused_until, row.rate_next_at) if moment)
        for row in rows
        if row.due_at is not None
    )
    return min((moment for moment in sendable if moment <= at), default=None)


def _peek(now: datetime | None) -> Select[Any]:
    oldest = (
        select(queue.c.endpoint_id, queue.c.due_at)
        .where(queue.c.due_at <= moment(now))
        .order_by(queue.c.due_at)
        .limit(PEEK)
        .subquery("oldest")
    )
    return (
        select(
            func.count().label("rows"),
            func.min(oldest.c.due_at).label("due_at"),
            endpoints.c.paused_until,
            endpoints.c.rate_next_at,
        )
        .select_from(oldest.outerjoin(endpoints, endpoints.c.id == oldest.c.endpoint_id))
        .group_by(oldest.c.endpoint_id, endpoints.c.paused_until, endpoints.c.rate_next_at)
    )


def _by_endpoint() -> Select[Any]:
    # A loose scan of the index on (endpoint_id, lane, due_at): two steps for each endpoint,
    # however many rows it has.
    ring = select(func.min(queue.c.endpoint_id).label("endpoint_id")).cte("ring", recursive=True)
    following = (
        select(func.min(queue.c.endpoint_id))
        .where(queue.c.endpoint_id > ring.c.endpoint_id)
        .scalar_subquery()
    )
    ring = ring.union_all(select(following).where(ring.c.endpoint_id.is_not(None)))

    def oldest(lane: int) -> Select[Any]:
        first = (
            select(func.min(queue.c.due_at))
            .where(queue.c.endpoint_id == ring.c.endpoint_id, queue.c.lane == lane)
            .scalar_subquery()
        )
        return select(
            first.label("due_at"), endpoints.c.paused_until, endpoints.c.rate_next_at
        ).select_from(ring.outerjoin(endpoints, endpoints.c.id == ring.c.endpoint_id))

    lanes = oldest(0).union_all(oldest(1)).subquery("lanes")
    return select(lanes)
