"""Operations on events: publish them and read them."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, NoReturn

from fastapi import Header, Path, Query, Request, Response
from sqlalchemy import Connection

from delivery_service.api.auth import Publisher, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.idempotency import choose_key
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import Problem, invalid, not_found, responses
from delivery_service.api.routing import RawMembersRoute, body_problems, router
from delivery_service.api.schemas.common import EventType, Page, TenantId, path_id
from delivery_service.api.schemas.events import (
    Event,
    EventFilter,
    EventWithBody,
    NewEvent,
    Published,
    event_members,
)
from delivery_service.store import events
from sender.errors import IdempotencyConflict, PublishError
from sender.publish import publish
from wire.errors import EnvelopeTooLargeError, HeaderError, WireError
from wire.ids import EVENT

routes = router("events", RawMembersRoute)
EventId = Annotated[str, path_id(EVENT, "event"), Path(examples=["evt_01K"])]
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="As the member `idempotency_key`; bare or in double quotes.",
    ),
]
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"description": "Committed: it will be sent.", "model": Published}
}
ANY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@routes.post("/events", status_code=202, responses={**body_problems(), **ACCEPTED})
async def publish_event(
    context: Here, _caller: Publisher, body: NewEvent, key: IdempotencyHeader = None
) -> Response:
    """Publish an event to every endpoint of the tenant that matches its type.

    The answer comes after the commit. A key that was used for other content is refused with 422.
    """
    return await _publish(
        context,
        tenant=body.tenant,
        type=body.type,
        data=body.data,
        idempotency_key=choose_key(key, body.idempotency_key),
    )


@routes.post(
    "/events/raw",
    status_code=202,
    responses={**responses(400, 413), **ACCEPTED},
    openapi_extra=ANY_BODY,
)
async def publish_raw_event(
    context: Here,
    _caller: Publisher,
    request: Request,
    tenant: Annotated[TenantId, Query()],
    type: Annotated[EventType, Query()],  # noqa: A002 - the word of the wire contract
    key: IdempotencyHeader = None,
) -> Response:
    """Publish the request's body as it is, without an envelope, under its content type."""
    return await _publish(
        context,
        tenant=tenant,
        type=type,
        body=await request.body(),
        content_type=request.headers.get("content-type", "application/octet-stream"),
        idempotency_key=choose_key(key, None),
    )


async def _publish(context: Context, **event: Any) -> Response:
    limit = context.settings.max_body_bytes
    try:
        done = await context.write(publish, **event, max_body_bytes=limit, now=context.now)
    except EnvelopeTooLargeError as error:
        raise Problem(413, "too-large", f"The event is too large: {error}.") from None
    except IdempotencyConflict as error:
        raise Problem(
            422, "idempotency-key-reused", str(error), members={"event": error.event_id}
        ) from None
    except HeaderError as error:
        raise invalid("#/Content-Type", str(error), "header") from None
    except (PublishError, WireError) as error:
        raise invalid("#", str(error)) from None
    if done.delivery_ids:
        context.poke()
    # Not through a model: this is the hot path, and there is nothing to validate.
    content = {
        "id": done.event_id,
        "deliveries": done.delivery_ids,
        "duplicate": done.duplicate,
    }
    return Response(json.dumps(content, separators=(",", ":")), 202, media_type="application/json")


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
    head = Event(**event_members(row)).model_dump_json()[:-1].encode()
    body = row["body"]
    raw = _as_json(row)
    other = b"null" if raw is not None else json.dumps(base64.b64encode(body).decode()).encode()
    content = b'%b,"size":%d,"body_base64":%b,"body":%b}' % (head, len(body), other, raw or b"null")
    return Response(content, media_type="application/json")


def _as_json(row: Row) -> bytes | None:
    """The body if it can stand in a JSON document as it is."""
    body: bytes = row["body"]
    try:
        json.loads(body.decode(), parse_int=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return body


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
