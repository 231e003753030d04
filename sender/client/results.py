"""What the operations on settings give: the schemas of the API as frozen values.

Times are aware UTC datetimes. Members that a newer service adds are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A part of a list. ``next_cursor`` is None on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A customer of the platform. None: what the platform has set."""

    id: str
    name: str | None
    schedule: str | None
    profiles: tuple[str, ...] | None
    rate_limit: float | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationInfo:
    """How requests authenticate to the receiver, without what is secret."""

    type: str
    username: str | None
    token_url: str | None
    client_id: str | None
    scope: str | None
    audience: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """Whether deliveries flow (``closed``), or wait until a probe succeeds (``open``)."""

    state: str
    failures: int
    failing_since: datetime | None
    paused_until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsInfo:
    """Which TLS material an endpoint has."""

    client_certificate: bool
    private_ca: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL of a tenant, with its settings. None: the tenant's or the platform's.

    ``headers`` has the names of custom headers with hidden values; ``timeout`` is in seconds,
    ``rate_limit`` in requests a second.
    """

    id: str
    tenant: str
    url: str
    uid: str | None
    description: str
    metadata: dict[str, str]
    event_types: tuple[str, ...]
    channels: tuple[str, ...]
    filter: dict[str, Any] | None
    status: str
    disabled_reason: str | None
    disabled_at: datetime | None
    schedule: str | None
    profiles: tuple[str, ...] | None
    timeout: float | None
    max_in_flight: int | None
    rate_limit: float | None
    headers: dict[str, str]
    authentication: AuthenticationInfo | None
    tls: TlsInfo | None
    verified_at: datetime | None
    circuit: Circuit
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedEndpoint(Endpoint):
    """An endpoint with its secret, which is shown this once."""

    secret: str = field(repr=False)
    public_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedSecret:
    """The new secret, which is shown this once. Older ones sign on for ``overlap_seconds``."""

    secret: str = field(repr=False)
    public_key: str | None
    overlap_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretInfo:
    """A secret that signs now, without the secret itself."""

    id: str
    kind: str
    public_key: str | None
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretList:
    """The secrets that sign now, newest first."""

    items: tuple[SecretInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key, without the key itself. ``last_used_at`` is exact to the minute."""

    id: str
    name: str
    hint: str
    scope: str
    tenant: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    rate_limit: int | None
    portal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedApiKey(ApiKey):
    """An API key, which is shown this once."""

    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedPortalToken:
    """A token for the portal of one tenant, which is shown this once. ``id`` revokes it."""

    id: str
    token: str = field(repr=False)
    tenant: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """The service answers."""

    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Deliveries flow. Ages are in seconds."""

    status: str
    oldest_due_age: float
    worker_seen_age: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTypeInfo:
    """An event type in the catalogue."""

    name: str
    description: str
    schema: dict[str, Any] | None
    validation: str
    example: Any
    archived_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEventType:
    """A webhook that could not be imported."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEventTypes:
    """What an import did. Types that were so already are in none of the lists."""

    created: tuple[str, ...]
    changed: tuple[str, ...]
    refused: tuple[RefusedEventType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterVerdict:
    """Whether an event with that data would be sent to an endpoint with that filter."""

    matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A change. ``actor`` is the id of an API key, ``target`` of what was changed."""

    id: str
    at: datetime
    actor: str
    tenant: str | None
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
