"""Operations on the catalogue of event types."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Caller, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.paging import page_of, read_cursor
from delivery_service.api.problems import not_found, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import EventType, Page
from delivery_service.api.schemas.event_types import (
    EventTypeFilter,
    EventTypeInfo,
    EventTypeSettings,
)
from delivery_service.store import event_types
from wire.envelope import check_event_type
from wire.version import VERSION

POSITION = "type:"
"""How a cursor begins: a name alone might look like a cursor of another list."""
MOST = 10_000
"""Types that the exported document has at most."""
PATH = "/event-types/{name}"
ThisType = Annotated[EventType, Path()]
CREATED: dict[int | str, dict[str, Any]] = {
    201: {"description": "Created.", "model": EventTypeInfo}
}

routes = router("event types")


@routes.get("/event-types")
async def list_event_types(
    context: Here, _caller: Reader, where: Annotated[EventTypeFilter, Query()]
) -> Page[EventTypeInfo]:
    """List event types in the order of their names."""
    after = read_cursor(where.cursor, _check_position)
    rows = await context.read(
        event_types.page,
        limit=where.limit + 1,
        after=after and after.removeprefix(POSITION),
        archived=where.archived,
    )
    return page_of(rows, where.limit, _show, lambda row: POSITION + row["name"])


@routes.get("/event-types-openapi")
async def export_event_types(context: Here, _caller: Reader) -> dict[str, Any]:
    """Export the catalogue as an OpenAPI 3.1 document with `webhooks`, for code generators."""
    rows = await context.read(event_types.page, limit=MOST)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Webhooks", "version": VERSION},
        "webhooks": {row["name"]: {"post": _webhook(row)} for row in rows},
    }


@routes.get(PATH, responses=responses(404))
async def read_event_type(context: Here, _caller: Reader, name: ThisType) -> EventTypeInfo:
    """Show an event type, archived or not."""
    return _show(await context.read(_fetch, name))


@routes.put(PATH, responses={**body_problems(), **CREATED})
async def put_event_type(
    context: Here, caller: Admin, name: ThisType, body: EventTypeSettings, response: Response
) -> EventTypeInfo:
    """Register an event type, or replace all of its settings. It is no longer archived then."""
    values = {**body.model_dump(by_alias=True), "archived_at": None}
    created, shown = await context.write(_put, context, caller, name, values)
    context.catalogue.forget()
    response.status_code = 201 if created else 200
    return shown


def _put(
    connection: Connection, context: Context, caller: Caller, name: str, values: Row
) -> tuple[bool, EventTypeInfo]:
    before = event_types.get(connection, name)
    created = event_types.put(connection, name, values, context.now)
    shown = _show(_fetch(connection, name))
    action = "event_type.created" if created else "event_type.changed"
    note(
        connection,
        context,
        caller,
        action,
        name,
        tenant_id=None,
        before=_show(before) if before else None,
        after=shown,
    )
    return created, shown


@routes.delete(PATH, status_code=204, responses=responses(404))
async def archive_event_type(context: Here, caller: Admin, name: ThisType) -> None:
    """Archive an event type: it is not listed any more, and can still be published."""

    def archive(connection: Connection) -> None:
        before = _fetch(connection, name)
        if before["archived_at"] is not None:
            return
        event_types.archive(connection, name, context.now)
        action = "event_type.archived"
        note(connection, context, caller, action, name, tenant_id=None, before=_show(before))

    await context.write(archive)


def _fetch(connection: Connection, name: str) -> Row:
    row = event_types.get(connection, name)
    if row is None:
        raise not_found("event type")
    return row


def _show(row: Row) -> EventTypeInfo:
    return EventTypeInfo(**row)


def _check_position(text: str) -> str:
    check_event_type(text.removeprefix(POSITION) if text.startswith(POSITION) else "")
    return text


def _webhook(row: Row) -> dict[str, Any]:
    envelope = {
        "type": "object",
        "required": ["id", "type", "timestamp", "data"],
        "properties": {
            "id": {"type": "string"},
            "type": {"const": row["name"]},
            "timestamp": {"type": "string", "format": "date-time"},
            "data": row["schema"] if row["schema"] is not None else {},
        },
    }
    return {
        "summary": row["name"],
        "description": row["description"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": envelope}}},
        "responses": {"2XX": {"description": "Accepted; anything else is sent again."}},
    }
