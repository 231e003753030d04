"""API keys."""

from __future__ import annotations

from typing import Any, Literal

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
from wire.ids import API_KEY

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


class CreatedApiKey(ApiKey):
    """A key, which is shown this once."""

    key: str = Field(description="Keep it: it is not shown again.")


class KeyFilter(PageParameters):
    """Which keys to list."""

    tenant: TenantId | None = None
    scope: ScopeName | None = None


def key_members(row: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a key."""
    return {**row, "tenant": row["tenant_id"]}
