"""Events: immutable once published."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from sender.tables import events
from wire.ids import EVENT, first_id


def get(connection: Connection, event_id: str) -> dict[str, Any] | None:
    """Return an event with its body, or None."""
    row = connection.execute(select(events).where(events.c.id == event_id)).one_or_none()
    return None if row is None else row._asdict()


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
