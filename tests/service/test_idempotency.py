"""Idempotency keys over HTTP, in the header or in the body."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.service.caller import Api, event


async def test_a_repeat_gives_the_first_event(api: Api) -> None:
    await api.endpoint()
    first = await api.publish(data='{"n":1.10}', idempotency_key="k1")
    again = await api.publish(data='{"n":1.10}', idempotency_key="k1")
    assert again == {**first, "duplicate": True}
    assert first["duplicate"] is False
    assert len((await api.ok("GET", "/v1/events"))["items"]) == 1


async def test_other_content_is_refused_with_the_first_events_id(api: Api) -> None:
    first = await api.publish(data='{"n":1.10}', idempotency_key="k1")
    for other in (
        event(data='{"n":1.1}', idempotency_key="k1"),
        event(event_type="a.b", data='{"n":1.10}', idempotency_key="k1"),
    ):
        problem = await api.problem(422, "POST", "/v1/events", **other)
        assert problem["type"].endswith(":idempotency-key-reused")
        assert problem["event"] == first["id"]
    assert len((await api.ok("GET", "/v1/events"))["items"]) == 1


async def test_a_key_is_a_tenants_own(api: Api) -> None:
    first = await api.publish("acme", idempotency_key="k1")
    other = await api.publish("globex", idempotency_key="k1")
    assert first["id"] != other["id"]


async def test_the_header_bare_or_quoted_is_the_same_key(api: Api) -> None:
    ids = set()
    for header in ("k1", '"k1"', ' "k1" '):
        request = event()
        request["headers"]["idempotency-key"] = header
        ids.add((await api.ok("POST", "/v1/events", **request))["id"])
    ids.add((await api.publish(idempotency_key="k1"))["id"])
    assert len(ids) == 1


async def test_header_and_member_must_agree(api: Api) -> None:
    request = event(idempotency_key="k1")
    request["headers"]["idempotency-key"] = "k2"
    await api.problem(422, "POST", "/v1/events", **request)
    request["headers"]["idempotency-key"] = '"k1"'
    await api.ok("POST", "/v1/events", **request)


async def test_raw_bodies_have_keys_too(api: Api) -> None:
    path = "/v1/events/raw?tenant=acme&type=a.b"
    headers = {"content-type": "text/plain", "idempotency-key": "k1"}
    first = await api.ok("POST", path, content=b"a", headers=headers)
    again = await api.ok("POST", path, content=b"a", headers=headers)
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    await api.problem(422, "POST", path, content=b"b", headers=headers)


async def test_requests_at_once_make_one_event(api: Api) -> None:
    await api.endpoint()
    request = event(idempotency_key="k1")
    done = await asyncio.gather(*(api.ok("POST", "/v1/events", **request) for _ in range(8)))
    assert len({answer["id"] for answer in done}) == 1
    assert [answer["duplicate"] for answer in done].count(False) == 1
    assert len((await api.ok("GET", "/v1/deliveries"))["items"]) == 1


OPERATIONS = "/v1/operations"
RECOVER = {"kind": "recover", "since": "2026-11-29T08:00:00Z"}


def keyed(key: str, **members: Any) -> dict[str, Any]:
    return {"json": {**RECOVER, **members}, "headers": {"idempotency-key": key}}


async def test_a_repeat_gives_the_first_operation_as_it_is_now(api: Api) -> None:
    first = await api.ok("POST", OPERATIONS, **keyed("k1"))
    assert first["idempotency_key"] == "k1"
    api.clock.advance(timedelta(minutes=1))
    for header in ("k1", '"k1"', ' "k1" '):
        again = await api.call("POST", OPERATIONS, **keyed(header))
        assert (again.status_code, again.json()) == (202, first)
    cancelled = await api.ok("POST", f"{OPERATIONS}/{first['id']}/cancel")
    assert await api.ok("POST", OPERATIONS, **keyed("k1")) == cancelled
    assert (await api.ok("GET", OPERATIONS))["items"] == [cancelled]
    log = (await api.ok("GET", "/v1/audit-log"))["items"]
    assert [entry["action"] for entry in log] == ["operation.cancelled", "operation.created"]


async def test_the_same_times_in_another_zone_are_the_same_operation(api: Api) -> None:
    first = await api.ok("POST", OPERATIONS, **keyed("k1"))
    again = keyed("k1", since="2026-11-29T09:00:00+01:00")
    assert (await api.ok("POST", OPERATIONS, **again))["id"] == first["id"]


@pytest.mark.parametrize(
    "members", [{"kind": "replay"}, {"tenant": "acme"}, {"since": "2026-11-29T08:00:01Z"}]
)
async def test_another_operation_is_refused_with_the_first_ones_id(
    api: Api, members: dict[str, Any]
) -> None:
    first = await api.ok("POST", OPERATIONS, **keyed("k1"))
    problem = await api.problem(422, "POST", OPERATIONS, **keyed("k1", **members))
    assert problem["type"].endswith(":idempotency-key-reused")
    assert problem["operation"] == first["id"]
    assert (await api.ok("GET", OPERATIONS))["items"] == [first]
    other = await api.ok("POST", OPERATIONS, **keyed("k2", **members))
    assert other["id"] != first["id"]


async def test_a_broadcasts_key_goes_by_its_bytes(api: Api) -> None:
    def broadcast(data: str) -> dict[str, Any]:
        content = f'{{"kind":"broadcast","type":"news.flash","data":{data}}}'
        headers = {"content-type": "application/json", "idempotency-key": "k1"}
        return {"content": content, "headers": headers}

    first = await api.ok("POST", OPERATIONS, **broadcast('{"n":1.10}'))
    assert await api.ok("POST", OPERATIONS, **broadcast('{"n":1.10}')) == first
    problem = await api.problem(422, "POST", OPERATIONS, **broadcast('{"n":1.1}'))
    assert problem["operation"] == first["id"]


async def test_operations_at_once_make_one(api: Api) -> None:
    done = await asyncio.gather(*(api.ok("POST", OPERATIONS, **keyed("k1")) for _ in range(8)))
    assert len({answer["id"] for answer in done}) == 1
    assert len((await api.ok("GET", OPERATIONS))["items"]) == 1
    assert len((await api.ok("GET", "/v1/audit-log"))["items"]) == 1


async def test_a_dry_run_leaves_the_key_free(api: Api) -> None:
    await api.ok("POST", OPERATIONS, **keyed("k1", dry_run=True))
    await api.ok("POST", OPERATIONS, **keyed("k1", kind="replay"))
    counted = await api.ok("POST", OPERATIONS, **keyed("k1", dry_run=True))
    assert counted == {"kind": "recover", "matched": 0, "possible": 0, "passed_over": {}}


async def test_without_keys_each_request_is_an_operation_of_its_own(api: Api) -> None:
    made = [await api.ok("POST", OPERATIONS, json=RECOVER) for _ in range(2)]
    assert made[0]["id"] != made[1]["id"]
    assert made[0]["idempotency_key"] is None


@pytest.mark.parametrize("header", ["", '""', '"k', "a b", "x" * 257])
@pytest.mark.parametrize("more", [{}, {"dry_run": True}])
async def test_a_header_that_cannot_be_read_starts_nothing(
    sqlite_api: Api, header: str, more: dict[str, Any]
) -> None:
    await sqlite_api.problem(400, "POST", OPERATIONS, **keyed(header, **more))
    assert (await sqlite_api.ok("GET", OPERATIONS))["items"] == []
