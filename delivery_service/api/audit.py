"""The audit log: entries are noted by the operations, and read here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy import Connection

from delivery_service.api.auth import Caller, PlatformReader
from delivery_service.api.context import Context, Here
from delivery_service.api.paging import last_id, page_of, read_cursor
from delivery_service.api.routing import router
from delivery_service.api.schemas.audit import AuditEntry, AuditFilter, entry_members
from delivery_service.api.schemas.common import Page
from delivery_service.store import audit

routes = router("audit log")


@routes.get("/audit-log")
async def list_audit_log(
    context: Here, _caller: PlatformReader, where: Annotated[AuditFilter, Query()]
) -> Page[AuditEntry]:
    """List who changed what, newest first. Secrets are not in it."""
    rows = await context.read(
        audit.page,
        limit=where.limit + 1,
        before=read_cursor(where.cursor, last_id(audit.ENTRY)),
        equal={
            "tenant_id": where.tenant,
            "target": where.target,
            "actor": where.actor,
            "action": where.action,
        },
        since=where.since,
        until=where.until,
    )
    return page_of(rows, where.limit, lambda row: AuditEntry(**entry_members(row)))


def note(
    connection: Connection,
    context: Context,
    caller: Caller,
    action: str,
    target: str,
    *,
    tenant_id: str | None,
    before: BaseModel | None = None,
    after: BaseModel | None = None,
) -> None:
    """Add an entry, in the transaction of the change.

    ``before`` and ``after`` are what the caller is shown, which never holds a secret that can be
    kept from it.
    """
    audit.add(
        connection,
        actor=caller.key_id,
        action=action,
        target=target,
        tenant_id=tenant_id,
        before=_members(before),
        after=_members(after),
        now=context.now,
    )


def _members(shown: BaseModel | None) -> dict[str, Any] | None:
    return None if shown is None else shown.model_dump(mode="json")
