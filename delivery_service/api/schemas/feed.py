"""The feed of what an endpoint missed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from delivery_service.api.schemas.common import (
    Given,
    Limit,
    PageParameters,
    Shown,
    UtcMoment,
    filter_id,
    id_pattern,
)
from delivery_service.store.narrowing import Status
from wire.ids import DELIVERY, EVENT


class FeedParameters(PageParameters):
    """Where in the feed."""

    limit: Limit = Field(default=20, le=50)
    after: Annotated[str, filter_id(DELIVERY)] | None = Field(
        default=None,
        description="The delivery after which to begin, such as the last one handled; a `cursor`"
        " continues from there.",
        json_schema_extra={"pattern": id_pattern(DELIVERY)["pattern"]},
    )
    undelivered: bool = Field(
        default=False, description="Whether to leave out what was delivered or acknowledged."
    )
    base64: bool = Field(
        default=False,
        description="Whether to give every body as base64: its exact bytes survive any parser.",
    )


class FeedItem(Shown):
    """A delivery with the body that was, or was to be, sent."""

    delivery: str = Field(
        description="Also the `webhook-id` of a push, so that one dedup memory does for both.",
        json_schema_extra=id_pattern(DELIVERY),
    )
    event: str = Field(json_schema_extra=id_pattern(EVENT))
    event_type: str
    status: Status
    attempts: int
    created_at: UtcMoment
    content_type: str
    body: Any = Field(
        description="The body, exactly as sent, if it is JSON and base64 is not asked for."
    )
    body_base64: str | None = Field(
        description="The body, if it is not JSON or `base64` is set; else null."
    )


class FeedPage(Shown):
    """A part of the feed, oldest first."""

    items: list[FeedItem]
    next_cursor: str | None


class Acknowledgement(Given):
    """What was handled."""

    deliveries: list[Annotated[str, filter_id(DELIVERY)]] = Field(
        min_length=1, max_length=1000, examples=[["dlv_01M8MZ1BEQDKCTN4W9WJM96D9Q"]]
    )


class Acknowledged(Shown):
    """The deliveries that count as delivered from now on; those that did before are left out."""

    deliveries: list[str]
