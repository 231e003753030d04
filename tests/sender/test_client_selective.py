"""Client operations on the catalogue, filters, feeds, stats and the audit log, against the real
service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sender.errors import ApiError
from tests.sender.clients import Caller
from tests.sender.test_client_service import HOOK, Served, call, kind, served, tenant
from wire import RawJson

__all__ = ["call", "kind", "served", "tenant"]


async def test_an_event_for_later_and_a_batch(call: Caller, tenant: str) -> None:
    made = await call(
        "create_endpoint",
        tenant=tenant,
        url=HOOK,
        channels=["p:1"],
        filter={"path": "/n", "gt": 1},
        authentication={"type": "basic", "username": "us", "password": "s3"},
    )
    assert (made.channels, made.filter) == (("p:1",), {"path": "/n", "gt": 1})
    assert (made.authentication.type, made.authentication.username) == ("basic", "us")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    done = await call(
        "publish", tenant=tenant, type="a.b", data={"n": 2}, deliver_at=at, channels=["p:1"]
    )
    (delivery_id,) = done.delivery_ids
    assert (await call("read_delivery", delivery_id)).next_attempt_at == at
    event = await call("read_event", done.event_id)
    assert (event.deliver_at, event.channels) == (at, ("p:1",))
    raw = {"tenant": tenant, "type": "a.b", "channels": ["p:1"], "data": RawJson('{"n": 3.10}')}
    small = {"tenant": tenant, "type": "a.b", "channels": ["p:1"], "data": {"n": 1}}
    first, second = await call("publish_batch", [raw, small])
    assert (len(first.delivery_ids), second.delivery_ids) == (1, ())
    assert b'"data":{"n": 3.10}' in (await call("read_event", first.event_id)).body
    copy = await call("send_as_new", first.delivery_ids[0])
    assert copy.copy_of == first.delivery_ids[0]
    found = await call.all("list_deliveries", copy_of=copy.copy_of)
    assert [each.id for each in found] == [copy.id]
    await call("cancel_delivery", copy.id)
    page = await call("read_feed", made.id, limit=1)
    assert page.next_cursor is not None
    assert page.items[0].delivery == delivery_id
    assert page.items[0].body == event.body
    assert (await call("acknowledge", made.id, [delivery_id])).deliveries == (delivery_id,)
    assert (await call("read_delivery", delivery_id)).reason == "pulled"
    stats = await call("read_endpoint_stats", made.id, per="day")
    assert (len(stats.buckets), stats.buckets[0].mean_duration) == (30, None)
    with pytest.raises(ApiError) as caught:
        await call("verify_endpoint", made.id)
    assert caught.value.code == "ownership-unproven"


async def test_the_catalogue(call: Caller, tenant: str, served: Served) -> None:
    assert served.url
    name = f"type.{call.client.__class__.__name__}"
    made = await call("put_event_type", name, schema={"type": "object"}, example={"id": 1})
    assert (made.name, made.schema, made.example) == (name, {"type": "object"}, {"id": 1})
    assert name in [each.name for each in await call.all("list_event_types")]
    document = await call("export_event_types")
    assert name in document["webhooks"]
    again = await call("import_event_types", document)
    assert (again.created, again.changed, again.refused) == ((), (), ())
    endpoint = await call("create_endpoint", tenant=tenant, url=HOOK)
    sent = await call("send_example", endpoint.id, type=name)
    assert b'"data":{"id":1}' in (await call("read_event", sent.event_id)).body
    tested = await call("send_test", endpoint.id)
    await call("cancel_delivery", tested.delivery_ids[0])
    await call("delete_event_body", tested.event_id)
    await call("archive_event_type", name)
    assert (await call("read_event_type", name)).archived_at is not None
    given = {"filter": {"path": "/a", "eq": 1}, "data": {"a": 1}}
    assert (await call("check_payload_filter", **given)).matches
    entries = await call.all("list_audit_log", tenant=tenant)
    assert "endpoint.created" in [entry.action for entry in entries]
    await call("delete_tenant", tenant)
    assert await call.all("list_endpoints", tenant=tenant) == []
