"""What the operations on events and deliveries give; as in `sender.client.results`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened; immutable."""

    id: str
    tenant: str
    type: str
    content_type: str
    idempotency_key: str | None
    channels: tuple[str, ...]
    deliver_at: datetime | None
    created_at: datetime
    body_deleted_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWithBody(Event):
    """An event with the body that is sent, byte for byte. ``size`` is in bytes."""

    size: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event to one endpoint. ``attempts`` is how many were made so far."""

    id: str
    event: str
    event_type: str
    endpoint: str
    tenant: str
    status: str
    reason: str | None
    attempts: int
    last_outcome: str | None
    in_flight: bool
    next_attempt_at: datetime | None
    copy_of: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One HTTP request of a delivery. ``number`` counts from 1; ``duration`` is in seconds."""

    id: str
    number: int
    late: bool
    started_at: datetime
    duration: float
    url: str
    kind: str
    status_code: int | None
    error: str | None
    may_have_arrived: bool
    request_headers: dict[str, str]
    response_headers: tuple[tuple[str, str], ...]
    response_body: str | None
    response_truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Bulk work, and how far it is. ``progress`` is from 0 to 1, or None where it is not known;
    ``matched`` is ``done`` and ``passed_over`` (by reason) together."""

    id: str
    kind: str
    filter: dict[str, Any]
    idempotency_key: str | None
    status: str
    progress: float | None
    matched: int
    done: int
    passed_over: dict[str, int]
    error: str | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCount:
    """What an operation would do now. ``matched`` is ``possible`` and ``passed_over`` together."""

    kind: str
    matched: int
    possible: int
    passed_over: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsBucket:
    """The attempts that started within an hour or a day. ``mean_duration`` is in seconds."""

    start: datetime
    attempts: int
    delivered: int
    failed: int
    kinds: dict[str, int]
    mean_duration: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStats:
    """Attempts of an endpoint by outcome, one bucket after the other without gaps."""

    per: str
    since: datetime
    until: datetime
    buckets: tuple[StatsBucket, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """A delivery in a feed, without its body."""

    delivery: str
    event: str
    event_type: str
    status: str
    attempts: int
    created_at: datetime
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedItem(FeedEntry):
    """A delivery with the body that was, or was to be, sent, byte for byte."""

    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPage:
    """A part of the feed; ``next_cursor`` is None as long as nothing follows."""

    items: tuple[FeedItem, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The ids of deliveries that count as delivered now and did not before."""

    deliveries: tuple[str, ...]
