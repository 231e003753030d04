"""The metrics of a process that has no API, over HTTP."""

from __future__ import annotations

import aiohttp
import pytest

from delivery_service.settings import SettingsError
from tests.metrics.scraped import Scraped
from tests.support.ports import HOST, free_port
from tests.support.stored import open_service


async def test_metrics_and_health_over_http(sqlite_url: str) -> None:
    async with (
        open_service(sqlite_url, metrics_port=0) as service,
        service.metrics_listener() as port,
        aiohttp.ClientSession(f"http://{HOST}:{port}") as session,
    ):
        async with session.get("/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert Scraped(await answer.text()).value("worker_up") == 0
        async with session.get("/healthz") as answer:
            assert await answer.json() == {"status": "ok"}
        async with session.get("/") as answer:
            assert answer.status == 404


async def test_each_process_has_a_port_of_its_own(sqlite_url: str) -> None:
    base = free_port()
    async with (
        open_service(sqlite_url, metrics_port=base) as service,
        service.metrics_listener(0) as first,
    ):
        assert first == base
        with pytest.raises(SettingsError, match=r"metrics_port.*can't listen"):
            async with service.metrics_listener(0):
                pass


async def test_without_a_port_nothing_listens(sqlite_url: str) -> None:
    async with open_service(sqlite_url) as service, service.metrics_listener() as port:
        assert port is None
