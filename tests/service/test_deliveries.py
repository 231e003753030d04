"""Deliveries through the API: what can be done in which state, and what can be seen."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from delivery_service.policy.sharing import Want
from delivery_service.store import attempts, deliveries, queue, settle
from tests.service.caller import Api
from wire.ids import ATTEMPT, new_id

LEASE = timedelta(minutes=1)


async def _claim(api: Api, endpoint_id: str) -> queue.Claimed:
    wants = [Want(endpoint_id, lane, 10) for lane in (0, 1)]
    claimed = await api.database.write(queue.claim, wants, "token", LEASE, api.clock.now())
    return claimed[0]


async def _end(api: Api, endpoint_id: str, status: str, reason: str | None) -> None:
    """Do what a worker does with a claimed delivery that ends."""
    claimed = await _claim(api, endpoint_id)
    lease = {"delivery_id": claimed.delivery_id, "token": claimed.token}
    change = {"id": claimed.delivery_id, "attempted": 1, "status": status, "reason": reason}
    await api.database.write(settle.remove, [lease])
    await api.database.write(deliveries.apply, [change], api.clock.now())


async def test_a_new_delivery_is_pending_and_pokes_the_worker(api: Api) -> None:
    endpoint = await api.endpoint()
    done = await api.publish()
    assert len(api.pokes) == 1
    shown = await api.ok("GET", f"/v1/deliveries/{done['deliveries'][0]}")
    assert shown == {
        "id": done["deliveries"][0],
        "event": done["id"],
        "event_type": "invoice.paid",
        "endpoint": endpoint["id"],
        "tenant": "acme",
        "status": "pending",
        "reason": None,
        "attempts": 0,
        "last_outcome": None,
        "in_flight": False,
        "next_attempt_at": "2026-11-29T10:00:00Z",
        "copy_of": None,
        "created_at": "2026-11-29T10:00:00Z",
        "ended_at": None,
    }


async def test_publishing_without_a_match_makes_no_delivery_and_no_poke(api: Api) -> None:
    await api.endpoint(event_types=["customer.*"])
    assert (await api.publish())["deliveries"] == []
    assert api.pokes == []


ENDED = [
    ("delivered", None),
    ("dead", "schedule_used_up"),
    ("dead", "poison"),
    ("cancelled", "cancelled"),
    ("skipped", "endpoint_disabled"),
]


@pytest.mark.parametrize(("status", "reason"), ENDED)
async def test_f07_every_ended_delivery_can_be_redelivered_and_not_cancelled(
    api: Api, status: str, reason: str | None
) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    await _end(api, endpoint["id"], status, reason)
    path = f"/v1/deliveries/{delivery_id}"
    ended = await api.ok("GET", path)
    assert (ended["status"], ended["reason"], ended["attempts"]) == (status, reason, 1)
    assert ended["ended_at"] == "2026-11-29T10:00:00Z"
    assert ended["next_attempt_at"] is None
    conflict = await api.problem(409, "POST", f"{path}/cancel")
    assert status in conflict["detail"]
    api.pokes.clear()
    answer = await api.call("POST", f"{path}/redeliver")
    assert answer.status_code == 202
    again = answer.json()
    assert (again["id"], again["status"], again["reason"]) == (delivery_id, "pending", None)
    assert (again["attempts"], again["ended_at"]) == (1, None)
    assert len(api.pokes) == 1
    claimed = await _claim(api, endpoint["id"])
    assert (claimed.delivery_id, claimed.attempts, claimed.attempts_before) == (delivery_id, 1, 1)


async def test_f07_in_flight_is_a_conflict(api: Api) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    await _claim(api, endpoint["id"])
    path = f"/v1/deliveries/{delivery_id}"
    shown = await api.ok("GET", path)
    assert (shown["in_flight"], shown["next_attempt_at"]) == (True, None)
    problem = await api.problem(409, "POST", f"{path}/redeliver")
    assert problem["type"].endswith(":in-flight")


async def test_redeliver_makes_a_waiting_delivery_due_at_once(api: Api) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    claimed = await _claim(api, endpoint["id"])
    retry = {"delivery_id": delivery_id, "token": claimed.token, "delay": 3600.0}
    await api.database.write(settle.reschedule, [retry], api.clock.now())
    path = f"/v1/deliveries/{delivery_id}"
    assert (await api.ok("GET", path))["next_attempt_at"] == "2026-11-29T11:00:00Z"
    again = await api.ok("POST", f"{path}/redeliver")
    assert again["next_attempt_at"] == "2026-11-29T10:00:00Z"


async def test_redeliver_needs_an_enabled_endpoint(api: Api) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    path = f"/v1/deliveries/{delivery_id}/redeliver"
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    disabled = await api.problem(409, "POST", path)
    assert disabled["type"].endswith(":endpoint-disabled")
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/enable")
    await api.ok("POST", path)
    await api.ok("DELETE", f"/v1/endpoints/{endpoint['id']}")
    deleted = await api.problem(409, "POST", path)
    assert deleted["type"].endswith(":endpoint-deleted")


async def test_redeliver_is_possible_within_the_replay_window(api: Api) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    path = f"/v1/deliveries/{delivery_id}/redeliver"
    await _end(api, endpoint["id"], "dead", "schedule_used_up")
    api.clock.advance(timedelta(days=3, seconds=1))
    problem = await api.problem(409, "POST", path)
    assert "replay_window" in problem["detail"]
    api.clock.advance(-timedelta(seconds=1))
    await api.ok("POST", path)


async def test_f03_deleting_an_endpoint_cancels_what_is_pending_and_keeps_history(
    api: Api,
) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    await api.ok("DELETE", f"/v1/endpoints/{endpoint['id']}")
    shown = await api.ok("GET", f"/v1/deliveries/{delivery_id}")
    assert (shown["status"], shown["reason"]) == ("cancelled", "endpoint_deleted")
    params = {"endpoint": endpoint["id"]}
    assert len((await api.ok("GET", "/v1/deliveries", params=params))["items"]) == 1
    assert (await api.publish())["deliveries"] == []


async def test_f04_disabling_leaves_nothing_to_claim(api: Api) -> None:
    endpoint = await api.endpoint()
    delivery_id = await api.delivery()
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    shown = await api.ok("GET", f"/v1/deliveries/{delivery_id}")
    assert (shown["status"], shown["reason"]) == ("skipped", "endpoint_disabled")
    wants = [Want(endpoint["id"], 0, 10)]
    assert await api.database.write(queue.claim, wants, "t", LEASE, api.clock.now()) == []


async def test_f05_what_is_published_while_disabled_can_be_found_and_sent_later(
    api: Api,
) -> None:
    endpoint = await api.endpoint()
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/disable")
    done = await api.publish()
    assert len(done["deliveries"]) == 1
    await api.ok("POST", f"/v1/endpoints/{endpoint['id']}/enable")
    params = {"status": "skipped", "tenant": "acme"}
    found = (await api.ok("GET", "/v1/deliveries", params=params))["items"]
    assert [item["id"] for item in found] == done["deliveries"]
    again = await api.ok("POST", f"/v1/deliveries/{done['deliveries'][0]}/redeliver")
    assert again["status"] == "pending"


async def test_cancel_ends_a_pending_delivery_even_in_flight(api: Api) -> None:
    endpoint = await api.endpoint()
    first = await api.delivery()
    await _claim(api, endpoint["id"])
    cancelled = await api.ok("POST", f"/v1/deliveries/{first}/cancel")
    assert (cancelled["status"], cancelled["in_flight"]) == ("cancelled", False)
    await api.problem(409, "POST", f"/v1/deliveries/{first}/cancel")


async def test_lists_filter_by_everything(api: Api) -> None:
    one = await api.endpoint()
    two = await api.endpoint("globex")
    paid = await api.publish()
    api.clock.advance(timedelta(hours=1))
    made = await api.publish("globex", "customer.created")
    await _end(api, one["id"], "dead", "schedule_used_up")
    first, second = paid["deliveries"][0], made["deliveries"][0]
    for params, expected in (
        ({}, [second, first]),
        ({"tenant": "acme"}, [first]),
        ({"endpoint": two["id"]}, [second]),
        ({"event": paid["id"]}, [first]),
        ({"event_type": "customer.created"}, [second]),
        ({"status": "dead"}, [first]),
        ({"status": "pending"}, [second]),
        ({"status": "delivered"}, []),
        ({"since": "2026-11-29T10:00:00Z"}, [second, first]),
        ({"since": "2026-11-29T10:00:00.001Z"}, [second]),
        ({"until": "2026-11-29T11:00:00Z"}, [first]),
        ({"until": "2026-11-29T11:00:00Z", "status": "pending"}, []),
    ):
        shown = (await api.ok("GET", "/v1/deliveries", params=params))["items"]
        assert [item["id"] for item in shown] == expected, params


async def test_f30_times_with_an_offset_are_moments(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    await api.endpoint()
    delivery_id = await api.delivery()
    for params, expected in (
        ({"since": "2026-11-29T02:00:00-08:00"}, 1),
        ({"since": "2026-11-29T02:00:01-08:00"}, 0),
        ({"until": "2026-11-29T15:30:00+05:30"}, 0),
        ({"until": "2026-11-29T15:30:01+05:30"}, 1),
    ):
        for path in ("/v1/deliveries", "/v1/events"):
            assert len((await api.ok("GET", path, params=params))["items"]) == expected, params
    shown = await api.ok("GET", f"/v1/deliveries/{delivery_id}")
    assert shown["created_at"] == "2026-11-29T10:00:00Z"
    key = await api.ok(
        "POST",
        "/v1/keys",
        json={"name": "k", "scope": "read", "expires_at": "2027-01-01T13:30:45-08:00"},
    )
    assert key["expires_at"] == "2027-01-01T21:30:45Z"


def _attempt(api: Api, delivery: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "id": new_id(ATTEMPT),
        "delivery_id": delivery["id"],
        "endpoint_id": delivery["endpoint"],
        "number": 1,
        "late": False,
        "started_at": api.clock.now(),
        "duration": 0.25,
        "url": "https://h.example/in",
        "kind": "status",
        "status_code": 500,
        "error": None,
        "may_have_arrived": True,
        "request_headers": '{"webhook-id":"dlv_1","webhook-signature":"v1,*** v1a,***"}',
        "response_headers": '[["content-type","text/plain"],["set-cookie","a"]]',
        "response_body": b"no",
        "response_truncated": False,
        **values,
    }


async def _with_attempt(api: Api, **values: Any) -> dict[str, dict[str, Any]]:
    await api.endpoint()
    delivery = await api.ok("GET", f"/v1/deliveries/{await api.delivery()}")
    await api.database.write(attempts.insert, [_attempt(api, delivery, **values)])
    path = f"/v1/deliveries/{delivery['id']}/attempts"
    return {key: (await api.ok("GET", path, key=key))["items"][0] for key in ("admin", "tenant")}


async def test_an_attempt_shows_what_was_sent_and_answered(api: Api) -> None:
    shown = (await _with_attempt(api))["admin"]
    assert shown.pop("id").startswith("att_")
    assert shown == {
        "number": 1,
        "late": False,
        "started_at": "2026-11-29T10:00:00Z",
        "duration": 0.25,
        "url": "https://h.example/in",
        "kind": "status",
        "status_code": 500,
        "error": None,
        "may_have_arrived": True,
        "request_headers": {"webhook-id": "dlv_1", "webhook-signature": "v1,*** v1a,***"},
        "response_headers": [["content-type", "text/plain"], ["set-cookie", "a"]],
        "response_body": "no",
        "response_truncated": False,
    }


@pytest.mark.parametrize(
    ("content", "truncated", "expected"),
    [
        (b"x" * 1023 + b"\xc3", True, "x" * 1023),
        (b"x" * 1023 + b"\xc3", False, "x" * 1023 + "\ufffd"),
        (b"\xff\xfe\x00ok\r\n", False, "\ufffd\ufffd\ufffdok\r\n"),
        (b"\x1b[31mred\x07\xe2\x80\xae", False, "\ufffd[31mred\ufffd\ufffd"),
        ("é🚀".encode(), False, "é🚀"),
        (b"", False, ""),
        (None, False, None),
    ],
)
async def test_b11_e09_answers_are_shown_as_safe_text(
    sqlite_api: Api, content: bytes | None, truncated: bool, expected: str | None
) -> None:
    shown = await _with_attempt(
        sqlite_api, response_body=content, response_truncated=truncated, response_headers=None
    )
    assert shown["admin"]["response_body"] == expected
    assert shown["admin"]["response_headers"] == []


async def test_e22_a_tenant_does_not_learn_why_an_address_was_refused(api: Api) -> None:
    reason = "the SSRF guard refuses the address 10.0.0.7: private; allow_private_networks"
    shown = await _with_attempt(api, kind="blocked", status_code=None, error=reason)
    assert shown["admin"]["error"] == reason
    assert shown["tenant"]["error"] == "blocked"
    assert "10.0.0.7" not in json.dumps(shown["tenant"])


async def test_e25_a_tenant_does_learn_of_its_own_faults(sqlite_api: Api) -> None:
    reason = "certificate has expired"
    shown = await _with_attempt(sqlite_api, kind="tls", status_code=None, error=reason)
    assert shown["tenant"]["error"] == reason


async def test_attempts_come_in_order_and_in_pages(api: Api) -> None:
    await api.endpoint()
    delivery = await api.ok("GET", f"/v1/deliveries/{await api.delivery()}")
    rows = [_attempt(api, delivery, number=number) for number in (1, 2, 2, 3, 10)]
    await api.database.write(attempts.insert, list(reversed(rows)))
    path = f"/v1/deliveries/{delivery['id']}/attempts"
    seen, cursor = [], None
    while True:
        params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = await api.ok("GET", path, params=params)
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [(item["number"], item["id"]) for item in seen] == [
        (row["number"], row["id"]) for row in rows
    ]
