"""Several worker processes under a parent: real ones, of which some are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from datetime import timedelta
from typing import Any

import psutil
import pytest

from delivery_service.worker import processes as under_test
from delivery_service.worker.processes import run_processes
from sender import tables
from tests.support.ports import free_port
from tests.support.processes import Process, Processes
from tests.support.receiver import Answer, Receiver
from tests.support.stored import ENCRYPTION_KEY, Stored, open_service, settings_for
from tests.support.waiting import wait_until, wait_until_async

PATIENCE = 90.0
"""Seconds: several interpreters start, on a machine that may be busy with other things."""


def start(
    processes: Processes, url: str, count: int, kind: str = "work", **settings: Any
) -> Process:
    """Start a parent with ``count`` children, or a worker without a parent (0)."""
    options = {
        "database_url": settings_for(url).database_url,
        "encryption_keys": [ENCRYPTION_KEY],
        "allow_private_networks": True,
        "database_pool_size": 4,
        **settings,
    }
    return processes.python("tests.support.work_program", kind, str(count), json.dumps(options))


def logged(parent: Process, event: str) -> list[dict[str, Any]]:
    """The log lines of an event."""
    lines = [line for line in parent.output.splitlines() if line.startswith("{")]
    return [entry for line in lines if (entry := json.loads(line))["event"] == event]


def started(parent: Process, count: int) -> list[int]:
    """Wait until ``count`` workers have started in all; returns the pids in order."""
    parent.wait_for(lambda: len(logged(parent, "worker_started")) >= count, deadline=PATIENCE)
    return [entry["pid"] for entry in logged(parent, "worker_started")]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def in_thread(function: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)


async def test_processes_share_the_work_and_stop_together(
    database_url: str, processes: Processes, receiver: Receiver
) -> None:
    receiver.script("/a", Answer(delay=0.05))
    async with open_service(database_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        port = free_port()
        parent = start(processes, database_url, 2, metrics_port=port)
        pids = await in_thread(started, parent, 2)
        assert parent.pid not in pids
        for _ in range(40):
            await stored.publish()
        await wait_until_async(lambda: len(receiver.requests) == 40, deadline=PATIENCE)

        # Each process has its own metrics; between them they know of every attempt.
        def attempts() -> float:
            total = 0.0
            for each in (port, port + 1):
                with urllib.request.urlopen(f"http://127.0.0.1:{each}/metrics", timeout=5) as page:
                    total += sum(
                        float(line.split()[-1])
                        for line in page.read().decode().splitlines()
                        if line.startswith("surehook_attempts_total")
                    )
            return total

        await in_thread(lambda: wait_until(lambda: attempts() == 40, deadline=PATIENCE))
        if service.settings.is_sqlite:
            os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to the whole group
        else:
            parent.send_signal(signal.SIGTERM)
        assert await in_thread(parent.wait) == 0
        assert all(gone(pid) for pid in pids)
        assert len(logged(parent, "worker_stopped")) == 2
        assert await stored.count(tables.workers) == 0
        assert await stored.count(tables.queue) == 0
        assert len(receiver.requests) == 40


async def test_h03_whoever_is_left_does_all_the_work(
    postgresql_url: str, processes: Processes, receiver: Receiver
) -> None:
    """Of three workers two are killed for good: nothing was theirs alone."""
    async with open_service(postgresql_url) as service:
        stored = Stored(service)
        for number in range(10):
            await stored.endpoint(receiver.url(f"/{number}"))
        parents = [start(processes, postgresql_url, 0) for _ in range(3)]
        for parent in parents:
            await in_thread(started, parent, 1)
        await stored.publish()
        await wait_until_async(lambda: len(receiver.requests) == 10, deadline=PATIENCE)
        for parent in parents[:2]:
            parent.kill()
        for _ in range(5):
            await stored.publish()
        await wait_until_async(lambda: len(receiver.requests) >= 60, deadline=PATIENCE)
        assert {len(receiver.received(f"/{number}")) for number in range(10)} == {6}


async def test_f14_a_killed_child_is_started_again_and_its_leases_end(
    postgresql_url: str, processes: Processes, receiver: Receiver
) -> None:
    """kill -9 in the middle of an attempt: sent again when the lease ends, by its successor."""
    receiver.script("/a", Answer(delay=60), Answer())
    async with open_service(postgresql_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        parent = start(processes, postgresql_url, 1, attempt_timeout=0.5, lease=5.5)
        (pid,) = await in_thread(started, parent, 1)
        await stored.publish()
        await wait_until_async(lambda: len(receiver.requests) == 1, deadline=PATIENCE)
        os.kill(pid, signal.SIGKILL)

        pids = await in_thread(started, parent, 2)
        assert pids[1] != pid
        (ended,) = logged(parent, "process_ended")
        assert (ended["pid"], ended["exit_code"]) == (pid, -signal.SIGKILL)
        await wait_until_async(lambda: len(receiver.requests) == 2, deadline=PATIENCE)
        ids = {request.header("webhook-id") for request in receiver.requests}
        assert len(ids) == 1

        async def delivered() -> bool:
            status = tables.deliveries.c.status
            return await stored.count(tables.deliveries, status == "delivered") == 1

        await wait_until_async(delivered, deadline=PATIENCE)
        assert await in_thread(parent.terminate) == 0


async def test_children_stop_when_their_parent_is_killed(
    sqlite_url: str, processes: Processes, receiver: Receiver
) -> None:
    """As if by SIGTERM: what is in flight is finished and recorded."""
    receiver.script("/a", Answer(delay=1))
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        parent = start(processes, sqlite_url, 1)
        pids = await in_thread(started, parent, 1)
        await stored.publish()
        await wait_until_async(lambda: len(receiver.requests) == 1, deadline=PATIENCE)
        parent.kill_alone()
        await wait_until_async(lambda: all(gone(pid) for pid in pids), deadline=PATIENCE)
        assert await stored.count(tables.queue) == 0
        assert len(receiver.requests) == 1


def test_a_child_that_keeps_crashing_is_started_ever_more_slowly(
    sqlite_url: str, processes: Processes
) -> None:
    parent = start(processes, sqlite_url, 1, "crash")
    parent.wait_for(lambda: len(logged(parent, "process_ended")) >= 2, deadline=PATIENCE)
    crashes = [entry["crashes_in_a_row"] for entry in logged(parent, "process_ended")]
    assert crashes == list(range(1, len(crashes) + 1))
    assert parent.running
    assert parent.terminate() == 0


def test_pauses_double_up_to_a_limit_and_start_afresh_after_a_steady_run() -> None:
    child = under_test._Child(0, print)
    pauses = [child._pause(now=1.0) for _ in range(9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert child._pause(now=under_test.STEADY) == 0.5


async def test_a_child_that_does_not_stop_is_killed_after_the_grace(
    sqlite_url: str, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = start(processes, sqlite_url, 1, "ignore")
    await in_thread(parent.wait_for, "deaf 0")
    pid = logged(parent, "process_started")[0]["pid"]
    parent.send_signal(signal.SIGTERM)
    assert await in_thread(parent.wait) == 1
    assert gone(pid)
    assert logged(parent, "process_killed")[0]["pid"] == pid


def test_settings_travel_to_a_child_whole() -> None:
    import pickle

    settings = settings_for("sqlite:///x", shutdown_grace=timedelta(seconds=3))
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert callable(run_processes)
