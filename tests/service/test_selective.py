"""Later delivery, channels, filters, authentication, stats and examples over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, select

from delivery_service.store import attempts
from sender import tables as t
from tests.service.caller import Api
from tests.service.conftest import START
from wire.ids import ATTEMPT, new_id

FILTER = {"and": [{"path": "/total", "gte": 100}, {"path": "/country", "in": ["DE"]}]}


async def _delivery(api: Api, delivery_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = await api.ok("GET", f"/v1/deliveries/{delivery_id}")
    return shown


async def test_an_event_for_later(api: Api) -> None:
    await api.endpoint()
    done = await api.publish(deliver_at="2026-12-24T19:00:00+01:00")
    shown = await _delivery(api, done["deliveries"][0])
    assert (shown["status"], shown["next_attempt_at"]) == ("pending", "2026-12-24T18:00:00Z")
    event = await api.ok("GET", f"/v1/events/{done['id']}")
    assert event["deliver_at"] == "2026-12-24T18:00:00Z"
    # Sent at once after all, or not at all.
    await api.ok("POST", f"/v1/deliveries/{shown['id']}/redeliver")
    assert (await _delivery(api, shown["id"]))["next_attempt_at"] == "2026-11-29T10:00:00Z"
    await api.ok("POST", f"/v1/deliveries/{shown['id']}/cancel")
    raw = await api.ok(
        "POST",
        "/v1/events/raw",
        params={"tenant": "acme", "type": "a.b", "deliver_at": "2026-12-01T00:00:00Z"},
        content=b"x",
    )
    assert (await _delivery(api, raw["deliveries"][0]))["next_attempt_at"] == "2026-12-01T00:00:00Z"


async def test_later_is_bounded(api: Api) -> None:
    problem = await api.problem(
        422,
        "POST",
        "/v1/events",
        json={"tenant": "a", "type": "b", "data": 1, "deliver_at": "2027-03-01T00:00:00Z"},
    )
    assert "90 days" in problem["errors"][0]["detail"]
    for bad in ("tomorrow", "2026-12-01T00:00:00", 5):
        body = {"tenant": "a", "type": "b", "data": 1, "deliver_at": bad}
        problem = await api.problem(422, "POST", "/v1/events", json=body)
        assert problem["errors"][0]["pointer"] == "#/deliver_at"


async def test_the_replay_window_begins_when_the_event_is_due(api: Api) -> None:
    await api.endpoint()
    at = START + timedelta(days=80)
    delivery_id = await api.delivery(deliver_at=at.isoformat())
    await api.ok("POST", f"/v1/deliveries/{delivery_id}/cancel")
    api.clock.moment = at + timedelta(hours=1)
    await api.ok("POST", f"/v1/deliveries/{delivery_id}/redeliver")


async def test_channels_and_filters_of_an_endpoint(api: Api) -> None:
    made = await api.endpoint(channels=["p:1"], filter=FILTER)
    assert (made["channels"], made["filter"]) == (["p:1"], FILTER)
    good = '{"total": 120, "country": "DE"}'
    assert (await api.publish(data=good))["deliveries"] == []
    assert (await api.publish(data='{"total": 1}', channels=["p:1"]))["deliveries"] == []
    done = await api.publish(data=good, channels=["p:2", "p:1"])
    assert len(done["deliveries"]) == 1
    event = await api.ok("GET", f"/v1/events/{done['id']}")
    assert event["channels"] == ["p:2", "p:1"]
    path = f"/v1/endpoints/{made['id']}"
    changed = await api.ok("PATCH", path, json={"channels": None, "filter": None})
    assert (changed["channels"], changed["filter"]) == ([], None)
    assert len((await api.publish(data="1"))["deliveries"]) == 1


async def test_a_bad_filter_is_named(api: Api) -> None:
    body = {"tenant": "acme", "url": "https://h.example/", "filter": {"path": "/a", "like": 1}}
    problem = await api.problem(422, "POST", "/v1/endpoints", json=body)
    assert problem["errors"][0]["pointer"] == "#/filter"
    assert "'like' is none of eq" in problem["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [({"total": 120, "country": "DE"}, True), ({"total": 1}, False), (None, False)],
)
async def test_a_filter_can_be_tried(sqlite_api: Api, data: Any, expected: bool) -> None:
    body = {"filter": FILTER, "data": data}
    assert await sqlite_api.ok("POST", "/v1/filters/test", json=body) == {"matches": expected}


AUTHENTICATION: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"type": "basic", "username": "us", "password": "s3cret"},
        {"type": "basic", "username": "us"},
    ),
    ({"type": "bearer", "token": "s3cret"}, {"type": "bearer"}),
    (
        {
            "type": "oauth2",
            "token_url": "https://login.example/token",
            "client_id": "us",
            "client_secret": "s3cret",
            "scope": "a b",
        },
        {
            "type": "oauth2",
            "token_url": "https://login.example/token",
            "client_id": "us",
            "scope": "a b",
        },
    ),
]


@pytest.mark.parametrize(("given", "shown"), AUTHENTICATION)
async def test_authentication_is_encrypted_and_never_shown(
    api: Api, given: dict[str, Any], shown: dict[str, Any]
) -> None:
    made = await api.call(
        "POST",
        "/v1/endpoints",
        json={"tenant": "acme", "url": "https://h.example/", "authentication": given},
    )
    nothing = dict.fromkeys(("username", "token_url", "client_id", "scope", "audience"))
    assert made.json()["authentication"] == {**nothing, **shown}
    path = f"/v1/endpoints/{made.json()['id']}"
    log = await api.call("GET", "/v1/audit-log")
    for answer in (made, await api.call("GET", path), log):
        assert "s3cret" not in answer.text

    def stored(connection: Connection) -> bytes:
        return bytes(connection.execute(select(t.endpoints.c.authentication)).scalar_one())

    sealed = await api.database.read(stored)
    assert b"s3cret" not in sealed
    assert given.items() <= api.service.sealer.open_json(sealed).items()
    cleared = await api.ok("PATCH", path, json={"authentication": None})
    assert cleared["authentication"] is None


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"type": "digest"}, "#/authentication"),
        ({"type": "basic", "username": "a:b", "password": "x"}, "#/authentication/basic/username"),
        ({"type": "bearer", "token": "a b"}, "#/authentication/bearer/token"),
        (
            {
                "type": "oauth2",
                "token_url": "http://10.0.0.1/token",
                "client_id": "a",
                "client_secret": "b",
            },
            "#/authentication/token_url",
        ),
    ],
)
async def test_authentication_that_can_not_be_used(
    sqlite_api: Api, given: dict[str, Any], pointer: str
) -> None:
    body = {"tenant": "acme", "url": "https://h.example/", "authentication": given}
    problem = await sqlite_api.problem(422, "POST", "/v1/endpoints", json=body)
    assert problem["errors"][0]["pointer"] == pointer


async def test_a_header_must_not_say_it_too(api: Api) -> None:
    bearer = {"type": "bearer", "token": "x"}
    made = await api.endpoint(authentication=bearer)
    headers = {"authorization": "Basic eA=="}
    path = f"/v1/endpoints/{made['id']}"
    await api.problem(422, "PATCH", path, json={"headers": headers})
    body = {"tenant": "a", "url": "https://h.example/", "authentication": bearer}
    await api.problem(422, "POST", "/v1/endpoints", json={**body, "headers": headers})


def _attempts(endpoint_id: str, *at: tuple[datetime, str, float]) -> list[dict[str, Any]]:
    return [
        {
            "id": new_id(ATTEMPT, now=moment), "delivery_id": "dlv_x", "endpoint_id": endpoint_id,
            "number": 1, "late": False, "started_at": moment, "duration": duration, "url": "",
            "kind": kind, "status_code": None, "error": None, "may_have_arrived": True,
            "request_headers": "{}", "response_headers": "[]", "response_body": b"",
            "response_truncated": False,
        }
        for moment, kind, duration in at
    ]  # fmt: skip


async def test_stats_of_an_endpoint_over_time(api: Api) -> None:
    made, other = await api.endpoint(), await api.endpoint()
    hour = START - timedelta(hours=3)
    rows = _attempts(
        made["id"],
        (hour, "delivered", 0.5),
        (hour + timedelta(minutes=59, seconds=59, milliseconds=999), "timeout", 15.0),
        (hour + timedelta(hours=1), "delivered", 1.0),
        (START - timedelta(days=2), "dns", 1.0),
    ) + _attempts(other["id"], (hour, "delivered", 9.0))
    await api.database.write(attempts.insert, rows)
    path = f"/v1/endpoints/{made['id']}/stats"
    shown = await api.ok("GET", path)
    assert (shown["per"], len(shown["buckets"])) == ("hour", 24)
    assert (shown["since"], shown["until"]) == ("2026-11-28T10:00:00Z", "2026-11-29T10:00:00Z")
    filled = [bucket for bucket in shown["buckets"] if bucket["attempts"]]
    assert filled == [
        {
            "start": "2026-11-29T07:00:00Z",
            "attempts": 2,
            "delivered": 1,
            "failed": 1,
            "kinds": {"delivered": 1, "timeout": 1},
            "mean_duration": 7.75,
        },
        {
            "start": "2026-11-29T08:00:00Z",
            "attempts": 1,
            "delivered": 1,
            "failed": 0,
            "kinds": {"delivered": 1},
            "mean_duration": 1.0,
        },
    ]
    days = await api.ok("GET", path, params={"per": "day", "since": "2026-11-27T05:00:00Z"})
    assert [bucket["attempts"] for bucket in days["buckets"]] == [1, 0, 3]
    assert days["until"] == "2026-11-30T00:00:00Z"


@pytest.mark.parametrize(
    "params",
    [
        {"per": "minute"},
        {"since": "2026-11-30T00:00:00Z"},
        {"since": "2026-11-01T00:00:00Z"},
        {"per": "day", "since": "2025-01-01T00:00:00Z"},
        {"since": "0001-01-01T00:00:00Z", "until": "0001-01-01T00:00:00Z"},
        {"until": "9999-12-31T23:59:59Z"},
        {"since": "0001-01-01T00:00:00Z", "until": "0001-01-02T00:00:00Z"},
    ],
)
async def test_stats_of_no_such_range(sqlite_api: Api, params: dict[str, str]) -> None:
    made = await sqlite_api.endpoint()
    await sqlite_api.problem(422, "GET", f"/v1/endpoints/{made['id']}/stats", params=params)


async def test_the_example_of_an_event_type_is_sent(api: Api) -> None:
    made = await api.endpoint(event_types=["other"])
    path = f"/v1/endpoints/{made['id']}/send-example"
    await api.problem(404, "POST", path, json={"type": "invoice.paid"})
    await api.ok("PUT", "/v1/event-types/invoice.paid", json={})
    problem = await api.problem(409, "POST", path, json={"type": "invoice.paid"})
    assert problem["type"].endswith(":no-example")
    await api.ok("PUT", "/v1/event-types/invoice.paid", json={"example": {"id": 1, "x": None}})
    done = await api.ok("POST", path, json={"type": "invoice.paid"})
    event = await api.ok("GET", f"/v1/events/{done['id']}")
    assert (event["type"], event["body"]["data"]) == ("invoice.paid", {"id": 1, "x": None})
    await api.ok("POST", f"/v1/endpoints/{made['id']}/disable")
    await api.problem(409, "POST", path, json={"type": "invoice.paid"})
