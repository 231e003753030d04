"""What goes wrong in us and in the database: nothing is lost, and nobody else is held up."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from delivery_service.clock import DatabaseClock
from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.policy.sharing import Want
from delivery_service.settings import Settings
from delivery_service.store import endpoints, queue, settle
from tests.support.engine import START, Engined, running
from tests.support.postgres import Postgres
from tests.support.processes import Processes
from tests.support.receiver import HANG, Answer, Received, Receiver
from tests.support.waiting import wait_until_async
from tests.worker.conftest import MakeEngined

FAIL = Answer(500)


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


async def test_f22_a_delivery_that_kills_its_worker_ends_as_poison(
    engined: Engined, receiver: Receiver
) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    for number in (1, 2, 3):
        (claimed,) = claim(engined, endpoint)
        assert claimed.claims == number
        assert claim(engined, endpoint) == []
        engined.advance(seconds=60)
    (other,) = engined.publish().delivery_ids
    await engined.work()
    assert engined.status(delivery) == ("dead", "poison", 0)
    assert engined.attempts(delivery) == []
    assert engined.status(other) == ("delivered", None, 1)
    assert [r.header("webhook-id") for r in receiver.requests] == [other]
    # A person may try again, and it counts afresh.
    from delivery_service.store import deliveries

    with engined.begin() as connection:
        assert deliveries.redeliver(connection, [delivery], engined.now) == [delivery]
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)


async def test_f22_an_attempt_clears_the_claims(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"), schedule=",".join(["1m"] * 6))
    (delivery,) = engined.publish().delivery_ids
    for made in range(1, 7):
        for _ in range(2):
            claim(engined, endpoint)
            engined.advance(seconds=60)
        await engined.work()
        assert engined.status(delivery) == ("pending", None, made)
        engined.advance(minutes=1)


async def test_f22_suspects_are_tried_one_at_a_time(engined: Engined, receiver: Receiver) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    ids = [engined.publish().delivery_ids[0] for _ in range(4)]
    for _ in range(2):
        assert len(claim(engined, endpoint)) == 4
        engined.advance(seconds=60)
    at_once: list[int] = []

    async def answer(_request: Any) -> Outcome:
        await asyncio.sleep(0)
        with engined.look() as connection:
            rows = connection.execute(text("SELECT claims FROM surehook_queue")).scalars().all()
        at_once.append(rows.count(3))
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    for _ in range(8):
        await engined.work(Scripted(answer))
        engined.advance(seconds=1)
    assert at_once == [1, 1, 1, 1]
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}


@pytest.mark.parametrize("broken", ["secret", "profiles", "schedule", "headers", "url"])
async def test_f22_a_fault_of_one_endpoint_is_its_own(
    engined: Engined, receiver: Receiver, broken: str
) -> None:
    from sender.tables import endpoints as table
    from sender.tables import secrets

    good = engined.endpoint(receiver.url("/good"))
    bad = engined.endpoint(receiver.url("/bad"), schedule="1m")
    with engined.begin() as connection:
        if broken == "secret":
            connection.execute(
                secrets.update().where(secrets.c.endpoint_id == bad).values(ciphertext=b"junk")
            )
        else:
            value = {
                "profiles": ["no such"],
                "schedule": "soon",
                "headers": b"junk",
                "url": "http://[::1",
            }[broken]
            connection.execute(table.update().where(table.c.id == bad).values({broken: value}))
    published = [engined.publish() for _ in range(3)]
    for minutes in (1, 5, 30, 120, 360, 1):
        await engined.work()
        engined.advance(minutes=minutes)
    by_endpoint: dict[str, set[Any]] = {good: set(), bad: set()}
    for done in published:
        for id_ in done.delivery_ids:
            row = engined.delivery(id_)
            by_endpoint[row["endpoint_id"]].add((row["status"], row["reason"]))
            if row["endpoint_id"] == bad:
                kinds = {a["kind"] for a in engined.attempts(id_)}
                assert kinds == ({"blocked"} if broken == "url" else {"internal"})
                assert all(a["error"] for a in engined.attempts(id_))
    assert by_endpoint[good] == {("delivered", None)}
    assert by_endpoint[bad] == {("dead", "schedule_used_up")}
    # An endpoint is not to blame for our faults.
    assert engined.row(bad)["status"] == "enabled"
    assert len(receiver.requests) == 3


async def test_a_transport_that_raises_is_an_internal_failure(
    engined: Engined, receiver: Receiver
) -> None:
    async def answer(request: Any) -> Outcome:
        if "/bad" in request.url:
            raise RuntimeError("a fault\x00 of ours\ud800")
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    engined.endpoint(receiver.url("/good"))
    engined.endpoint(receiver.url("/bad"))
    published = engined.publish()
    await engined.work(Scripted(answer))
    got = {engined.attempts(id_)[0]["kind"] for id_ in published.delivery_ids}
    assert got == {"internal", "delivered"}


ODD: dict[str, dict[str, Any]] = {
    "nul": {"error": "a\x00b"},
    "surrogate": {"error": "a\ud800b"},
    "status": {"status_code": 2**70},
    "duration": {"duration": "long"},
    "headers": {"response_headers": object()},
    "body": {"response_body": "text"},
}


@pytest.mark.parametrize("kind", [OutcomeKind.DELIVERED, OutcomeKind.STATUS])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_f22_a_result_that_can_not_be_stored_holds_up_nobody(
    engined: Engined, receiver: Receiver, odd: dict[str, Any], kind: OutcomeKind
) -> None:
    async def answer(request: Any) -> Outcome:
        if "/bad" in request.url:
            return Outcome(kind, **{"status_code": 200, **odd})
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    endpoints_ = [engined.endpoint(receiver.url(f"/{name}")) for name in ("a", "bad", "c")]
    published = [engined.publish() for _ in range(3)]
    await asyncio.wait_for(engined.work(Scripted(answer)), 15)
    states: dict[str, Counter[str]] = {id_: Counter() for id_ in endpoints_}
    for done in published:
        for id_ in done.delivery_ids:
            row = engined.delivery(id_)
            states[row["endpoint_id"]][row["status"]] += 1
    assert states[endpoints_[0]] == states[endpoints_[2]] == {"delivered": 3}
    # Either stored without what was odd, or left to its lease; never lost.
    (_, bad, _) = endpoints_
    if kind is OutcomeKind.STATUS:
        assert states[bad] == {"pending": 3}
        assert len(engined.queued()) == 3


async def test_f17_a_late_result_changes_nothing_and_is_kept(
    engined: Engined, receiver: Receiver
) -> None:
    release = asyncio.Event()

    async def slow(_request: Any) -> Outcome:
        await release.wait()
        return Outcome(OutcomeKind.STATUS, status_code=410, response_body=b"too late")

    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    transport = Scripted(slow)
    first = asyncio.create_task(engined.worker(transport).run_until_idle())
    await wait_until_async(lambda: transport.sent)
    await engined.work()
    assert receiver.requests == []
    # The lease ends, another worker delivers, and then the first one comes back.
    engined.advance(seconds=60)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)
    before = engined.delivery(delivery)
    release.set()
    await first
    assert engined.delivery(delivery) == before
    kept = {(a["number"], a["late"], a["status_code"]) for a in engined.attempts(delivery)}
    assert kept == {(1, False, 200), (1, True, 410)}
    assert engined.row(endpoint)["status"] == "enabled"
    assert engined.queued() == []


@pytest.mark.parametrize("ended", ["retry", "dead"])
async def test_f14_f17_a_late_result_leaves_the_new_lease_alone(
    engined: Engined, receiver: Receiver, ended: str
) -> None:
    release = asyncio.Event()

    async def slow(_request: Any) -> Outcome:
        await release.wait()
        return Outcome(OutcomeKind.STATUS, status_code=500)

    endpoint = engined.endpoint(receiver.url("/"), schedule="1m" if ended == "retry" else "[]")
    (delivery,) = engined.publish().delivery_ids
    transport = Scripted(slow)
    first = asyncio.create_task(engined.worker(transport).run_until_idle())
    await wait_until_async(lambda: transport.sent)
    engined.advance(seconds=60)
    (claimed,) = claim(engined, endpoint)
    release.set()
    await first
    (row,) = engined.queued()
    assert (row["lease_token"], row["due_at"]) == (
        claimed.token,
        engined.now + timedelta(seconds=60),
    )
    assert engined.status(delivery) == ("pending", None, 0)
    assert [a["late"] for a in engined.attempts(delivery)] == [True]


async def test_f20_f21_a_waiting_delivery_is_one_row_without_a_lease(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL, Answer())
    engined.endpoint(receiver.url("/"), schedule="10h")
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    (row,) = engined.queued()
    assert (row["lease_token"], row["claims"], row["lane"]) == (None, 0, 1)
    assert row["due_at"] == START + timedelta(hours=10)
    # The lease (60 s) has no bearing on how long it waits, nor do restarts.
    for _ in range(9):
        engined.advance(hours=1)
        await engined.work()
    assert len(receiver.requests) == 1
    engined.advance(hours=1)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 2)


async def test_f11_the_count_of_attempts_is_in_the_row(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL)
    engined.endpoint(receiver.url("/"), schedule="1h,1h,1h")
    (delivery,) = engined.publish().delivery_ids
    for _ in range(8):
        await engined.work()
        engined.advance(hours=1)
    assert len(receiver.requests) == 4
    assert engined.status(delivery) == ("dead", "schedule_used_up", 4)


def test_f15_f18_the_lease_outlasts_an_attempt() -> None:
    with pytest.raises(ValueError, match="lease"):
        Settings(attempt_timeout=timedelta(seconds=15), lease=timedelta(seconds=19))
    defaults = Settings()
    assert defaults.lease >= defaults.attempt_timeout + timedelta(seconds=5)


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


async def test_leases_that_were_not_used_are_given_back_whole(
    engined: Engined, receiver: Receiver
) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    engined.publish()
    (before,) = engined.queued()
    (row,) = claim(engined, endpoint)
    lease = {"delivery_id": row.delivery_id, "token": row.token, "claims": row.claims, "delay": 0}
    with engined.begin() as connection:
        assert settle.give_back(connection, [lease], engined.now) == {row.delivery_id}
        assert settle.give_back(connection, [lease], engined.now) == set()
    assert engined.queued() == [before]


async def test_a_log_that_can_not_be_written_stops_no_worker(
    engined: Engined, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delivery_service.worker import loop

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(loop, "_log_attempt", full)
    engined.endpoint(receiver.url("/"), max_in_flight=1)
    ids = [engined.publish().delivery_ids[0] for _ in range(3)]
    await asyncio.wait_for(engined.work(), 15)
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}


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


async def test_a_second_worker_waits_for_the_lease_to_end(
    engined: Engined, receiver: Receiver
) -> None:
    """F14: what counts is the lease's time and token, not the name of the worker."""
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    (dead,) = claim(engined, endpoint)
    engined.advance(seconds=59.9)
    await engined.work()
    assert receiver.requests == []
    engined.advance(seconds=0.1)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)
    with engined.begin() as connection:
        lease = {"delivery_id": delivery, "token": dead.token}
        assert settle.remove(connection, [lease]) == set()
        assert endpoints.get(connection, endpoint) is not None
