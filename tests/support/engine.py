"""The engine in one process: a worker with a clock that tests move, on a real database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from sqlalchemy import Connection, Engine, select

from delivery_service.bootstrap import Service, build
from delivery_service.clock import Clock, ManualClock
from delivery_service.net.transport import Transport
from delivery_service.policy.outcome import Outcome
from delivery_service.policy.sharing import Want
from delivery_service.sealing import generate_encryption_key
from delivery_service.settings import Settings
from delivery_service.store import attempts as attempt_store
from delivery_service.store import deliveries, endpoints, queue
from delivery_service.worker.loop import Worker
from sender import Published, publish
from sender import tables as t
from sender.sqlite import READ_ONLY
from tests.support.tables import sync_engine
from wire.secrets import generate_secret

START = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)
KEY = generate_encryption_key()


def settings_for(url: str, **options: Any) -> Settings:
    """Settings for a test: loopback receivers, a key, quick polling."""
    given = {
        "database_url": url,
        "encryption_keys": [KEY],
        "allow_private_networks": True,
        "poll_interval": timedelta(milliseconds=50),
        "log_level": "error",
        **options,
    }
    return Settings(**given)


class Engined:
    """A service on one database, and what tests ask about it. Times are the clock's."""

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        self.clock: Any = clock or ManualClock(START)
        self.settings = settings_for(url, **options)
        self.service: Service = build(self.settings, self.clock)
        self.engine: Engine = sync_engine(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.service.close()
        self.engine.dispose()

    @property
    def now(self) -> datetime | None:
        moment: datetime | None = self.clock.now()
        return moment

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction of somebody else."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def look(self) -> Iterator[Connection]:
        """A read that waits for nobody, even where a worker writes in this event loop."""
        with self.engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            yield connection

    def endpoint(self, url: str, *, secret: str | None = None, **values: Any) -> str:
        """Create an endpoint of tenant ``acme``; the values are columns."""
        sealed = self.service.sealer.seal(secret or str(generate_secret()))
        row = {"tenant_id": "acme", "url": url, **values}
        with self.begin() as connection:
            return endpoints.create(connection, row, sealed, self.now)

    def publish(self, data: Any = 1, **event: Any) -> Published:
        """Publish for tenant ``acme`` and commit."""
        if "body" not in event:
            event["data"] = data
        with self.begin() as connection:
            return publish(
                connection, **{"tenant": "acme", "type": "a.b", "now": self.now, **event}
            )

    def delivery(self, delivery_id: str) -> dict[str, Any]:
        with self.look() as connection:
            found = deliveries.get(connection, delivery_id)
        assert found is not None
        return found

    def status(self, delivery_id: str) -> tuple[str, str | None, int]:
        """Status, reason and number of attempts."""
        row = self.delivery(delivery_id)
        return row["status"], row["reason"], row["attempts"]

    def attempts(self, delivery_id: str) -> list[dict[str, Any]]:
        with self.look() as connection:
            return attempt_store.of_delivery(connection, delivery_id)

    def row(self, endpoint_id: str) -> dict[str, Any]:
        """The endpoint's row, deleted or not."""
        with self.look() as connection:
            return endpoints.rows(connection, [endpoint_id])[0]

    def queued(self) -> list[dict[str, Any]]:
        with self.look() as connection:
            found = connection.execute(select(t.queue).order_by(t.queue.c.due_at))
            return [row._asdict() for row in found]

    def worker(self, transport: Transport | None = None, **options: Any) -> Worker:
        """A fresh worker, as after a restart: nothing is remembered but the database."""
        settings = self.settings.model_copy(update=options)
        return replace(self.service, settings=settings).worker(transport)

    async def work(self, transport: Transport | None = None, **options: Any) -> None:
        """Let a fresh worker do all that is due now."""
        worker = self.worker(transport, **options)
        try:
            await worker.run_until_idle()
        finally:
            await worker._sending.transport.close()

    def advance(self, **by: float) -> None:
        self.clock.advance(timedelta(**by))


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """Workers that run, and are stopped in the end."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)


class Scripted:
    """A transport whose outcomes a test decides."""

    def __init__(self, answer: Callable[[Any], Awaitable[Outcome]]) -> None:
        self.answer = answer
        self.sent: list[str] = []

    async def send(self, request: Any, deadline: float) -> Outcome:
        self.sent.append(request.headers["webhook-id"])
        return await self.answer(request)

    async def close(self) -> None:
        pass


def claim(engined: Engined, endpoint: str, lease: float = 60.0) -> list[queue.Claimed]:
    """Claim as a worker does that dies afterwards."""
    wants = [Want(endpoint, lane, 10) for lane in (0, 1)]
    with engined.begin() as connection:
        return queue.claim(
            connection, wants, f"lease_{time.time_ns()}", timedelta(seconds=lease), engined.now
        )
