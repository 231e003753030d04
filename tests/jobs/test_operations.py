"""Bulk operations and broadcasts, batch by batch, on both databases."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, select

from delivery_service.clock import ManualClock
from delivery_service.jobs import operations as jobs
from delivery_service.jobs.operations import OperationRunner
from delivery_service.store import bulk, deliveries, endpoints, events, operations
from delivery_service.store.bulk import Filter
from sender import tables
from sender.errors import PublishError
from tests.support.stored import Stored, open_service
from tests.support.waiting import wait_until_async
from wire import ids

FAST = {"bulk_rate": 100_000}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(jobs, "AWAY_PAUSE", 0.01)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three, so that a handful of rows takes several."""
    monkeypatch.setattr(jobs, "BATCH", 3)
    monkeypatch.setattr(jobs, "SQLITE_BATCH", 3)
    monkeypatch.setattr(jobs, "TENANTS", 3)


def runner(stored: Stored, **settings: Any) -> OperationRunner:
    service = stored.service
    chosen = service.settings.model_copy(update={**FAST, **settings})
    return OperationRunner(chosen, service.database, service.clock)


async def start(stored: Stored, kind: str, data: bytes | None = None, **where: Any) -> str:
    now = stored.now
    assert now is not None
    given = (
        where
        if kind == bulk.BROADCAST
        else Filter(**{"since": now - timedelta(hours=1), **where}).to_json()
    )
    return (await stored.database.write(operations.add, kind, given, data, now)).id


async def read(stored: Stored, operation_id: str) -> dict[str, Any]:
    row = await stored.database.read(operations.get, operation_id)
    assert row is not None
    return row


async def carry_out(stored: Stored, kind: str, **where: Any) -> dict[str, Any]:
    operation_id = await start(stored, kind, **where)
    assert await runner(stored).run_next()
    row = await read(stored, operation_id)
    assert row["status"] == "done"
    assert row["ended_at"] is not None
    assert row["matched"] == row["done"] + sum(row["passed_over"].values())
    return row


async def statuses(stored: Stored) -> dict[str, str]:
    def work(connection: Connection) -> dict[str, str]:
        return {row.id: row.status for row in connection.execute(select(tables.deliveries))}

    return await stored.database.read(work)


async def queued(stored: Stored) -> list[Any]:
    def work(connection: Connection) -> list[Any]:
        query = select(tables.queue).order_by(tables.queue.c.due_at)
        return list(connection.execute(query))

    return await stored.database.read(work)


async def published(stored: Stored, count: int, **event: Any) -> list[str]:
    return [(await stored.publish(data=n, **event)).delivery_ids[0] for n in range(count)]


async def one_of_each(stored: Stored) -> dict[str, str]:
    """A delivery in each state, by state."""
    states = ("pending", "delivered", "dead", "skipped", "cancelled")
    ids = dict(zip(states, await published(stored, len(states)), strict=True))
    for state in states[1:]:
        await stored.end(ids[state], status=state)
    return ids


@pytest.mark.parametrize(
    ("kind", "where", "changed", "passed_over"),
    [
        ("recover", {}, {"dead", "skipped"}, {"cancelled": 1}),
        ("recover", {"status": "dead"}, {"dead"}, {}),
        ("recover", {"status": "skipped"}, {"skipped"}, {}),
        ("recover", {"status": "cancelled"}, {"cancelled"}, {}),
        ("replay", {}, {"delivered", "dead", "skipped"}, {"cancelled": 1}),
        ("replay", {"status": "delivered"}, {"delivered"}, {}),
        ("cancel", {}, {"pending"}, {}),
    ],
)
async def test_f07_each_kind_from_each_state(
    stored: Stored, kind: str, where: dict[str, Any], changed: set[str], passed_over: dict[str, int]
) -> None:
    await stored.endpoint()
    ids = await one_of_each(stored)
    before = await statuses(stored)
    row = await carry_out(stored, kind, **where)
    after = await statuses(stored)
    new = "cancelled" if kind == "cancel" else "pending"
    assert after == {**before, **{ids[state]: new for state in changed}}
    assert row["done"] == len(changed)
    assert row["passed_over"] == passed_over
    pending = {id_ for id_, status in after.items() if status == "pending"}
    rows = await queued(stored)
    assert {each.delivery_id for each in rows} == pending
    lanes = {each.delivery_id: each.lane for each in rows}
    revived = {ids[state] for state in changed} & pending
    assert {lanes[id_] for id_ in revived} <= {1}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, {"a", "b", "c", "d"}),
        ({"tenant": "acme"}, {"a", "b", "c"}),
        ({"event_type": "invoice.void"}, {"c"}),
        ({"endpoint": "second"}, {"d"}),
        ({"endpoint": "second", "tenant": "acme"}, set()),
        ({"tenant": "nobody"}, set()),
        ({"since": timedelta(minutes=-15)}, {"b", "c", "d"}),
        ({"until": timedelta(minutes=-15)}, {"a"}),
    ],
)
async def test_filters(
    stored: Stored, clock: ManualClock, where: dict[str, Any], expected: set[str]
) -> None:
    await stored.endpoint()
    second = await stored.endpoint(tenant="globex")
    names: dict[str, str] = {}

    async def dead(name: str, **event: Any) -> None:
        names[name] = (await stored.publish(**event)).delivery_ids[0]
        await stored.end(names[name], status="dead")

    await dead("a")
    clock.advance(timedelta(minutes=20))
    await dead("b")
    await dead("c", type="invoice.void")
    await dead("d", tenant="globex")
    clock.advance(timedelta(minutes=10))
    given = {
        name: clock.moment + value if isinstance(value, timedelta) else value
        for name, value in where.items()
    }
    if "endpoint" in given:
        given["endpoint"] = second
    settings = stored.service.settings
    counted = await bulk.count(
        stored.database.read,
        "recover",
        Filter(**{"since": clock.moment - timedelta(hours=1), **given}),
        settings.replay_window,
        clock.moment,
    )
    assert counted == (len(expected), Counter())
    row = await carry_out(stored, "recover", **given)
    assert row["done"] == len(expected)
    found = await statuses(stored)
    assert {n for n, id_ in names.items() if found[id_] == "pending"} == expected


async def test_what_cannot_be_redelivered_is_counted_by_reason(
    stored: Stored, clock: ManualClock
) -> None:
    old = await stored.endpoint()
    (late,) = await published(stored, 1)
    await stored.end(late, status="dead")
    clock.advance(stored.service.settings.replay_window + timedelta(hours=1))
    await stored.database.write(endpoints.remove, old, clock.moment)
    gone, disabled, fine = [await stored.endpoint(event_types=[f"x.{n}"]) for n in range(3)]
    ids = {n: await published(stored, 2, type=f"x.{n}") for n in range(3)}
    for some in ids.values():
        await stored.end(*some, status="dead")
    await stored.database.write(endpoints.remove, gone, clock.moment)
    await stored.database.write(endpoints.disable, disabled, "operator", clock.moment)
    erased = await stored.publish(type="x.2")
    await stored.end(*erased.delivery_ids, status="dead")
    assert await stored.database.write(events.delete_body, erased.event_id, clock.moment)
    since = clock.moment - timedelta(days=30)
    expected = Counter(
        replay_window_over=1, endpoint_deleted=2, endpoint_disabled=2, body_deleted=1
    )
    counted = await bulk.count(
        stored.database.read,
        "recover",
        Filter(since=since),
        stored.service.settings.replay_window,
        clock.moment,
    )
    assert counted == (2, expected)
    row = await carry_out(stored, "recover", since=since)
    assert row["done"] == 2
    assert row["passed_over"] == expected
    assert {each.delivery_id for each in await queued(stored)} == set(ids[2])
    assert fine


async def test_f25_windows_are_bounded_and_a_dry_run_counts_exactly(
    stored: Stored, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "COUNT_WINDOW", 4)
    await stored.endpoint()
    ids = await published(stored, 10) + await published(stored, 1, type="rare.one")
    await stored.end(*ids, status="dead")
    seen: list[int] = []

    async def read(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = await stored.database.read(work, *args, **kwargs)
        if isinstance(found, bulk.Judged):
            seen.append(len(found.ids))
        return found

    where = Filter(since=clock.moment - timedelta(hours=1), event_type="rare.one")
    window = stored.service.settings.replay_window
    assert await bulk.count(read, "recover", where, window, clock.moment) == (1, Counter())
    assert seen == [0, 0, 1]
    assert set((await statuses(stored)).values()) == {"dead"}


@pytest.mark.usefixtures("small")
async def test_what_comes_later_is_left_alone(stored: Stored, clock: ManualClock) -> None:
    await stored.endpoint()
    early = await published(stored, 4)
    operation_id = await start(stored, "cancel")
    clock.advance(timedelta(seconds=1))
    late = await published(stored, 4)
    assert await runner(stored).run_next()
    assert (await read(stored, operation_id))["done"] == 4
    found = await statuses(stored)
    assert {found[id_] for id_ in early} == {"cancelled"}
    assert {found[id_] for id_ in late} == {"pending"}


class Killed(BaseException):
    """What a SIGKILL looks like from inside: nothing is caught, nothing is committed."""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["recover", "cancel", "broadcast"])
@pytest.mark.parametrize("when", ["before the commit", "after the commit"])
async def test_killed_in_the_middle_another_goes_on_and_nothing_is_done_twice(
    stored: Stored, clock: ManualClock, kind: str, when: str
) -> None:
    made: list[str] = []
    for number in range(10):
        await stored.endpoint(tenant=f"t{number}")
        if kind != "broadcast":
            made += (await stored.publish(tenant=f"t{number}")).delivery_ids
    if kind == "recover":
        await stored.end(*made, status="dead")
    if kind == "broadcast":
        operation_id = await start(stored, kind, b'{"n": 1.10}', type="news.flash")
    else:
        operation_id = await start(stored, kind)
    killed = runner(stored)
    work, batches = killed._batch, 0

    def batch(connection: Connection, id_: str, now: Any) -> Any:
        nonlocal batches
        batches += 1
        if when == "after the commit" and batches == 3:
            raise Killed
        done = work(connection, id_, now)
        if when == "before the commit" and batches == 2:
            raise Killed
        return done

    killed._batch = batch  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await killed.run_next()
    row = await read(stored, operation_id)
    assert row["status"] == "running"
    assert row["done"] == (3 if when == "before the commit" else 6)
    assert not await runner(stored).run_next()  # its lease has not ended
    clock.advance(stored.service.settings.lease)
    assert await runner(stored).run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["done"], row["matched"]) == ("done", 10, 10)
    assert row["passed_over"] == {}
    rows = Counter(each.delivery_id for each in await queued(stored))
    if kind == "cancel":
        assert rows == {}
    elif kind == "recover":
        assert rows == dict.fromkeys(made, 1)
    else:
        assert await stored.count(tables.events) == 10
        assert rows == dict.fromkeys(await statuses(stored), 1)
    # The one that was taken for dead comes back late, and does nothing.
    killed._batch = work  # type: ignore[method-assign]
    assert await stored.database.write(killed._batch, operation_id, clock.moment) is None


@pytest.mark.usefixtures("small")
async def test_a_late_runner_whose_lease_was_taken_does_nothing(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    ids = await published(stored, 5)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    first, second = runner(stored), runner(stored)
    lease = stored.service.settings.lease
    claim = (operations.claim, operation_id, first._token, lease, clock.moment)
    assert await stored.database.write(*claim)
    assert not await stored.database.write(
        operations.claim, operation_id, second._token, lease, clock.moment
    )
    clock.advance(lease)
    assert await stored.database.write(
        operations.claim, operation_id, second._token, lease, clock.moment
    )
    assert await stored.database.write(first._batch, operation_id, clock.moment) is None
    await stored.database.write(operations.release, operation_id, first._token)
    await stored.database.write(operations.fail, operation_id, first._token, "x", clock.moment)
    row = await read(stored, operation_id)
    assert (row["status"], row["lease_token"], row["done"]) == ("running", second._token, 0)


@pytest.mark.usefixtures("small")
async def test_cancelled_after_the_batch_under_way(stored: Stored, clock: ManualClock) -> None:
    await stored.endpoint()
    ids = await published(stored, 10)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    running = runner(stored)
    work = running._batch

    def batch(connection: Connection, id_: str, now: Any) -> Any:
        done = work(connection, id_, now)
        if done is not None:
            operations.cancel(connection, id_, now)
        return done

    running._batch = batch  # type: ignore[method-assign]
    assert await running.run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["done"]) == ("cancelled", 3)
    assert not await runner(stored).run_next()
    assert await stored.database.write(operations.cancel, operation_id, clock.moment) is False


@pytest.mark.usefixtures("small")
async def test_stopped_in_the_middle_another_goes_on_at_once(stored: Stored) -> None:
    await stored.endpoint()
    ids = await published(stored, 10)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    first = runner(stored)
    work = first._batch

    def batch(connection: Connection, id_: str, now: Any) -> Any:
        first.stop()
        return work(connection, id_, now)

    first._batch = batch  # type: ignore[method-assign]
    await first.run()
    assert (await read(stored, operation_id))["status"] == "queued"
    assert await runner(stored).run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["done"]) == ("done", 10)


async def test_fails_with_a_reason_and_without_the_values(stored: Stored) -> None:
    await stored.endpoint()
    operation_id = await start(stored, "recover")
    broken = runner(stored)

    def batch(connection: Connection, id_: str, now: Any) -> Any:
        raise PublishError("that can't be")

    broken._batch = batch  # type: ignore[method-assign]
    assert await broken.run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["error"]) == ("failed", "that can't be")

    tries = 0

    def bug(connection: Connection, id_: str, now: Any) -> Any:
        nonlocal tries
        tries += 1
        raise ValueError("s3cret")

    operation_id = await start(stored, "recover")
    broken._batch = bug  # type: ignore[method-assign]
    assert await broken.run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["error"]) == ("failed", "ValueError")
    assert tries == jobs.MOST_FAILURES


async def test_goes_on_when_the_database_was_away(stored: Stored) -> None:
    await stored.endpoint()
    ids = await published(stored, 3)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    struck = runner(stored)
    work, failures = struck._batch, 0

    def batch(connection: Connection, id_: str, now: Any) -> Any:
        nonlocal failures
        failures += 1
        done = work(connection, id_, now)
        if failures <= 2 * jobs.MOST_FAILURES:
            raise ConnectionError
        return done

    struck._batch = batch  # type: ignore[method-assign]
    assert await struck.run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["done"]) == ("done", 3)
    assert len(await queued(stored)) == 3


async def test_deliveries_are_due_one_after_another_at_the_rate(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    ids = await published(stored, 10)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    paced = runner(stored, bulk_rate=20)
    await stored.database.write(
        operations.claim, operation_id, paced._token, timedelta(minutes=1), clock.moment
    )
    step = await stored.database.write(paced._batch, operation_id, clock.moment)
    assert list(step.made_due) == [each.delivery_id for each in await queued(stored)]
    at = [each.due_at - clock.moment for each in await queued(stored)]
    assert at == [timedelta(milliseconds=50) * n for n in range(10)]
    assert runner(stored, bulk_rate=7)._limit(500) == 7


async def test_slows_down_while_workers_fall_behind_and_speeds_up_again(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    ids = await published(stored, 20)
    await stored.end(*ids, status="dead")
    paced = runner(stored, bulk_rate=4)
    operation_id = await start(stored, "recover")
    await stored.database.write(
        operations.claim, operation_id, paced._token, timedelta(hours=1), clock.moment
    )

    async def batch() -> float:
        step = await stored.database.write(paced._batch, operation_id, clock.moment)
        paced._recent.append(step.made_due)
        clock.advance(timedelta(seconds=10))
        return paced._rate

    assert [await batch() for _ in range(4)] == [4, 2, 1, 0.5]
    for rate in (0.75, 1.125):
        caught_up = [each.delivery_id for each in await queued(stored)]
        await stored.end(*caught_up, status="delivered")
        assert await batch() == rate


@pytest.mark.usefixtures("small")
async def test_broadcast_publishes_exact_bytes_once_for_each_tenant(stored: Stored) -> None:
    for number in range(5):
        await stored.endpoint(tenant=f"t{number}")
        await stored.endpoint(tenant=f"t{number}", event_types=["other"])
    data = b'{"total": 1.10,  "a":1,"a":2}'
    row = await carry_out(stored, "broadcast", data=data, type="news.flash")
    assert row["done"] == 5

    def work(connection: Connection) -> list[Any]:
        return list(connection.execute(select(tables.events)))

    found = await stored.database.read(work)
    assert {each.tenant_id for each in found} == {f"t{n}" for n in range(5)}
    assert all(bytes(each.body).endswith(b'"data":' + data + b"}") for each in found)
    assert {each.idempotency_key for each in found} == {row["id"]}
    rows = await queued(stored)
    assert len(rows) == 5
    assert {each.lane for each in rows} == {1}


async def test_housekeeping_carries_them_out(stored: Stored) -> None:
    await stored.endpoint()
    ids = await published(stored, 3)
    await stored.end(*ids, status="dead")
    operation_id = await start(stored, "recover")
    async with stored.service.housekeeping():

        async def is_done() -> bool:
            return bool((await read(stored, operation_id))["status"] == "done")

        await wait_until_async(is_done)
    assert len(await queued(stored)) == 3


async def test_two_runners_share_two_operations_and_do_nothing_twice(stored: Stored) -> None:
    await stored.endpoint()
    ids = await published(stored, 30)
    await stored.end(*ids, status="dead")
    both = [await start(stored, "recover"), await start(stored, "recover")]
    runners = [runner(stored), runner(stored)]

    async def run(each: OperationRunner) -> None:
        while await each.run_next():
            pass

    await asyncio.gather(*(run(each) for each in runners))
    rows = [await read(stored, id_) for id_ in both]
    assert [row["status"] for row in rows] == ["done", "done"]
    assert sum(row["done"] for row in rows) == 30
    assert Counter(each.delivery_id for each in await queued(stored)) == dict.fromkeys(ids, 1)


async def test_cancel_comes_back_to_what_another_transaction_holds(
    stored: Stored, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored.endpoint()
    ids = await published(stored, 6)
    operation_id = await start(stored, "cancel")
    real = bulk.lock_queued
    calls = 0

    def lock(connection: Connection, delivery_ids: list[str]) -> set[str]:
        nonlocal calls
        calls += 1
        return real(connection, delivery_ids) - ({ids[2]} if calls == 1 else set())

    monkeypatch.setattr(bulk, "lock_queued", lock)
    assert await runner(stored).run_next()
    row = await read(stored, operation_id)
    assert (row["status"], row["done"], row["matched"]) == ("done", 6, 6)
    assert set((await statuses(stored)).values()) == {"cancelled"}
    assert calls == 2
    assert not await stored.database.write(deliveries.cancel, ids[2], clock.moment)


async def test_waiting_for_what_another_transaction_holds_is_no_progress(
    stored: Stored, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored.endpoint()
    await published(stored, 3)
    operation_id = await start(stored, "cancel")
    began = await read(stored, operation_id)
    clock.advance(timedelta(minutes=1))
    lease = stored.service.settings.lease
    one = runner(stored)
    await stored.database.write(operations.claim, operation_id, one._token, lease, clock.moment)
    with monkeypatch.context() as patched:
        patched.setattr(bulk, "lock_queued", lambda *_: set())
        assert await stored.database.write(one._batch, operation_id, clock.moment)
    waiting = await read(stored, operation_id)
    assert (waiting["status"], waiting["updated_at"]) == ("running", began["updated_at"])
    assert await stored.database.write(one._batch, operation_id, clock.moment)
    row = await read(stored, operation_id)
    assert (row["done"], row["updated_at"]) == (3, clock.moment)


async def test_f36_recover_reaches_what_was_published_after_a_clock_was_set_right(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher's clock was an hour ahead; ids that stayed there would be passed over."""
    async with open_service(database_url) as service:
        stored = Stored(service)
        await stored.endpoint()
        hour = 3_600_000_000_000
        with monkeypatch.context() as wrong:
            wrong.setattr(ids, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + hour))
            ahead = (await stored.publish()).delivery_ids[0]
        after = (await stored.publish()).delivery_ids[0]
        assert after < ahead
        await stored.end(after, status="dead")
        where = Filter(since=datetime.now(UTC) - timedelta(hours=1)).to_json()
        added = await stored.database.write(operations.add, bulk.RECOVER, where)
        assert await runner(stored).run_next()
        row = await read(stored, added.id)
        assert (row["status"], row["done"], row["passed_over"]) == ("done", 1, {})
        assert (await statuses(stored))[after] == "pending"
