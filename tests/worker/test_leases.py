"""Leases: late results, waiting, and workers that are gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from delivery_service.policy.outcome import Outcome, OutcomeKind
from delivery_service.settings import Settings
from delivery_service.store import endpoints, settle
from tests.support.engine import START, Engined, Scripted, claim
from tests.support.receiver import Answer, Receiver
from tests.support.waiting import wait_until_async

FAIL = Answer(500)


async def test_f17_a_late_result_changes_nothing_and_is_kept(
    engined: Engined, receiver: Receiver
) -> None:
    release = asyncio.Event()

    async def slow(_request: Any) -> Outcome:
        await release.wait()
        return Outcome(OutcomeKind.STATUS, status_code=410, response_body=b"too late")

    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    transport = Scripted(slow)
    first = asyncio.create_task(engined.worker(transport).run_until_idle())
    await wait_until_async(lambda: transport.sent)
    await engined.work()
    assert receiver.requests == []
    # The lease ends, another worker delivers, and then the first one comes back.
    engined.advance(seconds=60)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)
    before = engined.delivery(delivery)
    release.set()
    await first
    assert engined.delivery(delivery) == before
    kept = {(a["number"], a["late"], a["status_code"]) for a in engined.attempts(delivery)}
    assert kept == {(1, False, 200), (1, True, 410)}
    assert engined.row(endpoint)["status"] == "enabled"
    assert engined.queued() == []


@pytest.mark.parametrize("ended", ["retry", "dead"])
async def test_f14_f17_a_late_result_leaves_the_new_lease_alone(
    engined: Engined, receiver: Receiver, ended: str
) -> None:
    release = asyncio.Event()

    async def slow(_request: Any) -> Outcome:
        await release.wait()
        return Outcome(OutcomeKind.STATUS, status_code=500)

    endpoint = engined.endpoint(receiver.url("/"), schedule="1m" if ended == "retry" else "[]")
    (delivery,) = engined.publish().delivery_ids
    transport = Scripted(slow)
    first = asyncio.create_task(engined.worker(transport).run_until_idle())
    await wait_until_async(lambda: transport.sent)
    engined.advance(seconds=60)
    (claimed,) = claim(engined, endpoint)
    release.set()
    await first
    (row,) = engined.queued()
    assert (row["lease_token"], row["due_at"]) == (
        claimed.token,
        engined.now + timedelta(seconds=60),
    )
    assert engined.status(delivery) == ("pending", None, 0)
    assert [a["late"] for a in engined.attempts(delivery)] == [True]


async def test_f20_f21_a_waiting_delivery_is_one_row_without_a_lease(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL, Answer())
    engined.endpoint(receiver.url("/"), schedule="10h")
    (delivery,) = engined.publish().delivery_ids
    await engined.work()
    (row,) = engined.queued()
    assert (row["lease_token"], row["claims"], row["lane"]) == (None, 0, 1)
    assert row["due_at"] == START + timedelta(hours=10)
    # The lease (60 s) has no bearing on how long it waits, nor do restarts.
    for _ in range(9):
        engined.advance(hours=1)
        await engined.work()
    assert len(receiver.requests) == 1
    engined.advance(hours=1)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 2)


async def test_f11_the_count_of_attempts_is_in_the_row(
    engined: Engined, receiver: Receiver
) -> None:
    receiver.script("/", FAIL)
    engined.endpoint(receiver.url("/"), schedule="1h,1h,1h")
    (delivery,) = engined.publish().delivery_ids
    for _ in range(8):
        await engined.work()
        engined.advance(hours=1)
    assert len(receiver.requests) == 4
    assert engined.status(delivery) == ("dead", "schedule_used_up", 4)


def test_f15_f18_the_lease_outlasts_an_attempt() -> None:
    with pytest.raises(ValueError, match="lease"):
        Settings(attempt_timeout=timedelta(seconds=15), lease=timedelta(seconds=19))
    defaults = Settings()
    assert defaults.lease >= defaults.attempt_timeout + timedelta(seconds=5)


async def test_leases_that_were_not_used_are_given_back_whole(
    engined: Engined, receiver: Receiver
) -> None:
    endpoint = engined.endpoint(receiver.url("/"))
    engined.publish()
    (before,) = engined.queued()
    (row,) = claim(engined, endpoint)
    lease = {"delivery_id": row.delivery_id, "token": row.token, "claims": row.claims, "delay": 0}
    with engined.begin() as connection:
        assert settle.give_back(connection, [lease], engined.now) == {row.delivery_id}
        assert settle.give_back(connection, [lease], engined.now) == set()
    assert engined.queued() == [before]


async def test_a_second_worker_waits_for_the_lease_to_end(
    engined: Engined, receiver: Receiver
) -> None:
    """F14: what counts is the lease's time and token, not the name of the worker."""
    endpoint = engined.endpoint(receiver.url("/"))
    (delivery,) = engined.publish().delivery_ids
    (dead,) = claim(engined, endpoint)
    engined.advance(seconds=59.9)
    await engined.work()
    assert receiver.requests == []
    engined.advance(seconds=0.1)
    await engined.work()
    assert engined.status(delivery) == ("delivered", None, 1)
    with engined.begin() as connection:
        lease = {"delivery_id": delivery, "token": dead.token}
        assert settle.remove(connection, [lease]) == set()
        assert endpoints.get(connection, endpoint) is not None
