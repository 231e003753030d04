"""What an endpoint was, or was to be, sent: for receivers that fetch what they missed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update

from sender.tables import deliveries, events, queue
from sender.types import moment

PULLED = "pulled"


def page(
    connection: Connection,
    endpoint_id: str,
    *,
    limit: int,
    after: str | None = None,
    undelivered: bool = False,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` deliveries of an endpoint with their bodies, oldest first.

    ``undelivered``: only those that are not delivered, by push or by pull. Events whose body was
    deleted are left out: nobody can handle them any more.
    """
    query = (
        select(
            deliveries.c.id,
            deliveries.c.event_id,
            deliveries.c.event_type,
            deliveries.c.status,
            deliveries.c.attempts,
            deliveries.c.created_at,
            events.c.content_type,
            events.c.body,
        )
        .join(events, events.c.id == deliveries.c.event_id)
        .where(deliveries.c.endpoint_id == endpoint_id, events.c.body_deleted_at.is_(None))
        .order_by(deliveries.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(deliveries.c.id > after)
    if undelivered:
        query = query.where(deliveries.c.status != "delivered")
    return [row._asdict() for row in connection.execute(query)]


def acknowledge(
    connection: Connection,
    endpoint_id: str,
    delivery_ids: Sequence[str],
    now: datetime | None = None,
) -> list[str]:
    """Count deliveries of an endpoint as delivered by pull; return the ids of those that were not.

    Nothing more is sent of them; an attempt in flight finishes as a late one.
    """
    # The queue row first, as whoever ends a delivery does: its lock decides who was first.
    connection.execute(
        delete(queue).where(
            queue.c.endpoint_id == endpoint_id, queue.c.delivery_id.in_(delivery_ids)
        )
    )
    changed = connection.scalars(
        update(deliveries)
        .where(
            deliveries.c.endpoint_id == endpoint_id,
            deliveries.c.id.in_(delivery_ids),
            deliveries.c.status != "delivered",
        )
        .values(status="delivered", reason=PULLED, undelivered=False, ended_at=moment(now))
        .returning(deliveries.c.id)
    )
    return sorted(changed)
