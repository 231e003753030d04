"""The database blocked, cut off, or under a wrong clock; starting and stopping."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from delivery_service.clock import DatabaseClock
from tests.support.engine import Engined, running
from tests.support.postgres import Postgres
from tests.support.processes import Processes
from tests.support.receiver import HANG, Answer, Received, Receiver
from tests.support.waiting import wait_until_async
from tests.worker.conftest import MakeEngined

FAIL = Answer(500)


async def test_f12_nothing_is_sent_before_the_commit(
    postgresql_tables: str, receiver: Receiver
) -> None:
    from sender import publish

    async with Engined(postgresql_tables) as engined:
        engined.endpoint(receiver.url("/"))
        with engined.engine.connect() as publisher:
            publish(publisher, tenant="acme", type="a.b", data=1, now=engined.now)
            await engined.work()
            assert receiver.requests == []
            publisher.commit()
        await engined.work()
        assert len(receiver.requests) == 1
        with engined.engine.connect() as publisher:
            publish(publisher, tenant="acme", type="a.b", data=1, now=engined.now)
            publisher.rollback()
        await engined.work()
        assert len(receiver.requests) == 1


PUBLISH_AND_EXIT = """
import os, sys
from sender import publish
from tests.support.tables import sync_engine
with sync_engine(sys.argv[1]).begin() as connection:
    publish(connection, tenant="acme", type="a.b", data="last words")
os._exit(0)
"""


async def test_f02_publish_then_exit_at_once_is_delivered_later(
    make_engined: MakeEngined, tables_url: str, receiver: Receiver, processes: Processes
) -> None:
    engined = make_engined(clock=DatabaseClock())
    engined.endpoint(receiver.url("/"))
    publisher = processes.start(sys.executable, "-c", PUBLISH_AND_EXIT, tables_url)
    assert publisher.wait() == 0
    assert receiver.requests == []
    async with running(engined.worker()):
        await wait_until_async(lambda: receiver.requests)
    assert receiver.requests[0].body.endswith(b'"last words"}')
    assert engined.queued() == []


async def test_f24_polling_finds_what_nobody_announced(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(clock=DatabaseClock())
    engined.endpoint(receiver.url("/"))
    worker = engined.worker()
    async with running(worker):
        for count in (1, 2, 3):
            await asyncio.to_thread(engined.publish)
            await wait_until_async(lambda count=count: len(receiver.requests) == count)


async def test_f10_no_connection_is_held_during_http(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(clock=DatabaseClock())
    receiver.script("/", HANG)
    engined.endpoint(receiver.url("/"))
    engined.publish()
    worker = engined.worker(shutdown_grace=timedelta(milliseconds=20))
    pool: Any = engined.service.database.engine.pool
    async with running(worker):
        await wait_until_async(lambda: receiver.requests and worker.in_flight == 1)
        await wait_until_async(lambda: pool.checkedout() == 0)
        if engined.engine.dialect.name == "postgresql":
            with engined.look() as connection:
                open_ = connection.scalar(
                    text(
                        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                        " AND datname = current_database() AND xact_start IS NOT NULL"
                        " AND state = 'idle in transaction'"
                    )
                )
            assert open_ == 0
        assert worker.in_flight == 1


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_f36_a_worker_whose_clock_is_wrong_does_no_harm(
    make_engined: MakeEngined,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    off: timedelta,
) -> None:
    true_time, true_ns = time.time, time.time_ns
    engined = make_engined(clock=DatabaseClock())
    receiver.script("/", FAIL, Answer())
    engined.endpoint(receiver.url("/"), schedule="1s")
    (delivery,) = engined.publish().delivery_ids
    seconds = off.total_seconds()
    monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + int(seconds * 1e9))
    async with running(engined.worker()):
        await wait_until_async(lambda: engined.status(delivery)[0] == "delivered")
    got = receiver.requests
    assert len(got) == 2
    assert got[1].at - got[0].at >= 0.9
    for request in got:
        assert abs(int(request.header("webhook-timestamp") or 0) - true_time()) < 60
    now = datetime.fromtimestamp(true_time(), UTC)
    for attempt in engined.attempts(delivery):
        assert abs(attempt["started_at"] - now) < timedelta(minutes=1)


async def test_f21_f24_connections_cut_during_a_drain(
    postgresql_tables: str, postgres: Postgres, receiver: Receiver
) -> None:
    async with Engined(postgresql_tables, clock=DatabaseClock(), concurrency=20) as engined:
        receiver.script("/", Answer(delay=0.01))
        for number in range(4):
            engined.endpoint(receiver.url("/"), description=str(number))
        ids = {id_ for _ in range(60) for id_ in engined.publish().delivery_ids}
        database = postgresql_tables.rpartition("/")[2]
        cut = 0
        async with running(engined.worker()):
            for received in (20, 80, 140):
                await wait_until_async(lambda n=received: len(receiver.requests) >= n)
                cut += await asyncio.to_thread(postgres.end_connections, database)
            await wait_until_async(lambda: not engined.queued() or _only_leased(engined))
        # What a cut commit left behind is due again when its lease ends.
        with engined.begin() as connection:
            connection.execute(text("UPDATE surehook_queue SET due_at = now()"))
        await engined.work()
        got = Counter(r.header("webhook-id") for r in receiver.requests)
        print(f"cut={cut} sent={len(ids)} received={len(got)} requests={got.total()}")
        assert cut > 0
        assert set(got) == ids
        assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}
        for id_ in ids:
            numbers = [a["number"] for a in engined.attempts(id_) if not a["late"]]
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) == engined.status(id_)[2]


def _only_leased(engined: Engined) -> bool:
    return all(row["lease_token"] is not None for row in engined.queued()) and not any(
        row["lease_token"] is None for row in engined.queued()
    )


async def test_the_database_is_blocked_after_the_answer(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    """The receiver said 200, and the database can't be written to for a while."""
    engined = make_engined(clock=DatabaseClock())
    blocked, release = threading.Event(), threading.Event()

    def block() -> None:
        with engined.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("LOCK TABLE surehook_queue, surehook_attempts"))
            else:
                connection.execute(text("SELECT 1"))  # BEGIN IMMEDIATE has locked the file
            blocked.set()
            release.wait(20)

    blocker = threading.Thread(target=block)

    def answer(_request: Received) -> Answer:
        blocker.start()
        blocked.wait(20)
        return Answer(200)

    receiver.script("/", answer, Answer(200))
    engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    worker = engined.worker()
    async with running(worker):
        await wait_until_async(lambda: worker._recorder.backlog == 1)
        assert len(receiver.requests) == 1
        release.set()
        await wait_until_async(lambda: worker._recorder.backlog == 0)
    blocker.join()
    assert engined.status(delivery) == ("delivered", None, 1)
    assert len(receiver.requests) == 1


async def test_f24_server_ends_a_transaction_whose_client_was_lost_in_a_statement(
    postgresql_tables: str,
) -> None:
    async with Engined(postgresql_tables, database_timeout=timedelta(milliseconds=200)) as engined:
        async with engined.service.database.engine.connect() as lost:
            raw = (await lost.get_raw_connection()).driver_connection
            assert raw is not None
            await raw.execute("BEGIN")
            await raw.execute("LOCK TABLE surehook_queue")
            # What to do with it never comes; the session counts as active all that time.
            await raw.prepare("SELECT 1")
            with engined.look() as connection:
                state = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
                pid = {"pid": raw.get_server_pid()}
                assert connection.scalar(state, pid) == "active"
            await wait_until_async(raw.is_closed)
            await lost.invalidate()
        assert engined.queued() == []


async def test_a_commit_whose_answer_was_lost_is_not_recorded_twice(
    engined: Engined, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    database = engined.service.database
    write, lost = database.write, []

    async def losing(work: Any, *args: Any, **kwargs: Any) -> Any:
        done = await write(work, *args, **kwargs)
        if work.__name__ == "record" and not lost:
            lost.append(True)
            raise OperationalError("COMMIT", {}, Exception("connection lost"))
        return done

    monkeypatch.setattr(database, "write", losing)
    await engined.work()
    assert lost
    assert engined.status(delivery) == ("pending", None, 1)
    assert len(engined.attempts(delivery)) == 1
    assert engined.row(endpoint)["failures"] == 1


async def test_stopping_finishes_what_is_in_flight(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(clock=DatabaseClock(), concurrency=10)
    receiver.script("/", Answer(delay=0.2))
    engined.endpoint(receiver.url("/"))
    for _ in range(30):
        engined.publish()
    async with running(engined.worker()):
        await asyncio.to_thread(receiver.wait_for, 1)
    sent = len(receiver.requests)
    assert sent <= 10
    rows = engined.queued()
    assert len(rows) == 30 - sent
    # Nothing is leased: another worker can go on at once, and nothing is sent twice.
    assert {row["lease_token"] for row in rows} == {None}
    receiver.script("/", Answer())
    async with running(engined.worker()):
        await wait_until_async(lambda: not engined.queued())
    got = Counter(r.header("webhook-id") for r in receiver.requests)
    assert (len(got), set(got.values())) == (30, {1})


async def test_stopping_gives_up_on_what_outlasts_the_grace(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(clock=DatabaseClock(), shutdown_grace=timedelta(milliseconds=50))
    receiver.script("/", HANG, Answer())
    engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    async with running(engined.worker()):
        await asyncio.to_thread(receiver.wait_for, 1)
    (attempt,) = engined.attempts(delivery)
    assert "shutdown_grace" in attempt["error"]
    assert attempt["may_have_arrived"]
    (row,) = engined.queued()
    assert row["lease_token"] is None


async def test_no_statement_of_a_worker_needs_session_state(
    postgresql_tables: str, receiver: Receiver
) -> None:
    """PgBouncer in transaction mode gives each transaction another connection."""
    from tests.support.tables import statements

    async with Engined(postgresql_tables, pgbouncer=True, circuit_open_after=1) as engined:
        receiver.script("/", FAIL, Answer())
        engined.endpoint(receiver.url("/"), rate_limit=1.0)
        sync = engined.service.database.engine.sync_engine
        with statements(sync) as seen:
            engined.publish()
            for _ in range(3):
                await engined.work()
                engined.advance(minutes=1)
        assert len(seen) > 10
        for statement in (s.upper().lstrip() for s in seen):
            assert statement.startswith(("SELECT", "WITH", "UPDATE", "INSERT", "DELETE")), statement
            assert "ADVISORY" not in statement
            assert " TEMP" not in statement
