"""Endpoints and their secrets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from delivery_service.api.schemas.authentication import (
    Authentication,
    AuthenticationInfo,
    authentication_info,
)
from delivery_service.api.schemas.common import (
    Channels,
    Given,
    PageParameters,
    Patterns,
    PayloadFilter,
    ProfileNames,
    Schedule,
    Shown,
    TenantId,
    Text,
    UtcMoment,
    check_printable,
    check_text,
    id_pattern,
)
from wire.ids import ENDPOINT

MAX_OVERLAP = 30 * 86400
"""Seconds that a rotated-out secret may sign on, at most."""

Url = Annotated[
    str,
    Field(
        max_length=2048,
        description="Where to send: `https://…`, without user information and fragment.",
        examples=["https://hooks.acme.example/webhooks"],
    ),
]
Headers = Annotated[
    dict[str, str],
    Field(
        max_length=20,
        description="Headers to send with every attempt. Their values are encrypted and never"
        " shown again.",
        examples=[{"X-Gateway-Key": "s3cret"}],
    ),
]
Uid = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        description="The platform's own id of the endpoint, unique per tenant.",
        examples=["crm-production"],
    ),
    AfterValidator(check_printable),
]
Metadata = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=64), AfterValidator(check_printable)],
        Annotated[str, Field(max_length=512), AfterValidator(check_text)],
    ],
    Field(
        max_length=50,
        description="Whatever the platform wants to remember with it.",
        examples=[{"team": "billing"}],
    ),
]
SecretKind = Literal["whsec", "whsk"]
OwnSecret = Annotated[
    str,
    Field(
        max_length=256,
        description="A secret of your own: `whsec_` (24 to 64 bytes) or `whsk_` (Ed25519), in"
        " padded standard base64. One is generated if it is left out.",
        examples=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="],
    ),
]


def _not_null(value: str | None) -> str:
    if value is None:
        raise ValueError("can't be null")
    return value


Pem = Annotated[str, Field(max_length=65_536), AfterValidator(check_text)]


class Tls(Given):
    """TLS material of an endpoint, as PEM text. Encrypted, and never shown again."""

    client_certificate: Pem | None = Field(
        None, description="Certificate to show to the receiver, with its chain."
    )
    client_key: Pem | None = Field(None, description="Its key, not encrypted.")
    private_ca: Pem | None = Field(
        None, description="Authorities that replace the public ones for this endpoint."
    )


class TlsInfo(Shown):
    """Which TLS material an endpoint has."""

    client_certificate: bool
    private_ca: bool


class EndpointSettings(Given):
    """What can be set and changed of an endpoint; null resets to the tenant's or the platform's."""

    description: Text | None = Field(None, examples=["Production"])
    uid: Uid | None = None
    metadata: Metadata | None = None
    event_types: Patterns | None = None
    channels: Channels | None = None
    filter: PayloadFilter | None = None
    schedule: Schedule | None = None
    profiles: ProfileNames | None = None
    timeout: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Total seconds of an attempt; at most the platform's `attempt_timeout`.",
        examples=[10],
    )
    max_in_flight: int | None = Field(
        None, ge=1, le=10_000, description="Most requests in flight at a time.", examples=[10]
    )
    rate_limit: float | None = Field(
        None,
        ge=0.001,
        le=100_000,
        allow_inf_nan=False,
        description="Most requests a second.",
        examples=[25],
    )
    headers: Headers | None = None
    authentication: Authentication | None = None
    tls: Tls | None = None


class ChosenSecret(Given):
    """A secret of the caller's own, or the kind of one to generate."""

    secret: OwnSecret | None = None
    secret_kind: SecretKind = Field(
        default="whsec",
        description="What to generate: `whsec` (HMAC-SHA256) or `whsk` (Ed25519).",
        examples=["whsec"],
    )


class NewEndpoint(EndpointSettings, ChosenSecret):
    """An endpoint to create."""

    tenant: TenantId
    url: Url


class EndpointChange(EndpointSettings):
    """Members to change; the others stay as they are."""

    url: Annotated[Url | None, AfterValidator(_not_null)] = None

    @model_validator(mode="after")
    def _something(self) -> EndpointChange:
        if not self.model_fields_set:
            raise ValueError("name at least one member to change")
        return self


class Rotation(ChosenSecret):
    """How to rotate the secret."""

    overlap_seconds: int | None = Field(
        default=None,
        ge=0,
        le=MAX_OVERLAP,
        description="How long older secrets sign on beside the new one; 0 ends them at once. Left"
        " out: the platform's `secret_overlap`.",
        examples=[86400],
    )


class Circuit(Shown):
    """Whether deliveries flow, or wait until a probe succeeds."""

    state: Literal["closed", "open"]
    failures: int = Field(description="Endpoint-level failures in a row.")
    failing_since: UtcMoment | None
    paused_until: UtcMoment | None


class Endpoint(Shown):
    """A URL of a tenant, with its settings."""

    id: str = Field(json_schema_extra=id_pattern(ENDPOINT))
    tenant: str
    url: str
    uid: str | None = Field(description="The platform's own id of it.")
    description: str
    metadata: dict[str, str]
    event_types: list[str] = Field(description="Empty: all.")
    channels: list[str] = Field(description="Empty: events of all channels, and of none.")
    filter: dict[str, Any] | None = Field(description="What `data` must be like.")
    status: Literal["enabled", "disabled"]
    disabled_reason: str | None = Field(
        description="`operator`, `tenant`, `gone` (it answered 410), `failing` or `unverified`.",
    )
    disabled_at: UtcMoment | None
    schedule: str | None = Field(description="Null: the tenant's or the platform's.")
    profiles: list[str] | None = Field(description="Null: the tenant's or the platform's.")
    timeout: float | None
    max_in_flight: int | None
    rate_limit: float | None
    headers: dict[str, str] = Field(
        description="Names of the custom headers; the values are hidden.",
        examples=[{"X-Gateway-Key": "***"}],
    )
    authentication: AuthenticationInfo | None
    tls: TlsInfo | None
    verified_at: UtcMoment | None = Field(
        description="When the receiver last proved that it wants what is sent to this URL."
    )
    circuit: Circuit
    created_at: UtcMoment
    updated_at: UtcMoment


class CreatedEndpoint(Endpoint):
    """An endpoint with its secret, which is shown this once."""

    secret: str = Field(description="Keep it: it is not shown again.")
    public_key: str | None = Field(description="`whpk_…` for receivers, of a `whsk_` secret.")


class RotatedSecret(Shown):
    """The new secret, which is shown this once."""

    secret: str = Field(description="Keep it: it is not shown again.")
    public_key: str | None = Field(description="`whpk_…` for receivers, of a `whsk_` secret.")
    overlap_seconds: int


class SecretInfo(Shown):
    """A secret that signs now, without the secret itself."""

    id: str
    kind: SecretKind
    public_key: str | None = Field(description="`whpk_…` for receivers, of a `whsk_` secret.")
    created_at: UtcMoment
    expires_at: UtcMoment | None = Field(description="Set when a newer secret replaced it.")


class SecretList(Shown):
    """The secrets that sign now, newest first."""

    items: list[SecretInfo]


class EndpointFilter(PageParameters):
    """Which endpoints to list."""

    tenant: TenantId | None = None
    status: Literal["enabled", "disabled"] | None = None
    uid: Uid | None = None


def endpoint_members(
    row: dict[str, Any],
    headers: dict[str, str],
    authentication: dict[str, Any] | None,
    tls: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the members of an endpoint. ``headers``, ``authentication`` and ``tls`` are what is
    encrypted in its row."""
    same = (
        "id", "url", "uid", "description", "status", "disabled_reason", "disabled_at", "schedule",
        "profiles", "timeout", "max_in_flight", "rate_limit", "created_at", "updated_at",
        "filter", "verified_at",
    )  # fmt: skip
    return {
        **{name: row[name] for name in same},
        "tenant": row["tenant_id"],
        "event_types": row["event_types"] or [],
        "metadata": row["metadata"] or {},
        "channels": row["channels"] or [],
        "headers": dict.fromkeys(headers, "***"),
        "authentication": authentication_info(authentication),
        "tls": tls and {name: bool(tls.get(name)) for name in TlsInfo.model_fields},
        "circuit": {
            "state": row["circuit"],
            "failures": row["failures"],
            "failing_since": row["failing_since"],
            "paused_until": row["paused_until"],
        },
    }
