"""Events: immutable once published."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, exists, select, update

from sender.tables import deliveries, events
from sender.types import moment
from wire.envelope import encode_event
from wire.ids import EVENT, first_id, id_time, new_id


def get(connection: Connection, event_id: str) -> dict[str, Any] | None:
    """Return an event with its body, or None."""
    row = connection.execute(select(events).where(events.c.id == event_id)).one_or_none()
    return None if row is None else row._asdict()


def lock(connection: Connection, event_id: str) -> dict[str, Any] | None:
    """Lock an event and return it, or None."""
    row = connection.execute(
        select(events).where(events.c.id == event_id).with_for_update()
    ).one_or_none()
    return None if row is None else row._asdict()


def delete_body(connection: Connection, event_id: str, now: datetime | None = None) -> bool:
    """Delete the body of a locked event, for good; False while a delivery of it is pending."""
    waiting = connection.execute(
        select(exists().where(deliveries.c.event_id == event_id, deliveries.c.status == "pending"))
    ).scalar_one()
    if waiting:
        return False
    connection.execute(
        update(events)
        .where(events.c.id == event_id, events.c.body_deleted_at.is_(None))
        .values(body=b"", fingerprint=None, body_deleted_at=moment(now))
    )
    return True


def add(
    connection: Connection,
    tenant_id: str,
    event_type: str,
    data: object,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Insert an event that no endpoint is matched for; return its row without the body.

    Raises `wire.errors.EnvelopeError` for data that can't be sent.
    """
    event_id = new_id(EVENT, now=now)
    created_at = id_time(event_id)
    row = {
        "id": event_id,
        "tenant_id": tenant_id,
        "type": event_type,
        "content_type": "application/json",
        "created_at": created_at,
    }
    body = encode_event(event_id, event_type, created_at, data)
    connection.execute(events.insert().values(body=body, **row))
    return row


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    tenant_id: str | None = None,
    event_type: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` events without bodies, newest first, from after ``before`` on."""
    columns = [column for column in events.c if column.name != "body"]
    query = select(*columns).order_by(events.c.id.desc()).limit(limit)
    if tenant_id is not None:
        query = query.where(events.c.tenant_id == tenant_id)
    if event_type is not None:
        query = query.where(events.c.type == event_type)
    if before is not None:
        query = query.where(events.c.id < before)
    if since is not None:
        query = query.where(events.c.id >= first_id(EVENT, since))
    if until is not None:
        query = query.where(events.c.id < first_id(EVENT, until))
    return [row._asdict() for row in connection.execute(query)]
