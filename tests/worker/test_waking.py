"""Workers hear from other processes that something is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from delivery_service.clock import DatabaseClock
from delivery_service.embedding import Embedded
from delivery_service.store import keys, waking
from delivery_service.store.waking import announcer, can_notify, listen
from sender import publish
from sender.waking import poke_workers
from tests.support.engine import Engined, running, settings_for
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until_async
from tests.worker.conftest import MakeEngined

LISTENING = text(
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'"
)


def listeners(engined: Engined) -> list[int]:
    """Process ids of connections that listen."""
    with engined.look() as connection:
        return list(connection.scalars(LISTENING))


class Heard:
    """Counts notifications."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    async def more_than(self, count: int) -> None:
        await wait_until_async(lambda: self.count > count)


@asynccontextmanager
async def listening(engined: Engined) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(listen(engined.service.database, heard))
    await heard.more_than(0)  # it looks once as soon as it listens
    yield heard
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def engined(postgresql_tables: str) -> AsyncIterator[Engined]:
    async with Engined(postgresql_tables, clock=DatabaseClock()) as engined:
        yield engined


async def test_a_poke_after_the_commit_is_heard(engined: Engined) -> None:
    async with listening(engined) as heard:
        with Session(engined.engine) as session, session.begin():
            poke_workers(session)
        await heard.more_than(1)
        with engined.begin() as connection:
            poke_workers(connection)
        await heard.more_than(2)


async def test_the_api_tells_workers_of_other_processes(engined: Engined) -> None:
    engined.endpoint("https://h.example/")
    with engined.begin() as connection:
        token = keys.create(connection, name="t", scope="admin").key
    transport = httpx.ASGITransport(engined.service.api())
    async with (
        listening(engined) as heard,
        httpx.AsyncClient(transport=transport, base_url="http://api") as client,
    ):
        for published in (1, 2):
            answer = await client.post(
                "/v1/events",
                json={"tenant": "acme", "type": "a.b", "data": 1},
                headers={"authorization": f"Bearer {token}"},
            )
            assert answer.status_code == 202
            await heard.more_than(published)


async def test_an_application_without_a_worker_tells_those_elsewhere(postgresql_url: str) -> None:
    elsewhere = Engined(postgresql_url)
    embedded = Embedded(elsewhere.settings, worker=False, migrate=True)
    async with elsewhere, listening(elsewhere) as heard, embedded.lifespan():
        await asyncio.to_thread(embedded.poke)
        await heard.more_than(1)


async def test_many_commits_share_a_notification(engined: Engined) -> None:
    announce = announcer(engined.service.database)
    async with listening(engined) as heard:
        for _ in range(100):
            announce()
        await heard.more_than(1)
        announce()
        await heard.more_than(2)
        assert heard.count == 3
    await announce.close()


async def test_what_was_published_last_is_announced_before_the_process_ends(
    engined: Engined,
) -> None:
    announce = announcer(engined.service.database)
    async with listening(engined) as heard:
        announce()
        await announce.close()
        await heard.more_than(1)


async def test_a_listener_that_was_cut_off_connects_again(
    engined: Engined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "FIRST_PAUSE", 0.01)
    async with listening(engined) as heard:
        with engined.begin() as connection:
            (pid,) = listeners(engined)
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        await heard.more_than(1)  # it looks again, for what it may have missed
        with engined.begin() as connection:
            poke_workers(connection)
        await heard.more_than(2)


async def test_a_listener_whose_connection_says_nothing_any_more_connects_again(
    engined: Engined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waking, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(waking, "PING_SECONDS", 0.01)
    monkeypatch.setattr(waking, "PING_TIMEOUT", 0.0)
    async with listening(engined) as heard:
        await heard.more_than(3)


async def test_a_listener_takes_no_place_of_the_pool(postgresql_tables: str) -> None:
    async with (
        Engined(postgresql_tables, database_pool_size=2) as engined,
        listening(engined) as heard,
        engined.service.database.engine.begin() as other,
        engined.service.database.engine.begin() as connection,
    ):
        await other.execute(text("SELECT 1"))
        await connection.run_sync(poke_workers)
        await connection.commit()
        await heard.more_than(1)


async def test_a_worker_looks_when_it_is_told(postgresql_tables: str, receiver: Receiver) -> None:
    options = {"clock": DatabaseClock(), "poll_interval": timedelta(hours=1)}
    async with Engined(postgresql_tables, **options) as engined:
        engined.endpoint(receiver.url("/"))
        async with running(engined.worker()):
            await wait_until_async(lambda: listeners(engined))
            for count in range(1, 4):
                engined.publish(now=None)
                with engined.begin() as connection:
                    poke_workers(connection)
                await wait_until_async(lambda count=count: len(receiver.requests) == count)


async def test_nobody_listens_where_nothing_is_heard(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    quiet = make_engined(notify=False)
    assert quiet.service.announcer is None
    quiet.endpoint(receiver.url("/"))
    with quiet.begin() as connection:
        publish(connection, tenant="acme", type="a.b", data=1, now=quiet.now)
        poke_workers(connection)
    async with running(quiet.worker()):
        await wait_until_async(lambda: len(receiver.requests) == 1)
        if quiet.engine.dialect.name == "postgresql":
            assert listeners(quiet) == []


def test_what_can_notify() -> None:
    url = "postgresql://h/d"
    assert can_notify(settings_for(url))
    assert not can_notify(settings_for(url, notify=False))
    assert not can_notify(settings_for(url, pgbouncer=True))
    assert not can_notify(settings_for("sqlite:///x"))
