"""The audit log: every change is in it, in its own transaction, without secrets."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from delivery_service.store import events
from tests.service.caller import URL, Api
from wire.secrets import generate_secret


async def _log(api: Api, **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await api.ok("GET", "/v1/audit-log", params=params))["items"]
    return items


async def test_every_change_is_in_the_log_once_and_no_secret_is(api: Api) -> None:
    secret = generate_secret()
    await api.ok("POST", "/v1/tenants", json={"id": "acme"})
    await api.ok("PUT", "/v1/tenants/acme", json={"name": "Acme"})
    await api.ok("PATCH", "/v1/tenants/acme", json={"schedule": "5m"})
    endpoint = await api.endpoint(secret=secret, headers={"X-Gateway": "s3cret"})
    path = f"/v1/endpoints/{endpoint['id']}"
    await api.ok("PATCH", path, json={"rate_limit": 3})
    rotated = await api.ok("POST", f"{path}/secrets/rotate")
    await api.ok("POST", f"{path}/disable", key="tenant")
    await api.ok("POST", f"{path}/disable")  # changes nothing
    await api.ok("POST", f"{path}/enable")
    done = await api.publish()
    delivery = f"/v1/deliveries/{done['deliveries'][0]}"
    await api.ok("POST", f"{delivery}/cancel")
    await api.ok("POST", f"{delivery}/redeliver")
    copy = await api.ok("POST", f"{delivery}/send-as-new")
    for delivery_id in (done["deliveries"][0], copy["id"]):
        await api.ok("POST", f"/v1/deliveries/{delivery_id}/cancel")
    await api.ok("DELETE", f"/v1/events/{done['id']}/body")
    key = await api.ok("POST", "/v1/keys", json={"name": "k", "scope": "read"})
    await api.ok("DELETE", f"/v1/keys/{key['id']}")
    await api.ok("DELETE", f"/v1/keys/{key['id']}")  # changes nothing
    await api.ok("DELETE", path)
    await api.ok("DELETE", "/v1/tenants/acme")
    log = await _log(api)
    assert [entry["action"] for entry in reversed(log)] == [
        "tenant.created",
        "tenant.changed",
        "tenant.changed",
        "endpoint.created",
        "endpoint.changed",
        "secret.rotated",
        "endpoint.disabled",
        "endpoint.enabled",
        "delivery.cancelled",
        "delivery.redelivered",
        "delivery.sent_as_new",
        "delivery.cancelled",
        "delivery.cancelled",
        "event.body_deleted",
        "key.created",
        "key.revoked",
        "endpoint.deleted",
        "tenant.deleted",
    ]
    text = json.dumps(log)
    for hidden in (secret, rotated["secret"], "s3cret", key["key"]):
        assert hidden not in text
    changed = next(entry for entry in log if entry["action"] == "endpoint.changed")
    assert (changed["before"]["rate_limit"], changed["after"]["rate_limit"]) == (None, 3.0)
    assert (changed["tenant"], changed["target"]) == ("acme", endpoint["id"])
    actors = {entry["action"]: entry["actor"] for entry in log}
    assert actors["endpoint.disabled"] != actors["endpoint.enabled"]


async def test_what_was_refused_is_not_in_the_log(api: Api) -> None:
    await api.problem(422, "POST", "/v1/endpoints", json={"tenant": "acme", "url": "nope"})
    await api.endpoint(uid="one")
    await api.problem(
        409, "POST", "/v1/endpoints", json={"tenant": "acme", "url": URL, "uid": "one"}
    )
    assert [entry["action"] for entry in await _log(api)] == ["endpoint.created"]


async def test_the_log_is_filtered(api: Api) -> None:
    one = await api.endpoint()
    api.clock.advance(timedelta(hours=1))
    two = await api.endpoint("globex")
    for params, targets in (
        ({"tenant": "acme"}, [one]),
        ({"target": two["id"]}, [two]),
        ({"action": "endpoint.created"}, [two, one]),
        ({"action": "endpoint.deleted"}, []),
        ({"since": "2026-11-29T10:30:00Z"}, [two]),
        ({"until": "2026-11-29T10:30:00Z"}, [one]),
    ):
        found = [entry["target"] for entry in await _log(api, **params)]
        assert found == [endpoint["id"] for endpoint in targets], params


async def test_a_uid_is_unique_per_tenant_while_the_endpoint_lives(api: Api) -> None:
    first = await api.endpoint(uid="one")
    await api.endpoint("globex", uid="one")
    taken = await api.problem(
        409, "POST", "/v1/endpoints", json={"tenant": "acme", "url": URL, "uid": "one"}
    )
    assert taken["type"].endswith(":uid-taken")
    other = await api.endpoint(uid="two")
    await api.problem(409, "PATCH", f"/v1/endpoints/{other['id']}", json={"uid": "one"})
    found = (await api.ok("GET", "/v1/endpoints", params={"uid": "one", "tenant": "acme"}))["items"]
    assert [item["id"] for item in found] == [first["id"]]
    await api.ok("DELETE", f"/v1/endpoints/{first['id']}")
    await api.endpoint(uid="one")


@pytest.mark.parametrize(
    "members",
    [
        {"uid": ""},
        {"uid": "a\0"},
        {"uid": "a\nb"},
        {"uid": "x" * 257},
        {"metadata": {"": "x"}},
        {"metadata": {"a\0": "x"}},
        {"metadata": {"a": "x\0"}},
        {"metadata": {"a": 1}},
        {"metadata": {"a": "x" * 513}},
        {"metadata": {f"k{n}": "" for n in range(51)}},
    ],
)
async def test_bad_uids_and_metadata(sqlite_api: Api, members: dict[str, Any]) -> None:
    body = {"tenant": "acme", "url": URL, **members}
    await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)


async def test_a_body_is_deleted_for_good_and_never_sent_empty(api: Api) -> None:
    await api.endpoint()
    done = await api.publish(data='{"name":"Ada"}', idempotency_key="k")
    path = f"/v1/events/{done['id']}"
    delivery = f"/v1/deliveries/{done['deliveries'][0]}"
    pending = await api.problem(409, "DELETE", f"{path}/body")
    assert pending["type"].endswith(":pending")
    await api.ok("POST", f"{delivery}/cancel")
    await api.ok("DELETE", f"{path}/body")
    await api.ok("DELETE", f"{path}/body")
    row = await api.database.read(events.get, done["id"])
    assert row is not None
    assert bytes(row["body"]) == b""
    shown = await api.ok("GET", path)
    assert (shown["body"], shown["size"]) == (None, 0)
    assert shown["body_deleted_at"] == "2026-11-29T10:00:00Z"
    for operation in ("redeliver", "send-as-new"):
        refused = await api.problem(409, "POST", f"{delivery}/{operation}")
        assert refused["type"].endswith(":body-deleted")
