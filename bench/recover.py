"""Latency of live traffic while a recover redelivers a large backlog, beside the same without.

PostgreSQL with fsync, one ``surehook worker`` process at its default settings but a poll interval
of 50 ms (at the default of 1 s, live latency without a poke is mostly waiting for the next poll,
which would hide what the recover adds). Live events are published one by one, each committed, to
an endpoint of their own; latency is from the commit to the receiver's first byte. The recover
redelivers dead deliveries of 20 other endpoints at the default `bulk_rate`, carried out by the
worker process itself.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, create_engine, make_url, text

from bench.rig import DATA, TENANT, Rig, Target, postgresql_rig, running_target, wait_for
from delivery_service.store import bulk, operations
from sender import publish

ENDPOINTS = 20
BACKLOG = 8_000
LIVE = 400
EVERY = 0.03
"""Seconds between two live events."""

POLL = 0.05


def run(backlog: int = BACKLOG, live: int = LIVE) -> dict[str, Any]:
    """Live latency alone, during the recover, and alone again."""
    with running_target(ENDPOINTS + 1) as target, postgresql_rig() as rig:
        rig.with_options(poll_interval=POLL)
        rig.add_endpoints([target.url(number) for number in range(ENDPOINTS)])
        rig.publish(backlog // ENDPOINTS)
        _end_all(rig)
        _add_live_endpoint(rig, target.url(ENDPOINTS))
        with rig.workers():
            _latencies(rig, target, 50)  # the worker is up, connections are open
            before = _latencies(rig, target, live)
            operation_id = _start(rig)
            wait_for(lambda: _row(rig, operation_id)["done"] > 0, 60)
            began = time.monotonic()
            done = _row(rig, operation_id)["done"]
            during = _latencies(rig, target, live)
            row = _row(rig, operation_id)
            rate = (row["done"] - done) / (time.monotonic() - began)
            was_running = row["status"] == "running"
            wait_for(lambda: _row(rig, operation_id)["status"] == "done", 300)
            wait_for(lambda: rig.pending() == 0, 120)
            after = _latencies(rig, target, live)
            total = _row(rig, operation_id)
    if not was_running or total["done"] != backlog:
        raise AssertionError(f"the recover was too short to measure beside: {total['done']}")
    alone = {name: max(before[name], after[name]) for name in before}
    return {
        "name": "recover",
        "figures": {
            **{f"live_{name}_ms_during": value for name, value in during.items()},
            "recovered_per_s": rate,
            "recovered": total["done"],
        },
        "yardstick": {f"live_{name}_ms_alone": value for name, value in alone.items()}
        | {f"live_{name}_ms_alone_first": value for name, value in before.items()},
        "ratio": {name: during[name] / alone[name] for name in alone},
    }


def _add_live_endpoint(rig: Rig, url: str) -> None:
    rig.add_endpoints([url])
    with _engine(rig).begin() as connection:
        connection.execute(
            text("UPDATE surehook_endpoints SET tenant_id = 'live' WHERE url = :url"), {"url": url}
        )


def _end_all(rig: Rig) -> None:
    with _engine(rig).begin() as connection:
        connection.execute(text("DELETE FROM surehook_queue"))
        connection.execute(
            text(
                "UPDATE surehook_deliveries SET status = 'dead', undelivered = true,"
                " ended_at = now()"
            )
        )


def _start(rig: Rig) -> str:
    where = bulk.Filter(since=datetime.now(UTC) - timedelta(hours=1), tenant=TENANT)
    with _engine(rig).begin() as connection:
        return operations.add(connection, bulk.RECOVER, where.to_json()).id


def _row(rig: Rig, operation_id: str) -> dict[str, Any]:
    with _engine(rig).begin() as connection:
        row = operations.get(connection, operation_id)
    assert row is not None
    return row


def _latencies(rig: Rig, target: Target, count: int) -> dict[str, float]:
    """Publish live events at an even pace; milliseconds until they arrived."""
    target.reset()
    committed: dict[str, float] = {}
    with _engine(rig).connect() as connection:
        start = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, start + number * EVERY - time.monotonic()))
            committed[_publish(connection)] = time.time()

    def arrived() -> dict[str, float]:
        details = target.details()
        pairs = zip(details["ids"], details["times"], strict=True)
        return {id_[:30]: at for id_, at in pairs if id_[:30] in committed}

    wait_for(lambda: len(arrived()) == count, 60, 0.5)
    times = sorted((at - committed[id_]) * 1000 for id_, at in arrived().items())
    return {"p50": times[count // 2], "p99": times[int(count * 0.99)]}


def _publish(connection: Connection) -> str:
    with connection.begin():
        done = publish(connection, tenant="live", type="invoice.paid", data=DATA)
    return done.delivery_ids[0]


_engines: dict[str, Any] = {}


def _engine(rig: Rig) -> Any:
    if rig.url not in _engines:
        _engines[rig.url] = create_engine(make_url(rig.url).set(drivername="postgresql+psycopg"))
    return _engines[rig.url]
