"""What goes wrong in us: nothing is lost, and nobody else is held up."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from delivery_service.policy.outcome import Outcome, OutcomeKind
from tests.support.engine import Engined, Scripted, claim
from tests.support.receiver import Answer, Receiver

FAIL = Answer(500)


async def test_f22_a_delivery_that_kills_its_worker_ends_as_poison(
    engined: Engined, receiver: Receiver
) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    for number in (1, 2, 3):
        (claimed,) = claim(engined, endpoint)
        assert claimed.claims == number
        assert claim(engined, endpoint) == []
        engined.advance(seconds=60)
    (other,) = engined.publish().delivery_ids
    await engined.work()
    assert engined.status(delivery) == ("dead", "poison", 0)
    assert engined.attempts(delivery) == []
    assert engined.status(other) == ("delivered", None, 1)
    assert [r.header("webhook-id") for r in receiver.requests] == [other]
    # A person may try again, and it counts afresh.
    from delivery_service.store import deliveries

    with engined.begin() as connection:
        assert deliveries.redeliver(connection, [delivery], engined.now) == [delivery]
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)


async def test_f22_an_attempt_clears_the_claims(engined: Engined, receiver: Receiver) -> None:
    receiver.script("/", FAIL)
    endpoint = engined.endpoint(receiver.url("/"), schedule=",".join(["1m"] * 6))
    (delivery,) = engined.publish().delivery_ids
    for made in range(1, 7):
        for _ in range(2):
            claim(engined, endpoint)
            engined.advance(seconds=60)
        await engined.work()
        assert engined.status(delivery) == ("pending", None, made)
        engined.advance(minutes=1)


async def test_f22_suspects_are_tried_one_at_a_time(engined: Engined, receiver: Receiver) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    ids = [engined.publish().delivery_ids[0] for _ in range(4)]
    for _ in range(2):
        assert len(claim(engined, endpoint)) == 4
        engined.advance(seconds=60)
    at_once: list[int] = []

    async def answer(_request: Any) -> Outcome:
        await asyncio.sleep(0)
        with engined.look() as connection:
            rows = connection.execute(text("SELECT claims FROM surehook_queue")).scalars().all()
        at_once.append(rows.count(3))
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    for _ in range(8):
        await engined.work(Scripted(answer))
        engined.advance(seconds=1)
    assert at_once == [1, 1, 1, 1]
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}


@pytest.mark.parametrize("broken", ["secret", "profiles", "schedule", "headers", "url"])
async def test_f22_a_fault_of_one_endpoint_is_its_own(
    engined: Engined, receiver: Receiver, broken: str
) -> None:
    from sender.tables import endpoints as table
    from sender.tables import secrets

    good = engined.endpoint(receiver.url("/good"))
    bad = engined.endpoint(receiver.url("/bad"), schedule="1m")
    with engined.begin() as connection:
        if broken == "secret":
            connection.execute(
                secrets.update().where(secrets.c.endpoint_id == bad).values(ciphertext=b"junk")
            )
        else:
            value = {
                "profiles": ["no such"],
                "schedule": "soon",
                "headers": b"junk",
                "url": "http://[::1",
            }[broken]
            connection.execute(table.update().where(table.c.id == bad).values({broken: value}))
    published = [engined.publish() for _ in range(3)]
    for minutes in (1, 5, 30, 120, 360, 1):
        await engined.work()
        engined.advance(minutes=minutes)
    by_endpoint: dict[str, set[Any]] = {good: set(), bad: set()}
    for done in published:
        for id_ in done.delivery_ids:
            row = engined.delivery(id_)
            by_endpoint[row["endpoint_id"]].add((row["status"], row["reason"]))
            if row["endpoint_id"] == bad:
                kinds = {a["kind"] for a in engined.attempts(id_)}
                assert kinds == ({"blocked"} if broken == "url" else {"internal"})
                assert all(a["error"] for a in engined.attempts(id_))
    assert by_endpoint[good] == {("delivered", None)}
    assert by_endpoint[bad] == {("dead", "schedule_used_up")}
    # An endpoint is not to blame for our faults.
    assert engined.row(bad)["status"] == "enabled"
    assert len(receiver.requests) == 3


async def test_a_transport_that_raises_is_an_internal_failure(
    engined: Engined, receiver: Receiver
) -> None:
    async def answer(request: Any) -> Outcome:
        if "/bad" in request.url:
            raise RuntimeError("a fault\x00 of ours\ud800")
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    engined.endpoint(receiver.url("/good"))
    engined.endpoint(receiver.url("/bad"))
    published = engined.publish()
    await engined.work(Scripted(answer))
    got = {engined.attempts(id_)[0]["kind"] for id_ in published.delivery_ids}
    assert got == {"internal", "delivered"}


ODD: dict[str, dict[str, Any]] = {
    "nul": {"error": "a\x00b"},
    "surrogate": {"error": "a\ud800b"},
    "status": {"status_code": 2**70},
    "duration": {"duration": "long"},
    "headers": {"response_headers": object()},
    "body": {"response_body": "text"},
}


@pytest.mark.parametrize("kind", [OutcomeKind.DELIVERED, OutcomeKind.STATUS])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_f22_a_result_that_can_not_be_stored_holds_up_nobody(
    engined: Engined, receiver: Receiver, odd: dict[str, Any], kind: OutcomeKind
) -> None:
    async def answer(request: Any) -> Outcome:
        if "/bad" in request.url:
            return Outcome(kind, **{"status_code": 200, **odd})
        return Outcome(OutcomeKind.DELIVERED, status_code=200)

    endpoints_ = [engined.endpoint(receiver.url(f"/{name}")) for name in ("a", "bad", "c")]
    published = [engined.publish() for _ in range(3)]
    await asyncio.wait_for(engined.work(Scripted(answer)), 15)
    states: dict[str, Counter[str]] = {id_: Counter() for id_ in endpoints_}
    for done in published:
        for id_ in done.delivery_ids:
            row = engined.delivery(id_)
            states[row["endpoint_id"]][row["status"]] += 1
    assert states[endpoints_[0]] == states[endpoints_[2]] == {"delivered": 3}
    # Either stored without what was odd, or left to its lease; never lost.
    (_, bad, _) = endpoints_
    if kind is OutcomeKind.STATUS:
        assert states[bad] == {"pending": 3}
        assert len(engined.queued()) == 3


async def test_a_log_that_can_not_be_written_stops_no_worker(
    engined: Engined, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delivery_service.worker.observe import Observer

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Observer, "recorded", full)
    engined.endpoint(receiver.url("/"), max_in_flight=1)
    ids = [engined.publish().delivery_ids[0] for _ in range(3)]
    await asyncio.wait_for(engined.work(), 15)
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}


async def test_long_answers_are_recorded_a_few_at_a_time(
    engined: Engined, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delivery_service.worker.observe import Observer
    from delivery_service.worker.recorder import GROUP_BYTES

    size = GROUP_BYTES // 2
    groups: list[int] = []
    observe = Observer.recorded

    def recorded(observer: Observer, group: Any, *given: Any) -> None:
        groups.append(len(group))
        observe(observer, group, *given)

    async def answer(_request: Any) -> Outcome:
        return Outcome(OutcomeKind.DELIVERED, status_code=200, response_body=b"x" * size)

    monkeypatch.setattr(Observer, "recorded", recorded)
    engined.endpoint("https://h.example/")
    ids = [engined.publish().delivery_ids[0] for _ in range(9)]
    await engined.work(Scripted(answer))
    assert {engined.status(id_)[0] for id_ in ids} == {"delivered"}
    assert sum(groups) == 9
    assert max(groups) <= 2
