"""Two publishers, two workers, and workers that are killed: real processes over real HTTP."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.pool import QueuePool

from delivery_service.clock import DatabaseClock
from sender import NewEvent, publish_many
from sender.tables import attempts, deliveries, events, queue
from tests.support.engine import KEY, Engined
from tests.support.processes import Process, Processes
from tests.support.receiver import Answer, Receiver
from tests.support.tables import sync_engine
from tests.support.waiting import wait_until

DELIVERIES = 2000
LEASE = 6
ENDPOINTS = 20


def worker(processes: Processes, url: str, **settings: str) -> Process:
    """Start a worker process with an attempt time-out of 1 s and a lease of 6 s."""
    given = {
        "database_url": url,
        "encryption_keys": KEY,
        "allow_private_networks": "true",
        "attempt_timeout": "1",
        "lease": str(LEASE),
        "poll_interval": "0.2",
        "log_level": "info",
        **settings,
    }
    environment = {f"SUREHOOK_{name.upper()}": value for name, value in given.items()}
    return processes.python("tests.support.worker_process", env=environment)


@pytest.fixture
def database(postgresql_tables: str) -> Iterator[Engine]:
    engine = sync_engine(postgresql_tables, poolclass=QueuePool)
    yield engine
    engine.dispose()


def fill(url: str, engine: Engine, receiver: Receiver) -> set[str]:
    """Publish 2,000 deliveries to twenty endpoints."""
    engined = Engined(url, clock=DatabaseClock())
    for number in range(ENDPOINTS):
        engined.endpoint(receiver.url(f"/{number}"))
    engined.engine.dispose()
    batch = [
        NewEvent(tenant="acme", type="a.b", data={"n": n}) for n in range(DELIVERIES // ENDPOINTS)
    ]
    with engine.begin() as connection:
        published = publish_many(connection, batch)
    return {id_ for done in published for id_ in done.delivery_ids}


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(queue)) or 0


def seen(receiver: Receiver) -> set[str | None]:
    return {request.header("webhook-id") for request in receiver.requests}


def by_status(engine: Engine) -> dict[str, int]:
    query = select(deliveries.c.status, func.count()).group_by(deliveries.c.status)
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


PUBLISHER = """
import sys
from sender import publish
from tests.support.tables import sync_engine
engine = sync_engine(sys.argv[1])
with engine.connect() as connection:
    print("ready", flush=True)
    connection.exec_driver_sql("SELECT pg_advisory_lock_shared(1)")  # the starting gun
    connection.commit()
    for number in range(100):
        with connection.begin():
            done = publish(connection, tenant="acme", type="a.b", data=number,
                           idempotency_key=f"key {number}")
        print(done.event_id, done.duplicate, *done.delivery_ids, flush=True)
"""


def test_two_processes_with_the_same_keys_make_one_event_each(
    postgresql_tables: str, database: Engine, processes: Processes
) -> None:
    Engined(postgresql_tables, clock=DatabaseClock()).endpoint("https://h.example/")
    with database.connect() as gun:
        gun.execute(text("SELECT pg_advisory_lock(1)"))
        both = [
            processes.start(sys.executable, "-c", PUBLISHER, postgresql_tables) for _ in range(2)
        ]
        for process in both:
            process.wait_for("ready")
        # A pooled connection lives on, and so would its lock.
        gun.execute(text("SELECT pg_advisory_unlock(1)"))
    assert [process.wait() for process in both] == [0, 0]
    one, two = (
        [line.split() for line in process.output.splitlines() if line.startswith("evt_")]
        for process in both
    )
    assert len(one) == len(two) == 100
    for first, second in zip(one, two, strict=True):
        assert (first[0], first[2:]) == (second[0], second[2:])
        assert sorted([first[1], second[1]]) == ["False", "True"]
    with database.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(events)) == 100
        assert connection.scalar(select(func.count()).select_from(deliveries)) == 100


def test_f01_two_workers_send_each_delivery_once(
    postgresql_tables: str, database: Engine, processes: Processes, receiver: Receiver
) -> None:
    ids = fill(postgresql_tables, database, receiver)
    # An attempt that a slow machine lets time out would rightly be made again.
    patient = {"attempt_timeout": "60", "lease": "120"}
    both = [worker(processes, postgresql_tables, **patient) for _ in range(2)]
    for process in both:
        process.wait_for("worker_started")
    wait_until(lambda: len(receiver.requests) >= len(ids), deadline=120, what="2,000 requests")
    wait_until(lambda: left(database) == 0, deadline=20, what="an empty queue")
    assert [process.terminate() for process in both] == [0, 0]
    got = Counter(r.header("webhook-id") for r in receiver.requests)
    with database.connect() as connection:
        rows = Counter(connection.scalars(select(attempts.c.delivery_id)))
    shares = [len(re.findall(r'"event": ?"attempt"', process.output)) for process in both]
    print(f"sent={len(ids)} received={got.total()} attempts={rows.total()} by worker={shares}")
    assert got == dict.fromkeys(ids, 1)
    assert rows == dict.fromkeys(ids, 1)
    assert by_status(database) == {"delivered": DELIVERIES}
    assert sum(shares) == DELIVERIES


def test_f14_h03_kill_9_at_ten_random_moments_loses_nothing(
    postgresql_tables: str, database: Engine, processes: Processes, receiver: Receiver
) -> None:
    seed = time.time_ns()
    chance = random.Random(seed)
    for number in range(ENDPOINTS):
        receiver.script(f"/{number}", Answer(delay=0.05))
    ids = fill(postgresql_tables, database, receiver)
    kills = 0
    while kills < 10:
        process = worker(processes, postgresql_tables, concurrency="20")
        process.wait_for("worker_started")
        before = len(receiver.requests)
        process.wait_for(lambda before=before: len(receiver.requests) > before + 10, deadline=20)
        end = time.monotonic() + chance.uniform(0, 0.2)
        process.wait_for(lambda end=end: time.monotonic() >= end)
        process.kill()
        kills += 1
    unfinished = left(database)
    last = worker(processes, postgresql_tables, concurrency="200")
    last.wait_for(lambda: len(ids - seen(receiver)) == 0, deadline=120)
    last.wait_for(lambda: left(database) == 0, deadline=120)
    assert last.terminate() == 0

    got = Counter(r.header("webhook-id") for r in receiver.requests)
    duplicates = {id_: count for id_, count in got.items() if count > 1}
    print(
        f"seed={seed} kills={kills} left at the last={unfinished} sent={len(ids)}"
        f" received={len(got)} requests={got.total()} duplicated={len(duplicates)}"
        f" lost={len(ids - set(got))} statuses={by_status(database)}"
    )
    assert unfinished > 0
    # Every repeat carries the id of its delivery, so nothing arrives under an unknown one.
    assert set(got) == ids
    assert by_status(database) == {"delivered": DELIVERIES}
    bodies: dict[str | None, set[bytes]] = {}
    for request in receiver.requests:
        bodies.setdefault(request.header("webhook-id"), set()).add(request.body)
    assert all(len(variants) == 1 for variants in bodies.values())
