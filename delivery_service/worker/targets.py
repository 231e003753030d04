"""Endpoints ready to be sent to: parsed, decrypted, and kept until their row changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from delivery_service.net.authentication import Credentials
from delivery_service.net.tls import TlsSettings
from delivery_service.sealing import Sealer
from delivery_service.settings import Settings
from delivery_service.store import endpoints, tenants
from delivery_service.store.states import State
from wire.profiles import PROFILES, HeaderProfile
from wire.schedule import RetrySchedule
from wire.secrets import Secret, parse_secret

KEPT = 20_000
"""Targets kept in memory, about 2 kB each."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to send. ``expires_at``: when the first of its secrets stops signing."""

    url: str
    secrets: tuple[Secret, ...]
    profiles: tuple[HeaderProfile, ...]
    schedule: RetrySchedule
    timeout: float
    headers: Mapping[str, str]
    tls: TlsSettings | None
    version: int
    expires_at: datetime | None
    credentials: Credentials | None = None


class Targets:
    """A bounded memory of targets, each good for one version of its endpoint's row."""

    def __init__(self, settings: Settings, sealer: Sealer) -> None:
        self._settings = settings
        self._sealer = sealer
        self._kept: OrderedDict[str, Target | Exception] = OrderedDict()
        self._versions: dict[str, int] = {}

    def get(self, endpoint_id: str) -> Target:
        """Return a target that was refreshed before. Raises what made it unusable, if anything
        did: then the fault is one endpoint's, and so are the failed attempts."""
        target = self._kept[endpoint_id]
        if isinstance(target, Exception):
            raise target
        return target

    def refresh(
        self,
        connection: Connection,
        states: Mapping[str, State],
        at: datetime,
        now: datetime | None,
    ) -> None:
        """Load the targets of the endpoints among ``states`` that are missing or out of date.

        Reads in the claim's own transaction, so that nothing is sent by settings that an earlier
        commit had changed. ``at`` is the database's time.
        """
        stale = [id_ for id_, state in states.items() if not self._is_good(id_, state, at)]
        if not stale:
            return
        rows = endpoints.rows(connection, stale)
        secrets = endpoints.active_secrets(connection, stale, now)
        of_tenants = tenants.settings_of(connection, {row["tenant_id"] for row in rows})
        for row in rows:
            endpoint_id = row["id"]
            self._versions[endpoint_id] = row["version"]
            try:
                self._kept[endpoint_id] = self._build(
                    row, secrets[endpoint_id], of_tenants.get(row["tenant_id"], {})
                )
            except Exception as error:  # noqa: BLE001 - kept: it fails this endpoint's attempts
                self._kept[endpoint_id] = error
            self._kept.move_to_end(endpoint_id)
        self._forget(keep=states)

    def _is_good(self, endpoint_id: str, state: State, at: datetime) -> bool:
        if self._versions.get(endpoint_id) != state.version:
            return False
        target = self._kept[endpoint_id]
        if isinstance(target, Exception):
            return False
        return target.expires_at is None or at < target.expires_at

    def _forget(self, keep: Iterable[str]) -> None:
        kept = set(keep)
        for endpoint_id in list(self._kept)[: max(0, len(self._kept) - KEPT)]:
            if endpoint_id not in kept:
                del self._kept[endpoint_id], self._versions[endpoint_id]

    def _build(
        self,
        row: Mapping[str, Any],
        secret_rows: Sequence[Mapping[str, Any]],
        tenant: Mapping[str, Any],
    ) -> Target:
        settings = self._settings
        tls = self._sealer.open_json(row["tls"])
        credentials = self._sealer.open_json(row["authentication"])
        names = row["profiles"] or tenant.get("profiles") or settings.profiles
        schedule = row["schedule"] or tenant.get("schedule") or settings.schedule
        timeout = settings.attempt_timeout.total_seconds()
        return Target(
            url=row["url"],
            secrets=tuple(parse_secret(self._sealer.open(s["ciphertext"])) for s in secret_rows),
            profiles=tuple(_profile(name) for name in names),
            schedule=RetrySchedule.parse(schedule),
            timeout=min(row["timeout"] or timeout, timeout),
            headers=self._sealer.open_json(row["headers"]) or {},
            tls=TlsSettings(**tls) if tls else None,
            version=row["version"],
            expires_at=min(
                (s["expires_at"] for s in secret_rows if s["expires_at"] is not None), default=None
            ),
            credentials=Credentials(**credentials) if credentials else None,
        )


def _profile(given: str | Mapping[str, Any]) -> HeaderProfile:
    return PROFILES[given] if isinstance(given, str) else HeaderProfile.from_dict(given)
