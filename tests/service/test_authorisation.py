"""Each operation with each kind of key, on things of its own tenant and of another.

The table below must name every operation of the application, so that none is added unprotected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from delivery_service.net.transport import PreparedRequest
from delivery_service.policy.outcome import Outcome, OutcomeKind
from tests.service.caller import URL, Api, event

PUBLIC = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/.well-known/webhooks")}
KEYS = ("admin", "publish", "read", "tenant", "other", "portal", "expired", "revoked")

# What each key gets: on things of acme, which is the tenant of `tenant` but not of `other`. A
# portal token gets what a tenant's key gets; one that is no longer in force gets 401 everywhere.
ADMIN = {"admin": "ok", "publish": 403, "read": 403, "tenant": 403, "other": 403}
PLATFORM = {**ADMIN, "read": "ok"}
PUBLISH = {**ADMIN, "publish": "ok"}
READ = {"admin": "ok", "publish": 403, "read": "ok", "tenant": "ok", "other": 404}
EDIT = {**READ, "read": 403}
SHARED = {**READ, "other": "ok"}  # the platform's own, for everybody
LIST = {**READ, "other": "ok"}  # but empty

OPERATIONS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("POST", "/v1/tenants"): (ADMIN, {"json": {"id": "new"}}),
    ("GET", "/v1/tenants"): (PLATFORM, {}),
    ("GET", "/v1/tenants/{tenant_id}"): (READ, {}),
    ("PUT", "/v1/tenants/{tenant_id}"): (ADMIN, {"json": {}}),
    ("PATCH", "/v1/tenants/{tenant_id}"): (ADMIN, {"json": {}}),
    ("DELETE", "/v1/tenants/{tenant_id}"): (ADMIN, {}),
    ("POST", "/v1/endpoints"): (EDIT, {"json": {"tenant": "acme", "url": URL}}),
    ("GET", "/v1/endpoints"): (LIST, {}),
    ("GET", "/v1/endpoints/{endpoint_id}"): (READ, {}),
    ("PATCH", "/v1/endpoints/{endpoint_id}"): (EDIT, {"json": {"description": "x"}}),
    ("DELETE", "/v1/endpoints/{endpoint_id}"): (EDIT, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/enable"): (EDIT, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/disable"): (EDIT, {}),
    ("GET", "/v1/endpoints/{endpoint_id}/secrets"): (READ, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/secrets/rotate"): (EDIT, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/test"): (EDIT, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/send-example"): (
        EDIT,
        {"json": {"type": "invoice.paid"}},
    ),
    ("POST", "/v1/endpoints/{endpoint_id}/verify"): (EDIT, {}),
    ("GET", "/v1/endpoints/{endpoint_id}/stats"): (READ, {}),
    ("POST", "/v1/filters/test"): (
        SHARED,
        {"json": {"filter": {"path": "", "exists": True}, "data": 1}},
    ),
    ("GET", "/v1/endpoints/{endpoint_id}/feed"): (READ, {}),
    ("POST", "/v1/endpoints/{endpoint_id}/feed/acknowledge"): (
        EDIT,
        {"json": {"deliveries": ["dlv_01M8MZ1BD68JM5KXSYHDE9A657"]}},
    ),
    ("GET", "/v1/event-types"): (SHARED, {}),
    ("GET", "/v1/event-types-openapi"): (SHARED, {}),
    ("POST", "/v1/event-types-openapi"): (ADMIN, {"json": {"openapi": "3.1.0", "webhooks": {}}}),
    ("GET", "/v1/event-types/{name}"): (SHARED, {}),
    ("PUT", "/v1/event-types/{name}"): (ADMIN, {"json": {}}),
    ("DELETE", "/v1/event-types/{name}"): (ADMIN, {}),
    ("POST", "/v1/events"): (PUBLISH, event()),
    ("POST", "/v1/events/batch"): (
        PUBLISH,
        {"json": {"events": [{"tenant": "acme", "type": "a.b", "data": {}}]}},
    ),
    ("POST", "/v1/events/raw"): (PUBLISH, {"params": {"tenant": "acme", "type": "a.b"}}),
    ("GET", "/v1/events"): (LIST, {}),
    ("GET", "/v1/events/{event_id}"): (READ, {}),
    ("DELETE", "/v1/events/{event_id}/body"): (ADMIN, {}),
    ("GET", "/v1/deliveries"): (LIST, {}),
    ("GET", "/v1/deliveries/{delivery_id}"): (READ, {}),
    ("GET", "/v1/deliveries/{delivery_id}/attempts"): (READ, {}),
    ("POST", "/v1/deliveries/{delivery_id}/redeliver"): (EDIT, {}),
    ("POST", "/v1/deliveries/{delivery_id}/send-as-new"): (EDIT, {}),
    ("POST", "/v1/deliveries/{delivery_id}/cancel"): (EDIT, {}),
    ("POST", "/v1/operations"): (
        ADMIN,
        {"json": {"kind": "recover", "since": "2026-11-29T08:00:00Z"}},
    ),
    ("GET", "/v1/operations"): (ADMIN, {}),
    ("GET", "/v1/operations/{operation_id}"): (ADMIN, {}),
    ("POST", "/v1/operations/{operation_id}/cancel"): (ADMIN, {}),
    ("GET", "/v1/audit-log"): (PLATFORM, {}),
    ("POST", "/v1/portal-tokens"): (ADMIN, {"json": {"tenant": "acme"}}),
    ("POST", "/v1/keys"): (ADMIN, {"json": {"name": "k", "scope": "read"}}),
    ("GET", "/v1/keys"): (ADMIN, {}),
    ("GET", "/v1/keys/{key_id}"): (ADMIN, {}),
    ("DELETE", "/v1/keys/{key_id}"): (ADMIN, {}),
}


class _Owner:
    """A transport to a receiver that answers challenges."""

    async def send(self, request: PreparedRequest, _deadline: float) -> Outcome:
        challenge = json.loads(request.body)["data"]["challenge"]
        return Outcome(OutcomeKind.DELIVERED, response_body=challenge.encode())

    async def close(self) -> None:
        pass


async def _things_of_acme(api: Api) -> dict[str, str]:
    endpoint = await api.endpoint()
    done = await api.publish()
    await api.ok("PUT", "/v1/event-types/invoice.paid", json={"example": {"id": 1}})
    keys = (await api.ok("GET", "/v1/keys", params={"scope": "publish"}))["items"]
    operation = await api.ok(
        "POST", "/v1/operations", json={"kind": "cancel", "since": "2026-11-29T08:00:00Z"}
    )
    return {
        "operation_id": operation["id"],
        "tenant_id": "acme",
        "endpoint_id": endpoint["id"],
        "event_id": done["id"],
        "delivery_id": done["deliveries"][0],
        "key_id": keys[0]["id"],
        "name": "invoice.paid",
    }


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_authorisation(sqlite_api: Api, method: str, path: str, key: str) -> None:
    api = sqlite_api
    things = await _things_of_acme(api)
    context = api.app.state.surehook
    api.app.state.surehook = replace(context, transport=_Owner)
    if path.endswith("/body"):
        await api.ok("POST", f"/v1/deliveries/{things['delivery_id']}/cancel")
    expected, request = OPERATIONS[method, path]
    if key == "revoked":
        made = await api.ok("POST", "/v1/keys", json={"name": "k", "scope": "admin"})
        api.keys = {**api.keys, "revoked": made["key"]}
        await api.ok("GET", "/v1/keys", key="revoked")
        await api.ok("DELETE", f"/v1/keys/{made['id']}")
    if key == "publish" and path == "/v1/keys/{key_id}" and method == "DELETE":
        things["key_id"] = "key_01M8MZ1BD68JM5KXSYHDE9A657"
    answer = await api.call(method, path.format(**things), key=key, **request)
    wanted = expected["tenant"] if key == "portal" else expected.get(key, 401)
    if wanted == "ok":
        assert answer.is_success, answer.text
    else:
        assert answer.status_code == wanted, answer.text
    if expected is LIST and key == "other":
        assert answer.json()["items"] == []


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_without_a_key_every_operation_is_401(
    sqlite_api: Api, method: str, path: str
) -> None:
    await sqlite_api.problem(401, method, path, key=None)


async def test_the_table_names_every_operation(sqlite_api: Api) -> None:
    document = sqlite_api.app.openapi()
    documented = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert documented == OPERATIONS.keys() | PUBLIC


def _routes(router: Any) -> Iterator[Any]:
    for route in router.routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from _routes(included)


OTHER_ROUTES = {("GET", "/metrics"), ("GET", "/openapi.json")}
"""Not in the document: the metrics have tests of their own, and the document needs no key."""


async def test_no_route_is_left_out_of_the_document(sqlite_api: Api) -> None:
    routed = {
        (method, route.path)
        for route in _routes(sqlite_api.app)
        for method in route.methods - {"HEAD"}
    }
    documented = {(method, path.replace(":path}", "}")) for method, path in routed}
    assert documented >= OPERATIONS.keys() | PUBLIC
    assert documented - OPERATIONS.keys() - PUBLIC == OTHER_ROUTES


async def test_public_operations_need_no_key(sqlite_api: Api) -> None:
    for method, path in PUBLIC:
        answer = await sqlite_api.call(method, path, key=None)
        assert answer.status_code in (200, 503)


LISTS = ("/v1/endpoints", "/v1/events", "/v1/deliveries")


@pytest.mark.parametrize("path", LISTS)
async def test_lists_show_a_tenant_only_its_own(api: Api, path: str) -> None:
    for tenant in ("acme", "globex"):
        await api.endpoint(tenant)
        await api.publish(tenant)
    for key, tenants in (
        ("admin", {"acme", "globex"}),
        ("tenant", {"acme"}),
        ("other", {"globex"}),
    ):
        shown = (await api.ok("GET", path, key=key))["items"]
        assert {item["tenant"] for item in shown} == tenants
    await api.problem(404, "GET", path, key="tenant", params={"tenant": "globex"})
    assert len((await api.ok("GET", path, key="tenant", params={"tenant": "acme"}))["items"]) == 1


async def test_a_tenant_cannot_find_another_ones_deliveries_by_its_ids(api: Api) -> None:
    endpoint = await api.endpoint("globex")
    done = await api.publish("globex")
    for name, value in (("endpoint", endpoint["id"]), ("event", done["id"])):
        params = {name: value}
        assert (await api.ok("GET", "/v1/deliveries", key="tenant", params=params))["items"] == []
        assert len((await api.ok("GET", "/v1/deliveries", params=params))["items"]) == 1


async def test_a_tenant_cannot_create_for_another(api: Api) -> None:
    body = {"tenant": "globex", "url": URL}
    await api.problem(404, "POST", "/v1/endpoints", json=body, key="tenant")
    assert (await api.ok("GET", "/v1/endpoints"))["items"] == []


async def test_a_tenant_cannot_enable_what_the_platform_disabled(api: Api) -> None:
    path = f"/v1/endpoints/{(await api.endpoint())['id']}"
    assert (await api.ok("POST", f"{path}/disable"))["disabled_reason"] == "operator"
    problem = await api.problem(409, "POST", f"{path}/enable", key="tenant")
    assert problem["type"].endswith(":disabled-by-operator")
    await api.ok("POST", f"{path}/enable")
    disabled = await api.ok("POST", f"{path}/disable", key="tenant")
    assert disabled["disabled_reason"] == "tenant"
    assert (await api.ok("POST", f"{path}/enable", key="tenant"))["status"] == "enabled"
