"""The engine's statements read the rows they need, whatever the tables hold and whatever the
planner has been told about them (F25, F26).

The queue changes faster than its statistics, so each plan is looked at with statistics that are
missing, current, and wrong: taken when the tables were empty, or when one endpoint had it all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text

from delivery_service.policy.sharing import Want
from delivery_service.store import deliveries, due, queue, settle
from sender.tables import metadata
from tests.support.postgres import Postgres

LARGE = {"surehook_queue", "surehook_deliveries", "surehook_events", "surehook_endpoints"}
ENDPOINTS = 2_000
BACKLOG = 60_000
"""Due rows of one endpoint; each of the others has one."""
FINISHED = 60_000


def _endpoint(number: int | str) -> str:
    return f"'ep_' || lpad(({number})::text, 26, '0')"


def _fill(connection: Connection, endpoints: int, backlog: int, finished: int) -> None:
    rows = endpoints + backlog + finished
    its_endpoint = _endpoint(f"CASE WHEN i <= {endpoints} THEN i ELSE 1 END")
    events = f"""
        INSERT INTO surehook_events (id, tenant_id, type, body, content_type, created_at)
        SELECT 'evt_' || lpad(i::text, 26, '0'), 'acme', 'a.b', '{{}}', 'application/json', now()
        FROM generate_series(1, {endpoints}) i"""
    their_endpoints = f"""
        INSERT INTO surehook_endpoints (id, tenant_id, url, created_at, updated_at)
        SELECT {_endpoint("i")}, 'acme', 'https://h.example/', now(), now()
        FROM generate_series(1, {endpoints}) i"""
    all_deliveries = f"""
        INSERT INTO surehook_deliveries
        (id, event_id, endpoint_id, tenant_id, event_type, status, created_at)
        SELECT 'dlv_' || lpad(i::text, 26, '0'), 'evt_' || lpad('1', 26, '0'), {its_endpoint},
        'acme', 'a.b', CASE WHEN i <= {endpoints + backlog} THEN 'pending' ELSE 'delivered' END,
        now() FROM generate_series(1, {rows}) i"""
    their_queue = """
        INSERT INTO surehook_queue (delivery_id, endpoint_id, due_at)
        SELECT id, endpoint_id, now() - interval '1 minute' FROM surehook_deliveries
        WHERE status = 'pending'"""
    for statement in (events, their_endpoints, all_deliveries, their_queue):
        connection.execute(text(statement))


def _analyze(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def _never(engine: Engine) -> None:
    with engine.begin() as connection:
        _fill(connection, ENDPOINTS, BACKLOG, FINISHED)


def _current(engine: Engine) -> None:
    _never(engine)
    _analyze(engine)


def _when_empty(engine: Engine) -> None:
    _analyze(engine)
    _never(engine)


def _when_one_endpoint_had_it_all(engine: Engine) -> None:
    with engine.begin() as connection:
        _fill(connection, 1, 5_000, 10)
    _analyze(engine)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(LARGE)}"))
        _fill(connection, ENDPOINTS, BACKLOG, FINISHED)


@pytest.fixture(
    params=[_never, _current, _when_empty, _when_one_endpoint_had_it_all],
    ids=["never-analysed", "analysed", "analysed-when-empty", "analysed-with-one-endpoint"],
)
def engine(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Engine]:
    name = postgres.create_database()
    made = create_engine(postgres.url(name, driver="psycopg"))
    metadata.create_all(made)
    with made.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Or it might bring the statistics up to date behind the test's back.
        for table in metadata.sorted_tables:
            connection.execute(text(f"ALTER TABLE {table.name} SET (autovacuum_enabled = off)"))
    request.param(made)
    yield made
    made.dispose()
    postgres.drop(name)


def _scans(plan: dict[str, Any]) -> Iterator[str]:
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for child in plan.get("Plans", ()):
        yield from _scans(child)


def _explain(connection: Connection, work: Callable[[Connection], object]) -> dict[str, set[str]]:
    """Run ``work``; return for each of its statements the tables that it reads from end to end."""
    found: dict[str, set[str]] = {}

    def explain(conn: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        (plan,) = cursor.fetchone()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        found[statement] = set(_scans(plan[0]["Plan"]))

    event.listen(connection, "before_cursor_execute", explain)
    try:
        work(connection)
    finally:
        event.remove(connection, "before_cursor_execute", explain)
    return found


def test_f25_claim_and_record_never_read_a_large_table_from_end_to_end(engine: Engine) -> None:
    def work(connection: Connection) -> None:
        assert due.scan(connection, "").lanes
        wants = [Want(f"ep_{number:026}", 0, 2) for number in range(1, 101)]
        claimed = queue.claim(connection, wants, "lease", timedelta(minutes=1))
        assert len(claimed) == 101
        leases = [{"delivery_id": row.delivery_id, "token": "lease"} for row in claimed]
        assert len(settle.remove(connection, leases[:60])) == 60
        retries = [{**lease, "delay": 60.0} for lease in leases[60:80]]
        assert len(settle.reschedule(connection, retries)) == 20
        back = [{**lease, "delay": 0.0, "claims": 1} for lease in leases[80:]]
        assert len(settle.give_back(connection, back)) == 21
        changes = [
            {"id": row.delivery_id, "attempted": 1, "status": "delivered", "reason": None}
            for row in claimed[:60]
        ]
        deliveries.apply(connection, changes)

    with engine.connect() as connection:
        scans = _explain(connection, work)
    assert len(scans) >= 8
    assert {statement: tables & LARGE for statement, tables in scans.items()} == {
        statement: set() for statement in scans
    }


def test_f25_a_claim_touches_no_more_rows_than_it_takes(engine: Engine) -> None:
    """With 60,000 rows behind one endpoint, a claim reads the rows it returns and a few more."""
    wants = [Want(f"ep_{number:026}", 0, 2) for number in range(1, 101)]
    with engine.connect() as connection:
        connection.execute(
            text("SELECT pg_stat_reset_single_table_counters('surehook_queue'::regclass)")
        )
        connection.commit()
        due.scan(connection, "")
        claimed = queue.claim(connection, wants, "lease", timedelta(minutes=1))
        connection.commit()
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.commit()
        row = connection.execute(
            text(
                "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables"
                " WHERE relname = 'surehook_queue'"
            )
        ).one()
    assert len(claimed) == 101
    assert row.seq_tup_read == 0
    steps = 3 * due.STEPS  # the loose scan looks at an endpoint and at its two lanes
    assert row.idx_tup_fetch <= len(claimed) + due.PEEK + steps + 2
