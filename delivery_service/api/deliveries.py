"""Operations on deliveries and their attempts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Path, Query
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Caller, Editor, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import conflict, not_found, responses
from delivery_service.api.routing import router
from delivery_service.api.schemas.common import Page, PageParameters, path_id
from delivery_service.api.schemas.deliveries import (
    Attempt,
    Delivery,
    DeliveryFilter,
    show_attempt,
    show_delivery,
)
from delivery_service.store import attempts, deliveries, endpoints, events, workers
from wire.ids import DELIVERY

routes = router("deliveries")
PATH = "/deliveries/{delivery_id}"
DeliveryId = Annotated[str, path_id(DELIVERY, "delivery"), Path(examples=["dlv_01K"])]


@routes.get("/deliveries", responses=responses(404))
async def list_deliveries(
    context: Here, caller: Reader, where: Annotated[DeliveryFilter, Query()]
) -> Page[Delivery]:
    """List deliveries, newest first."""
    rows = await context.read(
        deliveries.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(DELIVERY)),
        tenant_id=caller.restrict(where.tenant),
        endpoint_id=where.endpoint,
        event_id=where.event,
        event_type=where.event_type,
        status=where.status,
        since=where.since,
        until=where.until,
        narrow=where.narrow(),
    )
    return page_of(rows, where.limit, show_delivery)


@routes.get(PATH, responses=responses(404))
async def read_delivery(context: Here, caller: Reader, delivery_id: DeliveryId) -> Delivery:
    """Show a delivery."""
    return show_delivery(await context.read(_fetch, caller, delivery_id))


@routes.get(f"{PATH}/attempts", responses=responses(404))
async def list_attempts(
    context: Here,
    caller: Reader,
    delivery_id: DeliveryId,
    where: Annotated[PageParameters, Query()],
) -> Page[Attempt]:
    """List the attempts of a delivery in order, late ones beside those of their number."""
    after = read_cursor(where.cursor, attempts.check_position)

    def load(connection: Connection) -> list[Row]:
        _fetch(connection, caller, delivery_id)
        return attempts.page(connection, delivery_id, limit=where.limit + 1, after=after)

    return page_of(
        await context.read(load),
        where.limit,
        lambda row: show_attempt(row, to_tenant=caller.is_tenant),
        attempts.position,
    )


@routes.post(f"{PATH}/redeliver", status_code=202, responses=responses(404, 409))
async def redeliver(context: Here, caller: Editor, delivery_id: DeliveryId) -> Delivery:
    """Send a delivery again, with the same id and a fresh schedule.

    From any state but in flight; one that waits for its next attempt is made due at once. Within
    the replay window only, since receivers forget ids after it.
    """
    row = await context.write(_redeliver, context, caller, delivery_id)
    context.poke()
    return show_delivery(row)


def _redeliver(connection: Connection, context: Context, caller: Caller, delivery_id: str) -> Row:
    row = _fetch(connection, caller, delivery_id)
    send_again(connection, row, context.settings.replay_window, context.now)
    return _noted(connection, context, caller, "delivery.redelivered", delivery_id, row)


def send_again(
    connection: Connection, row: Row, window: timedelta, now: datetime | None = None
) -> None:
    """Make a delivery due at once, or raise the problem 409 that says why it can't be.

    ``window`` is the replay window.
    """
    _check_endpoint(connection, row["endpoint_id"])
    if row["status"] == deliveries.PENDING:
        if not deliveries.retry_now(connection, row["id"], now):
            raise conflict("in-flight", "This delivery is being sent just now.")
    else:
        event = _check_body(connection, row)
        _check_replay_window(connection, row, event, window, now)
        if not deliveries.redeliver(connection, [row["id"]], now):
            raise conflict("in-flight", "This delivery was taken up just now.")


def _check_endpoint(connection: Connection, endpoint_id: str) -> None:
    endpoints.lock_health(connection, [endpoint_id])
    endpoint = endpoints.get(connection, endpoint_id)
    if endpoint is None:
        raise conflict("endpoint-deleted", "The endpoint of this delivery was deleted.")
    if endpoint["status"] != endpoints.ENABLED:
        raise conflict("endpoint-disabled", "The endpoint is disabled; enable it first.")


def _check_body(connection: Connection, row: Row) -> Row:
    # Locked, so that the body can't be deleted between this look and the commit.
    event = events.lock(connection, row["event_id"])
    if event is None or event["body_deleted_at"] is not None:
        raise conflict("body-deleted", "The body of this event was deleted; nothing can be sent.")
    return event


def _check_replay_window(
    connection: Connection, row: Row, event: Row, window: timedelta, now: datetime | None
) -> None:
    # What was published for later can't have been seen by a receiver before.
    start = max(row["created_at"], event["deliver_at"] or row["created_at"])
    if workers.time(connection, now) - start > window:
        raise conflict(
            "replay-window-over",
            f"This delivery is older than the setting replay_window ({window}); receivers may have"
            " forgotten its id and would act twice.",
        )


@routes.post(f"{PATH}/send-as-new", status_code=202, responses=responses(404, 409))
async def send_as_new(context: Here, caller: Editor, delivery_id: DeliveryId) -> Delivery:
    """Send a delivery's event to its endpoint under a new id, which receivers act on once more.

    The new delivery names the old one as `copy_of`.
    """

    def copy(connection: Connection) -> Row:
        row = _fetch(connection, caller, delivery_id)
        _check_endpoint(connection, row["endpoint_id"])
        _check_body(connection, row)
        event = {"id": row["event_id"], "tenant_id": row["tenant_id"], "type": row["event_type"]}
        new = deliveries.add(
            connection, event, row["endpoint_id"], context.now, copy_of=delivery_id
        )
        return _noted(connection, context, caller, "delivery.sent_as_new", new, row)

    row = await context.write(copy)
    context.poke()
    return show_delivery(row)


@routes.post(f"{PATH}/cancel", responses=responses(404, 409))
async def cancel_delivery(context: Here, caller: Editor, delivery_id: DeliveryId) -> Delivery:
    """Cancel a pending delivery. No new attempt starts; one in flight is let finish."""

    def cancel(connection: Connection) -> Row:
        row = _fetch(connection, caller, delivery_id)
        if not deliveries.cancel(connection, delivery_id, context.now):
            raise conflict("not-pending", f"This delivery is {row['status']}, not pending.")
        return _noted(connection, context, caller, "delivery.cancelled", delivery_id, row)

    return show_delivery(await context.write(cancel))


def _noted(
    connection: Connection,
    context: Context,
    caller: Caller,
    action: str,
    delivery_id: str,
    before: Row,
) -> Row:
    """Note the change, and return the delivery's row as it is now."""
    row = _fetch(connection, caller, delivery_id)
    note(
        connection,
        context,
        caller,
        action,
        delivery_id,
        tenant_id=row["tenant_id"],
        before=show_delivery(before),
        after=show_delivery(row),
    )
    return row


def _fetch(connection: Connection, caller: Caller, delivery_id: str) -> Row:
    row = deliveries.get(connection, delivery_id)
    if row is None or not caller.sees(row["tenant_id"]):
        raise not_found("delivery")
    return row
