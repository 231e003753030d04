"""The state of the work as a whole, for the metrics."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from delivery_service.metrics import QueueState
from delivery_service.settings import Settings
from delivery_service.store import backlog, endpoints, operations, workers

MOST_COUNTED = 10_000
"""Due rows counted at most, some 5 ms: every process asks, and a backlog is no time to add to the
database's work. Beyond that the age says more than the number."""


def state(connection: Connection, settings: Settings, now: datetime | None = None) -> QueueState:
    """Ask the database for what the gauges show."""
    pulse = workers.pulse(connection, now)
    at, oldest = pulse["now"], pulse["oldest_due"]
    assert at is not None  # noqa: S101 - the database always knows the time
    seen = [at - row["seen_at"] for row in workers.all_seen(connection)]
    unfinished, idle = operations.unfinished(connection, now)
    return QueueState(
        oldest_due_age=0.0 if oldest is None else max(0.0, (at - oldest).total_seconds()),
        due=backlog.due(connection, MOST_COUNTED, now),
        workers=sum(age <= settings.ready_worker_age for age in seen),
        endpoints={"enabled": 0, "disabled": 0, **endpoints.counts(connection)},
        circuits={"closed": 0, "open": 0, **backlog.circuits(connection)},
        operations={operations.QUEUED: 0, operations.RUNNING: 0, **unfinished},
        operation_idle=idle.total_seconds(),
    )
