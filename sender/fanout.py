"""From events to deliveries: which endpoints get them, and when they are due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, bindparam, select, update

from sender import tables
from sender.errors import PublishError
from sender.matching import Candidate
from sender.rows import columns_of, insert_from, parameters
from sender.types import UtcDateTime, moment
from wire.ids import DELIVERY, id_time, new_id

LONGEST_DELAY = timedelta(days=90)
"""How far ahead ``deliver_at`` may be."""

_ENDPOINTS = select(
    tables.endpoints.c.id,
    tables.endpoints.c.tenant_id,
    tables.endpoints.c.event_types,
    tables.endpoints.c.status,
    tables.endpoints.c.disabled_reason,
    tables.endpoints.c.channels,
    tables.endpoints.c.filter,
).where(
    tables.endpoints.c.tenant_id.in_(bindparam("tenants", expanding=True)),
    tables.endpoints.c.deleted_at.is_(None),
)


def fan_out(
    connection: Connection,
    events: Sequence[dict[str, Any]],
    raw: Collection[str],
    now: datetime | None,
) -> dict[str, list[str]]:
    """Insert a delivery for each endpoint that matches; return the delivery ids by event.

    ``raw``: the ids of events whose body is no envelope.

    The endpoints are read in this transaction and never cached: an endpoint added a moment ago
    must not miss the event.
    """
    by_tenant: dict[str, list[Any]] = {event["tenant_id"]: [] for event in events}
    if by_tenant:
        for endpoint in connection.execute(_ENDPOINTS, {"tenants": list(by_tenant)}):
            by_tenant[endpoint.tenant_id].append(endpoint)
    delivery_ids: dict[str, list[str]] = {}
    deliveries = []
    for event in events:
        body = None if event["id"] in raw else event["body"]
        candidate = Candidate(event["type"], (event["channels"] or "").split(), body)
        rows = [
            _delivery_row(event, endpoint, now)
            for endpoint in by_tenant[event["tenant_id"]]
            if candidate.is_for(endpoint.event_types, endpoint.channels, endpoint.filter)
        ]
        deliveries += rows
        delivery_ids[event["id"]] = [row["id"] for row in rows]
    insert_deliveries(connection, deliveries, now)
    return delivery_ids


def check_deliver_at(given: datetime | None, at: datetime) -> datetime | None:
    """Return ``given`` if a first attempt may be due then, seen from ``at``; else raise."""
    if given is None:
        return None
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise PublishError("deliver_at must be a datetime with a time zone")
    if given - at > LONGEST_DELAY:
        raise PublishError(f"deliver_at may be {LONGEST_DELAY.days} days ahead at most")
    return given


def postpone(
    connection: Connection, events: Sequence[dict[str, Any]], now: datetime | None
) -> None:
    """Make the deliveries of events that are for later due then.

    A statement of its own, so that the others do not pay for it; nobody sees what was before.
    """
    ids = [event["id"] for event in events if event["deliver_at"] is not None]
    if not ids:
        return
    of_event = tables.deliveries.join(
        tables.events, tables.events.c.id == tables.deliveries.c.event_id
    )
    later_ones = (
        select(tables.deliveries.c.id)
        .select_from(of_event)
        .where(tables.events.c.id.in_(ids), tables.events.c.deliver_at > moment(now))
    )
    deliver_at = (
        select(tables.events.c.deliver_at)
        .select_from(of_event)
        .where(tables.deliveries.c.id == tables.queue.c.delivery_id)
        .scalar_subquery()
    )
    connection.execute(
        update(tables.queue)
        .where(tables.queue.c.delivery_id.in_(later_ones))
        .values(due_at=deliver_at)
    )


def _delivery_row(event: dict[str, Any], endpoint: Any, now: datetime | None) -> dict[str, Any]:
    delivery_id = new_id(DELIVERY, now=now)
    created_at = id_time(delivery_id)
    enabled = endpoint.status == "enabled"
    return {
        "id": delivery_id,
        "event_id": event["id"],
        "endpoint_id": endpoint.id,
        "tenant_id": event["tenant_id"],
        "event_type": event["type"],
        "status": "pending" if enabled else "skipped",
        "reason": None if enabled else _why_skipped(endpoint),
        "undelivered": not enabled,
        "created_at": created_at,
        "ended_at": None if enabled else created_at,
    }


def _why_skipped(endpoint: Any) -> str:
    return (
        "endpoint_unverified" if endpoint.disabled_reason == "unverified" else "endpoint_disabled"
    )


def insert_deliveries(
    connection: Connection, rows: Sequence[dict[str, Any]], now: datetime | None
) -> None:
    """Insert deliveries, and a queue row, due at once, for each that is pending."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        names = tuple(rows[0])
        values = parameters(connection, columns_of(tables.deliveries, names), rows)
        connection.execute(_insert_and_enqueue(names, now is not None), {"now": now, **values})
        return
    connection.execute(tables.deliveries.insert(), rows)
    pending = [row for row in rows if row["status"] == "pending"]
    if pending:
        connection.execute(
            tables.queue.insert().values(due_at=moment(now)),
            [{"delivery_id": row["id"], "endpoint_id": row["endpoint_id"]} for row in pending],
        )


@cache
def _insert_and_enqueue(names: tuple[str, ...], manual: bool) -> Insert:
    table = tables.deliveries
    new = (
        insert_from(table, names)
        .returning(table.c.id, table.c.endpoint_id, table.c.status)
        .cte("new_deliveries")
    )
    due_at = moment(bindparam("now", type_=UtcDateTime()) if manual else None)
    return tables.queue.insert().from_select(
        ["delivery_id", "endpoint_id", "due_at"],
        select(new.c.id, new.c.endpoint_id, due_at).where(new.c.status == "pending"),
    )
