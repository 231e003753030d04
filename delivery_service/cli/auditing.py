"""Entries in the audit log for what is changed from the command line."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from delivery_service.store import audit


def note(
    connection: Connection,
    action: str,
    target: str,
    *,
    tenant_id: str | None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry, in the transaction of the change; the values must hold no secret."""
    audit.add(
        connection,
        actor=actor(),
        action=action,
        target=target,
        tenant_id=tenant_id,
        before=before,
        after=after,
    )


def actor() -> str:
    """Return the name under which the audit log knows whoever is at the command line."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user need not have a name
        return "cli"
