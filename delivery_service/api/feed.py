"""The feed of what an endpoint missed, for receivers that fetch instead of waiting."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from sqlalchemy import Connection

from delivery_service.api.auth import Editor, Reader
from delivery_service.api.context import Here, Row
from delivery_service.api.endpoints import PATH, EndpointId, fetch
from delivery_service.api.paging import last_id, read_cursor, write_cursor
from delivery_service.api.problems import responses
from delivery_service.api.raw import with_body
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.feed import (
    Acknowledged,
    Acknowledgement,
    FeedItem,
    FeedPage,
    FeedParameters,
)
from delivery_service.store import feed
from wire.ids import DELIVERY

routes = router("feed")


@routes.get(
    f"{PATH}/feed",
    responses={**responses(404), 200: {"model": FeedPage, "description": "A part of the feed."}},
)
async def read_feed(
    context: Here,
    caller: Reader,
    endpoint_id: EndpointId,
    where: Annotated[FeedParameters, Query()],
) -> Response:
    """List an endpoint's deliveries with their bodies, oldest first, over the retention time.

    To catch up, read with `undelivered=true` from the start, handle, acknowledge, and repeat until
    nothing comes. An event whose transaction commits late is then not passed over, as it can be
    `after` a delivery that was published later but committed first.
    """
    after = read_cursor(where.cursor, last_id(DELIVERY)) or where.after

    def load(connection: Connection) -> list[Row]:
        fetch(connection, caller, endpoint_id)
        return feed.page(
            connection,
            endpoint_id,
            limit=where.limit + 1,
            after=after,
            undelivered=where.undelivered,
        )

    rows = await context.read(load)
    shown = rows[: where.limit]
    cursor = f'"{write_cursor(shown[-1]["id"])}"' if len(rows) > where.limit else "null"
    items = b",".join(with_body(_show(row), row["body"], encoded=where.base64) for row in shown)
    content = b'{"items":[%b],"next_cursor":%b}' % (items, cursor.encode())
    return Response(content, media_type="application/json")


@routes.post(f"{PATH}/feed/acknowledge", responses=body_problems(404))
async def acknowledge(
    context: Here, caller: Editor, endpoint_id: EndpointId, body: Acknowledgement
) -> Acknowledged:
    """Count deliveries as delivered by pull: nothing more is sent of them.

    Ids that are not this endpoint's are passed over.
    """

    def work(connection: Connection) -> list[str]:
        fetch(connection, caller, endpoint_id)
        return feed.acknowledge(connection, endpoint_id, body.deliveries, context.now)

    return Acknowledged(deliveries=await context.write(work))


def _show(row: Row) -> FeedItem:
    return FeedItem(
        delivery=row["id"],
        event=row["event_id"],
        event_type=row["event_type"],
        status=row["status"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        content_type=row["content_type"],
        body=None,
        body_base64=None,
    )
