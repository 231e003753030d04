"""API keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from delivery_service.api.schemas.common import (
    Given,
    Moment,
    Name,
    PageParameters,
    Shown,
    TenantId,
    UtcMoment,
    id_pattern,
)
from delivery_service.store.keys import MAX_RATE_LIMIT, PORTAL_LONGEST
from wire.ids import API_KEY

MAX_PORTAL_SECONDS = int(PORTAL_LONGEST.total_seconds())
RateLimit = Annotated[int, Field(ge=1, le=MAX_RATE_LIMIT, examples=[600])]
ScopeName = Literal["admin", "publish", "read", "tenant"]


class NewApiKey(Given):
    """A key to make."""

    name: Name = Field(examples=["billing service"])
    scope: ScopeName = Field(
        description="`admin`: everything; `publish`: publish for any tenant; `read`: read"
        " everything but keys; `tenant`: what belongs to one tenant.",
        examples=["publish"],
    )
    tenant: TenantId | None = Field(None, description="For the scope `tenant`, and only for it.")
    expires_at: Moment | None = Field(None, description="Left out: never.")
    rate_limit: RateLimit | None = Field(
        None,
        description="Requests in a window of the setting `key_rate_window` (a minute, by default)."
        " Left out: the setting `key_rate_limit`.",
    )

    @model_validator(mode="after")
    def _fits(self) -> NewApiKey:
        if (self.scope == "tenant") != (self.tenant is not None):
            raise ValueError("give tenant for the scope 'tenant', and for no other")
        return self


class ApiKey(Shown):
    """A key, without the key itself."""

    id: str = Field(json_schema_extra=id_pattern(API_KEY))
    name: str
    hint: str = Field(description="How the key begins.", examples=["shk_V3r9aB…"])
    scope: ScopeName
    tenant: str | None
    created_at: UtcMoment
    expires_at: UtcMoment | None
    revoked_at: UtcMoment | None
    last_used_at: UtcMoment | None = Field(description="To the minute.")
    rate_limit: int | None = Field(description="Its own limit; null: the setting's.")
    portal: bool = Field(description="Whether it is a portal token.")


class CreatedApiKey(ApiKey):
    """A key, which is shown this once."""

    key: str = Field(description="Keep it: it is not shown again.")


class KeyFilter(PageParameters):
    """Which keys to list."""

    tenant: TenantId | None = None
    scope: ScopeName | None = None
    portal: bool | None = Field(None, description="Only portal tokens, or none of them.")


class NewPortalToken(Given):
    """A token for the portal of a tenant."""

    tenant: TenantId
    expires_in_seconds: int = Field(
        3600, ge=60, le=MAX_PORTAL_SECONDS, description="Seconds until it expires; at most a day."
    )


class CreatedPortalToken(Shown):
    """A portal token, which is shown this once."""

    id: str = Field(json_schema_extra=id_pattern(API_KEY), description="Revoke it as a key.")
    token: str = Field(description="Give it as `Authorization: Bearer …`.")
    tenant: str
    expires_at: UtcMoment


def key_members(row: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a key."""
    return {**row, "tenant": row["tenant_id"]}
