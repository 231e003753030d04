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
    with postgresql_rig() as small, postgresql_rig() as large:
        _fill(small, 0, ENDPOINTS[0])
        _fill(large, 0, ENDPOINTS[1])
        one, thousands = _costs(small, large)
    with postgresql_rig() as small, postgresql_rig() as large:
        _fill(small, finished[0], 100)
        _fill(large, finished[1], 100)
        few, many = _costs(small, large)
    figures = {
        f"with_{ENDPOINTS[0]}_endpoints_us": one,
        f"with_{ENDPOINTS[1]}_endpoints_us": thousands,
        f"with_{finished[0]}_finished_us": few,
        f"with_{finished[1]}_finished_us": many,
    }
    return {
        "name": "growth",
        "figures": figures,
        "yardstick": {"few_finished_us": few, "one_endpoint_us": one},
        "ratio": {"finished": many / few, "endpoints": thousands / one},
    }


def _fill(rig: Rig, finished: int, endpoints: int) -> None:
    """Store finished deliveries with their attempts, and ``DUE`` new ones over the endpoints."""

    async def work(service: Service) -> None:
        sealed = service.sealer.seal(generate_secret())
        await service.database.write(_fill_tables, sealed, finished, endpoints)
        async with service.database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.exec_driver_sql("VACUUM ANALYZE")
            # What the filling left to write is no part of what is measured.
            await connection.exec_driver_sql("CHECKPOINT")

    rig.with_options(database_timeout=3600).run(work)


def _fill_tables(connection: Connection, sealed: bytes, finished: int, endpoints: int) -> None:
    endpoint = f"'ep_' || lpad(((i % {endpoints}) + 1)::text, 26, '0')"
    delivery = "'dlv_' || lpad(i::text, 26, '0')"
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
        SELECT 'att_' || lpad(i::text, 26, '0'), {delivery}, {endpoint}, 1, now(), 0.1,
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


def _costs(first: Rig, second: Rig) -> tuple[float, float]:
    """Median microseconds a delivery of claiming and recording a group, in turns: whatever else
    the machine does happens to both."""
    return asyncio.run(_rounds(build(first.settings()), build(second.settings())))


async def _rounds(*services: Service) -> tuple[float, float]:
    workers = [_Worker(service) for service in services]
    costs = [[await worker.round() for worker in workers] for _ in range(ROUNDS)]
    for service in services:
        await service.close()
    first, second = (statistics.median(each[-MEASURED:]) for each in zip(*costs, strict=True))
    return first, second


class _Worker:
    """Claims and records, group after group."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._targets = Targets(service.settings, service.sealer)
        self._sending = replace(service.sending(), transport=_Instant(), targets=self._targets)
        self._places = Places(PLACES, PLACES, {}, trial_free=True)
        self._turn = Turn()

    async def round(self) -> float:
        """Microseconds a delivery."""
        service, lease = self._service, self._service.settings.lease
        start = time.perf_counter()
        taken = await service.database.write(
            take, self._places, self._targets, self._turn, lease, None
        )
        spent = time.perf_counter() - start
        now = LeaseTime(taken.work[0].claimed_at, service.clock.monotonic(), service.clock)
        results = [await make_attempt(self._sending, claimed, now) for claimed in taken.work]
        start = time.perf_counter()
        await service.database.write(record, results, HealthRules(), None)
        spent += time.perf_counter() - start
        self._turn = taken.next
        return spent / len(results) * 1e6
