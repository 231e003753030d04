"""Operations on API keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Path, Query
from sqlalchemy import Connection

from delivery_service.api.audit import note
from delivery_service.api.auth import Admin, Caller
from delivery_service.api.context import Context, Here, Row
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.problems import invalid, not_found, responses
from delivery_service.api.routing import body_problems, router
from delivery_service.api.schemas.common import Page, path_id
from delivery_service.api.schemas.keys import (
    ApiKey,
    CreatedApiKey,
    CreatedPortalToken,
    KeyFilter,
    NewApiKey,
    NewPortalToken,
    key_members,
)
from delivery_service.store import keys
from wire.ids import API_KEY

routes = router("keys")
KeyId = Annotated[str, path_id(API_KEY, "key"), Path(examples=["key_01K"])]


@routes.post("/keys", status_code=201, responses=body_problems())
async def create_key(context: Here, caller: Admin, body: NewApiKey) -> CreatedApiKey:
    """Make an API key. It is shown this once: only its digest is kept."""

    def create(connection: Connection) -> tuple[Row, str]:
        new = keys.create(
            connection,
            name=body.name,
            scope=body.scope,
            tenant_id=body.tenant,
            expires_at=body.expires_at,
            rate_limit=body.rate_limit,
            now=context.now,
        )
        if keys.find(connection, new.key, context.now) is None:
            raise invalid("#/expires_at", "is in the past")
        row = _fetch(connection, new.id)
        _note(connection, context, caller, "key.created", row)
        return row, new.key

    row, key = await context.write(create)
    return CreatedApiKey(**key_members(row), key=key)


@routes.post("/portal-tokens", status_code=201, responses=body_problems())
async def create_portal_token(
    context: Here, caller: Admin, body: NewPortalToken
) -> CreatedPortalToken:
    """Make a token with which a person of one tenant uses the portal for a while.

    It is an API key of scope `tenant`, listed and revoked with the others, and removed a day after
    it has expired.
    """

    lasts = timedelta(seconds=body.expires_in_seconds)

    def create(connection: Connection) -> tuple[keys.NewKey, datetime]:
        new, expires_at = keys.create_portal_token(connection, body.tenant, lasts, context.now)
        row = _fetch(connection, new.id)
        _note(connection, context, caller, "portal_token.created", row)
        return new, expires_at

    new, expires_at = await context.write(create)
    return CreatedPortalToken(id=new.id, token=new.key, tenant=body.tenant, expires_at=expires_at)


@routes.get("/keys", responses=responses(403))
async def list_keys(
    context: Here, _caller: Admin, where: Annotated[KeyFilter, Query()]
) -> Page[ApiKey]:
    """List keys, newest first, also those no longer in force."""
    rows = await context.read(
        keys.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(API_KEY)),
        equal={"tenant_id": where.tenant, "scope": where.scope},
        portal=where.portal,
    )
    return page_of(rows, where.limit, lambda row: ApiKey(**key_members(row)))


@routes.get("/keys/{key_id}", responses=responses(404))
async def read_key(context: Here, _caller: Admin, key_id: KeyId) -> ApiKey:
    """Show a key, but not the key itself."""
    return ApiKey(**key_members(await context.read(_fetch, key_id)))


@routes.delete("/keys/{key_id}", status_code=204, responses=responses(404))
async def revoke_key(context: Here, caller: Admin, key_id: KeyId) -> None:
    """Revoke a key for good. Its row stays, for the record.

    At once in the process that answers; other processes stop accepting it within 2 seconds.
    """

    def revoke(connection: Connection) -> None:
        row = _fetch(connection, key_id)
        if keys.revoke(connection, key_id, context.now):
            _note(connection, context, caller, "key.revoked", row)

    await context.write(revoke)
    context.known_keys.forget()


def _note(connection: Connection, context: Context, caller: Caller, action: str, row: Row) -> None:
    shown = ApiKey(**key_members(_fetch(connection, row["id"])))
    note(connection, context, caller, action, row["id"], tenant_id=row["tenant_id"], after=shown)


def _fetch(connection: Connection, key_id: str) -> Row:
    row = keys.get(connection, key_id)
    if row is None:
        raise not_found("key")
    return row
