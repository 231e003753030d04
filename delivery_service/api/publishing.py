"""Operations that publish events."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from sqlalchemy import Connection

from delivery_service.api.auth import Caller, Editor, Publisher
from delivery_service.api.context import Context, Here
from delivery_service.api.endpoints import PATH, EndpointId, fetch
from delivery_service.api.idempotency import IdempotencyHeader, choose_key, reused
from delivery_service.api.problems import Problem, conflict, invalid, not_found, responses
from delivery_service.api.routing import (
    BatchRequest,
    RawMembersRequest,
    RawMembersRoute,
    body_problems,
    publishing_route,
    router,
)
from delivery_service.api.schemas import events as schemas
from delivery_service.api.schemas.common import Channels, EventType, Moment, TenantId
from delivery_service.store import deliveries, endpoints, event_types, events
from sender import NewEvent, Published, publish_many
from sender.errors import IdempotencyConflict
from wire.errors import EnvelopeTooLargeError, HeaderError, SurehookError
from wire.rawjson import RawJson

routes = router("events", publishing_route(schemas.NewEvent, RawMembersRequest))
batch_routes = router("events", publishing_route(schemas.NewBatch, BatchRequest))
other_routes = router("events", RawMembersRoute)
TraceHeader = Annotated[
    str | None,
    Header(
        alias="traceparent",
        description="W3C Trace Context: the attempts are linked to this trace. One that can't be"
        " read is ignored, as the standard asks for.",
    ),
]
ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"description": "Committed: it will be sent.", "model": schemas.Published}
}
ANY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_POSITION = re.compile(r"at position ([0-9]+) of the batch")


@routes.post("/events", status_code=202, responses={**body_problems(), **ACCEPTED})
async def publish_event(
    context: Here,
    _caller: Publisher,
    body: schemas.NewEvent,
    key: IdempotencyHeader = None,
    trace: TraceHeader = None,
) -> Response:
    """Publish an event to every endpoint of the tenant that matches its type.

    The answer comes after the commit. A key that was used for other content is refused with 422.
    """
    warnings = await context.catalogue.check(context, body.type, body.data, "#/data")
    event = _event(body, choose_key(key, body.idempotency_key), trace_context(trace))
    return _accepted(_shown(await _publish_one(context, event), warnings))


@batch_routes.post(
    "/events/batch",
    status_code=202,
    responses={
        **body_problems(),
        202: {"description": "Committed: they will be sent.", "model": schemas.PublishedBatch},
    },
)
async def publish_batch(
    context: Here, _caller: Publisher, body: schemas.NewBatch, trace: TraceHeader = None
) -> Response:
    """Publish up to 1,000 events in their order, all or none of them.

    The body may have 4 MiB; each event has the limit of a single one.
    """
    check = context.catalogue.check
    warnings = [
        await check(context, event.type, event.data, f"#/events/{position}/data")
        for position, event in enumerate(body.events)
    ]
    linked = trace_context(trace)
    batch = [_event(event, event.idempotency_key, linked) for event in body.events]
    done = await _publish_batch(context, batch)
    return _accepted({"items": [_shown(*item) for item in zip(done, warnings, strict=True)]})


@other_routes.post(
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
    deliver_at: Annotated[Moment | None, Query()] = None,
    channel: Annotated[Channels | None, Query()] = None,
    key: IdempotencyHeader = None,
    trace: TraceHeader = None,
) -> Response:
    """Publish the request's body as it is, without an envelope, under its content type."""
    event = NewEvent(
        tenant=tenant,
        type=type,
        body=await request.body(),
        content_type=request.headers.get("content-type", "application/octet-stream"),
        idempotency_key=choose_key(key, None),
        trace_context=trace_context(trace),
        deliver_at=deliver_at,
        channels=channel or (),
    )
    return _accepted(_shown(await _publish_one(context, event)))


@other_routes.post(
    f"{PATH}/test",
    status_code=202,
    tags=["endpoints"],
    responses={**body_problems(404, 409), **ACCEPTED},
)
async def send_test(
    context: Here, caller: Editor, endpoint_id: EndpointId, body: schemas.NewTest | None = None
) -> Response:
    """Send a test event to this endpoint alone, whatever types it is registered for."""
    test = body or schemas.NewTest(type="surehook.test", data=RawJson(b"{}"))
    return await _send_alone(context, caller, endpoint_id, test.type, test.data)


@other_routes.post(
    f"{PATH}/send-example",
    status_code=202,
    tags=["endpoints"],
    responses={**body_problems(404, 409), **ACCEPTED},
)
async def send_example(
    context: Here, caller: Editor, endpoint_id: EndpointId, body: schemas.NewExample
) -> Response:
    """Send the catalogue's example of an event type to this endpoint alone."""
    row = await context.read(event_types.get, body.type)
    if row is None:
        raise not_found("event type")
    if row["example"] is None:
        raise conflict("no-example", "The catalogue has no example of this event type.")
    return await _send_alone(context, caller, endpoint_id, body.type, row["example"])


async def _send_alone(
    context: Context, caller: Caller, endpoint_id: str, event_type: str, data: Any
) -> Response:
    def send(connection: Connection) -> dict[str, Any]:
        endpoints.lock_health(connection, [endpoint_id])
        endpoint = fetch(connection, caller, endpoint_id)
        if endpoint["status"] != endpoints.ENABLED:
            raise conflict("endpoint-disabled", "The endpoint is disabled; enable it first.")
        event = events.add(connection, endpoint["tenant_id"], event_type, data, context.now)
        delivery_id = deliveries.add(connection, event, endpoint_id, context.now)
        return {"id": event["id"], "deliveries": [delivery_id], "duplicate": False}

    sent = await context.write(send)
    context.poke()
    return _accepted(sent)


def _event(body: schemas.NewEvent, key: str | None, trace: str | None) -> NewEvent:
    return NewEvent(
        tenant=body.tenant,
        type=body.type,
        data=body.data,
        idempotency_key=key,
        trace_context=trace,
        deliver_at=body.deliver_at,
        channels=body.channels or (),
    )


def trace_context(header: str | None) -> str | None:
    """Return a ``traceparent`` that can be read (W3C Trace Context, 3.2), or None."""
    text = (header or "").strip(" \t")
    return text if _TRACEPARENT.fullmatch(text) else None


async def _publish_one(context: Context, event: NewEvent) -> Published:
    try:
        published = await context.publish_group.publish(context, event)
    except SurehookError as error:
        raise _refusal(error, "#") from None
    if published.delivery_ids:
        context.poke()
    return published


async def _publish_batch(context: Context, batch: list[NewEvent]) -> list[Published]:
    limit = context.settings.max_body_bytes
    try:
        done = await context.write(publish_many, batch, max_body_bytes=limit, now=context.now)
    except SurehookError as error:
        raise _refusal(error, "#/events/{}") from None
    if any(published.delivery_ids for published in done):
        context.poke()
    return done


def _refusal(error: SurehookError, pointer: str) -> Problem:
    positions = (_POSITION.fullmatch(note) for note in getattr(error, "__notes__", ()))
    pointer = pointer.format(next((found[1] for found in positions if found), 0))
    if isinstance(error, EnvelopeTooLargeError):
        return Problem(413, "too-large", f"{pointer}: the event is too large: {error}.")
    if isinstance(error, IdempotencyConflict):
        return reused(str(error), event=error.event_id)
    if isinstance(error, HeaderError):
        return invalid("#/Content-Type", str(error), "header")
    return invalid(pointer, str(error))


def _shown(published: Published, warnings: list[str] | None = None) -> dict[str, Any]:
    shown = {
        "id": published.event_id,
        "deliveries": published.delivery_ids,
        "duplicate": published.duplicate,
    }
    return {**shown, "warnings": warnings} if warnings else shown


def _accepted(content: dict[str, Any]) -> Response:
    # Not through a model: this is the hot path, and there is nothing to validate.
    return Response(json.dumps(content, separators=(",", ":")), 202, media_type="application/json")
