"""The operator's story, over HTTP only: one endpoint of twenty is down for an hour."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tests.service.caller import Api
from tests.service.conftest import START
from tests.support.receiver import Answer, Receiver
from tests.support.waiting import wait_until_async
from wire.envelope import format_timestamp

ENDPOINTS = 20
EVENTS = 1000
EACH = EVENTS // ENDPOINTS
DOWN = 7
BULK_RATE = 25
"""Deliveries a second that the recovery makes due: in two batches, so that there is progress."""


@pytest.fixture
def options() -> dict[str, object]:
    """Two retries within six minutes, and no circuit that would hold them back for the hour."""
    return {
        "allow_private_networks": True,
        "schedule": "1m,5m",
        "circuit_open_after": 10_000,
        "poll_interval": 0.05,
        "bulk_rate": BULK_RATE,
        "log_level": "error",
    }


@pytest.fixture
async def working(postgresql_api: Api) -> AsyncIterator[Api]:
    """The API, with a worker and housekeeping beside it."""
    worker = postgresql_api.service.worker()
    task = asyncio.create_task(worker.run())
    async with postgresql_api.service.housekeeping():
        yield postgresql_api
    worker.stop()
    await task


async def _all(api: Api, path: str, *, key: str = "admin", **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = {"limit": 200, **params, **({"cursor": cursor} if cursor else {})}
        shown = await api.ok("GET", path, key=key, params=page)
        items += shown["items"]
        cursor = shown["next_cursor"]
        if cursor is None:
            return items


async def _settled(api: Api, attempts: int) -> None:
    """Wait until nothing is left to do before the clock moves."""

    async def quiet() -> bool:
        pending = await _all(api, "/v1/deliveries", status="pending")
        return all(item["attempts"] == attempts and not item["in_flight"] for item in pending)

    await wait_until_async(quiet, deadline=90, what=f"attempt {attempts} of all is recorded")


async def _register(api: Api, receiver: Receiver) -> list[dict[str, Any]]:
    return [
        await api.endpoint(
            f"tenant-{number}", url=receiver.url(f"/{number}"), event_types=["order.*"]
        )
        for number in range(ENDPOINTS)
    ]


async def _publish(api: Api) -> set[str]:
    """A thousand events, one request each, sixteen at a time; return the ids of deliveries."""
    numbers = iter(range(EVENTS))
    made: set[str] = set()

    async def publisher() -> None:
        for number in numbers:
            body = {
                "tenant": f"tenant-{number % ENDPOINTS}",
                "type": "order.paid",
                "data": {"number": number},
            }
            done = await api.ok("POST", "/v1/events", key="publish", json=body)
            made.update(done["deliveries"])

    await asyncio.gather(*(publisher() for _ in range(16)))
    return made


async def test_an_endpoint_is_down_for_an_hour_found_and_recovered(
    working: Api, receiver: Receiver
) -> None:
    api = working
    receiver.script(f"/{DOWN}", Answer(503, body=b"maintenance"))
    endpoints = await _register(api, receiver)
    made = await _publish(api)
    assert len(made) == EVENTS
    for attempts, minutes in ((1, 1), (2, 5), (3, 54)):
        await _settled(api, attempts)
        api.clock.advance(timedelta(minutes=minutes))

    # Customer 7 asks for what it did not get: the operator finds it, and why.
    dead = await _all(api, "/v1/deliveries", status="dead", key="read")
    assert {item["endpoint"] for item in dead} == {endpoints[DOWN]["id"]}
    assert {item["reason"] for item in dead} == {"schedule_used_up"}
    assert len(dead) == EACH
    attempts = await _all(api, f"/v1/deliveries/{dead[0]['id']}/attempts")
    assert [(item["number"], item["status_code"]) for item in attempts] == [
        (1, 503),
        (2, 503),
        (3, 503),
    ]
    assert attempts[0]["response_body"] == "maintenance"
    assert await _all(api, "/v1/deliveries", status="pending") == []

    # It is up again, and everything that it missed is sent again.
    receiver.script(f"/{DOWN}", Answer(200))
    operation = await _recover(api)
    api.clock.advance(timedelta(seconds=EACH / BULK_RATE))
    await _settled(api, 0)
    await _check_all_delivered(api, receiver, made)
    await _check_audit_log(api, endpoints, operation)


async def _recover(api: Api) -> dict[str, Any]:
    """Count what was not delivered, recover it with one request, and watch that to its end."""
    wanted = {"kind": "recover", "since": format_timestamp(START)}
    counted = await api.ok("POST", "/v1/operations", json={**wanted, "dry_run": True})
    assert counted == {"kind": "recover", "matched": EACH, "possible": EACH, "passed_over": {}}
    operation: dict[str, Any] = await api.ok("POST", "/v1/operations", json=wanted)
    seen = [operation]

    async def ended() -> bool:
        seen.append(await api.ok("GET", f"/v1/operations/{operation['id']}"))
        return seen[-1]["ended_at"] is not None

    await wait_until_async(ended, deadline=30, what="the recovery is done")
    steps = [(each["progress"], each["done"]) for each in seen]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == ((0.0, 0), (1.0, EACH))
    assert (seen[-1]["status"], seen[-1]["passed_over"]) == ("done", {})
    return operation


async def _check_all_delivered(api: Api, receiver: Receiver, made: set[str]) -> None:
    delivered = await _all(api, "/v1/deliveries", status="delivered")
    assert {item["id"] for item in delivered} == made
    assert len(delivered) == EVENTS
    by_endpoint = Counter(item["endpoint"] for item in delivered)
    assert set(by_endpoint.values()) == {EACH}
    seen = Counter(request.path for request in receiver.requests)
    assert seen.pop(f"/{DOWN}") == 4 * EACH  # three attempts, and the one that arrived
    assert set(seen.values()) == {EACH}  # nobody else got anything twice
    last = receiver.received(f"/{DOWN}")[-EACH:]
    numbers = {json.loads(request.body)["data"]["number"] for request in last}
    assert numbers == set(range(DOWN, EVENTS, ENDPOINTS))
    assert {request.header("x-webhook-attempt") for request in last} == {"4"}


async def _check_audit_log(
    api: Api, endpoints: list[dict[str, Any]], operation: dict[str, Any]
) -> None:
    log = await _all(api, "/v1/audit-log")
    by_action: dict[str, list[str]] = {}
    for entry in log:
        by_action.setdefault(entry["action"], []).append(entry["target"])
    assert sorted(by_action.pop("endpoint.created")) == sorted(each["id"] for each in endpoints)
    assert by_action.pop("operation.created") == [operation["id"]]
    assert by_action == {}
    keys = await _all(api, "/v1/keys", scope="admin", portal="false")
    [admin] = [key["id"] for key in keys if key["name"] == "admin"]
    assert {entry["actor"] for entry in log} == {admin}
    [created] = [entry for entry in log if entry["target"] == operation["id"]]
    assert (created["before"], created["after"]) == (None, operation)
