"""The worker's peak memory: with 1,000,000 deliveries due, and with receivers whose answers do
not end. The yardstick is the same worker with nothing to do."""

from __future__ import annotations

import time
from typing import Any

import psutil
from sqlalchemy import Connection, text

from bench.rig import Rig, Target, postgresql_rig, running_target, wait_for
from delivery_service.bootstrap import Service

DUE = 1_000_000
ENDPOINTS = 100
SECONDS = 15.0
MIB = 2**20


def run(due: int = DUE) -> dict[str, Any]:
    """Peak resident memory of one worker process, in MiB."""
    with running_target(ENDPOINTS) as target:
        idle = _peak(target, "/ok", 0)
        backlog = _peak(target, "/ok", due)
        endless = _peak(target, "/endless", 20_000)
    return {
        "name": "memory",
        "figures": {"with_backlog_mib": backlog, "with_endless_answers_mib": endless},
        "yardstick": {"idle_mib": idle},
        "ratio": {"with_backlog": backlog / idle, "with_endless_answers": endless / idle},
    }


def _peak(target: Target, path: str, due: int) -> float:
    with postgresql_rig() as rig:
        rig.add_endpoints([target.url(number, path) for number in range(ENDPOINTS)])
        rig.publish(1)
        if due:
            _multiply(rig, due)
        target.reset()
        with rig.workers() as worker:
            wait_for(lambda: target.stats()["count"] > 0, 60)
            return _watch(worker)


def _watch(worker: psutil.Process) -> float:
    peak = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        peak = max(peak, worker.memory_info().rss)
        time.sleep(0.02)
    return peak / MIB


def _multiply(rig: Rig, due: int) -> None:
    """Make many deliveries of the few that there are."""

    def work(connection: Connection) -> None:
        connection.execute(
            text(
                "INSERT INTO surehook_deliveries"
                " (id, event_id, endpoint_id, tenant_id, event_type, status, created_at)"
                " SELECT left(d.id, 20) || lpad(i::text, 10, '0') || row_number() OVER (), "
                " event_id, endpoint_id, tenant_id, event_type, status, created_at"
                " FROM surehook_deliveries d CROSS JOIN generate_series(1, :times) i"
            ),
            {"times": due // ENDPOINTS},
        )
        connection.execute(
            text(
                "INSERT INTO surehook_queue (delivery_id, endpoint_id, due_at)"
                " SELECT id, endpoint_id, now() FROM surehook_deliveries ON CONFLICT DO NOTHING"
            )
        )

    async def inside(service: Service) -> None:
        await service.database.write(work)

    rig.with_options(database_timeout=3600).run(inside)
