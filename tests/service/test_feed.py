"""The feed: what was missed, in order, each once, and not sent again once acknowledged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delivery_service.policy.sharing import Want
from delivery_service.store import queue
from tests.service.caller import Api


async def _feed(api: Api, endpoint_id: str, **params: Any) -> dict[str, Any]:
    path = f"/v1/endpoints/{endpoint_id}/feed"
    page: dict[str, Any] = await api.ok("GET", path, key="tenant", params=params)
    return page


async def test_what_was_missed_comes_in_order_and_each_once(api: Api) -> None:
    endpoint = await api.endpoint()
    await api.endpoint()
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    done = [await api.publish(data=str(number)) for number in range(5)]
    seen, cursor = [], None
    while True:
        params = {"limit": 2, "undelivered": True, **({"cursor": cursor} if cursor else {})}
        page = await _feed(api, endpoint["id"], **params)
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [item["event"] for item in seen] == [published["id"] for published in done]
    assert [item["body"]["data"] for item in seen] == [0, 1, 2, 3, 4]
    assert {item["status"] for item in seen} == {"skipped"}


async def test_it_begins_after_a_delivery_and_goes_on_by_cursor(api: Api) -> None:
    endpoint = await api.endpoint()
    ids = [(await api.publish(data=str(number)))["deliveries"][0] for number in range(5)]
    page = await _feed(api, endpoint["id"], after=ids[1], limit=2)
    assert [item["delivery"] for item in page["items"]] == ids[2:4]
    params = {"after": ids[1], "limit": 2, "cursor": page["next_cursor"]}
    page = await _feed(api, endpoint["id"], **params)
    assert [item["delivery"] for item in page["items"]] == ids[4:]
    assert page["next_cursor"] is None
    assert (await _feed(api, endpoint["id"], after=ids[-1]))["items"] == []
    path = f"/v1/endpoints/{endpoint['id']}/feed"
    await api.problem(422, "GET", path, params={"after": endpoint["id"]})


async def test_what_is_acknowledged_is_delivered_and_not_sent_again(api: Api) -> None:
    endpoint = await api.endpoint()
    for number in range(3):
        await api.publish(data=str(number))
    items = (await _feed(api, endpoint["id"], undelivered=True))["items"]
    path = f"/v1/endpoints/{endpoint['id']}/feed/acknowledge"
    handled = [item["delivery"] for item in items[:2]]
    body = {"deliveries": handled}
    assert await api.ok("POST", path, key="tenant", json=body) == {"deliveries": handled}
    assert await api.ok("POST", path, key="tenant", json=body) == {"deliveries": []}
    left = (await _feed(api, endpoint["id"], undelivered=True))["items"]
    assert [item["delivery"] for item in left] == [items[2]["delivery"]]
    assert len((await _feed(api, endpoint["id"]))["items"]) == 3
    shown = await api.ok("GET", f"/v1/deliveries/{handled[0]}")
    assert (shown["status"], shown["reason"]) == ("delivered", "pulled")
    wants = [Want(endpoint["id"], 0, 10)]
    lease = timedelta(minutes=1)
    claimed = await api.database.write(queue.claim, wants, "t", lease, api.clock.now())
    assert [row.delivery_id for row in claimed] == [items[2]["delivery"]]


async def test_bodies_are_exact_also_those_that_are_not_json(api: Api) -> None:
    endpoint = await api.endpoint()
    await api.publish(data='{"n":1.10,"n":1E2}')
    raw = "/v1/events/raw?tenant=acme&type=a.b"
    await api.ok("POST", raw, content=b"\xff", headers={"content-type": "text/plain"})
    answer = await api.call("GET", f"/v1/endpoints/{endpoint['id']}/feed", key="tenant")
    assert b'"data":{"n":1.10,"n":1E2}}' in answer.content
    last = answer.json()["items"][1]
    assert (last["body"], last["body_base64"], last["content_type"]) == (None, "/w==", "text/plain")


async def test_a_tenant_can_only_acknowledge_its_own(api: Api) -> None:
    mine = await api.endpoint()
    theirs = await api.endpoint("globex")
    await api.publish("globex")
    foreign = (await api.ok("GET", f"/v1/endpoints/{theirs['id']}/feed"))["items"][0]["delivery"]
    path = f"/v1/endpoints/{mine['id']}/feed/acknowledge"
    body = {"deliveries": [foreign]}
    assert await api.ok("POST", path, key="tenant", json=body) == {"deliveries": []}
    assert (await api.ok("GET", f"/v1/deliveries/{foreign}"))["status"] == "pending"


@pytest.mark.parametrize("given", [[], ["x"], ["evt_01M8MZ1BD68JM5KXSYHDE9A657"], [1], "x"])
async def test_what_is_no_delivery_id_is_refused(sqlite_api: Api, given: Any) -> None:
    path = f"/v1/endpoints/{(await sqlite_api.endpoint())['id']}/feed/acknowledge"
    await sqlite_api.problem(422, "POST", path, json={"deliveries": given})
