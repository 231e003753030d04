"""The audit log."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from delivery_service.api.schemas.common import (
    Moment,
    Name,
    PageParameters,
    Shown,
    TenantId,
    UtcMoment,
)

Action = Literal[
    "tenant.created",
    "tenant.changed",
    "tenant.deleted",
    "endpoint.created",
    "endpoint.changed",
    "endpoint.enabled",
    "endpoint.disabled",
    "endpoint.deleted",
    "endpoint.verified",
    "secret.rotated",
    "event.body_deleted",
    "delivery.redelivered",
    "delivery.sent_as_new",
    "delivery.cancelled",
    "operation.created",
    "operation.cancelled",
    "event_type.created",
    "event_type.changed",
    "event_type.archived",
    "key.created",
    "key.revoked",
    "portal_token.created",
]


class AuditEntry(Shown):
    """One change."""

    id: str
    at: UtcMoment
    actor: str = Field(
        description="Id of the API key that did it; `cli:` and a user's name on the command line.",
        examples=["key_01K"],
    )
    tenant: str | None
    action: Action
    target: str = Field(description="Id of what was changed.", examples=["ep_01K"])
    before: dict[str, Any] | None = Field(description="As it was shown before.")
    after: dict[str, Any] | None = Field(description="As it was shown after.")


class AuditFilter(PageParameters):
    """Which entries to list."""

    tenant: TenantId | None = None
    target: Name | None = Field(None, description="Id of what was changed.")
    actor: Name | None = Field(None, description="Id of an API key, or `cli:…`.")
    action: Action | None = None
    since: Moment | None = Field(None, description="At that time or later.")
    until: Moment | None = Field(None, description="Before that time.")


def entry_members(row: dict[str, Any]) -> dict[str, Any]:
    """Return the members of an entry."""
    return {**row, "tenant": row["tenant_id"]}
