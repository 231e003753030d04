"""Circuits, limits and fairness between endpoints."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from delivery_service.bootstrap import make_transport
from delivery_service.clock import DatabaseClock
from delivery_service.store import endpoints
from delivery_service.worker.take import Places, Turn, take
from delivery_service.worker.targets import Targets
from tests.support.engine import START, Engined, running
from tests.support.receiver import HANG, Answer, Received, Receiver
from tests.support.waiting import wait_until_async
from tests.worker.conftest import MakeEngined

FAIL = Answer(500)


class Watched:
    """The real transport, and how many requests were in flight at once, by URL."""

    def __init__(self, engined: Engined) -> None:
        self._inner = make_transport(engined.settings)
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def send(self, request: Any, deadline: float) -> Any:
        self.now[request.url] += 1
        self.most[request.url] = max(self.most[request.url], self.now[request.url])
        try:
            return await self._inner.send(request, deadline)
        finally:
            self.now[request.url] -= 1

    async def close(self) -> None:
        await self._inner.close()


async def test_a_circuit_opens_probes_once_and_recovers(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(circuit_open_after=3, circuit_first_pause=timedelta(minutes=10))
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"), schedule="1m,1m,1h", max_in_flight=1)
    ids = [engined.publish().delivery_ids[0] for _ in range(5)]
    await engined.work()
    # Three failures in a row open it; the others wait and use up no attempts.
    assert len(receiver.requests) == 3
    row = engined.row(endpoint)
    assert (row["circuit"], row["failures"], row["failing_since"]) == ("open", 3, START)
    assert row["paused_until"] == START + timedelta(minutes=10)
    engined.advance(minutes=9, seconds=59)
    await engined.work()
    assert len(receiver.requests) == 3
    # One probe, and the pause doubles.
    engined.advance(seconds=1)
    await engined.work()
    assert len(receiver.requests) == 4
    assert engined.row(endpoint)["paused_until"] == engined.now + timedelta(minutes=20)
    receiver.script("/", Answer())
    engined.advance(minutes=20)
    await engined.work()
    assert engined.row(endpoint)["circuit"] == "closed"
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}
    assert all(engined.row(endpoint)[n] == v for n, v in endpoints.HEALTHY.items())
    made = [engined.status(id_)[2] for id_ in ids]
    assert sum(made) == len(receiver.requests) == 9


async def test_a_burst_of_failures_opens_a_circuit_once(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(circuit_open_after=3, circuit_first_pause=timedelta(minutes=10))
    receiver.script("/", *[Answer(500, delay=0.02 * n) for n in range(8)], Answer())
    endpoint = engined.endpoint(receiver.url("/"))
    for _ in range(8):
        engined.publish()
    await engined.work()
    row = engined.row(endpoint)
    assert (row["circuit"], row["failures"], row["pauses"]) == ("open", 8, 1)
    assert row["paused_until"] == START + timedelta(minutes=10)


async def test_a_probe_whose_worker_died_is_not_the_last(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(circuit_open_after=1, circuit_first_pause=timedelta(minutes=10))
    receiver.script("/", FAIL, Answer())
    endpoint = engined.endpoint(receiver.url("/"), schedule="1m,1m")
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    engined.advance(minutes=10)

    places = Places(free=10, cap=10, in_flight={}, trial_free=True)
    targets = Targets(engined.settings, engined.service.sealer)
    with engined.begin() as connection:
        taken = take(connection, places, targets, Turn(), engined.settings.lease, engined.now)
    assert taken.probes == {delivery}
    engined.advance(minutes=10)
    await engined.work()
    assert engined.status(delivery)[0] == "delivered"
    assert engined.row(endpoint)["circuit"] == "closed"


async def test_failures_among_successes_open_no_circuit(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    """Never more than one failure in a row, although all were claimed at once."""
    engined = make_engined(circuit_open_after=3)
    receiver.script("/", *[Answer(), FAIL] * 8, Answer())
    endpoint = engined.endpoint(receiver.url("/"), max_in_flight=40)
    for _ in range(16):
        engined.publish()

    class OneByOne(Watched):
        """Answers come in one after another, each in a group of its own."""

        def __init__(self, engined: Engined) -> None:
            super().__init__(engined)
            self.turn = asyncio.Lock()
            self.sent = 0

        async def send(self, request: Any, deadline: float) -> Any:
            async with self.turn:
                await wait_until_async(lambda: len(recorded) == self.sent)
                self.sent += 1
                return await super().send(request, deadline)

    recorded: list[Any] = []
    transport = OneByOne(engined)
    worker = engined.worker(transport)
    worker._recorder._on_recorded = lambda group, *_: recorded.extend(group)
    await worker.run_until_idle()
    await transport.close()
    assert len(receiver.requests) == 16
    row = engined.row(endpoint)
    assert (row["circuit"], row["failures"] <= 1) == ("closed", True)


async def test_d06_a_pause_that_is_asked_for_holds_the_whole_endpoint(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", Answer(429, headers=(("Retry-After", "600"),)), Answer())
    engined.endpoint(receiver.url("/"), max_in_flight=1)
    ids = [engined.publish().delivery_ids[0] for _ in range(4)]
    await engined.work()
    assert len(receiver.requests) == 1
    engined.advance(seconds=599)
    await engined.work()
    assert len(receiver.requests) == 1
    engined.advance(seconds=1)
    await engined.work()
    assert sorted(engined.status(id_)[2] for id_ in ids) == [1, 1, 1, 2]
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_rate_limit_is_shared(engined: Engined, receiver: Receiver, workers: int) -> None:
    endpoint = engined.endpoint(receiver.url("/"), rate_limit=5.0)
    ids = [engined.publish().delivery_ids[0] for _ in range(16)]
    counts = []
    for _ in range(4):
        await asyncio.gather(*(engined.work() for _ in range(workers)))
        counts.append(len(receiver.requests))
        engined.advance(seconds=1)
    assert counts == [5, 10, 15, 16]
    # Waiting used up no attempts and counted no claims against anybody.
    assert {engined.status(id_) for id_ in ids} == {("delivered", None, 1)}
    assert engined.row(endpoint)["failures"] == 0


async def test_the_cap_of_requests_in_flight(make_engined: MakeEngined, receiver: Receiver) -> None:
    engined = make_engined(endpoint_concurrency=4)
    receiver.script("/own", Answer(delay=0.02))
    receiver.script("/", Answer(delay=0.02))
    engined.endpoint(receiver.url("/own"), max_in_flight=2)
    engined.endpoint(receiver.url("/"))
    for _ in range(12):
        engined.publish()
    watched = Watched(engined)
    await engined.work(watched)
    assert len(receiver.requests) == 24
    assert watched.most == {receiver.url("/own"): 2, receiver.url("/"): 4}


async def test_first_attempts_are_not_starved_by_retries(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(concurrency=10, endpoint_concurrency=5)
    receiver.script("/", *[FAIL] * 60, Answer())
    engined.endpoint(receiver.url("/"), schedule="1m,1m")
    no_circuit = {"circuit_open_after": 10_000}
    old = [engined.publish().delivery_ids[0] for _ in range(60)]
    service = make_engined(concurrency=10, endpoint_concurrency=5, **no_circuit)
    await service.work()
    assert len(receiver.requests) == 60
    service.advance(minutes=2)
    receiver.script("/", Answer())
    engined.clock.moment = service.now
    new = [engined.publish().delivery_ids[0] for _ in range(5)]
    await service.work()
    order = [r.header("webhook-id") for r in receiver.requests[60:]]
    assert set(order) == {*old, *new}
    # Retries that were due long before them wait no longer either: both lanes share.
    assert max(order.index(id_) for id_ in new) < 20
    assert sum(id_ in old for id_ in order[:10]) >= 4


async def test_f08_f09_endpoints_that_never_answer_hold_nobody_up(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(clock=DatabaseClock(), concurrency=20, endpoint_concurrency=10)
    receiver.script("/hole", HANG)
    engined.endpoint(receiver.url("/hole"))
    healthy = [receiver.url(f"/{number}") for number in range(10)]
    for url in healthy:
        engined.endpoint(url)
    # The black hole's backlog is there first.
    for _ in range(30):
        engined.publish()
    worker = engined.worker(shutdown_grace=timedelta(milliseconds=10))
    async with running(worker):
        await wait_until_async(
            lambda: all(len(receiver.received(f"/{number}")) == 30 for number in range(10)),
            deadline=12,
        )
        assert len(receiver.received("/hole")) <= 10


async def test_f08_a_backlog_of_one_endpoint_does_not_hide_another(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    engined = make_engined(concurrency=10)
    engined.endpoint(receiver.url("/big"))
    for _ in range(120):
        engined.publish()
    for number in range(5):
        engined.endpoint(receiver.url(f"/{number}"), event_types=["late.one"])
    engined.publish(type="late.one")
    await engined.work()
    order = [r.path for r in receiver.requests]
    assert len(order) == 126
    assert max(order.index(f"/{number}") for number in range(5)) < 50


async def test_two_workers_share_the_work(make_engined: MakeEngined, receiver: Receiver) -> None:
    """F01: each delivery is sent once, whoever claims it."""
    engined = make_engined(concurrency=10)
    for number in range(5):
        engined.endpoint(receiver.url(f"/{number}"))
    ids = {id_ for _ in range(40) for id_ in engined.publish().delivery_ids}
    await asyncio.gather(*(engined.work() for _ in range(3)))
    got = Counter(r.header("webhook-id") for r in receiver.requests)
    assert set(got) == ids
    assert set(got.values()) == {1}
    assert engined.queued() == []


async def test_answers_to_requests_from_before_the_opening_close_nothing_early(
    make_engined: MakeEngined, receiver: Receiver
) -> None:
    """Of a burst of 30, most get 429 with Retry-After, some 200: the pause is kept."""

    def answer(request: Received) -> Answer:
        return Answer(200) if request.body.endswith(b'"lucky"}') else busy

    busy = Answer(429, headers=(("Retry-After", "300"),))
    engined = make_engined()
    receiver.script("/", *[answer] * 30)
    endpoint = engined.endpoint(receiver.url("/"))
    ids = [
        engined.publish("lucky" if number % 5 == 4 else "").delivery_ids[0] for number in range(30)
    ]
    await engined.work()
    assert len(receiver.requests) == 30
    assert engined.row(endpoint)["paused_until"] == START + timedelta(seconds=300)
    engined.publish()
    await engined.work()
    assert len(receiver.requests) == 30
    receiver.script("/", Answer())
    engined.advance(seconds=300)
    await engined.work()
    await engined.work()
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}
