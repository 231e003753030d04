"""Endpoints and their secrets, as rows; encryption is the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, or_, select, update

from delivery_service.store.deliveries import end_pending_of
from sender.tables import endpoints, secrets
from sender.types import later, moment
from wire.ids import ENDPOINT, new_id

SECRET = "sec"  # noqa: S105 - the prefix of ids of secrets
ENABLED = "enabled"
DISABLED = "disabled"
UNVERIFIED = "unverified"
"""The reason of an endpoint that waits for a proof of ownership."""

HEALTHY: Mapping[str, Any] = {
    "circuit": "closed",
    "failures": 0,
    "failing_since": None,
    "pauses": 0,
    "paused_until": None,
}


def create(
    connection: Connection,
    values: Mapping[str, Any],
    secret: bytes,
    now: datetime | None = None,
) -> str:
    """Insert an endpoint with its first (encrypted) secret; return its id."""
    endpoint_id = new_id(ENDPOINT, now=now)
    connection.execute(
        endpoints.insert().values(
            id=endpoint_id, created_at=moment(now), updated_at=moment(now), **values
        )
    )
    add_secret(connection, endpoint_id, secret, now)
    return endpoint_id


def get(connection: Connection, endpoint_id: str) -> dict[str, Any] | None:
    """Return an endpoint that is not deleted, or None."""
    row = connection.execute(
        select(endpoints).where(endpoints.c.id == endpoint_id, endpoints.c.deleted_at.is_(None))
    ).one_or_none()
    return None if row is None else row._asdict()


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    tenant_id: str | None = None,
    status: str | None = None,
    uid: str | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` endpoints that are not deleted, newest first."""
    query = (
        select(endpoints)
        .where(endpoints.c.deleted_at.is_(None))
        .order_by(endpoints.c.id.desc())
        .limit(limit)
    )
    if tenant_id is not None:
        query = query.where(endpoints.c.tenant_id == tenant_id)
    if status is not None:
        query = query.where(endpoints.c.status == status)
    if uid is not None:
        query = query.where(endpoints.c.uid == uid)
    if before is not None:
        query = query.where(endpoints.c.id < before)
    return [row._asdict() for row in connection.execute(query)]


def change(
    connection: Connection,
    endpoint_id: str,
    values: Mapping[str, Any],
    now: datetime | None = None,
) -> bool:
    """Change columns of an endpoint that is not deleted; False when there is none."""
    changed = connection.execute(
        update(endpoints)
        .where(endpoints.c.id == endpoint_id, endpoints.c.deleted_at.is_(None))
        .values(version=endpoints.c.version + 1, updated_at=moment(now), **values)
    )
    return changed.rowcount > 0


def enable(connection: Connection, endpoint_id: str, now: datetime | None = None) -> bool:
    """Enable an endpoint with a clean bill of health."""
    return change(
        connection,
        endpoint_id,
        {"status": ENABLED, "disabled_reason": None, "disabled_at": None, **HEALTHY},
        now,
    )


def prove(connection: Connection, endpoint_id: str, now: datetime | None = None) -> bool:
    """Note that the receiver proved its ownership."""
    return change(connection, endpoint_id, {"verified_at": moment(now)}, now)


def disable(
    connection: Connection, endpoint_id: str, reason: str, now: datetime | None = None
) -> bool:
    """Disable an endpoint for ``reason`` and end its pending deliveries.

    They become ``dead`` when the endpoint is gone (410), ``skipped`` otherwise. False when it was
    not enabled.
    """
    disabled = connection.execute(
        update(endpoints)
        .where(
            endpoints.c.id == endpoint_id,
            endpoints.c.deleted_at.is_(None),
            endpoints.c.status == ENABLED,
        )
        .values(
            status=DISABLED,
            disabled_reason=reason,
            disabled_at=moment(now),
            version=endpoints.c.version + 1,
            updated_at=moment(now),
        )
    )
    if not disabled.rowcount:
        return False
    ending = ending_of(reason)
    end_pending_of(connection, [endpoint_id], *ending, now)
    return True


def ending_of(disabled_reason: str | None) -> tuple[str, str]:
    """The status and reason of deliveries whose endpoint was disabled for that reason."""
    if disabled_reason == "gone":
        return "dead", "endpoint_gone"
    if disabled_reason == UNVERIFIED:
        return "skipped", "endpoint_unverified"
    return "skipped", "endpoint_disabled"


def remove(connection: Connection, endpoint_id: str, now: datetime | None = None) -> bool:
    """Delete an endpoint with its secrets and credentials, and cancel its pending deliveries;
    history stays."""
    erased = {"deleted_at": moment(now), "headers": None, "tls": None, "authentication": None}
    if not change(connection, endpoint_id, erased, now):
        return False
    connection.execute(secrets.delete().where(secrets.c.endpoint_id == endpoint_id))
    end_pending_of(connection, [endpoint_id], "cancelled", "endpoint_deleted", now)
    return True


def add_secret(
    connection: Connection, endpoint_id: str, secret: bytes, now: datetime | None = None
) -> None:
    """Store an encrypted secret as the newest of an endpoint."""
    connection.execute(
        secrets.insert().values(
            id=new_id(SECRET, now=now),
            endpoint_id=endpoint_id,
            ciphertext=secret,
            created_at=moment(now),
        )
    )


def rotate_secret(
    connection: Connection,
    endpoint_id: str,
    secret: bytes,
    overlap: timedelta,
    now: datetime | None = None,
) -> bool:
    """Put a new secret beside the current ones, which sign on for at most ``overlap`` more."""
    if not change(connection, endpoint_id, {}, now):
        return False
    end = later(overlap.total_seconds(), now)
    connection.execute(
        update(secrets)
        .where(
            secrets.c.endpoint_id == endpoint_id,
            or_(secrets.c.expires_at.is_(None), secrets.c.expires_at > end),
        )
        .values(expires_at=end)
    )
    add_secret(connection, endpoint_id, secret, now)
    return True


def active_secrets(
    connection: Connection, endpoint_ids: Sequence[str], now: datetime | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return the secrets that sign now, newest first, by endpoint."""
    rows = connection.execute(
        select(secrets)
        .where(
            secrets.c.endpoint_id.in_(endpoint_ids),
            or_(secrets.c.expires_at.is_(None), secrets.c.expires_at > moment(now)),
        )
        .order_by(secrets.c.endpoint_id, secrets.c.id.desc())
    )
    found: dict[str, list[dict[str, Any]]] = {id_: [] for id_ in endpoint_ids}
    for row in rows:
        found[row.endpoint_id].append(row._asdict())
    return found


def rows(connection: Connection, endpoint_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return whole rows, deleted ones too."""
    found = connection.execute(select(endpoints).where(endpoints.c.id.in_(endpoint_ids)))
    return [row._asdict() for row in found]


def lock_health(connection: Connection, endpoint_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Lock endpoints, in the order of their ids, and return their health and status by id.

    Whoever changes both locks endpoints before queue rows; so nobody deadlocks.
    """
    if not endpoint_ids:
        return {}
    found = connection.execute(
        select(
            endpoints.c.id,
            endpoints.c.tenant_id,
            endpoints.c.status,
            *(endpoints.c[name] for name in HEALTHY),
        )
        .where(endpoints.c.id.in_(endpoint_ids))
        .order_by(endpoints.c.id)
        .with_for_update()
    )
    return {row.id: row._asdict() for row in found}


def set_health(connection: Connection, endpoint_id: str, health: Mapping[str, Any]) -> None:
    """Write an endpoint's health. Not a change that workers must reload it for."""
    connection.execute(update(endpoints).where(endpoints.c.id == endpoint_id).values(**health))


def lock_for_claim(
    connection: Connection, endpoint_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Lock endpoints whose claims must be counted, and return their pause and rate by id.

    Those that another transaction holds are left out: a claim holds queue rows, so it must not
    wait for an endpoint.
    """
    found = connection.execute(
        select(endpoints.c.id, endpoints.c.paused_until, endpoints.c.rate_next_at)
        .where(endpoints.c.id.in_(endpoint_ids))
        .order_by(endpoints.c.id)
        .with_for_update(skip_locked=True)
    )
    return {row.id: row._asdict() for row in found}


def set_rate(connection: Connection, endpoint_id: str, next_at: datetime) -> None:
    """Write when the next request may start."""
    connection.execute(
        update(endpoints).where(endpoints.c.id == endpoint_id).values(rate_next_at=next_at)
    )


def without_profiles(connection: Connection, tenant_id: str) -> list[str]:
    """Return the ids of a tenant's endpoints that go by the tenant's header profiles."""
    found = connection.execute(
        select(endpoints.c.id, endpoints.c.profiles).where(
            endpoints.c.tenant_id == tenant_id, endpoints.c.deleted_at.is_(None)
        )
    )
    return [row.id for row in found if not row.profiles]


def counts(connection: Connection) -> dict[str, int]:
    """Number of endpoints that are not deleted, by status."""
    found = connection.execute(
        select(endpoints.c.status, func.count())
        .where(endpoints.c.deleted_at.is_(None))
        .group_by(endpoints.c.status)
    )
    return {row[0]: row[1] for row in found}
