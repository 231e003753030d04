"""Idempotency keys over HTTP, in the header or in the body."""

from __future__ import annotations

import asyncio

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
