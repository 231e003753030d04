"""What the operations take beside ids: the members of the API's bodies, as typed keywords.

A member that is left out stays as it is, or is the default; None resets it to the tenant's or the
platform's. The service checks the values and names the faulty member (`ApiError.faults`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

Schedule: TypeAlias = str | Sequence[float]
"""A preset, a list such as ``1m,5m,30m``, or seconds."""


class TenantSettings(TypedDict, total=False):
    """Settings of a tenant."""

    name: str | None
    schedule: Schedule | None
    profiles: Sequence[str] | None
    rate_limit: float | None


class EndpointSettings(TypedDict, total=False):
    """Settings of an endpoint. ``timeout``: seconds of an attempt; ``rate_limit``: requests a
    second; ``headers`` replaces all custom headers; ``filter`` is what `sender.filters` describes;
    ``authentication`` has a ``type`` (``basic``, ``bearer``, ``oauth2``) and what it needs;
    ``tls`` has PEM texts: ``client_certificate`` with ``client_key``, and ``private_ca``."""

    description: str | None
    uid: str | None
    metadata: Mapping[str, str] | None
    channels: Sequence[str] | None
    filter: Mapping[str, Any] | None
    authentication: Mapping[str, str] | None
    tls: Mapping[str, str | None] | None
    event_types: Sequence[str] | None
    schedule: Schedule | None
    profiles: Sequence[str] | None
    timeout: float | None
    max_in_flight: int | None
    rate_limit: float | None
    headers: Mapping[str, str] | None


class EndpointChange(EndpointSettings, total=False):
    """What can be changed of an endpoint."""

    url: str


class ChosenSecret(TypedDict, total=False):
    """A secret of your own, or the kind of one to generate."""

    secret: str | None
    secret_kind: Literal["whsec", "whsk"]


class NewEndpoint(EndpointSettings, ChosenSecret, total=False):
    """What an endpoint can be created with, beside tenant and URL."""


class Rotation(ChosenSecret, total=False):
    """How to rotate a secret; older ones sign on for ``overlap_seconds``."""

    overlap_seconds: int | None


class Paging(TypedDict, total=False):
    """Where in a list: ``cursor`` is ``next_cursor`` of the page before, ``limit`` the items of
    a page, 1 to 200."""

    limit: int
    cursor: str | None


class EventFilter(Paging, total=False):
    """Which events to list: published at ``since`` or later, and before ``until``."""

    tenant: str | None
    type: str | None
    since: datetime | None
    until: datetime | None


class DeliveryFilter(Paging, total=False):
    """Which deliveries to list: created at ``since`` or later, and before ``until``."""

    tenant: str | None
    endpoint: str | None
    event: str | None
    event_type: str | None
    status: Literal["pending", "delivered", "dead", "cancelled", "skipped"] | None
    since: datetime | None
    until: datetime | None
    ended_since: datetime | None
    ended_until: datetime | None
    reason: str | None
    last_outcome: str | None
    min_attempts: int | None
    max_attempts: int | None
    in_flight: bool | None
    copy_of: str | None


class NewOperation(TypedDict, total=False):
    """What an operation takes beside its kind: which deliveries (created at ``since`` or later,
    and before ``until``), or type and data of a broadcast."""

    since: datetime | None
    until: datetime | None
    tenant: str | None
    endpoint: str | None
    event_type: str | None
    status: Literal["delivered", "dead", "cancelled", "skipped"] | None
    reason: str | None
    last_outcome: str | None
    dry_run: bool
    type: str | None
    data: Any


class OperationFilter(Paging, total=False):
    """Which operations to list."""

    kind: Literal["recover", "replay", "cancel", "broadcast"] | None
    status: Literal["queued", "running", "done", "cancelled", "failed"] | None


class EndpointFilter(Paging, total=False):
    """Which endpoints to list."""

    tenant: str | None
    status: Literal["enabled", "disabled"] | None
    uid: str | None


class KeyFilter(Paging, total=False):
    """Which API keys to list."""

    tenant: str | None
    scope: str | None
    portal: bool | None


class NewKey(TypedDict, total=False):
    """What an API key can be created with; ``tenant`` is for the scope ``tenant`` only.
    ``rate_limit``: requests in a window of the service's setting `key_rate_window`."""

    tenant: str | None
    expires_at: datetime | None
    rate_limit: int | None


class FeedPlace(TypedDict, total=False):
    """Where in a feed: ``limit`` is 1 to 50; ``after`` is the delivery after which to begin;
    ``undelivered`` leaves out what is delivered."""

    limit: int
    after: str | None
    cursor: str | None
    undelivered: bool


class StatsRange(TypedDict, total=False):
    """Which time, in steps of an ``hour`` or a ``day``."""

    per: Literal["hour", "day"]
    since: datetime | None
    until: datetime | None


class EventTypeSettings(TypedDict, total=False):
    """What the catalogue says of an event type; what is left out is reset."""

    description: str
    schema: Mapping[str, Any] | None
    validation: Literal["off", "warn", "refuse"]
    example: Any


class EventTypeFilter(Paging, total=False):
    """Which event types to list."""

    archived: bool


class AuditFilter(Paging, total=False):
    """Which entries to list: at ``since`` or later, and before ``until``."""

    tenant: str | None
    target: str | None
    actor: str | None
    action: str | None
    since: datetime | None
    until: datetime | None


class Later(TypedDict, total=False):
    """When an event is due, at most 90 days ahead, and its channels."""

    deliver_at: datetime | None
    channels: Sequence[str] | None


class TestEvent(TypedDict, total=False):
    """A test event; ``surehook.test`` without data unless given."""

    type: str
    data: Any


class BatchEvent(TypedDict):
    """An event of a batch; all but the first three may be left out."""

    tenant: str
    type: str
    data: Any
    idempotency_key: NotRequired[str | None]
    deliver_at: NotRequired[datetime | None]
    channels: NotRequired[Sequence[str] | None]
