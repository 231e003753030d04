"""Deliveries are found by every column that an operator asks for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, update

from sender import tables as t
from tests.service.caller import Api
from tests.service.conftest import START


async def _filled(api: Api) -> dict[str, str]:
    """One delivery of each kind, by name."""
    await api.endpoint()
    names = ["waiting", "held", "dead", "poison", "done", "pulled"]
    ids = {name: await api.delivery() for name in names}
    ended = {"ended_at": START + timedelta(hours=1)}
    values: dict[str, dict[str, Any]] = {
        "waiting": {"attempts": 2, "last_outcome": "timeout"},
        "held": {},
        "dead": {
            "status": "dead", "reason": "schedule_used_up", "undelivered": True, "attempts": 6,
            "last_outcome": "status", **ended,
        },
        "poison": {"status": "dead", "reason": "poison", "undelivered": True, **ended},
        "done": {
            "status": "delivered", "attempts": 1, "last_outcome": "delivered",
            "ended_at": START + timedelta(minutes=1),
        },
        "pulled": {"status": "delivered", "reason": "pulled", "attempts": 3, **ended},
    }  # fmt: skip

    def change(connection: Connection) -> None:
        for name, columns in values.items():
            its = t.deliveries.c.id == ids[name]
            if columns:
                connection.execute(update(t.deliveries).where(its).values(**columns))
            if "ended_at" in columns:
                connection.execute(t.queue.delete().where(t.queue.c.delivery_id == ids[name]))
        held = t.queue.c.delivery_id == ids["held"]
        connection.execute(update(t.queue).where(held).values(lease_token="lease"))

    await api.database.write(change)
    return {delivery_id: name for name, delivery_id in ids.items()}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"reason": "poison"}, {"poison"}),
        ({"reason": "schedule_used_up"}, {"dead"}),
        ({"reason": "pulled"}, {"pulled"}),
        ({"last_outcome": "timeout"}, {"waiting"}),
        ({"last_outcome": "status", "status": "dead"}, {"dead"}),
        ({"last_outcome": "delivered"}, {"done"}),
        ({"min_attempts": 3}, {"dead", "pulled"}),
        ({"max_attempts": 0}, {"held", "poison"}),
        ({"min_attempts": 2, "max_attempts": 3}, {"waiting", "pulled"}),
        ({"in_flight": "true"}, {"held"}),
        ({"in_flight": "false"}, {"waiting", "dead", "poison", "done", "pulled"}),
        ({"ended_since": "2026-11-29T10:30:00Z"}, {"dead", "poison", "pulled"}),
        ({"ended_until": "2026-11-29T10:30:00Z"}, {"done"}),
        ({"status": "pending", "min_attempts": 1}, {"waiting"}),
        ({"reason": "poison", "min_attempts": 1}, set()),
    ],
)
async def test_deliveries_by(api: Api, params: dict[str, Any], expected: set[str]) -> None:
    names = await _filled(api)
    for key in ("admin", "tenant"):
        items = (await api.ok("GET", "/v1/deliveries", params=params, key=key))["items"]
        assert {names[item["id"]] for item in items} == expected
    assert (await api.ok("GET", "/v1/deliveries", params=params, key="other"))["items"] == []


async def test_copies_of_a_delivery(api: Api) -> None:
    await api.endpoint()
    first, _other = await api.delivery(), await api.delivery()
    copy = (await api.ok("POST", f"/v1/deliveries/{first}/send-as-new"))["id"]
    items = (await api.ok("GET", "/v1/deliveries", params={"copy_of": first}))["items"]
    assert [item["id"] for item in items] == [copy]
    params = {"copy_of": "dlv_01M8MZ1BD68JM5KXSYHDE9A657"}
    assert (await api.ok("GET", "/v1/deliveries", params=params))["items"] == []


@pytest.mark.parametrize(
    "params",
    [
        {"reason": "because"},
        {"last_outcome": "bad"},
        {"min_attempts": "-1"},
        {"min_attempts": "1e3"},
        {"copy_of": "evt_01M8MZ1BD68JM5KXSYHDE9A657"},
        {"ended_since": "yesterday"},
    ],
)
async def test_filters_that_are_none(sqlite_api: Api, params: dict[str, str]) -> None:
    await sqlite_api.problem(422, "GET", "/v1/deliveries", params=params)
