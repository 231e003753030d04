"""Events."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from delivery_service.api.schemas.common import (
    Channels,
    EventType,
    Given,
    IdempotencyKey,
    Moment,
    PageParameters,
    Shown,
    TenantId,
    UtcMoment,
    id_pattern,
)
from wire.ids import DELIVERY, EVENT
from wire.rawjson import RawJson

MAX_BATCH = 1000
"""Events of one batch."""


def _is_raw(value: Any) -> RawJson:
    if not isinstance(value, RawJson):
        raise ValueError("must be JSON")  # noqa: TRY004 - pydantic's protocol
    return value


Data = Annotated[
    Any,
    BeforeValidator(_is_raw),
    WithJsonSchema(
        {
            "description": "Any JSON. Sent exactly as it is written here: digits, escapes, order"
            " of keys and all.",
            "examples": [{"id": 1042, "total": 1.10}],
        }
    ),
]


class NewEvent(Given):
    """An event to publish."""

    tenant: TenantId
    type: EventType
    data: Data
    idempotency_key: IdempotencyKey | None = None
    deliver_at: Moment | None = Field(
        None,
        description="Nothing is sent before that time, at most 90 days ahead; a past time means at"
        " once.",
        examples=["2026-12-24T18:00:00Z"],
    )
    channels: Channels | None = None


class NewBatch(Given):
    """Events to publish together."""

    events: list[NewEvent] = Field(min_length=1, max_length=MAX_BATCH)


class NewExample(Given):
    """Which event type's example to send."""

    type: EventType


class NewTest(Given):
    """A test event."""

    type: EventType = "surehook.test"
    data: Data


class Published(Shown):
    """What was published."""

    id: str = Field(json_schema_extra=id_pattern(EVENT))
    deliveries: list[Annotated[str, WithJsonSchema(id_pattern(DELIVERY))]] = Field(
        description="One for each endpoint that matches; those of disabled endpoints are `skipped`."
    )
    duplicate: bool = Field(
        description="Whether the idempotency key was used before: then these are the first event's."
    )
    warnings: list[str] | None = Field(
        None, description="What does not fit the event type's schema, where that only warns."
    )


class PublishedBatch(Shown):
    """What was published, in the order of the batch."""

    items: list[Published]


class Event(Shown):
    """What happened; immutable."""

    id: str = Field(json_schema_extra=id_pattern(EVENT))
    tenant: str
    type: str
    content_type: str
    idempotency_key: str | None
    channels: list[str]
    deliver_at: UtcMoment | None = Field(description="When the first attempts are due.")
    created_at: UtcMoment
    body_deleted_at: UtcMoment | None = Field(description="Set when its body was deleted.")


class EventWithBody(Event):
    """An event with the body that is sent."""

    size: int = Field(description="Bytes of the body.")
    body: Any = Field(
        description="The body, exactly as stored, if it is JSON; else null.",
        examples=[{"id": "evt_01K", "type": "invoice.paid", "data": {"total": 1.10}}],
    )
    body_base64: str | None = Field(description="The body, if it is not JSON.")


class EventFilter(PageParameters):
    """Which events to list."""

    tenant: TenantId | None = None
    type: EventType | None = None
    since: Moment | None = Field(None, description="Published at that time or later.")
    until: Moment | None = Field(None, description="Published before that time.")


def event_members(row: dict[str, Any]) -> dict[str, Any]:
    """Return the members of an event, without its body."""
    members = {**row, "tenant": row["tenant_id"], "channels": (row["channels"] or "").split()}
    members.pop("body", None)
    return members
