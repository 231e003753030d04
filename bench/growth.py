"""Does history slow the claim? Claim and record, per delivery, without any HTTP.

With 10 thousand and with 5 million finished deliveries in the tables, and with 1 and with 10,000
endpoints that have work due. The yardstick of each is its smaller case.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, text

from bench.rig import Rig, postgresql_rig
from delivery_service.bootstrap import Service, build
from delivery_service.net.transport import PreparedRequest
from delivery_service.policy.health import HealthRules
from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.worker.attempt import LeaseTime, make_attempt
from delivery_service.worker.record import record
from delivery_service.worker.take import Places, Turn, take
from delivery_service.worker.targets import Targets
from wire.secrets import generate_secret

FINISHED = (10_000, 5_000_000)
ENDPOINTS = (1, 10_000)
DUE = 20_000
ROUNDS = 90
MEASURED = 30
"""The last rounds: by then a worker has met every endpoint once, and knows its secrets."""
PLACES = 200


def run(finished: tuple[int, int] = FINISHED) -> dict[str, Any]:
    """Microseconds a delivery in the four cases."""
    figures: dict[str, float] = {}
    with postgresql_rig() as rig:
        _fill(rig, finished[0], 100)
        figures[f"with_{finished[0]}_finished_us"] = _cost(rig)
        _fill(rig, finished[1] - finished[0], 100, offset=1)
        figures[f"with_{finished[1]}_finished_us"] = _cost(rig)
    for endpoints in ENDPOINTS:
        with postgresql_rig() as rig:
            _fill(rig, 0, endpoints)
            figures[f"with_{endpoints}_endpoints_us"] = _cost(rig)
    few, many, one, thousands = figures.values()
    return {
        "name": "growth",
        "figures": figures,
        "yardstick": {"few_finished_us": few, "one_endpoint_us": one},
        "ratio": {"finished": many / few, "endpoints": thousands / one},
    }


def _fill(rig: Rig, finished: int, endpoints: int, offset: int = 0) -> None:
    """Store finished deliveries with their attempts, and ``DUE`` new ones over the endpoints."""
    start = offset * 100_000_000

    async def work(service: Service) -> None:
        sealed = service.sealer.seal(generate_secret())
        await service.database.write(_fill_tables, sealed, start, finished, endpoints)
        async with service.database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.exec_driver_sql("VACUUM ANALYZE")

    rig.with_options(database_timeout=3600).run(work)


def _fill_tables(
    connection: Connection, sealed: bytes, start: int, finished: int, endpoints: int
) -> None:
    endpoint = f"'ep_' || lpad(((i % {endpoints}) + 1)::text, 26, '0')"
    delivery = f"'dlv_' || lpad(({start} + i)::text, 26, '0')"
    events = """
        INSERT INTO surehook_events (id, tenant_id, type, body, content_type, created_at)
        VALUES ('evt_0', 'acme', 'a.b', '{}', 'application/json', now()) ON CONFLICT DO NOTHING"""
    their_endpoints = f"""
        INSERT INTO surehook_endpoints (id, tenant_id, url, created_at, updated_at)
        SELECT {endpoint}, 'acme', 'https://h.example/', now(), now()
        FROM generate_series(0, {endpoints - 1}) i ON CONFLICT DO NOTHING"""
    secrets = f"""
        INSERT INTO surehook_secrets (id, endpoint_id, ciphertext, created_at)
        SELECT 'sec' || i, {endpoint}, :sealed, now()
        FROM generate_series(0, {endpoints - 1}) i ON CONFLICT DO NOTHING"""
    deliveries = f"""
        INSERT INTO surehook_deliveries
        (id, event_id, endpoint_id, tenant_id, event_type, status, attempts, created_at)
        SELECT {delivery}, 'evt_0', {endpoint}, 'acme', 'a.b',
        CASE WHEN i > {finished} THEN 'pending' ELSE 'delivered' END,
        CASE WHEN i > {finished} THEN 0 ELSE 1 END, now()
        FROM generate_series(1, {finished + DUE}) i"""
    attempts = f"""
        INSERT INTO surehook_attempts (id, delivery_id, endpoint_id, number, started_at, duration,
        url, kind, may_have_arrived, request_headers, response_truncated)
        SELECT 'att_' || lpad(({start} + i)::text, 26, '0'), {delivery}, {endpoint}, 1, now(), 0.1,
        'https://h.example/', 'delivered', true, '{{}}', false
        FROM generate_series(1, {finished}) i"""
    queue = f"""
        INSERT INTO surehook_queue (delivery_id, endpoint_id, due_at)
        SELECT {delivery}, {endpoint}, now() - interval '1 s' * random()
        FROM generate_series({finished + 1}, {finished + DUE}) i"""
    for statement in (events, their_endpoints, deliveries, attempts, queue):
        connection.execute(text(statement))
    connection.execute(text(secrets), {"sealed": sealed})


class _Instant:
    """A receiver that has answered already."""

    connections_opened = connections_reused = 0

    async def send(self, request: PreparedRequest, deadline: float) -> Outcome:
        return Outcome(OutcomeKind.DELIVERED, status_code=200, response_body=b"ok")

    async def close(self) -> None:
        pass


def _cost(rig: Rig) -> float:
    """Median microseconds a delivery of claiming and recording a group."""
    cost: float = asyncio.run(_rounds(build(rig.settings())))
    return cost


async def _rounds(service: Service) -> float:
    settings = service.settings
    targets = Targets(settings, service.sealer)
    sending = replace(service.sending(), transport=_Instant(), targets=targets)
    places = Places(PLACES, PLACES, {}, trial_free=True)
    turn, costs = Turn(), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        taken = await service.database.write(take, places, targets, turn, settings.lease, None)
        middle = time.perf_counter()
        now = LeaseTime(taken.work[0].claimed_at, service.clock.monotonic(), service.clock)
        results = [await make_attempt(sending, claimed, now) for claimed in taken.work]
        again = time.perf_counter()
        await service.database.write(record, results, HealthRules(), None)
        spent = middle - start + time.perf_counter() - again
        costs.append(spent / len(results) * 1e6)
        turn = taken.next
    await service.close()
    return statistics.median(costs[-MEASURED:])
