"""Callers, and the keys that have been verified a moment ago."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delivery_service.api.problems import Problem, not_found
from delivery_service.store import keys
from delivery_service.store.keys import Scope

if TYPE_CHECKING:
    from delivery_service.api.context import Context

KEPT_FOR = 2.0
"""Seconds that a verified key is trusted before the database is asked again. A key revoked in
another process, or by the command line, works that much longer at most; one revoked through this
process's API stops at once."""
MOST_KEPT = 10_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The key that a request came with. ``tenant_id`` is set if it only sees one tenant;
    ``rate_limit`` is in requests a window, None for no limit."""

    key_id: str
    scope: Scope
    tenant_id: str | None = None
    rate_limit: int | None = None

    @property
    def is_tenant(self) -> bool:
        """Whether the caller is a tenant and not the platform."""
        return self.tenant_id is not None

    def sees(self, tenant_id: str) -> bool:
        """Whether things of a tenant exist for this caller."""
        return self.tenant_id is None or self.tenant_id == tenant_id

    def restrict(self, tenant_id: str | None) -> str | None:
        """Return the tenant to select by: the caller's own, or else the given one.

        Raises the problem 404 when the given one is another tenant.
        """
        if tenant_id is not None and not self.sees(tenant_id):
            raise not_found("tenant")
        return tenant_id if self.tenant_id is None else self.tenant_id


class KnownKeys:
    """Verified keys by their digests: a query for each request would cost half a publish."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, Caller]] = {}
        self._generation = 0

    def forget(self) -> None:
        """Ask the database again for every key. To be called after a commit that ended keys."""
        self._generation += 1
        self._kept.clear()

    async def find(self, context: Context, key: str) -> Caller | None:
        """Return whose key it is, or None when it is unknown, expired or revoked."""
        digest = keys.digest(key)
        moment = context.clock.monotonic()
        kept = self._kept.get(digest)
        if kept is not None and moment < kept[0] <= moment + KEPT_FOR:
            return kept[1]
        generation = self._generation
        row = await context.read(keys.find, key, context.now)
        if row is None:
            self._kept.pop(digest, None)
            return None
        if row["is_stale"]:
            await _touch(context, row)
        limit = row["rate_limit"] or context.settings.key_rate_limit
        caller = Caller(row["id"], Scope(row["scope"]), row["tenant_id"], limit)
        # What was read before keys were ended must not outlive that.
        if generation == self._generation:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[digest] = (moment + _trusted_for(row), caller)
        return caller


def _trusted_for(row: dict[str, Any]) -> float:
    if row["expires_at"] is None:
        return KEPT_FOR
    left: float = (row["expires_at"] - row["found_at"]).total_seconds()
    return min(KEPT_FOR, left)


async def _touch(context: Context, row: dict[str, Any]) -> None:
    try:
        await context.write(keys.touch, row["id"], context.now)
    except Problem:
        # Only a note for people; what was asked for may still succeed.
        logger.warning("last use of %s could not be noted", row["id"])
