"""Endpoints that are disabled, deleted, gone or changed, and deliveries that people act on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from delivery_service.store import deliveries, endpoints
from tests.support.engine import START, Engined
from tests.support.receiver import Answer, Received, Receiver
from tests.support.tables import stored
from tests.support.waiting import wait_until_async
from wire import generate_secret

FAIL = Answer(500)

Act = Callable[[Engined, str, str], None]


def disable(engined: Engined, endpoint: str, _delivery: str) -> None:
    with engined.begin() as connection:
        assert endpoints.disable(connection, endpoint, "operator", engined.now)


def delete(engined: Engined, endpoint: str, _delivery: str) -> None:
    with engined.begin() as connection:
        assert endpoints.remove(connection, endpoint, engined.now)


def cancel(engined: Engined, _endpoint: str, delivery: str) -> None:
    with engined.begin() as connection:
        assert deliveries.cancel(connection, delivery, engined.now)


ACTS = [
    pytest.param(disable, "skipped", "endpoint_disabled", id="disable"),
    pytest.param(delete, "cancelled", "endpoint_deleted", id="delete"),
    pytest.param(cancel, "cancelled", "cancelled", id="cancel"),
]


@pytest.mark.parametrize(("act", "status", "reason"), ACTS)
async def test_f03_f04_during_backoff(
    engined: Engined, receiver: Receiver, act: Act, status: str, reason: str
) -> None:
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    act(engined, endpoint, delivery)
    assert engined.status(delivery) == (status, reason, 1)
    assert engined.queued() == []
    engined.advance(days=1)
    await engined.work()
    assert len(receiver.requests) == 1
    assert len(engined.attempts(delivery)) == 1


@pytest.mark.parametrize("answer", [FAIL, Answer(200), Answer(410)], ids=["500", "200", "410"])
@pytest.mark.parametrize(("act", "status", "reason"), ACTS)
async def test_f03_f04_during_a_send(
    engined: Engined, receiver: Receiver, act: Act, status: str, reason: str, answer: Answer
) -> None:
    """What is in flight ends, and is kept as late; nothing follows."""

    def meanwhile(_request: Received) -> Answer:
        act(engined, endpoint, delivery)
        return answer

    receiver.script("/", meanwhile)
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    engined.advance(days=1)
    await engined.work()
    assert len(receiver.requests) == 1
    assert engined.status(delivery) == (status, reason, 0)
    (attempt,) = engined.attempts(delivery)
    assert (attempt["late"], attempt["number"]) == (True, 1)
    assert engined.row(endpoint)["disabled_reason"] == ("operator" if act is disable else None)


async def test_gone_disables_the_endpoint_and_ends_its_deliveries(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL, Answer(410))
    other = engined.endpoint(receiver.url("/other"))
    endpoint = engined.endpoint(receiver.url("/"), max_in_flight=1)
    ids = {e: [] for e in (other, endpoint)}
    for _ in range(3):
        for id_ in engined.publish().delivery_ids:
            ids[engined.delivery(id_)["endpoint_id"]].append(id_)
    await engined.work()
    got = [engined.status(id_) for id_ in ids[endpoint]]
    assert sorted(got, key=lambda s: s[2]) == [
        ("dead", "endpoint_gone", 0),
        ("dead", "endpoint_gone", 1),
        ("dead", "endpoint_gone", 1),
    ]
    assert {engined.status(id_) for id_ in ids[other]} == {("delivered", None, 1)}
    row = engined.row(endpoint)
    assert (row["status"], row["disabled_reason"], row["disabled_at"]) == (
        "disabled",
        "gone",
        START,
    )
    assert engined.queued() == []
    later = engined.publish()
    statuses = {engined.delivery(id_)["status"] for id_ in later.delivery_ids}
    assert statuses == {"pending", "skipped"}


async def test_f04_a_publish_that_commits_after_the_disable_is_skipped(
    postgresql_tables: str, receiver: Receiver
) -> None:
    """The publisher saw the endpoint enabled; the worker looks again."""
    from sender import publish

    async with Engined(postgresql_tables) as engined:
        endpoint = engined.endpoint(receiver.url("/"))
        with engined.begin() as publisher:
            published = publish(publisher, tenant="acme", type="a.b", data=1, now=START)
            disable(engined, endpoint, "")
        await engined.work()
        (delivery,) = published.delivery_ids
        assert engined.status(delivery) == ("skipped", "endpoint_disabled", 0)
        assert receiver.requests == []
        assert engined.queued() == []


async def test_f04_a_disable_in_the_middle_of_a_claim_counts(
    postgresql_tables: str, receiver: Receiver
) -> None:
    """Between the look at the endpoints and the claim, one is disabled and a publish commits."""
    from sender import publish

    async with Engined(postgresql_tables) as engined:
        endpoint = engined.endpoint(receiver.url("/"))
        engined.publish()
        done: list[str] = []

        def before_claim(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if "SKIP LOCKED" in statement and not done:
                with engined.begin() as publisher:
                    done.extend(
                        publish(publisher, tenant="acme", type="a", data=1, now=START).delivery_ids
                    )
                    disable(engined, endpoint, "")

        sync = engined.service.database.engine.sync_engine
        event.listen(sync, "before_cursor_execute", before_claim)
        await engined.work()
        event.remove(sync, "before_cursor_execute", before_claim)
        assert engined.status(done[0]) == ("skipped", "endpoint_disabled", 0)
        assert receiver.requests == []


async def test_changes_of_the_endpoint_apply_to_the_next_attempt(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    worker = engined.worker()
    await worker.run_until_idle()
    with engined.begin() as connection:
        endpoints.change(connection, endpoint, {"url": receiver.url("/new")}, engined.now)
    engined.advance(minutes=1)
    await worker.run_until_idle()
    await worker._sending.transport.close()
    assert [r.path for r in receiver.requests] == ["/", "/new"]
    assert engined.status(delivery) == ("delivered", None, 2)


@pytest.mark.parametrize("first", ["delivered", "dead", "cancelled", "skipped"])
async def test_f07_redeliver_from_each_end(
    engined: Engined, receiver: Receiver, first: str
) -> None:
    answers = {"delivered": Answer(), "dead": FAIL}
    receiver.script("/", answers.get(first, FAIL))
    endpoint = engined.endpoint(receiver.url("/"), schedule="1m")
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    if first == "dead":
        engined.advance(minutes=1)
        await engined.work()
    if first == "cancelled":
        cancel(engined, endpoint, delivery)
    if first == "skipped":
        disable(engined, endpoint, delivery)
        with engined.begin() as connection:
            assert deliveries.redeliver(connection, [delivery], engined.now) == []
            endpoints.enable(connection, endpoint, engined.now)
    status, _, made = engined.status(delivery)
    assert status == first

    receiver.script("/", FAIL)
    with engined.begin() as connection:
        assert deliveries.redeliver(connection, [delivery, "dlv_x"], engined.now) == [delivery]
        assert deliveries.redeliver(connection, [delivery], engined.now) == []
    assert engined.status(delivery) == ("pending", None, made)
    assert engined.delivery(delivery)["ended_at"] is None
    for _ in range(2):
        await engined.work()
        engined.advance(minutes=1)
    await engined.work()
    # A fresh schedule, the same id, and numbers that go on.
    assert engined.status(delivery) == ("dead", "schedule_used_up", made + 2)
    numbers = [a["number"] for a in engined.attempts(delivery)]
    assert numbers == list(range(1, made + 3))
    assert {r.header("webhook-id") for r in receiver.requests} == {delivery}


async def test_failing_for_days_disables(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"), schedule="4d,1d,1d")
    (delivery,) = engined.publish().delivery_ids
    for days in (0, 4, 1):
        engined.advance(days=days)
        waiting = engined.publish().delivery_ids[0] if days == 1 else ""
        await engined.work()
    assert engined.row(endpoint)["disabled_reason"] == "failing"
    assert engined.status(delivery) == ("skipped", "endpoint_disabled", 3)
    assert engined.status(waiting)[0] == "skipped"
    assert engined.queued() == []


async def test_b06_one_bad_payload_between_good_ones(engined: Engined, receiver: Receiver) -> None:
    def judge(request: Received) -> Answer:
        return Answer(400 if b"bad" in request.body else 200)

    receiver.script("/", *[judge] * 100)
    endpoint = engined.endpoint(receiver.url("/"), schedule="[]")
    ids = [engined.publish("bad" if n % 2 else "good").delivery_ids[0] for n in range(40)]
    await engined.work()
    states = [engined.status(id_)[0] for id_ in ids]
    assert states == ["delivered", "dead"] * 20
    row = engined.row(endpoint)
    assert (row["status"], row["circuit"], row["failures"]) == ("enabled", "closed", 0)


async def test_an_orphan_in_the_queue_harms_nobody(engined: Engined, receiver: Receiver) -> None:
    from sender.tables import deliveries as rows

    engined.endpoint(receiver.url("/"))
    (lost,) = engined.publish().delivery_ids
    (kept,) = engined.publish().delivery_ids
    with engined.begin() as connection:
        connection.execute(rows.delete().where(rows.c.id == lost))
    await engined.work()
    assert engined.status(kept) == ("delivered", None, 1)
    with engined.begin() as connection:
        assert stored(connection) == (2, 1, 0)


async def test_a_cancel_and_a_redeliver_during_a_send(engined: Engined, receiver: Receiver) -> None:
    """The first request still runs when the second one starts; both carry one id."""
    release = asyncio.Event()

    class Held:
        """Holds the first request back."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.sent = inner, 0

        async def send(self, request: Any, deadline: float) -> Any:
            self.sent += 1
            if self.sent == 1:
                await release.wait()
            return await self.inner.send(request, deadline)

        async def close(self) -> None:
            await self.inner.close()

    from delivery_service.bootstrap import make_transport

    engined.endpoint(receiver.url("/"), secret=generate_secret())
    (delivery,) = engined.publish().delivery_ids
    held = Held(make_transport(engined.settings))
    worker = engined.worker(held)
    running = asyncio.create_task(worker.run_until_idle())
    await wait_until_async(lambda: held.sent)
    cancel(engined, "", delivery)
    with engined.begin() as connection:
        assert deliveries.redeliver(connection, [delivery], engined.now)
    await engined.work()
    release.set()
    await running
    await held.close()
    assert engined.status(delivery) == ("delivered", None, 1)
    assert [(a["number"], a["late"]) for a in engined.attempts(delivery)] in (
        [(1, False), (1, True)],
        [(1, True), (1, False)],
    )
    assert {r.header("webhook-id") for r in receiver.requests} == {delivery}
