"""A recover of many deliveries while the processes that do it are killed: real processes.

3,000 deliveries on each database; with ``SUREHOOK_LONG_FAULTS=1`` 100,000 on PostgreSQL.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select, update

from delivery_service.store import bulk, operations
from sender import NewEvent, publish_many
from sender.tables import deliveries, queue
from tests.faults.field import LONG, Field, paths
from tests.support.waiting import wait_until

ENDPOINTS = 10


def _fill(field: Field, count: int) -> set[str]:
    """So many deliveries that are dead, as an outage leaves them."""
    field.endpoints(*paths(ENDPOINTS))
    ids: set[str] = set()
    for start in range(0, count // ENDPOINTS, 100):
        size = min(100, count // ENDPOINTS - start)
        batch = [NewEvent(tenant="acme", type="a.b", data={"n": start + n}) for n in range(size)]
        with field._engine.begin() as connection:
            done = publish_many(connection, batch)
            made = [id_ for each in done for id_ in each.delivery_ids]
            connection.execute(queue.delete().where(queue.c.delivery_id.in_(made)))
            connection.execute(
                update(deliveries)
                .where(deliveries.c.id.in_(made))
                .values(status="dead", undelivered=True, ended_at=datetime.now(UTC))
            )
        ids |= set(made)
    return ids


def _row(field: Field, operation_id: str) -> dict[str, Any]:
    with field._engine.begin() as connection:
        row = operations.get(connection, operation_id)
    assert row is not None
    return row


def _start(connection: Connection) -> str:
    where = bulk.Filter(since=datetime.now(UTC) - timedelta(hours=1))
    return operations.add(connection, bulk.RECOVER, where.to_json()).id


def _recover_while_killed(field: Field, count: int, rate: int) -> None:
    ids = _fill(field, count)
    field.published |= ids
    with field._engine.begin() as connection:
        operation_id = _start(connection)
    began = time.monotonic()
    kills = 0
    seen = 0
    for share in (0.2, 0.6):
        worker = field.worker(bulk_rate=rate)
        worker.wait_for(
            lambda share=share: _row(field, operation_id)["done"] >= share * count, deadline=300
        )
        worker.kill()
        kills += 1
        row = _row(field, operation_id)
        assert row["status"] == "running"
        assert seen <= row["done"] < count
        seen = row["done"]
    last = field.worker(bulk_rate=rate)
    last.wait_for(lambda: _row(field, operation_id)["status"] == "done", deadline=300)
    row = _row(field, operation_id)
    took = time.monotonic() - began
    assert (row["matched"], row["done"], row["passed_over"]) == (count, count, {})
    field.wait_for_end(deadline=600)
    arrived = Counter(r.header("webhook-id") for r in field.receiver.requests)
    duplicates = sum(arrived.values()) - len(arrived)
    with field._engine.begin() as connection:
        twice = connection.scalar(
            select(func.count()).select_from(deliveries).where(deliveries.c.attempts_before > 0)
        )
    print(
        f"recover [{field.kind}]: {count} deliveries, SIGKILL x {kills}, done {row['done']},"
        f" redelivered twice {twice}, received {len(arrived)}, requests repeated {duplicates}"
        f" (in flight when killed), operation {took:.1f} s"
    )
    # A second redelivery would have started the schedule afresh after the first one's attempts.
    assert twice == 0
    assert set(arrived) == ids
    assert field.statuses() == {("delivered", None): count}
    # Only what was in flight or not yet recorded when a process was killed is sent again, under
    # the same id: `concurrency` is 40, and a worker claims on with up to twice as many results
    # that its database has not taken yet.
    assert duplicates <= kills * (40 + 2 * 40)


def test_recover_survives_sigkill_complete_and_none_twice(field: Field) -> None:
    _recover_while_killed(field, 3000, 1000)


if LONG:

    def test_recover_of_100_000_survives_sigkill(postgresql_field: Field) -> None:
        _recover_while_killed(postgresql_field, 100_000, 5000)


def test_recover_goes_on_at_once_after_a_stop(field: Field) -> None:
    count = 1000
    _fill(field, count)
    with field._engine.begin() as connection:
        operation_id = _start(connection)
    first = field.worker(bulk_rate=200)
    first.wait_for(lambda: _row(field, operation_id)["done"] > 0)
    assert first.terminate() == 0
    row = _row(field, operation_id)
    assert row["status"] == "queued"
    assert row["done"] < count
    field.worker(bulk_rate=5000)
    wait_until(lambda: _row(field, operation_id)["status"] == "done", deadline=60)
    assert _row(field, operation_id)["done"] == count
