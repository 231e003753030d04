"""Tenants: the settings of a customer. A tenant exists for publishing without any row here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, select

from sender.tables import tenants


def settings_of(connection: Connection, tenant_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of those tenants that have a row, by id."""
    found = connection.execute(
        select(tenants.c.id, tenants.c.schedule, tenants.c.profiles).where(
            tenants.c.id.in_(tenant_ids)
        )
    )
    return {row.id: row._asdict() for row in found}
