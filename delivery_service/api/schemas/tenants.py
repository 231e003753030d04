"""Tenants."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from delivery_service.api.schemas.common import (
    Given,
    Name,
    ProfileNames,
    Schedule,
    Shown,
    TenantId,
    UtcMoment,
)


class TenantSettings(Given):
    """Settings of a tenant; what is left out is the platform's."""

    name: Name | None = Field(None, description="For people.", examples=["Acme Ltd"])
    schedule: Schedule | None = None
    profiles: ProfileNames | None = None
    rate_limit: float | None = Field(
        None,
        ge=0.001,
        le=100_000,
        allow_inf_nan=False,
        description="Most requests a second to each of its endpoints that has no limit of its own.",
        examples=[25],
    )


class NewTenant(TenantSettings):
    """A tenant to create."""

    id: TenantId


class Tenant(Shown):
    """A customer of the platform."""

    id: TenantId
    name: str | None
    schedule: str | None = Field(description="Null: the platform's.")
    profiles: list[str] | None = Field(description="Null: the platform's.")
    rate_limit: float | None = Field(description="Requests a second; null: none.")
    created_at: UtcMoment
    updated_at: UtcMoment


def show_tenant(row: dict[str, Any]) -> Tenant:
    """Return a row as it is shown."""
    return Tenant(**row)
