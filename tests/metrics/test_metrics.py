"""What the metrics say, read as Prometheus reads them."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from prometheus_client import CONTENT_TYPE_LATEST

from delivery_service.bootstrap import Service
from delivery_service.clock import ManualClock
from delivery_service.jobs import gauges
from delivery_service.jobs.operations import OperationRunner
from delivery_service.metrics import Distribution, Metrics
from delivery_service.store import endpoints, operations, workers
from tests.metrics.scraped import Scraped, scrape
from tests.support.ports import free_port
from tests.support.receiver import RESET, Answer, Receiver
from tests.support.stored import Stored, open_service
from tests.support.waiting import wait_until_async


async def refreshed(service: Service) -> Scraped:
    """The metrics right after a refresh of the gauges."""
    state = await service.database.read(gauges.state, service.settings, service.clock.now())
    service.metrics.queue_is(state)
    return scrape(service.metrics)


async def test_h02_h04_the_age_of_the_oldest_due_delivery_grows_while_no_worker_works(
    stored: Stored, clock: ManualClock, receiver: Receiver
) -> None:
    service = stored.service
    await stored.endpoint(receiver.url("/a"))
    assert (await refreshed(service)).value("oldest_due_age_seconds") == 0
    await stored.publish()
    clock.advance(timedelta(minutes=5))
    await stored.publish()
    clock.advance(timedelta(minutes=5))

    late = await refreshed(service)
    assert late.value("oldest_due_age_seconds") == pytest.approx(600, abs=0.01)
    assert late.value("due_deliveries") == 2

    await stored.work()
    caught_up = await refreshed(service)
    assert caught_up.value("oldest_due_age_seconds") == 0
    assert caught_up.value("due_deliveries") == 0
    assert caught_up.value("first_attempt_delay_seconds_sum") == pytest.approx(900, abs=0.1)
    assert caught_up.value("first_attempt_delay_seconds_bucket", le="300.0") == 1


async def test_f38_h02_a_worker_that_is_not_there_is_seen_missing(
    stored: Stored, clock: ManualClock
) -> None:
    """A process without a worker, such as an API, tells it from the database alone."""
    service = stored.service
    await stored.endpoint()
    await stored.publish()
    assert (await refreshed(service)).value("workers_seen") == 0
    await stored.database.write(workers.seen, "wrk_1", "host", 1, stored.now)
    assert (await refreshed(service)).value("workers_seen") == 1

    clock.advance(timedelta(minutes=2))
    now_gone = await refreshed(service)
    assert now_gone.value("workers_seen") == 0
    assert now_gone.value("worker_up") == 0
    assert now_gone.value("oldest_due_age_seconds") == pytest.approx(120, abs=0.01)


async def test_waiting_retries_and_leases_are_not_due(
    stored: Stored, clock: ManualClock, receiver: Receiver
) -> None:
    receiver.script("/a", Answer(500))
    endpoint_id = await stored.endpoint(receiver.url("/a"))
    await stored.publish()
    await stored.work()
    clock.advance(timedelta(seconds=59))
    assert (await refreshed(stored.service)).value("due_deliveries") == 0
    clock.advance(timedelta(seconds=2))
    assert (await refreshed(stored.service)).value("due_deliveries") == 1
    assert await stored.claim(endpoint_id, lane=1)
    assert (await refreshed(stored.service)).value("due_deliveries") == 0


async def test_attempts_are_counted_by_kind_and_deliveries_by_their_end(
    stored: Stored, receiver: Receiver
) -> None:
    for path, answer in (
        ("/ok", Answer(204)),
        ("/no", Answer(500)),
        ("/moved", Answer(302)),
        ("/reset", RESET),
    ):
        receiver.script(path, answer)
        await stored.endpoint(receiver.url(path), schedule="1h")
    await stored.endpoint(f"http://127.0.0.1:{free_port()}/", schedule="1h")
    await stored.publish()
    await stored.work()

    seen = scrape(stored.service.metrics)
    kinds = ("delivered", "status", "redirect", "protocol", "connect")
    assert {kind: seen.value("attempts_total", kind=kind) for kind in kinds} == dict.fromkeys(
        kinds, 1.0
    )
    assert seen.value("ended_deliveries_total", status="delivered") == 1
    assert seen.value("ended_deliveries_total", status="dead") is None
    assert seen.value("attempt_duration_seconds_count") == 5
    assert seen.value("first_attempt_delay_seconds_count") == 5
    assert seen.value("claim_rows_sum") == 5
    assert seen.value("record_rows_sum") == 5
    assert seen.value("record_seconds_count") == seen.value("record_rows_count")
    assert seen.value("late_attempts_total") == 0


async def test_only_first_attempts_count_as_waiting(
    stored: Stored, clock: ManualClock, receiver: Receiver
) -> None:
    receiver.script("/a", Answer(500), Answer(500), Answer(200))
    await stored.endpoint(receiver.url("/a"), schedule="1h,1h")
    await stored.publish()
    for _ in range(3):
        await stored.work()
        clock.advance(timedelta(hours=1, seconds=1))
    seen = scrape(stored.service.metrics)
    assert seen.value("attempt_duration_seconds_count") == 3
    assert seen.value("first_attempt_delay_seconds_count") == 1


async def test_a_delivery_that_ends_without_an_attempt_is_no_attempt(
    stored: Stored, receiver: Receiver
) -> None:
    endpoint_id = await stored.endpoint(receiver.url("/a"))
    await stored.publish()
    # By hand, so that the delivery is still queued: whoever disables ends what is pending.
    await stored.database.write(
        endpoints.change,
        endpoint_id,
        {"status": "disabled", "disabled_reason": "operator"},
        stored.now,
    )
    await stored.work()
    seen = scrape(stored.service.metrics)
    assert seen.value("ended_deliveries_total", status="skipped") == 1
    assert seen.value("attempt_duration_seconds_count") == 0
    assert receiver.requests == []


async def test_requests_in_flight_and_connections(sqlite_url: str, receiver: Receiver) -> None:
    async with open_service(sqlite_url) as service:
        stored = Stored(service)
        answer = threading.Event()

        def held(_request: object) -> Answer:
            answer.wait(20)
            return Answer()

        receiver.script("/a", Answer(), Answer(), held)
        await stored.endpoint(receiver.url("/a"), max_in_flight=1)
        worker = service.worker()
        assert scrape(service.metrics).value("in_flight") is None
        running = asyncio.create_task(worker.run())

        def idle() -> bool:
            seen = scrape(service.metrics)
            return seen.value("in_flight") == seen.value("recorder_backlog") == 0

        try:
            for count in (1, 2, 3):
                await wait_until_async(idle)
                await stored.publish()
                worker.poke()
                await wait_until_async(lambda count=count: len(receiver.requests) == count)
            seen = scrape(service.metrics)
            assert seen.value("in_flight") == 1
            assert seen.value("worker_up") == 1
            assert seen.value("recorder_backlog") == 0
            assert seen.value("connections_opened_total") == receiver.connections
            assert seen.value("connections_reused_total") == 3 - receiver.connections
        finally:
            answer.set()
            worker.stop()
            await running
        assert scrape(service.metrics).value("worker_up") == 0


async def test_late_attempts_are_counted(
    stored: Stored, clock: ManualClock, receiver: Receiver
) -> None:
    """Its lease passes to another worker while the answer is on its way."""
    endpoint_id = await stored.endpoint(receiver.url("/a"))
    await stored.publish()
    taken = asyncio.Event()
    loop = asyncio.get_running_loop()
    gone_on = asyncio.Event()

    def answer(_request: object) -> Answer:
        loop.call_soon_threadsafe(taken.set)
        asyncio.run_coroutine_threadsafe(gone_on.wait(), loop).result(10)
        return Answer(200)

    receiver.script("/a", answer)
    working = asyncio.create_task(stored.work())
    await taken.wait()
    clock.advance(timedelta(minutes=2))
    assert await stored.claim(endpoint_id)
    gone_on.set()
    await working

    seen = scrape(stored.service.metrics)
    assert seen.value("late_attempts_total") == 1
    assert seen.value("attempts_total", kind="delivered") == 1
    assert seen.value("ended_deliveries_total", status="delivered") is None


async def test_endpoints_and_circuits(
    stored: Stored, clock: ManualClock, receiver: Receiver
) -> None:
    receiver.script("/a", Answer(500))
    broken = await stored.endpoint(receiver.url("/a"), schedule="1h")
    disabled, _healthy = await stored.endpoint(), await stored.endpoint()
    await stored.database.write(endpoints.disable, disabled, "operator", stored.now)
    await stored.database.write(
        endpoints.change, broken, {"failures": 9, "failing_since": stored.now}, stored.now
    )
    assert (await refreshed(stored.service)).value("circuits", state="open") == 0
    await stored.publish()
    await stored.work()

    seen = await refreshed(stored.service)
    assert seen.value("circuits", state="open") == 1
    assert seen.value("circuits", state="closed") == 1
    assert seen.value("endpoints", status="enabled") == 2
    assert seen.value("endpoints", status="disabled") == 1


async def test_h04_an_operation_without_progress_is_seen(
    stored: Stored, clock: ManualClock
) -> None:
    service, database = stored.service, stored.database
    lease = timedelta(minutes=1)

    async def seen() -> tuple[float | None, ...]:
        now = await refreshed(service)
        numbers = [now.value("operations", status=status) for status in ("queued", "running")]
        return (*numbers, now.value("operation_idle_seconds"))

    async def add() -> str:
        where = {"since": "2026-11-29T08:00:00Z"}
        return (await database.write(operations.add, "cancel", where, now=stored.now)).id

    assert await seen() == (0, 0, 0)
    first = await add()
    clock.advance(timedelta(minutes=3))
    second = await add()
    assert await seen() == (2, 0, 180), "nobody has begun"

    for token in ("one", "another"):  # each is killed by it
        assert await database.write(operations.claim, first, token, lease, stored.now)
        clock.advance(timedelta(minutes=2))
    assert await seen() == (1, 1, 420)

    await database.write(operations.advance, first, {"matched": 1}, stored.now, is_end=False)
    clock.advance(timedelta(seconds=1))
    assert await seen() == (1, 1, 1), "the one behind it only waits"
    await database.write(operations.cancel, first, stored.now)
    assert await seen() == (1, 0, 241)
    await OperationRunner(service.settings, database, clock, only=second).run_next()
    assert await seen() == (0, 0, 0)


async def test_labels_name_no_tenant_endpoint_or_event_type(
    stored: Stored, receiver: Receiver
) -> None:
    for tenant in ("one", "two"):
        await stored.endpoint(receiver.url(f"/{tenant}"), tenant=tenant)
        await stored.publish(tenant=tenant, type=f"type.of_{tenant}")
    await stored.work()
    seen = await refreshed(stored.service)
    assert seen.label_names == {"kind", "status", "state", "le"}


async def test_f27_a_long_transaction_elsewhere_stops_neither_work_nor_gauges(
    postgresql_url: str, receiver: Receiver
) -> None:
    async with open_service(postgresql_url) as service:
        stored = Stored(service)
        await stored.endpoint(receiver.url("/a"))
        async with service.database.engine.connect() as idle:
            await idle.execution_options(isolation_level="REPEATABLE READ")
            await idle.exec_driver_sql("SELECT count(*) FROM surehook_queue")
            for _ in range(50):
                await stored.publish()
            await stored.work()
            assert len(receiver.requests) == 50
            assert (await refreshed(service)).value("oldest_due_age_seconds") == 0


async def test_due_deliveries_are_counted_up_to_a_limit(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "MOST_COUNTED", 3)
    await stored.endpoint()
    for _ in range(5):
        await stored.publish()
    assert (await refreshed(stored.service)).value("due_deliveries") == 3


def test_a_database_that_does_not_answer_leaves_no_stale_gauges() -> None:
    metrics = Metrics()
    assert scrape(metrics).value("database_up") is None
    metrics.queue_is(None)
    seen = scrape(metrics)
    assert seen.value("database_up") == 0
    assert seen.value("oldest_due_age_seconds") is None


def test_render_says_what_it_is() -> None:
    body, content_type = Metrics().render()
    assert content_type == CONTENT_TYPE_LATEST
    seen = Scraped(body.decode())
    assert all(family.documentation for family in seen.families)
    assert {"process_cpu_seconds", "python_info"} <= {family.name for family in seen.families}


def test_distributions_count_what_prometheus_counts() -> None:
    ours = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.100001, 1.0, 7.0):
        ours.add(value)
    (family,) = [ours.family("x", "About x.")]
    counts = {s.labels["le"]: s.value for s in family.samples if s.name == "x_bucket"}
    assert counts == {"0.1": 2, "1.0": 4, "+Inf": 5}
    assert {s.name: s.value for s in family.samples}["x_sum"] == pytest.approx(8.250001)


def test_clocks_that_disagree_give_no_negative_waits() -> None:
    metrics = Metrics()
    metrics.attempt("delivered", 0.1, -3600.0)
    seen = scrape(metrics)
    assert seen.value("first_attempt_delay_seconds_sum") == 0
    assert seen.value("first_attempt_delay_seconds_count") == 1
