"""Deliveries: their states and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    Connection,
    Executable,
    Float,
    Integer,
    Select,
    Text,
    bindparam,
    case,
    delete,
    func,
    select,
    update,
)

from delivery_service.store.narrowing import Narrow
from sender.publish import insert_deliveries
from sender.rows import Columns, parameters, relation
from sender.tables import deliveries, endpoints, queue
from sender.types import UtcDateTime, later, moment
from wire.ids import DELIVERY, first_id, id_time, new_id

PENDING = "pending"
BULK_LANE = 1
"""The queue's lane of retries and bulk work, which first attempts never wait for."""

_CHANGES: Columns = (
    ("id", Text()),
    ("attempted", Integer()),
    ("ended", Boolean()),
    ("status", Text()),
    ("reason", Text()),
    ("last_outcome", Text()),
)


def apply(
    connection: Connection, changes: Sequence[Mapping[str, Any]], now: datetime | None = None
) -> None:
    """Record what attempts came to: ``id``, ``attempted`` (attempts to add: 0 or 1), ``status``,
    ``reason`` and, if one was made, ``last_outcome``. For leases that were still their worker's
    only."""
    if not changes:
        return
    statement = _apply(connection.dialect.name, now is not None)
    rows = [
        {"last_outcome": None, **change, "ended": change["status"] != PENDING} for change in changes
    ]
    connection.execute(statement, {"now": now, **parameters(connection, _CHANGES, rows)})


@cache
def _apply(dialect: str, manual: bool) -> Executable:
    changes = relation(dialect, "changes", _CHANGES)
    now = moment(bindparam("now", type_=UtcDateTime()) if manual else None)
    return (
        update(deliveries)
        .where(deliveries.c.id == changes.c.id)
        .values(
            attempts=deliveries.c.attempts + changes.c.attempted,
            status=changes.c.status,
            reason=changes.c.reason,
            undelivered=changes.c.status.not_in((PENDING, "delivered")),
            ended_at=case((changes.c.ended, now), else_=None),
            last_outcome=func.coalesce(changes.c.last_outcome, deliveries.c.last_outcome),
        )
    )


def end_pending_of(
    connection: Connection,
    endpoint_ids: Sequence[str],
    status: str,
    reason: str,
    now: datetime | None = None,
) -> int:
    """End all pending deliveries of endpoints that were disabled, are gone or deleted.

    Call it in the transaction that changes the endpoints, after changing them. Returns how many
    ended. Attempts in flight finish as late ones.
    """
    removed = connection.scalars(
        delete(queue).where(queue.c.endpoint_id.in_(endpoint_ids)).returning(queue.c.delivery_id)
    ).all()
    apply(connection, [_ending(id_, status, reason) for id_ in removed], now)
    return len(removed)


def _ending(delivery_id: str, status: str, reason: str) -> dict[str, Any]:
    return {"id": delivery_id, "attempted": 0, "status": status, "reason": reason}


def cancel(connection: Connection, delivery_id: str, now: datetime | None = None) -> bool:
    """Cancel a pending delivery; False when it is not pending any more."""
    return bool(cancel_many(connection, [delivery_id], now))


def cancel_many(
    connection: Connection, delivery_ids: Sequence[str], now: datetime | None = None
) -> list[str]:
    """Cancel those of the deliveries that are pending; return their ids."""
    removed = connection.scalars(
        delete(queue).where(queue.c.delivery_id.in_(delivery_ids)).returning(queue.c.delivery_id)
    ).all()
    apply(connection, [_ending(id_, "cancelled", "cancelled") for id_ in removed], now)
    return list(removed)


def redeliver(
    connection: Connection,
    delivery_ids: Sequence[str],
    now: datetime | None = None,
    *,
    lane: int = 0,
    every: timedelta = timedelta(),
) -> list[str]:
    """Take ended deliveries back to pending, with the same id and a fresh schedule.

    They are due one after another, ``every`` so often. Those whose endpoint is not enabled, and
    those that are pending already, stay as they are. Returns the ids of the others.
    """
    enabled = select(endpoints.c.id).where(
        endpoints.c.status == "enabled", endpoints.c.deleted_at.is_(None)
    )
    revived = connection.execute(
        update(deliveries)
        .where(
            deliveries.c.id.in_(delivery_ids),
            deliveries.c.status != PENDING,
            deliveries.c.endpoint_id.in_(enabled),
        )
        .values(
            status=PENDING,
            reason=None,
            undelivered=False,
            ended_at=None,
            attempts_before=deliveries.c.attempts,
        )
        .returning(deliveries.c.id, deliveries.c.endpoint_id)
    ).all()
    if revived:
        delay = bindparam("delay", type_=Float())
        connection.execute(
            queue.insert().values(due_at=later(delay, now), lane=lane),
            [
                {
                    "delivery_id": row.id,
                    "endpoint_id": row.endpoint_id,
                    "delay": position * every.total_seconds(),
                }
                for position, row in enumerate(revived)
            ],
        )
    return [row.id for row in revived]


_DELAYS: Columns = (("id", Text()), ("delay", Float()))


def put_in_bulk_lane(
    connection: Connection,
    delivery_ids: Sequence[str],
    every: timedelta,
    now: datetime | None = None,
) -> None:
    """Move new deliveries to the lane of bulk work, due one after another ``every`` so often.

    For deliveries of this transaction, which no worker can have claimed.
    """
    if not delivery_ids:
        return
    rows = [
        {"id": id_, "delay": position * every.total_seconds()}
        for position, id_ in enumerate(delivery_ids)
    ]
    delays = relation(connection.dialect.name, "delays", _DELAYS)
    connection.execute(
        update(queue)
        .where(queue.c.delivery_id == delays.c.id)
        .values(lane=BULK_LANE, due_at=later(delays.c.delay, now)),
        parameters(connection, _DELAYS, rows),
    )


def add(
    connection: Connection,
    event: Mapping[str, Any],
    endpoint_id: str,
    now: datetime | None = None,
    *,
    copy_of: str | None = None,
) -> str:
    """Insert one pending delivery of an event (``id``, ``tenant_id``, ``type``); return its id."""
    delivery_id = new_id(DELIVERY, now=now)
    row = {
        "id": delivery_id,
        "event_id": event["id"],
        "endpoint_id": endpoint_id,
        "tenant_id": event["tenant_id"],
        "event_type": event["type"],
        "status": PENDING,
        "reason": None,
        "undelivered": False,
        "copy_of": copy_of,
        "created_at": id_time(delivery_id),
        "ended_at": None,
    }
    insert_deliveries(connection, [row], now)
    return delivery_id


def retry_now(connection: Connection, delivery_id: str, now: datetime | None = None) -> bool:
    """Make a waiting delivery due at once; False when it is in flight or not pending."""
    found = connection.scalars(
        update(queue)
        .where(queue.c.delivery_id == delivery_id, queue.c.lease_token.is_(None))
        .values(due_at=moment(now))
        .returning(queue.c.delivery_id)
    ).all()
    return bool(found)


_WITH_QUEUE = select(
    deliveries, queue.c.due_at.label("due_at"), queue.c.lease_token.label("lease_token")
).outerjoin(queue, queue.c.delivery_id == deliveries.c.id)


def get(connection: Connection, delivery_id: str) -> dict[str, Any] | None:
    """Return a delivery with ``due_at`` and ``lease_token`` of its queue row, or None."""
    row = connection.execute(_WITH_QUEUE.where(deliveries.c.id == delivery_id)).one_or_none()
    return None if row is None else row._asdict()


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    tenant_id: str | None = None,
    endpoint_id: str | None = None,
    event_id: str | None = None,
    event_type: str | None = None,
    status: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    narrow: Narrow | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` deliveries, newest first, from the one after ``before`` on.

    ``since`` (inclusive) and ``until`` (exclusive) bound the time of creation, which ids begin
    with, so that they narrow the same index that orders the page.
    """
    # What is pending is read from the queue, which holds nothing else.
    only_queued = status == PENDING or (narrow is not None and narrow.in_flight is True)
    ids = queue.c.delivery_id if only_queued else deliveries.c.id
    query: Select[Any] = _WITH_QUEUE.order_by(ids.desc()).limit(limit)
    equal = {"tenant_id": tenant_id, "endpoint_id": endpoint_id, "event_id": event_id}
    # A delivery is in the queue as long as it is pending, and asking for its status as well would
    # tempt a planner without statistics to read all deliveries for the few it expects.
    its_status = None if status == PENDING else status
    for column, value in {**equal, "event_type": event_type, "status": its_status}.items():
        if value is not None:
            query = query.where(deliveries.c[column] == value)
    if status is not None and status not in (PENDING, "delivered"):
        query = query.where(deliveries.c.undelivered)
    if only_queued:
        query = query.where(queue.c.delivery_id.is_not(None))
    if narrow is not None:
        query = query.where(*narrow.conditions())
    if before is not None:
        query = query.where(ids < before)
    if since is not None:
        query = query.where(ids >= first_id(DELIVERY, since))
    if until is not None:
        query = query.where(ids < first_id(DELIVERY, until))
    return [row._asdict() for row in connection.execute(query)]
