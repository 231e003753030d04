"""A field to do damage in: a database, an HTTP receiver and worker processes, and the count of
what was published, what arrived, what arrived twice and what never did."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from delivery_service import migrations
from delivery_service.sealing import Sealer
from delivery_service.settings import Settings
from delivery_service.store import endpoints
from delivery_service.store.database import open_database
from sender import publish, tables
from tests.faults.forked import ForkedWorker
from tests.support.processes import Process, Processes
from tests.support.receiver import Receiver
from tests.support.stored import ENCRYPTION_KEY
from tests.support.tables import sync_engine
from tests.support.waiting import wait_until
from wire import generate_secret, verify

LONG = os.environ.get("SUREHOOK_LONG_FAULTS") == "1"

SETTINGS: dict[str, Any] = {
    "allow_private_networks": "true",
    "attempt_timeout": 1,
    "lease": 6,
    "poll_interval": 0.2,
    "schedule": "1s,1s,1s,1s,1s,1s,1s,1s,1s,1s",
    "circuit_open_after": 1_000_000,
    "concurrency": 40,
    "database_pool_size": 4,
    "database_timeout": 2,
    "shutdown_grace": 10,
    "log_level": "warning",
}


class Field:
    """Everything of one test. ``url`` is the database's, as the tests reach it."""

    def __init__(self, url: str, processes: Processes, receiver: Receiver, folder: Path) -> None:
        self.url = url
        self.log = folder / "workers.log"
        self.receiver = receiver
        self.secret = generate_secret()
        self.published: set[str] = set()
        self._forked: list[ForkedWorker] = []
        self._processes = processes
        self._engine = sync_engine(url, poolclass=None, pool_pre_ping=True)
        asyncio.run(self._migrate())

    @property
    def kind(self) -> str:
        return self._engine.dialect.name

    async def _migrate(self) -> None:
        database = open_database(self.settings())
        await migrations.upgrade(database)
        await database.close()

    def settings(self, **options: Any) -> Settings:
        return Settings(
            database_url=_plain(self.url), encryption_keys=[ENCRYPTION_KEY], **SETTINGS, **options
        )

    def close(self) -> None:
        for forked in self._forked:
            forked.kill()
        self._engine.dispose()

    # --- what happens ---

    def endpoints(self, *paths: str) -> None:
        """One endpoint at the receiver for each path."""
        self.endpoints_at(*(self.receiver.url(path) for path in paths))

    def endpoints_at(self, *urls: str) -> None:
        """One endpoint for each URL."""
        sealed = Sealer([ENCRYPTION_KEY]).seal(self.secret)
        with self._engine.begin() as connection:
            for url in urls:
                endpoints.create(connection, {"tenant_id": "acme", "url": url}, sealed)

    def publish(self, count: int, data: Any = None) -> list[str]:
        """Publish so many events, each in its own transaction; returns the delivery ids."""
        ids: list[str] = []
        for number in range(count):
            with Session(self._engine) as session, session.begin():
                done = publish(session, tenant="acme", type="invoice.paid", data=data or number)
            ids += done.delivery_ids
        self.published.update(ids)
        return ids

    def publishing(self, pause: float) -> Publishing:
        """Publish in the background, an event every ``pause`` seconds, until left."""
        return Publishing(self, pause)

    def worker(self, *faults: str, url: str | None = None, **settings: Any) -> ForkedWorker:
        """Start `surehook worker`, with the faults that `worker_program` knows."""
        forked = ForkedWorker([*faults, "worker"], self._environment(url, settings), self.log)
        self._forked.append(forked)
        return forked

    def fresh_worker(self, *faults: str, **settings: Any) -> Process:
        """The same as a program of its own: for faults that must be there before all imports."""
        module = "tests.faults.worker_program"
        environment = self._environment(None, settings)
        return self._processes.python(module, *faults, "worker", env=environment)

    def _environment(self, url: str | None, settings: dict[str, Any]) -> dict[str, str]:
        options = {
            **SETTINGS,
            "database_url": _plain(url or self.url),
            "encryption_keys": ENCRYPTION_KEY,
            **settings,
        }
        return {f"SUREHOOK_{name.upper()}": str(value) for name, value in options.items()}

    def lock(self) -> Lock:
        """A way to lock everybody else out of the database."""
        return Lock(self._engine.connect())

    # --- what became of it ---

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers have been seen."""
        wait_until(lambda: self._count(tables.workers) >= count, deadline=60, what="workers seen")

    def pending(self) -> int:
        return self._count(tables.queue)

    def wait_for_end(self, *, deadline: float = 60.0) -> None:
        """Wait until nothing is left to do."""
        wait_until(lambda: not self.pending(), deadline=deadline, what="the queue is empty")

    def statuses(self) -> Counter[tuple[str, str | None]]:
        table = tables.deliveries
        with self._engine.begin() as connection:
            return Counter((r.status, r.reason) for r in connection.execute(select(table)))

    def attempts(self) -> list[Any]:
        with self._engine.begin() as connection:
            return list(connection.execute(select(tables.attempts)))

    def report(self, what: str, *, duplicates: int | None = None) -> Counter[str]:
        """Print and check the count. ``duplicates``: how many there may be; None: any number,
        at-least-once being the promise. Returns how often each delivery arrived."""
        requests = self.receiver.requests
        arrived = Counter(r.header("webhook-id") or "?" for r in requests)
        lost = self.published - arrived.keys()
        duplicated = sum(arrived.values()) - len(arrived)
        print(
            f"{what} [{self.kind}]: sent {len(self.published)}, received {len(arrived)},"
            f" duplicated {duplicated}, lost {len(lost)}"
        )
        assert not lost
        assert not arrived.keys() - self.published
        assert duplicates is None or duplicated <= duplicates
        assert self.statuses() == {("delivered", None): len(self.published)}
        self._check_history()
        for request in requests:
            headers = [(name.decode(), value.decode()) for name, value in request.headers]
            verify(self.secret, headers, request.body)
        return arrived

    def _check_history(self) -> None:
        """Attempts that count are numbered from 1 without gaps; a delivery is delivered once."""
        numbers: dict[str, list[int]] = {}
        delivered: Counter[str] = Counter()
        for attempt in self.attempts():
            if not attempt.late:
                numbers.setdefault(attempt.delivery_id, []).append(attempt.number)
                delivered[attempt.delivery_id] += attempt.kind == "delivered"
        assert all(sorted(n) == list(range(1, len(n) + 1)) for n in numbers.values())
        assert delivered == dict.fromkeys(self.published, 1)

    def _count(self, table: Any) -> int:
        with self._engine.begin() as connection:
            return connection.scalar(select(func.count()).select_from(table)) or 0


class Publishing:
    """Publishes in a thread within its ``with`` block; goes on when the database is away."""

    def __init__(self, field: Field, pause: float) -> None:
        self._field = field
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            with suppress(DBAPIError):
                self._field.publish(1)


class Lock:
    """What a migration, a backup or a forgotten console does: a lock that nobody gets past."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def acquire(self) -> None:
        # On SQLite the transaction itself is the lock.
        self._connection.execute(select(tables.queue.c.delivery_id).limit(1))
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(text(f"LOCK TABLE {tables.queue.name}"))

    def hold(self, seconds: float) -> None:
        """Keep it for so long, then let go."""
        threading.Event().wait(seconds)
        self._connection.close()


def _plain(url: str) -> str:
    parsed = make_url(url)
    plain = parsed.set(drivername=parsed.get_backend_name())
    return plain.render_as_string(hide_password=False)


def through(port: int, url: str) -> str:
    """The database's URL by way of another port: a proxy's."""
    return make_url(url).set(port=port).render_as_string(hide_password=False)


def database_port(url: str) -> int:
    port = make_url(url).port
    assert port is not None
    return port


def paths(count: int) -> Sequence[str]:
    return [f"/hook/{number}" for number in range(count)]
