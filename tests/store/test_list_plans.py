"""Lists of deliveries, and stats, are read through indexes, however many rows there are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text

from delivery_service.store import attempts, deliveries
from delivery_service.store.narrowing import Narrow
from sender.tables import metadata
from tests.support.postgres import Postgres
from wire.ids import first_id

ROWS = 1_000_000 if os.environ.get("SUREHOOK_LONG") == "1" else 200_000
START = datetime(2026, 11, 1, tzinfo=UTC)
TENANTS, ENDPOINTS = 50, 500
PENDING = 2_000
UNDELIVERED = ROWS // 20
LARGE = {"surehook_deliveries", "surehook_attempts"}


def _fill(connection: Connection) -> None:
    """One delivery a second or less, all ids of one length; the last ones are pending."""
    stem = first_id("dlv", START)[4:14]
    statements = [
        f"""
        INSERT INTO surehook_deliveries
        (id, event_id, endpoint_id, tenant_id, event_type, status, reason, undelivered, attempts,
        last_outcome, created_at, ended_at)
        SELECT 'dlv_{stem}' || lpad(i::text, 16, '0'), 'evt_' || lpad((i / 3)::text, 26, '0'),
        'ep_' || lpad((i % {ENDPOINTS})::text, 26, '0'), 't' || (i % {TENANTS}), 'a.b',
        CASE WHEN i > {ROWS - PENDING} THEN 'pending' WHEN i % 20 = 0 THEN 'dead'
        ELSE 'delivered' END,
        CASE WHEN i <= {ROWS - PENDING} AND i % 20 = 0 THEN
        CASE WHEN i % 2000 = 0 THEN 'poison' ELSE 'schedule_used_up' END END,
        i <= {ROWS - PENDING} AND i % 20 = 0, i % 7,
        CASE WHEN i % 20 = 0 THEN 'timeout' ELSE 'delivered' END, now(),
        CASE WHEN i <= {ROWS - PENDING} THEN
        timestamptz '{START}' + i * interval '1 millisecond' END
        FROM generate_series(1, {ROWS}) i""",
        """
        INSERT INTO surehook_queue (delivery_id, endpoint_id, due_at, lease_token)
        SELECT id, endpoint_id, now(), CASE WHEN attempts = 3 THEN 'lease' END
        FROM surehook_deliveries WHERE status = 'pending'""",
        f"""
        INSERT INTO surehook_attempts (id, delivery_id, endpoint_id, number, started_at, duration,
        url, kind, may_have_arrived, request_headers, response_truncated)
        SELECT 'att_{stem}' || lpad(i::text, 16, '0'), 'dlv_{stem}' || lpad(i::text, 16, '0'),
        'ep_' || lpad((i % {ENDPOINTS})::text, 26, '0'), 1, now(), 0.1, '', 'delivered', true,
        '{{}}', false FROM generate_series(1, {ROWS}) i""",
    ]
    for statement in statements:
        connection.execute(text(statement))


@pytest.fixture(scope="module", params=["analysed", "never-analysed"])
def engine(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Engine]:
    name = postgres.create_database()
    made = create_engine(postgres.url(name, driver="psycopg"))
    metadata.create_all(made)
    with made.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(text(f"ALTER TABLE {table.name} SET (autovacuum_enabled = off)"))
        _fill(connection)
    if request.param == "analysed":
        with made.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))
    yield made
    made.dispose()
    postgres.drop(name)


def _scanned(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for child in plan.get("Plans", ()):
        yield from _scanned(child)


def _plans(connection: Connection, work: Callable[[Connection], object]) -> set[str]:
    """Run ``work``; return the tables that its statements read from end to end."""
    found: set[str] = set()

    def explain(_conn: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        (plan,) = cursor.fetchone()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        found.update(_scanned(plan[0]["Plan"]))

    event.listen(connection, "before_cursor_execute", explain)
    try:
        work(connection)
    finally:
        event.remove(connection, "before_cursor_execute", explain)
    return found


ENDPOINT = "ep_" + "7".rjust(26, "0")
EVENT = "evt_" + "70".rjust(26, "0")
LATER = START + timedelta(seconds=ROWS // 2000)
FILTERS: list[tuple[dict[str, Any], Narrow]] = [
    ({}, Narrow()),
    ({"tenant_id": "t7"}, Narrow()),
    ({"endpoint_id": ENDPOINT}, Narrow()),
    ({"event_id": EVENT}, Narrow()),
    ({"event_type": "a.b"}, Narrow()),
    ({"status": "dead"}, Narrow()),
    ({"status": "pending"}, Narrow()),
    ({"status": "delivered"}, Narrow()),
    ({"since": START, "until": LATER}, Narrow()),
    ({}, Narrow(reason="poison")),
    ({"tenant_id": "t0"}, Narrow(reason="schedule_used_up")),
    ({}, Narrow(last_outcome="timeout")),
    ({"status": "dead"}, Narrow(last_outcome="timeout")),
    ({"endpoint_id": ENDPOINT}, Narrow(last_outcome="delivered")),
    ({}, Narrow(min_attempts=6)),
    ({"tenant_id": "t7"}, Narrow(min_attempts=2, max_attempts=3)),
    ({}, Narrow(in_flight=True)),
    ({}, Narrow(copy_of="dlv_" + "1".rjust(26, "0"))),
    ({}, Narrow(ended_until=LATER)),
    ({"status": "dead"}, Narrow(ended_since=START)),
]


@pytest.mark.parametrize(("where", "narrow"), FILTERS)
def test_no_list_of_deliveries_reads_them_all(
    engine: Engine, where: dict[str, Any], narrow: Narrow
) -> None:
    with engine.connect() as connection:
        scanned = _plans(connection, lambda c: deliveries.page(c, limit=51, narrow=narrow, **where))
    assert scanned & LARGE == set()


def test_stats_read_only_their_endpoint_s_attempts(engine: Engine) -> None:
    starts = [START + timedelta(hours=hour) for hour in range(24)]

    def work(connection: Connection) -> None:
        counted = attempts.count(connection, ENDPOINT, starts, timedelta(hours=1))
        assert counted[START]["delivered"].attempts == ROWS // ENDPOINTS

    with engine.connect() as connection:
        assert _plans(connection, work) & LARGE == set()
