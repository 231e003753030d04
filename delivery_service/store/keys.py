"""API keys: only their SHA-256 is stored, so a copy of the database opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, delete, or_, select, update

from delivery_service.policy.windows import Admission, admit
from sender.publish import check_tenant
from sender.tables import api_keys
from sender.types import later, moment
from wire.errors import SurehookError
from wire.ids import API_KEY, new_id

PREFIX = "shk_"
RANDOM_BYTES = 32
HINT_LENGTH = len(PREFIX) + 6
MAX_NAME_LENGTH = 128
MAX_RATE_LIMIT = 1_000_000
PORTAL_LONGEST = timedelta(hours=24)
TOUCH_EVERY = timedelta(minutes=1)
"""How exact ``last_used_at`` is: a write for every request would cost more than the request."""


class Scope(StrEnum):
    """What a key may do."""

    ADMIN = "admin"
    """Everything."""
    PUBLISH = "publish"
    """Publish events of any tenant."""
    READ = "read"
    """Read everything but keys."""
    TENANT = "tenant"
    """Read and change what belongs to one tenant, but not publish."""


class UnusableKey(SurehookError):
    """A key can't be made as asked; the message names the field."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A fresh key. ``key`` is its text, which can't be had again."""

    id: str
    key: str = field(repr=False)


def create(
    connection: Connection,
    *,
    name: str,
    scope: str,
    tenant_id: str | None = None,
    expires_at: datetime | None = None,
    rate_limit: int | None = None,
    portal: bool = False,
    now: datetime | None = None,
) -> NewKey:
    """Make an API key of 256 random bits and store its digest.

    ``scope`` is one of `Scope`; ``tenant`` needs a ``tenant_id``, and the others have none.
    ``rate_limit``: requests in a window, None for the setting's. ``portal`` marks a token for a
    person in the portal, which is removed some time after it has expired.
    Raises `UnusableKey` when the fields don't fit together, `sender.PublishError` for a tenant
    that can't be one.
    """
    if scope not in list(Scope):
        raise UnusableKey(f"scope: {scope!r} is none of {', '.join(Scope)}")
    if (scope == Scope.TENANT) != (tenant_id is not None):
        raise UnusableKey("tenant: give it for the scope 'tenant', and for no other")
    if tenant_id is not None:
        check_tenant(tenant_id)
    if rate_limit is not None and not 1 <= rate_limit <= MAX_RATE_LIMIT:
        raise UnusableKey(f"rate_limit: 1 to {MAX_RATE_LIMIT} requests")
    if not 1 <= len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise UnusableKey(f"name: 1 to {MAX_NAME_LENGTH} printable characters")
    new = NewKey(new_id(API_KEY, now=now), PREFIX + secrets.token_urlsafe(RANDOM_BYTES))
    connection.execute(
        api_keys.insert().values(
            id=new.id,
            name=name,
            digest=digest(new.key),
            hint=new.key[:HINT_LENGTH] + "…",
            scope=scope,
            tenant_id=tenant_id,
            created_at=moment(now),
            expires_at=expires_at,
            rate_limit=rate_limit,
            portal=portal,
        )
    )
    return new


def create_portal_token(
    connection: Connection, tenant_id: str, lasts: timedelta, now: datetime | None = None
) -> tuple[NewKey, datetime]:
    """Make a key of scope ``tenant`` for a person in the portal; return it and when it expires.

    ``lasts`` is at most `PORTAL_LONGEST`.
    """
    if not timedelta() < lasts <= PORTAL_LONGEST:
        raise UnusableKey("expires: a portal token lasts 24 hours at most")
    expires_at = connection.execute(select(later(lasts.total_seconds(), now))).scalar_one()
    name = f"portal of {tenant_id}"[:MAX_NAME_LENGTH]
    new = create(
        connection,
        name=name,
        scope=Scope.TENANT,
        tenant_id=tenant_id,
        expires_at=expires_at,
        portal=True,
        now=now,
    )
    return new, expires_at


def digest(key: str) -> bytes:
    """What is stored of a key. Not a slow hash: 256 random bits can't be guessed anyway."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def find(connection: Connection, key: str, now: datetime | None = None) -> dict[str, Any] | None:
    """Return the row of a key that is in force, or None.

    ``is_stale`` tells whether `touch` is due, ``found_at`` is the moment that counted.
    """
    at = moment(now)
    untouched = api_keys.c.last_used_at
    is_stale = or_(untouched.is_(None), untouched < later(-TOUCH_EVERY.total_seconds(), now)).label(
        "is_stale"
    )
    row = connection.execute(
        select(api_keys, is_stale, at.label("found_at")).where(
            api_keys.c.digest == digest(key),
            api_keys.c.revoked_at.is_(None),
            or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > at),
        )
    ).one_or_none()
    return None if row is None else row._asdict()


def touch(connection: Connection, key_id: str, now: datetime | None = None) -> None:
    """Note that a key was used just now."""
    connection.execute(
        update(api_keys).where(api_keys.c.id == key_id).values(last_used_at=moment(now))
    )


def get(connection: Connection, key_id: str) -> dict[str, Any] | None:
    """Return a key's row, in force or not, or None."""
    row = connection.execute(select(api_keys).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else row._asdict()


def page(
    connection: Connection,
    *,
    limit: int,
    before: str | None = None,
    equal: Mapping[str, str | None] | None = None,
    portal: bool | None = None,
) -> list[dict[str, Any]]:
    """Return up to ``limit`` keys, newest first, in force or not.

    ``equal``: values of the columns ``tenant_id`` and ``scope`` to select by; None selects all.
    ``portal``: only portal tokens, or none of them.
    """
    query = select(api_keys).order_by(api_keys.c.id.desc()).limit(limit)
    for column, value in (equal or {}).items():
        if value is not None:
            query = query.where(api_keys.c[column] == value)
    if portal is not None:
        query = query.where(api_keys.c.portal.is_(portal))
    if before is not None:
        query = query.where(api_keys.c.id < before)
    return [row._asdict() for row in connection.execute(query)]


def revoke(connection: Connection, key_id: str, now: datetime | None = None) -> bool:
    """Revoke a key for good; False when there is none in force by that id."""
    done = connection.execute(
        update(api_keys)
        .where(and_(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)))
        .values(revoked_at=moment(now))
    )
    return done.rowcount > 0


def take(
    connection: Connection,
    key_id: str,
    limit: int,
    window: timedelta,
    now: datetime | None = None,
) -> Admission:
    """Count a request of a key, unless ``limit`` of them were counted within ``window``.

    The row's lock makes it exact across processes; it is held for two statements.
    """
    row = connection.execute(
        select(api_keys.c.rate_window, moment(now).label("at"))
        .where(api_keys.c.id == key_id)
        .with_for_update()
    ).one_or_none()
    if row is None:  # removed with its tenant just now
        return Admission(False, 0, 1.0, {})
    admission = admit(row.rate_window, limit, window, row.at)
    if admission.admitted:
        connection.execute(
            update(api_keys).where(api_keys.c.id == key_id).values(rate_window=admission.state)
        )
    return admission


def remove_portal_tokens(connection: Connection, older: timedelta, now: datetime | None) -> int:
    """Remove portal tokens that expired longer than ``older`` ago; return how many."""
    done = connection.execute(
        delete(api_keys).where(
            api_keys.c.portal, api_keys.c.expires_at < later(-older.total_seconds(), now)
        )
    )
    return done.rowcount
