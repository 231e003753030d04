"""Tenants: the settings of a customer. A tenant exists for publishing without any row here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, select, union, update
from sqlalchemy.dialects import postgresql, sqlite

from sender.tables import (
    api_keys,
    attempts,
    deliveries,
    endpoints,
    events,
    queue,
    secrets,
    tenants,
)
from sender.types import moment

COUNT_PAGE = 1000
"""Tenants of one page of a count."""


def settings_of(connection: Connection, tenant_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of those tenants that have a row, by id."""
    found = connection.execute(
        select(tenants.c.id, tenants.c.schedule, tenants.c.profiles).where(
            tenants.c.id.in_(tenant_ids)
        )
    )
    return {row.id: row._asdict() for row in found}


def ensure(
    connection: Connection,
    tenant_id: str,
    values: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> bool:
    """Insert a tenant unless there is one of that id; whether it was inserted."""
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    row = {"created_at": moment(now), "updated_at": moment(now), **(values or {})}
    inserted = connection.scalars(
        insert(tenants).values(id=tenant_id, **row).on_conflict_do_nothing().returning(tenants.c.id)
    ).all()
    if inserted and values:
        _reload_endpoints(connection, tenant_id)
    return bool(inserted)


def get(connection: Connection, tenant_id: str) -> dict[str, Any] | None:
    """Return a tenant's row, or None."""
    row = connection.execute(select(tenants).where(tenants.c.id == tenant_id)).one_or_none()
    return None if row is None else row._asdict()


def page(connection: Connection, *, limit: int, after: str | None = None) -> list[dict[str, Any]]:
    """Return up to ``limit`` tenants in the order of their ids, from after ``after`` on."""
    query = select(tenants).order_by(tenants.c.id).limit(limit)
    if after is not None:
        query = query.where(tenants.c.id > after)
    return [row._asdict() for row in connection.execute(query)]


def known(connection: Connection, *, limit: int, after: str = "") -> list[str]:
    """Return up to ``limit`` ids of tenants, in their order, that have a row or an endpoint."""
    with_row = select(tenants.c.id.label("id")).where(tenants.c.id > after)
    with_endpoint = (
        select(endpoints.c.tenant_id.label("id"))
        .where(endpoints.c.tenant_id > after, endpoints.c.deleted_at.is_(None))
        .distinct()
    )
    # A limit on each side, or a page would read all tenants.
    sides = [side.order_by("id").limit(limit).subquery() for side in (with_row, with_endpoint)]
    either = union(*(select(side.c.id) for side in sides)).subquery()
    return list(connection.scalars(select(either.c.id).order_by(either.c.id).limit(limit)))


async def count_known(read: Callable[..., Awaitable[Any]]) -> int:
    """Count the tenants that `known` returns, page by page.

    ``read`` runs a piece of work in a transaction of its own.
    """
    count = 0
    after = ""
    while True:
        found = await read(known, limit=COUNT_PAGE, after=after)
        count += len(found)
        if len(found) < COUNT_PAGE:
            return count
        after = found[-1]


def change(
    connection: Connection,
    tenant_id: str,
    values: Mapping[str, Any],
    now: datetime | None = None,
) -> bool:
    """Change columns of a tenant; False when there is none of that id."""
    changed = connection.execute(
        update(tenants).where(tenants.c.id == tenant_id).values(updated_at=moment(now), **values)
    )
    if not changed.rowcount:
        return False
    _reload_endpoints(connection, tenant_id)
    return True


def remove(connection: Connection, tenant_id: str) -> bool:
    """Delete a tenant with everything in it: endpoints, secrets, events, history, keys.

    One transaction, whose time grows with the tenant's history (about 20 µs a row). False when
    there was nothing of that tenant.
    """
    of_tenant = select(endpoints.c.id).where(endpoints.c.tenant_id == tenant_id)
    history = select(deliveries.c.id).where(deliveries.c.tenant_id == tenant_id)
    # Endpoints first: their locks keep workers and publishers out.
    connection.execute(of_tenant.order_by(endpoints.c.id).with_for_update())
    removed = 0
    for statement in (
        delete(queue).where(queue.c.endpoint_id.in_(of_tenant)),
        delete(secrets).where(secrets.c.endpoint_id.in_(of_tenant)),
        delete(attempts).where(attempts.c.delivery_id.in_(history)),
        delete(deliveries).where(deliveries.c.tenant_id == tenant_id),
        delete(events).where(events.c.tenant_id == tenant_id),
        delete(endpoints).where(endpoints.c.tenant_id == tenant_id),
        delete(api_keys).where(api_keys.c.tenant_id == tenant_id),
        delete(tenants).where(tenants.c.id == tenant_id),
    ):
        removed += connection.execute(statement).rowcount
    return removed > 0


def _reload_endpoints(connection: Connection, tenant_id: str) -> None:
    # Workers keep what they know of an endpoint until its version changes, and that includes the
    # settings that it has from its tenant.
    connection.execute(
        update(endpoints)
        .where(endpoints.c.tenant_id == tenant_id, endpoints.c.deleted_at.is_(None))
        .values(version=endpoints.c.version + 1)
    )
