"""Bulk operations and broadcasts: queued here, carried out in batches by any process."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Caller
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.idempotency import IdempotencyHeader, choose_key, reused
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import Problem, conflict, invalid_request, not_found, responses
from delivery_service.api.routing import RawMembersRoute, body_problems, router
from delivery_service.api.schemas.common import Page, path_id
from delivery_service.api.schemas.operations import (
    OF_BROADCAST,
    OF_DELIVERIES,
    NewOperation,
    Operation,
    OperationCount,
    OperationFilter,
    show_operation,
)
from delivery_service.store import bulk, operations, tenants
from wire.envelope import check_event_size
from wire.errors import EnvelopeTooLargeError
from wire.ids import OPERATION

routes = router("operations", RawMembersRoute)
PATH = "/operations/{operation_id}"
OperationId = Annotated[str, path_id(OPERATION, "operation"), Path(examples=["op_01K"])]


@routes.post(
    "/operations",
    status_code=202,
    responses={
        **body_problems(),
        200: {"description": "Of a dry run: the count.", "model": OperationCount},
        202: {"description": "Queued.", "model": Operation},
    },
)
async def create_operation(
    context: Here, caller: Admin, body: NewOperation, key: IdempotencyHeader = None
) -> Response:
    """Redeliver or cancel many deliveries, or publish an event for all tenants.

    It is carried out in the background, in batches, and survives the end of any process; read it
    for its progress. A dry run counts exactly, window by window, and changes nothing. A repeat with
    the same idempotency key is answered with the first operation as it is now; a key that was used
    for another one is refused with 422.
    """
    _check(body)
    key = choose_key(key, None)
    if body.kind == bulk.BROADCAST:
        await _check_broadcast(context, body)
    if body.dry_run:
        return _json(await _count(context, body), 200)
    is_broadcast = body.kind == bulk.BROADCAST
    where = {"type": body.type} if is_broadcast else _filter(body).to_json()
    data = body.data.content if is_broadcast else None

    def create(connection: Connection) -> Row:
        now = context.now
        added = operations.add(connection, body.kind, where, data, now, idempotency_key=key)
        if not added.is_same:
            detail = f"The idempotency key belongs to {added.id}, which does something else."
            raise reused(detail, operation=added.id)
        if not added.is_new:
            return _fetch(connection, added.id)
        return _noted(connection, context, caller, "operation.created", added.id)

    return _json(show_operation(await context.write(create)), 202)


@routes.get("/operations")
async def list_operations(
    context: Here, _caller: Admin, where: Annotated[OperationFilter, Query()]
) -> Page[Operation]:
    """List operations, newest first."""
    rows = await context.read(
        operations.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(OPERATION)),
        kind=where.kind,
        status=where.status,
    )
    return page_of(rows, where.limit, show_operation)


@routes.get(PATH, responses=responses(404))
async def read_operation(context: Here, _caller: Admin, operation_id: OperationId) -> Operation:
    """Show an operation and its progress."""
    return show_operation(await context.read(_fetch, operation_id))


@routes.post(f"{PATH}/cancel", responses=responses(404, 409))
async def cancel_operation(context: Here, caller: Admin, operation_id: OperationId) -> Operation:
    """Stop an operation after the batch that is under way. What it has done stays."""

    def cancel(connection: Connection) -> Row:
        row = _fetch(connection, operation_id)
        if not operations.cancel(connection, operation_id, context.now):
            raise conflict("ended", f"This operation is {row['status']}.")
        return _noted(connection, context, caller, "operation.cancelled", operation_id)

    return show_operation(await context.write(cancel))


def _check(body: NewOperation) -> None:
    """Raise the problem 422 for members that the kind needs and that it does not take."""
    is_broadcast = body.kind == bulk.BROADCAST
    needed = OF_BROADCAST if is_broadcast else ("since",)
    foreign = OF_DELIVERIES if is_broadcast else OF_BROADCAST
    wrong = {name: "is required" for name in needed if getattr(body, name) is None}
    for name in foreign:
        if getattr(body, name) is not None:
            wrong[name] = f"is not for the kind {body.kind}"
    if body.kind == bulk.CANCEL and body.status is not None:
        wrong["status"] = "only pending deliveries can be cancelled; leave it out"
    if body.kind == bulk.CANCEL and body.reason is not None:
        wrong["reason"] = "pending deliveries have none; leave it out"
    if body.kind == bulk.RECOVER and body.status == "delivered":
        wrong["status"] = "what was delivered needs no recovery; use the kind replay"
    if body.since and body.until and body.until <= body.since:
        wrong["until"] = "must be later than since"
    if wrong:
        raise invalid_request(
            [
                {"in": "body", "pointer": f"#/{name}", "detail": detail}
                for name, detail in wrong.items()
            ]
        )


async def _check_broadcast(context: Context, body: NewOperation) -> None:
    assert body.type is not None  # noqa: S101 - checked before
    await context.catalogue.check(context, body.type, body.data, "#/data")
    try:
        check_event_size(body.type, body.data, context.settings.max_body_bytes)
    except EnvelopeTooLargeError as error:
        raise Problem(413, "too-large", f"#/data: the event is too large: {error}.") from None


def _filter(body: NewOperation) -> bulk.Filter:
    assert body.since is not None  # noqa: S101 - checked before
    return bulk.Filter(
        since=body.since,
        until=body.until,
        tenant=body.tenant,
        endpoint=body.endpoint,
        event_type=body.event_type,
        status=body.status,
        reason=body.reason,
        last_outcome=body.last_outcome,
    )


async def _count(context: Context, body: NewOperation) -> OperationCount:
    if body.kind == bulk.BROADCAST:
        count = await tenants.count_known(context.read)
        return OperationCount(kind=body.kind, matched=count, possible=count, passed_over={})
    window = context.settings.replay_window
    possible, passed_over = await bulk.count(
        context.read, body.kind, _filter(body), window, context.now
    )
    return OperationCount(
        kind=body.kind,
        matched=possible + passed_over.total(),
        possible=possible,
        passed_over=dict(passed_over),
    )


def _json(shown: Operation | OperationCount, status: int) -> Response:
    return Response(shown.model_dump_json(), status, media_type="application/json")


def _noted(
    connection: Connection, context: Context, caller: Caller, action: str, operation_id: str
) -> Row:
    row = _fetch(connection, operation_id)
    tenant_id = row["filter"].get("tenant")
    shown = show_operation(row)
    note(connection, context, caller, action, operation_id, tenant_id=tenant_id, after=shown)
    return row


def _fetch(connection: Connection, operation_id: str) -> Row:
    row = operations.get(connection, operation_id)
    if row is None:
        raise not_found("operation")
    return row
