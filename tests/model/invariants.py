"""What must hold after every step, read from the database and compared with what is expected."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select

from sender import tables
from tests.model.expected import Expected

ROUNDING = timedelta(milliseconds=2)
"""SQLite's times have milliseconds."""

Rows = list[dict[str, Any]]


def check(connection: Connection, expected: Expected) -> None:
    """Compare everything. Raises AssertionError at the first thing that is not as it must be."""
    deliveries = {row["id"]: row for row in _rows(connection, tables.deliveries)}
    queue = {row["delivery_id"]: row for row in _rows(connection, tables.queue)}
    attempts = _rows(connection, tables.attempts)
    _check_deliveries(deliveries, expected)
    _check_queue(queue, deliveries, expected)
    _check_attempts(attempts, deliveries, expected)
    for row in _rows(connection, tables.endpoints):
        endpoint = expected.endpoints[row["id"]]
        assert (row["deleted_at"] is not None) == endpoint.deleted
        if not endpoint.deleted:
            assert (row["status"] == "enabled") == endpoint.enabled
            assert row["disabled_reason"] == endpoint.disabled_reason


def _rows(connection: Connection, table: Any) -> Rows:
    return [row._asdict() for row in connection.execute(select(table))]


def _check_deliveries(deliveries: dict[str, Any], expected: Expected) -> None:
    """Nothing lost, and no state but the expected: a terminal one is only left by redeliver."""
    assert deliveries.keys() == expected.deliveries.keys()
    for id_, row in deliveries.items():
        delivery = expected.deliveries[id_]
        assert (row["status"], row["reason"]) == (delivery.status, delivery.reason), delivery
        assert row["attempts"] == delivery.attempts, id_
        assert row["attempts_before"] == delivery.attempts_before, id_
        assert row["undelivered"] == (row["status"] not in ("pending", "delivered")), id_
        assert (row["ended_at"] is None) == (row["status"] == "pending"), id_
        assert row["status"] in ("pending", "delivered") or row["reason"], id_


def _check_queue(queue: dict[str, Any], deliveries: dict[str, Any], expected: Expected) -> None:
    """Each queue row has its pending delivery and the reverse; leases are as handed out."""
    pending = {id_ for id_, row in deliveries.items() if row["status"] == "pending"}
    assert queue.keys() == pending
    for id_, row in queue.items():
        delivery = expected.deliveries[id_]
        assert row["endpoint_id"] == delivery.endpoint_id
        assert row["claims"] == delivery.claims, id_
        assert row["lease_token"] == (delivery.lease and delivery.lease.token), id_
        if delivery.due is not None:
            assert _near(row["due_at"], delivery.due), (id_, row["due_at"], delivery.due)


def _check_attempts(attempts: Rows, deliveries: dict[str, Any], expected: Expected) -> None:
    """Numbered 1 to n without gaps; every result that was committed is there, and once."""
    numbers: dict[str, list[int]] = defaultdict(list)
    late: dict[str, int] = defaultdict(int)
    for row in attempts:
        if row["late"]:
            late[row["delivery_id"]] += 1
        else:
            numbers[row["delivery_id"]].append(row["number"])
    assert {row["id"] for row in attempts} == expected.recorded
    for id_, row in deliveries.items():
        assert sorted(numbers[id_]) == list(range(1, row["attempts"] + 1)), id_
        assert late[id_] == expected.deliveries[id_].late, id_


def _near(one: datetime, other: datetime) -> bool:
    return abs(one - other) <= ROUNDING
