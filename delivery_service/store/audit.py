"""The audit log: who changed what. Rows are added in the transaction of the change, and only so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from sender.tables import audit_log
from sender.types import moment
from wire.ids import first_id, new_id

ENTRY = "aud"


def add(
    connection: Connection,
    *,
    actor: str,
    action: str,
    target: str,
    tenant_id: str | None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    now: datetime | None = None,
) -> None:
    """Note that ``actor`` (an API key's id, or ``cli:`` and a user's name) did ``action`` to
    ``target``.

    ``before`` and ``after`` are JSON objects without secrets; None where there was, or is, none.
    """
    connection.execute(
        audit_log.insert().values(
            id=new_id(ENTRY, now=now),
            at=moment(now),
            actor=actor,
            tenant_id=tenant_id,
            action=action,
            target=target,
            before=before,
            after=after,
        )
    )


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    equal: Mapping[str, str | None],
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` entries, newest first.

    ``equal``: values of ``tenant_id``, ``target``, ``actor`` and ``action``; None selects all.
    """
    query = select(audit_log).order_by(audit_log.c.id.desc()).limit(limit)
    for column, value in equal.items():
        if value is not None:
            query = query.where(audit_log.c[column] == value)
    if before is not None:
        query = query.where(audit_log.c.id < before)
    if since is not None:
        query = query.where(audit_log.c.id >= first_id(ENTRY, since))
    if until is not None:
        query = query.where(audit_log.c.id < first_id(ENTRY, until))
    return [row._asdict() for row in connection.execute(query)]
