"""The jobs run, beside each other and whatever the clock does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import EVENT_SCHEDULER_SHUTDOWN
from apscheduler.schedulers import base as apscheduler_base
from sqlalchemy import Connection, select

from delivery_service.clock import DatabaseClock, ManualClock
from delivery_service.jobs.housekeeping import UNSEEN, Housekeeping
from delivery_service.metrics import Metrics, QueueState
from delivery_service.store import endpoints, operations, workers
from delivery_service.store.database import Database
from sender import tables
from tests.support.ports import free_port
from tests.support.receiver import Answer, Receiver
from tests.support.stored import Stored, open_service, settings_for
from tests.support.waiting import wait_until_async

SHORT = timedelta(milliseconds=50)


class Counting(Metrics):
    """Metrics that also count how often the gauges were refreshed."""

    refreshes = 0

    def queue_is(self, state: QueueState | None) -> None:
        super().queue_is(state)
        self.refreshes += 1


async def test_everything_is_done_soon_after_the_start(stored: Stored, clock: ManualClock) -> None:
    service = stored.service
    rotated = await stored.endpoint()
    await stored.publish(idempotency_key="k", tenant="nobody")
    published = await stored.publish()
    await stored.attempt(published.delivery_ids[0])
    await stored.database.write(
        endpoints.rotate_secret, rotated, b"new", timedelta(hours=1), stored.now
    )
    await stored.database.write(workers.seen, "wrk_1", "host", 1, stored.now)
    await stored.end(*published.delivery_ids)
    added = await stored.database.write(operations.add, "cancel", {}, now=stored.now)
    await stored.database.write(operations.cancel, added.id, stored.now)
    clock.advance(timedelta(days=8))
    await stored.database.write(workers.seen, "wrk_2", "host", 2, stored.now)

    async with service.housekeeping():
        await wait_until_async(lambda: service.metrics.removed["keys"])
        await wait_until_async(lambda: service.metrics.removed["secrets"])
        await wait_until_async(lambda: b"surehook_workers_seen 1.0" in service.metrics.render()[0])

        async def worker_ids() -> list[str]:
            return [row["id"] for row in await stored.database.read(workers.all_seen)]

        async def forgotten() -> bool:
            return await worker_ids() == ["wrk_2"]

        await wait_until_async(forgotten)
        assert await stored.count(tables.events) == 2, "not old enough yet"

    clock.advance(timedelta(days=83))
    async with service.housekeeping():

        async def removed() -> bool:
            left = [await stored.count(table) for table in (tables.events, tables.operations)]
            return left == [0, 0]

        await wait_until_async(removed)
    assert await stored.count(tables.attempts) == 0


async def test_a_worker_that_is_seen_is_never_forgotten(stored: Stored, clock: ManualClock) -> None:
    await stored.database.write(workers.seen, "wrk_1", "host", 1, stored.now)
    clock.advance(UNSEEN - timedelta(seconds=1))
    await stored.database.write(workers.forget_unseen, UNSEEN, stored.now)
    assert await stored.count(tables.workers) == 1


async def test_a_database_that_is_away_is_reported_and_comes_back(postgresql_url: str) -> None:
    metrics = Counting()
    async with open_service(postgresql_url) as service:
        away = settings_for(f"postgresql://postgres@127.0.0.1:{free_port()}/none")
        from delivery_service.store.database import open_database

        database = open_database(away)
        async with Housekeeping(away, database, DatabaseClock(), metrics, gauges_every=SHORT):
            await wait_until_async(lambda: metrics.refreshes >= 3)
            assert b"surehook_database_up 0.0" in metrics.render()[0]
        await database.close()

        async with Housekeeping(
            service.settings, service.database, DatabaseClock(), metrics, gauges_every=SHORT
        ):
            await wait_until_async(lambda: b"surehook_database_up 1.0" in metrics.render()[0])


async def test_stopping_ends_what_runs(stored: Stored) -> None:
    """Housekeeping that is stopped in the middle of a sweep leaves no task behind."""
    before = asyncio.all_tasks()
    async with stored.service.housekeeping():
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


class Held(Database):
    """A database whose pieces of work are held up until ``go``."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.engine)
        self.go = asyncio.Event()
        self.begun = self.ended = 0

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        return await self._hold(super().read(*args, **kwargs))

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        return await self._hold(super().write(*args, **kwargs))

    async def _hold(self, work: Coroutine[Any, Any, Any]) -> Any:
        self.begun += 1
        try:
            await self.go.wait()
            result = await work
        finally:
            work.close()
        self.ended += 1
        return result


async def test_what_is_under_way_is_let_end(stored: Stored, clock: ManualClock) -> None:
    """A job that is broken off while it connects would leave the connection behind."""
    held = Held(stored.database)
    settings = stored.service.settings
    async with Housekeeping(settings, held, clock, Metrics()) as housekeeping:
        housekeeping._scheduler.add_listener(lambda _: held.go.set(), EVENT_SCHEDULER_SHUTDOWN)
        await wait_until_async(lambda: held.begun >= 6)
        assert held.ended == 0
    assert held.ended >= 6


class Wall:
    """The wall clock of this machine, which can be set."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """Makes APScheduler go by a clock that the test can set."""
    wall = Wall()

    class Stepped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return wall.now().astimezone(tz)

    monkeypatch.setattr(apscheduler_base, "datetime", Stepped)
    return wall


@pytest.mark.parametrize("hours", [-1, 1])
async def test_f36_jobs_go_on_when_the_clock_is_set(
    sqlite_url: str, wall: Wall, hours: int
) -> None:
    metrics = Counting()
    async with (
        open_service(sqlite_url) as service,
        Housekeeping(
            service.settings,
            service.database,
            DatabaseClock(),
            metrics,
            gauges_every=SHORT,
            look_at_clock_every=SHORT,
            wall=wall.now,
        ),
    ):
        await wait_until_async(lambda: metrics.refreshes >= 2)
        wall.offset = timedelta(hours=hours)
        at = metrics.refreshes
        await wait_until_async(lambda: metrics.refreshes >= at + 3)


async def test_f36_a_clock_set_forward_does_not_run_what_it_skipped(
    sqlite_url: str, wall: Wall
) -> None:
    metrics = Counting()
    async with (
        open_service(sqlite_url) as service,
        Housekeeping(
            service.settings,
            service.database,
            DatabaseClock(),
            metrics,
            gauges_every=timedelta(minutes=10),
            look_at_clock_every=SHORT,
            wall=wall.now,
        ) as housekeeping,
    ):
        await wait_until_async(lambda: metrics.refreshes == 1)
        wall.offset = timedelta(hours=1)
        await wait_until_async(lambda: metrics.refreshes >= 2)
        job = housekeeping._scheduler.get_job("gauges")
        await wait_until_async(lambda: job.next_run_time > wall.now() + timedelta(minutes=5))
        assert metrics.refreshes <= 3, "six runs were skipped; they are not caught up one by one"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_f36_retries_run_once_when_the_database_clock_is_set(
    stored: Stored, clock: ManualClock, receiver: Receiver, hours: int
) -> None:
    """Set during back-off: late or early, but never lost and never doubled."""
    receiver.script("/a", Answer(500), Answer(200))
    await stored.endpoint(receiver.url("/a"), schedule="5m")
    await stored.publish()
    await stored.work()
    assert len(receiver.requests) == 1

    clock.advance(timedelta(hours=hours))
    await stored.work()
    assert len(receiver.requests) == (2 if hours > 0 else 1)

    clock.advance(timedelta(hours=-hours) + timedelta(minutes=5, seconds=1))
    await stored.work()
    clock.advance(timedelta(hours=1))
    await stored.work()
    assert len(receiver.requests) == 2
    (row,) = await _deliveries(stored)
    assert row["status"] == "delivered"
    assert row["attempts"] == 2


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host in a time zone with daylight saving time."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(datetime(2026, 3, 8, 6, 59, 30, tzinfo=UTC), id="an hour is left out"),
        pytest.param(datetime(2026, 11, 1, 5, 59, 30, tzinfo=UTC), id="an hour comes twice"),
    ],
)
async def test_f37_delays_are_right_across_a_change_of_daylight_saving_time(
    database_url: str, receiver: Receiver, new_york: None, before: datetime
) -> None:
    receiver.script("/a", Answer(500), Answer(200))
    clock = ManualClock(before)
    async with open_service(database_url, clock) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"), schedule="1m")
        await stored.publish()
        await stored.work()

        def due_at(connection: Connection) -> datetime:
            return connection.execute(select(tables.queue.c.due_at)).scalar_one()

        due = await service.database.read(due_at)
        assert due == before + timedelta(minutes=1)
        assert due.utcoffset() == timedelta()
        clock.advance(timedelta(seconds=59))
        await stored.work()
        assert len(receiver.requests) == 1
        clock.advance(timedelta(seconds=1))
        await stored.work()
        assert len(receiver.requests) == 2
        (row,) = await _deliveries(stored)
        assert row["created_at"] == before


async def test_f37_the_database_clock_is_utc_whatever_the_zone_of_the_host(
    database_url: str, new_york: None
) -> None:
    async with open_service(database_url) as service:
        stored = Stored(service)
        await stored.database.write(workers.seen, "wrk_1", "host", 1)
        ((row,),) = [await stored.database.read(workers.all_seen)]
        assert abs(row["seen_at"] - datetime.now(UTC)) < timedelta(minutes=5)


def test_f37_jobs_keep_their_interval_across_daylight_saving_time(new_york: None) -> None:
    housekeeping = Housekeeping(
        settings_for("sqlite://"),
        None,
        DatabaseClock(),
        Metrics(),  # type: ignore[arg-type]
    )
    housekeeping._add("gauges", lambda: asyncio.sleep(0))
    (job,) = housekeeping._scheduler.get_jobs()
    before = datetime(2026, 3, 8, 6, 59, 50, tzinfo=UTC)
    following = job.trigger.get_next_fire_time(before, before)
    assert following - before == timedelta(seconds=15)


async def _deliveries(stored: Stored) -> list[dict[str, Any]]:
    def work(connection: Connection) -> list[dict[str, Any]]:
        return [row._asdict() for row in connection.execute(select(tables.deliveries))]

    return await stored.database.read(work)
