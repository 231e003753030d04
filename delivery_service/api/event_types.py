"""Operations on the catalogue of event types."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Caller, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.openapi_webhooks import (
    Imported,
    NotImportable,
    exported,
    imported,
)
from delivery_service.api.paging import page_of, read_cursor
from delivery_service.api.problems import not_found, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import EventType, Page
from delivery_service.api.schemas.event_types import (
    EventTypeFilter,
    EventTypeInfo,
    EventTypeSettings,
    ImportedEventTypes,
    OpenApiDocument,
    RefusedEventType,
)
from delivery_service.store import event_types
from wire.envelope import MAX_EVENT_TYPE, check_event_type

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
    return exported(rows)


@routes.post("/event-types-openapi", responses=body_problems())
async def import_event_types(
    context: Here, caller: Admin, body: OpenApiDocument
) -> ImportedEventTypes:
    """Put the `webhooks` of an OpenAPI 3.1 document into the catalogue.

    Description, schema and example are replaced, validation stays as it is. The schema of a body
    that is an envelope (`id`, `type`, `timestamp`, `data`) is that of `data`. What can't be
    imported is named, and the rest is. Types that the document does not name stay as they are.
    """
    found, refused = [], []
    for name in body.webhooks:
        try:
            found.append(imported(body.model_dump(), name))
        except NotImportable as error:
            refused.append(RefusedEventType(name=name[:MAX_EVENT_TYPE], reason=str(error)))
    done = await context.write(_import, context, caller, found)
    context.catalogue.forget()
    return ImportedEventTypes(created=done[0], changed=done[1], refused=refused)


def _import(
    connection: Connection, context: Context, caller: Caller, found: list[Imported]
) -> tuple[list[str], list[str]]:
    created: list[str] = []
    changed: list[str] = []
    for each in found:
        before = event_types.get(connection, each.name)
        validation = before["validation"] if before else "off"
        values = {
            "description": each.description,
            "schema": each.schema,
            "example": each.example,
            "validation": "off" if each.schema is None else validation,
            "archived_at": None,
        }
        if before is not None and all(before[name] == value for name, value in values.items()):
            continue
        is_new, _ = _put(connection, context, caller, each.name, values)
        (created if is_new else changed).append(each.name)
    return created, changed


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
