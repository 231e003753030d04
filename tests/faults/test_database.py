"""The database restarts, its connections are cut, dropped in silence, or it stands still."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.field import Field, database_port, paths, through
from tests.support.postgres import Postgres, running_postgres
from tests.support.processes import Processes
from tests.support.proxy import Proxy
from tests.support.receiver import Answer, Received, Receiver
from tests.support.waiting import wait_until


def slow(field: Field, count: int, delay: float = 0.1) -> None:
    """So many endpoints that answer after ``delay``: a drain that lasts."""
    field.endpoints(*paths(count))
    for path in paths(count):
        field.receiver.script(path, Answer(delay=delay))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_f21_f24_database_restarts_during_a_drain(
    how: signal.Signals, processes: Processes, receiver: Receiver, tmp_path: Path
) -> None:
    with running_postgres(settings={"synchronous_commit": "on"}) as server:
        field = Field(server.url(server.create_database()), processes, receiver, tmp_path)
        slow(field, 3)
        field.publish(100)
        for _ in range(2):
            field.worker()
        receiver.wait_for(60)
        server.restart(how)
        field.wait_for_end()
        field.report(f"database restarted ({how.name})")
        field.close()


def test_f24_connections_are_ended_by_the_server(
    postgresql_field: Field, postgres: Postgres
) -> None:
    field = postgresql_field
    slow(field, 3)
    field.publish(100)
    for _ in range(2):
        field.worker()
    field.receiver.wait_for(60)
    name = field.url.rpartition("/")[2]
    assert postgres.end_connections(name) > 0
    field.wait_for_end()
    field.report("connections ended")


@pytest.fixture
def proxy(postgresql_field: Field) -> Iterator[Proxy]:
    """Between workers and database."""
    with Proxy(database_port(postgresql_field.url)) as made:
        yield made


@pytest.mark.parametrize("how", ["cut", "drop"])
def test_f24_tcp_is_cut_or_dropped_in_silence(
    how: str, postgresql_field: Field, proxy: Proxy
) -> None:
    field = postgresql_field
    slow(field, 3)
    field.publish(100)
    worker = field.worker(url=through(proxy.port, field.url))
    field.receiver.wait_for(60)
    assert getattr(proxy, how)() > 0
    # Nobody else could do it: the only worker finds its way back.
    field.wait_for_end()
    assert worker.running
    field.report(f"TCP {how}")


def test_f24_idle_worker_notices_a_dropped_connection(
    postgresql_field: Field, proxy: Proxy
) -> None:
    field = postgresql_field
    field.endpoints("/hook")
    worker = field.worker(url=through(proxy.port, field.url))
    field.publish(1)
    field.wait_for_end()
    assert proxy.drop() > 0
    field.publish(10)
    field.wait_for_end()
    assert worker.running
    field.report("TCP dropped while idle", duplicates=0)


def test_f17_database_stands_still_after_the_receivers_200(
    postgresql_field: Field, proxy: Proxy
) -> None:
    field = postgresql_field
    field.endpoints("/hook")
    answered = 0

    def answer(_: Received) -> Answer:
        # The worker can't record what it is told here until long after its leases have ended.
        nonlocal answered
        answered += 1
        if answered == 5:
            proxy.block()
        return Answer(200)

    field.receiver.script("/hook", answer)
    stuck = field.worker(url=through(proxy.port, field.url), database_timeout=30)
    field.wait_for_workers(1)
    field.publish(20)
    wait_until(lambda: answered >= 5)
    # Another, whose way to the database is free, takes over when the leases end.
    field.worker()
    field.wait_for_end()
    proxy.unblock()
    # What the first one comes back with is kept as late, and changes nothing.
    wait_until(lambda: any(a.late for a in field.attempts()), what="late attempts")
    assert stuck.running
    field.report("database blocked after the 200")


def test_f17_database_locked_after_the_receivers_200(field: Field) -> None:
    field.endpoints("/hook")
    lock = field.lock()
    answered = 0

    def answer(_: Received) -> Answer:
        nonlocal answered
        answered += 1
        if answered == 5:
            lock.acquire()
        return Answer(200)

    field.receiver.script("/hook", answer)
    for _ in range(2):
        field.worker()
    field.publish(20)
    wait_until(lambda: answered >= 5)
    lock.hold(7)  # longer than a lease, and than a statement may take
    field.wait_for_end()
    field.report("database locked after the 200")
