"""Operations that read events."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Reader
from delivery_service.api.context import Here, Row
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import conflict, not_found, responses
from delivery_service.api.raw import with_body
from delivery_service.api.routing import router
from delivery_service.api.schemas.common import Page, path_id
from delivery_service.api.schemas.events import Event, EventFilter, EventWithBody, event_members
from delivery_service.store import events
from wire.ids import EVENT

routes = router("events")
EventId = Annotated[str, path_id(EVENT, "event"), Path(examples=["evt_01K"])]


@routes.get("/events", responses=responses(404))
async def list_events(
    context: Here, caller: Reader, where: Annotated[EventFilter, Query()]
) -> Page[Event]:
    """List events without their bodies, newest first."""
    rows = await context.read(
        events.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(EVENT)),
        tenant_id=caller.restrict(where.tenant),
        event_type=where.type,
        since=where.since,
        until=where.until,
    )
    return page_of(rows, where.limit, lambda row: Event(**event_members(row)))


@routes.get(
    "/events/{event_id}",
    responses={**responses(404), 200: {"model": EventWithBody, "description": "The event."}},
)
async def read_event(context: Here, caller: Reader, event_id: EventId) -> Response:
    """Show an event with its body, which is the JSON that is sent, byte for byte."""

    def load(connection: Connection) -> Row:
        row = events.get(connection, event_id)
        if row is None or not caller.sees(row["tenant_id"]):
            raise not_found("event")
        return row

    row = await context.read(load)
    shown = EventWithBody(**event_members(row), size=len(row["body"]), body=None, body_base64=None)
    return Response(with_body(shown, row["body"]), media_type="application/json")


@routes.delete("/events/{event_id}/body", status_code=204, responses=responses(404, 409))
async def delete_event_body(context: Here, caller: Admin, event_id: EventId) -> None:
    """Delete what an event said, for good, and keep that it was sent. Not while one is pending."""

    def delete(connection: Connection) -> None:
        row = events.lock(connection, event_id)
        if row is None:
            raise not_found("event")
        if row["body_deleted_at"] is not None:
            return
        if not events.delete_body(connection, event_id, context.now):
            raise conflict("pending", "A delivery of this event is pending; cancel it first.")
        tenant_id = row["tenant_id"]
        note(connection, context, caller, "event.body_deleted", event_id, tenant_id=tenant_id)

    await context.write(delete)
