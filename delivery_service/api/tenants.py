"""Operations on tenants."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Caller, PlatformReader, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.endpoint_rules import check_tenant_signable
from delivery_service.api.paging import page_of, read_cursor
from delivery_service.api.problems import conflict, not_found, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import Page, PageParameters, TenantId
from delivery_service.api.schemas.tenants import NewTenant, Tenant, TenantSettings, show_tenant
from delivery_service.store import tenants
from sender.publish import check_tenant

routes = router("tenants")
# Ids are the platform's own and may hold slashes, hence the converter.
PATH = "/tenants/{tenant_id:path}"
POSITION = "tenant:"
"""How a cursor begins: an id alone would look like a cursor of other lists."""
ThisTenant = Annotated[TenantId, Path()]


@routes.post("/tenants", status_code=201, responses=body_problems(409))
async def create_tenant(context: Here, caller: Admin, body: NewTenant) -> Tenant:
    """Create a tenant. Publishing does not need one; it only holds settings."""
    return await context.write(_create, context, caller, body)


def _create(connection: Connection, context: Context, caller: Caller, body: NewTenant) -> Tenant:
    values = body.model_dump(exclude={"id"})
    if not tenants.ensure(connection, body.id, values, context.now):
        raise conflict(
            "tenant-exists", "There is a tenant of that id; change it with PUT or PATCH."
        )
    return _noted(connection, context, caller, body.id, None)


@routes.get("/tenants", responses=responses(403))
async def list_tenants(
    context: Here, _caller: PlatformReader, where: Annotated[PageParameters, Query()]
) -> Page[Tenant]:
    """List tenants in the order of their ids."""
    after = read_cursor(where.cursor, _check_position)
    rows = await context.read(
        tenants.page, limit=where.limit + 1, after=after and after.removeprefix(POSITION)
    )
    return page_of(rows, where.limit, show_tenant, lambda row: POSITION + row["id"])


def _check_position(text: str) -> str:
    check_tenant(text.removeprefix(POSITION) if text.startswith(POSITION) else "")
    return text


@routes.get(PATH, responses=responses(404))
async def read_tenant(context: Here, caller: Reader, tenant_id: ThisTenant) -> Tenant:
    """Show a tenant."""
    caller.restrict(tenant_id)
    return await context.read(_shown, tenant_id)


CREATED: dict[int | str, dict[str, Any]] = {201: {"description": "Created.", "model": Tenant}}


@routes.put(PATH, responses={**body_problems(409), **CREATED})
async def put_tenant(
    context: Here, caller: Admin, tenant_id: ThisTenant, body: TenantSettings, response: Response
) -> Tenant:
    """Create a tenant, or replace its settings."""
    created, tenant = await context.write(_put, context, caller, tenant_id, body.model_dump())
    response.status_code = 201 if created else 200
    return tenant


def _put(
    connection: Connection,
    context: Context,
    caller: Caller,
    tenant_id: str,
    values: dict[str, Any],
) -> tuple[bool, Tenant]:
    before = tenants.get(connection, tenant_id)
    created = tenants.ensure(connection, tenant_id, values, context.now)
    if not created:
        tenants.change(connection, tenant_id, values, context.now)
    check_tenant_signable(connection, context, tenant_id)
    return created, _noted(connection, context, caller, tenant_id, before)


@routes.patch(PATH, responses=body_problems(404, 409))
async def change_tenant(
    context: Here, caller: Admin, tenant_id: ThisTenant, body: TenantSettings
) -> Tenant:
    """Change the settings that are given."""
    values = body.model_dump(exclude_unset=True)
    return await context.write(_change, context, caller, tenant_id, values)


def _change(
    connection: Connection,
    context: Context,
    caller: Caller,
    tenant_id: str,
    values: dict[str, Any],
) -> Tenant:
    before = tenants.get(connection, tenant_id)
    if before is None:
        raise not_found("tenant")
    tenants.change(connection, tenant_id, values, context.now)
    check_tenant_signable(connection, context, tenant_id)
    return _noted(connection, context, caller, tenant_id, before)


def _noted(
    connection: Connection, context: Context, caller: Caller, tenant_id: str, before: Row | None
) -> Tenant:
    """Note the change, and return the tenant as it is now."""
    after = _shown(connection, tenant_id)
    note(
        connection,
        context,
        caller,
        "tenant.created" if before is None else "tenant.changed",
        tenant_id,
        tenant_id=tenant_id,
        before=show_tenant(before) if before else None,
        after=after,
    )
    return after


@routes.delete(PATH, status_code=204, responses=responses(404))
async def delete_tenant(context: Here, caller: Admin, tenant_id: ThisTenant) -> None:
    """Delete a tenant with everything in it: endpoints, events, deliveries, attempts and keys."""

    def delete(connection: Connection) -> None:
        before = tenants.get(connection, tenant_id)
        if not tenants.remove(connection, tenant_id):
            raise not_found("tenant")
        shown = show_tenant(before) if before else None
        note(
            connection,
            context,
            caller,
            "tenant.deleted",
            tenant_id,
            tenant_id=tenant_id,
            before=shown,
        )

    await context.write(delete)
    context.known_keys.forget()


def _shown(connection: Connection, tenant_id: str) -> Tenant:
    row = tenants.get(connection, tenant_id)
    if row is None:
        raise not_found("tenant")
    return show_tenant(row)
