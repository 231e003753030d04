"""The inbox on every database: stored at once, handled by a worker, retried, parked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from receiver.errors import ConfigurationError
from receiver.inbox import Inbox, InboxMessage
from receiver.inboxworker import InboxWorker
from receiver.testing import FakeClock
from tests.receiver.inboxing import make
from tests.receiver.stores.conftest import mariadb, store_url  # noqa: F401 - fixtures
from tests.receiver.stores.kinds import ASYNC_SQL, SYNC_SQL, statements_of, sync_engine
from tests.support.postgres import Postgres
from tests.support.processes import Processes

KINDS = (*SYNC_SQL, *ASYNC_SQL)
on_every_database = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Part:
    key: str
    fingerprint: str
    data: Any = None


@dataclass(frozen=True)
class Delivery:
    """What a verifier gives, as far as an inbox is concerned."""

    body: bytes
    parts: tuple[Part, ...]
    type: str | None = "invoice.paid"


def delivery(key: str, body: bytes = b"{}", kind: str | None = "invoice.paid") -> Delivery:
    return Delivery(body, (Part(key, hashlib.sha256(body).hexdigest()),), kind)


@pytest.fixture
async def inboxes(kind: str, store_url: str) -> AsyncIterator[Callable[..., Inbox]]:  # noqa: F811
    asynchronous = kind.endswith("async")
    engine: Any = create_async_engine(store_url) if asynchronous else sync_engine(store_url)
    await Inbox(engine).create_table()
    yield lambda **options: Inbox(engine, **options)
    disposed = engine.dispose()
    if asynchronous:
        await disposed


async def until(condition: Callable[[], object], deadline: float = 30.0) -> None:
    async with asyncio.timeout(deadline):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def working(inbox: Inbox, **options: Any) -> AsyncIterator[InboxWorker]:
    worker = InboxWorker(inbox, poll=0.05, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 30)


async def finished(inbox: Inbox) -> None:
    async with asyncio.timeout(30):
        while (await inbox.pending())[0]:  # noqa: ASYNC110 - another process may finish it
            await asyncio.sleep(0.01)


@on_every_database
async def test_stored_handled_once_with_exact_bytes(inboxes: Callable[..., Inbox]) -> None:
    inbox, seen = inboxes(), []
    inbox.handler("invoice.paid")(seen.append)
    body = b'{"n":1.0,"s":"\xc3\xa9 \x00"}'
    assert [added.outcome for added in await inbox.add(delivery("a", body))] == ["new"]
    assert [added.outcome for added in await inbox.add(delivery("a", body))] == ["duplicate"]
    assert [added.outcome for added in await inbox.add(delivery("a", b"{}"))] == ["mismatch"]
    assert (await inbox.pending())[0] == 1
    async with working(inbox):
        await finished(inbox)
    (message,) = seen
    assert (message.key, message.type, message.body) == ("a", "invoice.paid", body)
    assert message.attempt == 1
    assert message.received_at.utcoffset() is not None
    assert [added.outcome for added in await inbox.add(delivery("a", body))] == ["duplicate"]
    assert (await inbox.pending())[0] == 0


@on_every_database
async def test_several_messages_in_one_body(inboxes: Callable[..., Inbox]) -> None:
    inbox, seen = inboxes(), []
    inbox.handler("*")(seen.append)
    parts = tuple(Part(f"m{n}", str(n), {"n": n, "s": "é"}) for n in range(3))
    first = await inbox.add(Delivery(b"[]", parts[:2]))
    again = await inbox.add(Delivery(b"[]", parts))
    assert [added.outcome for added in first] == ["new", "new"]
    assert [added.outcome for added in again] == ["duplicate", "duplicate", "new"]
    async with working(inbox):
        await finished(inbox)
    assert sorted(message.json()["n"] for message in seen) == [0, 1, 2]


@on_every_database
async def test_fifty_additions_at_once_store_one(inboxes: Callable[..., Inbox]) -> None:
    inbox = inboxes()
    results = await asyncio.gather(*[inbox.add(delivery("a")) for _ in range(50)])
    outcomes = [added.outcome for (added,) in results]
    assert (outcomes.count("new"), outcomes.count("duplicate")) == (1, 49)


@on_every_database
async def test_escaped_surrogates_and_nul_are_stored_and_handled(
    inboxes: Callable[..., Inbox],
) -> None:
    """What JSON can escape, UTF-8 and PostgreSQL's text can't hold: never a 500 for ever."""
    inbox, seen = inboxes(), []
    inbox.handler("odd\x00\udc00")(seen.append)
    inbox.handler("*")(print)
    parts = tuple(Part(f"k{n}\x00\ud800", str(n), {"s": f"{n}\ud800\x00é"}) for n in range(2))
    for outcome in ("new", "duplicate"):
        added = await inbox.add(Delivery(b"[]", parts, "odd\x00\udc00"))
        assert [each.outcome for each in added] == [outcome] * 2
    await inbox.put("plain", b"{}", event_type="odd\x00\udc00")
    async with working(inbox):
        await finished(inbox)
    assert await inbox.dead_letters() == []
    texts = sorted(message.json()["s"] for message in seen if message.key != "plain")
    assert texts == ["0\ud800\x00é", "1\ud800\x00é"]
    assert len(seen) == 3


@on_every_database
async def test_a_late_worker_changes_nothing_about_its_successors_message(
    inboxes: Callable[..., Inbox],
) -> None:
    clock = FakeClock()
    inbox = inboxes(clock=clock)
    await inbox.put("a", b"")
    assert len(await _claim(inbox, "late")) == 1
    clock.advance(60)
    assert len(await _claim(inbox, "successor")) == 1
    late = {"key": "a", "token": "late", "delay": 0, "given_back": 0, "error": "x", "lease": 1}
    for change in ("complete", "retry", "park", "extend"):
        assert not await _change(inbox, change, late), f"{change} with a token that holds nothing"
        assert await _row(inbox, "a") == "successor", f"{change} took the message away"
        assert (await inbox.pending())[0] == 1, f"{change} ended the message"
    assert await _claim(inbox, "third") == [], "the successor's lease has been changed"
    assert await _change(inbox, "complete", {**late, "token": "successor"})
    assert (await inbox.pending())[0] == 0


async def _claim(inbox: Inbox, token: str) -> list[Any]:
    result = inbox.database.run(lambda c: inbox.sql.claim(c, token, 1, 60_000, inbox.now()))
    return await result if not inbox.database.blocking else result


async def _change(inbox: Inbox, name: str, values: dict[str, Any]) -> bool:
    given = {**values, "now": inbox.now()}
    result = inbox.database.run(lambda c: inbox.sql.change(c, name, given))
    return await result if not inbox.database.blocking else result


@on_every_database
async def test_several_workers_handle_each_once(inboxes: Callable[..., Inbox]) -> None:
    inbox, seen = inboxes(), []
    inbox.handler("*")(lambda message: seen.append(message.key))
    for number in range(60):
        await inbox.put(f"k{number}", b"")
    async with working(inbox, concurrency=5), working(inbox, concurrency=5), working(inbox):
        await finished(inbox)
    assert sorted(seen) == sorted(f"k{number}" for number in range(60))


@on_every_database
async def test_failure_backs_off_then_is_parked_and_revived(
    inboxes: Callable[..., Inbox],
) -> None:
    clock = FakeClock()
    inbox, attempts = inboxes(delays=[10, 20], clock=clock), []

    @inbox.handler("*")
    async def handle(message: InboxMessage) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 4:
            raise ValueError(f"no {message.attempt}")

    await inbox.put("a", b"")
    async with working(inbox):
        for number, delay in ((1, 10), (2, 20)):
            await until(lambda number=number: len(attempts) == number)
            await _released(inbox, "a")
            clock.advance(delay - 0.001)
            assert len(attempts) == number
            clock.advance(0.001)
        await until(lambda: len(attempts) == 3)
        await finished(inbox)
        (letter,) = await inbox.dead_letters()
        assert (letter.key, letter.failures, letter.error) == ("a", 3, "ValueError: no 3")
        assert await inbox.revive("a")
        await finished(inbox)
    assert attempts == [1, 2, 3, 1]
    assert await inbox.dead_letters() == []
    assert not await inbox.revive("a")


async def _released(inbox: Inbox, key: str) -> None:
    """Wait until the failure is recorded: the row has no token then."""
    async with asyncio.timeout(30):
        while await _row(inbox, key):  # noqa: ASYNC110 - it is in the database
            await asyncio.sleep(0.01)


async def _row(inbox: Inbox, key: str) -> str:
    def read(connection: Connection) -> str:
        query = text("SELECT token FROM surehook_inbox WHERE message_key = :key")
        return str(connection.execute(query, {"key": inbox.sql.key(key)}).scalar_one())

    result = inbox.database.run(read)
    return await result if not inbox.database.blocking else result


@on_every_database
async def test_type_without_a_handler_is_parked_with_the_reason(
    inboxes: Callable[..., Inbox],
) -> None:
    inbox = inboxes()
    inbox.handler("other")(print)
    await inbox.add(delivery("a"))
    async with working(inbox):
        await finished(inbox)
    (letter,) = await inbox.dead_letters()
    assert "no handler for event type 'invoice.paid'" in str(letter.error)


@on_every_database
async def test_transactional_handler_commits_with_the_completion(
    kind: str, inboxes: Callable[..., Inbox]
) -> None:
    inbox = inboxes(delays=[0, 0])
    insert, tries = text("INSERT INTO effects (n) VALUES (1)"), []

    if kind.endswith("async"):

        @inbox.handler("*", transactional=True)
        async def handle(message: InboxMessage, connection: AsyncConnection) -> None:
            await connection.execute(insert)
            _fail_once(tries)

    else:

        @inbox.handler("*", transactional=True)
        def handle_sync(message: InboxMessage, connection: Connection) -> None:
            connection.execute(insert)
            _fail_once(tries)

    await _do(inbox, "CREATE TABLE effects (n INTEGER)")
    await inbox.put("a", b"")
    async with working(inbox):
        await finished(inbox)
    assert len(tries) == 2
    assert await _do(inbox, "SELECT count(*) FROM effects") == 1


def _fail_once(tries: list[int]) -> None:
    tries.append(1)
    if len(tries) == 1:
        raise ValueError("after the effect")


async def _do(inbox: Inbox, statement: str) -> Any:
    def work(connection: Connection) -> Any:
        result = connection.execute(text(statement))
        return result.scalar() if result.returns_rows else None

    result = inbox.database.run(work)
    return await result if not inbox.database.blocking else result


@pytest.mark.parametrize(("way", "number"), [("plain", 2), ("transactional", 1)])
@pytest.mark.parametrize("kind", SYNC_SQL)
async def test_rows_of_a_killed_worker_are_taken_over(
    store_url: str,  # noqa: F811
    way: str,
    number: int,
    processes: Processes,
) -> None:
    """With SIGKILL, after the effect: exactly one in its transaction, two apart, never none."""
    inbox, worker = make(store_url, way, "work")
    await inbox.create_table()
    await _do(inbox, "CREATE TABLE effects (n INTEGER)")
    await inbox.put("a", b"")
    victim = processes.python("tests.receiver.inboxing", store_url, way, "hang")
    await asyncio.to_thread(victim.wait_for, "^reached$")
    victim.kill_alone()
    task = asyncio.create_task(worker.run())
    await finished(inbox)
    worker.stop()
    await task
    assert await _do(inbox, "SELECT count(*) FROM effects") == number
    assert await inbox.dead_letters() == []
    inbox.database.engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql_async"])
async def test_f22_message_that_kills_its_worker_is_parked(inboxes: Callable[..., Inbox]) -> None:
    clock = FakeClock()
    inbox = inboxes(delays=[0], lease=60, clock=clock)
    inbox.handler("*")(print)
    await inbox.put("a", b"")
    for _ in range(2):
        assert len(await _claim(inbox, "t" * 32)) == 1
        clock.advance(60)
    async with working(inbox):
        await finished(inbox)
    (letter,) = await inbox.dead_letters()
    assert "died" in str(letter.error)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql_async"])
async def test_f15_lease_is_renewed_while_a_handler_runs(inboxes: Callable[..., Inbox]) -> None:
    inbox, started, seen = inboxes(lease=0.6), asyncio.Event(), []

    @inbox.handler("*")
    async def handle(message: InboxMessage) -> None:
        seen.append(message.attempt)
        started.set()
        # Three leases long.
        await asyncio.sleep(1.8)

    await inbox.put("a", b"")
    async with working(inbox), working(inbox):
        await finished(inbox)
    assert seen == [1]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql_async"])
async def test_handler_whose_lease_was_lost_is_cancelled_and_not_recorded(
    inboxes: Callable[..., Inbox],
) -> None:
    inbox, cancelled, running = inboxes(lease=0.3), asyncio.Event(), asyncio.Event()

    @inbox.handler("*")
    async def handle(message: InboxMessage) -> None:
        running.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await inbox.put("a", b"")
    async with working(inbox, grace=0):
        await asyncio.wait_for(running.wait(), 30)
        await _do(inbox, "UPDATE surehook_inbox SET token = 'another', due_at = 99999999999999")
        await asyncio.wait_for(cancelled.wait(), 30)
    assert await _row(inbox, "a") == "another"
    assert (await inbox.pending())[0] == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql_async"])
async def test_stop_finishes_what_runs_and_gives_the_rest_back(
    inboxes: Callable[..., Inbox],
) -> None:
    inbox, release, seen = inboxes(lease=600), asyncio.Event(), []

    @inbox.handler("short", "long")
    async def handle(message: InboxMessage) -> None:
        seen.append(message.type)
        await (release.wait() if message.type == "short" else asyncio.sleep(3600))

    await inbox.put("a", b"", event_type="short")
    await inbox.put("b", b"", event_type="long")
    worker = InboxWorker(inbox, poll=0.05, grace=0.5)
    task = asyncio.create_task(worker.run())
    await until(lambda: len(seen) == 2)
    worker.stop()
    await inbox.put("c", b"", event_type="short")
    release.set()
    await asyncio.wait_for(task, 30)
    assert sorted(seen) == ["long", "short"], "nothing new was begun"
    assert (await inbox.pending())[0] == 2
    assert await _do(inbox, "SELECT sum(attempts) FROM surehook_inbox WHERE state='pending'") == 0
    assert await _row(inbox, "b") == ""


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_synchronous_handlers_run_beside_each_other(inboxes: Callable[..., Inbox]) -> None:
    inbox, barrier = inboxes(), threading.Barrier(3)
    inbox.handler("*")(lambda _: barrier.wait(30))
    for key in "abc":
        await inbox.put(key, b"")
    async with working(inbox, concurrency=3):
        await finished(inbox)
    assert await inbox.dead_letters() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql_async"])
async def test_an_addition_wakes_the_worker_at_once(inboxes: Callable[..., Inbox]) -> None:
    inbox, seen = inboxes(), []
    inbox.handler("*")(seen.append)
    worker = InboxWorker(inbox, poll=3600)
    task = asyncio.create_task(worker.run())
    for number in range(3):
        await inbox.put(f"k{number}", b"")
        await until(lambda number=number: len(seen) == number + 1)
    worker.stop()
    await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("kind", ["postgresql_async", "postgresql"])
async def test_worker_outlives_a_lost_database(
    kind: str,
    inboxes: Callable[..., Inbox],
    postgres: Postgres,
    store_url: str,  # noqa: F811
) -> None:
    inbox, seen = inboxes(), []
    inbox.handler("*")(seen.append)
    database = store_url.rpartition("/")[2]
    async with working(inbox):
        for number in range(3):
            with contextlib.suppress(SQLAlchemyError, OSError):
                await inbox.put(f"k{number}", b"")
            postgres.end_connections(database)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(SQLAlchemyError, OSError):
                    await inbox.put("last", b"")
                    break
        await until(lambda: "last" in {message.key for message in seen})


@on_every_database
async def test_purge_deletes_what_was_finished_longer_ago_than_the_ttl(
    inboxes: Callable[..., Inbox],
) -> None:
    clock = FakeClock()
    inbox = inboxes(ttl=100, clock=clock)
    inbox.handler("ok")(lambda _: None)
    await inbox.put("a", b"", event_type="ok")
    await inbox.put("parked", b"", event_type="unknown")
    async with working(inbox):
        await finished(inbox)
    clock.advance(99.999)
    assert await inbox.purge() == 0
    clock.advance(0.001)
    assert await inbox.purge() == 1
    assert [letter.key for letter in await inbox.dead_letters()] == ["parked"]


def test_storing_is_one_insert(tmp_path: Any) -> None:
    engine: Engine = create_engine(f"sqlite:///{tmp_path / 'inbox.sqlite3'}")
    inbox = Inbox(engine)
    inbox.create_table().run()
    seen = statements_of(engine)
    inbox.put("a", b"").run()
    assert [statement.split()[0] for statement in seen] == ["INSERT"]
    engine.dispose()


def test_settings_that_cannot_work_are_refused(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'inbox.sqlite3'}")
    inbox = Inbox(engine)
    inbox.handler("a")(print)
    for wrong in (
        lambda: inbox.handler("a")(print),
        inbox.handler,
        lambda: Inbox(engine, lease=0),
        lambda: Inbox(engine, ttl=0),
        lambda: Inbox(engine, delays=[-1]),
        lambda: Inbox(engine, sender="stripe"),
        lambda: InboxWorker(inbox, concurrency=0),
        lambda: InboxWorker(inbox, poll=0),
    ):
        with pytest.raises(ConfigurationError):
            wrong()
    engine.dispose()
