"""What the benchmarks share: a receiver, a database with fsync, workers in their own processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.request import urlopen

import psutil

from bench.target import address
from delivery_service.bootstrap import Service, build
from delivery_service.migrations import upgrade
from delivery_service.sealing import generate_encryption_key
from delivery_service.settings import Settings
from delivery_service.store import endpoints
from sender import NewEvent, publish_many
from tests.support.postgres import Postgres, running_postgres
from wire import generate_secret

DATA = {
    "invoice": {"number": "2026-000123", "currency": "EUR", "total": 12850, "paid": True},
    "customer": {"id": 82025227, "name": "Muñoz & Söhne", "email": "billing@customer.example"},
    "lines": [{"sku": f"A-{n}", "quantity": n, "price": 199 * n} for n in range(1, 6)],
}
"""The data of the benchmarks' events; their bodies have about 500 bytes."""

TENANT = "acme"


@dataclass
class Target:
    """The receiver process."""

    port: int
    process: subprocess.Popen[str]

    def url(self, number: int, path: str = "/ok") -> str:
        return f"http://{address(number)}:{self.port}{path}"

    def _get(self, path: str) -> dict[str, Any]:
        with urlopen(self.url(0, path), timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def reset(self) -> None:
        self._get("/reset")

    def stats(self) -> dict[str, Any]:
        return self._get("/stats")

    def details(self) -> dict[str, Any]:
        return self._get("/details")


@contextmanager
def running_target(addresses: int = 100) -> Iterator[Target]:
    """Start the receiver; end it on leaving."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.target", "--addresses", str(addresses)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Target(int(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()


@dataclass
class Rig:
    """A database with the service's tables, and ways to fill it and to work on it."""

    url: str
    folder: Path
    postgres: Postgres | None
    options: dict[str, str] = field(default_factory=dict)
    key: str = field(default_factory=generate_encryption_key)

    def settings(self) -> Settings:
        return Settings(
            database_url=self.url,
            encryption_keys=[self.key],
            allow_private_networks=True,
            log_level="warning",
            **self.options,
        )

    def environment(self) -> dict[str, str]:
        given = {
            "database_url": self.url,
            "encryption_keys": self.key,
            "allow_private_networks": "true",
            "log_level": "warning",
            **self.options,
        }
        named = {f"SUREHOOK_{name.upper()}": str(value) for name, value in given.items()}
        return {**os.environ, **named}

    def with_options(self, **options: Any) -> Self:
        self.options = {name: str(value) for name, value in options.items()}
        return self

    def run(self, work: Any, *args: Any) -> Any:
        """Run ``await work(service, …)`` in an event loop of its own."""

        async def inside() -> Any:
            service = build(self.settings())
            try:
                return await work(service, *args)
            finally:
                await service.close()

        return asyncio.run(inside())

    def add_endpoints(self, urls: list[str], tenant: str = TENANT) -> None:
        self.run(_add_endpoints, urls, tenant)

    def publish(self, count: int, tenant: str = TENANT) -> None:
        self.run(_publish, count, tenant)

    def pending(self) -> int:
        count: int = self.run(_pending)
        return count

    @contextmanager
    def workers(self, processes: int = 1) -> Iterator[psutil.Process]:
        """Run ``surehook worker``; gives its process. Stops it on leaving."""
        command = [sys.executable, "-m", "delivery_service.cli", "worker"]
        if processes > 1:
            command += ["--processes", str(processes)]
        process = subprocess.Popen(command, env=self.environment())
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)

    def database_processes(self) -> list[psutil.Process]:
        if self.postgres is None:
            return []
        main = psutil.Process(self.postgres.pid)
        return [main, *main.children(recursive=True)]


async def _add_endpoints(service: Service, urls: list[str], tenant: str) -> None:
    def work(connection: Any) -> None:
        for url in urls:
            values = {"tenant_id": tenant, "url": url, "event_types": None}
            endpoints.create(connection, values, service.sealer.seal(generate_secret()))

    await service.database.write(work)


async def _publish(service: Service, count: int, tenant: str) -> None:
    batch = 50
    for start in range(0, count, batch):
        events = [
            NewEvent(tenant=tenant, type="invoice.paid", data=DATA)
            for _ in range(min(batch, count - start))
        ]
        await service.database.write(publish_many, events)


async def _pending(service: Service) -> int:
    def work(connection: Any) -> int:
        count: int = connection.exec_driver_sql("SELECT count(*) FROM surehook_queue").scalar_one()
        return count

    return await service.database.read(work)


@contextmanager
def postgresql_rig() -> Iterator[Rig]:
    """A rig on a PostgreSQL server of its own, with fsync."""
    with TemporaryDirectory() as folder, running_postgres(fsync=True) as server:
        name = server.create_database()
        rig = Rig(server.url(name).replace("+asyncpg", ""), Path(folder), server)
        rig.run(_create)
        yield rig


@contextmanager
def sqlite_rig() -> Iterator[Rig]:
    """A rig on an SQLite file."""
    with TemporaryDirectory() as folder:
        rig = Rig(f"sqlite:///{folder}/surehook.sqlite3", Path(folder), None)
        rig.run(_create)
        yield rig


async def _create(service: Service) -> None:
    await upgrade(service.database)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time that living processes and their ended children have used."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def wait_for(condition: Any, limit: float, pause: float = 0.05) -> None:
    """Wait until ``condition()`` holds; raise after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not reached within {limit} s")
        time.sleep(pause)
