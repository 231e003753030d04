"""A service on a database of its own, and what tests put into it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import SecretStr
from sqlalchemy import Connection, Table, func, make_url, select

from delivery_service.bootstrap import Service, build, make_transport
from delivery_service.clock import Clock
from delivery_service.policy.sharing import Want
from delivery_service.sealing import generate_encryption_key
from delivery_service.settings import Settings
from delivery_service.store import attempts, deliveries, endpoints, queue
from delivery_service.store.queue import Claimed
from sender import Published, publish
from sender.tables import metadata
from wire.ids import ATTEMPT, new_id
from wire.secrets import generate_secret

ENCRYPTION_KEY = generate_encryption_key()


def settings_for(url: str, **options: Any) -> Settings:
    """Settings for a database, loopback receivers and few connections."""
    parsed = make_url(url)
    plain = parsed.set(drivername=parsed.get_backend_name())
    return Settings(
        **{
            "database_url": plain.render_as_string(hide_password=False),
            "database_pool_size": 5,
            "encryption_keys": [SecretStr(ENCRYPTION_KEY)],
            "allow_private_networks": True,
            **options,
        }
    )


@asynccontextmanager
async def open_service(
    url: str, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Service]:
    """A service on the database of ``url``; the tables are made if there are none."""
    service = build(settings_for(url, **options), clock)
    try:
        async with service.database.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        yield service
    finally:
        await service.close()


class Stored:
    """Puts things into a service's database and looks at them, at moments of its clock."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.database = service.database

    @property
    def now(self) -> datetime | None:
        return self.service.clock.now()

    async def endpoint(
        self, url: str = "http://127.0.0.1:9/", *, tenant: str = "acme", **values: Any
    ) -> str:
        """An endpoint with a secret; returns its id."""
        secret = self.service.sealer.seal(generate_secret())
        return await self.database.write(
            endpoints.create, {"tenant_id": tenant, "url": url, **values}, secret, self.now
        )

    async def publish(self, **event: Any) -> Published:
        event = {"tenant": "acme", "type": "invoice.paid", "data": {"n": 1}, **event}
        return await self.database.write(publish, now=self.now, **event)

    async def claim(self, endpoint_id: str, *, lane: int = 0) -> list[Claimed]:
        """Claim everything that is due for an endpoint, for a minute."""
        return await self.database.write(
            queue.claim,
            [Want(endpoint_id, lane, 1000)],
            "token",
            timedelta(minutes=1),
            self.now,
        )

    async def work(self) -> None:
        """Let a worker do everything that is due now."""
        transport = make_transport(self.service.settings)
        try:
            await self.service.worker(transport).run_until_idle()
        finally:
            await transport.close()

    async def end(self, *delivery_ids: str, status: str = "delivered") -> None:
        """End deliveries, as if they had been attempted."""

        def work(connection: Connection) -> None:
            for id_ in delivery_ids:
                deliveries.cancel(connection, id_, self.now)
            changes = [
                {"id": id_, "attempted": 1, "status": status, "reason": None}
                for id_ in delivery_ids
            ]
            deliveries.apply(connection, changes, self.now)

        await self.database.write(work)

    async def attempt(self, delivery_id: str, number: int = 1) -> str:
        """A stored attempt that is made now; returns its id."""
        at = self.now or datetime.now(UTC)
        attempt_id = new_id(ATTEMPT, now=at)
        row = {
            "id": attempt_id,
            "delivery_id": delivery_id,
            "endpoint_id": "ep_",
            "number": number,
            "late": False,
            "started_at": at,
            "duration": 0.1,
            "url": "http://127.0.0.1:9/",
            "kind": "status",
            "status_code": 500,
            "error": None,
            "may_have_arrived": True,
            "request_headers": "[]",
            "response_headers": "[]",
            "response_body": b"",
            "response_truncated": False,
        }
        await self.database.write(attempts.insert, [row])
        return attempt_id

    async def count(self, table: Table, *conditions: Any) -> int:
        def work(connection: Connection) -> int:
            query = select(func.count()).select_from(table).where(*conditions)
            return connection.execute(query).scalar_one()

        return await self.database.read(work)
