"""Batches, test events and sending as new."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delivery_service.store import events
from tests.service.caller import Api

JSON = {"content-type": "application/json"}


def _batch(*items: str) -> dict[str, Any]:
    return {"content": f'{{"events": [{" , ".join(items)}]}}'.encode(), "headers": JSON}


def _item(data: str, tenant: str = "acme", **members: Any) -> str:
    head = json.dumps({"tenant": tenant, "type": "invoice.paid", **members})
    return f'{head[:-1]}, "data":{data}}}'


async def test_a_batch_is_published_in_order_with_exact_bytes(api: Api) -> None:
    await api.endpoint()
    texts = ['{"n":1.10,"n":2}', "[1E2 ]", '"\\u0000"', "8202522731445525542"]
    items = [_item(text) for text in texts]
    done = (await api.ok("POST", "/v1/events/batch", **_batch(*items)))["items"]
    assert len(api.pokes) == 1
    for text, published in zip(texts, done, strict=True):
        assert len(published["deliveries"]) == 1
        row = await api.database.read(events.get, published["id"])
        assert row is not None
        assert bytes(row["body"]).endswith(f',"data":{text}}}'.encode())
    listed = [item["id"] for item in (await api.ok("GET", "/v1/events"))["items"]]
    assert listed == [published["id"] for published in reversed(done)]


async def test_a_batch_may_be_larger_than_an_event_but_its_events_may_not(api: Api) -> None:
    data = '"' + "x" * 100_000 + '"'
    done = await api.ok("POST", "/v1/events/batch", **_batch(*[_item(data)] * 20))
    assert len(done["items"]) == 20
    large = '"' + "x" * 262_144 + '"'
    problem = await api.problem(413, "POST", "/v1/events/batch", **_batch(_item("1"), _item(large)))
    assert problem["detail"].startswith("#/events/1")
    too_much = _batch(*[_item(data)] * 45)
    await api.problem(413, "POST", "/v1/events/batch", **too_much)
    assert len((await api.ok("GET", "/v1/events", params={"limit": 200}))["items"]) == 20


@pytest.mark.parametrize(
    ("content", "status", "pointer"),
    [
        (b'{"events":[]}', 422, "#/events"),
        (b'{"events":{}}', 422, "#/events"),
        (b'{"events":"x"}', 422, "#/events"),
        (b'{"events":[1]}', 422, "#/events/0"),
        (b'{"events":[[]]}', 422, "#/events/0"),
        (b"{}", 422, "#/events"),
        (b"[]", 422, "#"),
        (b'{"events":[{"tenant":"a","type":"b","data":1},{"tenant":"a","data":1}]}', 422,
         "#/events/1/type"),
        (b'{"events":[{"tenant":"a","type":"b","data":1,"data":2}]}', 400, None),
        (b'{"events":[{"tenant":"a","type":"b","data":1}],"events":[]}', 400, None),
        (b'{"events":[' + b"1," * 1000 + b"1]}", 422, "#/events"),
    ],
)  # fmt: skip
async def test_bad_batches(
    sqlite_api: Api, content: bytes, status: int, pointer: str | None
) -> None:
    options = {"content": content, "headers": JSON}
    problem = await sqlite_api.problem(status, "POST", "/v1/events/batch", **options)
    if pointer is not None:
        assert problem["errors"][0]["pointer"] == pointer
    assert (await sqlite_api.ok("GET", "/v1/events"))["items"] == []


async def test_a_batch_is_all_or_nothing(api: Api) -> None:
    first = await api.publish(data="1", idempotency_key="k")
    items = _batch(_item("2"), _item("3", idempotency_key="k"))
    problem = await api.problem(422, "POST", "/v1/events/batch", **items)
    assert problem["event"] == first["id"]
    listed = (await api.ok("GET", "/v1/events"))["items"]
    assert [item["id"] for item in listed] == [first["id"]]


async def test_a_repeated_batch_gives_the_first_events(api: Api) -> None:
    await api.endpoint()
    request = _batch(_item("1", idempotency_key="a"), _item("2", idempotency_key="b"))
    first = (await api.ok("POST", "/v1/events/batch", **request))["items"]
    again = (await api.ok("POST", "/v1/events/batch", **request))["items"]
    assert again == [{**published, "duplicate": True} for published in first]


async def test_a_test_event_goes_to_one_endpoint_whatever_its_filter(api: Api) -> None:
    one = await api.endpoint(event_types=["invoice.paid"])
    await api.endpoint()
    sent = await api.ok("POST", f"/v1/endpoints/{one['id']}/test")
    listed = (await api.ok("GET", "/v1/deliveries"))["items"]
    assert [(item["id"], item["endpoint"]) for item in listed] == [
        (sent["deliveries"][0], one["id"])
    ]
    shown = await api.ok("GET", f"/v1/events/{sent['id']}")
    assert shown["type"] == "surehook.test"
    assert shown["body"]["data"] == {}
    assert len(api.pokes) == 1


async def test_a_test_event_can_be_an_example_of_a_type(api: Api) -> None:
    one = await api.endpoint()
    options = {"content": b'{"type":"invoice.paid","data":{"n":1.10}}', "headers": JSON}
    sent = await api.ok("POST", f"/v1/endpoints/{one['id']}/test", key="tenant", **options)
    shown = await api.call("GET", f"/v1/events/{sent['id']}")
    assert b'"data":{"n":1.10}}' in shown.content


async def test_a_test_event_needs_an_enabled_endpoint(api: Api) -> None:
    path = f"/v1/endpoints/{(await api.endpoint())['id']}"
    await api.ok("POST", f"{path}/disable")
    await api.problem(409, "POST", f"{path}/test")
    assert (await api.ok("GET", "/v1/events"))["items"] == []


async def test_sending_as_new_makes_another_delivery_that_names_the_old_one(api: Api) -> None:
    endpoint = await api.endpoint()
    old = await api.delivery(data='{"n":1.10}')
    path = f"/v1/deliveries/{old}"
    await api.ok("POST", f"{path}/cancel")
    new = await api.ok("POST", f"{path}/send-as-new")
    before = await api.ok("GET", path)
    assert before["status"] == "cancelled"
    assert new["id"] != old
    assert (new["copy_of"], new["status"], new["attempts"]) == (old, "pending", 0)
    assert (new["event"], new["endpoint"]) == (before["event"], endpoint["id"])
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    await api.problem(409, "POST", f"{path}/send-as-new")
    await api.ok("DELETE", f"/v1/endpoints/{endpoint['id']}")
    await api.problem(409, "POST", f"{path}/send-as-new")


async def test_a_deleted_tenant_leaves_nothing_and_nobody_else_loses_anything(api: Api) -> None:
    for tenant in ("acme", "globex"):
        await api.endpoint(tenant)
        await api.publish(tenant)
    await api.ok("DELETE", "/v1/tenants/acme")
    await api.problem(404, "DELETE", "/v1/tenants/acme")
    await api.problem(404, "GET", "/v1/tenants/acme")
    await api.problem(401, "GET", "/v1/events", key="tenant")
    for path in ("/v1/endpoints", "/v1/events", "/v1/deliveries"):
        shown = (await api.ok("GET", path))["items"]
        assert [item["tenant"] for item in shown] == ["globex"]


async def test_a_tenant_that_only_has_events_can_be_deleted_too(api: Api) -> None:
    await api.publish("initech")
    await api.ok("DELETE", "/v1/tenants/initech")
    assert (await api.ok("GET", "/v1/events"))["items"] == []
