"""What is old goes, and nothing that is still needed goes with it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select, text

from delivery_service.clock import ManualClock
from delivery_service.jobs.sweep import Sweeper
from delivery_service.metrics import Metrics
from delivery_service.store import deliveries as delivery_store
from delivery_service.store import endpoints, operations, retention
from sender import tables
from sender.errors import IdempotencyConflict
from tests.support.stored import Stored, open_service, settings_for

DAY = timedelta(days=1)


async def remove_events(stored: Stored, days: float, limit: int = 100, after: str = "") -> Any:
    return await stored.database.write(
        retention.remove_events, days * DAY, limit, after, stored.now
    )


async def event_ids(stored: Stored) -> set[str]:
    def work(connection: Connection) -> set[str]:
        return set(connection.scalars(select(tables.events.c.id)))

    return await stored.database.read(work)


async def test_old_events_go_with_their_deliveries_and_attempts(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    await stored.endpoint()
    old = await stored.publish()
    for delivery_id in old.delivery_ids:
        await stored.attempt(delivery_id)
        await stored.attempt(delivery_id, 2)
    await stored.end(*old.delivery_ids)
    clock.advance(5 * DAY)
    young = await stored.publish()
    await stored.attempt(young.delivery_ids[0])
    await stored.end(*young.delivery_ids)

    clock.advance(6 * DAY)
    swept = await remove_events(stored, 10)

    assert swept == retention.Swept(removed=1 + 2 + 4, after=None)
    assert await event_ids(stored) == {young.event_id}
    assert await stored.count(tables.deliveries) == 2
    assert await stored.count(tables.attempts) == 1


async def test_events_without_deliveries_go_too(stored: Stored, clock: ManualClock) -> None:
    await stored.publish()
    clock.advance(11 * DAY)
    assert (await remove_events(stored, 10)).removed == 1
    assert await stored.count(tables.events) == 0


async def test_an_event_stays_whole_while_one_delivery_is_pending(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    await stored.endpoint()
    published = await stored.publish()
    await stored.end(published.delivery_ids[0])
    clock.advance(400 * DAY)

    assert (await remove_events(stored, 10)).removed == 0
    assert await stored.count(tables.deliveries) == 2

    await stored.end(published.delivery_ids[1])
    clock.advance(9 * DAY)
    assert (await remove_events(stored, 10)).removed == 0, "ended 9 days ago"
    clock.advance(2 * DAY)
    assert (await remove_events(stored, 10)).removed == 3
    assert await stored.count(tables.queue) == 0


async def test_a_delivery_in_flight_keeps_its_event(stored: Stored, clock: ManualClock) -> None:
    endpoint_id = await stored.endpoint()
    await stored.publish()
    clock.advance(400 * DAY)
    (claimed,) = await stored.claim(endpoint_id)

    assert (await remove_events(stored, 10)).removed == 0
    assert (await stored.database.write(retention.remove_attempts, DAY, 10, "", stored.now)) == (
        retention.Swept(0, None)
    )
    assert claimed.body


async def test_redelivered_events_start_their_time_again(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    published = await stored.publish()
    await stored.end(*published.delivery_ids, status="dead")
    clock.advance(11 * DAY)
    await stored.database.write(delivery_store.redeliver, published.delivery_ids, stored.now)
    assert (await remove_events(stored, 10)).removed == 0
    await stored.end(*published.delivery_ids)
    clock.advance(5 * DAY)
    assert (await remove_events(stored, 10)).removed == 0
    clock.advance(6 * DAY)
    assert (await remove_events(stored, 10)).removed == 2


async def test_an_event_with_very_many_deliveries_takes_several_batches(
    stored: Stored, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MOST_DELIVERIES", 3)
    for _ in range(7):
        await stored.endpoint()
    published = await stored.publish()
    await stored.end(*published.delivery_ids)
    clock.advance(11 * DAY)

    left = []
    after: str | None = ""
    while after is not None:
        after = (await remove_events(stored, 10, after=after)).after
        left.append((await stored.count(tables.events), await stored.count(tables.deliveries)))
    assert left == [(1, 4), (1, 1), (0, 0)]


async def test_batches_are_bounded_and_go_on_where_the_last_one_ended(
    stored: Stored, clock: ManualClock
) -> None:
    await stored.endpoint()
    pending = await stored.publish()
    for _ in range(4):
        clock.advance(timedelta(seconds=1))
        published = await stored.publish()
        await stored.end(*published.delivery_ids)
    clock.advance(11 * DAY)

    first = await remove_events(stored, 10, limit=3)
    assert first.removed == 6
    assert first.after is not None
    assert await remove_events(stored, 10, limit=3, after=first.after) == (retention.Swept(2, None))
    assert await event_ids(stored) == {pending.event_id}


async def test_attempts_go_earlier_than_their_event(stored: Stored, clock: ManualClock) -> None:
    await stored.endpoint()
    published = await stored.publish()
    await stored.attempt(published.delivery_ids[0])
    clock.advance(31 * DAY)
    kept = await stored.attempt(published.delivery_ids[0], 2)
    sweep = (retention.remove_attempts, 30 * DAY, 10, "", stored.now)

    assert (await stored.database.write(*sweep)).removed == 0, "its delivery is pending"
    await stored.end(*published.delivery_ids)
    assert (await stored.database.write(*sweep)).removed == 1
    assert await stored.count(tables.attempts, tables.attempts.c.id == kept) == 1
    assert await stored.count(tables.events) == 1


async def test_keys_are_forgotten_and_can_be_used_again(stored: Stored, clock: ManualClock) -> None:
    first = await stored.publish(idempotency_key="k", data=1)
    clock.advance(6 * DAY)
    sweep = (retention.forget_keys, 7 * DAY, 10, "")
    assert (await stored.database.write(*sweep, stored.now)).removed == 0
    with pytest.raises(IdempotencyConflict):
        await stored.publish(idempotency_key="k", data=2)
    assert (await stored.publish(idempotency_key="k", data=1)).duplicate

    clock.advance(2 * DAY)
    assert (await stored.database.write(*sweep, stored.now)).removed == 1
    assert (await stored.database.write(*sweep, stored.now)).removed == 0
    again = await stored.publish(idempotency_key="k", data=2)
    assert not again.duplicate
    assert await event_ids(stored) == {first.event_id, again.event_id}


async def test_operations_go_when_they_ended_long_ago(stored: Stored, clock: ManualClock) -> None:
    async def add(**key: str) -> str:
        added = await stored.database.write(operations.add, "cancel", {}, now=stored.now, **key)
        return added.id

    open_, ended, late = [await add() for _ in range(3)]
    await stored.database.write(operations.cancel, ended, stored.now)
    clock.advance(5 * DAY)
    await stored.database.write(operations.cancel, late, stored.now)
    young = [await add() for _ in range(3)]
    for id_ in young:
        await stored.database.write(operations.cancel, id_, stored.now)
    clock.advance(6 * DAY)
    sweep = (retention.remove_operations, 10 * DAY, 2)

    async def left() -> list[str]:
        return [row["id"] for row in await stored.database.read(operations.page, limit=10)]

    assert await stored.database.write(*sweep, "", stored.now) == retention.Swept(1, None)
    assert await left() == [*young[::-1], late, open_]

    clock.advance(5 * DAY)
    first = await stored.database.write(*sweep, "", stored.now)
    assert first == retention.Swept(2, young[0])
    second = await stored.database.write(*sweep, first.after, stored.now)
    assert await stored.database.write(*sweep, second.after, stored.now) == retention.Swept(0, None)
    assert await left() == [open_]


async def test_keys_of_operations_are_forgotten_too(stored: Stored, clock: ManualClock) -> None:
    async def add(kind: str) -> operations.Added:
        return await stored.database.write(
            operations.add, kind, {}, now=stored.now, idempotency_key="k"
        )

    first = await add("cancel")
    clock.advance(6 * DAY)
    metrics = Metrics()
    service = stored.service
    sweeper = Sweeper(service.settings, service.database, clock, metrics)
    await sweeper.forget_keys()
    assert metrics.removed["keys"] == 0
    assert await add("cancel") == operations.Added(first.id, is_new=False)
    assert await add("recover") == operations.Added(first.id, is_new=False, is_same=False)
    clock.advance(2 * DAY)
    await sweeper.forget_keys()
    assert metrics.removed["keys"] == 1
    again = await add("recover")
    assert (again.is_new, again.id != first.id) == (True, True)
    assert await stored.count(tables.operations) == 2


async def test_only_secrets_that_stopped_signing_go(stored: Stored, clock: ManualClock) -> None:
    rotated, untouched = await stored.endpoint(), await stored.endpoint()
    overlap = timedelta(hours=24)
    await stored.database.write(endpoints.rotate_secret, rotated, b"new", overlap, stored.now)
    remove = retention.remove_expired_secrets
    clock.advance(overlap - timedelta(seconds=1))
    assert await stored.database.write(remove, stored.now) == 0

    clock.advance(timedelta(seconds=1))
    before = await stored.database.read(endpoints.active_secrets, [rotated, untouched], stored.now)
    assert await stored.database.write(remove, stored.now) == 1
    after = await stored.database.read(endpoints.active_secrets, [rotated, untouched], stored.now)
    assert after == before
    assert [s["ciphertext"] for s in after[rotated]] == [b"new"]


async def test_several_processes_sweep_at_once(database_url: str, clock: ManualClock) -> None:
    async with open_service(database_url, clock) as one, open_service(database_url, clock) as two:
        stored = Stored(one)
        await stored.endpoint()
        for number in range(60):
            published = await stored.publish(idempotency_key=f"k{number}")
            await stored.attempt(published.delivery_ids[0])
            if number % 20:
                await stored.end(*published.delivery_ids)
        clock.advance(100 * DAY)
        metrics = Metrics()
        sweepers = [
            Sweeper(service.settings, service.database, clock, metrics)
            for service in (one, two, one, two)
        ]
        await asyncio.gather(
            *(s.remove_old() for s in sweepers), *(s.forget_keys() for s in sweepers)
        )
        await sweepers[0].remove_old()

        assert await stored.count(tables.events) == 3
        assert await stored.count(tables.deliveries) == 3
        assert await stored.count(tables.queue) == 3
        assert await stored.count(tables.attempts) == 3
        assert metrics.removed["events"] + metrics.removed["attempts"] == 57 * 3


async def test_zero_keeps_everything(database_url: str, clock: ManualClock) -> None:
    keep = {"retention": timedelta(), "attempt_retention": timedelta()}
    async with open_service(database_url, clock, **keep) as service:
        stored = Stored(service)
        await stored.endpoint()
        published = await stored.publish()
        await stored.attempt(published.delivery_ids[0])
        await stored.end(*published.delivery_ids)
        added = await stored.database.write(operations.add, "cancel", {}, now=stored.now)
        await stored.database.write(operations.cancel, added.id, stored.now)
        clock.advance(4000 * DAY)
        await Sweeper(service.settings, service.database, clock, Metrics()).remove_old()
        assert await stored.count(tables.attempts) == 1
        assert await stored.count(tables.events) == 1
        assert await stored.count(tables.operations) == 1


async def test_a_run_is_bounded(
    stored: Stored, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delivery_service.jobs.sweep.BATCH", 2)
    monkeypatch.setattr("delivery_service.jobs.sweep.BATCHES", 3)
    for _ in range(10):
        await stored.publish()
        clock.advance(timedelta(seconds=1))
    clock.advance(100 * DAY)
    sweeper = Sweeper(settings_for("sqlite://"), stored.database, clock, Metrics())
    await sweeper.remove_old()
    assert await stored.count(tables.events) == 4


async def test_rows_that_others_hold_are_passed_over(
    postgresql_url: str, clock: ManualClock
) -> None:
    """Housekeeping waits for nobody: a held row is for the next run."""
    async with open_service(postgresql_url, clock) as service:
        stored = Stored(service)
        held, free = await stored.publish(), await stored.publish()
        clock.advance(100 * DAY)
        async with service.database.engine.begin() as connection:
            await connection.execute(
                select(tables.events.c.id)
                .where(tables.events.c.id == held.event_id)
                .with_for_update(read=True, key_share=True)
            )
            async with asyncio.timeout(10):
                swept = await remove_events(stored, 90)
        assert swept.removed == 1
        assert free.event_id not in await event_ids(stored)
        assert held.event_id in await event_ids(stored)


@pytest.mark.parametrize("analysed", ["never", "now", "when empty"])
async def test_f25_sweeping_reads_only_what_it_removes(
    postgresql_url: str, clock: ManualClock, analysed: str
) -> None:
    """The plans go by an index whatever the planner was told about the tables."""
    async with open_service(postgresql_url, clock) as service:

        def fill(connection: Connection) -> None:
            for table in tables.metadata.sorted_tables:
                # Or it might bring the statistics up to date behind the test's back.
                off = f"ALTER TABLE {table.name} SET (autovacuum_enabled = off)"
                connection.execute(text(off))
            if analysed == "when empty":
                connection.execute(text("ANALYZE"))
            for statement in MANY.split(";"):
                connection.execute(text(statement))
            if analysed == "now":
                connection.execute(text("ANALYZE"))

        await service.database.write(fill)
        stored = Stored(service)
        await stored.endpoint()
        published = await stored.publish(idempotency_key="k")
        await stored.attempt(published.delivery_ids[0])
        await stored.end(*published.delivery_ids)
        added = await stored.database.write(
            operations.add, "cancel", {}, now=stored.now, idempotency_key="k"
        )
        await stored.database.write(operations.cancel, added.id, stored.now)
        clock.advance(100 * DAY)
        plans = await service.database.write(_plans, stored.now)
        scans = [plan for plan in plans if "Seq Scan on surehook" in plan]
        assert not scans, "\n\n".join(scans)


MANY = """
INSERT INTO surehook_events (id, tenant_id, type, body, content_type, created_at)
  SELECT 'evt_7' || lpad(n::text, 25, '0'), 't', 'a.b', 'x', 'a/b', now()
  FROM generate_series(1, 20000) n;
INSERT INTO surehook_operations (id, kind, filter, passed_over, created_at, updated_at)
  SELECT 'op_7' || lpad(n::text, 25, '0'), 'cancel', '{}', '{}', now(), now()
  FROM generate_series(1, 20000) n;
INSERT INTO surehook_deliveries
    (id, event_id, endpoint_id, tenant_id, event_type, status, created_at, ended_at)
  SELECT 'dlv_7' || lpad(n::text, 25, '0'), 'evt_7' || lpad(n::text, 25, '0'), 'ep_', 't', 'a.b',
    'delivered', now(), now() FROM generate_series(1, 20000) n;
INSERT INTO surehook_queue (delivery_id, endpoint_id, due_at)
  SELECT 'dlv_7' || lpad(n::text, 25, '0'), 'ep_', now() FROM generate_series(1, 20000) n;
INSERT INTO surehook_attempts
  SELECT 'att_7' || lpad(n::text, 25, '0'), 'dlv_7' || lpad(n::text, 25, '0'), 'ep_', 1, false,
    now(), 1, '', 'status', 500, null, true, '', '', '', false FROM generate_series(1, 20000) n
"""


def _plans(connection: Connection, now: Any) -> list[str]:
    """The plans of all statements of a sweep, as they are run."""
    plans: list[str] = []
    execute = connection.execute

    def explaining(statement: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = statement.compile(
            dialect=connection.dialect, compile_kwargs={"literal_binds": True}
        )
        explain = text("EXPLAIN " + str(compiled).replace(":", r"\:"))
        plans.append("\n".join(execute(explain).scalars()))
        return execute(statement, *args, **kwargs)

    class Explained:
        dialect = connection.dialect
        execute = staticmethod(explaining)

        def scalars(self, statement: Any) -> Any:
            return explaining(statement).scalars()

    explained: Any = Explained()
    for sweep in (
        retention.remove_attempts,
        retention.forget_keys,
        retention.remove_events,
        retention.forget_operation_keys,
        retention.remove_operations,
    ):
        assert sweep(explained, DAY, 200, "", now).removed
    return plans
