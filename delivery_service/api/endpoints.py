"""Operations on endpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Query
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from delivery_service.api.audit import note
from delivery_service.api.auth import Caller, Editor, Reader
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.endpoint_rules import (
    check_one_authorization,
    check_proven,
    check_signable,
    check_timeout,
    check_url_for,
    sealed_authentication,
    sealed_headers,
    sealed_tls,
)
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import conflict, not_found, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import Page, path_id
from delivery_service.api.schemas.endpoints import (
    CreatedEndpoint,
    Endpoint,
    EndpointChange,
    EndpointFilter,
    EndpointSettings,
    NewEndpoint,
    endpoint_members,
)
from delivery_service.api.signing import choose_secret, opened_secrets, public_half
from delivery_service.store import endpoints, tenants
from wire.ids import ENDPOINT

routes = router("endpoints")
PATH = "/endpoints/{endpoint_id}"
EndpointId = Annotated[str, path_id(ENDPOINT, "endpoint"), Path(examples=["ep_01K"])]


@routes.post("/endpoints", status_code=201, responses=body_problems(404, 409))
async def create_endpoint(context: Here, caller: Editor, body: NewEndpoint) -> CreatedEndpoint:
    """Register a URL of a tenant, who need not exist before. Its secret is shown this once."""
    caller.restrict(body.tenant)
    values = _columns(context, caller, body)
    secret = choose_secret(body)
    values |= {"tenant_id": body.tenant, "description": body.description or ""}
    if context.settings.require_ownership_proof:
        values |= {"status": endpoints.DISABLED, "disabled_reason": endpoints.UNVERIFIED}

    def create(connection: Connection) -> Row:
        tenants.ensure(connection, body.tenant, now=context.now)
        check_signable(connection, context, values, [secret])
        check_one_authorization(context, values)
        sealed = context.sealer.seal(secret.reveal())
        new = endpoints.create(connection, values, sealed, context.now)
        return _noted(connection, context, caller, "endpoint.created", new)

    row = await _write(context, create)
    return CreatedEndpoint(
        **_members(context, row),
        secret=secret.reveal(),
        public_key=public_half(secret),
    )


@routes.get("/endpoints", responses=responses(404))
async def list_endpoints(
    context: Here, caller: Reader, where: Annotated[EndpointFilter, Query()]
) -> Page[Endpoint]:
    """List endpoints, newest first."""
    rows = await context.read(
        endpoints.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(ENDPOINT)),
        tenant_id=caller.restrict(where.tenant),
        status=where.status,
        uid=where.uid,
    )
    return page_of(rows, where.limit, lambda row: show(context, row))


@routes.get(PATH, responses=responses(404))
async def read_endpoint(context: Here, caller: Reader, endpoint_id: EndpointId) -> Endpoint:
    """Show an endpoint."""
    return show(context, await context.read(fetch, caller, endpoint_id))


@routes.patch(PATH, responses=body_problems(404, 409))
async def change_endpoint(
    context: Here, caller: Editor, endpoint_id: EndpointId, body: EndpointChange
) -> Endpoint:
    """Change the members that are given. `headers` replaces all custom headers."""
    values = _columns(context, caller, body)

    def change(connection: Connection) -> Row:
        endpoints.lock_health(connection, [endpoint_id])
        row = fetch(connection, caller, endpoint_id)
        if "profiles" in values:
            secrets = opened_secrets(connection, context, endpoint_id)
            check_signable(connection, context, {**row, **values}, secrets)
        check_one_authorization(context, {**row, **values})
        endpoints.change(connection, endpoint_id, values, context.now)
        if values.get("url", row["url"]) != row["url"]:
            _forget_proof(connection, context, endpoint_id)
        return _noted(connection, context, caller, "endpoint.changed", endpoint_id, row)

    return show(context, await _write(context, change))


@routes.delete(PATH, status_code=204, responses=responses(404))
async def delete_endpoint(context: Here, caller: Editor, endpoint_id: EndpointId) -> None:
    """Delete an endpoint and its secrets. Its pending deliveries are cancelled; history stays."""

    def delete(connection: Connection) -> None:
        row = fetch(connection, caller, endpoint_id)
        endpoints.remove(connection, endpoint_id, context.now)
        note(
            connection,
            context,
            caller,
            "endpoint.deleted",
            endpoint_id,
            tenant_id=row["tenant_id"],
            before=show(context, row),
        )

    await context.write(delete)


@routes.post(f"{PATH}/enable", responses=responses(404, 409))
async def enable_endpoint(context: Here, caller: Editor, endpoint_id: EndpointId) -> Endpoint:
    """Enable an endpoint, and close its circuit. What was skipped meanwhile can be redelivered."""

    def enable(connection: Connection) -> Row:
        endpoints.lock_health(connection, [endpoint_id])
        row = fetch(connection, caller, endpoint_id)
        if caller.is_tenant and row["disabled_reason"] == "operator":
            raise conflict("disabled-by-operator", "Only the platform can enable this endpoint.")
        check_proven(context.settings, row)
        endpoints.enable(connection, endpoint_id, context.now)
        return _noted(connection, context, caller, "endpoint.enabled", endpoint_id, row)

    return show(context, await context.write(enable))


@routes.post(f"{PATH}/disable", responses=responses(404))
async def disable_endpoint(context: Here, caller: Editor, endpoint_id: EndpointId) -> Endpoint:
    """Disable an endpoint. No new attempt starts; its pending deliveries become `skipped`."""
    reason = "tenant" if caller.is_tenant else "operator"

    def disable(connection: Connection) -> Row:
        row = fetch(connection, caller, endpoint_id)
        if not endpoints.disable(connection, endpoint_id, reason, context.now):
            return row
        return _noted(connection, context, caller, "endpoint.disabled", endpoint_id, row)

    return show(context, await context.write(disable))


def _forget_proof(connection: Connection, context: Context, endpoint_id: str) -> None:
    """A proof is for one URL: nothing is sent to a new one without another."""
    endpoints.change(connection, endpoint_id, {"verified_at": None}, context.now)
    if context.settings.require_ownership_proof:
        endpoints.disable(connection, endpoint_id, endpoints.UNVERIFIED, context.now)


async def _write(context: Context, work: Callable[[Connection], Row]) -> Row:
    """Write what may give an endpoint a uid."""
    try:
        return await context.write(work)
    except IntegrityError:
        raise conflict("uid-taken", "Another endpoint of this tenant has that uid.") from None


def _noted(
    connection: Connection,
    context: Context,
    caller: Caller,
    action: str,
    endpoint_id: str,
    before: Row | None = None,
) -> Row:
    """Note the change, and return the endpoint's row as it is now."""
    row = fetch(connection, caller, endpoint_id)
    note(
        connection,
        context,
        caller,
        action,
        endpoint_id,
        tenant_id=row["tenant_id"],
        before=show(context, before) if before else None,
        after=show(context, row),
    )
    return row


def fetch(connection: Connection, caller: Caller, endpoint_id: str) -> Row:
    """Return the row of an endpoint that the caller may see, or raise the problem 404."""
    row = endpoints.get(connection, endpoint_id)
    if row is None or not caller.sees(row["tenant_id"]):
        raise not_found("endpoint")
    return row


def show(context: Context, row: Row) -> Endpoint:
    """Return an endpoint as it is shown."""
    return Endpoint(**_members(context, row))


def _members(context: Context, row: Row) -> dict[str, Any]:
    opened = context.sealer.open_json
    return endpoint_members(
        row, opened(row["headers"]) or {}, opened(row["authentication"]), opened(row["tls"])
    )


def _columns(context: Context, caller: Caller, body: EndpointSettings) -> dict[str, Any]:
    """Check what is given for an endpoint; return it as columns."""
    values = body.model_dump(
        exclude_unset=True,
        exclude={"tenant", "secret", "secret_kind", "headers", "authentication", "tls"},
    )
    if "tls" in body.model_fields_set:
        values["tls"] = sealed_tls(context, body.tls)
    if "authentication" in body.model_fields_set:
        values["authentication"] = sealed_authentication(context, caller, body.authentication)
    if isinstance(body, NewEndpoint | EndpointChange) and body.url is not None:
        values["url"] = check_url_for(context, caller, body.url)
    if "headers" in body.model_fields_set:
        values["headers"] = sealed_headers(context, body.headers)
    if body.timeout is not None:
        check_timeout(context, body.timeout)
    if "description" in values:
        values["description"] = body.description or ""
    return values
