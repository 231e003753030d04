"""Bulk operations over HTTP: what is accepted, counted, queued, shown and cancelled."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from delivery_service.jobs.operations import OperationRunner
from sender import tables
from tests.service.caller import Api

PATH = "/v1/operations"
SINCE = "2026-11-29T08:00:00Z"
UNKNOWN = "op_01M8MZ1BD68JM5KXSYHDE9A657"


async def carry_out(api: Api) -> None:
    """Let a process of the service do what is queued."""
    settings = api.service.settings.model_copy(update={"bulk_rate": 100_000})
    runner = OperationRunner(settings, api.database, api.clock)
    while await runner.run_next():
        pass


async def dead(api: Api, count: int, **event: Any) -> list[str]:
    """Deliveries that ended without success: their endpoint was disabled."""
    endpoint = await api.endpoint()
    ids = [await api.delivery(**event) for _ in range(count)]
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/enable")
    return ids


async def test_an_outage_is_repaired(api: Api) -> None:
    ids = await dead(api, 3)
    body = {"kind": "recover", "since": SINCE, "tenant": "acme"}
    counted = await api.call("POST", PATH, json={**body, "dry_run": True})
    assert counted.status_code == 200
    assert counted.json() == {"kind": "recover", "matched": 3, "possible": 3, "passed_over": {}}
    assert (await api.ok("GET", PATH))["items"] == []
    answer = await api.call("POST", PATH, json=body)
    assert answer.status_code == 202
    made = answer.json()
    assert (made["status"], made["progress"], made["done"]) == ("queued", 0.0, 0)
    assert made["filter"] == {"since": SINCE, "tenant": "acme"}
    assert await api.ok("GET", f"{PATH}/{made['id']}") == made
    await carry_out(api)
    shown = await api.ok("GET", f"{PATH}/{made['id']}")
    assert (shown["status"], shown["progress"], shown["done"]) == ("done", 1.0, 3)
    for id_ in ids:
        assert (await api.ok("GET", f"/v1/deliveries/{id_}"))["status"] == "pending"
    again = (await api.ok("POST", PATH, json={**body, "dry_run": True}))["matched"]
    assert again == 0
    log = (await api.ok("GET", "/v1/audit-log", params={"target": made["id"]}))["items"]
    assert [(entry["action"], entry["tenant"]) for entry in log] == [("operation.created", "acme")]


async def test_a_broadcast_keeps_its_bytes(api: Api) -> None:
    for tenant in ("acme", "globex"):
        await api.endpoint(tenant)
    data = '{"total": 1.10, "a":1,"a":2,"big":123456789012345678901234567890}'
    head = json.dumps({"kind": "broadcast", "type": "news.flash"})
    request = {
        "content": f'{head[:-1]}, "data": {data}}}'.encode(),
        "headers": {"content-type": "application/json"},
    }
    dry = {"content": request["content"][:-1] + b',"dry_run":true}', "headers": request["headers"]}
    counted = await api.ok("POST", PATH, **dry)
    assert (counted["matched"], counted["possible"]) == (2, 2)
    made = await api.ok("POST", PATH, **request)
    assert made["filter"] == {"type": "news.flash"}
    assert made["progress"] is None
    await carry_out(api)
    await carry_out(api)
    shown = await api.ok("GET", f"{PATH}/{made['id']}")
    assert (shown["status"], shown["done"]) == ("done", 2)

    def bodies(connection: Connection) -> list[bytes]:
        return [bytes(body) for body in connection.scalars(select(tables.events.c.body))]

    stored = await api.database.read(bodies)
    assert len(stored) == 2
    assert all(body.endswith(b'"data":' + data.encode() + b"}") for body in stored)
    nothing = {"kind": "broadcast", "type": "news.flash", "data": None}
    await api.ok("POST", PATH, json=nothing)


async def test_by_reason_and_last_outcome(api: Api) -> None:
    skipped = await dead(api, 2)
    timed_out, cancelled = await api.delivery(), await api.delivery()
    await api.ok("POST", f"/v1/deliveries/{cancelled}/cancel")

    def fail(connection: Connection) -> None:
        its = tables.deliveries.c.id.in_([timed_out, skipped[0]])
        connection.execute(update(tables.deliveries).where(its).values(last_outcome="timeout"))

    await api.database.write(fail)

    async def count(kind: str, **where: str) -> tuple[int, dict[str, int]]:
        body = {"kind": kind, "since": SINCE, "dry_run": True, **where}
        counted = await api.ok("POST", PATH, json=body)
        return counted["possible"], counted["passed_over"]

    assert await count("recover") == (2, {"cancelled": 1})
    assert await count("recover", reason="endpoint_disabled") == (2, {})
    assert await count("recover", reason="cancelled") == (1, {})
    assert await count("recover", last_outcome="timeout") == (1, {})
    assert await count("replay", reason="endpoint_disabled", last_outcome="dns") == (0, {})
    assert await count("cancel", last_outcome="timeout") == (1, {})
    assert await count("cancel", last_outcome="dns") == (0, {})
    where = {"reason": "endpoint_disabled", "last_outcome": "timeout"}
    made = await api.ok("POST", PATH, json={"kind": "recover", "since": SINCE, **where})
    assert made["filter"] == {"since": SINCE, **where}
    await carry_out(api)
    states = [(await api.ok("GET", f"/v1/deliveries/{id_}"))["status"] for id_ in skipped]
    assert states == ["pending", "skipped"]


async def test_cancelled_before_it_began(api: Api) -> None:
    ids = await dead(api, 2)
    made = await api.ok("POST", PATH, json={"kind": "recover", "since": SINCE})
    cancelled = await api.ok("POST", f"{PATH}/{made['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    assert cancelled["ended_at"] is not None
    again = await api.problem(409, "POST", f"{PATH}/{made['id']}/cancel")
    assert again["type"].endswith(":ended")
    await carry_out(api)
    for id_ in ids:
        assert (await api.ok("GET", f"/v1/deliveries/{id_}"))["status"] == "skipped"
    log = (await api.ok("GET", "/v1/audit-log", params={"target": made["id"]}))["items"]
    assert [entry["action"] for entry in log] == ["operation.cancelled", "operation.created"]


async def test_list_pages_and_filters(api: Api) -> None:
    made = []
    for kind in ("recover", "cancel", "replay"):
        made.append((await api.ok("POST", PATH, json={"kind": kind, "since": SINCE}))["id"])
        api.clock.advance(timedelta(seconds=1))
    first = await api.ok("GET", PATH, params={"limit": 2})
    rest = await api.ok("GET", PATH, params={"limit": 2, "cursor": first["next_cursor"]})
    found = [item["id"] for page in (first, rest) for item in page["items"]]
    assert found == made[::-1]
    assert rest["next_cursor"] is None
    only = await api.ok("GET", PATH, params={"kind": "cancel", "status": "queued"})
    assert [item["id"] for item in only["items"]] == [made[1]]
    assert (await api.ok("GET", PATH, params={"status": "done"}))["items"] == []


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"kind": "recover"}, "#/since"),
        ({"kind": "everything", "since": SINCE}, "#/kind"),
        ({"kind": "recover", "since": "2 hours"}, "#/since"),
        ({"kind": "recover", "since": "2026-11-29T08:00:00"}, "#/since"),
        ({"kind": "recover", "since": SINCE, "until": SINCE}, "#/until"),
        ({"kind": "recover", "since": SINCE, "status": "delivered"}, "#/status"),
        ({"kind": "replay", "since": SINCE, "status": "pending"}, "#/status"),
        ({"kind": "cancel", "since": SINCE, "status": "dead"}, "#/status"),
        ({"kind": "cancel", "since": SINCE, "reason": "poison"}, "#/reason"),
        ({"kind": "recover", "since": SINCE, "reason": "because"}, "#/reason"),
        ({"kind": "recover", "since": SINCE, "last_outcome": "bad"}, "#/last_outcome"),
        ({"kind": "recover", "since": SINCE, "endpoint": "ep_1"}, "#/endpoint"),
        ({"kind": "recover", "since": SINCE, "data": {}}, "#/data"),
        ({"kind": "recover", "since": SINCE, "type": "a.b"}, "#/type"),
        ({"kind": "recover", "since": SINCE, "tenat": "acme"}, "#/tenat"),
        ({"kind": "broadcast", "type": "a.b"}, "#/data"),
        ({"kind": "broadcast", "data": {}}, "#/type"),
        ({"kind": "broadcast", "type": "no spaces", "data": {}}, "#/type"),
        ({"kind": "broadcast", "type": "a.b", "data": {}, "tenant": "acme"}, "#/tenant"),
    ],
)
async def test_refusals_name_the_member(
    sqlite_api: Api, members: dict[str, Any], pointer: str
) -> None:
    for more in ({}, {"dry_run": True}):
        problem = await sqlite_api.problem(422, "POST", PATH, json={**members, **more})
        assert pointer in [error["pointer"] for error in problem["errors"]]
    assert (await sqlite_api.ok("GET", PATH))["items"] == []


async def test_a_broadcast_over_the_limit_is_refused_at_once(sqlite_api: Api) -> None:
    limit = sqlite_api.service.settings.max_body_bytes
    body = {"kind": "broadcast", "type": "a.b", "data": "x" * limit}
    await sqlite_api.problem(413, "POST", PATH, json=body)


async def test_unknown_ones_are_404(sqlite_api: Api) -> None:
    for id_ in (UNKNOWN, "op_1", "dlv_01M8MZ1BD68JM5KXSYHDE9A657"):
        await sqlite_api.problem(404, "GET", f"{PATH}/{id_}")
        await sqlite_api.problem(404, "POST", f"{PATH}/{id_}/cancel")
