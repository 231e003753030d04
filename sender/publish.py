"""Publish events inside the caller's own transaction.

`publish` inserts the event, a delivery for each endpoint that matches, and the queue rows, all in
the transaction it is given. Nothing is sent unless the caller commits; nothing is lost once it
has. It needs no worker, no service and no network: the database is the only meeting point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from sender import tables
from sender.errors import IdempotencyConflict, PublishError
from sender.fanout import check_deliver_at, fan_out, insert_deliveries, postpone
from sender.fingerprints import fingerprint
from sender.matching import check_channels
from sender.models import EventModel, type_and_data
from sender.rows import insert_rows
from sender.sessions import connection_of
from wire.envelope import DEFAULT_SIZE_LIMIT, check_event_type, check_size, encode_event
from wire.errors import SurehookError
from wire.headers import check_content_type
from wire.ids import EVENT, id_time, new_id

MAX_TENANT_LENGTH = 256
MAX_KEY_LENGTH = 256
MAX_TRACE_LENGTH = 512


_MISSING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to publish.

    ``tenant``: the platform's own id of the customer, 1 to 256 characters.
    ``type``: the event type, such as ``invoice.paid``.
    ``data``: anything JSON can hold, or `wire.RawJson` for JSON text that must travel
    exactly as it is. Alternatively ``body`` (bytes) with its ``content_type``, which is sent
    without an envelope.
    ``idempotency_key``: unique per tenant; a repeat with the same content returns the first
    event.
    ``trace_context``: a W3C ``traceparent`` to link the attempts to.
    ``deliver_at``: an aware datetime, at most 90 days ahead, before which nothing is sent; a past
    one means at once. Endpoints are matched when it is published, and can be disabled until then.
    ``channels``: up to 20; an endpoint that has channels gets only events with one of them.
    """

    tenant: str
    type: str
    data: Any = _MISSING
    body: bytes | None = None
    content_type: str = "application/json"
    idempotency_key: str | None = None
    trace_context: str | None = None
    deliver_at: datetime | None = None
    channels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """What `publish` did: the event, its deliveries (in the order of their ids), and whether the
    idempotency key had been used before, in which case both are the first event's."""

    event_id: str
    delivery_ids: tuple[str, ...]
    duplicate: bool = False


def publish(
    session: Session | Connection,
    *,
    tenant: str,
    type: str | None = None,  # noqa: A002 - the word of the wire contract
    data: Any = _MISSING,
    event: EventModel | None = None,
    body: bytes | None = None,
    content_type: str = "application/json",
    idempotency_key: str | None = None,
    trace_context: str | None = None,
    deliver_at: datetime | None = None,
    channels: Sequence[str] = (),
    max_body_bytes: int = DEFAULT_SIZE_LIMIT,
    now: datetime | None = None,
) -> Published:
    """Publish one event in the transaction of ``session``. See `NewEvent` for the fields.

    ``event``: an object of a model that has ``event_type``, instead of type and data
    (`sender.models`).

    ``max_body_bytes`` limits the body as sent. ``now`` replaces the clocks in tests.

    Raises `wire.errors.WireError` for a type, content type or data that can't be sent unchanged,
    `PublishError` for any other unusable field and `IdempotencyConflict` for a key used for
    other content. In all three cases nothing has been stored.
    """
    if event is not None:
        if type is not None or data is not _MISSING or body is not None:
            raise PublishError("event has a type and data; give neither them nor body beside it")
        type, data = type_and_data(event)  # noqa: A001 - see above
    elif type is None:
        raise PublishError("give type and data, or event")
    new = NewEvent(
        tenant=tenant,
        type=type,
        data=data,
        body=body,
        content_type=content_type,
        idempotency_key=idempotency_key,
        trace_context=trace_context,
        deliver_at=deliver_at,
        channels=channels,
    )
    return publish_many(session, [new], max_body_bytes=max_body_bytes, now=now)[0]


async def publish_async(session: AsyncSession | AsyncConnection, **event: Any) -> Published:
    """`publish` for an async session or connection; takes the same arguments."""
    return await session.run_sync(lambda sync: publish(sync, **event))


def publish_many(
    session: Session | Connection,
    events: Iterable[NewEvent],
    *,
    max_body_bytes: int = DEFAULT_SIZE_LIMIT,
    now: datetime | None = None,
) -> list[Published]:
    """Publish a batch in the transaction of ``session``, in order, all or nothing.

    The number of statements does not depend on the size of the batch. Errors are those of
    `publish`; they name the position in the batch. On an async session:
    ``await session.run_sync(publish_many, events)``.
    """
    connection = connection_of(session)
    events = list(events)
    rows = _event_rows(events, max_body_bytes, now)
    raw = {row["id"] for row, event in zip(rows, events, strict=True) if event.body is not None}
    first_ids = _insert_events(connection, rows)
    fresh = [row for row in rows if first_ids[row["id"]] == row["id"]]
    deliveries = fan_out(connection, fresh, raw, now)
    postpone(connection, fresh, now)
    _add_earlier_deliveries(connection, {*first_ids.values()} - deliveries.keys(), deliveries)
    return [
        Published(first, tuple(deliveries.get(first, ())), duplicate=first != new)
        for new, first in first_ids.items()
    ]


def _event_rows(
    events: Iterable[NewEvent], max_body_bytes: int, now: datetime | None
) -> list[dict[str, Any]]:
    rows = []
    for position, event in enumerate(events):
        try:
            rows.append(_event_row(event, max_body_bytes, now))
        except SurehookError as error:
            if position:
                error.add_note(f"at position {position} of the batch")
            raise
    return rows


def _event_row(event: NewEvent, max_body_bytes: int, now: datetime | None) -> dict[str, Any]:
    if not isinstance(event, NewEvent):
        raise PublishError(f"events must be NewEvent, not {type(event).__name__}")
    check_tenant(event.tenant)
    check_event_type(event.type)
    check_text("idempotency_key", event.idempotency_key, MAX_KEY_LENGTH)
    check_text("trace_context", event.trace_context, MAX_TRACE_LENGTH)
    event_id = new_id(EVENT, now=now)
    created_at = id_time(event_id)
    if event.body is None:
        if event.data is _MISSING:
            raise PublishError("give either data or body")
        body = encode_event(event_id, event.type, created_at, event.data)
        # What a repeat has in common: everything but the id and the timestamp.
        content = body[body.index(b',"data":') :]
    else:
        if event.data is not _MISSING:
            raise PublishError("give data or body, not both")
        if not isinstance(event.body, bytes):
            raise PublishError(f"body must be bytes, not {type(event.body).__name__}")
        body = content = event.body
    check_size(body, max_body_bytes)
    channels = check_channels(event.channels)
    deliver_at = check_deliver_at(event.deliver_at, now or created_at)
    return {
        "id": event_id,
        "tenant_id": event.tenant,
        "type": event.type,
        "body": body,
        "content_type": check_content_type(event.content_type),
        "idempotency_key": event.idempotency_key,
        "fingerprint": _fingerprint(event, content) if event.idempotency_key else None,
        "trace_context": event.trace_context,
        "created_at": created_at,
        "channels": " ".join(channels) or None,
        "deliver_at": deliver_at,
    }


def check_tenant(tenant: str) -> str:
    """Return ``tenant`` if it can be a tenant id, or raise `PublishError`."""
    if not isinstance(tenant, str) or not tenant:
        raise PublishError("tenant must be a non-empty string")
    check_text("tenant", tenant, MAX_TENANT_LENGTH)
    return tenant


def check_text(field: str, value: str | None, longest: int) -> None:
    """Raise `PublishError` unless ``value`` is None, or printable and not too long or empty."""
    if value is None:
        return
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        raise PublishError(f"{field} must be 1 to {longest} printable characters")


def _fingerprint(event: NewEvent, content: bytes) -> bytes:
    parts = [event.type.encode(), event.content_type.encode(), content]
    if event.deliver_at is not None:
        parts.append(b"deliver_at " + str(event.deliver_at.timestamp()).encode())
    if event.channels:
        parts.append(b"channels " + " ".join(sorted(set(event.channels))).encode())
    return fingerprint(parts)


def _insert_events(connection: Connection, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Insert the events; return for each new id the id that holds its idempotency key.

    The event goes in before the endpoints are read: on SQLite the first statement of the
    transaction is then a write, which waits for its turn instead of failing half-way (F29), and
    an endpoint that commits meanwhile is seen.
    """
    keyed: dict[tuple[str, str], dict[str, Any]] = {}
    first_ids = {}
    to_insert = []
    for row in rows:
        first = row
        if row["idempotency_key"]:
            first = keyed.setdefault((row["tenant_id"], row["idempotency_key"]), row)
            _check_same(first, row)
        if first is row:
            to_insert.append(row)
        first_ids[row["id"]] = first["id"]
    if not to_insert:
        return first_ids
    if not keyed:
        insert_rows(connection, tables.events, to_insert)
        return first_ids
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    inserted = set(
        connection.scalars(
            insert(tables.events).on_conflict_do_nothing().returning(tables.events.c.id), to_insert
        )
    )
    missed = [row for row in to_insert if row["id"] not in inserted]
    if missed:
        try:
            earlier = _earlier_events(connection, missed)
        except PublishError:
            connection.execute(delete(tables.events).where(tables.events.c.id.in_(inserted)))
            raise
        first_ids = {new: earlier.get(first, first) for new, first in first_ids.items()}
    return first_ids


def _check_same(first: dict[str, Any], row: dict[str, Any]) -> None:
    if first["fingerprint"] != row["fingerprint"]:
        raise IdempotencyConflict(row["idempotency_key"], first["id"])


def _earlier_events(connection: Connection, missed: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Find the events that hold the keys of ``missed``; return their ids by the new ids."""
    table = tables.events
    key = tuple_(table.c.tenant_id, table.c.idempotency_key)
    wanted = {(row["tenant_id"], row["idempotency_key"]): row for row in missed}
    found: dict[str, str] = {}
    for row in connection.execute(
        select(table.c.id, table.c.tenant_id, table.c.idempotency_key, table.c.fingerprint).where(
            key.in_(list(wanted))
        )
    ):
        earlier = row._asdict()
        new = wanted[earlier["tenant_id"], earlier["idempotency_key"]]
        _check_same(earlier, new)
        found[new["id"]] = earlier["id"]
    if len(found) < len(missed):
        raise PublishError(
            "the event that held the idempotency_key was removed just now; publish again"
        )
    return found


def _add_earlier_deliveries(
    connection: Connection, event_ids: set[str], deliveries: dict[str, list[str]]
) -> None:
    if not event_ids:
        return
    table = tables.deliveries
    for row in connection.execute(
        select(table.c.event_id, table.c.id)
        .where(table.c.event_id.in_(event_ids), table.c.copy_of.is_(None))
        .order_by(table.c.id)
    ):
        deliveries.setdefault(row.event_id, []).append(row.id)


__all__ = [
    "MAX_TENANT_LENGTH",
    "NewEvent",
    "Published",
    "check_tenant",
    "insert_deliveries",
    "publish",
    "publish_async",
    "publish_many",
]
